"""The server `forwarder`: nodes that share documents by a key and forward them to each other (jvm/Forwarder.java).

It does what the peer forwarder of Data Prepper does, with settings of the same names and defaults. What pull request
6394 changed there are settings of its own: `waiting` and `receive_delay`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import RunFailed
from ingest_bench.model.load import Wire
from ingest_bench.model.target import LaunchPlan
from ingest_bench.targets import peer_forwarder
from ingest_bench.targets.plain import Plain
from ingest_bench.targets.small import counters, java_properties, ours
from ingest_bench.targets.small.java_properties import Settings, name_of_field, one_of, time_between
from ingest_bench.targets.version import Requirements, needed_by

if TYPE_CHECKING:
    from ingest_bench.jvm.java import Java
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import Endpoint, TargetOptions
    from ingest_bench.model.workload import Workload
    from ingest_bench.targets.http import Http

MAIN = "Forwarder"
# What pull request 6394 changed has settings of its own, and so has the field that says whose a document is.
SETTINGS: Settings = {
    **peer_forwarder.settings(time_between, prefix="forwarder."),
    "key": ("forwarder.key", name_of_field),
    "waiting": ("forwarder.waiting", one_of("blocking", "asynchronous")),
    "receive_delay": ("forwarder.receive_delay", one_of("fixed", "adaptive")),
}
# The last two: what was there before that pull request.
_DEFAULTS = {**peer_forwarder.DEFAULTS, "key": "sequence", "waiting": "blocking", "receive_delay": "fixed"}
_NO_CHOICE = ("receive_predictor_bytes", "allocator", "socket_receive_buffer_bytes", "replicas")
# Beyond this it has not come to rest: half a second for room, and the rest of a round.
_LATE_S = 10.0
_LOOK_S = 0.02


class Forwarder(Plain):
    """The server `forwarder`. Its version is the Java that it runs on."""

    name = "forwarder"
    default_version = "java17"
    versions: Mapping[str, Requirements] = ours.versions(11, 17, 21, 25)

    def requirements(self, asked: TargetOptions) -> Requirements:
        """What the chosen version needs; SpecError when there is no such version or a choice that it cannot have."""
        needed = needed_by(self, asked)
        java_properties.parsed(self.name, SETTINGS, asked)
        java_properties.refuse(asked, _NO_CHOICE, f"{self.name} has no such choice")
        return needed

    def launch_plan(
        self,
        asked: TargetOptions,
        java: Java,
        home: Path,
        node: int,
        nodes: Sequence[Endpoint],
        jvm_options: tuple[str, ...],
    ) -> LaunchPlan:
        """How to start a node; its classes are compiled when they are not in the cache."""
        given = (
            *java_properties.properties(java_properties.parsed(self.name, SETTINGS, asked)),
            f"-Dforwarder.host={nodes[node].host}",
            f"-Dforwarder.port={nodes[node].port}",
            f"-Dforwarder.node={node}",
            f"-Dforwarder.nodes={','.join(map(str, nodes))}",
            *asked.jvm,
            *jvm_options,
        )
        return ours.launch_plan(MAIN, asked, java, home, given)

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Whether that node has a connection to each other one; RunFailed names who is missing."""
        missing = nodes[node].expect("GET", "/_peers", timeout_s=5)["missing"]
        if missing:
            raise RunFailed(f"it has not found {', '.join(f'node {number}' for number in missing)}")
        return True

    def wire(self, asked: TargetOptions, workload: Workload) -> Wire:
        """JSON arrays, each document with a number of its own."""
        del asked, workload
        keys = {"path": "/records", "sequence": "sequence"}
        return Wire(protocol="json-array", keys=keys, written=f"{self.name}: protocol")

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """The documents that its nodes accepted."""
        del indices
        return counters.documents(nodes)

    def counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Their own counts of their whole lives, added up, once all of them have come to rest.

        Nobody takes anything out of a buffer then, and no batch is under way: what was accepted is delivered, dropped,
        or inside.
        """
        at_rest(nodes)
        return counters.added_up(nodes)

    def read_back(self, nodes: Sequence[Http]) -> tuple[bytes, ...]:
        """What each node says of the numbers of its documents, as `analysis.run.delivery` reads it."""
        return tuple(http.request("GET", "/_delivered").body for http in nodes)

    def describe(self, http: Http, asked: TargetOptions) -> dict[str, Value]:
        """What it says about itself; InvalidRun when that is not what was asked."""
        told = http.expect("GET", "/")
        given = java_properties.parsed(self.name, SETTINGS, asked)
        wanted = {name: given.get(f"forwarder.{name}", str(usual)) for name, usual in _DEFAULTS.items()}
        wanted["nodes"] = str(asked.nodes)
        return {
            **ours.described(self.name, told, wanted, asked),
            **{name: told[name] for name in _DEFAULTS},
        }


def at_rest(nodes: Sequence[Http]) -> None:
    """Nothing moves in any node any more; RunFailed names what still does after the longest time that it may take."""
    for http in nodes:
        http.expect("POST", "/_halt", b"")
    limit_s = nodes[0].expect("GET", "/")["client_timeout_ns"] / 1e9 + _LATE_S
    deadline = time.monotonic() + limit_s
    for http in nodes:
        while any(under_way := http.expect("GET", "/_work").values()):
            if time.monotonic() > deadline:
                raise RunFailed(f"{http.origin}: after {limit_s:g} s it still works: {under_way}")
            time.sleep(_LOOK_S)
