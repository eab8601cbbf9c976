"""How numbers and levels are written for people."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ingest_bench import units

SEPARATOR = "  ·  "  # stands between conditions


def whole(value: float) -> str:
    """A number in groups of thousands: "12,345"."""
    return f"{value:,.0f}"


def counted(value: float) -> str:
    """A number that fits a picture: "12,345", "3.5", "1.09 M"."""
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    return whole(value) if value >= 10 or float(value).is_integer() else short(value)


def beside_axis(value: float) -> str:
    """A number in eight letters or about so many, whatever its size: "12,345", "419.72 M", "0.000126"."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if abs(value) >= size:
            return f"{value / size:.5g} {unit}"
    return short(value)


def exact_bytes(value: float) -> str:
    """Bytes as they are, for sizes that people know by heart: "1,514 B"."""
    return f"{whole(value)} B"


def short(value: float) -> str:
    """Three digits, without an exponent above 0.0001: "0.0123", "1.23", "12,300"."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def gigabytes(value: float) -> str:
    """Bytes in GB, powers of 1000, three digits."""
    return short(value / 1e9)


def gb_text(value: float) -> str:
    """Bytes in GB, powers of 1000, with the unit: "4.4 GB"."""
    return f"{gigabytes(value)} GB"


def bytes_text(value: float) -> str:
    """Bytes in powers of 1024 with at most three digits and a space: "33.2 KiB"."""
    return re.sub(r"(?<=[0-9])(?=[A-Z])", " ", units.format_bytes(round(value) if value < 1024 else value))


def separated(parts: Sequence[str], characters: int = 120) -> str:
    """The parts with dots between them, in lines that neither begin nor end with a dot."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}{SEPARATOR}{part}" if lines else part
        lines[-1:] = [longer] if len(longer) <= characters else [*lines[-1:], part]
    return "\n".join(lines)


def key_text(key: str) -> str:
    """A factor's key in words: "target.receive_predictor" is "receive predictor"."""
    return key.removesuffix(".profile").rpartition(".")[2].replace("_", " ")


def on(key: str, level: str) -> str:
    """A level as the end of a sentence: "on ethernet", "with pmc", "at heap 2g"."""
    name = key_text(key)
    if name == "network":
        return f"on {level}"
    if name in ("workload", "target", "allocator", "gc"):
        return f"with {level}"
    return f"at {name} {level}"
