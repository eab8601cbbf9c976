"""OpenSearch and Elasticsearch, as far as they are alike: settings, an index, its documents, what the node says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import RunFailed
from ingest_bench.inputs import urls
from ingest_bench.jvm import artifacts
from ingest_bench.model.load import Wire
from ingest_bench.model.target import LaunchPlan, Listens
from ingest_bench.targets import counting, requests
from ingest_bench.targets.elastic import index, modules, node_answers, node_options
from ingest_bench.targets.small import java_properties
from ingest_bench.targets.version import Requirements, chosen
from ingest_bench.units import quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from ingest_bench.jvm.attach import Attached
    from ingest_bench.jvm.java import Java
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import Endpoint, Preparation, TargetOptions
    from ingest_bench.model.track import AdminRequest, Operation
    from ingest_bench.model.workload import Workload
    from ingest_bench.targets.elastic.node_options import Version
    from ingest_bench.targets.http import Http


# The module of a whole distribution that has what ours may lack.
_MODULES = {"english": "analysis-common", "scaled_float": "mapper-extras", "percolator": "percolator"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A server of this kind, in several versions."""

    name: str
    default_version: str
    table: Mapping[str, Version]

    @property
    def versions(self) -> Mapping[str, Requirements]:
        """What each version needs."""
        return {name: _requirements(version) for name, version in self.table.items()}

    def version(self, asked: TargetOptions) -> Version:
        """The chosen line of the table."""
        return self.table[chosen(self.name, self.versions, asked.version, self.default_version)]

    @property
    def keeps_files(self) -> bool:
        """Its indices are files, and its translog is written before it answers."""
        return True

    def with_modules(self, version: str, there: Collection[str]) -> Node:
        """The same node, whose mappings are left alone as far as the module that they need is there."""
        line = self.table[version]
        replaced = {old: new for old, new in line.replaced.items() if _MODULES.get(old) not in there}
        return replace(self, table={**self.table, version: replace(line, replaced=replaced)})

    def replacements(self, asked: TargetOptions) -> str:
        """What a mapping gets in the place of something else."""
        return ", ".join(f"{old} by {new or 'nothing'}" for old, new in self.version(asked).replaced.items())

    def requirements(self, asked: TargetOptions) -> Requirements:
        """What the chosen version needs; SpecError for a choice that it cannot have."""
        version = self.version(asked)
        node_options.settings(version, asked)
        node_options.gc_flags(version, asked, version.java_version)
        java_properties.copies(asked)
        return _requirements(version)

    def launch_plan(
        self,
        asked: TargetOptions,
        java: Java,
        home: Path,
        node: int,
        nodes: Sequence[Endpoint],
        jvm_options: tuple[str, ...],
    ) -> LaunchPlan:
        """How to start a node with an empty home, which is made here. The archive stays as it is."""
        version = self.version(asked)
        dist = modules.added(artifacts.unpacked(version.archive), version.modules)
        for folder in ("config", "data", "logs", "tmp"):
            (home / folder).mkdir(parents=True, exist_ok=True)
        for name, text in node_options.config_files(self.name, version, asked, java, home, dist, jvm_options).items():
            (home / "config" / name).write_text(text, encoding="utf-8")
        return LaunchPlan(
            argv=node_options.argv(version, asked, java, home, dist, node, nodes, jvm_options),
            env=node_options.env(version, java, home),
            cwd=home,
            writable=(home,),
            pid_is_jvm=version.launcher is None,
        )

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Whether the node is in a cluster of all that would take an index; RunFailed says which node it misses.

        NoAnswer when it does not answer at all.
        """
        answer = nodes[node].request("GET", "/_cluster/health?local=true", timeout_s=10)
        try:
            is_formed = answer.status == 200 and answer.json()["status"] in ("green", "yellow")
        except (ValueError, KeyError, TypeError):
            return False
        if missing := node_answers.missing(nodes[node], node, len(nodes)):
            raise RunFailed(f"it has not found {', '.join(missing)} of its cluster")
        return is_formed

    def index_body(
        self, asked: TargetOptions, mapping: Mapping[str, Any], *, whatever_it_says: bool = False
    ) -> dict[str, Any]:
        """The body of an index's creation: one shard with a copy on each node, unless target or mapping say else."""
        replicas = java_properties.copies(asked) - 1
        forced = whatever_it_says or asked.replicas is not None
        return index.body(mapping, self.version(asked), replicas=replicas, whatever_it_says=forced)

    def listens(self, asked: TargetOptions) -> Listens:
        """On which port it listens, and how long it may take until it is ready."""
        del asked
        return Listens()

    def wire(self, asked: TargetOptions, workload: Workload) -> Wire:
        """Bulks, to the index's own path."""
        kind = (index.TYPE,) if self.version(asked).before_7 else ()
        return Wire(keys={"path": urls.path(workload.index, *kind, "_bulk")})

    def prepare(self, asked: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """These indices are made; of several nodes the first one has the first copy."""
        # A workload is published for one node: it has no copies.
        made = index.creation(indices, self.index_body(asked, mapping, whatever_it_says=asked.nodes > 1))
        if asked.nodes == 1:
            return made
        names = [node_options.name(number) for number in range(asked.nodes)]
        return index.found_again(index.copied(made, names[0]), names, java_properties.copies(asked) - 1)

    def track_request(self, asked: TargetOptions, operation: Operation, request: AdminRequest) -> AdminRequest:
        """The same request; an index is made as this version understands it."""
        if operation != "create-index":
            return request
        return replace(request, body=self.index_body(asked, request.body or {}))

    def ask(self, http: Http, request: AdminRequest) -> None:
        """Carries out such a request over HTTP."""
        requests.ask(http, request)

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """The documents in all these indices, after a refresh, as any node knows. One that is not there has none."""
        if not indices:
            return 0
        http = nodes[0]
        http.expect("POST", f"{urls.path(indices, '_refresh')}?ignore_unavailable=true", timeout_s=300)
        path = f"{urls.path(indices, '_count')}?ignore_unavailable=true"
        answer = http.expect("GET", path, timeout_s=300)
        try:
            return counting.whole(answer["count"], "count")
        except (KeyError, TypeError, ValueError):
            raise RunFailed(f"server: GET {http.origin}{path} tells no number of documents: {quoted(answer)}") from None

    def flush(self, nodes: Sequence[Http], jvms: Sequence[Attached], indices: Sequence[str]) -> None:
        """What the indices have in memory is in segments, and their translogs are empty."""
        del jvms
        nodes[0].expect("POST", urls.path(indices, "_flush"), timeout_s=300)

    def jvm_stats(self, http: Http) -> Any:
        """What all nodes say of their JVMs; None where nobody says it."""
        answer = http.request("GET", "/_nodes/stats/jvm", timeout_s=10)
        return answer.json() if answer.status == 200 else None

    def counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """Nothing: a node counts no socket reads."""
        del nodes
        return {}

    def read_back(self, nodes: Sequence[Http]) -> None:
        """Nothing by numbers of ours: its documents have none."""
        del nodes

    def describe(self, http: Http, asked: TargetOptions) -> dict[str, Value]:
        """What the node says about itself; InvalidRun when that is not what was asked."""
        (told,) = http.expect("GET", "/_nodes/_local/jvm,settings")["nodes"].values()
        log = "" if http.log is None else http.log.read_text(encoding="utf-8", errors="replace")
        allocator = node_answers.logged_allocator(log)
        version = self.version(asked)
        node_answers.check(version, asked, told, allocator)
        return {
            "version": told["version"],
            "java": told["jvm"]["version"],
            "collectors": ", ".join(told["jvm"]["gc_collectors"]),
            "heap_bytes": told["jvm"]["mem"]["heap_max_in_bytes"],
            "allocator": allocator,
            "replaced": self.replacements(asked),
            "receive_predictor": node_answers.told_receive_predictor(told["settings"]),
        }


def _requirements(version: Version) -> Requirements:
    jars = (module.jar for module in version.modules)
    return Requirements(
        artifacts=(version.archive, *jars), java_version=version.java_version, full_jdk=version.full_jdk
    )
