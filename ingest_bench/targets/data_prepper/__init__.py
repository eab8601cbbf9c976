"""The server `data-prepper`: a Data Prepper of the user's own, whose nodes forward documents to each other.

data_prepper_files.py   what a node is told: settings, its two files        account.py   what became of its documents

Nothing is fetched but Java: `home` says where its archive is unpacked. A node has an HTTP source, its buffer, the
smallest processor that needs the peer forwarder, and a file as sink, which is read back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import InvalidRun, RunFailed, SpecError
from ingest_bench.jvm import options
from ingest_bench.model.load import Wire
from ingest_bench.model.target import LaunchPlan, Listens
from ingest_bench.targets.data_prepper import account
from ingest_bench.targets.data_prepper.data_prepper_files import (
    API_PORT,
    CONFIGURATION,
    DELIVERED,
    KEY,
    LOG4J,
    NAME,
    PATH,
    PEER_PORT,
    PIPELINE,
    PIPELINES,
    SOURCE_PORT,
    configuration,
    numbers,
    parsed,
    pipelines,
    version,
)
from ingest_bench.targets.plain import Plain
from ingest_bench.targets.small import java_properties
from ingest_bench.targets.version import Requirements, needed_by

if TYPE_CHECKING:
    from ingest_bench.jvm.java import Java
    from ingest_bench.model.results import Value
    from ingest_bench.model.target import Endpoint, TargetOptions
    from ingest_bench.model.workload import Workload
    from ingest_bench.targets.http import Http

_MAIN = "org.opensearch.dataprepper.DataPrepperExecute"
_NO_CHOICE = ("receive_predictor_bytes", "allocator", "socket_receive_buffer_bytes", "replicas")


class DataPrepper(Plain):
    """The server `data-prepper`. Which one exactly is what its home holds."""

    name = NAME
    default_version = "2"
    versions: Mapping[str, Requirements] = {"2": Requirements(artifacts=(), java_version=17)}

    def requirements(self, asked: TargetOptions) -> Requirements:
        """What it needs beside its home; SpecError when that is not there or for a choice that it cannot have."""
        needed = needed_by(self, asked)
        java_properties.refuse(asked, _NO_CHOICE, f"{self.name} has no such choice")
        if "home" not in parsed(asked):
            raise SpecError(
                f"{self.name} needs the home that you give: where its archive is unpacked, such as "
                'home = "/opt/data-prepper" in [target.setting]'
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
        """How to start a node as bin/data-prepper does, with two files of its own. All nodes are told the same."""
        del node
        installed = Path(parsed(asked)["home"])
        home.mkdir(parents=True, exist_ok=True)
        values = numbers(asked)
        # JSON is YAML.
        home.joinpath(CONFIGURATION).write_text(json.dumps(configuration(values, nodes), indent=1) + "\n")
        home.joinpath(PIPELINES).write_text(json.dumps(pipelines(values, home / DELIVERED), indent=1) + "\n")
        argv = (
            str(java.java),
            *options.heap(asked.heap_bytes),
            *options.collector(options.or_g1(asked.gc), java.version),
            f"-Djava.io.tmpdir={home}",
            "-Dfile.encoding=UTF-8",
            f"-Dlog4j.configurationFile={installed / LOG4J}",
            *asked.jvm,
            *jvm_options,
            f"-Ddata-prepper.dir={installed}",
            "-cp",
            str(installed / "lib" / "*"),
            _MAIN,
            str(home / PIPELINES),
            str(home / CONFIGURATION),
        )
        readable = (installed / LOG4J, *installed.joinpath("lib").glob("*.jar"))
        return LaunchPlan(argv=argv, env={}, cwd=home, writable=(home,), readable=readable)

    def listens(self, asked: TargetOptions) -> Listens:
        """On which port its source listens, and how long it may take until it is ready."""
        del asked
        # 5 s where nothing else runs, and 80 on two busy cores (2.15.0).
        # It forwards nothing to a loopback address (RemotePeerForwarder.isAddressDefinedLocally).
        return Listens(port=SOURCE_PORT, within_s=300, seen_as_local=False)

    def is_ready(self, node: int, nodes: Sequence[Http]) -> bool:
        """Whether its source and its API answer, and the peer forwarder of each node; RunFailed says which does not."""
        nodes[node].connect()
        with nodes[node].elsewhere(API_PORT) as api:
            running = api.expect("GET", "/list", timeout_s=5)
        if {"name": PIPELINE} not in running.get("pipelines", ()):
            raise RunFailed(f"it does not run the pipeline {PIPELINE}: {running}")
        for place, other in enumerate(nodes if len(nodes) > 1 else ()):
            with other.elsewhere(PEER_PORT) as peer:
                try:
                    peer.connect()
                except RunFailed as error:
                    raise RunFailed(f"the peer forwarder of node {place + 1} is not there: {error}") from None
        return True

    def wire(self, asked: TargetOptions, workload: Workload) -> Wire:
        """JSON arrays, each document with a number of its own, which is the key that it is forwarded by."""
        del asked, workload
        keys = {
            "path": PATH,
            "sequence": KEY,
            # All that it refuses before it has taken a document. A 408 is not among them: Armeria says it also while
            # the documents are written, and then nobody knows.
            "refused": ["400", "404", "405", "413", "415"],
        }
        return Wire(protocol="json-array", keys=keys, written=f"{self.name}: protocol")

    def count(self, nodes: Sequence[Http], indices: Sequence[str]) -> int:
        """The documents that its nodes accepted. What became of them is for `counters`, which waits."""
        del indices
        return account.together(nodes)["accepted"]

    def counters(self, nodes: Sequence[Http]) -> dict[str, Any]:
        """What became of the documents of their whole lives, by their metrics and by their sinks, added up."""
        return account.at_rest(nodes)

    def read_back(self, nodes: Sequence[Http]) -> tuple[bytes, ...]:
        """The numbers in each node's sink, as `analysis.run.delivery` reads them."""
        return tuple(map(account.delivered, nodes))

    def describe(self, http: Http, asked: TargetOptions) -> dict[str, Value]:
        """What it is; InvalidRun when its heap is not what was asked."""
        values = parsed(asked)
        # Of G1 the old generation may be the whole heap.
        has = int(account.metrics(http).get("jvm_gc_max_data_size_bytes", 0))
        if options.or_g1(asked.gc) == "g1" and has != asked.heap_bytes:
            raise InvalidRun(f"{self.name}: asked for a heap of {asked.heap_bytes:,} bytes, it says {has:,}")
        return {"version": version(Path(values["home"])), "heap_bytes": asked.heap_bytes, **numbers(asked)}
