"""Target `direct-memory`: allocates direct buffers that are garbage at once (jvm/DirectMemory.java).

Its own threads allocate them, or its network threads do. JDK-6857566: direct buffers can be allocated faster than they
are reclaimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ingest_bench import units
from ingest_bench.model.load import ProtocolOptions, Workload
from ingest_bench.model.target import TargetOptions
from ingest_bench.targets.base import NodeStart, Requirements
from ingest_bench.targets.builtin import launch
from ingest_bench.targets.settings import number_between, one_of

# An option of the JVM itself (-XX:MaxDirectMemorySize).
_MAX_SIZE = "max_direct_memory"


def _parse_max_size(text: str) -> int:
    size_bytes = units.parse_bytes(text)
    if not size_bytes:
        raise ValueError("for the JVM, 0 means the size of the heap; leave it out")
    return size_bytes


class DirectMemory(launch.BuiltIn):
    """The target `direct-memory`."""

    name = "direct-memory"
    main, prefix = "DirectMemory", "direct"
    versions: Mapping[str, Requirements] = launch.java_versions(11, 17, 21, 25)
    settings: ClassVar = {
        "mode": ("mode", one_of("alone", "fed")),
        "threads": ("threads", number_between(1, 1024)),
        "retain": ("retain_ns", units.parse_time_ns),
        _MAX_SIZE: (_MAX_SIZE, _parse_max_size),
    }
    defaults: ClassVar = {"mode": "alone", "threads": 2, "retain_ns": 0}
    refused: ClassVar = {
        "direct-memory has no such option": ("receive_predictor_bytes", "socket_receive_buffer_bytes"),
        "direct-memory allocates each buffer from the JDK": ("allocator",),
    }

    def flags(self, node: NodeStart) -> tuple[str, ...]:
        """Return the options of the JVM that carry its properties."""
        limit = f"-D{self.prefix}.{_MAX_SIZE}="
        return tuple(flag.replace(limit, "-XX:MaxDirectMemorySize=") for flag in super().flags(node))

    def wire(self, options: TargetOptions, workload: Workload) -> ProtocolOptions:
        """Return the protocol: documents as lines, to any path."""
        return ProtocolOptions(
            protocol="json-array", keys={"path": "/", "format": "lines"}, toml_key=f"{self.name}: protocol"
        )
