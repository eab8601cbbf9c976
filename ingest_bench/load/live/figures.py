"""What a load has done so far, for whoever looks while it runs: taken from the samples, so that no request pays for it.

Each worker tells its own figures with its progress (`Seen`); they are counts since its start, so those of all workers
are added, and what happened between two moments is the difference.
"""

from __future__ import annotations

import itertools
import resource
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest_bench.model.samples import OUTCOMES, SAMPLE, CpuMark, response_times_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

# The buckets that a dashboard gets, in nanoseconds: 1, 2.5 and 5 of each decade.
BUCKETS_NS = tuple(round(step * 10**power) for power in range(5, 12) for step in (1, 2.5, 5))
# Steps of 4% around them, for percentiles. A bucket is a sum of whole steps: its count is exact.
EDGES_NS = np.array(
    sorted({*BUCKETS_NS, *(round(10 ** (4 + number / 64)) for number in range(8 * 64 + 1))}), dtype=np.int64
)
_KEYS = frozenset({"bulks", "queries", "in_flight", "oldest_ns", "cpu_ns"})
_FATES = frozenset({"acknowledged", "failed", "unknown"})
# What is read of a file of samples at once.
_PIECE = 65536


@dataclass(frozen=True, slots=True)
class Figures:
    """Tickets that ended, and what became of their documents."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """Tickets by outcome."""
    documents: Counter[str] = field(default_factory=Counter)
    """ "acknowledged", "failed", or "unknown": nobody said what became of them."""
    bytes_sent: int = 0
    steps: Counter[int] = field(default_factory=Counter)
    """Tickets by their response time: the n-th step ends with `EDGES_NS[n]`, and the last one has no end."""
    response_ns: int = 0
    """The sum of their response times."""

    @property
    def requests(self) -> int:
        """How many tickets ended."""
        return self.outcomes.total()

    @property
    def errors(self) -> float:
        """The share of them of which not every document was acknowledged."""
        return 1 - self.outcomes["ok"] / self.requests if self.requests else 0.0

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            outcomes=self.outcomes + other.outcomes,
            documents=self.documents + other.documents,
            bytes_sent=self.bytes_sent + other.bytes_sent,
            steps=self.steps + other.steps,
            response_ns=self.response_ns + other.response_ns,
        )

    def __sub__(self, before: Figures) -> Figures:
        return Figures(
            outcomes=self.outcomes - before.outcomes,
            documents=self.documents - before.documents,
            bytes_sent=self.bytes_sent - before.bytes_sent,
            steps=self.steps - before.steps,
            response_ns=self.response_ns - before.response_ns,
        )

    def quantile_ns(self, share: float) -> int:
        """A response time that this share of the tickets did not fall below: the lower end of its step, 4% low at most.

        0 without any ticket.
        """
        left = share * self.requests
        for step in sorted(self.steps):
            left -= self.steps[step]
            if left <= 0:
                return int(EDGES_NS[step - 1]) if step else 0
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The figures of some workers at a moment."""

    bulks: Figures = field(default_factory=Figures)
    queries: Figures = field(default_factory=Figures)
    in_flight: int = 0
    """Requests that wait for their answer."""
    oldest_ns: int = 0
    """How long the one of them has waited that was begun first."""
    cpu_ns: Counter[str] = field(default_factory=Counter)
    """By the number of a worker and "user" or "system", such as "0 user". Each load has a worker of number 0."""

    def __add__(self, other: Seen) -> Seen:
        return Seen(
            bulks=self.bulks + other.bulks,
            queries=self.queries + other.queries,
            in_flight=self.in_flight + other.in_flight,
            oldest_ns=max(self.oldest_ns, other.oldest_ns),
            cpu_ns=self.cpu_ns + other.cpu_ns,
        )


