"""Target `direct-memory`: allocates direct buffers that are garbage at once (jvm/DirectMemory.java).

Its own threads allocate them, or its network threads do. JDK-6857566: direct buffers can be allocated faster than they
are reclaimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ingest_bench import units
from ingest_bench.errors import SpecError
from ingest_bench.model.load import ProtocolOptions
from ingest_bench.model.target import LaunchPlan
from ingest_bench.targets import counting
from ingest_bench.targets.base import NodeStart, Plain, Requirements, find_requirements, refuse_options
from ingest_bench.targets.builtin import launch
from ingest_bench.targets.settings import Settings, jvm_properties, number_between, one_of, parse_settings

if TYPE_CHECKING:
    from ingest_bench.model.load import Workload
    from ingest_bench.model.results import ColumnValue
    from ingest_bench.model.target import TargetOptions
    from ingest_bench.targets.http import Http

MAIN = "DirectMemory"
# An option of the JVM itself (-XX:MaxDirectMemorySize).
_MAX_SIZE = "max_direct_memory"
SETTINGS: Settings = {
    "mode": ("direct.mode", one_of("alone", "fed")),
    "threads": ("direct.threads", number_between(1, 1024)),
    "retain": ("direct.retain_ns", units.parse_time_ns),
    _MAX_SIZE: (_MAX_SIZE, units.parse_bytes),
}
_DEFAULTS = {"direct.mode": "alone", "direct.threads": "2", "direct.retain_ns": "0"}


class DirectMemory(Plain):
    """The target `direct-memory`. Its version is the Java that it runs on."""

    name = "direct-memory"
    default_version = "java17"
    versions: Mapping[str, Requirements] = launch.java_versions(11, 17, 21, 25)

    def requirements(self, options: TargetOptions) -> Requirements:
        """Return what the chosen version needs; SpecError for options that it cannot have."""
        requirements = find_requirements(self, options)
        if parse_settings(self.name, SETTINGS, options).get(_MAX_SIZE) == "0":
            raise SpecError(f"target.setting.{_MAX_SIZE}: for the JVM, 0 means the size of the heap; leave it out")
        sizes = ("receive_predictor_bytes", "socket_receive_buffer_bytes")
        refuse_options(options, sizes, f"{self.name} has no such option")
        refuse_options(options, ("allocator",), f"{self.name} allocates each buffer from the JDK")
        return requirements

    def launch_plan(self, node: NodeStart) -> LaunchPlan:
        """Return how to start it; its classes are compiled at first use."""
        values = parse_settings(self.name, SETTINGS, node.options)
        limit = (f"-XX:MaxDirectMemorySize={values.pop(_MAX_SIZE)}",) if _MAX_SIZE in values else ()
        address = (f"-Ddirect.host={node.listen.host}", f"-Ddirect.port={node.listen.port}")
        return launch.plan_launch(MAIN, node, (*limit, *jvm_properties(values), *address))

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Return True if the node responds. Nodes do not know each other."""
        return nodes[node].request("HEAD", "/", timeout_s=5).status == 200

    def wire(self, options: TargetOptions, workload: Workload) -> ProtocolOptions:
        """Return the protocol: documents as lines, to any path."""
        del options, workload
        return ProtocolOptions(
            protocol="json-array", keys={"path": "/", "format": "lines"}, toml_key=f"{self.name}: protocol"
        )

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """Return the number of documents that it accepted."""
        del indices
        return counting.count_documents(nodes)

    def read_counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Return its counters since its start: direct_allocations, direct_allocated_bytes and others."""
        return counting.sum_counters(nodes)

    def describe(self, http: Http, options: TargetOptions) -> dict[str, ColumnValue]:
        """Return what it reports about itself; InvalidRun if that is not as chosen."""
        root = http.request_json("GET", "/")
        values = _DEFAULTS | parse_settings(self.name, SETTINGS, options)
        keys = ("mode", "threads", "retain_ns")
        common = launch.check_description(self.name, root, {key: values[f"direct.{key}"] for key in keys}, options)
        return common | {key: root[key] for key in keys}
