"""A load over time: what each second of it had, for pictures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ingest_bench.analysis.numbers import quantiles
from ingest_bench.analysis.run.sample_columns import (
    Samples,
    Tickets,
    acked_per_second,
    outcome,
    pieces,
    spread_acked,
    window_of,
)
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Series
from ingest_bench.model.samples import response_times_ns

# The drain of a load and what it is cut off in (load.worker), with some room.
_LATE_S = 30


def series(tickets: Tickets, report: WorkerReport) -> dict[str, Series]:
    """Throughput and response time of each second from the load's start, warm-up included, in CLOCK_REALTIME.

    A second's median response time is of what ended in it. Its longest one is of all that waited in it: who waited 3 s
    is in each of these seconds. Rejected: at the moment of the answer. A stall was then drawn where it was over.
    """
    if not len(tickets):
        return {}
    start_ns, seconds = _seconds(report)
    starts = [start_ns + report.realtime_minus_monotonic_ns + second * 10**9 for second in range(seconds)]
    acked = acked_per_second(tickets, start_ns, seconds)
    found = {"docs_per_s": Series("docs_per_s", tuple(starts), tuple(acked.tolist()))}
    for kind in ("response", "response_ok"):
        only_ok = kind == "response_ok"
        parts = list(_medians(tickets, start_ns, seconds, only_ok=only_ok))
        for name, (present, times_ns) in (
            ("p50", [np.concatenate(column) for column in zip(*parts, strict=True)]),
            ("max", _longest(tickets, start_ns, seconds, only_ok=only_ok)),
        ):
            moments = tuple(starts[number] for number in present.tolist())
            found[f"{kind}_ms_{name}"] = Series(f"{kind}_ms_{name}", moments, tuple((times_ns / 1e6).tolist()))
    return found


def smooth_docs_per_s(tickets: Tickets, report: WorkerReport) -> Series:
    """Return the throughput of the same seconds to find a change in: bulks that take seconds leave none empty."""
    start_ns, seconds = _seconds(report)
    first_ns = start_ns + report.realtime_minus_monotonic_ns
    starts = tuple(first_ns + second * 10**9 for second in range(seconds))
    return Series("docs_per_s", starts, tuple(spread_acked(tickets, start_ns, seconds, 10**9).tolist()))


def _seconds(report: WorkerReport) -> tuple[int, int]:
    """Return the start and the number of the seconds: the measurement's, continued backwards over the warm-up."""
    window = window_of(report)
    before = -(-(window.start_ns - report.started_monotonic_ns) // 10**9)
    return window.start_ns - before * 10**9, before + window.seconds


def _inside(samples: Samples, start_ns: int, seconds: int, *, only_ok: bool) -> tuple[Samples, Samples]:
    """The seconds in which those ended that were due before the end, and which these are.

    What ended after the end is in the last second: the response times of the window have it too.
    """
    second = np.minimum((samples["done_ns"] - start_ns) // 10**9, seconds - 1)
    inside: Samples = (second >= 0) & (samples["planned_ns"] < start_ns + seconds * 10**9)
    if only_ok:
        inside &= outcome(samples, "ok")
    return second, inside


def _longest(tickets: Tickets, start_ns: int, seconds: int, *, only_ok: bool) -> tuple[Samples, Samples]:
    """Which seconds had a ticket that waited in them, and the longest response time of each."""
    longest_ns = np.full(seconds, -1, dtype=np.int64)
    for samples, _ in pieces(tickets):
        last, inside = _inside(samples, start_ns, seconds, only_ok=only_ok)
        last, planned_ns, done_ns = last[inside], samples["planned_ns"][inside], samples["done_ns"][inside]
        second = np.minimum(np.maximum((planned_ns - start_ns) // 10**9, 0), last)
        response_ns = done_ns - planned_ns
        # One round for each second that the longest one waited.
        while len(second):
            np.maximum.at(longest_ns, second, response_ns)
            going = second < last
            second, last, response_ns = second[going] + 1, last[going], response_ns[going]
    present = np.flatnonzero(longest_ns >= 0)
    return present, longest_ns[present]


def _medians(tickets: Tickets, start_ns: int, seconds: int, *, only_ok: bool) -> Iterator[tuple[Samples, Samples]]:
    """Which seconds had a ticket that ended in them, and the median response time of each.

    A second is done once no later piece has a sample of it; until then its times are kept.
    """
    response_ns = second = np.empty(0, dtype=np.int64)
    for samples, settled_ns in pieces(tickets):
        new, inside = _inside(samples, start_ns, seconds, only_ok=only_ok)
        second = np.concatenate((second, new[inside]))
        response_ns = np.concatenate((response_ns, response_times_ns(samples)[inside]))
        # What was never sent ended with the load and was written after the last answers (load.worker).
        whole = seconds
        if settled_ns is not None:
            whole = min(seconds - 1, (settled_ns - start_ns) // 10**9 - _LATE_S)
        settled = second < whole
        yield quantiles.medians(second[settled], response_ns[settled])
        second, response_ns = second[~settled], response_ns[~settled]
