"""Target `kafka`: Apache Kafka brokers that are their own controllers (KRaft)."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ingest_bench.errors import InvalidRun, SpecError
from ingest_bench.jvm import artifacts
from ingest_bench.model.load import AdminRequest, ProtocolOptions, Workload
from ingest_bench.model.results import ColumnValue
from ingest_bench.model.target import LaunchPlan, ListenOptions, Preparation, TargetOptions, ThreadRoles
from ingest_bench.targets.base import NodeStart, Requirements, Target, format_log4j2, pinned_jars, plan_java
from ingest_bench.targets.http import Http

_PORT = 9092
# Settings of the load's producers, not of the server.
_PRODUCER = "producer."
_RESERVED_SETTINGS = (
    "process.roles",
    "node.id",
    "broker.id",
    "controller.",
    "listener",
    "advertised.",
    "log.dir",
    "metadata.log.dir",
)
# JVM options of its own start script (bin/kafka-run-class.sh of 4.1.0).
_G1 = ("-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent")


class Kafka(Target):
    """The target `kafka`."""

    name = "kafka"
    is_persistent = True
    thread_roles = ThreadRoles(
        network=("-kafka-network-thread-",),
        indexing=("-kafka-request-handler-",),
        flush_merge=("kafka-log-cleaner-thread-", "kafka-scheduler-"),
    )
    default_version = "4.4.0"
    versions: Mapping[str, Requirements] = {
        "4.4.0": Requirements(artifacts=pinned_jars("kafka-4.4.0"), java_version=17)
    }

    refused: ClassVar = {"kafka has no Netty and no such setting": ("receive_predictor_bytes", "allocator")}

    def read_properties(self, options: TargetOptions) -> dict[str, str]:
        """Return the brokers' properties; SpecError for one that is not the user's to choose."""
        properties = {key: text for key, text in options.setting.items() if not key.startswith(_PRODUCER)}
        for key in properties:
            if key.startswith(_RESERVED_SETTINGS):
                raise SpecError(f"target.setting.{key}: set by ingest-bench; remove it")
        if options.socket_receive_buffer_bytes is not None:
            properties.setdefault("socket.receive.buffer.bytes", str(options.socket_receive_buffer_bytes))
        return properties

    def launch_plan(self, node: NodeStart) -> LaunchPlan:
        """Return how to start a node in an empty home, which is made here, its data folder formatted."""
        classpath = [artifacts.fetch(artifact) for artifact in self.requirements(node.options).artifacts]
        flags = (
            *(_G1 if node.options.gc in ("default", "g1") else ()),
            f"-Dlog4j2.configurationFile={node.home / 'log4j2.properties'}",
        )
        files = _config_files(node, self.read_properties(node.options))
        return plan_java(node, flags, classpath, "kafka.Kafka", str(node.home / "server.properties"), files=files)

    def listens(self, options: TargetOptions) -> ListenOptions:
        """Return its port and the default time limit."""
        return ListenOptions(port=_PORT)

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Return True if the node knows all brokers, itself included; NoResponse if it does not respond."""
        nodes[node].connect()
        brokers = nodes[node].ask_rpc("kafka", "describe")["brokers"]
        return set(brokers) == set(range(1, len(nodes) + 1))

    def wire(self, options: TargetOptions, workload: Workload) -> ProtocolOptions:
        """Return the protocol: records for the index's topic, with the `producer.` settings."""
        keys = {key.removeprefix(_PRODUCER): text for key, text in options.setting.items() if key.startswith(_PRODUCER)}
        return ProtocolOptions(protocol="kafka", keys=keys, toml_key=f"target.setting: {_PRODUCER}*")

    def prepare(self, options: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """Return requests for a topic per index, with a replica on each node; records have no mapping."""
        requests = tuple(AdminRequest(method="PUT", path=f"/{name}") for name in indices)
        return Preparation(requests=requests, indices=tuple(indices))

    def execute(self, http: Http, request: AdminRequest) -> None:
        """Create a topic; RunFailed if the brokers refuse it."""
        http.ask_rpc("kafka", "create", topic=request.path.removeprefix("/"))

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """Return the number of records in these topics, by the first and last offset of each partition."""
        return int(nodes[0].ask_rpc("kafka", "count", topics=list(indices))["records"])

    def describe(self, http: Http, options: TargetOptions) -> dict[str, ColumnValue]:
        """Return what a broker reports about itself; InvalidRun if that is not as chosen."""
        reported = http.ask_rpc("kafka", "describe")
        expected = self.read_properties(options)
        actual = {key: reported["settings"].get(key) for key in expected}
        wrong = {key: text for key, text in actual.items() if text is None or not _is_equal(expected[key], text)}
        if wrong:
            raise InvalidRun(f"kafka: expected {expected}; it reports {wrong}")
        brokers = len(reported["brokers"])
        return {"version": self.choose_version(options), "cluster": reported["cluster"], "brokers": brokers}


def _is_equal(expected: str, actual: str) -> bool:
    """Return True if a broker's text for a setting means the same: 1 and 1.0, true and TRUE."""
    return expected.strip().lower() in (actual.lower(), re.sub(r"\.0$", "", actual))


def _config_files(node: NodeStart, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a node's home by their names, with the properties that the user chose."""
    listen, number = node.listen, node.number + 1
    voters = ",".join(f"{index + 1}@{other.host}:{other.port + 1}" for index, other in enumerate(node.nodes))
    properties = {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{listen.host}:{listen.port},CONTROLLER://{listen.host}:{listen.port + 1}",
        "advertised.listeners": f"PLAINTEXT://{listen.host}:{listen.port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(node.home / "data"),
        # A copy on each node, also of Kafka's own topics.
        "default.replication.factor": str(len(node.nodes)),
        "offsets.topic.replication.factor": str(len(node.nodes)),
        "transaction.state.log.replication.factor": str(len(node.nodes)),
        "transaction.state.log.min.isr": "1",
        **chosen,
    }
    # What its StorageTool writes to format a folder, without starting a JVM for it.
    metadata = {
        "version": "1",
        "cluster.id": _make_id("cluster"),
        "node.id": str(number),
        "directory.id": _make_id(f"node {number}"),
    }
    return {
        "server.properties": _format_properties(properties),
        "data/meta.properties": _format_properties(metadata),
        "log4j2.properties": format_log4j2("warn", "[%c{1}] "),
    }


def _format_properties(values: Mapping[str, str]) -> str:
    r"""Return a file for java.util.Properties: Latin-1, with \uXXXX escapes for blanks and backslashes in values."""
    return "".join(f"{key}={''.join(map(_escape, text))}\n" for key, text in values.items())


def _escape(letter: str) -> str:
    if letter.isascii() and letter.isprintable() and letter not in " \\":
        return letter
    utf16 = letter.encode("utf-16-be")
    return "".join(f"\\u{utf16[at : at + 2].hex()}" for at in range(0, len(utf16), 2))


def _make_id(name: str) -> str:
    """Return an id in Kafka's format: 128 bits in base64."""
    return base64.urlsafe_b64encode(hashlib.sha256(name.encode()).digest()[:16]).decode().rstrip("=")
