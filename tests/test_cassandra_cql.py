"""Cassandra 5: what it is told, what it says, and how its rows are read back."""

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
from cql_server import cql_server, frame, raised
from test_run import carried_out

from ingest_bench import idl, targets
from ingest_bench.errors import InvalidRun, SpecError
from ingest_bench.experiment import catalog
from ingest_bench.idl import cql
from ingest_bench.jvm.java import Java
from ingest_bench.lab import steps
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.model.values import GIB
from ingest_bench.model.workload import BulkAction
from ingest_bench.targets import cassandra
from ingest_bench.targets.cassandra import log
from ingest_bench.targets.cassandra.cql import cql_asker, cql_files
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


def told(setting: dict[str, str] | None = None, **options: Any) -> TargetOptions:
    return dataclasses.replace(CASSANDRA, setting=setting or {}, **options)


def yaml(asked: TargetOptions, node: int = 0, nodes: Sequence[Endpoint] = (HERE,)) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cql_files.files(asked, Path("/h"), node, nodes)["cassandra.yaml"])
    return found


def test_its_log_tells_flushes_that_overlap_and_compactions() -> None:
    found = log.parse(LOG.splitlines(keepends=True))
    assert (found.version, found.java, found.up) == ("5.0.9", "17.0.15", frozenset(("198.18.4.1",)))
    # The third one has not ended. Each size belongs to the table that began.
    assert [size for _, size in found.flushes] == [44.5 * 2**20, 178]
    assert [at % 10**12 for at, _ in found.flushes] == [920_032_000_000, 920_500_000_000]
    assert len(found.compactions) == 1


def test_settings_become_its_yaml_as_it_writes_them() -> None:
    asked = told(
        {
            "compaction_throughput": "64MiB/s",
            "commitlog_sync_period": "500ms",
            "concurrent_writes": "8",
            "memtable_cleanup_threshold": "0.25",
            "trickle_fsync": "true",
        }
    )
    found = yaml(asked)
    assert (found["compaction_throughput"], found["commitlog_sync_period"]) == ("64MiB/s", "500ms")
    assert (found["concurrent_writes"], found["memtable_cleanup_threshold"], found["trickle_fsync"]) == (8, 0.25, True)
    assert (found["listen_address"], found["rpc_address"]) == ("198.18.2.1", "198.18.2.1")
    assert found["native_transport_port"] == 9042


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"concurrent_write": "64"}, 'has no "concurrent_write"; did you mean "concurrent_writes"'),
        ({"listen_address": "0.0.0.0"}, 'has no "listen_address"'),  # noqa: S104 - that is what must be refused
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
def test_settings_that_it_has_not_are_refused(setting: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        targets.named("cassandra").requirements(told(setting))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"allocator": "pooled"}, "no setting for its clients' connections"),
        ({"receive_predictor_bytes": (65536,)}, "no setting for its clients' connections"),
        ({"gc": "cms"}, 'Java 17 has no "cms"'),
        ({"replicas": 2, "nodes": 2}, "3 copies, and there are 2 nodes"),
    ],
)
def test_what_it_has_not_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        targets.named("cassandra").requirements(told(**options))


def test_nodes_share_the_ring_and_know_the_first_one() -> None:
    nodes = tuple(Endpoint(f"198.18.{number}.1", 9042) for number in (2, 4, 6, 8))
    found = [yaml(CASSANDRA, place, nodes) for place in range(4)]
    assert [int(one["initial_token"]) for one in found] == [-(2**63), -(2**62), 0, 2**62]
    assert {one["seed_provider"][0]["parameters"][0]["seeds"] for one in found} == {"198.18.2.1:7000"}
    assert [one["listen_address"] for one in found] == [node.host for node in nodes]


