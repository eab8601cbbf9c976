"""Cassandra: 0.7.4 and 0.7.5, which speak Thrift, and 5.0.9, which speaks CQL. None speaks HTTP.

thrift/   what differs where it speaks Thrift      yaml.py   the settings of each
cql/      and where it speaks CQL                  log.py    what it writes about itself
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ingest_bench import idl
from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.inputs import files
from ingest_bench.jvm import artifacts, mbeans
from ingest_bench.model.load import Wire
from ingest_bench.model.target import LaunchPlan, Listens, Preparation
from ingest_bench.model.track import AdminRequest
from ingest_bench.targets import asking
from ingest_bench.targets.cassandra import log
from ingest_bench.targets.cassandra.cql import Cql
from ingest_bench.targets.cassandra.thrift import Thrift
from ingest_bench.targets.plain import Plain
from ingest_bench.targets.version import Requirements, needed_by

if TYPE_CHECKING:
    from ingest_bench.jvm.artifacts import Artifact
    from ingest_bench.jvm.attach import Attached
    from ingest_bench.jvm.java import Java
    from ingest_bench.jvm.mbeans import Call
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import Endpoint, TargetOptions
    from ingest_bench.model.workload import Workload
    from ingest_bench.targets.http import Http

KEYSPACE = "ingest_bench"
_ASKING_S = 60.0
# Reading back a hundred million rows.
_COUNTING_S = 3600.0


class Generation(Protocol):
    """What differs between versions of Cassandra: one for each protocol that their clients speak."""

    @property
    def protocol(self) -> str:
        """Its key in PROTOCOLS."""

    @property
    def port(self) -> int:
        """Where it is spoken, by custom. No two generations have the same, so that a node is known by it."""

    @property
    def main(self) -> str:
        """The class that is started."""

    @property
    def versions(self) -> Mapping[str, Requirements]:
        """What each version needs."""

    @property
    def agents(self) -> tuple[Artifact, ...]:
        """Those of its jars that are agents of its JVM."""

    @property
    def tools(self) -> tuple[Artifact, ...]:
        """Those that are no part of it."""

    @property
    def asker(self) -> Path:
        """The program that asks a node: to describe itself, to create tables, to count their rows."""

    def check(self, asked: TargetOptions) -> None:
        """SpecError for what these versions have not."""

    def files(self, asked: TargetOptions, home: Path, node: int, nodes: Sequence[Endpoint]) -> dict[str, str]:
        """The configuration of one of these nodes, by the names of files below `home`."""

    def jvm(self, asked: TargetOptions, java: Java, home: Path) -> tuple[str, ...]:
        """The options of its JVM."""

    def tables(self, asked: TargetOptions, names: Sequence[str]) -> dict[str, Any]:
        """What the asker has to know to create them."""

    def flush(self, keyspace: str, table: str) -> Call:
        """The operation that writes a table to files."""

    def described(self, asked: TargetOptions) -> dict[str, Value]:
        """What it was told that differs with what was asked, beside its version."""


_GENERATIONS: Sequence[Generation] = (Thrift(), Cql())


class Cassandra(Plain):
    """The server `cassandra`."""

    name = "cassandra"
    keeps_files = True
    default_version = "0.7.5"
    versions: Mapping[str, Requirements] = {
        version: needed for each in _GENERATIONS for version, needed in each.versions.items()
    }

    def requirements(self, asked: TargetOptions) -> Requirements:
        """What the chosen version needs; SpecError when there is no such version or a choice that it cannot have."""
        needed = needed_by(self, asked)
        self._generation(asked).check(asked)
        return needed

    def _generation(self, asked: TargetOptions) -> Generation:
        version = asked.version or self.default_version
        return next(each for each in _GENERATIONS if version in each.versions)

    def launch_plan(
        self,
        asked: TargetOptions,
        java: Java,
        home: Path,
        node: int,
        nodes: Sequence[Endpoint],
        jvm_options: tuple[str, ...],
    ) -> LaunchPlan:
        """How to start a node in a fresh home, which is made here."""
        it = self._generation(asked)
        jars = {jar: artifacts.fetch(jar) for jar in self.requirements(asked).artifacts if jar not in it.tools}
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        for name, text in it.files(asked, home, node, nodes).items():
            (home / name).write_text(text, encoding="utf-8")
        # Made now, and not in the middle of a measurement.
        mbeans.agent(java)
        argv = (
            str(java.java),
            *it.jvm(asked, java, home),
            *(f"-javaagent:{jars[agent]}" for agent in it.agents),
            *asked.jvm,
            *jvm_options,
            "-cp",
            ":".join(map(str, jars.values())),
            it.main,
        )
        # The log's times are in the zone of the process.
        return LaunchPlan(argv=argv, env={"TZ": "UTC"}, cwd=home, writable=(home,))

    def listens(self, asked: TargetOptions) -> Listens:
        """On which port it listens, and how long it may take until it is ready."""
        return Listens(port=self._generation(asked).port)

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Whether its port takes a connection, which it opens last, and it has found the others."""
        nodes[node].connect()
        found = _log(nodes[node]).up
        for place, other in enumerate(nodes):
            if place != node and other.endpoint.host not in found:
                raise RunFailed(f"node {node + 1} has not found node {place + 1} ({other.endpoint.host})")
        return True

    def wire(self, asked: TargetOptions, workload: Workload) -> Wire:
        """The protocol of the version, into its one keyspace."""
        del workload
        return Wire(protocol=self._generation(asked).protocol, keys={"keyspace": KEYSPACE})

    def prepare(self, asked: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """A keyspace with a table for each index; rows have no mapping."""
        del mapping
        body = self._generation(asked).tables(asked, [*map(idl.column_family, indices)])
        made = AdminRequest(method="PUT", path=f"/{KEYSPACE}", body=body)
        return Preparation(requests=(made,), indices=tuple(indices))

    def ask(self, http: Http, request: AdminRequest) -> None:
        """Makes the keyspace; RunFailed when the node refuses."""
        answer(http, _ASKING_S, ask="create", keyspace=request.path.removeprefix("/"), **(request.body or {}))

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """The rows in all these tables, read back one by one over the first node."""
        tables = [*map(idl.column_family, indices)]
        found = answer(nodes[0], _COUNTING_S, ask="count", keyspace=KEYSPACE, tables=tables)
        return sum(found["rows"].values())

    def flush(self, nodes: Sequence[Http], jvms: Sequence[Attached], indices: Sequence[str]) -> None:
        """What all tables have in memory is in files. `nodetool flush` would take one after the other."""
        flushes = [_generation_of(nodes[0]).flush(KEYSPACE, idl.column_family(index)) for index in indices]
        for jvm in jvms:
            mbeans.call(jvm, flushes)

    def counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """The flushes and compactions of all nodes, as their logs tell them."""
        found = [*map(_log, nodes)]
        flushes = [{"at_ns": at, "bytes": size} for one in found for at, size in one.flushes]
        compactions = [{"at_ns": at} for one in found for at in one.compactions]
        return {
            "flushes": {str(number): one for number, one in enumerate(flushes)},
            "compactions": {str(number): one for number, one in enumerate(compactions)},
        }

    def describe(self, http: Http, asked: TargetOptions) -> dict[str, Value]:
        """What it says about itself; InvalidRun when that is not what was asked."""
        told = answer(http, _ASKING_S, ask="describe")
        found = _log(http)
        wanted = asked.version or self.default_version
        # Only the newer ones say it to a client as well.
        for where, version in (("its log", found.version), ("it", told.get("version", wanted))):
            if version != wanted:
                raise InvalidRun(f"cassandra: asked for version {wanted}, {where} says {version or 'none'}")
        common = {"version": wanted, "java": found.java, "interface": told["interface"]}
        return common | self._generation(asked).described(asked)


def answer(http: Http, limit_s: float, **question: Any) -> dict[str, Any]:
    """The node's answer to a question of its generation's asker; RunFailed without one."""
    return asking.answer("cassandra", _generation_of(http).asker, http, limit_s, question)


def _generation_of(http: Http) -> Generation:
    return next(each for each in _GENERATIONS if each.port == http.endpoint.port)


def _log(http: Http) -> log.LogFacts:
    if http.log is None:
        return log.parse(())
    try:
        return log.parse(files.pieces(http.log))
    except ValueError as error:
        raise RunFailed(f"cassandra: {http.log}: this log is damaged: {error}") from None
