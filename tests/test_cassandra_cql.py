"""Cassandra 5: configuration, log, and counts over CQL."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cql_server import cql_server, encode_error, encode_response
from test_run import carried_out

from ingest_bench import targets
from ingest_bench.errors import InvalidRun, SpecError
from ingest_bench.experiment import catalog
from ingest_bench.jvm.java import Java
from ingest_bench.lab import planning
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import BulkAction, LoadOptions
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.model.values import GIB
from ingest_bench.protocols import cql_wire, thrift_wire
from ingest_bench.targets import rpc_child
from ingest_bench.targets.base import NodeStart
from ingest_bench.targets.cassandra import log
from ingest_bench.targets.cassandra.cql import Cql
from ingest_bench.targets.http import Http

CASSANDRA = TargetOptions(name="cassandra", version="5.0.9", heap_bytes=2 * GIB)
HERE = Endpoint("198.18.2.1", 9042)
JAVA = Java(home=Path("/java"), version=17, source="test")
LOG = """
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


def cassandra(setting: dict[str, str] | None = None, **options: Any) -> TargetOptions:
    return dataclasses.replace(CASSANDRA, setting=setting or {}, **options)


def yaml(options: TargetOptions, node: int = 0, nodes: Sequence[Endpoint] = (HERE,)) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(
        Cql().config_files(NodeStart(options, JAVA, Path("/h"), node, nodes))["cassandra.yaml"]
    )
    return values


def test_overlapping_flushes_and_compactions_are_parsed() -> None:
    facts = log.parse_log(LOG.splitlines(keepends=True))
    assert (facts.version, facts.java, facts.up) == ("5.0.9", "17.0.15", frozenset(("198.18.4.1",)))
    # The third flush has not ended. Each size belongs to a table.
    assert [size for _, size in facts.flushes] == [44.5 * 2**20, 178]
    assert [at % 10**12 for at, _ in facts.flushes] == [920_032_000_000, 920_500_000_000]
    assert len(facts.compactions) == 1


def test_settings_become_yaml() -> None:
    options = cassandra(
        {
            "compaction_throughput": "64MiB/s",
            "commitlog_sync_period": "500ms",
            "concurrent_writes": "8",
            "memtable_cleanup_threshold": "0.25",
            "trickle_fsync": "true",
        }
    )
    values = yaml(options)
    assert (values["compaction_throughput"], values["commitlog_sync_period"]) == ("64MiB/s", "500ms")
    assert (values["concurrent_writes"], values["memtable_cleanup_threshold"], values["trickle_fsync"]) == (
        8,
        0.25,
        True,
    )
    assert (values["listen_address"], values["rpc_address"]) == ("198.18.2.1", "198.18.2.1")
    assert values["native_transport_port"] == 9042


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"concurrent_write": "64"}, 'has no "concurrent_write"; did you mean "concurrent_writes"'),
        ({"listen_address": "0.0.0.0"}, 'has no "listen_address"'),  # noqa: S104 - must be refused
        ({"data_file_directories": "/etc"}, 'has no "data_file_directories"'),
        ({"in_memory_compaction_limit_in_mb": "64"}, 'has no "in_memory_compaction_limit_in_mb"'),
        ({"concurrent_reads": "many"}, "'many' is not a whole number"),
        ({"concurrent_reads": "1\nseeds: [x]"}, "is not a whole number"),
        ({"disk_access_mode": "a b"}, "is not a word"),
        ({"trickle_fsync": "yes"}, "'yes' is not true or false"),
        ({"commitlog_sync_period": "10"}, "is not a duration as Cassandra writes it"),
        ({"key_cache_size": "10MB"}, "is not a size as Cassandra writes it"),
        ({"compaction_throughput": "10MB/s"}, "is not a rate as Cassandra writes it"),
    ],
)
def test_unknown_settings_and_invalid_values_are_refused(setting: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        targets.find_target("cassandra").requirements(cassandra(setting))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allocator": "pooled"}, "no setting for its clients' connections"),
        ({"receive_predictor_bytes": (65536,)}, "no setting for its clients' connections"),
        ({"gc": "cms"}, 'Java 17 has no "cms"'),
        ({"replicas": 2, "nodes": 2}, "2 replicas need 3 nodes"),
    ],
)
def test_unsupported_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        targets.find_target("cassandra").requirements(cassandra(**options))


def test_nodes_share_the_ring_and_have_one_seed() -> None:
    nodes = tuple(Endpoint(f"198.18.{number}.1", 9042) for number in (2, 4, 6, 8))
    files = [yaml(CASSANDRA, number, nodes) for number in range(4)]
    assert [int(file["initial_token"]) for file in files] == [-(2**63), -(2**62), 0, 2**62]
    assert {file["seed_provider"][0]["parameters"][0]["seeds"] for file in files} == {"198.18.2.1:7000"}
    assert [file["listen_address"] for file in files] == [node.host for node in nodes]


