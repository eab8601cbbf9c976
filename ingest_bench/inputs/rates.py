"""Rates and arrivals from text: "50MB/s", "poisson 2000/s", "ramp 100/s..2000/s 30s"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ingest_bench import units
from ingest_bench.model.load import LEAST_PER_S, MOST_PER_S, Arrivals, Rate
from ingest_bench.units import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_RATE = re.compile(r"\s*(?P<number>[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*)\s*/\s*(?P<time>s|min|h)\s*")
_COUNTED = {"": "requests", "requests": "requests", "docs": "documents", "documents": "documents"}
_EXAMPLES = 'write it like "2000/s" (requests), "10000docs/s" or "50MB/s"'


def parse_rate(text: str) -> Rate:
    """A rate in requests, documents or bytes; ValueError says how to write one."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{quoted(text)} is not a rate: {_EXAMPLES}")
    number, unit = float(match["number"].replace("_", "")), match["unit"]
    per_s = number / (units.TIMES[match["time"]] / 10**9)
    if unit in _COUNTED:
        return Rate(per_s, "documents" if _COUNTED[unit] == "documents" else "requests")
    # "2k/s" could be two thousand requests or 2 KiB: a size in a rate has its B.
    if unit in units.SIZES and "b" in unit.lower():
        return Rate(per_s * units.SIZES[unit], "bytes")
    raise ValueError(
        f"{quoted(text)} is not a rate ({quoted(unit)} is neither docs nor a size such as MB): {_EXAMPLES}"
    )


def check_rate(rate: Rate) -> None:
    """ValueError for a rate above what a machine can send, or below one a day."""
    most = MOST_PER_S[rate.unit]
    if rate.per_s > most:
        raise ValueError(f"{rate.per_s:,.0f} {rate.unit} a second are more than one machine can send ({most:,.0f})")
    if 0 < rate.per_s < LEAST_PER_S:
        raise ValueError(f"{rate.per_s:.3g} {rate.unit} a second are less than one a day")


def parse_arrivals(text: str) -> Arrivals:
    """Arrivals from their text form; ValueError says how to write them."""
    first, *rest = text.split() or [""]
    if first not in _SHAPES:
        if rest or not first[:1].isdigit():
            raise ValueError(
                f"{quoted(text)} is not a shape of arrivals: known are {', '.join(_SHAPES)}, or a rate alone"
            )
        first, rest = "constant", [first]
    try:
        arrivals = _SHAPES[first](rest)
    except (IndexError, TypeError):
        raise ValueError(f"{quoted(text)}: write it like {_FORMS[first]!r}") from None
    check_arrivals(arrivals)
    return arrivals


def check_arrivals(arrivals: Arrivals) -> None:
    """ValueError when fields of a shape are missing or do not fit together."""
    needed = _NEEDED[arrivals.shape]
    default = Arrivals(shape=arrivals.shape)
    for name in ("rate", "to", "rates", "period_ns", "amplitude_ppm", "file"):
        given, key = getattr(arrivals, name) != getattr(default, name), name.partition("_")[0]
        if name in needed and not given:
            raise ValueError(f'"{arrivals.shape}" arrivals need "{key}", such as {_FORMS[arrivals.shape]!r}')
        if given and name not in needed:
            raise ValueError(f'"{arrivals.shape}" arrivals have no "{key}": take it out')
    rates = [rate for rate in (arrivals.rate, arrivals.to, *arrivals.rates) if rate is not None]
    if len({rate.unit for rate in rates}) > 1:
        raise ValueError("one unit for all rates: requests, documents or bytes")
    if arrivals.is_open and rates and max(rate.per_s for rate in rates) <= 0:
        raise ValueError("a rate of nothing: give one above 0")
    if arrivals.shape in ("constant", "poisson", "sine", "steps") and min(rate.per_s for rate in rates) <= 0:
        raise ValueError("a rate of 0 would wait for ever: give one above 0")
    if arrivals.amplitude_ppm >= 10**6:
        raise ValueError("a sine of 100% or more would stand still: take less")


def _closed(rest: list[str]) -> Arrivals:
    if rest:
        raise TypeError
    return Arrivals()


def _constant(rest: list[str]) -> Arrivals:
    (rate,) = _exactly(rest, 1)
    return Arrivals(shape="constant", rate=parse_rate(rate))


def _poisson(rest: list[str]) -> Arrivals:
    (rate,) = _exactly(rest, 1)
    return Arrivals(shape="poisson", rate=parse_rate(rate))


def _ramp(rest: list[str]) -> Arrivals:
    ends, period = _exactly(rest, 2)
    start, end = _exactly(ends.split(".."), 2)
    return Arrivals(shape="ramp", rate=parse_rate(start), to=parse_rate(end), period_ns=units.parse_time_ns(period))


def _steps(rest: list[str]) -> Arrivals:
    rates = tuple(parse_rate(rate) for rate in rest[:-1])
    return Arrivals(shape="steps", rates=rates, period_ns=units.parse_time_ns(rest[-1]))


def _sine(rest: list[str]) -> Arrivals:
    rate, amplitude, period = _exactly(rest, 3)
    return Arrivals(
        shape="sine",
        rate=parse_rate(rate),
        amplitude_ppm=units.parse_ppm(amplitude),
        period_ns=units.parse_time_ns(period),
    )


def _recorded(rest: list[str]) -> Arrivals:
    return Arrivals(shape="recorded", file=" ".join(rest) or None)


def _exactly(parts: list[str], count: int) -> list[str]:
    if len(parts) != count:
        raise TypeError
    return parts


_SHAPES: Mapping[str, Callable[[list[str]], Arrivals]] = {
    "closed": _closed,
    "constant": _constant,
    "poisson": _poisson,
    "ramp": _ramp,
    "steps": _steps,
    "sine": _sine,
    "recorded": _recorded,
}
_FORMS = {
    "closed": "closed",
    "constant": "2000/s",
    "poisson": "poisson 2000/s",
    "ramp": "ramp 100/s..2000/s 30s",
    "steps": "steps 100/s 200/s 400/s 10s",
    "sine": "sine 1000/s 50% 60s",
    "recorded": "recorded FILE",
}
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "closed": (),
    "constant": ("rate",),
    "poisson": ("rate",),
    "ramp": ("rate", "to", "period_ns"),
    "steps": ("rates", "period_ns"),
    "sine": ("rate", "amplitude_ppm", "period_ns"),
    "recorded": ("file",),
}
