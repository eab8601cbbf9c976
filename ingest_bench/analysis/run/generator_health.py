"""Whether the load generator itself was the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ingest_bench.analysis.run.sample_columns import Samples, Window
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Reason, Remark, Value
from ingest_bench.nearest_rank import rank
from ingest_bench.units import format_time

# A worker has one thread: above this share of a core it sends what it can, not what it should.
_BUSY_SHARE = 0.9
# What lies in the measurement of a second counts as one if it is so much.
_MOST_OF_A_SECOND_NS = 5 * 10**8
# Below this no delay of the generator is called a limit, however fast the server: timers and schedulers do that.
_DELAY_NS = 50 * 10**6


@dataclass(frozen=True, slots=True)
class Cpu:
    """What the busiest load workers used within the measurement, as shares of a core."""

    mean: float
    worst_second: float


def busiest(marks: Sequence[Samples], window: Window) -> Cpu | None:
    """The CPU of each process (`CPU_MARK`), looked at within the window alone; None when nobody marked it there.

    A warm-up in which a worker had little to do does not make up for a measurement in which it had too much.
    """
    found = [cpu for one in marks if (cpu := _within(one, window)) is not None]
    if not found:
        return None
    return Cpu(max(cpu.mean for cpu in found), max(cpu.worst_second for cpu in found))


def _within(marks: Samples, window: Window) -> Cpu | None:
    at_ns, used_ns = marks["at_ns"], (marks["user_ns"] + marks["system_ns"]).astype(float)
    inside_ns = np.minimum(at_ns[1:], window.end_ns) - np.maximum(at_ns[:-1], window.start_ns)
    length_ns = inside_ns[inside_ns > 0].sum()
    if not length_ns:
        return None
    # Within a second it is taken to be even.
    shares = np.diff(used_ns) / np.maximum(np.diff(at_ns), 1)
    mean = float((shares * np.maximum(inside_ns, 0)).sum() / length_ns)
    seconds = shares[inside_ns >= _MOST_OF_A_SECOND_NS]
    return Cpu(mean, float(seconds.max()) if len(seconds) else mean)


def generator_bound(report: WorkerReport, busy: Cpu | None, response_ms_p50: Value) -> list[Reason]:
    """The reason why the generator was the limit; none when it was not.

    Its CPU in its worst second: a worker that uses its core sends what it can. In an open loop also its own delay, from
    due to sent while a user was free, once that is as long as what is measured.

    A closed loop is not judged by the lateness of its event loop: nothing is due before the answer, and on a machine
    whose cores are shared with the server a loop is late because the server is busy. That is a `remark`.
    """
    if busy is not None and busy.worst_second >= _BUSY_SHARE:
        used = f"{busy.worst_second:.0%} of a core in its worst second ({busy.mean:.0%} of the measurement)"
        text = f"generator-bound: a load worker used {used}; use more processes (--set processes=2) or fewer users"
        return [Reason("generator", text)]
    if not report.is_open or report.queue_p99_ns <= _worth(response_ms_p50):
        return []
    late = format_time(report.queue_p99_ns)
    text = f"generator-bound: requests left {late} late (p99); give the load a core of its own, or lower the rate"
    return [Reason("generator", text)]


def remarks(report: WorkerReport, response_ms_p50: Value) -> list[Remark]:
    """What a reader should know of the generator although the run is valid."""
    if report.is_open or report.loop_lag_p99_ns <= _worth(response_ms_p50):
        return []
    late = format_time(report.loop_lag_p99_ns)
    text = f"the load's event loop came around {late} late (p99), longer than a typical response: the CPU was shared"
    return [Remark(probe="load", text=text)]


def _worth(response_ms_p50: Value) -> float:
    """A delay above this many nanoseconds changes what is measured."""
    return max(_DELAY_NS, response_ms_p50 * 1e6 if isinstance(response_ms_p50, (int, float)) else 0)


def _p99_ms(time_ns: int, count: int | None) -> float | None:
    """None where there were too few for a 99th percentile."""
    return None if count is not None and rank(99, count) is None else time_ns / 1e6


def values(report: WorkerReport, busy: Cpu | None) -> dict[str, Value]:
    """The columns about the generator."""
    return {
        "generator_cpu_percent": busy.mean * 100 if busy else None,
        "generator_cpu_percent_max": busy.worst_second * 100 if busy else None,
        "generator_lag_ms_p99": _p99_ms(report.loop_lag_p99_ns, report.loop_lags),
        "generator_lags": report.loop_lags,
        "send_delay_ms_p99": _p99_ms(report.queue_p99_ns, report.queue_delays) if report.is_open else None,
        "send_delays": report.queue_delays if report.is_open else None,
        "tickets_waited": report.tickets_waited if report.is_open else None,
        "tickets_unsent": report.tickets_unsent if report.is_open else None,
        "documents_repeated": report.documents_repeated,
        "documents_resent": report.documents_resent,
    }