def test_its_jvm_has_the_heap_and_the_collector_that_were_asked_for_and_reads_by_nio() -> None:
    usual = cql_files.jvm(CASSANDRA, JAVA, Path("/h"))
    assert {"-Xms2147483648", "-Xmx2147483648", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=300"} <= set(usual)
    assert "-Dcassandra.native.epoll.enabled=false" in usual
    other = cql_files.jvm(told(gc="parallel"), JAVA, Path("/h"))
    assert "-XX:+UseParallelGC" in other
    assert not [option for option in other if option.startswith(("-XX:+UseG1", "-XX:G1", "-XX:MaxGC"))]


@pytest.mark.parametrize(("options", "copies"), [({}, 1), ({"nodes": 3}, 3), ({"nodes": 3, "replicas": 1}, 2)])
def test_the_keyspace_is_made_before_the_load_with_a_table_for_each_index(options: dict[str, Any], copies: int) -> None:
    load = LoadOptions(workload="geopoint", action=BulkAction(indices=3))
    to_do = steps.check(Cell(name="c", levels={}, network=None, target=told(**options), load=load))
    (request,) = to_do.requests
    assert request.path == "/ingest_bench"
    assert request.body == {"tables": [f"osmgeopoints_{number}" for number in range(3)], "copies": copies}


def test_each_version_has_its_protocol_and_its_port() -> None:
    target = targets.named("cassandra")
    found = {
        version: (target.wire(asked, catalog.workload("geopoint")).protocol, target.listens(asked).port)
        for version in target.versions
        for asked in (TargetOptions(name="cassandra", version=version),)
    }
    assert found == {"0.7.4": ("thrift", 9160), "0.7.5": ("thrift", 9160), "5.0.9": ("cql", 9042)}


@pytest.mark.parametrize("version", ["5.0.8", ""])
def test_a_node_of_another_version_makes_the_run_invalid(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_text(LOG, encoding="utf-8")
    http = Http("", SimpleNamespace(), {}, HERE, tuple, path)  # type: ignore[arg-type]
    monkeypatch.setattr(cassandra, "answer", lambda *_, **__: {"version": version, "interface": "3.4.7"})
    with pytest.raises(InvalidRun, match=f"asked for version 5.0.9, it says {version or 'none'}"):
        targets.named("cassandra").describe(http, CASSANDRA)
    path.write_text(LOG.replace("5.0.9", "5.0.7"), encoding="utf-8")
    with pytest.raises(InvalidRun, match=r"asked for version 5.0.9, its log says 5.0.7"):
        targets.named("cassandra").describe(http, CASSANDRA)


def page(values: Sequence[Sequence[bytes | None]], columns: int, following: bytes | None = None) -> bytes:
    """A page of rows, as a server answers."""

    def value(one: bytes | None) -> bytes:
        return struct.pack(">i", -1) if one is None else struct.pack(">i", len(one)) + one

    flags = 4 if following is None else 6
    state = b"" if following is None else value(following)
    head = struct.pack(">iii", cql.ROWS, flags, columns) + state + struct.pack(">i", len(values))
    return frame(cql.RESULT, head + b"".join(value(one) for row in values for one in row))


def counted(
    stored: Mapping[str, Sequence[bool]], *tables: str, times_out: int = 0, code: int = 0x1200
) -> tuple[dict[str, int], int]:
    """What the asker counts where these tables have such rows (with a document, or without), and in how many pages."""
    pages, left = 0, times_out

    def reply(request: bytes, _number: int) -> bytes:
        nonlocal pages, left
        (length,) = struct.unpack_from(">i", request, cql.HEAD.size)
        place = cql.HEAD.size + 4 + length
        text = request[cql.HEAD.size + 4 : place].decode()
        if "system_schema.tables" in text:
            assert "keyspace_name = 'k'" in text
            return page([(name.encode(),) for name in stored], 1)
        if left:
            left -= 1
            return raised(code, "Operation timed out")
        pages += 1
        found = re.fullmatch(r'SELECT writetime\(document\) FROM "k"\."(\w+)"', text)
        assert found is not None
        _, flags, most = struct.unpack_from(">HBi", request, place)
        start = int(request[place + 11 :]) if flags & 8 else 0
        rows = stored[found[1]]
        following = str(start + most).encode() if start + most < len(rows) else None
        return page([(b"x" * 8 if there else None,) for there in rows[start : start + most]], 1, following)

    with cql_server(reply) as server:
        node = cql_asker.Node(server.address.host, server.address.port)
        try:
            return cql_asker.count(node, {"keyspace": "k", "tables": tables})["rows"], pages
        finally:
            node.close()


@pytest.mark.parametrize("rows", [0, 1, 9, 10, 11, 20, 101])
def test_rows_are_read_back_to_the_last_one_however_they_fall_into_pages(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cql_asker, "_PAGE_ROWS", 10)
    assert counted({"a": [True] * rows, "b": [True]}, "a", "b") == ({"a": rows, "b": 1}, max(1, -(-rows // 10)) + 1)


def test_a_row_without_its_document_is_none_and_a_table_that_is_not_there_has_none() -> None:
    assert counted({"a": [True, False, True]}, "a", "b")[0] == {"a": 2}


@pytest.mark.parametrize(("code", "name"), [(0x1200, "ReadTimeout"), (0x1300, "ReadFailure"), (0x1001, "Overloaded")])
def test_a_page_that_times_out_is_asked_for_again_but_not_for_ever(code: int, name: str) -> None:
    assert counted({"a": [True]}, "a", times_out=4, code=code)[0] == {"a": 1}
    with pytest.raises(idl.RaisedError, match=name):
        counted({"a": [True]}, "a", times_out=5, code=code)


def test_tables_are_there_once_all_nodes_know_them() -> None:
    asked: list[str] = []

    def reply(request: bytes, _number: int) -> bytes:
        (length,) = struct.unpack_from(">i", request, cql.HEAD.size)
        asked.append(request[cql.HEAD.size + 4 :][:length].decode())
        if "system.local" in asked[-1]:
            return page([(b"new",)], 1)
        if "system.peers" in asked[-1]:
            late = sum("system.peers" in text for text in asked) < 3
            return page([(b"new",), (b"old" if late else b"new",)], 1)
        return frame(cql.RESULT, struct.pack(">i", 5))

    with cql_server(reply) as server:
        node = cql_asker.Node(server.address.host, server.address.port)
        assert cql_asker.create(node, {"keyspace": "k", "tables": ["a", "b"], "copies": 2}) == {}
        node.close()
    made = [text for text in asked if text.startswith("CREATE")]
    assert made[0].endswith("{'class': 'SimpleStrategy', 'replication_factor': 2}")
    assert made[1:] == [f'CREATE TABLE "k"."{name}" (key text PRIMARY KEY, document blob)' for name in "ab"]
    assert sum("system.peers" in text for text in asked) == 3


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
def test_what_two_nodes_acknowledged_both_have_although_one_stood_still(tmp_path: Path) -> None:
    _, (summary,) = carried_out(tmp_path, CLUSTER)
    assert summary.state == "measured", summary.reason
    values = summary.values
    assert values["documents_counted"] == values["documents_acked"] > 0  # type: ignore[operator]
    assert values["bytes_read"] == values["bytes_sent"]
    # Each row waits for both.
    assert int(values["response_ms_max"] or 0) > 500
