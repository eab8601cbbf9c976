"""OpenSearch and Elasticsearch, as far as they are alike: settings, an index, its documents, what the node says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ingest_bench import urls
from ingest_bench.jvm import artifacts
from ingest_bench.model.target import LaunchPlan
from ingest_bench.targets import index, modules, node_answers, node_options
from ingest_bench.targets.version import Requirements, chosen

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from ingest_bench.jvm.java import Java
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import Endpoint, TargetOptions
    from ingest_bench.model.workload import Workload
    from ingest_bench.targets.http import Http
    from ingest_bench.targets.node_options import Version


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
        return _requirements(version)

    def launch_plan(
        self, asked: TargetOptions, java: Java, home: Path, listen: Endpoint, jvm_options: tuple[str, ...]
    ) -> LaunchPlan:
        """How to start a node with an empty home, which is made here. The archive stays as it is."""
        version = self.version(asked)
        dist = modules.added(artifacts.unpacked(version.archive), version.modules)
        for folder in ("config", "data", "logs", "tmp"):
            (home / folder).mkdir(parents=True, exist_ok=True)
        for name, text in node_options.config_files(self.name, version, asked, java, home, dist, jvm_options).items():
            (home / "config" / name).write_text(text, encoding="utf-8")
        return LaunchPlan(
            argv=node_options.argv(version, asked, java, home, dist, listen, jvm_options),
            env=node_options.env(version, java, home),
            cwd=home,
            writable=(home,),
            pid_is_jvm=version.launcher is None,
        )

    def is_ready(self, http: Http) -> bool:
        """Whether the node has a master, itself, and would take an index; NoAnswer when it does not answer at all."""
        answer = http.request("GET", "/_cluster/health?local=true", timeout_s=10)
        try:
            return answer.status == 200 and answer.json()["status"] in ("green", "yellow")
        except (ValueError, KeyError, TypeError):
            return False

    def index_body(self, asked: TargetOptions, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """The body of an index's creation, with one shard and no replica, unless the mapping says otherwise."""
        return index.body(mapping, self.version(asked))

    def bulk_path(self, asked: TargetOptions, workload: Workload) -> str:
        """Where bulk requests go."""
        kind = (index.TYPE,) if self.version(asked).before_7 else ()
        return urls.path(workload.index, *kind, "_bulk")

    def count_documents(self, http: Http, indices: Sequence[str]) -> int:
        """The documents in all these indices, after a refresh. One that is not there has none."""
        http.expect("POST", f"{urls.path(indices, '_refresh')}?ignore_unavailable=true", timeout_s=300)
        return int(
            http.expect("GET", f"{urls.path(indices, '_count')}?ignore_unavailable=true", timeout_s=300)["count"]
        )

    def counters(self, http: Http) -> dict[str, Any]:
        """Nothing: a node counts no socket reads."""
        del http
        return {}

    def describe(self, http: Http, asked: TargetOptions, log: Path) -> dict[str, Value]:
        """What the node says about itself; InvalidRun when that is not what was asked."""
        (told,) = http.expect("GET", "/_nodes/_local/jvm,settings")["nodes"].values()
        allocator = node_answers.logged_allocator(log.read_text(encoding="utf-8", errors="replace"))
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
