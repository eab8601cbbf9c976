"""The link between load and server: made, put into the state of a profile, and proven by measurement.

`commands` and `netem` turn a profile into argv (pure); `link` acts, in namespaces of `sandbox`
that die with us, and `links` makes all those of a run; `box` is netem in the middle of the path, this kernel's or
User-Mode Linux's. `check` measures what was promised (`expected`, `lanes`) with one `meter` at each end; `wire` and
`readings` tell of the load's time, and `faults` are what may happen in it.
"""

from ingest_bench.network.capabilities import capabilities
from ingest_bench.network.check import check
from ingest_bench.network.faults import fault
from ingest_bench.network.link import Link, link
from ingest_bench.network.links import Links, links, require
from ingest_bench.network.places import DIRECTIONS, Direction
from ingest_bench.network.readings import readings, start
from ingest_bench.network.waits import waited
from ingest_bench.network.wire import FILE as WIRE
from ingest_bench.network.wire import frame_sizes, seen, watch_wire

__all__ = [
    "DIRECTIONS",
    "WIRE",
    "Direction",
    "Link",
    "Links",
    "capabilities",
    "check",
    "fault",
    "frame_sizes",
    "link",
    "links",
    "readings",
    "require",
    "seen",
    "start",
    "waited",
    "watch_wire",
]
