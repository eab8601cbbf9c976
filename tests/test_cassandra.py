"""Cassandra: configuration, log, counts over Thrift and CQL, and CASSANDRA-2463 on real servers."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cql_server import cql_server, encode_error, encode_response
from test_run import carried_out
from thrift_server import StoreServer

from ingest_bench import targets
from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.inputs import urls
from ingest_bench.jvm.java import Java
from ingest_bench.lab import planning
from ingest_bench.lab.server import borrowed
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import BulkAction, LoadOptions
from ingest_bench.model.target import Endpoint, ServerAddress, TargetOptions
from ingest_bench.model.values import GIB, MIB
from ingest_bench.protocols import cql_wire, thrift_wire
from ingest_bench.protocols.response import InvalidResponseError
from ingest_bench.targets import detect, rpc_child
from ingest_bench.targets.base import NodeStart
from ingest_bench.targets.cassandra import node as cassandra_node
from ingest_bench.targets.cassandra.versions import CQL, THRIFT, Generation
from ingest_bench.targets.http import Http

CQL_NODE = Endpoint("198.18.2.1", 9042)
JAVA = Java(home=Path("/java"), version=17, source="test")
THRIFT_LOG = """
WARNING: An illegal reflective access operation has occurred
2026-11-23 02:52:17,372  INFO StorageService Cassandra version: 0.7.4
2026-11-23 03:13:19,751  INFO Memtable Writing Memtable-rides_2@1946984778(16594117 bytes, 32992 operations)
2026-11-23 03:13:21,359  INFO Memtable Completed flushing /d/version=0.7.4/1/home/data/k/rides_2-f-1-Data.db (335 bytes)
2026-11-23 03:13:30,000  INFO Gossiper InetAddress /198.18.4.1 is now UP
2026-11-23 03:13:31,000  INFO Gossiper Node /198.18.5.1 has restarted, now UP again
2026-11-23 03:13:34,352  INFO CompactionManager Compacting [SSTableReader(path='/d/rides_0-f-1-Data.db')]
2026-11-23 03:13:37,097  INFO CompactionManager Compacted to /d/rides_0-tmp-f-5-Data.db.  9 to 9 (~100% of original)
2026-11-23 03:13:37,656  INFO Memtable Writing Memtable-rides_1@540435859(2736369 bytes, 5440 operations)
"""
CQL_LOG = """
2026-11-23 06:54:40,194  INFO CassandraDaemon JVM vendor/version: OpenJDK 64-Bit Server VM/17.0.15
2026-11-23 06:54:50,904  INFO StorageService Cassandra version: 5.0.9
2026-11-23 06:54:51,000  INFO Gossiper InetAddress /198.18.4.1:7000 is now UP
2026-11-23 06:55:20,032  INFO Flushing Writing Memtable-t@540885216(45.260MiB serialized bytes, 88051 ops)
2026-11-23 06:55:20,500  INFO Flushing Writing Memtable-u@1(1.260MiB serialized bytes, 8 ops)
2026-11-23 06:55:21,000  INFO Flushing Completed flushing /d/k/u-c99fd360e70a11f1b97c99bf59cc1bde/nb-1-big-Data.db \
(178B) for commitlog position CommitLogPosition(segmentId=1, position=1)
2026-11-23 06:55:23,256  INFO Flushing Completed flushing /d/k/t-c99fd360e70a11f1b97c99bf59cc1bde/nb-1-big-Data.db \
(44.500MiB) for commitlog position CommitLogPosition(segmentId=1, position=2)
2026-11-23 06:56:20,532  INFO CompactionTask Compacting (fcf8a980-e70a-11f1-b97c-99bf59cc1bde) [/d/k/t/nb-2-big-Data.db]
2026-11-23 06:56:44,564  INFO CompactionTask Compacted (fcf8a980-e70a-11f1-b97c-99bf59cc1bde) 4 sstables to [/d/k/t]
2026-11-23 06:56:50,000  INFO Flushing Writing Memtable-t@5(45.260MiB serialized bytes, 88051 ops)
"""


def cassandra(version: str = "0.7.5", **options: Any) -> TargetOptions:
    return dataclasses.replace(TargetOptions(name="cassandra", version=version, heap_bytes=2 * GIB), **options)


def start(options: TargetOptions, node: int = 0, nodes: int = 1) -> tuple[Generation, NodeStart]:
    """Return the generation of a version, and the start of one of the nodes 198.18.2.1, 198.18.4.1 …"""
    generation = CQL if options.version == "5.0.9" else THRIFT
    endpoints = [Endpoint(f"198.18.{2 * number}.1", generation.port) for number in range(1, nodes + 1)]
    return generation, NodeStart(options, JAVA, Path("/h"), node, endpoints)


def yaml(options: TargetOptions, node: int = 0, nodes: int = 1) -> dict[str, Any]:
    generation, node_start = start(options, node, nodes)
    return json.loads(generation.config_files(node_start)["cassandra.yaml"])  # type: ignore[no-any-return]


def test_flushes_and_compactions_are_parsed_with_their_times() -> None:
    facts = cassandra_node.parse_log(THRIFT_LOG.splitlines(keepends=True))
    assert facts.version == "0.7.4"
    assert facts.flushes == ((1795403599751000000, 335),)  # the second one has not ended
    assert facts.compactions == (1795403614352000000,)
    assert facts.up == {"198.18.4.1", "198.18.5.1"}
    assert cassandra_node.parse_log(["\0", "2026-11-23 99:99:99,000 nonsense"]) == cassandra_node.LogFacts(
        "", "", (), (), frozenset()
    )


def test_overlapping_flushes_and_compactions_are_parsed() -> None:
    facts = cassandra_node.parse_log(CQL_LOG.splitlines(keepends=True))
    assert (facts.version, facts.java, facts.up) == ("5.0.9", "17.0.15", frozenset(("198.18.4.1",)))
    # The third flush has not ended. Each size belongs to a table.
    assert [size for _, size in facts.flushes] == [44.5 * 2**20, 178]
    assert [at % 10**12 for at, _ in facts.flushes] == [920_032_000_000, 920_500_000_000]
    assert len(facts.compactions) == 1


def test_a_log_with_an_invalid_time_is_refused(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(
        THRIFT_LOG + "2026-11-23 03:93:19,751  INFO CompactionManager Compacting [x]\n"
    )
    node: Any = SimpleNamespace(log=tmp_path / "server.log")
    with pytest.raises(RunFailed, match=r"server\.log: this log is damaged: time data '2026-11-23 03:93"):
        targets.find_target("cassandra").read_counters([node])


def test_settings_of_0_7_become_yaml_and_memtable_limits() -> None:
    setting = {"in_memory_compaction_limit_in_mb": "64", "memtable_operations_in_millions": "0.01"}
    values = yaml(cassandra(setting=setting))
    assert values["in_memory_compaction_limit_in_mb"] == 64
    assert values["rpc_port"] == 9160
    assert "memtable_operations_in_millions" not in values
    assert "in_memory_compaction_limit_in_mb" not in yaml(cassandra())
    memtables = THRIFT.table_options(cassandra(setting=setting))["memtables"]
    # The second one is the default of 0.7.4.
    assert memtables["memtable_operations_in_millions"] == 0.01
    assert memtables["memtable_throughput_in_mb"] == 128


def test_settings_of_5_0_become_yaml() -> None:
    setting = {
        "compaction_throughput": "64MiB/s",
        "commitlog_sync_period": "500ms",
        "concurrent_writes": "8",
        "memtable_cleanup_threshold": "0.25",
        "trickle_fsync": "true",
    }
    values = yaml(cassandra("5.0.9", setting=setting))
    assert [values[key] for key in setting] == ["64MiB/s", "500ms", 8, 0.25, True]
    assert values["native_transport_port"] == 9042


@pytest.mark.parametrize(
    ("version", "tokens"),
    [("0.7.5", [number * 2**125 for number in range(4)]), ("5.0.9", [-(2**63), -(2**62), 0, 2**62])],
)
def test_nodes_share_the_ring_and_have_one_seed(version: str, tokens: list[int]) -> None:
    files = [yaml(cassandra(version), number, 4) for number in range(4)]
    assert [int(file["initial_token"]) for file in files] == tokens
    seeds = [file.get("seeds") or file["seed_provider"][0]["parameters"][0]["seeds"] for file in files]
    assert seeds == [["198.18.2.1"] if version == "0.7.5" else "198.18.2.1:7000"] * 4
    assert [file["listen_address"] for file in files] == [f"198.18.{number}.1" for number in (2, 4, 6, 8)]


@pytest.mark.parametrize(
    ("version", "fields", "tuning"),
    [
        ("0.7.5", {}, ["-XX:SurvivorRatio=8", f"-Xmn{200 * MIB}"]),
        ("0.7.5", {"heap_bytes": 256 * MIB}, ["-XX:SurvivorRatio=8", f"-Xmn{64 * MIB}"]),
        ("0.7.5", {"gc": "g1"}, []),
        ("5.0.9", {"gc": "g1"}, ["-XX:MaxGCPauseMillis=300"]),
        ("5.0.9", {"gc": "parallel"}, []),
    ],
)
def test_only_its_own_collector_is_tuned(version: str, fields: dict[str, Any], tuning: list[str]) -> None:
    generation, node_start = start(cassandra(version, **fields))
    flags = generation.jvm_flags(node_start)
    prefixes = ("-Xmn", "-XX:Survivor", "-XX:MaxGC")
    assert [option for option in flags if option.startswith(prefixes)] == tuning


@pytest.mark.parametrize(
    ("version", "options", "copies"),
    [("0.7.5", {}, None), ("5.0.9", {}, 1), ("5.0.9", {"nodes": 3}, 3), ("5.0.9", {"nodes": 3, "replicas": 1}, 2)],
)
def test_the_keyspace_is_created_with_a_table_per_index(version: str, options: dict[str, Any], copies: int) -> None:
    load = LoadOptions(workload="geopoint", action=BulkAction(indices=3))
    cell = Cell(name="c", levels={}, network=None, target=cassandra(version, **options), load=load)
    preparation = planning.check_procedure(cell)
    (request,) = preparation.requests
    assert request.path == "/ingest_bench"
    assert request.body is not None
    assert request.body["tables"] == [f"osmgeopoints_{number}" for number in range(3)]
    assert request.body.get("copies") == copies
    assert preparation.indices == tuple(f"osmgeopoints-{number}" for number in range(3))
    assert thrift_wire.table_name("a.b+c") == "a_b_c"


@pytest.mark.parametrize("version", ["5.0.8", ""])
def test_a_node_of_another_version_makes_the_run_invalid(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_text(CQL_LOG, encoding="utf-8")
    http = Http(ServerAddress(endpoint=CQL_NODE), SimpleNamespace(), {}, tuple, path)  # type: ignore[arg-type]
    monkeypatch.setattr(Http, "ask_rpc", lambda *_, **__: {"version": version, "interface": "3.4.7"})
    with pytest.raises(InvalidRun, match=f"expected version 5.0.9; the node reports {version or 'none'}"):
        targets.find_target("cassandra").describe(http, cassandra("5.0.9"))
    path.write_text(CQL_LOG.replace("5.0.9", "5.0.7"), encoding="utf-8")
    with pytest.raises(InvalidRun, match=r"expected version 5.0.9; its log reports 5.0.7"):
        targets.find_target("cassandra").describe(http, cassandra("5.0.9"))


def test_rows_go_into_a_new_keyspace_of_a_running_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[tuple[str, dict[str, Any]]] = []

    def answer(_http: Http, _protocol: str, ask: str, **arguments: Any) -> dict[str, Any]:
        questions.append((ask, arguments))
        return {"version": "4.1.3", "interface": "3.4.6", "cluster": "c", "rows": {"i": 7}}

    monkeypatch.setattr(Http, "ask_rpc", answer)
    http: Any = Http(ServerAddress(endpoint=Endpoint("192.0.2.1", 19042)), SimpleNamespace(), {}, tuple)  # type: ignore[arg-type]
    options = TargetOptions(url=urls.parse_url("cassandra://192.0.2.1:19042"))
    first = detect.identify(http, options)
    assert first.notes[0] == "cassandra 4.1.3 was not tried; it is treated as 5.0.9"
    assert (first.options.name, first.cluster_id) == ("cassandra", "c")
    target, other = first.target, detect.identify(http, options).target
    assert isinstance(target, cassandra_node.Cassandra)
    assert isinstance(other, cassandra_node.Cassandra)
    keyspace = target.keyspace
    assert keyspace not in ("ingest_bench", other.keyspace)
    load = LoadOptions(workload="geopoint")
    cell = Cell(name="c", levels={}, network=None, target=first.options, load=load)
    procedure = planning.build_procedure(cell, http.address, Path(), may_delete=False, target=target)
    server: Any = SimpleNamespace(target=target, http=http, is_launched=False)
    assert borrowed.check_conflicts(server, procedure) == ()
    with borrowed.clean_up_after(server, procedure, "mark") as before:
        target.execute(http, procedure.requests[0])
        assert target.count([http], ["i"]) - (before or 0) == 7
    with pytest.raises(RunFailed, match="of the run"), borrowed.clean_up_after(server, procedure, "mark"):
        raise RunFailed("of the run")
    assert procedure.plans[0].wire.keys == {"keyspace": keyspace}
    assert [(ask, arguments["keyspace"]) for ask, arguments in questions if ask != "describe"] == [
        (ask, keyspace) for ask in ("create", "count", "drop", "drop")
    ]


def test_a_node_that_requires_a_password_is_named() -> None:
    ready = encode_response(cql_wire.AUTHENTICATE, b"\0\0")
    with cql_server(lambda *_: b"", ready=ready) as server:
        node = rpc_child.CqlNode.__new__(rpc_child.CqlNode)
        rpc_child._Connection.__init__(node, server.address.host, server.address.port)
        with closing(node), pytest.raises(InvalidResponseError, match="user and password, which are unsupported"):
            node._exchange(cql_wire.encode_startup())


def count_families(server: StoreServer, *families: str, keyspace: str = "k") -> dict[str, int]:
    node = rpc_child.ThriftNode(server.address.host, server.address.port)
    try:
        rows: dict[str, int] = node.count({"keyspace": keyspace, "tables": families})["rows"]
    finally:
        node.close()
    return rows


@pytest.mark.parametrize("rows", [0, 1, 2, 9, 10, 11, 19, 20, 1000])
def test_rows_of_all_pages_are_counted(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_child.ThriftNode, "_FIRST_ROWS", 10)
    monkeypatch.setattr(rpc_child.ThriftNode, "_PAGE_BYTES", 3000)
    with closing(StoreServer({"a": [b"%05d" % number for number in range(rows)], "b": [b"1"]})) as server:
        assert count_families(server, "a", "b") == {"a": rows, "b": 1}
        # After the first page, pages are sized by bytes.
        assert all(15 < rows < 30 for rows in server.page_sizes[1:-1])


def test_a_row_without_a_document_and_a_missing_keyspace_are_not_counted() -> None:
    with closing(StoreServer({"a": [b"1", b"2-", b"3"]})) as server:
        assert count_families(server, "a") == {"a": 2}
        assert count_families(server, "a", keyspace="none") == {}


def test_a_page_that_times_out_is_retried_four_times() -> None:
    with closing(StoreServer({"a": [b"1"]})) as server:
        server.times_out = 4
        assert count_families(server, "a") == {"a": 1}
        server.times_out = 5
        with pytest.raises(thrift_wire.ServerError, match="TimedOutException"):
            count_families(server, "a")


def page(values: Sequence[Sequence[bytes | None]], columns: int, following: bytes | None = None) -> bytes:
    """Return a response with a page of rows."""

    def encode(value: bytes | None) -> bytes:
        return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value

    flags = 4 if following is None else 6
    state = b"" if following is None else encode(following)
    head = struct.pack(">iii", cql_wire.ROWS, flags, columns) + state + struct.pack(">i", len(values))
    return encode_response(cql_wire.RESULT, head + b"".join(encode(value) for row in values for value in row))


def count(
    stored: Mapping[str, Sequence[bool]], *tables: str, times_out: int = 0, code: int = 0x1200
) -> tuple[dict[str, int], int]:
    """Count tables whose rows have a document or not; return the counts and the number of pages."""
    pages, failures = 0, times_out

    def reply(request: bytes, _number: int) -> bytes:
        nonlocal pages, failures
        (length,) = struct.unpack_from(">i", request, cql_wire.HEAD.size)
        place = cql_wire.HEAD.size + 4 + length
        text = request[cql_wire.HEAD.size + 4 : place].decode()
        if "system_schema.tables" in text:
            assert "keyspace_name = 'k'" in text
            return page([(name.encode(),) for name in stored], 1)
        if failures:
            failures -= 1
            return encode_error(code, "Operation timed out")
        pages += 1
        match = re.fullmatch(r'SELECT writetime\(document\) FROM "k"\."(\w+)"', text)
        assert match is not None
        _, flags, most = struct.unpack_from(">HBi", request, place)
        start = int(request[place + 11 :]) if flags & 8 else 0
        rows = stored[match[1]]
        following = str(start + most).encode() if start + most < len(rows) else None
        return page(
            [(b"x" * 8 if has_document else None,) for has_document in rows[start : start + most]], 1, following
        )

    with cql_server(reply) as server:
        node = rpc_child.CqlNode(server.address.host, server.address.port)
        try:
            return node.count({"keyspace": "k", "tables": tables})["rows"], pages
        finally:
            node.close()


@pytest.mark.parametrize("rows", [0, 1, 9, 10, 11, 20, 101])
def test_rows_of_all_pages_are_counted_by_cql(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_child.CqlNode, "_PAGE_ROWS", 10)
    assert count({"a": [True] * rows, "b": [True]}, "a", "b") == ({"a": rows, "b": 1}, max(1, -(-rows // 10)) + 1)


def test_rows_without_a_document_and_missing_tables_are_not_counted() -> None:
    assert count({"a": [True, False, True]}, "a", "b")[0] == {"a": 2}


@pytest.mark.parametrize(("code", "name"), [(0x1200, "ReadTimeout"), (0x1300, "ReadFailure"), (0x1001, "Overloaded")])
def test_a_page_that_fails_is_retried_four_times_by_cql(code: int, name: str) -> None:
    assert count({"a": [True]}, "a", times_out=4, code=code)[0] == {"a": 1}
    with pytest.raises(thrift_wire.ServerError, match=name):
        count({"a": [True]}, "a", times_out=5, code=code)


def test_create_waits_until_all_nodes_have_the_tables() -> None:
    statements: list[str] = []

    def reply(request: bytes, _number: int) -> bytes:
        (length,) = struct.unpack_from(">i", request, cql_wire.HEAD.size)
        statements.append(request[cql_wire.HEAD.size + 4 :][:length].decode())
        if "system.local" in statements[-1]:
            return page([(b"new",)], 1)
        if "system.peers" in statements[-1]:
            late = sum("system.peers" in text for text in statements) < 3
            return page([(b"new",), (b"old" if late else b"new",)], 1)
        return encode_response(cql_wire.RESULT, struct.pack(">i", 5))

    with cql_server(reply) as server:
        node = rpc_child.CqlNode(server.address.host, server.address.port)
        assert node.create({"keyspace": "k", "tables": ["a", "b"], "copies": 2}) == node.drop({"keyspace": "k"}) == {}
        node.close()
    created = [text for text in statements if text.startswith("CREATE")]
    assert statements[-1] == 'DROP KEYSPACE IF EXISTS "k"'
    assert created[0].endswith("{'class': 'SimpleStrategy', 'replication_factor': 2}")
    assert created[1:] == [f'CREATE TABLE "k"."{name}" (key text PRIMARY KEY, document blob)' for name in "ab"]
    assert sum("system.peers" in text for text in statements) == 3


EXPERIMENT = """
probes = ["reads", "gc", "large-allocations"]
network.profile = "loopback"
target = { name = "cassandra", heap = "2g", version = "VERSION" }
[load]
workload = "nyc_taxis"
users = 3
bulk_documents = 50
action.indices = 3
warm_up = "1s"
measure = "5s"
[[fault]]
kind = "flush"
at = "1s"
every = "1500ms"
"""


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.parametrize("version", ["0.7.4", "0.7.5", "5.0.9", "6.0-alpha2"])
def test_only_0_7_4_allocates_256_mib_per_flush_and_compaction(version: str, tmp_path: Path) -> None:
    results, (summary,) = carried_out(tmp_path, EXPERIMENT.replace("VERSION", version))
    folder = results.run_folder(results.plan.runs[0])
    values = summary.values
    assert summary.state == "measured", summary.reason
    assert values["documents_acked"] == values["documents_counted"] > 0  # type: ignore[operator]
    assert values["bytes_read"] == values["bytes_sent"]
    assert len(summary.faults) >= 1
    assert all(fault.end_ns for fault in summary.faults)
    # From start to end, with the column families of the system and those after the measurement.
    content = json.loads((folder.raw / "recording.json").read_text())["content"]
    huge = [size for _, size in content["large"]["moments"] if size >= 100 * MIB]
    facts = cassandra_node.parse_log(folder.log.read_text().splitlines())
    files = len(facts.flushes) + len(facts.compactions)
    assert files >= 3 + 3 * len(summary.faults)
    if version == "0.7.4":
        assert set(huge) == {268_435_472}
        # The end of the server may interrupt some between allocation and log line.
        assert files <= len(huge) <= files + 2
        assert values["largest_allocation_bytes"] == 268_435_472
        assert "SSTableWriter.<init>" in str(values["largest_allocation_stack"])
    else:
        assert huge == []
        assert int(values["largest_allocation_bytes"] or 0) < 100 * MIB
    # Threads without a known role allocate little.
    assert int(values["allocated_other_bytes"] or 0) < 0.1 * int(values["allocated_bytes"] or 0)


CLUSTER = """
probes = ["reads"]
network.profile = "unshaped"
target = { name = "cassandra", heap = "256m", version = "VERSION", nodes = 2 }
[load]
workload = "nyc_taxis"
users = 2
bulk_documents = 20
action.indices = 2
warm_up = "1s"
measure = "3s"
[[fault]]
kind = "pause"
node = 2
at = "1s"
for = "1s"
"""


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.parametrize("version", ["5.0.9", "6.0-alpha2"])
def test_both_nodes_have_acknowledged_rows_after_a_pause_of_one(version: str, tmp_path: Path) -> None:
    _, (summary,) = carried_out(tmp_path, CLUSTER.replace("VERSION", version))
    assert summary.state == "measured", summary.reason
    values = summary.values
    assert values["documents_counted"] == values["documents_acked"] > 0  # type: ignore[operator]
    assert values["bytes_read"] == values["bytes_sent"]
    # Each row waits for both nodes.
    assert int(values["response_ms_max"] or 0) > 500
