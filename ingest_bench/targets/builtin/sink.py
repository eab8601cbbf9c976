"""Target `sink`, the null target: a Netty server that counts what it reads (jvm/NettySink.java)."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ingest_bench import units
from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.inputs import urls
from ingest_bench.jvm.artifacts import Artifact
from ingest_bench.model.load import AdminRequest, Operation, ProtocolOptions, Workload
from ingest_bench.model.results import ColumnValue
from ingest_bench.model.target import Preparation, TargetOptions
from ingest_bench.targets.base import Requirements, pinned_jars
from ingest_bench.targets.builtin import launch
from ingest_bench.targets.elastic import index
from ingest_bench.targets.http import Http
from ingest_bench.targets.settings import number_between, one_of

# By the machine's name in uname.
EPOLL = dict(zip(("x86_64", "aarch64"), pinned_jars("netty-epoll"), strict=True))
# The times and shares inject faults, for tests of ingest-bench.
_TIMES = ("delay", "stall", "stall_after", "stall_every", "lock", "lock_after", "lock_every")
_SHARES = ("reject", "close", "broken", "silent", "unavailable", "unheard")


class Sink(launch.BuiltIn):
    """The target `sink`."""

    name = prefix = "sink"
    main = "NettySink"
    reported = ("socket_receive_buffer_bytes",)
    versions: Mapping[str, Requirements] = launch.java_versions(11, 17, 25)
    settings: ClassVar = {
        "sink.buffers": ("buffers", one_of("heap", "direct")),
        "sink.transport": ("transport", one_of("nio", "epoll")),
        "sink.threads": ("threads", number_between(1, 256)),
        "sink.hold": ("hold", one_of("true", "false")),
        "sink.max_content_length": ("max_content_length", units.parse_bytes),
        **{f"sink.{name}": (f"{name}_ns", units.parse_time_ns) for name in _TIMES},
        **{f"sink.{name}": (f"{name}_ppm", units.parse_ppm) for name in _SHARES},
    }
    defaults: ClassVar = {"allocator": "unpooled", "buffers": "heap", "transport": "nio", "receive": 1 << 16}

    def requirements(self, options: TargetOptions) -> Requirements:
        """Return what the chosen version needs; SpecError for options that it cannot have."""
        requirements = super().requirements(options)
        return dataclasses.replace(requirements, artifacts=(*requirements.artifacts, *self.native_jars(options)))

    def read_properties(self, options: TargetOptions) -> dict[str, Any]:
        """Return its properties; SpecError for an unknown setting, or one that contradicts others."""
        properties = super().read_properties(options)
        if properties.get("transport") == "epoll" and properties.setdefault("buffers", "direct") == "heap":
            raise SpecError(
                "target.setting.sink.buffers: epoll reads into direct buffers only; leave it out, or use nio"
            )
        if options.receive_predictor_bytes:
            # One fixed size, or "4096..524288" for an adaptive buffer.
            properties["receive"] = "..".join(map(str, options.receive_predictor_bytes))
        if options.allocator != "default":
            properties["allocator"] = options.allocator
        if options.socket_receive_buffer_bytes is not None:
            properties["rcvbuf"] = options.socket_receive_buffer_bytes
        return properties

    def native_jars(self, options: TargetOptions) -> tuple[Artifact, ...]:
        """Return the library of the chosen transport; MissingCapability on a machine that it is not built for."""
        if options.setting.get("sink.transport") != "epoll":
            return ()
        machine = platform.machine()
        if machine not in EPOLL:
            raise MissingCapability(
                f"sink.transport: Netty has no epoll for {machine}, only for {', '.join(EPOLL)}; use nio"
            )
        return (EPOLL[machine],)

    def wire(self, options: TargetOptions, workload: Workload) -> ProtocolOptions:
        """Return the bulk protocol, with a path for each index."""
        return ProtocolOptions(keys={"path": urls.join_path(workload.index, "_bulk")})

    def prepare(self, options: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """Return requests that create the indices as they are: it accepts any."""
        return index.create_indices(indices, mapping)

    def adapt_track_request(self, options: TargetOptions, operation: Operation, request: AdminRequest) -> AdminRequest:
        """Return the request as it is."""
        return request

    def describe(self, http: Http, options: TargetOptions) -> dict[str, ColumnValue]:
        """Return what it reports about itself; InvalidRun if that is not as chosen."""
        description = super().describe(http, options)
        description["receive_predictor"] = description.pop("receive")
        return description
