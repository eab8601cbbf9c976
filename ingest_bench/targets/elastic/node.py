"""Targets `opensearch` and `elasticsearch`: launch, indices, counts, and checks of what a node reports."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.inputs import urls
from ingest_bench.jvm import artifacts, cache
from ingest_bench.jvm.attach import AttachedJvm
from ingest_bench.jvm.options import is_requested_heap, uses_collector
from ingest_bench.model.load import GRPC, AdminRequest, Operation, ProtocolOptions, Workload
from ingest_bench.model.results import ColumnValue
from ingest_bench.model.target import LaunchPlan, Preparation, ServerAddress, TargetOptions, ThreadRoles
from ingest_bench.targets.base import NodeStart, Requirements, Target, count_copies, refuse_options, write_files
from ingest_bench.targets.elastic import index, node_options
from ingest_bench.targets.elastic.node_options import Module, Version
from ingest_bench.targets.http import Http

# The modules of a full distribution for what ours may lack.
_MODULES = {"english": "analysis-common", "scaled_float": "mapper-extras", "percolator": "percolator"}
# Options of the Netty that serves REST.
_OF_REST = ("receive_predictor_bytes", "allocator", "socket_receive_buffer_bytes")
_OWN_ALLOCATOR = re.compile(r"NettyAllocator with the following configs: \[name=(\w+)")
_NETTY_ALLOCATOR = re.compile(r"-Dio\.netty\.allocator\.type: (\w+)")


@dataclass(frozen=True, kw_only=True)
class ElasticTarget(Target):
    """OpenSearch or Elasticsearch, in several versions."""

    name: str
    default_version: str
    table: Mapping[str, Version]

    # Indices are files, and the translog is written before each response.
    is_persistent = True
    protocols = ("bulk", GRPC)
    # "opensearch[NODE][write][T#1]", "opensearch[NODE][[INDEX][0]: Lucene Merge Thread #1]". Threads that read requests
    # of REST also decode them; messages of gRPC are decoded by others: "opensearch[NODE][grpc][T#1]".
    thread_roles = ThreadRoles(
        network=("][transport_", "][http_server_", "][grpc"),
        indexing=("][write", "][system_write", "][bulk][T#", "][index][T#"),
        flush_merge=("][flush][T#", "][refresh][T#", "][merge][T#", "][force_merge][T#", ": Lucene Merge Thread #"),
    )

    @property
    def versions(self) -> Mapping[str, Requirements]:
        """Return the requirements of each version."""
        return {name: _requirements(version) for name, version in self.table.items()}

    def load_address(self, options: TargetOptions, address: ServerAddress) -> ServerAddress:
        """Return the address that documents go to: gRPC has a port of its own."""
        return node_options.at_grpc_port(address) if options.protocol == GRPC else address

    def version(self, options: TargetOptions) -> Version:
        """Return the chosen version."""
        return self.table[self.choose_version(options)]

    def adapt(self, version: str, modules: Collection[str], *, has_types: bool | None) -> ElasticTarget:
        """Return this target for a server like that version, with these modules, whose documents have types or not.

        What its modules provide is not replaced. None for types: as in that version.
        """
        row = self.table[version]
        replaced = {old: new for old, new in row.replaced.items() if _MODULES.get(old) not in modules}
        before_7 = row.before_7 if has_types is None else has_types
        return replace(self, table={**self.table, version: replace(row, replaced=replaced, before_7=before_7)})

    def describe_replacements(self, options: TargetOptions) -> str:
        """Return which field types and analyzers of a mapping are replaced."""
        return ", ".join(f"{old} by {new or 'nothing'}" for old, new in self.version(options).replaced.items())

    def requirements(self, options: TargetOptions) -> Requirements:
        """Return what the chosen version needs; SpecError for options that it cannot have."""
        requirements = super().requirements(options)
        if options.protocol == GRPC:
            refuse_options(
                options, _OF_REST, "gRPC has Netty and buffers of its own, which the node does not configure"
            )
        node_options.server_settings(self.version(options), options)
        count_copies(options)
        return requirements

    def launch_plan(self, node: NodeStart) -> LaunchPlan:
        """Return how to start a node in an empty home, which is made here. The archive is not changed."""
        version, home = self.version(node.options), node.home
        dist = _add_modules(artifacts.fetch_unpacked(version.archive), version.modules)
        for folder in ("data", "logs", "tmp"):
            (home / folder).mkdir(parents=True, exist_ok=True)
        write_files(home / "config", node_options.config_files(version, node, dist))
        return LaunchPlan(
            argv=node_options.build_argv(version, node, dist),
            env=node_options.build_environment(version, node),
            cwd=home,
            writable=(home,),
            pid_is_jvm=version.launcher is None,
        )

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Return True if the node is in a complete cluster that accepts indices; RunFailed names missing nodes.

        NoResponse if it does not respond at all.
        """
        response = nodes[node].request("GET", "/_cluster/health?local=true", timeout_s=10)
        try:
            is_formed = response.status == 200 and response.json()["status"] in ("green", "yellow")
        except (ValueError, KeyError, TypeError):
            return False
        if missing := find_missing_nodes(nodes[node], node, len(nodes)):
            raise RunFailed(f"{', '.join(missing)} missing from its cluster")
        return is_formed

    def wire(self, options: TargetOptions, workload: Workload) -> ProtocolOptions:
        """Return the bulk protocol, with the index's path, or gRPC."""
        if options.protocol == GRPC:
            return ProtocolOptions(protocol=GRPC, toml_key="target.protocol")
        document_type = (index.DOCUMENT_TYPE,) if self.version(options).before_7 else ()
        return ProtocolOptions(keys={"path": urls.join_path(workload.index, *document_type, "_bulk")})

    def prepare(self, options: TargetOptions, indices: Sequence[str], mapping: Mapping[str, Any]) -> Preparation:
        """Return requests that create these indices; with several nodes, the primaries are on the first one."""
        # Workloads are published for one node: their mappings have no replicas.
        body = self.index_body(options, mapping, override_replicas=options.nodes > 1)
        preparation = index.create_indices(indices, body)
        if options.nodes == 1:
            return preparation
        names = [node_options.node_name(number) for number in range(options.nodes)]
        placed = index.place_primaries(preparation, names[0])
        return index.recover_primaries(placed, names, count_copies(options) - 1)

    def adapt_track_request(self, options: TargetOptions, operation: Operation, request: AdminRequest) -> AdminRequest:
        """Return the request, with the body of a new index in the form of this version."""
        if operation != "create-index":
            return request
        return replace(request, body=self.index_body(options, request.body or {}))

    def index_body(
        self, options: TargetOptions, mapping: Mapping[str, Any], *, override_replicas: bool = False
    ) -> dict[str, Any]:
        """Return the body that creates an index: one shard with a copy on each node, by default."""
        replicas = count_copies(options) - 1
        override_replicas = override_replicas or options.replicas is not None
        return index.index_body(mapping, self.version(options), replicas=replicas, override_replicas=override_replicas)

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """Return the number of documents in these indices, after a refresh. A missing index has none."""
        if not indices:
            return 0
        nodes[0].request_json("POST", f"{urls.join_path(indices, '_refresh')}?ignore_unavailable=true", timeout_s=300)
        path = f"{urls.join_path(indices, '_count')}?ignore_unavailable=true"
        return nodes[0].request_count(path, timeout_s=300)

    def flush(self, nodes: Sequence[Http], jvms: Sequence[AttachedJvm], indices: Sequence[str]) -> None:
        """Write the indices in memory to segments, and empty their translogs."""
        nodes[0].request_json("POST", urls.join_path(indices, "_flush"), timeout_s=300)

    def jvm_stats(self, http: Http) -> Any:
        """Return the JVM statistics of all nodes; None if they are not available."""
        response = http.request("GET", "/_nodes/stats/jvm", timeout_s=10)
        return response.json() if response.status == 200 else None

    def describe(self, http: Http, options: TargetOptions) -> dict[str, ColumnValue]:
        """Return what the node reports about itself; InvalidRun if that is not as chosen."""
        (info,) = http.request_json("GET", "/_nodes/_local/jvm,settings")["nodes"].values()
        log = "" if http.log is None else http.log.read_text(encoding="utf-8", errors="replace")
        allocator = None if options.protocol == GRPC else find_allocator(log)
        check_node(self.version(options), options, info, allocator)
        return {
            "version": info["version"],
            "java": info["jvm"]["version"],
            "collectors": ", ".join(info["jvm"]["gc_collectors"]),
            "heap_bytes": info["jvm"]["mem"]["heap_max_in_bytes"],
            "allocator": allocator,
            "replaced": self.describe_replacements(options),
            "receive_predictor": _read_receive_predictor(info["settings"]),
        }


