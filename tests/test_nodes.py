"""Real nodes of OpenSearch and Elasticsearch."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from servers import BULK, WORKLOAD, Served, served

from ingest_bench import system, targets
from ingest_bench.documents.synthetic import DocumentGenerator
from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.experiment import catalog
from ingest_bench.inputs import files
from ingest_bench.jvm import artifacts
from ingest_bench.jvm.java import Java
from ingest_bench.model.load import Workload
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.targets.base import NodeStart
from ingest_bench.targets.elastic import node_options
from ingest_bench.targets.elastic.node import ElasticTarget
from ingest_bench.targets.elastic.versions import ELASTICSEARCH, OPENSEARCH

opensearch = [pytest.mark.opensearch, pytest.mark.netns]
elasticsearch = [pytest.mark.elasticsearch, pytest.mark.netns]
HEAP_BYTES = 512 << 20

# Options, and what the node must report about itself.
NODES = [
    pytest.param(
        {"name": "opensearch", "receive_predictor_bytes": (32768,), "socket_receive_buffer_bytes": 65536},
        {"version": "2.19.6", "allocator": "unpooled", "receive_predictor": "32768b"},
        marks=opensearch,
        id="opensearch-2",
    ),
    pytest.param(
        {"name": "opensearch", "allocator": "pooled", "gc": "parallel"},
        {"allocator": "pooled", "collectors": "PS MarkSweep, PS Scavenge"},
        marks=[*opensearch, pytest.mark.nightly],
        id="opensearch-2-pooled-parallel",
    ),
    pytest.param(
        {"name": "opensearch", "version": "3.8.0", "gc": "zgc", "receive_predictor_bytes": (524288,)},
        {"version": "3.8.0", "receive_predictor": "524288b"},
        marks=[*opensearch, pytest.mark.ordinary, pytest.mark.nightly],
        id="opensearch-3-zgc",
    ),
    pytest.param(
        {"name": "elasticsearch", "version": "5.6.16", "allocator": "unpooled", "receive_predictor_bytes": (32768,)},
        {"allocator": "unpooled", "collectors": "ParNew, ConcurrentMarkSweep", "receive_predictor": "32768b"},
        marks=[*elasticsearch, pytest.mark.ordinary],
        id="elasticsearch-5-cms",
    ),
    pytest.param(
        {
            "name": "elasticsearch",
            "version": "5.6.16",
            "gc": "g1",
            "allocator": "pooled",
            "receive_predictor_bytes": (65536, 524288),
        },
        {"allocator": "pooled", "receive_predictor": "65536b..524288b"},
        marks=[*elasticsearch, pytest.mark.nightly],
        id="elasticsearch-5-g1-adaptive",
    ),
    pytest.param(
        {"name": "elasticsearch", "version": "7.17.29", "allocator": "pooled"},
        {"version": "7.17.29", "allocator": "pooled"},
        marks=[*elasticsearch, pytest.mark.ordinary, pytest.mark.nightly],
        id="elasticsearch-7-pooled",
    ),
    pytest.param(
        {"name": "elasticsearch", "version": "8.19.21", "allocator": "pooled", "heap_bytes": (1 << 30) + (64 << 20)},
        {"version": "8.19.21", "allocator": "elasticsearch_configured"},
        marks=[*elasticsearch, pytest.mark.ordinary, pytest.mark.nightly],
        id="elasticsearch-8",
    ),
]


@pytest.mark.parametrize(("fields", "expected"), NODES)
def test_a_node_counts_documents_and_reports_its_options(
    tmp_path: Path, fields: dict[str, Any], expected: dict[str, str]
) -> None:
    options = TargetOptions(**{"heap_bytes": HEAP_BYTES} | fields)
    recording = tmp_path / "home" / "recording.jfr"
    gc_log = tmp_path / "home" / "gc.log"
    probes = (
        f"-XX:StartFlightRecording=filename={recording},settings=none",
        f"-Xlog:gc:file={gc_log}:time:filecount=0",
    )
    skip_without_java(options)
    with served(tmp_path, options, probes) as server:
        server.create_index(WORKLOAD)
        assert server.bulk(500).json()["errors"] is False
        assert server.bulk(7).json()["errors"] is False
        assert server.count(WORKLOAD.index) == 507
        for name in sorted(files.data_files("workloads")):
            check_workload(server, catalog.load_workload(name))
        description = server.target.describe(server.http, options)
        name = Path(f"/proc/{server.process.jvm_pid}/comm").read_text(encoding="utf-8")
    assert {key: description[key] for key in expected} == expected
    assert name == "java\n"
    assert recording.read_bytes()[:4] == b"FLR\0"
    assert gc_log.read_text(encoding="utf-8").count("Using ") == 1


def check_workload(server: Served, workload: Workload) -> None:
    """Create the workload's index and send a document of it."""
    if workload.name == "percolator" and server.options.version == "8.19.21":
        with pytest.raises(SpecError, match='no type "percolator"'):
            server.create_index(workload)
        return
    server.create_index(workload)
    body = b'{"index":{}}\n' + DocumentGenerator(workload, 1, limit=64).block(0)[0] + b"\n"
    response = server.http.request("POST", server.target.wire(server.options, workload).destination, body, BULK)
    assert response.json()["errors"] is False, response.body
    assert server.count(workload.index) == 1


