"""Target `sink`, the null target: a Netty server that counts what it reads (jvm/NettySink.java)."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ingest_bench import units
from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.inputs import urls
from ingest_bench.model.load import ProtocolOptions
from ingest_bench.model.target import LaunchPlan
from ingest_bench.targets import counting
from ingest_bench.targets.base import NodeStart, Plain, Requirements, find_requirements, pinned_jars
from ingest_bench.targets.builtin import launch
from ingest_bench.targets.elastic import index
from ingest_bench.targets.settings import Settings, jvm_properties, number_between, one_of, parse_settings

if TYPE_CHECKING:
    from ingest_bench.jvm.artifacts import Artifact
    from ingest_bench.model.load import AdminRequest, Operation, Workload
    from ingest_bench.model.results import ColumnValue
    from ingest_bench.model.target import Preparation, TargetOptions
    from ingest_bench.targets.http import Http

MAIN = "NettySink"
# By the machine's name in uname.
EPOLL = dict(zip(("x86_64", "aarch64"), pinned_jars("netty-epoll"), strict=True))
_TIMES = ("delay", "stall", "stall_after", "stall_every", "lock", "lock_after", "lock_every")
_SHARES = ("reject", "close", "broken", "silent", "unavailable", "unheard")
# The times and shares inject faults, for tests of ingest-bench.
SETTINGS: Settings = {
    "sink.buffers": ("sink.buffers", one_of("heap", "direct")),
    "sink.transport": ("sink.transport", one_of("nio", "epoll")),
    "sink.threads": ("sink.threads", number_between(1, 256)),
    "sink.hold": ("sink.hold", one_of("true", "false")),
    "sink.max_content_length": ("sink.max_content_length", units.parse_bytes),
    **{f"sink.{name}": (f"sink.{name}_ns", units.parse_time_ns) for name in _TIMES},
    **{f"sink.{name}": (f"sink.{name}_ppm", units.parse_ppm) for name in _SHARES},
}


class Sink(Plain):
    """The target `sink`. Its version is the Java that it runs on."""

    name = "sink"
    default_version = "java17"
    versions: Mapping[str, Requirements] = launch.java_versions(11, 17, 25)

    def requirements(self, options: TargetOptions) -> Requirements:
        """Return what the chosen version needs; SpecError for options that it cannot have."""
        requirements = find_requirements(self, options)
        sink_properties(options)
        return dataclasses.replace(requirements, artifacts=(*requirements.artifacts, *_native_jars(options)))

    def launch_plan(self, node: NodeStart) -> LaunchPlan:
        """Return how to start it; its classes are compiled at first use."""
        address = (f"-Dsink.host={node.listen.host}", f"-Dsink.port={node.listen.port}")
        properties = (*sink_properties(node.options), *address)
        return launch.plan_launch(MAIN, node, properties, native=_native_jars(node.options))

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Return True if the node responds. Nodes do not know each other."""
        return nodes[node].request("HEAD", "/", timeout_s=5).status == 200

    def wire(self, options: TargetOptions, workload: Workload) -> ProtocolOptions:
        """Return the bulk protocol, with a path for each index."""
        del options
        return ProtocolOptions(keys={"path": urls.join_path(workload.index, "_bulk")})

    def prepare(self, options: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """Return requests that create the indices as they are: it accepts any."""
        del options
        return index.create_indices(indices, mapping)

    def adapt_track_request(self, options: TargetOptions, operation: Operation, request: AdminRequest) -> AdminRequest:
        """Return the request as it is."""
        del options, operation
        return request

    def execute(self, http: Http, request: AdminRequest) -> None:
        """Send the request."""
        http.execute(request)

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """Return the number of acknowledged documents in all indices, each id once."""
        del indices
        return counting.count_documents(nodes)

    def describe(self, http: Http, options: TargetOptions) -> dict[str, ColumnValue]:
        """Return what it reports about itself; InvalidRun if that is not as chosen."""
        root = http.request_json("GET", "/")
        expected = {
            "allocator": _allocator(options),
            "buffers": _buffers(options),
            "transport": options.setting.get("sink.transport", "nio"),
            "receive": _receive_buffer(options),
        }
        return {
            **launch.check_description(self.name, root, expected, options),
            "allocator": root["allocator"],
            "buffers": root["buffers"],
            "transport": root["transport"],
            "receive_predictor": root["receive"],
            "socket_receive_buffer_bytes": root["socket_receive_buffer_bytes"],
        }

    def read_counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Return the nodes' counters since their start, with this request: reads, bytes_read, documents and others."""
        return counting.sum_counters(nodes)


def _allocator(options: TargetOptions) -> str:
    return "unpooled" if options.allocator == "default" else options.allocator


def _receive_buffer(options: TargetOptions) -> str:
    """Return the receive buffer as the sink writes it: "65536", or "4096..524288" for an adaptive one."""
    return "..".join(map(str, options.receive_predictor_bytes or (1 << 16,)))


def _native_jars(options: TargetOptions) -> tuple[Artifact, ...]:
    """Return the library of the chosen transport; MissingCapability on a machine that it is not built for."""
    if options.setting.get("sink.transport") != "epoll":
        return ()
    machine = platform.machine()
    if machine not in EPOLL:
        raise MissingCapability(
            f"sink.transport: Netty has no epoll for {machine}, only for {', '.join(EPOLL)}; use nio"
        )
    return (EPOLL[machine],)


def _buffers(options: TargetOptions) -> str:
    """Return the kind of receive buffers; SpecError if the transport cannot read into them."""
    is_epoll = options.setting.get("sink.transport") == "epoll"
    buffers = options.setting.get("sink.buffers", "direct" if is_epoll else "heap")
    if is_epoll and buffers == "heap":
        raise SpecError("target.setting.sink.buffers: epoll reads into direct buffers only; leave it out, or use nio")
    return buffers


def sink_properties(options: TargetOptions) -> tuple[str, ...]:
    """Return the options of the JVM that carry the sink's settings; SpecError for an unknown setting."""
    properties = {
        "sink.receive": _receive_buffer(options),
        "sink.allocator": _allocator(options),
        "sink.buffers": _buffers(options),
    }
    if options.socket_receive_buffer_bytes is not None:
        properties["sink.rcvbuf"] = str(options.socket_receive_buffer_bytes)
    return jvm_properties(properties | parse_settings("sink", SETTINGS, options))
