"""Whether the load generator itself was the limit."""

from __future__ import annotations

from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Value
from ingest_bench.units import format_time

# A worker has one thread: above this share of a core it sends what it can, not what it should.
_BUSY_PPM = 900_000
# Below this no delay of the generator is called a limit, however fast the server: timers and schedulers do that.
_DELAY_NS = 50 * 10**6


def generator_bound(report: WorkerReport, response_ms_p50: Value) -> list[str]:
    """The reason why the generator was the limit; none when it was not.

    Its delay is the time from due to sent (open loop) or the lateness of its event loop (closed loop, where nothing is
    due before the answer). It matters once it is as long as what is measured.
    """
    if report.cpu_share_ppm >= _BUSY_PPM:
        share = report.cpu_share_ppm / 10**4
        return [f"generator-bound: a load worker used {share:.0f}% of a core; use more --processes or fewer users"]
    delay_ns = report.queue_p99_ns if report.is_open else report.loop_lag_p99_ns
    response_ns = response_ms_p50 * 1e6 if isinstance(response_ms_p50, (int, float)) else 0
    if delay_ns <= max(_DELAY_NS, response_ns):
        return []
    what = "requests left" if report.is_open else "the event loop came around"
    remedy = "give the load generator a core of its own, or lower the rate"
    return [f"generator-bound: {what} {format_time(delay_ns)} late (p99); {remedy}"]


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
