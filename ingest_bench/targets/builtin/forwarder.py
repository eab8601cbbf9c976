"""Target `forwarder`: nodes that share documents by a key and forward them to each other (jvm/Forwarder.java).

It does what the peer forwarder of Data Prepper does, with settings of the same names and defaults. The changes of pull
request 6394 are settings of their own: `waiting` and `receive_delay`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.model.load import ProtocolOptions, Workload
from ingest_bench.model.results import ColumnValue
from ingest_bench.model.target import TargetOptions
from ingest_bench.targets.base import NodeStart, Requirements
from ingest_bench.targets.builtin import launch
from ingest_bench.targets.http import Http
from ingest_bench.targets.settings import (
    PEER_FORWARDER_DEFAULTS,
    PEER_FORWARDER_REFUSED,
    matching,
    one_of,
    peer_forwarder_settings,
)

# A node that is still busy so long after its client timeout never becomes idle: half a second for free buffer space,
# and the rest for one round.
_IDLE_GRACE_S = 10.0
_POLL_S = 0.02


class Forwarder(launch.BuiltIn):
    """The target `forwarder`."""

    name = prefix = "forwarder"
    main = "Forwarder"
    versions: Mapping[str, Requirements] = launch.java_versions(11, 17, 21, 25)
    settings: ClassVar = {
        **peer_forwarder_settings(),
        # The field that decides which node owns a document.
        "key": (
            "key",
            matching(r"[A-Za-z_][A-Za-z0-9_]{0,99}", "the name of a field: A-Z, a-z, 0-9 and underscore"),
        ),
        "waiting": ("waiting", one_of("blocking", "asynchronous")),
        "receive_delay": ("receive_delay", one_of("fixed", "adaptive")),
    }
    # The last two: as before that pull request.
    defaults: ClassVar = {
        **PEER_FORWARDER_DEFAULTS,
        "key": "sequence",
        "waiting": "blocking",
        "receive_delay": "fixed",
    }
    refused: ClassVar = {"forwarder has no such option": PEER_FORWARDER_REFUSED}

    def flags(self, node: NodeStart) -> tuple[str, ...]:
        """Return the options of the JVM that carry its properties and its place among the nodes."""
        nodes = ",".join(map(str, node.nodes))
        return (*super().flags(node), f"-Dforwarder.node={node.number}", f"-Dforwarder.nodes={nodes}")

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Return True if the node has a connection to each other one; RunFailed names the missing ones."""
        missing = nodes[node].request_json("GET", "/_peers", timeout_s=5)["missing"]
        if missing:
            raise RunFailed(f"it is not connected to {', '.join(f'node {number}' for number in missing)}")
        return True

    def wire(self, options: TargetOptions, workload: Workload) -> ProtocolOptions:
        """Return the protocol: JSON arrays of numbered documents."""
        keys = {"path": "/records", "sequence": "sequence"}
        return ProtocolOptions(protocol="json-array", keys=keys, toml_key=f"{self.name}: protocol")

    def read_counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Return the nodes' counters since their start, added up, once all nodes are idle.

        Then no buffer is read and no batch is under way: each accepted document is delivered, dropped, or inside.
        """
        _wait_until_idle(nodes)
        return super().read_counters(nodes)

    def read_delivered(self, nodes: Sequence[Http]) -> tuple[bytes, ...]:
        """Return the document numbers of each node, as `analysis.run.delivery` reads them."""
        return tuple(http.request("GET", "/_delivered").body for http in nodes)

    def describe(self, http: Http, options: TargetOptions) -> dict[str, ColumnValue]:
        """Return what it reports about itself; InvalidRun if that is not as chosen."""
        nodes = http.request_json("GET", "/")["nodes"]
        if nodes != options.nodes:
            raise InvalidRun(f"{self.name}: expected {options.nodes} nodes; it reports {nodes}")
        return super().describe(http, options)


def _wait_until_idle(nodes: Sequence[Http]) -> None:
    """Halt all nodes and wait until none is busy; RunFailed after the longest time that this may take."""
    for http in nodes:
        http.request_json("POST", "/_halt", b"")
    limit_s = nodes[0].request_json("GET", "/")["client_timeout_ns"] / 1e9 + _IDLE_GRACE_S
    deadline = time.monotonic() + limit_s
    for http in nodes:
        while any(work := http.request_json("GET", "/_work").values()):
            if time.monotonic() > deadline:
                raise RunFailed(f"{http.origin}: still busy after {limit_s:g} s: {work}")
            time.sleep(_POLL_S)