def skip_without_java(options: TargetOptions) -> None:
    try:
        targets.fetch(targets.find_target(options.name).requirements(options))
    except MissingCapability as error:
        pytest.skip(str(error))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "version"),
    [
        pytest.param("opensearch", "2.19.6", marks=opensearch),
        pytest.param("opensearch", "3.8.0", marks=opensearch),
        pytest.param("elasticsearch", "7.17.29", marks=elasticsearch),
    ],
)
def test_a_node_runs_on_the_java_of_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str
) -> None:
    monkeypatch.setenv("INGEST_BENCH_JAVA", "wheel")
    options = TargetOptions(name=name, version=version, heap_bytes=HEAP_BYTES)
    with served(tmp_path, options) as server:
        server.create_index(WORKLOAD)
        assert server.bulk(10).json()["errors"] is False
        assert server.count(WORKLOAD.index) == 10


# Options of the distribution's scripts that are left out on purpose.
LEFT_OUT = ("-Xlog:gc", "-XX:+HeapDumpOnOutOfMemoryError", "-XX:HeapDumpPath=", "-XX:+ExitOnOutOfMemoryError")
# The same option with another value.
ELSEWHERE = ("-Djava.io.tmpdir=", "-XX:ErrorFile=", "-Xms", "-Xmx", "-javaagent:", "-Xshare:")


@pytest.mark.parametrize("heap_bytes", [512 << 20, 2 << 30])
@pytest.mark.parametrize(
    ("node", "version", "parser"),
    [
        pytest.param(OPENSEARCH, "2.19.6", "org.opensearch.tools.launchers.JvmOptionsParser", marks=opensearch),
        pytest.param(OPENSEARCH, "3.8.0", "org.opensearch.tools.launchers.JvmOptionsParser", marks=opensearch),
        pytest.param(
            ELASTICSEARCH, "7.17.29", "org.elasticsearch.tools.launchers.JvmOptionsParser", marks=elasticsearch
        ),
    ],
)
def test_jvm_options_are_those_of_the_start_script(
    node: ElasticTarget, version: str, parser: str, heap_bytes: int
) -> None:
    options = TargetOptions(name=node.name, version=version, heap_bytes=heap_bytes)
    skip_without_java(options)
    java = targets.fetch(node.requirements(options))
    if not java.is_full:
        pytest.skip("the script's options require a full JDK")
    row = node.version(options)
    dist = artifacts.fetch_unpacked(row.archive)
    theirs = options_of_the_script(java, dist, parser, heap_bytes)
    ours = set(node_options.jvm_flags(row, NodeStart(options, java, Path("/home"), 0, (Endpoint("x", 1),)), dist))
    assert {flag for flag in ours if not flag.startswith(ELSEWHERE)} == {
        flag for flag in theirs if not flag.startswith((*ELSEWHERE, *LEFT_OUT))
    }


def options_of_the_script(java: Java, dist: Path, parser: str, heap_bytes: int) -> set[str]:
    heap = f"-Xms{heap_bytes} -Xmx{heap_bytes}"
    tmp = "/home/tmp"
    words = [f"ES_JAVA_OPTS={heap}", f"OPENSEARCH_JAVA_OPTS={heap}", f"ES_TMPDIR={tmp}", f"OPENSEARCH_TMPDIR={tmp}"]
    classpath = f"{dist}/lib/*:{dist}/lib/tools/launchers/*"
    argv = ["env", "-C", str(dist), *words, str(java.java), "-cp", classpath, parser, "config"]
    if "elasticsearch" in parser:
        argv.append(str(dist / "plugins"))
    return set(system.run(argv, timeout_s=120).split())


@pytest.mark.nightly
@pytest.mark.ordinary
@pytest.mark.opensearch
@pytest.mark.netns
def test_a_node_writes_nothing_outside_its_home(tmp_path: Path) -> None:
    options = TargetOptions(heap_bytes=HEAP_BYTES)
    with served(tmp_path, options) as server:
        server.create_index(WORKLOAD)
        written = list_open_files(server.process.jvm_pid)
    assert any(path.is_relative_to(server.home) for path in written)
    assert not [path for path in written if not path.is_relative_to(tmp_path) and "hsperfdata_" not in str(path)]


def list_open_files(pid: int) -> set[Path]:
    """Return the files that a process has open for writing."""
    files = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            flags = Path(f"/proc/{pid}/fdinfo/{link.name}").read_text(encoding="utf-8").split("flags:")[1].split()[0]
            path = link.readlink()
            if int(flags, 8) & 0o3 and path.is_file():
                files.add(path)
    return files