class Tail:
    """What a recorder has written since it was looked at last, a piece after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def __iter__(self) -> Iterator[np.ndarray[Any, np.dtype[Any]]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            while whole := len(data := file.read(_PIECE * SAMPLE.itemsize)) // SAMPLE.itemsize * SAMPLE.itemsize:
                self._read_bytes += whole
                yield np.frombuffer(data[:whole], dtype=SAMPLE)


class Reader:
    """The figures of one worker, from what its recorders have written.

    `pending` gives the deadline of each request that is under way, which is `timeout_ns` after its beginning.
    """

    def __init__(
        self, worker: int, bulks: Path, queries: Path, pending: Callable[[], list[int]], timeout_ns: int
    ) -> None:
        self._worker = worker
        self._pending, self._timeout_ns = pending, timeout_ns
        self._bulks, self._queries = Tail(bulks), Tail(queries)
        self._seen = Seen()
        self._before = cpu_mark()

    def seen(self) -> Seen:
        """The figures with the samples that were written since the last time."""
        used, deadlines, now_ns = cpu_mark(), self._pending(), time.monotonic_ns()
        self._seen = Seen(
            bulks=sum(map(figures_of, self._bulks), self._seen.bulks),
            queries=sum(map(figures_of, self._queries), self._seen.queries),
            in_flight=len(deadlines),
            oldest_ns=max(0, now_ns + self._timeout_ns - min(deadlines)) if deadlines else 0,
            cpu_ns=Counter(
                {
                    f"{self._worker} user": used.user_ns - self._before.user_ns,
                    f"{self._worker} system": used.system_ns - self._before.system_ns,
                }
            ),
        )
        return self._seen


def figures_of(samples: np.ndarray[Any, np.dtype[Any]]) -> Figures:
    """The figures of these samples."""
    response_ns = response_times_ns(samples)
    offered, acked, failed = (
        int(samples[name].sum(dtype=np.int64)) for name in ("documents", "documents_acked", "documents_failed")
    )
    counts = np.bincount(samples["outcome"], minlength=len(OUTCOMES)).tolist()
    steps, numbers = np.unique(np.searchsorted(EDGES_NS, response_ns), return_counts=True)
    return Figures(
        outcomes=+Counter(dict(zip(OUTCOMES, counts, strict=True))),
        documents=+Counter({"acknowledged": acked, "failed": failed, "unknown": offered - acked - failed}),
        bytes_sent=int(samples["bytes_sent"].sum()),
        steps=Counter(dict(zip(steps.tolist(), numbers.tolist(), strict=True))),
        response_ns=int(response_ns.sum()),
    )


def to_line(seen: Seen) -> dict[str, Any]:
    """The figures as JSON has them."""
    return {
        "bulks": _to_list(seen.bulks),
        "queries": _to_list(seen.queries),
        "in_flight": seen.in_flight,
        "oldest_ns": seen.oldest_ns,
        "cpu_ns": dict(seen.cpu_ns),
    }


def cpu_mark() -> CpuMark:
    """What this process has used until now."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return CpuMark(time.monotonic_ns(), round(used.ru_utime * 1e9), round(used.ru_stime * 1e9))


def check_line(line: Any) -> None:
    """ValueError for what is no line of figures: it comes from a worker on a machine of somebody else."""
    try:
        is_one = line.keys() == _KEYS
        numbers = [line["in_flight"], line["oldest_ns"], *line["cpu_ns"].values()]
        for name in ("bulks", "queries"):
            outcomes, documents, bytes_sent, steps, response_ns = line[name]
            is_one &= outcomes.keys() <= set(OUTCOMES) and documents.keys() <= _FATES
            is_one &= all(0 <= step <= len(EDGES_NS) for step, _ in steps)
            counts = outcomes.values(), documents.values(), (one for pair in steps for one in pair)
            numbers += [bytes_sent, response_ns, *itertools.chain(*counts)]
        is_one &= all(type(number) is int for number in numbers)
    except (AttributeError, KeyError, TypeError, ValueError):
        is_one = False
    if not is_one:
        raise ValueError("figures: these are no figures of a load")


def from_lines(lines: Iterable[Mapping[str, Any]]) -> Seen:
    """The figures of all workers together, of the lines that they told."""
    found = Seen()
    for line in lines:
        told = {"bulks": _from_list(line["bulks"]), "queries": _from_list(line["queries"])}
        found += Seen(**{**line, **told, "cpu_ns": Counter(line["cpu_ns"])})
    return found


def _to_list(figures: Figures) -> list[Any]:
    return [
        figures.outcomes,
        figures.documents,
        figures.bytes_sent,
        sorted(figures.steps.items()),
        figures.response_ns,
    ]


def _from_list(found: list[Any]) -> Figures:
    outcomes, documents, bytes_sent, steps, response_ns = found
    return Figures(Counter(outcomes), Counter(documents), bytes_sent, Counter(dict(map(tuple, steps))), response_ns)
