"""Rates, arrivals and conditions from text: "50MB/s", "ramp 100/s..2000/s 30s", "errors > 5% for 10s"."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from ingest_bench import units
from ingest_bench.inputs.names import suggest
from ingest_bench.model.load import (
    ABORT_METRICS,
    ERRORS,
    MAX_PER_S,
    MIN_PER_S,
    AbortCondition,
    AbortMetric,
    Arrivals,
    ArrivalShape,
    Rate,
    RateUnit,
)
from ingest_bench.units import quote_value

_RATE = re.compile(r"\s*(?P<number>[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*)\s*/\s*(?P<time>s|min|h)\s*")
_COUNT_UNITS: Mapping[str, RateUnit] = {
    "": "requests",
    "requests": "requests",
    "docs": "documents",
    "documents": "documents",
}
_RATE_EXAMPLES = 'write it like "2000/s" (requests), "10000docs/s" or "50MB/s"'

_CONDITION = re.compile(r"\s*(?P<name>[a-z][a-z0-9. ]*?)\s*(?P<sign>[<>])\s*(?P<value>[^<>=]+?)\s*")
_FOR = re.compile(r"(?P<condition>.*?)\s+for\s+(?P<time>\S+)\s*")
_ABORT_EXAMPLE = (
    'write it like "errors > 5% for 10s"; allowed are '
    f"{', '.join(ABORT_METRICS)} (response times; {ERRORS}: share of the requests)"
)


def parse_rate(text: str) -> Rate:
    """Parse a rate in requests, documents or bytes; ValueError shows how to write one."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{quote_value(text)} is not a rate: {_RATE_EXAMPLES}")
    number, unit = float(match["number"].replace("_", "")), match["unit"]
    per_s = number / (units.TIME_UNITS[match["time"]] / 10**9)
    if unit in _COUNT_UNITS:
        return Rate(per_s, _COUNT_UNITS[unit])
    # "2k/s" could be two thousand requests or 2 KiB: a size in a rate must have its B.
    if unit in units.SIZE_UNITS and "b" in unit.lower():
        return Rate(per_s * units.SIZE_UNITS[unit], "bytes")
    problem = f"{quote_value(unit)} is neither docs nor a size such as MB"
    raise ValueError(f"{quote_value(text)} is not a rate ({problem}): {_RATE_EXAMPLES}")


def check_rate(rate: Rate) -> None:
    """Raise ValueError for a rate above what one machine can send, or below one a day."""
    maximum = MAX_PER_S[rate.unit]
    if rate.per_s > maximum:
        raise ValueError(f"{rate.per_s:,.0f} {rate.unit} a second are more than one machine can send ({maximum:,.0f})")
    if 0 < rate.per_s < MIN_PER_S:
        raise ValueError(f"{rate.per_s:.3g} {rate.unit} a second are less than one a day")


def parse_arrivals(text: str) -> Arrivals:
    """Parse arrivals; ValueError shows how to write them."""
    shape, *words = text.split() or [""]
    if shape not in _SHAPES:
        if words or not shape[:1].isdigit():
            raise ValueError(f"{quote_value(text)} is not an arrival shape or a rate; {suggest(shape, _SHAPES)}")
        shape, words = "constant", [shape]
    example, parsers = _SHAPES[shape]
    values = _split_fields(shape, " ".join(words))
    if len(values) != len(parsers):
        raise ValueError(f"{quote_value(text)}: write it like {example!r}")
    fields: dict[str, Any] = {name: parse(value) for (name, parse), value in zip(parsers.items(), values, strict=True)}
    arrivals = Arrivals(shape=cast("ArrivalShape", shape), **fields)
    check_arrivals(arrivals)
    return arrivals


