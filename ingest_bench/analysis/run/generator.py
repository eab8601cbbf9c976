"""Limits of the load generator: its CPU, its own delays, and what a closed loop hides."""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ingest_bench.analysis.run.sample_columns import (
    Samples,
    SampleSource,
    Window,
    is_in_flight,
    iterate_batches,
    sum_over,
)
from ingest_bench.model.results import ColumnValue, nearest_rank
from ingest_bench.model.samples import WorkerReport, service_times_ns
from ingest_bench.units import format_time

# A worker has one thread: above this share of a core it sends what it can, not what is scheduled.
_BUSY_SHARE = 0.9
# A partial second at the edge of the measurement counts as a second if this much of it is inside.
_MIN_SECOND_NS = 5 * 10**8
# Timers and schedulers cause delays up to this value; they are never called a limit, however fast the server is.
_DELAY_NS = 50 * 10**6
# A response that takes more than this many medians is slow.
_SLOW = 10
# Below this share of the measurement, idle users are not worth reporting.
_MIN_IDLE_SHARE = 0.02
# From this many requests per second, a suggested rate has no fraction; a lower rate has three digits, rounded down.
_WHOLE_RATE = 10
_ROUND_DOWN = decimal.Context(prec=3, rounding=decimal.ROUND_FLOOR)


@dataclass(frozen=True, slots=True)
class WorkerCpu:
    """CPU use of the busiest load workers within the measurement, as shares of a core."""

    mean: float
    worst_second: float


def busiest_worker(marks: Sequence[Samples], window: Window) -> WorkerCpu | None:
    """Return the maxima over the worker processes (`CPU_MARK`); None without marks within the window.

    A worker's idle warm-up must not compensate for a busy measurement.
    """
    workers = [cpu for process in marks if (cpu := _cpu_within(process, window)) is not None]
    if not workers:
        return None
    return WorkerCpu(max(cpu.mean for cpu in workers), max(cpu.worst_second for cpu in workers))


def _cpu_within(marks: Samples, window: Window) -> WorkerCpu | None:
    at_ns, used_ns = marks["at_ns"], (marks["user_ns"] + marks["system_ns"]).astype(float)
    inside_ns = np.minimum(at_ns[1:], window.end_ns) - np.maximum(at_ns[:-1], window.start_ns)
    length_ns = inside_ns[inside_ns > 0].sum()
    if not length_ns:
        return None
    # CPU use is assumed constant between two marks.
    shares = np.diff(used_ns) / np.maximum(np.diff(at_ns), 1)
    mean = float((shares * np.maximum(inside_ns, 0)).sum() / length_ns)
    seconds = shares[inside_ns >= _MIN_SECOND_NS]
    return WorkerCpu(mean, float(seconds.max()) if len(seconds) else mean)


def describe_generator_limit(report: WorkerReport, busy: WorkerCpu | None, response_ms_p50: ColumnValue) -> str:
    """Describe why the generator was the limit; "" if it was not.

    Limits are its CPU in its worst second, and in an open loop its own delay (from due until sent by a free user) once
    it reaches the measured response times.

    A closed loop is not judged by the lateness of its event loop: nothing is due before the response. On a machine
    shared with the server the event loop is late because the server is busy. That is a note (`describe_loop_lag`).
    """
    if busy is not None and busy.worst_second >= _BUSY_SHARE:
        used = f"{busy.worst_second:.0%} of a core in its worst second ({busy.mean:.0%} of the measurement)"
        return f"generator-bound: a load worker used {used}; use more processes (--set processes=2) or fewer users"
    if not report.is_open_loop or report.send_delay_p99_ns <= _relevant_delay_ns(response_ms_p50):
        return ""
    late = format_time(report.send_delay_p99_ns)
    return f"generator-bound: requests left {late} late (p99); give the load a core of its own, or lower the rate"


def describe_loop_lag(report: WorkerReport, response_ms_p50: ColumnValue) -> str:
    """Describe a late event loop of a closed loop; "" if it was not late. The run stays valid."""
    if report.is_open_loop or report.loop_lag_p99_ns <= _relevant_delay_ns(response_ms_p50):
        return ""
    late = format_time(report.loop_lag_p99_ns)
    return f"late event loop: the load's ran {late} late (p99), longer than a typical response: the CPU was shared"


def _relevant_delay_ns(response_ms_p50: ColumnValue) -> float:
    """Return the delay above which the measurement is affected."""
    return max(_DELAY_NS, response_ms_p50 * 1e6 if isinstance(response_ms_p50, (int, float)) else 0)


