"""Columns and series computed from load samples: throughput, response and service time, acknowledged documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from ingest_bench.analysis import quantiles
from ingest_bench.model.results import ColumnValue, Series, nearest_rank
from ingest_bench.model.samples import OUTCOMES, WorkerReport, response_times_ns, service_times_ns

Samples = np.ndarray[Any, np.dtype[Any]]

SECOND_NS = 10**9
# After these outcomes the sender does not know what the server did with the documents of the last attempt.
_UNKNOWN = ("connection-error", "timeout", "cut-off", "invalid-response")
# Addresses differ if their medians differ by more than this factor.
_ALIKE = 1.5
# Unsent arrivals are written after the drain of a load and its cut-off (load.worker), with a margin.
_LATE_S = 30


@dataclass(frozen=True, slots=True)
class Window:
    """The measurement on the clock of the samples (CLOCK_MONOTONIC of the worker), end excluded."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> int:
        """Return the number of full seconds. A measurement of "1s" may end just before its first second is full."""
        return max(0, self.end_ns - self.start_ns) // SECOND_NS

    @property
    def length_s(self) -> float:
        """Return the length."""
        return max(0, self.end_ns - self.start_ns) / 1e9


class SampleBatches(Protocol):
    """Samples that may exceed memory (`results.sample_files`)."""

    def __len__(self) -> int: ...

    def batches(self) -> Iterator[Samples]:
        """Yield all samples. No request ended before the first one of an earlier batch, except those never sent."""
        ...


SampleSource = Samples | SampleBatches


def measurement_window(report: WorkerReport) -> Window:
    """Return the measurement of the worker."""
    return Window(report.warm_up_end_ns, report.measure_end_ns)


def iterate_batches(samples: SampleSource) -> Iterator[Samples]:
    """Return all samples in batches, as `SampleBatches.batches`; an array is one batch."""
    return iter((samples,)) if isinstance(samples, np.ndarray) else samples.batches()


@dataclass(frozen=True, slots=True)
class AtAddress:
    """The samples that went to one server address, as `SampleBatches`."""

    samples: SampleSource
    address: int

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches())

    def batches(self) -> Iterator[Samples]:
        """Yield its samples as the source does."""
        for batch in iterate_batches(self.samples):
            yield batch[batch["address"] == self.address]


def has_outcome(samples: Samples, *names: str) -> Samples:
    """Return a mask of the samples with one of these outcomes."""
    return np.isin(samples["outcome"], [OUTCOMES.index(name) for name in names])


def is_within(times_ns: Samples, window: Window) -> Samples:
    """Return a mask of the times inside *window*."""
    inside: Samples = (times_ns >= window.start_ns) & (times_ns < window.end_ns)
    return inside


def is_in_flight(samples: Samples, window: Window) -> Samples:
    """Return a mask of the samples that were due before the end of *window* and not done before its beginning.

    Rejected: the samples scheduled within the window. A request that hung since the warm-up was in no number then: one
    of four users hung for all 3 s and was reset, yet the longest response time was 11 ms and no request had failed. The
    price is one additional sample for each user that was busy at the beginning.
    """
    in_flight: Samples = (samples["scheduled_ns"] < window.end_ns) & (samples["done_ns"] >= window.start_ns)
    return in_flight


def keep_longest(samples: Samples, count: int) -> Samples:
    """Return the *count* samples with the longest response times, in any order."""
    if len(samples) <= count:
        return samples
    return samples[np.argpartition(samples["scheduled_ns"] - samples["done_ns"], count)[:count]]


def sum_over(samples: SampleSource, value_of: Callable[[Samples], Any]) -> int:
    """Return the sum of *value_of* over all samples."""
    return sum(int(value_of(batch).sum(dtype=np.int64)) for batch in iterate_batches(samples))


def document_totals(samples: SampleSource) -> dict[str, ColumnValue]:
    """Return the documents acknowledged and failed from start to end, warm-up included."""
    return {name: sum_over(samples, itemgetter(name)) for name in ("documents_acked", "documents_failed")}