def check_arrivals(arrivals: Arrivals) -> None:
    """Raise ValueError if fields of a shape are missing or contradict each other."""
    example, required = _SHAPES[arrivals.shape]
    default = Arrivals(shape=arrivals.shape)
    for name in ("rate", "end_rate", "rates", "period_ns", "amplitude_ppm", "requests", "file"):
        key = name.removesuffix("_ns").removesuffix("_ppm")
        is_set = getattr(arrivals, name) != getattr(default, name)
        if name in required and not is_set:
            raise ValueError(f'"{arrivals.shape}" arrivals need "{key}", such as {example!r}')
        if is_set and name not in required:
            raise ValueError(f'"{arrivals.shape}" arrivals have no "{key}"; remove it')
    rates = [rate for rate in (arrivals.rate, arrivals.end_rate, *arrivals.rates) if rate is not None]
    if len({rate.unit for rate in rates}) > 1:
        raise ValueError("all rates must have one unit: requests, documents or bytes")
    if arrivals.is_open_loop and rates and max(rate.per_s for rate in rates) <= 0:
        raise ValueError("the rate is 0; give one above 0")
    if arrivals.shape in ("constant", "poisson", "sine", "steps") and min(rate.per_s for rate in rates) <= 0:
        raise ValueError("a rate of 0 would wait forever; give one above 0")
    if arrivals.requests:
        check_rate(Rate(arrivals.requests / (arrivals.period_ns / 1e9)))
    if arrivals.amplitude_ppm >= 10**6:
        raise ValueError("an amplitude of 100% or more would stop a sine; give less")


def _split_fields(shape: str, text: str) -> list[str]:
    if shape == "ramp":
        start, _, end = text.partition("..")
        return [start, *end.split()]
    if shape == "steps":
        return [*text.rpartition(" ")[::2]] if text else []
    return [text] if shape == "recorded" else text.split()


def _parse_rates(text: str) -> tuple[Rate, ...]:
    return tuple(map(parse_rate, text.split()))


def _parse_requests(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{quote_value(text)} is not a number of requests, such as 64")
    return int(text)


# Of each shape: an example, and the parsers of the fields that it requires.
_SHAPES: Mapping[str, tuple[str, Mapping[str, Callable[[str], Any]]]] = {
    "closed": ("closed", {}),
    "constant": ("2000/s", {"rate": parse_rate}),
    "poisson": ("poisson 2000/s", {"rate": parse_rate}),
    "ramp": ("ramp 100/s..2000/s 30s", {"rate": parse_rate, "end_rate": parse_rate, "period_ns": units.parse_time_ns}),
    "steps": ("steps 100/s 200/s 400/s 10s", {"rates": _parse_rates, "period_ns": units.parse_time_ns}),
    "sine": (
        "sine 1000/s 50% 60s",
        {"rate": parse_rate, "amplitude_ppm": units.parse_ppm, "period_ns": units.parse_time_ns},
    ),
    "burst": ("burst 64 10s", {"requests": _parse_requests, "period_ns": units.parse_time_ns}),
    "recorded": ("recorded FILE", {"file": lambda path: path or None}),
}


def parse_condition(text: str, sign: str, times: Iterable[str], allowed: str) -> tuple[str, float]:
    """Return the metric that a condition limits, and the limit: milliseconds, or a share from 0 to 1 for errors.

    ValueError ends with `allowed`.
    """
    match = _CONDITION.fullmatch(text)
    if match is None or match["sign"] != sign:
        raise ValueError(f"{quote_value(text.strip())} is not a condition: {allowed}")
    name = " ".join(match["name"].split())
    if name == ERRORS:
        return name, units.parse_ppm(match["value"]) / 1e6
    if name in times:
        return name, units.parse_time_ns(match["value"]) / 1e6
    raise ValueError(f"{quote_value(name)} is not a metric that can be limited: {allowed}")


def format_limit(name: str, value: float) -> str:
    """Return the limit of a condition for people: "812ms", or "5%" for errors."""
    return units.format_ppm(value * 1e6) if name == ERRORS else units.format_time(value * 1e6)


def parse_abort(text: str) -> AbortCondition:
    """Parse the condition that aborts a load; ValueError shows how to write it."""
    match = _FOR.fullmatch(text)
    if match is None:
        raise ValueError(f"{quote_value(text.strip())} has no duration: {_ABORT_EXAMPLE}")
    name, above = parse_condition(match["condition"], ">", ABORT_METRICS, _ABORT_EXAMPLE)
    if name == ERRORS and above >= 1:
        raise ValueError(f"{quote_value(text.strip())} can never be true: a share is at most 100%")
    return AbortCondition(metric=cast("AbortMetric", name), above=above, for_ns=units.parse_time_ns(match["time"]))


def format_abort(abort: AbortCondition) -> str:
    """Return an abort condition as the user writes it."""
    return f"{abort.metric} > {format_limit(abort.metric, abort.above)} for {units.format_time(abort.for_ns)}"
