"""The server `direct-memory`: direct buffers that are garbage at once (jvm/DirectMemory.java).

Its own threads make them, or what the network brings does. JDK-6857566 is about such buffers: they can be made faster
than they are reclaimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import units
from ingest_bench.errors import SpecError
from ingest_bench.model.load import Wire
from ingest_bench.model.target import LaunchPlan
from ingest_bench.targets.plain import Plain
from ingest_bench.targets.small import counters, java_properties, ours
from ingest_bench.targets.small.java_properties import Settings, one_of, whole_number
from ingest_bench.targets.version import Requirements, needed_by

if TYPE_CHECKING:
    from ingest_bench.jvm.java import Java
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import Endpoint, TargetOptions
    from ingest_bench.model.workload import Workload
    from ingest_bench.targets.http import Http

MAIN = "DirectMemory"
_MAX = "max_direct_memory"
SETTINGS: Settings = {
    "mode": ("direct.mode", one_of("alone", "fed")),
    "threads": ("direct.threads", whole_number(1, 1024)),
    "retain": ("direct.retain_ns", units.parse_time_ns),
    # An option of the JVM itself (-XX:MaxDirectMemorySize), which its users know by this name.
    _MAX: (_MAX, units.parse_bytes),
}
_DEFAULTS = {"direct.mode": "alone", "direct.threads": "2", "direct.retain_ns": "0"}


class DirectMemory(Plain):
    """The server `direct-memory`. Its version is the Java that it runs on."""

    name = "direct-memory"
    default_version = "java17"
    versions: Mapping[str, Requirements] = ours.versions(11, 17, 21, 25)

    def requirements(self, asked: TargetOptions) -> Requirements:
        """What the chosen version needs; SpecError when there is no such version or a choice that it cannot have."""
        needed = needed_by(self, asked)
        values = java_properties.parsed(self.name, SETTINGS, asked)
        if values.get(_MAX) == "0":
            raise SpecError(f"target.setting.{_MAX}: to the JVM 0 means as much as the heap; leave it out for that")
        java_properties.refuse(
            asked, ("receive_predictor_bytes", "socket_receive_buffer_bytes"), f"{self.name} has no such choice"
        )
        java_properties.refuse(asked, ("allocator",), f"{self.name} asks the JDK for each buffer")
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
        """How to start it; its classes are compiled when they are not in the cache."""
        values = java_properties.parsed(self.name, SETTINGS, asked)
        limit = (f"-XX:MaxDirectMemorySize={values.pop(_MAX)}",) if _MAX in values else ()
        where = (f"-Ddirect.host={nodes[node].host}", f"-Ddirect.port={nodes[node].port}")
        given = (*limit, *java_properties.properties(values), *where, *asked.jvm, *jvm_options)
        return ours.launch_plan(MAIN, asked, java, home, given)

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Whether it takes requests; NoAnswer when it does not answer at all. They know nothing of each other."""
        return nodes[node].request("HEAD", "/", timeout_s=5).status == 200

    def wire(self, asked: TargetOptions, workload: Workload) -> Wire:
        """Documents in lines, to any path."""
        del asked, workload
        return Wire(protocol="json-array", keys={"path": "/", "format": "lines"}, written=f"{self.name}: protocol")

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """The documents that it took."""
        del indices
        return counters.documents(nodes)

    def counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Their own counts of their whole lives, once nobody allocates any more: direct_allocations, …_bytes, …_ns."""
        return counters.added_up(nodes)

    def describe(self, http: Http, asked: TargetOptions) -> dict[str, Value]:
        """What it says about itself; InvalidRun when that is not what was asked."""
        told = http.expect("GET", "/")
        given = _DEFAULTS | java_properties.parsed(self.name, SETTINGS, asked)
        wanted = {key: given[f"direct.{key}"] for key in ("mode", "threads", "retain_ns")}
        return {
            **ours.described(self.name, told, wanted, asked),
            "mode": told["mode"],
            "threads": told["threads"],
            "retain_ns": told["retain_ns"],
        }
