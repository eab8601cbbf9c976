"""Live figures of a load, computed from the samples so that they cost no CPU per request, and abort conditions.

Each worker reports its own figures with its progress. They are counts since its start, so that the figures of all
workers are their sum, and the figures of a time span are a difference.
"""

from __future__ import annotations

import itertools
import resource
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest_bench.inputs import load_values
from ingest_bench.model.load import ERRORS, AbortCondition
from ingest_bench.model.samples import OUTCOMES, SAMPLE, CpuMark, response_times_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

# Histogram buckets of the exporter: 1, 2.5 and 5 of each decade.
BUCKETS_NS = tuple(round(step * 10**power) for power in range(5, 12) for step in (1, 2.5, 5))
# Steps of 4% around them, for percentiles. A bucket is a sum of whole steps, so that its count is exact.
EDGES_NS = np.array(
    sorted({*BUCKETS_NS, *(round(10 ** (4 + number / 64)) for number in range(8 * 64 + 1))}), dtype=np.int64
)
_KEYS = frozenset({"bulks", "queries", "in_flight", "oldest_ns", "cpu_ns"})
_DOCUMENT_OUTCOMES = frozenset({"acknowledged", "failed", "unknown"})
_READ_SAMPLES = 65536
_ABORT_INTERVAL_NS = 10**9
_QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """Arrivals that ended, and the outcomes of their documents."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """Arrivals by outcome."""
    documents: Counter[str] = field(default_factory=Counter)
    """Documents: "acknowledged", "failed", or "unknown" (without a response about them)."""
    bytes_sent: int = 0
    steps: Counter[int] = field(default_factory=Counter)
    """Arrivals by response time: step n ends at `EDGES_NS[n]`; the last one has no end."""
    response_ns: int = 0
    """Sum of the response times."""

    @property
    def requests(self) -> int:
        """Number of arrivals that ended."""
        return self.outcomes.total()

    @property
    def error_ratio(self) -> float:
        """Share of the arrivals of which not every document was acknowledged."""
        return 1 - self.outcomes["ok"] / self.requests if self.requests else 0.0

    def __add__(self, other: RequestFigures) -> RequestFigures:
        return RequestFigures(
            outcomes=self.outcomes + other.outcomes,
            documents=self.documents + other.documents,
            bytes_sent=self.bytes_sent + other.bytes_sent,
            steps=self.steps + other.steps,
            response_ns=self.response_ns + other.response_ns,
        )

    def __sub__(self, earlier: RequestFigures) -> RequestFigures:
        return RequestFigures(
            outcomes=self.outcomes - earlier.outcomes,
            documents=self.documents - earlier.documents,
            bytes_sent=self.bytes_sent - earlier.bytes_sent,
            steps=self.steps - earlier.steps,
            response_ns=self.response_ns - earlier.response_ns,
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
    cpu_ns: Counter[str] = field(default_factory=Counter)
    """By worker number and "user" or "system", such as "0 user". Each load has a worker 0."""

    def __add__(self, other: LoadFigures) -> LoadFigures:
        return LoadFigures(
            bulks=self.bulks + other.bulks,
            queries=self.queries + other.queries,
            in_flight=self.in_flight + other.in_flight,
            oldest_ns=max(self.oldest_ns, other.oldest_ns),
            cpu_ns=self.cpu_ns + other.cpu_ns,
        )


class SampleTail:
    """Iterates over the samples that a recorder has written since the last iteration, in arrays."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def __iter__(self) -> Iterator[np.ndarray[Any, np.dtype[Any]]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            while size := len(data := file.read(_READ_SAMPLES * SAMPLE.itemsize)) // SAMPLE.itemsize * SAMPLE.itemsize:
                self._read_bytes += size
                yield np.frombuffer(data[:size], dtype=SAMPLE)


class FiguresReader:
    """Reads the figures of one worker from the samples that its recorders have written.

    *pending* returns the deadline of each request under way, which is *timeout_ns* after its start.
    """

    def __init__(
        self, worker: int, bulks: Path, queries: Path, pending: Callable[[], list[int]], timeout_ns: int
    ) -> None:
        self._worker = worker
        self._pending, self._timeout_ns = pending, timeout_ns
        self._bulks, self._queries = SampleTail(bulks), SampleTail(queries)
        self._figures = LoadFigures()
        self._first_mark = read_cpu_mark()

    def read(self) -> LoadFigures:
        """Return the figures, with the samples written since the last call."""
        mark, deadlines, now_ns = read_cpu_mark(), self._pending(), time.monotonic_ns()
        used_ns = {
            f"{self._worker} user": mark.user_ns - self._first_mark.user_ns,
            f"{self._worker} system": mark.system_ns - self._first_mark.system_ns,
        }
        self._figures = LoadFigures(
            bulks=sum(map(compute_figures, self._bulks), self._figures.bulks),
            queries=sum(map(compute_figures, self._queries), self._figures.queries),
            in_flight=len(deadlines),
            oldest_ns=max(0, now_ns + self._timeout_ns - min(deadlines)) if deadlines else 0,
            cpu_ns=Counter(used_ns),
        )
        return self._figures


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


def figures_to_json(load: LoadFigures) -> dict[str, Any]:
    """Return the figures as JSON values."""
    return {
        **{name: getattr(load, name) for name in ("in_flight", "oldest_ns", "cpu_ns")},
        **{name: _requests_to_json(getattr(load, name)) for name in ("bulks", "queries")},
    }


def _requests_to_json(requests: RequestFigures) -> list[Any]:
    steps = sorted(requests.steps.items())
    return [requests.outcomes, requests.documents, requests.bytes_sent, steps, requests.response_ns]


def merge_figures_json(all_figures: Iterable[Mapping[str, Any]]) -> LoadFigures:
    """Return the sum of the figures of all workers, from their JSON values."""
    merged = LoadFigures()
    for values in all_figures:
        requests = {name: _requests_from_json(values[name]) for name in ("bulks", "queries")}
        merged += LoadFigures(**{**values, **requests, "cpu_ns": Counter(values["cpu_ns"])})
    return merged


def _requests_from_json(values: list[Any]) -> RequestFigures:
    outcomes, documents, bytes_sent, steps, response_ns = values
    return RequestFigures(
        Counter(outcomes), Counter(documents), bytes_sent, Counter(dict(map(tuple, steps))), response_ns
    )


def check_figures_json(values: Any) -> None:
    """Raise ValueError for anything but figures: a worker on another machine is not trusted."""
    try:
        is_valid = values.keys() == _KEYS
        numbers = [values["in_flight"], values["oldest_ns"], *values["cpu_ns"].values()]
        for name in ("bulks", "queries"):
            outcomes, documents, bytes_sent, steps, response_ns = values[name]
            is_valid &= outcomes.keys() <= set(OUTCOMES) and documents.keys() <= _DOCUMENT_OUTCOMES
            is_valid &= all(0 <= step <= len(EDGES_NS) for step, _ in steps)
            counts = outcomes.values(), documents.values(), (number for pair in steps for number in pair)
            numbers += [bytes_sent, response_ns, *itertools.chain(*counts)]
        is_valid &= all(type(number) is int for number in numbers)
    except (AttributeError, KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
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