def test_the_jvm_has_the_chosen_heap_and_collector_and_nio() -> None:
    default = Cql().jvm_flags(NodeStart(CASSANDRA, JAVA, Path("/h"), 0, (HERE,)))
    assert {"-Xms2147483648", "-Xmx2147483648", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=300"} <= set(default)
    assert "-Dcassandra.native.epoll.enabled=false" in default
    other = Cql().jvm_flags(NodeStart(cassandra(gc="parallel"), JAVA, Path("/h"), 0, (HERE,)))
    assert "-XX:+UseParallelGC" in other
    assert not [option for option in other if option.startswith(("-XX:+UseG1", "-XX:G1", "-XX:MaxGC"))]


@pytest.mark.parametrize(("options", "copies"), [({}, 1), ({"nodes": 3}, 3), ({"nodes": 3, "replicas": 1}, 2)])
def test_the_keyspace_is_created_with_a_table_per_index(options: dict[str, Any], copies: int) -> None:
    load = LoadOptions(workload="geopoint", action=BulkAction(indices=3))
    preparation = planning.check_procedure(
        Cell(name="c", levels={}, network=None, target=cassandra(**options), load=load)
    )
    (request,) = preparation.requests
    assert request.path == "/ingest_bench"
    assert request.body == {"tables": [f"osmgeopoints_{number}" for number in range(3)], "copies": copies}


def test_each_version_has_its_protocol_and_port() -> None:
    target = targets.find_target("cassandra")
    ports = {
        version: (target.wire(options, catalog.load_workload("geopoint")).protocol, target.listens(options).port)
        for version in target.versions
        for options in (TargetOptions(name="cassandra", version=version),)
    }
    assert ports == {"0.7.4": ("thrift", 9160), "0.7.5": ("thrift", 9160), "5.0.9": ("cql", 9042)}


@pytest.mark.parametrize("version", ["5.0.8", ""])
def test_a_node_of_another_version_makes_the_run_invalid(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_text(LOG, encoding="utf-8")
    http = Http("", SimpleNamespace(), {}, HERE, tuple, path)  # type: ignore[arg-type]
    monkeypatch.setattr(Http, "ask_rpc", lambda *_, **__: {"version": version, "interface": "3.4.7"})
    with pytest.raises(InvalidRun, match=f"expected version 5.0.9; the node reports {version or 'none'}"):
        targets.find_target("cassandra").describe(http, CASSANDRA)
    path.write_text(LOG.replace("5.0.9", "5.0.7"), encoding="utf-8")
    with pytest.raises(InvalidRun, match=r"expected version 5.0.9; its log reports 5.0.7"):
        targets.find_target("cassandra").describe(http, CASSANDRA)


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
def test_rows_of_all_pages_are_counted(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_child.CqlNode, "_PAGE_ROWS", 10)
    assert count({"a": [True] * rows, "b": [True]}, "a", "b") == ({"a": rows, "b": 1}, max(1, -(-rows // 10)) + 1)


def test_rows_without_a_document_and_missing_tables_are_not_counted() -> None:
    assert count({"a": [True, False, True]}, "a", "b")[0] == {"a": 2}


@pytest.mark.parametrize(("code", "name"), [(0x1200, "ReadTimeout"), (0x1300, "ReadFailure"), (0x1001, "Overloaded")])
def test_a_page_that_times_out_is_retried_four_times(code: int, name: str) -> None:
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
        assert node.create({"keyspace": "k", "tables": ["a", "b"], "copies": 2}) == {}
        node.close()
    created = [text for text in statements if text.startswith("CREATE")]
    assert created[0].endswith("{'class': 'SimpleStrategy', 'replication_factor': 2}")
    assert created[1:] == [f'CREATE TABLE "k"."{name}" (key text PRIMARY KEY, document blob)' for name in "ab"]
    assert sum("system.peers" in text for text in statements) == 3


CLUSTER = """
probes = ["reads"]
network.profile = "unshaped"
target = { name = "cassandra", heap = "256m", version = "5.0.9", nodes = 2 }
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
def test_both_nodes_have_acknowledged_rows_after_a_pause_of_one(tmp_path: Path) -> None:
    _, (summary,) = carried_out(tmp_path, CLUSTER)
    assert summary.state == "measured", summary.reason
    values = summary.values
    assert values["documents_counted"] == values["documents_acked"] > 0  # type: ignore[operator]
    assert values["bytes_read"] == values["bytes_sent"]
    # Each row waits for both nodes.
    assert int(values["response_ms_max"] or 0) > 500
