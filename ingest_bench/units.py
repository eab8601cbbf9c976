"""Text with a unit to an integer, and back: "50ms", "1gbit", "64KiB", "0.5%".

Inside the program a value is an integer and its unit is the end of its name: `_ns`, `_bytes`, `_bps`, `_ppm`.
"""

from __future__ import annotations

import re
import reprlib
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

# Nobody writes a number with more characters; Python's own limit for one of them is 4300 digits.
_LONGEST = 100
_NUMBER = re.compile(r"\s*(?P<number>[+-]?[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-zµ%/]*)\s*")

TIMES = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
# "k", "kb" and their kin are the JVM's and Elasticsearch's: powers of 1024. "kB" and its kin are SI: powers of 1000.
SIZES = {
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
# tc's own words: bits, powers of 1000 (man 8 tc, "PARAMETERS").
RATES = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
SHARES = {"%": 10**4, "ppm": 1}


def parse_time_ns(text: str) -> int:
    """Nanoseconds in "50ms", "2s", "1min"; ValueError that names the units otherwise."""
    return _parse(text, TIMES, "a time", "50ms, 2s or 1min")


def parse_bytes(text: str) -> int:
    """Bytes in "64KiB", "1g", "4.5MB" or a bare number; ValueError that names the units otherwise."""
    return _parse(text, SIZES, "a size", "64KiB, 1g or 4.5MB")


def parse_bps(text: str) -> int:
    """Bits a second in "1gbit" or "100mbit"; ValueError that names the units otherwise."""
    return _parse(text, RATES, "a rate", "100mbit or 1gbit")


def parse_ppm(text: str) -> int:
    """Parts of a million in "0.5%" or "20ppm", at most 100%; ValueError otherwise."""
    value = _parse(text, SHARES, "a share", "0.5% or 20ppm")
    if value > 10**6:
        raise ValueError(f"{text!r} is more than 100%")
    return value


# The end of a field's name decides how its text is read: the one rule behind every TOML key with a unit.
PARSERS: Mapping[str, Callable[[str], int]] = {
    "_ns": parse_time_ns,
    "_bytes": parse_bytes,
    "_bps": parse_bps,
    "_ppm": parse_ppm,
}


def quoted(value: Any) -> str:
    """A value as Python writes it, in at most a line: what was found, in a message."""
    try:
        return _QUOTE.repr(value)
    except ValueError:
        return "a number of thousands of digits"


def spelled(name: str) -> str:
    """A name as it is written, where it is one line; as `quoted` where it is not."""
    return name if name.isprintable() and len(name) <= _LONGEST else quoted(name)


def format_time(value_ns: float) -> str:
    """A short text such as "1.5ms" or "2min"; parse_time_ns reads it again when the value is whole."""
    for unit in ("h", "min", "s", "ms", "us"):
        if abs(value_ns) >= TIMES[unit]:
            return f"{_short(value_ns / TIMES[unit])}{unit}"
    return f"{_short(value_ns)}ns"


def format_bytes(value_bytes: float) -> str:
    """A short text in powers of 1024, such as "64KiB"."""
    for unit in ("GiB", "MiB", "KiB"):
        if abs(value_bytes) >= SIZES[unit]:
            return f"{_short(value_bytes / SIZES[unit])}{unit}"
    return f"{_short(value_bytes)}B"


def format_bps(value_bps: float) -> str:
    """A short text in tc's words, such as "100mbit"."""
    for unit in ("gbit", "mbit", "kbit"):
        if abs(value_bps) >= RATES[unit]:
            return f"{_short(value_bps / RATES[unit])}{unit}"
    return f"{_short(value_bps)}bit"


def format_ppm(value_ppm: float) -> str:
    """A share in percent, such as "0.5%"."""
    return f"{_short(value_ppm / 10**4)}%"


def count_of(number: int, noun: str) -> str:
    """So many things: "1 run", "1,234 runs"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _parse(text: str, units: Mapping[str, int], what: str, example: str) -> int:
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST else None
    unit = match["unit"] if match else ""
    if match is None or unit not in units:
        known = ", ".join(name for name in units if name)
        raise ValueError(f"{quoted(text)} is not {what}: write it like {example} (units: {known})")
    try:
        value = Decimal(match["number"].replace("_", "")) * units[unit]
    except InvalidOperation:
        raise ValueError(f"{quoted(text)} is not {what}: write it like {example}") from None
    if value < 0:
        raise ValueError(f"{text!r} is negative")
    if value != value.to_integral_value():
        raise ValueError(f"{text!r} is finer than the smallest unit")
    return int(value)


_QUOTE = reprlib.Repr()
_QUOTE.maxstring = _QUOTE.maxother = 100
_QUOTE.maxlevel = 3


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
