"""The null member: a small Netty server that counts what it reads and answers at once (jvm/NettySink.java)."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import units
from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.inputs import urls
from ingest_bench.jvm.artifacts import Artifact
from ingest_bench.model.load import Wire
from ingest_bench.model.target import LaunchPlan
from ingest_bench.targets import requests
from ingest_bench.targets.elastic import index
from ingest_bench.targets.plain import Plain
from ingest_bench.targets.small import counters, java_properties, ours
from ingest_bench.targets.small.java_properties import Settings, one_of, whole_number
from ingest_bench.targets.small.ours import EPOLL
from ingest_bench.targets.version import Requirements, needed_by

if TYPE_CHECKING:
    from ingest_bench.jvm.java import Java
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import Endpoint, Preparation, TargetOptions
    from ingest_bench.model.track import AdminRequest, Operation
    from ingest_bench.model.workload import Workload
    from ingest_bench.targets.http import Http

MAIN = "NettySink"
# Faults are for tests of the tool.
SETTINGS: Settings = {
    "sink.buffers": ("sink.buffers", one_of("heap", "direct")),
    "sink.transport": ("sink.transport", one_of("nio", "epoll")),
    "sink.threads": ("sink.threads", whole_number(1, 256)),
    "sink.hold": ("sink.hold", one_of("true", "false")),
    "sink.max_content_length": ("sink.max_content_length", units.parse_bytes),
    "sink.delay": ("sink.delay_ns", units.parse_time_ns),
    "sink.stall": ("sink.stall_ns", units.parse_time_ns),
    "sink.stall_after": ("sink.stall_after_ns", units.parse_time_ns),
    "sink.stall_every": ("sink.stall_every_ns", units.parse_time_ns),
    "sink.lock": ("sink.lock_ns", units.parse_time_ns),
    "sink.lock_after": ("sink.lock_after_ns", units.parse_time_ns),
    "sink.lock_every": ("sink.lock_every_ns", units.parse_time_ns),
    "sink.reject": ("sink.reject_ppm", units.parse_ppm),
    "sink.close": ("sink.close_ppm", units.parse_ppm),
    "sink.broken": ("sink.broken_ppm", units.parse_ppm),
    "sink.silent": ("sink.silent_ppm", units.parse_ppm),
    "sink.unavailable": ("sink.unavailable_ppm", units.parse_ppm),
    "sink.unheard": ("sink.unheard_ppm", units.parse_ppm),
}


class Sink(Plain):
    """The server `sink`. Its version is the Java that it runs on."""

    name = "sink"
    default_version = "java17"
    versions: Mapping[str, Requirements] = ours.versions(11, 17, 25)

    def requirements(self, asked: TargetOptions) -> Requirements:
        """What the chosen version needs; SpecError when there is no such version or a choice that it cannot have."""
        needed = needed_by(self, asked)
        properties(asked)
        return dataclasses.replace(needed, artifacts=(*needed.artifacts, *native(asked)))

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
        where = (f"-Dsink.host={nodes[node].host}", f"-Dsink.port={nodes[node].port}")
        given = (*properties(asked), *where, *asked.jvm, *jvm_options)
        return ours.launch_plan(MAIN, asked, java, home, given, native=native(asked))

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Whether it takes requests; NoAnswer when it does not answer at all. Sinks know nothing of each other."""
        return nodes[node].request("HEAD", "/", timeout_s=5).status == 200

    def wire(self, asked: TargetOptions, workload: Workload) -> Wire:
        """Bulks, to a path for each index."""
        del asked
        return Wire(keys={"path": urls.path(workload.index, "_bulk")})

    def prepare(self, asked: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """These indices are made, as they are: it takes any."""
        del asked
        return index.creation(indices, mapping)

    def track_request(self, asked: TargetOptions, operation: Operation, request: AdminRequest) -> AdminRequest:
        """The same request."""
        del asked, operation
        return request

    def ask(self, http: Http, request: AdminRequest) -> None:
        """Carries out such a request over HTTP."""
        requests.ask(http, request)

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """The documents that it has, in whatever index: what it acknowledged, each id once."""
        del indices
        return counters.documents(nodes)

    def describe(self, http: Http, asked: TargetOptions) -> dict[str, Value]:
        """What it says about itself; InvalidRun when that is not what was asked."""
        told = http.expect("GET", "/")
        wanted: dict[str, Any] = {
            "allocator": "unpooled" if asked.allocator == "default" else asked.allocator,
            "buffers": buffers(asked),
            "transport": asked.setting.get("sink.transport", "nio"),
            "receive": receive(asked),
        }
        return {
            **ours.described(self.name, told, wanted, asked),
            "allocator": told["allocator"],
            "buffers": told["buffers"],
            "transport": told["transport"],
            "receive_predictor": told["receive"],
            "socket_receive_buffer_bytes": told["socket_receive_buffer_bytes"],
        }

    def counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Their own counts of their whole lives, this question too: reads, bytes_read, documents …."""
        return counters.added_up(nodes)


def receive(asked: TargetOptions) -> str:
    """The receive buffer as the sink writes it: "65536", or "4096..524288" for an adaptive one."""
    return "..".join(map(str, asked.receive_predictor_bytes or (1 << 16,)))


def native(asked: TargetOptions) -> tuple[Artifact, ...]:
    """The library of the transport that was asked for; MissingCapability on a machine that it is not built for."""
    if asked.setting.get("sink.transport") != "epoll":
        return ()
    machine = platform.machine()
    if machine not in EPOLL:
        raise MissingCapability(
            f"sink.transport: Netty has no epoll for {machine}, only for {', '.join(EPOLL)}; use nio"
        )
    return (EPOLL[machine],)


def buffers(asked: TargetOptions) -> str:
    """Where it reads into; SpecError for buffers that the transport cannot read into."""
    is_epoll = asked.setting.get("sink.transport") == "epoll"
    chosen_buffers = asked.setting.get("sink.buffers", "direct" if is_epoll else "heap")
    if is_epoll and chosen_buffers == "heap":
        raise SpecError("target.setting.sink.buffers: epoll reads into direct buffers only; leave it out, or use nio")
    return chosen_buffers


def properties(asked: TargetOptions) -> tuple[str, ...]:
    """The system properties that carry the options; SpecError for a setting that the sink does not know."""
    chosen_properties = {
        "sink.receive": receive(asked),
        "sink.allocator": "unpooled" if asked.allocator == "default" else asked.allocator,
        "sink.buffers": buffers(asked),
    }
    if asked.socket_receive_buffer_bytes is not None:
        chosen_properties["sink.rcvbuf"] = str(asked.socket_receive_buffer_bytes)
    return java_properties.properties(chosen_properties | java_properties.parsed("sink", SETTINGS, asked))
