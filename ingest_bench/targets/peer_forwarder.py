"""The settings that Data Prepper has for its peer forwarder, its pipeline and its buffer, with its defaults.

`data-prepper` is told them, and `forwarder` has the same ones. Names and defaults are those of Data Prepper 2.15 to
2.17 (PeerForwarderConfiguration, BlockingBufferConfig, PipelineModel).
"""

from __future__ import annotations

from collections.abc import Callable

from ingest_bench.targets.small.java_properties import Settings, whole_number

_HOUR_NS = 3600 * 10**9
_MS_NS = 10**6
_MOST = 10**6
DEFAULTS = {
    "batch_size": 48,
    "batch_delay_ns": 3_000_000_000,
    "buffer_size": 512,
    "forwarding_batch_size": 1500,
    "forwarding_batch_timeout_ns": 3_000_000_000,
    "client_thread_count": 200,
    "client_timeout_ns": 60_000_000_000,
    "request_timeout_ns": 10_000_000_000,
    "workers": 1,
    "source_buffer_size": 12_800,
    "source_batch_size": 200,
}


def settings(
    time: Callable[[int, int], Callable[[str], int]], *, least_request_timeout_ns: int = _MS_NS, prefix: str = ""
) -> Settings:
    """Each of them. `time` reads a time between two limits in nanoseconds; properties have the names of DEFAULTS."""
    return {
        "batch_size": (f"{prefix}batch_size", whole_number(1, _MOST)),
        "batch_delay": (f"{prefix}batch_delay_ns", time(0, _HOUR_NS)),
        "buffer_size": (f"{prefix}buffer_size", whole_number(1, _MOST)),
        # PeerForwarderConfiguration.MAX_FORWARDING_BATCH_SIZE.
        "forwarding_batch_size": (f"{prefix}forwarding_batch_size", whole_number(1, 15_000)),
        "forwarding_batch_timeout": (f"{prefix}forwarding_batch_timeout_ns", time(0, _HOUR_NS)),
        "client_thread_count": (f"{prefix}client_thread_count", whole_number(1, 10_000)),
        "client_timeout": (f"{prefix}client_timeout_ns", time(_MS_NS, _HOUR_NS)),
        "request_timeout": (f"{prefix}request_timeout_ns", time(least_request_timeout_ns, _HOUR_NS)),
        "workers": (f"{prefix}workers", whole_number(1, 1024)),
        "bounded_blocking.buffer_size": (f"{prefix}source_buffer_size", whole_number(1, _MOST)),
        "bounded_blocking.batch_size": (f"{prefix}source_batch_size", whole_number(1, _MOST)),
    }
