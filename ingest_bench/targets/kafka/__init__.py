"""Apache Kafka: brokers that are their own controllers (KRaft). It speaks its own protocol and no HTTP.

kafka_jars.py    what it is made of         kafka_asker.py   a child that asks it
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import InvalidRun, SpecError
from ingest_bench.jvm import artifacts, options
from ingest_bench.model.load import Wire
from ingest_bench.model.target import LaunchPlan, Listens, Preparation
from ingest_bench.model.track import AdminRequest
from ingest_bench.targets import asking
from ingest_bench.targets.kafka import kafka_jars
from ingest_bench.targets.plain import Plain
from ingest_bench.targets.small import java_properties
from ingest_bench.targets.version import Requirements, needed_by

if TYPE_CHECKING:
    from ingest_bench.jvm.java import Java
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import Endpoint, TargetOptions
    from ingest_bench.model.workload import Workload
    from ingest_bench.targets.http import Http

MAIN = "kafka.Kafka"
_ASKER = Path(__file__).with_name("kafka_asker.py")
_ASKING_S = 60.0
_PORT = 9092
# Settings of a load's producers, and not of the server.
_PRODUCER = "producer."
_OURS = (
    "process.roles",
    "node.id",
    "broker.id",
    "controller.",
    "listener",
    "advertised.",
    "log.dir",
    "metadata.log.dir",
)
# What its own start script gives the JVM (bin/kafka-run-class.sh of 4.1.0).
_G1 = ("-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent")
_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%c{1}] %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


class Kafka(Plain):
    """The server `kafka`."""

    name = "kafka"
    keeps_files = True
    default_version = "4.1.0"
    versions: Mapping[str, Requirements] = kafka_jars.versions()

    def requirements(self, asked: TargetOptions) -> Requirements:
        """What the chosen version needs; SpecError when there is no such version or a choice that it cannot have."""
        needed = needed_by(self, asked)
        for key in _settings(asked):
            if key.startswith(_OURS):
                raise SpecError(
                    f"target.setting.{key}: ingest-bench says where nodes are and what they keep; take it out"
                )
        java_properties.refuse(
            asked, ("receive_predictor_bytes", "allocator"), "kafka has no Netty and no such setting"
        )
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
        """How to start a node in a fresh home, which is made here, its folder of data formatted."""
        classpath = [artifacts.fetch(artifact) for artifact in self.requirements(asked).artifacts]
        for name, text in _files(asked, home, node, nodes).items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        argv = (
            str(java.java),
            *options.heap(asked.heap_bytes),
            *options.collector(options.or_g1(asked.gc), java.version),
            *(_G1 if asked.gc in ("default", "g1") else ()),
            f"-Djava.io.tmpdir={home}",
            f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}",
            *asked.jvm,
            *jvm_options,
            "-cp",
            ":".join(map(str, classpath)),
            MAIN,
            str(home / "server.properties"),
        )
        return LaunchPlan(argv=argv, env={}, cwd=home, writable=(home,))

    def listens(self, asked: TargetOptions) -> Listens:
        """On which port it listens, and how long it may take until it is ready."""
        del asked
        return Listens(port=_PORT)

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Whether that node knows all brokers, itself among them; NoAnswer when it does not answer at all."""
        nodes[node].connect()
        known = answer(nodes[node], ask="describe")["brokers"]
        return set(known) == set(range(1, len(nodes) + 1))

    def wire(self, asked: TargetOptions, workload: Workload) -> Wire:
        """Records for the topic of that name; `producer.` in the settings says how."""
        del workload
        keys = {key.removeprefix(_PRODUCER): text for key, text in asked.setting.items() if key.startswith(_PRODUCER)}
        return Wire(protocol="kafka", keys=keys, written=f"target.setting: {_PRODUCER}*")

    def prepare(self, asked: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """A topic for each index, with a replica on each node; records have no mapping."""
        del asked, mapping
        made = tuple(AdminRequest(method="PUT", path=f"/{name}") for name in indices)
        return Preparation(requests=made, indices=tuple(indices))

    def ask(self, http: Http, request: AdminRequest) -> None:
        """Makes a topic; RunFailed when the brokers refuse."""
        answer(http, ask="create", topic=request.path.removeprefix("/"))

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """The records in these topics, by the first and last offset of each partition."""
        return int(answer(nodes[0], ask="count", topics=list(indices))["records"])

    def describe(self, http: Http, asked: TargetOptions) -> dict[str, Value]:
        """What it says about itself; InvalidRun when that is not what was asked."""
        told = answer(http, ask="describe")
        wanted = {**_settings(asked)}
        wrong = {
            key: told["settings"].get(key) for key, text in wanted.items() if not _is(text, told["settings"].get(key))
        }
        if wrong:
            raise InvalidRun(f"kafka: asked for {wanted}, it says {wrong}")
        version = asked.version or self.default_version
        return {"version": version, "cluster": told["cluster"], "brokers": len(told["brokers"])}


def answer(http: Http, **question: Any) -> dict[str, Any]:
    """The broker's answer to a question of `kafka_asker.py`; RunFailed without one."""
    return asking.answer("kafka", _ASKER, http, _ASKING_S, question)


def _settings(asked: TargetOptions) -> dict[str, str]:
    """The server's own settings."""
    own = {key: text for key, text in asked.setting.items() if not key.startswith(_PRODUCER)}
    if asked.socket_receive_buffer_bytes is not None:
        own.setdefault("socket.receive.buffer.bytes", str(asked.socket_receive_buffer_bytes))
    return own


def _is(wanted: str, told: str | None) -> bool:
    """Whether a broker's word for a setting means what was asked: 1 and 1.0, true and TRUE are alike."""
    return told is not None and wanted.strip().lower() in (told.lower(), re.sub(r"\.0$", "", told))


def _files(asked: TargetOptions, home: Path, node: int, nodes: Sequence[Endpoint]) -> dict[str, str]:
    """The files of a node's home by their names."""
    here, number = nodes[node], node + 1
    voters = ",".join(f"{place + 1}@{each.host}:{each.port + 1}" for place, each in enumerate(nodes))
    properties = {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{here.host}:{here.port},CONTROLLER://{here.host}:{here.port + 1}",
        "advertised.listeners": f"PLAINTEXT://{here.host}:{here.port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(home / "data"),
        # A copy on each node; the topics of its own as well.
        "default.replication.factor": str(len(nodes)),
        "offsets.topic.replication.factor": str(len(nodes)),
        "transaction.state.log.replication.factor": str(len(nodes)),
        "transaction.state.log.min.isr": "1",
        **_settings(asked),
    }
    # What its StorageTool writes when it formats a folder, without a JVM for it.
    formatted = {
        "version": "1",
        "cluster.id": _id("cluster"),
        "node.id": str(number),
        "directory.id": _id(f"node {number}"),
    }
    return {
        "server.properties": _properties(properties),
        "data/meta.properties": _properties(formatted),
        "log4j2.properties": _LOGGING,
    }


def _properties(values: Mapping[str, str]) -> str:
    r"""As java.util.Properties reads it: Latin-1, where a backslash begins an escape and a value with no blank."""
    return "".join(f"{key}={''.join(map(_escaped, text))}\n" for key, text in values.items())


def _escaped(letter: str) -> str:
    if letter.isascii() and letter.isprintable() and letter not in " \\":
        return letter
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _id(what: str) -> str:
    """An id as Kafka writes it: 128 bits in base64."""
    return base64.urlsafe_b64encode(hashlib.sha256(what.encode()).digest()[:16]).decode().rstrip("=")
