"""The link between load and server: made, put into the state of a profile, and proven by measurement.

`commands` and `netem` turn a profile into argv (pure); `link` acts, in namespaces of `sandbox`
that die with us; `box` is netem in the middle of the path, this kernel's or User-Mode Linux's. `check` measures what
was promised (`expected`, `lanes`) with one `meter` at each end; `wire` and `readings` tell of the load's time,
and `faults` are what may happen in it.
"""

from ingest_bench.network.capabilities import capabilities
from ingest_bench.network.check import check
from ingest_bench.network.faults import fault
from ingest_bench.network.link import Link, link, require
from ingest_bench.network.readings import readings
from ingest_bench.network.wire import FILE as WIRE
from ingest_bench.network.wire import frame_sizes, watch_wire

__all__ = [
    "WIRE",
    "Link",
    "capabilities",
    "check",
    "fault",
    "frame_sizes",
    "link",
    "readings",
    "require",
    "watch_wire",
]