def _p99_ms(time_ns: int, count: int | None) -> float | None:
    """Return the time in ms; None for too few samples for a 99th percentile."""
    return None if count is not None and nearest_rank(99, count) is None else time_ns / 1e6


def generator_columns(report: WorkerReport, busy: WorkerCpu | None) -> dict[str, ColumnValue]:
    """Return the columns about the generator."""
    open_loop: dict[str, ColumnValue] = {
        "send_delay_ms_p99": _p99_ms(report.send_delay_p99_ns, report.send_delay_samples),
        "send_delay_samples": report.send_delay_samples,
        "arrivals_waited": report.arrivals_waited,
        "arrivals_unsent": report.arrivals_unsent,
    }
    return {
        "generator_cpu_percent": busy.mean * 100 if busy else None,
        "generator_cpu_percent_max": busy.worst_second * 100 if busy else None,
        "generator_lag_ms_p99": _p99_ms(report.loop_lag_p99_ns, report.loop_lag_samples),
        "generator_lag_samples": report.loop_lag_samples,
        **(open_loop if report.is_open_loop else dict.fromkeys(open_loop)),
        "documents_repeated": report.documents_repeated,
        "documents_resent": report.documents_resent,
    }


def window_columns(samples: SampleSource, report: WorkerReport) -> dict[str, ColumnValue]:
    """Return the columns about flow control of HTTP/2, from start to end; none for other protocols."""
    if not report.stream_window_bytes:
        return {}
    stalls, stalled_ns, requests_ns = (
        report.window_stalls,
        report.window_stalled_ns,
        sum_over(samples, service_times_ns),
    )
    return {
        "window_stalls": stalls,
        "window_stalled_ms_mean": stalled_ns / stalls / 1e6 if stalls else None,
        "window_stalled_percent": stalled_ns / requests_ns * 100 if requests_ns else None,
        "server_stream_window_bytes": report.stream_window_bytes,
    }


# A closed loop hides requests: a user that waits for a slow response sends nothing meanwhile. If one of four users
# waits 3.4 s, one request of thousands is slow, and the requests that would have been sent are in no percentile (Gil
# Tene's "coordinated omission").


def closed_loop_columns(
    samples: SampleSource, window: Window, report: WorkerReport, median_ms: ColumnValue
) -> dict[str, ColumnValue]:
    """Return the mean idle time of users during slow responses; None for an open loop or an unknown median."""
    if report.is_open_loop or not isinstance(median_ms, (int, float)):
        return {"idle_while_waiting_s": None}
    waited_ns, users = 0, set[int]()
    for batch in iterate_batches(samples):
        sent = batch[is_in_flight(batch, window) & (batch["user"] >= 0)]
        users.update(sent["user"].tolist())
        slow = sent[service_times_ns(sent) > _SLOW * median_ms * 1e6]
        ends, begins = slow["done_ns"].clip(max=window.end_ns), slow["sent_ns"].clip(min=window.start_ns)
        waited_ns += int((ends - begins).clip(min=0).sum())
    return {"idle_while_waiting_s": waited_ns / 1e9 / len(users) if users else None}


def describe_hidden_waiting(values: Mapping[str, ColumnValue], length_s: float) -> str:
    """Describe the hidden waiting, with the open loop that would show it; "" if it is not worth reporting."""
    idle_s, requests = values.get("idle_while_waiting_s"), values.get("requests_answered")
    if not length_s or not isinstance(idle_s, (int, float)) or not isinstance(requests, int):
        return ""
    if idle_s <= _MIN_IDLE_SHARE * length_s:
        return ""
    return (
        f"closed loop: each user sent nothing for {idle_s:.1f} of {length_s:.1f} s on average, because a response took "
        f"more than {_SLOW} times the median. No percentile includes the requests that were not sent; an open loop "
        f"counts them: --set arrivals={_open_loop_rate(requests / length_s)}, or less if the users kept the server busy"
    )


def _open_loop_rate(per_s: float) -> str:
    """Return a rate of responses as `arrivals`, rounded down.

    Above the rate of its responses, a server that was always busy never catches up.
    """
    if per_s >= _WHOLE_RATE:
        return f"{int(per_s)}/s"
    number, unit = (per_s, "s") if per_s >= 1 / 60 else (per_s * 3600, "h")
    return f"{_ROUND_DOWN.create_decimal(repr(number)).normalize():f}/{unit}"
