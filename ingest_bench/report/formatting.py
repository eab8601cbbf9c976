"""Numbers, sizes and factor levels as text for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ingest_bench import units


def format_integer(value: float) -> str:
    """Format a number in groups of thousands: "12,345"."""
    return f"{value:,.0f}"


def format_number(value: float) -> str:
    """Format a number with three digits, without an exponent above 0.0001: "0.0123", "1.23", "12,300"."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def format_count(value: float) -> str:
    """Format a number for a picture: "12,345", "3.5", "1.09 M"."""
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    return format_integer(value) if value >= 10 or float(value).is_integer() else format_number(value)


def format_axis_number(value: float) -> str:
    """Format a number of any magnitude in about eight characters: "12,345", "419.72 M", "0.000126"."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if abs(value) >= size:
            return f"{value / size:.5g} {unit}"
    return format_number(value)


def format_exact_bytes(value: float) -> str:
    """Format a size that people know by heart without rounding: "1,514 B"."""
    return f"{format_integer(value)} B"


def format_size(value: float) -> str:
    """Format bytes in powers of 1024 with at most three digits and a space: "33.2 KiB"."""
    return re.sub(r"(?<=[0-9])(?=[A-Z])", " ", units.format_bytes(round(value) if value < 1024 else value))


def format_gb_number(value: float) -> str:
    """Format bytes as GB (10^9 bytes) with three digits and without the unit."""
    return format_number(value / 1e9)


def format_gb(value: float) -> str:
    """Format bytes as GB (10^9 bytes): "4.4 GB"."""
    return f"{format_gb_number(value)} GB"


def format_range(values: Sequence[float], text: Callable[[float], str]) -> str:
    """Format the smallest and the largest value: "1 to 3"; only one where both read the same."""
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def format_key(key: str) -> str:
    """Format the key of a factor in words: "target.receive_predictor" is "receive predictor"."""
    words = key.removesuffix(".profile").split(".")
    # A unit says nothing alone: of "socket.receive.buffer.bytes" the buffer is named too.
    return " ".join(words[-3:] if words[-1] in ("bytes", "ms") else words[-1:]).replace("_", " ")


def describe_level(key: str, level: str) -> str:
    """Format a level as the end of a sentence: "over ethernet", "with pmc", "at heap 2g"."""
    name = format_key(key)
    if name == "network":
        return f"over {level}"
    if name in ("workload", "target", "allocator", "gc", "maven"):
        return f"with {level}"
    return f"at {name} {level}"


def shorten(text: str, most: int) -> str:
    """Return the text in at most that many characters, without its middle: a level may be a path or many options."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-((most - 1) // 2) :]}"
