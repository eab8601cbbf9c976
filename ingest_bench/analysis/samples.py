"""Numbers from the load's samples: throughput, response and service time, what was acknowledged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Series, Value
from ingest_bench.model.samples import OUTCOMES

Samples = np.ndarray[Any, np.dtype[Any]]

# What became of the documents of the last attempt of such a ticket is not known to the sender.
_UNKNOWN = ("connection-error", "timeout", "cut-off", "broken-answer")


@dataclass(frozen=True, slots=True)
class Window:
    """The measurement, on the clock of the samples (CLOCK_MONOTONIC of the worker), end excluded."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> int:
        """Its full seconds."""
        return max(0, self.end_ns - self.start_ns) // 10**9


def window_of(report: WorkerReport) -> Window:
    """The measurement as the worker saw it."""
    return Window(report.warm_up_end_ns, report.measure_end_ns)


def outcome(samples: Samples, *names: str) -> Samples:
    """Which samples ended in one of these outcomes, as booleans."""
    return np.isin(samples["outcome"], [OUTCOMES.index(name) for name in names])


def unanswered(samples: Samples) -> Samples:
    """The samples whose bytes or documents may not all have arrived: no answer, or one from a broken server."""
    server_error = outcome(samples, "http-error") & (samples["status"] >= 500)
    chosen: Samples = samples[outcome(samples, *_UNKNOWN) | server_error]
    return chosen


def totals(samples: Samples) -> dict[str, Value]:
    """What was acknowledged and refused from start to end, warm-up included."""
    return {
        "documents_acked": int(samples["documents_acked"].sum()),
        "documents_failed": int(samples["documents_failed"].sum()),
    }


def stalled_seconds(samples: Samples, start_ns: int, seconds: int) -> int:
    """In how many of so many seconds no document was acknowledged: by the moments of the answers alone."""
    second = (samples["done_ns"][samples["documents_acked"] > 0] - start_ns) // 10**9
    return seconds - len(np.unique(second[(second >= 0) & (second < seconds)]))


