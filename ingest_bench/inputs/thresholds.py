"""Conditions from text: "p99 < 500ms" of a goal, "errors > 5% for 10s" of a load that is given up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from ingest_bench import units
from ingest_bench.model.load import ABORT_NUMBERS, ERRORS, Abort

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest_bench.model.load import AbortNumber

_TERM = re.compile(r"\s*(?P<name>[a-z][a-z0-9. ]*?)\s*(?P<sign>[<>])\s*(?P<value>[^<>=]+?)\s*")
_FOR = re.compile(r"(?P<condition>.*?)\s+for\s+(?P<time>\S+)\s*")
_EXAMPLE = (
    'write it like "errors > 5% for 10s"; allowed are '
    f"{', '.join(ABORT_NUMBERS)} (times of the response, {ERRORS} a share of the requests)"
)


def condition(text: str, sign: str, times: Iterable[str], allowed: str) -> tuple[str, float]:
    """The number that a condition limits, and where: milliseconds of a time, of errors a share from 0 to 1.

    ValueError, which ends with what is `allowed`.
    """
    match = _TERM.fullmatch(text)
    if match is None or match["sign"] != sign:
        raise ValueError(f"{units.quoted(text.strip())} is not a condition: {allowed}")
    name = " ".join(match["name"].split())
    if name == ERRORS:
        return name, units.parse_ppm(match["value"]) / 1e6
    if name in times:
        return name, units.parse_time_ns(match["value"]) / 1e6
    raise ValueError(f"{units.quoted(name)} is not a number that can be limited: {allowed}")


def shown(name: str, value: float) -> str:
    """Such a number for people: "812ms", of errors "5%"."""
    return units.format_ppm(value * 1e6) if name == ERRORS else units.format_time(value * 1e6)


def parse_abort(text: str) -> Abort:
    """When a load is given up; ValueError says how to write it."""
    match = _FOR.fullmatch(text)
    if match is None:
        raise ValueError(f"{units.quoted(text.strip())} does not say for how long: {_EXAMPLE}")
    name, above = condition(match["condition"], ">", ABORT_NUMBERS, _EXAMPLE)
    if name == ERRORS and above >= 1:
        raise ValueError(f"{units.quoted(text.strip())} never is: nothing is above 100%")
    return Abort(number=cast("AbortNumber", name), above=above, for_ns=units.parse_time_ns(match["time"]))


def abort_text(abort: Abort) -> str:
    """As it is written."""
    return f"{abort.number} > {shown(abort.number, abort.above)} for {units.format_time(abort.for_ns)}"
