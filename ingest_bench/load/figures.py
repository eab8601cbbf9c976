"""Live figures of a load, computed from the samples so that they cost no CPU per request, and abort conditions.

Each worker reports its own figures with its progress. They are counts since its start, so that the figures of all
workers are their sum, and the figures of a time span are a difference.
"""

from __future__ import annotations

import operator
import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingest_bench.inputs import load_values
from ingest_bench.model.load import ERRORS, AbortCondition
from ingest_bench.model.samples import OUTCOMES, CpuMark, response_times_ns

# Histogram buckets of the exporter: 1, 2.5 and 5 of each decade.
BUCKETS_NS = tuple(round(step * 10**power) for power in range(5, 12) for step in (1, 2.5, 5))
# Steps of 4% around them, for percentiles. A bucket is a sum of whole steps, so that its count is exact.
EDGES_NS = np.array(
    sorted({*BUCKETS_NS, *(round(10 ** (4 + number / 64)) for number in range(8 * 64 + 1))}), dtype=np.int64
)
_DOCUMENT_OUTCOMES = frozenset({"acknowledged", "failed", "unknown"})
_ABORT_INTERVAL_NS = 10**9
_QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """Arrivals that ended, and the outcomes of their documents."""

    outcomes: dict[str, int] = field(default_factory=dict)
    """Arrivals by outcome."""
    documents: dict[str, int] = field(default_factory=dict)
    """Documents: "acknowledged", "failed", or "unknown" (without a response about them)."""
    bytes_sent: int = 0
    steps: dict[int, int] = field(default_factory=dict)
    """Arrivals by response time: step n ends at `EDGES_NS[n]`; the last one has no end."""
    response_ns: int = 0
    """Sum of the response times."""

    @property
    def requests(self) -> int:
        """Number of arrivals that ended."""
        return sum(self.outcomes.values())

    @property
    def error_ratio(self) -> float:
        """Share of the arrivals of which not every document was acknowledged."""
        return 1 - self.outcomes.get("ok", 0) / self.requests if self.requests else 0.0

    def __add__(self, other: RequestFigures) -> RequestFigures:
        return self._combine(operator.add, other)

    def __sub__(self, earlier: RequestFigures) -> RequestFigures:
        return self._combine(operator.sub, earlier)

    def _combine(self, combine: Callable[[Any, Any], Any], other: RequestFigures) -> RequestFigures:
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return RequestFigures(
            *(combine(Counter(a), Counter(b)) if isinstance(a, dict) else combine(a, b) for a, b in pairs)
        )

    def quantile_ns(self, fraction: float) -> int:
        """Return that quantile of the response times: the lower end of its step, at most 4% low. 0 without arrivals."""
        left = fraction * self.requests
        for step in sorted(self.steps):
            left -= self.steps[step]
            if left <= 0:
                return int(EDGES_NS[step - 1]) if step else 0
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFigures:
    """The figures of some workers at a moment."""

    bulks: RequestFigures = field(default_factory=RequestFigures)
    queries: RequestFigures = field(default_factory=RequestFigures)
    in_flight: int = 0
    """Requests that wait for their response."""
    oldest_ns: int = 0
    """How long the oldest of them has waited."""
    cpu_ns: dict[str, int] = field(default_factory=dict)
    """By worker number and "user" or "system", such as "0 user". Each load has a worker 0."""

    def __add__(self, other: LoadFigures) -> LoadFigures:
        return LoadFigures(
            bulks=self.bulks + other.bulks,
            queries=self.queries + other.queries,
            in_flight=self.in_flight + other.in_flight,
            oldest_ns=max(self.oldest_ns, other.oldest_ns),
            cpu_ns=Counter(self.cpu_ns) + Counter(other.cpu_ns),
        )


def compute_figures(samples: np.ndarray[Any, np.dtype[Any]]) -> RequestFigures:
    """Return the figures of these samples."""
    response_ns = response_times_ns(samples)
    offered, acked, failed = (
        int(samples[name].sum(dtype=np.int64)) for name in ("documents", "documents_acked", "documents_failed")
    )
    counts = np.bincount(samples["outcome"], minlength=len(OUTCOMES)).tolist()
    steps, numbers = np.unique(np.searchsorted(EDGES_NS, response_ns), return_counts=True)
    return RequestFigures(
        outcomes=+Counter(dict(zip(OUTCOMES, counts, strict=True))),
        documents=+Counter({"acknowledged": acked, "failed": failed, "unknown": offered - acked - failed}),
        bytes_sent=int(samples["bytes_sent"].sum()),
        steps=Counter(dict(zip(steps.tolist(), numbers.tolist(), strict=True))),
        response_ns=int(response_ns.sum()),
    )


def read_cpu_mark() -> CpuMark:
    """Return the CPU time that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return CpuMark(time.monotonic_ns(), round(usage.ru_utime * 1e9), round(usage.ru_stime * 1e9))


def figures_from_json(values: Mapping[str, Any]) -> LoadFigures:
    """Return the figures from the output of `to_json` as text: ten times faster than `from_json`, and unchecked."""
    requests = {
        name: RequestFigures(**values[name] | {"steps": {int(step): n for step, n in values[name]["steps"].items()}})
        for name in ("bulks", "queries")
    }
    return LoadFigures(**{**values, **requests})


def check_figures(load: LoadFigures) -> None:
    """Raise ValueError for figures of no load: a worker on another machine is not trusted."""
    for requests in (load.bulks, load.queries):
        is_known = requests.outcomes.keys() <= set(OUTCOMES) and requests.documents.keys() <= _DOCUMENT_OUTCOMES
        if not is_known or any(not 0 <= step <= len(EDGES_NS) for step in requests.steps):
            raise ValueError("figures: these are not the figures of a load")


class AbortMonitor:
    """Checks the user's abort conditions each second of the measurement.

    A second in which no request ended neither violates nor meets a condition. For "max", a request that still waits
    counts with its wait.
    """

    def __init__(self, conditions: Sequence[AbortCondition]) -> None:
        self._conditions = conditions
        self._previous: RequestFigures | None = None
        self._checked_ns = 0
        self._violated_since_ns: dict[int, int] = {}

    def find_violation(self, now_ns: int, load: LoadFigures) -> str:
        """Return why the load is aborted; empty: it is not. Nothing before the first call counts."""
        if self._previous is None:
            self._previous, self._checked_ns = load.bulks, now_ns
            return ""
        if now_ns - self._checked_ns < _ABORT_INTERVAL_NS:
            return ""
        since_ns, self._checked_ns = self._checked_ns, now_ns
        new, self._previous = load.bulks - self._previous, load.bulks
        for number, condition in enumerate(self._conditions):
            value = _metric_value(condition, new, load.oldest_ns)
            if value is None:
                continue
            if value <= condition.above:
                self._violated_since_ns.pop(number, None)
                continue
            violated_since_ns = self._violated_since_ns.setdefault(number, since_ns)
            if now_ns - violated_since_ns >= condition.for_ns:
                limit = load_values.format_limit(condition.metric, value)
                return (
                    f"aborted by {load_values.format_abort(condition)}: {condition.metric} {limit} in the last second"
                )
        return ""


def _metric_value(condition: AbortCondition, new: RequestFigures, oldest_ns: int) -> float | None:
    """Return the value of a condition's metric in the last second; None if it is unknown."""
    if condition.metric == "max" and oldest_ns / 1e6 > condition.above:
        return oldest_ns / 1e6
    if not new.requests:
        return None
    return new.error_ratio if condition.metric == ERRORS else new.quantile_ns(_QUANTILES[condition.metric]) / 1e6