def acked_per_second(samples: Samples, start_ns: int, seconds: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Acknowledged documents in each of so many seconds, those of a request evenly from its sending to its answer.

    Rejected: all in the second of the answer. Two users with bulks of 10,000 documents then have seconds of 0 and of
    10,000, and no median between them. A server that stalls shows all the same: what is in flight is little beside
    what it takes in that time; and `stalled_seconds` goes by the answers.
    """
    acked = samples[samples["documents_acked"] > 0]
    end_ns = acked["done_ns"] - start_ns
    took_ns = np.maximum(acked["done_ns"] - acked["sent_ns"], 1)
    begin_ns, documents = end_ns - took_ns, acked["documents_acked"]
    second = np.maximum(begin_ns // 10**9, 0)
    found = np.zeros(seconds)
    # One round for each second that the longest request lasted.
    while (going := (second < seconds) & (second * 10**9 < end_ns)).any():
        begin_ns, end_ns, took_ns = begin_ns[going], end_ns[going], took_ns[going]
        documents, second = documents[going], second[going]
        inside_ns = np.minimum(end_ns, (second + 1) * 10**9) - np.maximum(begin_ns, second * 10**9)
        np.add.at(found, second, documents * (inside_ns / took_ns))
        second = second + 1
    return found


def measured(samples: Samples, window: Window) -> Mapping[str, Value]:
    """The numbers of the measurement; None where nothing was there to measure.

    Times are of the tickets that were *planned* within the window. Each of them has a response time (done - planned),
    whatever became of it: one that had to wait counts with its wait, one that hung and was reset with the time that it
    hung, one that was sent again after a 429 until its last answer, one that was never sent until the end of the load.
    Rejected: to leave out what got no answer. What went worst was then in no percentile. A refusal that comes at once
    makes the times of all shorter; those of the acknowledged ones (`response_ok_ms`) stand beside them.

    Service time (done - sent) is of the ones that were sent: from the first byte of the first attempt to the end of
    the last one, the pauses between them included.
    """
    planned = samples[_planned_within(samples, window)]
    sent = planned[planned["bytes_sent"] > 0]
    service_ns = sent["done_ns"] - sent["sent_ns"]
    done = samples[(samples["done_ns"] >= window.start_ns) & (samples["done_ns"] < window.end_ns)]
    acked = acked_per_second(samples, window.start_ns, window.seconds)
    length_s = (window.end_ns - window.start_ns) / 1e9
    answered = done[~outcome(done, *_UNKNOWN)]
    return {
        "docs_per_s_median": float(np.median(acked)) if window.seconds else None,
        "docs_per_s_mean": int(done["documents_acked"].sum()) / length_s if length_s > 0 else None,
        "bytes_measured": int(answered["bytes_sent"].sum()),
        **_responses("response", planned, {"p50": 50, "p99": 99, "p999": 99.9, "max": 100}),
        "service_ms_p50": _ms(service_ns, 50),
        "service_ms_p99": _ms(service_ns, 99),
        "requests": len(planned),
        "requests_failed": int((~outcome(planned, "ok")).sum()),
        "attempts": int(planned["attempts"].sum()),
        "stalled_s": stalled_seconds(samples, window.start_ns, window.seconds) if window.seconds else None,
    }


def queried(queries: Samples, window: Window) -> Mapping[str, Value]:
    """The numbers of the queries that were sent beside the indexing, within the measurement; times as of requests."""
    planned = queries[_planned_within(queries, window)]
    good = queries[outcome(queries, "ok")]
    second = (good["done_ns"] - window.start_ns) // 10**9
    answered = np.bincount(second[(second >= 0) & (second < window.seconds)], minlength=window.seconds)
    return {
        "queries_per_s_median": float(np.median(answered)) if window.seconds else None,
        **_responses("query", planned, {"p50": 50, "p99": 99}),
        "queries": len(planned),
        "queries_failed": int((~outcome(planned, "ok")).sum()),
    }


def _planned_within(samples: Samples, window: Window) -> Samples:
    inside: Samples = (samples["planned_ns"] >= window.start_ns) & (samples["planned_ns"] < window.end_ns)
    return inside


def _responses(name: str, planned: Samples, percents: Mapping[str, float]) -> dict[str, Value]:
    """Percentiles of the response times of all of them, and of the acknowledged ones."""
    found: dict[str, Value] = {}
    for kind, chosen in ((name, planned), (f"{name}_ok", planned[outcome(planned, "ok")])):
        times_ns = chosen["done_ns"] - chosen["planned_ns"]
        found |= {f"{kind}_ms_{short}": _ms(times_ns, percent) for short, percent in percents.items()}
    return found


def series(samples: Samples, report: WorkerReport) -> dict[str, Series]:
    """Throughput and response time of each second from the load's start, warm-up included, in CLOCK_REALTIME."""
    if not len(samples):
        return {}
    window = window_of(report)
    # The seconds are those of the measurement, continued backwards over the warm-up.
    before = -(-(window.start_ns - report.started_monotonic_ns) // 10**9)
    start_ns = window.start_ns - before * 10**9
    seconds = before + window.seconds
    starts = [start_ns + report.realtime_minus_monotonic_ns + second * 10**9 for second in range(seconds)]
    acked = acked_per_second(samples, start_ns, seconds)
    found = {"docs_per_s": Series("docs_per_s", tuple(starts), tuple(float(value) for value in acked))}
    for kind, chosen in (("response", samples), ("response_ok", samples[outcome(samples, "ok")])):
        found |= dict(_response_series(kind, chosen, start_ns, starts))
    return found


def _response_series(kind: str, samples: Samples, start_ns: int, starts: Sequence[int]) -> Iterator[tuple[str, Series]]:
    """Median and longest response time of what ended in each second; a second in which nothing did is left out.

    One sort for all seconds: to choose the samples of each second among all of them took 25 CPU minutes for a day.
    """
    response_ns, second = samples["done_ns"] - samples["planned_ns"], (samples["done_ns"] - start_ns) // 10**9
    inside = (second >= 0) & (second < len(starts))
    response_ns, second = response_ns[inside], second[inside]
    order = np.lexsort((response_ns, second))
    present, first, counts = np.unique(second[order], return_index=True, return_counts=True)
    moments = tuple(starts[number] for number in present.tolist())
    # As `_percentile` has it (inverted_cdf): the least value that so large a share is not above.
    for name, rank in ((f"{kind}_ms_p50", (counts + 1) // 2), (f"{kind}_ms_max", counts)):
        values_ms = response_ns[order][first + rank - 1] / 1e6
        yield name, Series(name, moments, tuple(values_ms.tolist()))


def _percentile(values: Samples, percent: float) -> float:
    return float(np.percentile(values, percent, method="inverted_cdf"))


def _ms(values_ns: Samples, percent: float) -> float | None:
    return _percentile(values_ns, percent) / 1e6 if len(values_ns) else None
