"""Whether the load generator itself was the limit."""

from __future__ import annotations

from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Remark, Value
from ingest_bench.units import format_time

# A worker has one thread: above this share of a core it sends what it can, not what it should.
_BUSY_PPM = 900_000
# Below this no delay of the generator is called a limit, however fast the server: timers and schedulers do that.
_DELAY_NS = 50 * 10**6


def generator_bound(report: WorkerReport, response_ms_p50: Value) -> list[str]:
    """The reason why the generator was the limit; none when it was not.

    Its CPU: a worker that uses its core sends what it can. In an open loop also its own delay, from due to sent while a
    user was free, once that is as long as what is measured.

    A closed loop is not judged by the lateness of its event loop: nothing is due before the answer, and on a machine
    whose cores are shared with the server a loop is late because the server is busy. That is a `remark`.
    """
    if report.cpu_share_ppm >= _BUSY_PPM:
        share = report.cpu_share_ppm / 10**4
        return [f"generator-bound: a load worker used {share:.0f}% of a core; use more --processes or fewer users"]
    if not report.is_open or report.queue_p99_ns <= _worth(response_ms_p50):
        return []
    late = format_time(report.queue_p99_ns)
    return [f"generator-bound: requests left {late} late (p99); give the load a core of its own, or lower the rate"]


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


def values(report: WorkerReport) -> dict[str, Value]:
    """The columns about the generator."""
    return {
        "generator_cpu_percent": report.cpu_share_ppm / 10**4,
        "generator_lag_ms_p99": report.loop_lag_p99_ns / 1e6,
        "send_delay_ms_p99": report.queue_p99_ns / 1e6 if report.is_open else None,
        "tickets_waited": report.tickets_waited if report.is_open else None,
        "tickets_unsent": report.tickets_unsent if report.is_open else None,
        "documents_repeated": report.documents_repeated,
        "documents_resent": report.documents_resent,
    }
