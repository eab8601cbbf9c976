"""Cassandra 0.7: configuration, log, counts over Thrift, and CASSANDRA-2463 on real servers, also of 5.0."""

from __future__ import annotations

import dataclasses
import json
import re
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_run import carried_out
from thrift_server import StoreServer

from ingest_bench import targets
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.jvm.java import Java
from ingest_bench.lab import planning
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import BulkAction, LoadOptions
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.model.values import GIB, MIB
from ingest_bench.protocols import thrift_wire
from ingest_bench.targets import rpc_child
from ingest_bench.targets.base import NodeStart
from ingest_bench.targets.cassandra import log, thrift

CASSANDRA = TargetOptions(name="cassandra", heap_bytes=2 * GIB)
HERE = Endpoint("198.18.2.1", 9160)
THRIFT = thrift.Thrift()
JAVA = Java(home=Path("/java"), version=11, source="test")
LOG = """
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


def cassandra(setting: dict[str, str] | None = None, **options: Any) -> TargetOptions:
    return dataclasses.replace(CASSANDRA, setting=setting or {}, **options)


def test_flushes_and_compactions_are_parsed_with_their_times() -> None:
    facts = log.parse_log(LOG.splitlines(keepends=True))
    assert facts.version == "0.7.4"
    assert facts.flushes == ((1795403599751000000, 335),)  # the second one has not ended
    assert facts.compactions == (1795403614352000000,)
    assert facts.up == {"198.18.4.1", "198.18.5.1"}
    assert log.parse_log(["\0", "2026-11-23 99:99:99,000 nonsense"]) == log.LogFacts("", "", (), (), frozenset())


def test_a_log_with_an_invalid_time_is_refused(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(LOG + "2026-11-23 03:93:19,751  INFO CompactionManager Compacting [x]\n")
    node: Any = SimpleNamespace(log=tmp_path / "server.log")
    with pytest.raises(RunFailed, match=r"server\.log: this log is damaged: time data '2026-11-23 03:93"):
        targets.resolve(CASSANDRA).read_counters([node])


def test_settings_become_yaml_and_memtable_limits() -> None:
    options = cassandra({"in_memory_compaction_limit_in_mb": "64", "memtable_operations_in_millions": "0.01"})
    yaml = json.loads(THRIFT.config_files(NodeStart(options, JAVA, Path("/h"), 0, (HERE,)))["cassandra.yaml"])
    assert yaml["in_memory_compaction_limit_in_mb"] == 64
    assert yaml["seeds"] == ["198.18.2.1"]
    assert (yaml["listen_address"], yaml["rpc_address"], yaml["rpc_port"]) == ("198.18.2.1", "198.18.2.1", 9160)
    assert "memtable_operations_in_millions" not in yaml
    assert thrift.memtable_limits(options)["memtable_operations_in_millions"] == 0.01


def test_nodes_share_the_ring_and_have_one_seed() -> None:
    nodes = tuple(Endpoint(f"198.18.{number}.1", 9160) for number in (2, 4, 6, 8))
    files = [
        json.loads(THRIFT.config_files(NodeStart(CASSANDRA, JAVA, Path("/h"), number, nodes))["cassandra.yaml"])
        for number in range(4)
    ]
    assert [yaml["initial_token"] for yaml in files] == [number * 2**125 for number in range(4)]
    assert {tuple(yaml["seeds"]) for yaml in files} == {("198.18.2.1",)}
    assert [yaml["listen_address"] for yaml in files] == [node.host for node in nodes]


def test_memtable_limits_default_to_those_of_0_7_4() -> None:
    yaml = json.loads(THRIFT.config_files(NodeStart(CASSANDRA, JAVA, Path("/h"), 0, (HERE,)))["cassandra.yaml"])
    assert "in_memory_compaction_limit_in_mb" not in yaml
    assert thrift.memtable_limits(CASSANDRA)["memtable_throughput_in_mb"] == 128


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"setting": {"in_memory_compaction_limit": "64"}}, 'has no "in_memory_compaction_limit"; did you mean'),
        ({"setting": {"listen_address": "192.0.2.1"}}, 'has no "listen_address"'),
        ({"setting": {"concurrent_reads": "1\nseeds: [x]"}}, "is not a whole number"),
        ({"allocator": "pooled"}, "no Netty"),
        ({"receive_predictor_bytes": (65536,)}, "no Netty"),
    ],
)
def test_unsupported_options_and_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        targets.find_target("cassandra").requirements(cassandra(**fields))


def test_the_jvm_has_the_chosen_heap_and_collector() -> None:
    default = THRIFT.jvm_flags(NodeStart(CASSANDRA, JAVA, Path("/h"), 0, (HERE,)))
    assert {"-Xms2147483648", "-Xmx2147483648", "-XX:+UseConcMarkSweepGC", f"-Xmn{200 * MIB}"} <= set(default)
    small = THRIFT.jvm_flags(NodeStart(cassandra(heap_bytes=256 * MIB), JAVA, Path("/h"), 0, (HERE,)))
    assert f"-Xmn{64 * MIB}" in small
    other = THRIFT.jvm_flags(NodeStart(cassandra(gc="g1"), JAVA, Path("/h"), 0, (HERE,)))
    assert "-XX:+UseG1GC" in other
    assert not [option for option in other if option.startswith(("-Xmn", "-XX:+UseConc", "-XX:Survivor"))]


def test_names_of_column_families_are_valid() -> None:
    assert [*map(thrift_wire.table_name, ("nyc_taxis-0", "a.b+c"))] == ["nyc_taxis_0", "a_b_c"]


def test_the_keyspace_is_created_with_a_column_family_per_index() -> None:
    load = LoadOptions(workload="geopoint", action=BulkAction(indices=3))
    preparation = planning.check_procedure(Cell(name="c", levels={}, network=None, target=CASSANDRA, load=load))
    (request,) = preparation.requests
    assert request.path == "/ingest_bench"
    assert request.body is not None
    assert request.body["tables"] == [f"osmgeopoints_{number}" for number in range(3)]
    assert preparation.indices == tuple(f"osmgeopoints-{number}" for number in range(3))


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
@pytest.mark.parametrize("version", ["0.7.4", "0.7.5", "5.0.9"])
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
    facts = log.parse_log(folder.log.read_text().splitlines())
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


def count(server: StoreServer, *families: str, keyspace: str = "k") -> dict[str, int]:
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
        assert count(server, "a", "b") == {"a": rows, "b": 1}
        # After the first page, pages are sized by bytes.
        assert all(15 < rows < 30 for rows in server.page_sizes[1:-1])


def test_a_row_without_a_document_is_not_counted() -> None:
    with closing(StoreServer({"a": [b"1", b"2-", b"3"]})) as server:
        assert count(server, "a") == {"a": 2}


def test_a_page_that_times_out_is_retried_four_times() -> None:
    with closing(StoreServer({"a": [b"1"]})) as server:
        server.times_out = 4
        assert count(server, "a") == {"a": 1}
        server.times_out = 5
        with pytest.raises(thrift_wire.ServerError, match="TimedOutException"):
            count(server, "a")


def test_a_missing_keyspace_has_no_rows() -> None:
    with closing(StoreServer({})) as server:
        assert count(server, "a", keyspace="none") == {}