def _requirements(version: Version) -> Requirements:
    jars = (module.jar for module in version.modules)
    return Requirements(
        artifacts=(version.archive, *jars), java_version=version.java_version, full_jdk=version.full_jdk
    )


def _add_modules(dist: Path, modules: tuple[Module, ...]) -> Path:
    """Return a distribution with these modules: its files, hard-linked, and the modules. Made once in the cache.

    The archives for integration tests contain only the network module. The field types `scaled_float` and `percolator`
    of the workloads are in modules that the projects publish as jars for Java clients.
    """
    if not modules:
        return dist
    jars = {module: artifacts.fetch(module.jar) for module in modules}
    digest = hashlib.sha256("".join(module.jar.sha256 + module.plugin for module in modules).encode()).hexdigest()
    name = f"with-modules/{dist.parent.name}-{digest[:8]}/{dist.name}"

    def make(into: Path) -> None:
        shutil.copytree(dist, into, copy_function=os.link, symlinks=True)
        template = (into / "modules" / "transport-netty4" / "plugin-descriptor.properties").read_text()
        properties = dict(line.split("=", 1) for line in template.splitlines() if "=" in line and line[0] != "#")
        for module, jar in jars.items():
            folder = into / "modules" / module.name
            folder.mkdir()
            shutil.copy(jar, folder)
            own = properties | {"name": module.name, "description": module.name, "classname": module.plugin}
            lines = [f"{key}={value}\n" for key, value in own.items()]
            (folder / "plugin-descriptor.properties").write_text("".join(lines))

    return cache.get_or_make(name, make)


