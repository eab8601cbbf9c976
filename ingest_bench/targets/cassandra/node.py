"""Target `cassandra`: launch, tables, counts, flushes, and checks of what a node reports and logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.inputs import files
from ingest_bench.jvm import artifacts, mbeans
from ingest_bench.jvm.java import ECJ
from ingest_bench.model.load import AdminRequest, ProtocolOptions
from ingest_bench.model.target import LaunchPlan, ListenOptions, Preparation, ThreadRoles
from ingest_bench.protocols import thrift_wire
from ingest_bench.targets.base import NodeStart, Requirements, Target, build_java_argv, find_requirements
from ingest_bench.targets.cassandra.log import LogFacts, parse_log
from ingest_bench.targets.cassandra.versions import Cql, Generation, Thrift

if TYPE_CHECKING:
    from ingest_bench.jvm.attach import AttachedJvm
    from ingest_bench.model.load import Workload
    from ingest_bench.model.results import ColumnValue
    from ingest_bench.model.target import TargetOptions
    from ingest_bench.targets.http import Http

KEYSPACE = "ingest_bench"
# To count a hundred million rows.
_COUNT_LIMIT_S = 3600.0


_GENERATIONS: Sequence[Generation] = (Thrift(), Cql())


class Cassandra(Target):
    """The target `cassandra`."""

    name = "cassandra"
    is_persistent = True
    # 0.7: "pool-1-thread-1" serves a Thrift connection. 5.0: workers take turns in the stages that store rows.
    thread_roles = ThreadRoles(
        network=("EventLoopGroup-", "pool-1-thread-"),
        indexing=("MutationStage", "Native-Transport-Requests"),
        flush_merge=("Flush", "Compaction"),
    )
    default_version = "0.7.5"
    versions: Mapping[str, Requirements] = {
        # ECJ compiles our agent, which calls MBeans.
        version: Requirements(artifacts=tuple(dict.fromkeys((*jars, ECJ))), java_version=generation.java_version)
        for generation in _GENERATIONS
        for version, jars in generation.versions.items()
    }

    def requirements(self, options: TargetOptions) -> Requirements:
        """Return what the chosen version needs; SpecError for options that it cannot have."""
        requirements = find_requirements(self, options)
        self._generation(options).check(options)
        return requirements

    def _generation(self, options: TargetOptions) -> Generation:
        version = options.version or self.default_version
        return next(generation for generation in _GENERATIONS if version in generation.versions)

    def launch_plan(self, node: NodeStart) -> LaunchPlan:
        """Return how to start a node in an empty home, which is made here."""
        generation = self._generation(node.options)
        self.requirements(node.options)
        jars = generation.versions[node.options.version or self.default_version]
        classpath = {jar: artifacts.fetch(jar) for jar in jars}
        node.home.mkdir(parents=True, exist_ok=True)
        for name, text in generation.config_files(node).items():
            (node.home / name).write_text(text, encoding="utf-8")
        # Built now, not during a measurement.
        mbeans.build_agent(node.java)
        # Cassandra 5 asks this agent for the size of its memtables.
        agents = (f"-javaagent:{path}" for jar, path in classpath.items() if jar.name == "jamm")
        flags = (*generation.jvm_flags(node), *agents)
        argv = build_java_argv(node, flags, classpath.values(), generation.main, default_gc=generation.default_gc)
        # The times in its log are in the zone of the process.
        return LaunchPlan(argv=argv, env={"TZ": "UTC"}, cwd=node.home, writable=(node.home,))

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
        del workload
        return ProtocolOptions(protocol=self._generation(options).protocol, keys={"keyspace": KEYSPACE})

    def prepare(self, options: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """Return the request for a keyspace with a table per index; rows have no mapping."""
        del mapping
        tables = [*map(thrift_wire.table_name, indices)]
        body = {"tables": tables, **self._generation(options).table_options(options)}
        request = AdminRequest(method="PUT", path=f"/{KEYSPACE}", body=body)
        return Preparation(requests=(request,), indices=tuple(indices))

    def execute(self, http: Http, request: AdminRequest) -> None:
        """Create the keyspace; RunFailed if the node refuses it."""
        keyspace, protocol = request.path.removeprefix("/"), _generation_of(http).protocol
        http.ask_rpc(protocol, "create", keyspace=keyspace, **(request.body or {}))

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """Return the number of rows in these tables, read back through the first node."""
        tables = [*map(thrift_wire.table_name, indices)]
        protocol = _generation_of(nodes[0]).protocol
        answer = nodes[0].ask_rpc(protocol, "count", limit_s=_COUNT_LIMIT_S, keyspace=KEYSPACE, tables=tables)
        return sum(answer["rows"].values())

    def flush(self, nodes: Sequence[Http], jvms: Sequence[AttachedJvm], indices: Sequence[str]) -> None:
        """Write all tables in memory to files. `nodetool flush` would write one after the other."""
        generation = _generation_of(nodes[0])
        calls = [(KEYSPACE, thrift_wire.table_name(index)) for index in indices]
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
        expected = options.version or self.default_version
        # Only newer versions report it to a client as well.
        for source, version in (("its log", log.version), ("the node", answer.get("version", expected))):
            if version != expected:
                raise InvalidRun(f"cassandra: expected version {expected}; {source} reports {version or 'none'}")
        memtables = self._generation(options).table_options(options).get("memtables", {})
        return {"version": expected, "java": log.java, "interface": answer["interface"], **memtables}


def _generation_of(http: Http) -> Generation:
    return next(generation for generation in _GENERATIONS if generation.port == http.endpoint.port)


def _read_log(http: Http) -> LogFacts:
    if http.log is None:
        return parse_log(())
    try:
        return parse_log(files.read_pieces(http.log))
    except ValueError as error:
        raise RunFailed(f"cassandra: {http.log}: this log is damaged: {error}") from None
