"""The link between load and server: made, put into the state of a profile, and proven by measurement.

`plan` turns a profile into what is done to a link or an interface (pure). `act` does it: in namespaces of a `sandbox`
that die with us, with a `box` in the middle where netem is needed, or on a real `interface` with a ledger. `measure`
proves that it happened (`check`) and tells what crossed the link while the load ran (`readings`). `capabilities` says
what this machine can emulate.

Each name is imported once it is asked for: the children that measure have this package too, and need none of it.
"""

from typing import TYPE_CHECKING

from ingest_bench.front_page import deferred

if TYPE_CHECKING:
    from ingest_bench.network.act.link import Link, link
    from ingest_bench.network.act.links import Links, backend, links, require
    from ingest_bench.network.link_capabilities import capabilities
    from ingest_bench.network.measure.check import check, is_cut, state
    from ingest_bench.network.measure.readings import readings, start
    from ingest_bench.network.measure.waits import LOST, held_back, losses, waited
    from ingest_bench.network.measure.wire import WIRE, frame_sizes, seen, watch_wire
    from ingest_bench.network.plan.places import DIRECTIONS, Direction

__all__ = [
    "DIRECTIONS",
    "LOST",
    "WIRE",
    "Direction",
    "Link",
    "Links",
    "backend",
    "capabilities",
    "check",
    "frame_sizes",
    "held_back",
    "is_cut",
    "link",
    "links",
    "losses",
    "readings",
    "require",
    "seen",
    "start",
    "state",
    "waited",
    "watch_wire",
]
__getattr__ = deferred(
    __name__,
    __all__,
    "act.link",
    "act.links",
    "link_capabilities",
    "measure.check",
    "measure.readings",
    "measure.waits",
    "measure.wire",
    "plan.places",
)
