"""Target `direct-memory`: allocates direct buffers that are garbage at once (jvm/DirectMemory.java).

Its own threads allocate them, or its network threads do. JDK-6857566: direct buffers can be allocated faster than they
are reclaimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ingest_bench import units
from ingest_bench.errors import SpecError
from ingest_bench.model.load import ProtocolOptions
from ingest_bench.targets.base import NodeStart, Requirements, find_requirements, refuse_options
from ingest_bench.targets.builtin import launch
from ingest_bench.targets.settings import Settings, jvm_properties, number_between, one_of, parse_settings

if TYPE_CHECKING:
    from ingest_bench.model.load import Workload
    from ingest_bench.model.target import TargetOptions

# An option of the JVM itself (-XX:MaxDirectMemorySize).
_MAX_SIZE = "max_direct_memory"
SETTINGS: Settings = {
    "mode": ("direct.mode", one_of("alone", "fed")),
    "threads": ("direct.threads", number_between(1, 1024)),
    "retain": ("direct.retain_ns", units.parse_time_ns),
    _MAX_SIZE: (_MAX_SIZE, units.parse_bytes),
}
_DEFAULTS = {"direct.mode": "alone", "direct.threads": 2, "direct.retain_ns": 0}


class DirectMemory(launch.BuiltIn):
    """The target `direct-memory`."""

    name = "direct-memory"
    main, prefix = "DirectMemory", "direct"
    versions: Mapping[str, Requirements] = launch.java_versions(11, 17, 21, 25)

    def requirements(self, options: TargetOptions) -> Requirements:
        """Return what the chosen version needs; SpecError for options that it cannot have."""
        requirements = find_requirements(self, options)
        if parse_settings(self.name, SETTINGS, options).get(_MAX_SIZE) == 0:
            raise SpecError(f"target.setting.{_MAX_SIZE}: for the JVM, 0 means the size of the heap; leave it out")
        sizes = ("receive_predictor_bytes", "socket_receive_buffer_bytes")
        refuse_options(options, sizes, f"{self.name} has no such option")
        refuse_options(options, ("allocator",), f"{self.name} allocates each buffer from the JDK")
        return requirements

    def flags(self, node: NodeStart) -> tuple[str, ...]:
        """Return the options of the JVM that carry its settings."""
        values = parse_settings(self.name, SETTINGS, node.options)
        limit = (f"-XX:MaxDirectMemorySize={values.pop(_MAX_SIZE)}",) if _MAX_SIZE in values else ()
        return (*limit, *jvm_properties(values))

    def wire(self, options: TargetOptions, workload: Workload) -> ProtocolOptions:
        """Return the protocol: documents as lines, to any path."""
        del options, workload
        return ProtocolOptions(
            protocol="json-array", keys={"path": "/", "format": "lines"}, toml_key=f"{self.name}: protocol"
        )

    def expected(self, options: TargetOptions) -> dict[str, Any]:
        """Return the settings that it must report."""
        values = _DEFAULTS | parse_settings(self.name, SETTINGS, options)
        return {name.removeprefix("direct."): values[name] for name in _DEFAULTS}
