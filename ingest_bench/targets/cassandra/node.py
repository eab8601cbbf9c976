"""Target `cassandra`: launch, tables, counts, flushes, and checks of what a node reports and logs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.inputs import files
from ingest_bench.jvm import artifacts, mbeans
from ingest_bench.jvm.attach import AttachedJvm
from ingest_bench.jvm.java import ECJ
from ingest_bench.model.load import AdminRequest, ProtocolOptions, Workload
from ingest_bench.model.results import ColumnValue
from ingest_bench.model.target import LaunchPlan, ListenOptions, Preparation, TargetOptions, ThreadRoles
from ingest_bench.protocols import thrift_wire
from ingest_bench.targets.base import NodeStart, Requirements, Target, plan_java
from ingest_bench.targets.cassandra.versions import CQL, THRIFT, Generation
from ingest_bench.targets.http import Http

KEYSPACE = "ingest_bench"
# To count a hundred million rows.
_COUNT_LIMIT_S = 3600.0
_GENERATIONS = (THRIFT, CQL)

# 0.7: "2026-11-23 02:50:00,123  INFO Memtable Completed flushing /home/data/ks/f-f-1-Data.db (1234 bytes)"
# 5.0: "2026-11-23 02:50:00,123  INFO Flushing Completed flushing /home/data/ks/f-c99f…/nb-1-big-Data.db (1.234KiB) …"
_LINE = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) +[A-Z]+ "
_VERSION = re.compile(_LINE + r"\S+ Cassandra version: (\S+)")
_JAVA = re.compile(_LINE + r"\S+ JVM vendor/version: .*/(\S+)")
_FLUSHED = re.compile(_LINE + r"(?:Memtable|Flushing) Completed flushing (\S+) \(([\d.]+) ?([KMGT]iB|B|bytes)\)")
_FLUSHING = re.compile(_LINE + r"(?:Memtable|Flushing) Writing Memtable-([^@]+)@")
# The second form comes from nodes that start at the same moment (0.7.5).
_UP = re.compile(_LINE + r"Gossiper \S+ /([\d.]+)(?::\d+)? (?:is now UP|has restarted, now UP again)")
_COMPACTING = re.compile(_LINE + r"(?:CompactionManager Compacting|CompactionTask Compacting \(\S+\)) \[")
# The table of a data file, in its own name or in that of its folder.
_TABLE = re.compile(r"/(\w+)-(?:f-\d+-Data|[0-9a-f]{32}/[^/]+)\.db$")
_BYTES = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class LogFacts(NamedTuple):
    """Facts from a log. Times are CLOCK_REALTIME nanoseconds, with a resolution of 1 ms."""

    version: str
    java: str
    flushes: tuple[tuple[int, int], ...]
    """Start of the write of each memtable, and bytes of its file: from 5.0 on, to three decimals of a unit."""
    compactions: tuple[int, ...]
    """Start of each."""
    up: frozenset[str]
    """Addresses of other nodes that it has ever found."""


class Cassandra(Target):
    """The target `cassandra`."""

    name = "cassandra"
    is_persistent = True
    # 0.7: "pool-1-thread-1" serves a Thrift connection. 5.0: workers of a pool store rows. They take the names of their
    # stages, but the flight recorder has the name that they began with.
    thread_roles = ThreadRoles(
        network=("EventLoopGroup-", "pool-1-thread-"),
        indexing=("MutationStage", "SharedPool-Worker-"),
        flush_merge=("Flush", "Compaction"),
    )
    default_version = "0.7.5"
    versions: Mapping[str, Requirements] = {
        # ECJ compiles our agent, which calls MBeans.
        version: Requirements(artifacts=tuple(dict.fromkeys((*jars, ECJ))), java_version=generation.java_version)
        for generation in _GENERATIONS
        for version, jars in generation.versions.items()
    }

    def __init__(self, keyspace: str = KEYSPACE) -> None:
        self.keyspace = keyspace
        """On a server that is not ours, one of this run alone."""

    def requirements(self, options: TargetOptions) -> Requirements:
        """Return what the chosen version needs; SpecError for options that it cannot have."""
        requirements = super().requirements(options)
        self._generation(options).check(options)
        return requirements

    def _generation(self, options: TargetOptions) -> Generation:
        version = self.choose_version(options)
        return next(generation for generation in _GENERATIONS if version in generation.versions)

    def launch_plan(self, node: NodeStart) -> LaunchPlan:
        """Return how to start a node in an empty home, which is made here."""
        generation = self._generation(node.options)
        generation.check(node.options)
        jars = generation.versions[self.choose_version(node.options)]
        classpath = {jar: artifacts.fetch(jar) for jar in jars}
        # Built now, not during a measurement.
        mbeans.build_agent(node.java)
        # Cassandra 5 asks this agent for the size of its memtables.
        agents = (f"-javaagent:{path}" for jar, path in classpath.items() if jar.name == "jamm")
        flags = (*generation.jvm_flags(node), *agents)
        gc, files = generation.default_gc, generation.config_files(node)
        plan = plan_java(node, flags, classpath.values(), generation.main, default_gc=gc, files=files)
        # The times in its log are in the zone of the process.
        return replace(plan, env={"TZ": "UTC"})

    def listens(self, options: TargetOptions) -> ListenOptions:
        """Return its port and the default time limit."""
        return ListenOptions(port=self._generation(options).port)

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Return True if its port, which it opens last, accepts connections and it has found the others."""
        nodes[node].connect()
        found_hosts = _read_log(nodes[node]).up
        for number, other in enumerate(nodes):
            if number != node and other.endpoint.host not in found_hosts:
                raise RunFailed(f"node {node + 1} has not found node {number + 1} ({other.endpoint.host})")
        return True

    def wire(self, options: TargetOptions, workload: Workload) -> ProtocolOptions:
        """Return the protocol of the version, into the one keyspace."""
        return ProtocolOptions(protocol=self._generation(options).protocol, keys={"keyspace": self.keyspace})

    def prepare(self, options: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """Return the request for a keyspace with a table per index; rows have no mapping."""
        tables = [*map(thrift_wire.table_name, indices)]
        body = {"tables": tables, **self._generation(options).table_options(options)}
        request = AdminRequest(method="PUT", path=f"/{self.keyspace}", body=body)
        return Preparation(requests=(request,), indices=tuple(indices))

    def execute(self, http: Http, request: AdminRequest) -> None:
        """Create the keyspace; RunFailed if the node refuses it."""
        keyspace, protocol = request.path.removeprefix("/"), _generation_of(http).protocol
        http.ask_rpc(protocol, "create", keyspace=keyspace, **(request.body or {}))

    def drop(self, http: Http) -> None:
        """Remove the keyspace with its tables, if it exists."""
        http.ask_rpc(CQL.protocol, "drop", keyspace=self.keyspace)

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """Return the number of rows in these tables, read back through the first node."""
        tables = [*map(thrift_wire.table_name, indices)]
        protocol = _generation_of(nodes[0]).protocol
        answer = nodes[0].ask_rpc(protocol, "count", limit_s=_COUNT_LIMIT_S, keyspace=self.keyspace, tables=tables)
        return sum(answer["rows"].values())

    def flush(self, nodes: Sequence[Http], jvms: Sequence[AttachedJvm], indices: Sequence[str]) -> None:
        """Write all tables in memory to files. `nodetool flush` would write one after the other."""
        generation = _generation_of(nodes[0])
        calls = [(self.keyspace, thrift_wire.table_name(index)) for index in indices]
        for jvm in jvms:
            mbeans.invoke(jvm, "org.apache.cassandra.db:type=StorageService", generation.flush, calls)

    def read_counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Return the flushes and compactions of all nodes, from their logs."""
        logs = [*map(_read_log, nodes)]
        flushes = [{"at_ns": at_ns, "bytes": size} for log in logs for at_ns, size in log.flushes]
        compactions = [{"at_ns": at_ns} for log in logs for at_ns in log.compactions]
        return {
            "flushes": {str(number): flush for number, flush in enumerate(flushes)},
            "compactions": {str(number): compaction for number, compaction in enumerate(compactions)},
        }

    def describe(self, http: Http, options: TargetOptions) -> dict[str, ColumnValue]:
        """Return what a node reports about itself; InvalidRun if its version is not the chosen one."""
        answer = http.ask_rpc(self._generation(options).protocol, "describe")
        log = _read_log(http)
        expected = self.choose_version(options)
        # Only newer versions report it to a client as well.
        for source, version in (("its log", log.version), ("the node", answer.get("version", expected))):
            if version != expected:
                raise InvalidRun(f"cassandra: expected version {expected}; {source} reports {version or 'none'}")
        memtables = self._generation(options).table_options(options).get("memtables", {})
        return {"version": expected, "java": log.java, "interface": answer["interface"], **memtables}


def _generation_of(http: Http) -> Generation:
    """Return the generation of a node; any port but that of Thrift is one of a running server that speaks CQL."""
    return THRIFT if http.endpoint.port == THRIFT.port else CQL


def _read_log(http: Http) -> LogFacts:
    if http.log is None:
        return parse_log(())
    try:
        return parse_log(files.read_pieces(http.log))
    except ValueError as error:
        raise RunFailed(f"cassandra: {http.log}: this log is damaged: {error}") from None


def parse_log(lines: Iterable[str]) -> LogFacts:
    """Return the facts in these lines. A flush that has not ended is not counted."""
    version = java = ""
    starts: defaultdict[str, list[int]] = defaultdict(list)
    flushes: list[tuple[int, int]] = []
    compactions = []
    up = set()
    for line in lines:
        if match := _FLUSHING.match(line):
            starts[match[2]].append(_parse_time(match[1]))
        elif match := _FLUSHED.match(line):
            # Memtables of one table are written one after the other.
            table = _TABLE.search(match[2])
            if table is not None and starts[table[1]]:
                flushes.append((starts[table[1]].pop(0), round(float(match[3]) * _BYTES[match[4]])))
        elif match := _COMPACTING.match(line):
            compactions.append(_parse_time(match[1]))
        elif match := _UP.match(line):
            up.add(match[2])
        elif match := _VERSION.match(line):
            version = match[2]
        elif match := _JAVA.match(line):
            java = match[2]
    return LogFacts(version, java, tuple(sorted(flushes)), tuple(compactions), frozenset(up))


def _parse_time(text: str) -> int:
    time = datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC)
    return int(time.timestamp()) * 10**9 + time.microsecond * 1000
