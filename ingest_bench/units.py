"""Parse text with a unit ("50ms", "1gbit", "64KiB", "0.5%") to an integer, and format it back.

Inside the program a value is an integer whose name ends in its unit: `_ns`, `_bytes`, `_bps`, `_ppm`.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

# Longer texts are rejected before they are parsed: int() fails above 4300 digits.
_MAX_CHARACTERS = 100
_NUMBER = re.compile(r"\s*(?P<number>[+-]?[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-zµ%/]*)\s*")

TIME_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
# "k" and "kb" are the JVM's and Elasticsearch's units (powers of 1024); "kB" is SI (powers of 1000).
SIZE_UNITS = {
    "": 1,
    "b": 1,
    "B": 1,
    **dict.fromkeys(("k", "K", "kb", "KiB", "kib"), 1024),
    **dict.fromkeys(("m", "M", "mb", "MiB", "mib"), 1024**2),
    **dict.fromkeys(("g", "G", "gb", "GiB", "gib"), 1024**3),
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}
# tc's units: bits per second, powers of 1000 (man 8 tc, "PARAMETERS").
RATE_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
FRACTION_UNITS = {"%": 10**4, "ppm": 1}

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 100
_REPR.maxlevel = 3


def parse_time_ns(text: str) -> int:
    """Return the nanoseconds in "50ms", "2s" or "1min"; raise a ValueError that names the units otherwise."""
    return _parse(text, TIME_UNITS, "a time", "50ms, 2s or 1min")


def parse_bytes(text: str) -> int:
    """Return the bytes in "64KiB", "1g", "4.5MB" or a bare number; raise ValueError with the units otherwise."""
    return _parse(text, SIZE_UNITS, "a size", "64KiB, 1g or 4.5MB")


def parse_bps(text: str) -> int:
    """Return the bits per second in "1gbit" or "100mbit"; raise a ValueError that names the units otherwise."""
    return _parse(text, RATE_UNITS, "a rate", "100mbit or 1gbit")


def parse_ppm(text: str) -> int:
    """Return the parts per million in "0.5%" or "20ppm", at most 100%; raise ValueError otherwise."""
    value = _parse(text, FRACTION_UNITS, "a fraction", "0.5% or 20ppm")
    if value > 10**6:
        raise ValueError(f"{text!r} is more than 100%")
    return value


# The suffix of a field's name selects the parser of its TOML key.
PARSERS: Mapping[str, Callable[[str], int]] = {
    "_ns": parse_time_ns,
    "_bytes": parse_bytes,
    "_bps": parse_bps,
    "_ppm": parse_ppm,
}


def quote_value(value: Any) -> str:
    """Return the value as Python writes it, shortened to one line, for a message."""
    try:
        return _REPR.repr(value)
    except ValueError:
        return "a number of thousands of digits"


def quote_name(name: str) -> str:
    """Return a printable name of at most 100 characters unchanged, any other as `quote_value`."""
    return name if name.isprintable() and len(name) <= _MAX_CHARACTERS else quote_value(name)


def format_time(value_ns: float) -> str:
    """Return a short text such as "1.5ms" or "2min"; `parse_time_ns` reads it again if the value is an integer."""
    return _format(value_ns, TIME_UNITS, ("h", "min", "s", "ms", "us", "ns"))


def format_bytes(value_bytes: float) -> str:
    """Return a short text in powers of 1024, such as "64KiB"."""
    return _format(value_bytes, SIZE_UNITS, ("GiB", "MiB", "KiB", "B"))


def format_bps(value_bps: float) -> str:
    """Return a short text in tc's units, such as "100mbit"."""
    return _format(value_bps, RATE_UNITS, ("gbit", "mbit", "kbit", "bit"))


def format_ppm(value_ppm: float) -> str:
    """Return a percentage such as "0.5%"."""
    return f"{_round(value_ppm / 10**4)}%"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 run", "1,234 runs"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _parse(text: str, units: Mapping[str, int], quantity: str, example: str) -> int:
    match = _NUMBER.fullmatch(text) if len(text) <= _MAX_CHARACTERS else None
    unit = match["unit"] if match else ""
    if match is None or unit not in units:
        unit_names = ", ".join(name for name in units if name)
        raise ValueError(f"{quote_value(text)} is not {quantity}: write it like {example} (units: {unit_names})")
    try:
        value = Decimal(match["number"].replace("_", "")) * units[unit]
    except InvalidOperation:
        raise ValueError(f"{quote_value(text)} is not {quantity}: write it like {example}") from None
    if value < 0:
        raise ValueError(f"{text!r} is negative")
    if value != value.to_integral_value():
        raise ValueError(f"{text!r} is finer than the smallest unit")
    return int(value)


def _format(value: float, units: Mapping[str, int], names: Sequence[str]) -> str:
    """Return the value in the first of these units that is not larger than it, or in the last one."""
    unit = next((name for name in names if abs(value) >= units[name]), names[-1])
    return f"{_round(value / units[unit])}{unit}"


def _round(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