def find_allocator(log: str) -> str | None:
    """Return the allocator in a node's log: unpooled, opensearch_configured …, or Netty's own: pooled, unpooled."""
    own = _OWN_ALLOCATOR.search(log)
    if own is not None and own[1] != "netty_default":
        return own[1]
    netty = _NETTY_ALLOCATOR.search(log)
    return None if netty is None else netty[1]


def _read_receive_predictor(settings: Mapping[str, Any]) -> str:
    """Return the receive buffer in a node's settings: "32768b", "65536b..524288b", or "default"."""
    netty = settings.get("http", {}).get("netty", {})
    if "receive_predictor_min" in netty:
        return f"{netty['receive_predictor_min']}..{netty['receive_predictor_max']}"
    return str(netty.get("receive_predictor_size", "default"))


def find_missing_nodes(http: Http, node: int, nodes: int) -> list[str]:
    """Return the names of nodes that are not in the cluster of this node."""
    if nodes == 1:
        return []
    # The node's own view: a request to the master would fail if there is none.
    response = http.request("GET", "/_cluster/state/nodes?local=true", timeout_s=5)
    others = [node_options.node_name(number) for number in range(nodes) if number != node]
    try:
        members = {member["name"] for member in response.json()["nodes"].values()} if response.status == 200 else set()
    except (ValueError, KeyError, TypeError, AttributeError):
        members = set()
    return [name for name in others if name not in members]


def check_node(version: Version, options: TargetOptions, info: Mapping[str, Any], allocator: str | None) -> None:
    """Raise InvalidRun if the node does not run with the chosen options."""
    gc = version.choose_gc(options)
    beans = tuple(info["jvm"]["gc_collectors"])
    heap_bytes = info["jvm"]["mem"]["heap_max_in_bytes"]
    wrong = []
    if info["version"] != version.number:
        wrong.append(f"version {info['version']} instead of {version.number}")
    if not uses_collector(gc, beans):
        wrong.append(f"collectors {', '.join(beans)} instead of gc {gc}")
    if not is_requested_heap(heap_bytes, options.heap_bytes, beans, info["jvm"].get("input_arguments", ())):
        wrong.append(f"a heap of {heap_bytes} bytes instead of {options.heap_bytes}")
    if options.allocator != "default" and (allocator == "unpooled") != (options.allocator == "unpooled"):
        wrong.append(f"allocator {allocator or 'unknown'} in its log instead of {options.allocator}")
    expected = "..".join(f"{size}b" for size in options.receive_predictor_bytes) or "default"
    actual = _read_receive_predictor(info["settings"])
    has_own_setting = any(key.startswith("http.netty.receive_predictor") for key in options.setting)
    if actual != expected and not has_own_setting:
        wrong.append(f"receive predictor {actual} instead of {expected}")
    if wrong:
        raise InvalidRun(f"server: it does not run as chosen: {'; '.join(wrong)}")
