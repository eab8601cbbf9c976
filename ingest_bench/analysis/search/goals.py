"""What a rate has to meet: "p99 < 500ms, errors < 0.1%". Without a limit of its own for errors a goal has that one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ingest_bench.inputs import thresholds
from ingest_bench.model.load import ERRORS
from ingest_bench.model.results import Value

# Times in the expression are of the response (done - planned) of all requests: one that had to wait counts its wait,
# and one that hung and failed the time that it hung.
_TIMES = {
    "p50": "response_ms_p50",
    "p99": "response_ms_p99",
    "p99.9": "response_ms_p999",
    "max": "response_ms_max",
    "service p50": "service_ms_p50",
    "service p99": "service_ms_p99",
}
# A server that refuses what it cannot take is fast: without a limit for errors the search would call that met.
_USUAL = f"{ERRORS} < 0.1%"
_ALLOWED = (
    'write it like "p99 < 500ms, errors < 0.1%"; allowed are '
    f"{', '.join(_TIMES)} (times of the response unless they say service) and {ERRORS} (a share of the requests)"
)


@dataclass(frozen=True, slots=True)
class Limit:
    """One condition: a number that has to stay below another."""

    name: str
    below: float
    """Milliseconds; for errors a share, 0 to 1."""
    text: str
    """As it is written: to write it anew would round it."""

    @property
    def column(self) -> str:
        """The column that it limits; "" for errors, which are two columns."""
        return _TIMES.get(self.name, "")

    def found(self, values: Mapping[str, Value]) -> float | None:
        """The number of that run, in the limit's unit; None when the run has none."""
        if self.column:
            value = values.get(self.column)
            return float(value) if isinstance(value, (int, float)) else None
        failed, requests = values.get("requests_failed"), values.get("requests")
        if not isinstance(failed, int) or not isinstance(requests, int) or not requests:
            return None
        return failed / requests

    def at_most(self, values: Mapping[str, Value]) -> float:
        """The number, or what it cannot be above: of response times the longest; without end where nobody knows."""
        found = self.found(values)
        longest = values.get("response_ms_max") if self.column.startswith("response_ms") else None
        return found if found is not None else float(longest) if isinstance(longest, (int, float)) else math.inf

    def shown(self, value: float | None) -> str:
        """That number for people, such as "p99 812ms"."""
        return f"{self.name} {'unknown' if value is None else thresholds.shown(self.name, value)}"


@dataclass(frozen=True, slots=True)
class Goal:
    """Every condition has to be met."""

    limits: tuple[Limit, ...]

    @property
    def text(self) -> str:
        """As it is written, in full."""
        return ", ".join(limit.text for limit in self.limits)

    @property
    def shown(self) -> Limit:
        """The condition that a picture draws: the first about a time, or the first."""
        return next((limit for limit in self.limits if limit.column), self.limits[0])

    def broken(self, values: Mapping[str, Value]) -> list[str]:
        """What these numbers miss, each with what was found; a number that is missing is a miss.

        Of few requests no high percentile is known (`nearest_rank`), yet it is not above the longest.
        """
        return [limit.shown(limit.found(values)) for limit in self.limits if limit.at_most(values) >= limit.below]


def parse(text: str) -> Goal:
    """The goal in that text, with the usual limit for errors when it has none; ValueError names what is allowed."""
    limits = tuple(_limit(part) for part in text.split(","))
    twice = {limit.name for limit in limits if [other.name for other in limits].count(limit.name) > 1}
    if twice:
        raise ValueError(f"{text!r} limits {', '.join(sorted(twice))} twice: keep one")
    usual = () if ERRORS in {limit.name for limit in limits} else (_limit(_USUAL),)
    return Goal(limits + usual)


def _limit(text: str) -> Limit:
    name, below = thresholds.condition(text, "<", _TIMES, _ALLOWED)
    if below <= 0:
        raise ValueError(f"{text.strip()!r} can never be met: nothing is below 0")
    return Limit(name, below, " ".join(text.split()))
