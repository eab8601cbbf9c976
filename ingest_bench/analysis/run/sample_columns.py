"""Numbers from the load's samples: throughput, response and service time, what was acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from ingest_bench.analysis.numbers import quantiles
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Remark, Value
from ingest_bench.model.samples import OUTCOMES, response_times_ns, service_times_ns
from ingest_bench.nearest_rank import rank

Samples = np.ndarray[Any, np.dtype[Any]]

# What became of the documents of the last attempt of such a ticket is not known to the sender.
_UNKNOWN = ("connection-error", "timeout", "cut-off", "broken-answer")
# Medians of two addresses that are less apart are alike.
_ALIKE = 1.5


@dataclass(frozen=True, slots=True)
class Window:
    """The measurement, on the clock of the samples (CLOCK_MONOTONIC of the worker), end excluded."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> int:
        """Its full seconds: so many points has a series. One of "1s" may end just before its first is full."""
        return max(0, self.end_ns - self.start_ns) // 10**9

    @property
    def length_s(self) -> float:
        """How long it is."""
        return max(0, self.end_ns - self.start_ns) / 1e9


def window_of(report: WorkerReport) -> Window:
    """The measurement as the worker saw it."""
    return Window(report.warm_up_end_ns, report.measure_end_ns)


def outcome(samples: Samples, *names: str) -> Samples:
    """Which samples ended in one of these outcomes, as booleans."""
    return np.isin(samples["outcome"], [OUTCOMES.index(name) for name in names])


class InPieces(Protocol):
    """More samples than memory may hold (`sample_files`)."""

    def __len__(self) -> int: ...

    def pieces(self) -> Iterator[tuple[Samples, int | None]]:
        """Samples, and the moment before which no later piece has one that ended; None: there is no later piece."""
        ...


Tickets = Samples | InPieces


def pieces(tickets: Tickets) -> Iterator[tuple[Samples, int | None]]:
    """All samples, a piece after the other: those of an array are one."""
    if isinstance(tickets, np.ndarray):
        yield tickets, None
    else:
        yield from tickets.pieces()


def total(tickets: Tickets, of: Callable[[Samples], Any]) -> int:
    """The sum of what each sample has of it."""
    return sum(int(of(samples).sum(dtype=np.int64)) for samples, _ in pieces(tickets))


def totals(tickets: Tickets) -> dict[str, Value]:
    """What was acknowledged and refused from start to end, warm-up included."""
    return {name: total(tickets, itemgetter(name)) for name in ("documents_acked", "documents_failed")}