def acked_per_second(samples: SampleSource, start_ns: int, seconds: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the documents acknowledged in each second, by the time of the response.

    Rejected: spreading them from sending to response. A server with a queue was credited with documents that it had not
    acknowledged yet: one that acknowledged 500/s had 545/s at 595/s due.
    """
    documents = np.zeros(seconds)
    for batch in iterate_batches(samples):
        second = (batch["done_ns"] - start_ns) // SECOND_NS
        inside = (second >= 0) & (second < seconds)
        documents += np.bincount(second[inside], weights=batch["documents_acked"][inside], minlength=seconds)
    return documents


def spread_acked(
    samples: SampleSource, start_ns: int, slots: int, slot_ns: int
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the acknowledged documents of each slot, spread evenly from sending to response of their request.

    A smooth curve for change detection, never a reported number: queued documents count before their acknowledgement.
    Bulks of 10,000 documents leave seconds without a response, which are not drops in throughput.
    """
    total = np.zeros(slots)
    for batch in iterate_batches(samples):
        acked = np.flatnonzero(batch["documents_acked"] > 0)
        end_ns, documents = batch["done_ns"][acked] - start_ns, batch["documents_acked"][acked]
        duration_ns = np.maximum(end_ns - (batch["sent_ns"][acked] - start_ns), 1)
        begin_ns = end_ns - duration_ns
        slot = np.maximum(begin_ns // slot_ns, 0)
        # One round for each slot that the longest request lasted.
        while len(active := np.flatnonzero((slot < slots) & (slot * slot_ns < end_ns))):
            begin_ns, end_ns, duration_ns = begin_ns[active], end_ns[active], duration_ns[active]
            documents, slot = documents[active], slot[active]
            inside_ns = np.minimum(end_ns, (slot + 1) * slot_ns) - np.maximum(begin_ns, slot * slot_ns)
            total += np.bincount(slot, weights=documents * (inside_ns / duration_ns), minlength=slots)
            slot = slot + 1
    return total


def load_columns(samples: SampleSource, window: Window) -> Mapping[str, ColumnValue]:
    """Return the columns of the measurement; None for what cannot be computed.

    Times are of the requests *in flight* within the window (`is_in_flight`). All of them have a response time
    (done - scheduled), whatever their outcome: a request that waited counts its wait, one that hung and was reset the
    time that it hung, a retried one until its last response, an unsent one until the end of the load. Rejected: leaving
    out requests without a response. The worst requests were in no percentile then. An immediate rejection shortens the
    times of all requests; therefore the times of acknowledged requests are separate columns (`response_ok_ms`).

    The service time (done - sent) is of sent requests: from the first byte of the first attempt to the end of the last
    attempt, pauses between them included.
    """
    counts = _count_requests(samples, window)
    acked = np.sort(acked_per_second(samples, window.start_ns, window.seconds))
    documents = sum_over(samples, lambda batch: batch["documents_acked"][is_within(batch["done_ns"], window)])
    ranks = {percent: nearest_rank(percent, len(acked)) for percent in (10, 90)}
    percents = {kind: {"p50": 50, "p99": 99, "p999": 99.9, "max": 100} for kind in ("response", "response_ok")}
    bytes_measured = counts.pop("bytes")
    errors = {name: counts.pop(name) for name in OUTCOMES}
    return {
        "docs_per_s_mean": documents / window.length_s if window.length_s else None,
        **{f"docs_per_s_p{percent}": None if rank is None else float(acked[rank]) for percent, rank in ranks.items()},
        "measured_seconds": window.seconds,
        "bytes_measured": bytes_measured,
        **_time_percentiles(samples, window, {**percents, "service": {"p50": 50, "p99": 99}}),
        **counts,
        "errors": ", ".join(f"{name} {count:,}" for name, count in errors.items() if count and name != "ok") or None,
        "zero_throughput_s": int((acked == 0).sum()) if window.seconds else None,
    }


def query_columns(samples: SampleSource, window: Window) -> Mapping[str, ColumnValue]:
    """Return the columns of the queries sent during indexing, within the measurement; times as in `load_columns`."""
    counts = _count_requests(samples, window)
    answered = sum_over(samples, lambda batch: has_outcome(batch, "ok") & is_within(batch["done_ns"], window))
    return {
        "queries_per_s_mean": answered / window.length_s if window.length_s else None,
        **_time_percentiles(samples, window, {kind: {"p50": 50, "p99": 99} for kind in ("query", "query_ok")}),
        "queries": counts["requests"],
        "queries_failed": counts["requests_failed"],
        "queries_ok": counts["requests_ok"],
    }


def _count_requests(samples: SampleSource, window: Window) -> dict[str, int]:
    names = ("bytes", "requests", "requests_answered", "requests_failed", "requests_ok", "requests_sent", "attempts")
    counts = dict.fromkeys((*names, *OUTCOMES), 0)
    for batch in iterate_batches(samples):
        in_flight, is_ok = is_in_flight(batch, window), has_outcome(batch, "ok")
        answered = is_within(batch["done_ns"], window) & ~has_outcome(batch, *_UNKNOWN)
        counts["bytes"] += int(batch["bytes_sent"][answered].sum())
        counts["requests_answered"] += int(answered.sum())
        counts["requests"] += int(in_flight.sum())
        counts["requests_failed"] += int((in_flight & ~is_ok).sum())
        counts["requests_ok"] += int((in_flight & is_ok).sum())
        counts["requests_sent"] += int((in_flight & (batch["bytes_sent"] > 0)).sum())
        for name in OUTCOMES:
            counts[name] += int((in_flight & has_outcome(batch, name)).sum())
        counts["attempts"] += int(batch["attempts"][in_flight].sum())
    return counts


def _time_percentiles(
    samples: SampleSource, window: Window, percents: Mapping[str, Mapping[str, float]]
) -> dict[str, float | None]:
    """Return exact percentiles in milliseconds of requests in flight; None for too few requests.

    Kind "service" is the service time of sent requests. All other kinds are response times: of acknowledged requests if
    the name ends with "_ok", else of all.
    """

    def times_by_kind() -> Iterator[Mapping[str, Samples]]:
        for batch in iterate_batches(samples):
            in_flight = is_in_flight(batch, window)
            response_ns = response_times_ns(batch)
            times = {}
            for kind in percents:
                if kind == "service":
                    times[kind] = service_times_ns(batch)[in_flight & (batch["bytes_sent"] > 0)]
                else:
                    times[kind] = response_ns[
                        in_flight & has_outcome(batch, "ok") if kind.endswith("_ok") else in_flight
                    ]
            yield times

    times_ns = quantiles.percentiles(times_by_kind, {kind: tuple(names.values()) for kind, names in percents.items()})
    return {
        f"{kind}_ms_{name}": times_ns[kind, percent] / 1e6 if (kind, percent) in times_ns else None
        for kind, names in percents.items()
        for name, percent in names.items()
    }


def describe_differing_addresses(samples: SampleSource, report: WorkerReport) -> str:
    """Describe the results of each server address if they differ within the measurement; "" if they do not."""
    window = measurement_window(report)
    texts, medians, requests, has_failed = [], [], [], False
    for index, name in enumerate(report.addresses):
        own = AtAddress(samples, index)
        counts = _count_requests(own, window)
        times_ms = _time_percentiles(own, window, {"service": {"p50": 50, "p99": 99}})
        documents = sum_over(own, lambda batch: batch["documents_acked"][is_in_flight(batch, window)])
        text = f"{name}: {documents:,} documents in {counts['requests']:,} requests"
        percentiles = {percent: times_ms[f"service_ms_{percent}"] for percent in ("p50", "p99")}
        shown = ", ".join(f"{percent} {time:.1f} ms" for percent, time in percentiles.items() if time is not None)
        text += f", service time {shown}" if shown else ""
        texts.append(text + (f", {counts['requests_failed']:,} failed" if counts["requests_failed"] else ""))
        medians += [median_ms] if (median_ms := percentiles["p50"]) is not None else []
        requests.append(counts["requests"])
        has_failed |= counts["requests_failed"] > 0
    if len(medians) == len(texts):
        is_alike = max(medians, default=0) <= _ALIKE * min(medians, default=0)
    else:
        # Too few requests for medians: compare the numbers of requests, because addresses are used in turn.
        is_alike = max(requests) - min(requests) <= 1
    is_worth_a_note = len(texts) > 1 and (has_failed or not is_alike)
    return f"the addresses of the server differ: {'; '.join(texts)}" if is_worth_a_note else ""


def load_series(samples: SampleSource, report: WorkerReport) -> dict[str, Series]:
    """Return throughput and response times of each second from the load's start, warm-up included.

    A second's median response time is of the requests that ended in it. Its longest one is of all requests that waited
    in it: a wait of 3 s is in each of these seconds. Rejected: assigning it to the second of the response. A stall was
    then drawn after its end.
    """
    if not len(samples):
        return {}
    start_ns, starts = _second_starts(report)
    seconds = len(starts)
    acked = acked_per_second(samples, start_ns, seconds)
    series = {"docs_per_s": Series("docs_per_s", starts, tuple(acked.tolist()))}
    for kind in ("response", "response_ok"):
        only_ok = kind == "response_ok"
        parts = list(_medians(samples, start_ns, seconds, only_ok=only_ok))
        for name, (present, times_ns) in (
            ("p50", [np.concatenate(column) for column in zip(*parts, strict=True)]),
            ("max", _longest(samples, start_ns, seconds, only_ok=only_ok)),
        ):
            times = tuple(starts[number] for number in present.tolist())
            series[f"{kind}_ms_{name}"] = Series(f"{kind}_ms_{name}", times, tuple((times_ns / 1e6).tolist()))
    return series


def smooth_docs_per_s(samples: SampleSource, report: WorkerReport) -> Series:
    """Return the throughput of the same seconds for change detection (`spread_acked`)."""
    start_ns, starts = _second_starts(report)
    return Series("docs_per_s", starts, tuple(spread_acked(samples, start_ns, len(starts), SECOND_NS).tolist()))


def _second_starts(report: WorkerReport) -> tuple[int, tuple[int, ...]]:
    """Return the start of the first second on the clock of the samples, and of all seconds on CLOCK_REALTIME.

    They are the seconds of the measurement, continued backwards over the warm-up.
    """
    window = measurement_window(report)
    before = -(-(window.start_ns - report.started_monotonic_ns) // SECOND_NS)
    start_ns = window.start_ns - before * SECOND_NS
    realtime_ns = start_ns + report.realtime_minus_monotonic_ns
    return start_ns, tuple(realtime_ns + second * SECOND_NS for second in range(before + window.seconds))


def _end_seconds(batch: Samples, start_ns: int, seconds: int, *, only_ok: bool) -> tuple[Samples, Samples]:
    """Return the second in which each sample ended, and a mask of the samples due before the end.

    Samples that ended later belong to the last second, because the response times of the window include them.
    """
    second = np.minimum((batch["done_ns"] - start_ns) // SECOND_NS, seconds - 1)
    inside: Samples = (second >= 0) & (batch["scheduled_ns"] < start_ns + seconds * SECOND_NS)
    if only_ok:
        inside &= has_outcome(batch, "ok")
    return second, inside


def _longest(samples: SampleSource, start_ns: int, seconds: int, *, only_ok: bool) -> tuple[Samples, Samples]:
    """Return the seconds in which a request waited, and the longest response time of each."""
    longest_ns = np.full(seconds, -1, dtype=np.int64)
    for batch in iterate_batches(samples):
        last, inside = _end_seconds(batch, start_ns, seconds, only_ok=only_ok)
        last, scheduled_ns, done_ns = last[inside], batch["scheduled_ns"][inside], batch["done_ns"][inside]
        second = np.minimum(np.maximum((scheduled_ns - start_ns) // SECOND_NS, 0), last)
        response_ns = done_ns - scheduled_ns
        # One round for each second that the longest request waited.
        while len(second):
            np.maximum.at(longest_ns, second, response_ns)
            active = second < last
            second, last, response_ns = second[active] + 1, last[active], response_ns[active]
    present = np.flatnonzero(longest_ns >= 0)
    return present, longest_ns[present]


def _medians(samples: SampleSource, start_ns: int, seconds: int, *, only_ok: bool) -> Iterator[tuple[Samples, Samples]]:
    """Yield the seconds in which a request ended, and the median response time of each.

    The times of a second are kept until no later batch has a sample of it.
    """
    response_ns = second = np.empty(0, dtype=np.int64)
    for batch in iterate_batches(samples):
        # Unsent arrivals ended with the load and were written after the last responses (load.worker).
        complete = min(seconds - 1, (int(batch["done_ns"][0]) - start_ns) // SECOND_NS - _LATE_S)
        settled = second < complete
        yield quantiles.medians_by_second(second[settled], response_ns[settled])
        new, inside = _end_seconds(batch, start_ns, seconds, only_ok=only_ok)
        second = np.concatenate((second[~settled], new[inside]))
        response_ns = np.concatenate((response_ns[~settled], response_times_ns(batch)[inside]))
    yield quantiles.medians_by_second(second, response_ns)