def acked_per_second(tickets: Tickets, start_ns: int, seconds: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the documents acknowledged in each second: those of a request in the second of its answer.

    Rejected: to spread them from sending to answer. A server with a queue was then credited with documents that it had
    not answered yet: one that answered 500/s had 545/s at 595/s due.
    """
    documents = np.zeros(seconds)
    for samples, _ in pieces(tickets):
        second = (samples["done_ns"] - start_ns) // 10**9
        inside = (second >= 0) & (second < seconds)
        documents += np.bincount(second[inside], weights=samples["documents_acked"][inside], minlength=seconds)
    return documents


def spread_acked(tickets: Tickets, start_ns: int, slots: int, slot_ns: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the acknowledged documents of each slot, those of a request spread evenly from its sending to its answer.

    A smooth curve to find a change in, never a number to report: documents of a queue count before they are answered.
    Bulks of 10,000 documents leave seconds without an answer, which are no fall of the rate.
    """
    found = np.zeros(slots)
    for samples, _ in pieces(tickets):
        _add_acked(found, samples, start_ns, slot_ns)
    return found


def _add_acked(found: np.ndarray[Any, np.dtype[np.float64]], samples: Samples, start_ns: int, slot_ns: int) -> None:
    slots, acked = len(found), np.flatnonzero(samples["documents_acked"] > 0)
    end_ns = samples["done_ns"][acked] - start_ns
    took_ns = np.maximum(end_ns - (samples["sent_ns"][acked] - start_ns), 1)
    begin_ns, documents = end_ns - took_ns, samples["documents_acked"][acked]
    slot = np.maximum(begin_ns // slot_ns, 0)
    # One round for each slot that the longest request lasted.
    while len(going := np.flatnonzero((slot < slots) & (slot * slot_ns < end_ns))):
        if len(going) < len(slot):
            begin_ns, end_ns, took_ns = begin_ns[going], end_ns[going], took_ns[going]
            documents, slot = documents[going], slot[going]
        inside_ns = np.minimum(end_ns, (slot + 1) * slot_ns) - np.maximum(begin_ns, slot * slot_ns)
        found += np.bincount(slot, weights=documents * (inside_ns / took_ns), minlength=slots)
        slot = slot + 1


def measured(tickets: Tickets, window: Window) -> Mapping[str, Value]:
    """The numbers of the measurement; None where nothing was there to measure.

    Times are of the tickets that were *under way* within the window (`under_way`). Each of them has a response time
    (done - planned), whatever became of it: one that had to wait counts with its wait, one that hung and was reset with
    the time that it hung, one that was sent again after a 429 until its last answer, one that was never sent until the
    end of the load. Rejected: to leave out what got no answer. What went worst was then in no percentile. A refusal
    that comes at once makes the times of all shorter; those of the acknowledged ones (`response_ok_ms`) stand beside
    them.

    Service time (done - sent) is of the ones that were sent: from the first byte of the first attempt to the end of
    the last one, the pauses between them included.
    """
    counts = _counts(tickets, window)
    acked = acked_per_second(tickets, window.start_ns, window.seconds)
    percents = {kind: {"p50": 50, "p99": 99, "p999": 99.9, "max": 100} for kind in ("response", "response_ok")}
    return {
        "docs_per_s_mean": _per_s(total(tickets, lambda samples: _acked_within(samples, window)), window),
        **{f"docs_per_s_p{percent}": _of_seconds(acked, percent) for percent in (10, 90)},
        "measured_seconds": window.seconds,
        "bytes_measured": counts["bytes"],
        **_percentiles(tickets, window, {**percents, "service": {"p50": 50, "p99": 99}}),
        **{name: count for name, count in counts.items() if name != "bytes"},
        "silent_s": int((acked == 0).sum()) if window.seconds else None,
    }


def _acked_within(samples: Samples, window: Window) -> Samples:
    acked: Samples = samples["documents_acked"][within(samples["done_ns"], window)]
    return acked


def _per_s(count: int, window: Window) -> float | None:
    return count / window.length_s if window.length_s else None


def _of_seconds(acked: Samples, percent: int) -> float | None:
    place = rank(percent, len(acked))
    return None if place is None else float(np.sort(acked)[place])


def _counts(tickets: Tickets, window: Window) -> dict[str, int]:
    counts = ("bytes", "requests", "requests_answered", "requests_failed", "requests_ok", "requests_sent", "attempts")
    totals = dict.fromkeys(counts, 0)
    for samples, _ in pieces(tickets):
        counted, done = under_way(samples, window), within(samples["done_ns"], window)
        answered = done & ~outcome(samples, *_UNKNOWN)
        totals["bytes"] += int(samples["bytes_sent"][answered].sum())
        totals["requests_answered"] += int(answered.sum())
        totals["requests"] += int(counted.sum())
        totals["requests_failed"] += int((counted & ~outcome(samples, "ok")).sum())
        totals["requests_ok"] += int((counted & outcome(samples, "ok")).sum())
        totals["requests_sent"] += int((counted & (samples["bytes_sent"] > 0)).sum())
        totals["attempts"] += int(samples["attempts"][counted].sum())
    return totals


def differing_addresses(tickets: Tickets, report: WorkerReport) -> Iterator[Remark]:
    """What each address of the server did within the measurement, where they did not do alike."""
    names = report.addresses
    if len(names) < 2:
        return
    window = window_of(report)
    documents, requests, failed = (np.zeros(len(names), dtype=np.int64) for _ in range(3))

    def times() -> Iterator[Mapping[str, Samples]]:
        for done in _sent_pieces(tickets, window):
            sent = done[done["bytes_sent"] > 0]
            service_ns = service_times_ns(sent)
            yield {name: service_ns[sent["address"] == index] for index, name in enumerate(names)}

    for done in _sent_pieces(tickets, window):
        for of, each in ((documents, done["documents_acked"]), (requests, 1), (failed, ~outcome(done, "ok"))):
            np.add.at(of, done["address"], each)
    known = quantiles.percentiles(times, dict.fromkeys(names, (50, 99)))
    medians = [known[name, 50] for name in names if (name, 50) in known]
    all_answer = len(medians) == len(names) and not failed.any()
    if all_answer and max(medians) <= _ALIKE * min(medians):
        return
    # Of a few requests nobody knows a median: the addresses are taken in turn.
    if len(medians) < len(names) and not failed.any() and np.ptp(requests) <= 1:
        return
    told = []
    for index, name in enumerate(names):
        said = f"{name}: {documents[index]:,} documents in {requests[index]:,} requests"
        known_ms = {percent: known[name, percent] / 1e6 for percent in (50, 99) if (name, percent) in known}
        if known_ms:
            said += f", service time {', '.join(f'p{percent} {time:.1f} ms' for percent, time in known_ms.items())}"
        told.append(said + (f", {failed[index]:,} failed" if failed[index] else ""))
    yield Remark(probe="load", text=f"the addresses of the server differ: {'; '.join(told)}")


def _sent_pieces(tickets: Tickets, window: Window) -> Iterator[Samples]:
    """What was under way within the window and went to an address, or was to."""
    for samples, _ in pieces(tickets):
        yield samples[under_way(samples, window) & (samples["address"] >= 0)]


def queried(tickets: Tickets, window: Window) -> Mapping[str, Value]:
    """The numbers of the queries that were sent beside the indexing, within the measurement; times as of requests."""
    counts = _counts(tickets, window)
    answered = total(tickets, lambda queries: outcome(queries, "ok") & within(queries["done_ns"], window))
    return {
        "queries_per_s_mean": _per_s(answered, window),
        **_percentiles(tickets, window, {kind: {"p50": 50, "p99": 99} for kind in ("query", "query_ok")}),
        "queries": counts["requests"],
        "queries_failed": counts["requests_failed"],
        "queries_ok": counts["requests_ok"],
    }


def within(moments_ns: Samples, window: Window) -> Samples:
    """Which of these moments are within it, as booleans."""
    inside: Samples = (moments_ns >= window.start_ns) & (moments_ns < window.end_ns)
    return inside


def under_way(samples: Samples, window: Window) -> Samples:
    """Which tickets were due before its end and had not ended before its beginning, as booleans.

    Rejected: those that were planned within it. A request that hung from the warm-up on was then in no number: one of
    four users hung for all 3 s and was reset, yet the longest response time was 11 ms and no request had failed. The
    price is one ticket more for each user that was busy at the beginning.
    """
    found: Samples = (samples["planned_ns"] < window.end_ns) & (samples["done_ns"] >= window.start_ns)
    return found


def _percentiles(
    tickets: Tickets, window: Window, percents: Mapping[str, Mapping[str, float]]
) -> dict[str, float | None]:
    """Percentiles in milliseconds of the times of what was under way within the window, exact; None of too few.

    "service" is the service time of what was sent, anything else the response time: of the acknowledged ones where its
    name ends with "_ok", else of all.
    """

    def times() -> Iterator[Mapping[str, Samples]]:
        for samples, _ in pieces(tickets):
            counted = under_way(samples, window)
            response_ns = response_times_ns(samples)
            found = {}
            for kind in percents:
                if kind == "service":
                    sent = counted & (samples["bytes_sent"] > 0)
                    found[kind] = service_times_ns(samples)[sent]
                else:
                    found[kind] = response_ns[counted & outcome(samples, "ok") if kind.endswith("_ok") else counted]
            yield found

    known = quantiles.percentiles(times, {kind: tuple(wanted.values()) for kind, wanted in percents.items()})
    return {
        f"{kind}_ms_{short}": known[kind, percent] / 1e6 if (kind, percent) in known else None
        for kind, wanted in percents.items()
        for short, percent in wanted.items()
    }
