"""Cassandra 0.7: what it is told, what it says, and CASSANDRA-2463 on the real servers, the one of today beside it."""

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

from ingest_bench import idl, targets
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.jvm.java import Java
from ingest_bench.lab import steps
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.model.values import GIB, MIB
from ingest_bench.model.workload import BulkAction
from ingest_bench.targets.cassandra import log
from ingest_bench.targets.cassandra.thrift import thrift_asker, thrift_files

CASSANDRA = TargetOptions(name="cassandra", heap_bytes=2 * GIB)
HERE = Endpoint("198.18.2.1", 9160)
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


def told(setting: dict[str, str] | None = None, **options: Any) -> TargetOptions:
    return dataclasses.replace(CASSANDRA, setting=setting or {}, **options)


def test_its_log_tells_flushes_and_compactions_with_their_moments() -> None:
    found = log.parse(LOG.splitlines(keepends=True))
    assert found.version == "0.7.4"
    assert found.flushes == ((1795403599751000000, 335),)  # the second one has not ended
    assert found.compactions == (1795403614352000000,)
    assert found.up == {"198.18.4.1", "198.18.5.1"}
    assert log.parse(["\0", "2026-11-23 99:99:99,000 nonsense"]) == log.LogFacts("", "", (), (), frozenset())


def test_a_log_with_a_moment_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(LOG + "2026-11-23 03:93:19,751  INFO CompactionManager Compacting [x]\n")
    node: Any = SimpleNamespace(log=tmp_path / "server.log")
    with pytest.raises(RunFailed, match=r"server\.log: this log is damaged: time data '2026-11-23 03:93"):
        targets.of(CASSANDRA).counters([node])


def test_settings_become_its_yaml_and_its_memtables() -> None:
    asked = told({"in_memory_compaction_limit_in_mb": "64", "memtable_operations_in_millions": "0.01"})
    yaml = json.loads(thrift_files.files(asked, Path("/h"), 0, (HERE,))["cassandra.yaml"])
    assert yaml["in_memory_compaction_limit_in_mb"] == 64
    assert yaml["seeds"] == ["198.18.2.1"]
    assert (yaml["listen_address"], yaml["rpc_address"], yaml["rpc_port"]) == ("198.18.2.1", "198.18.2.1", 9160)
    assert "memtable_operations_in_millions" not in yaml
    assert thrift_files.memtables(asked)["memtable_operations_in_millions"] == 0.01


def test_nodes_share_the_ring_and_know_the_first_one() -> None:
    nodes = tuple(Endpoint(f"198.18.{number}.1", 9160) for number in (2, 4, 6, 8))
    told = [json.loads(thrift_files.files(CASSANDRA, Path("/h"), place, nodes)["cassandra.yaml"]) for place in range(4)]
    assert [yaml["initial_token"] for yaml in told] == [place * 2**125 for place in range(4)]
    assert {tuple(yaml["seeds"]) for yaml in told} == {("198.18.2.1",)}
    assert [yaml["listen_address"] for yaml in told] == [node.host for node in nodes]


def test_without_a_setting_the_limit_is_the_default_of_the_server() -> None:
    yaml = json.loads(thrift_files.files(CASSANDRA, Path("/h"), 0, (HERE,))["cassandra.yaml"])
    assert "in_memory_compaction_limit_in_mb" not in yaml
    assert thrift_files.memtables(CASSANDRA)["memtable_throughput_in_mb"] == 128


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"in_memory_compaction_limit": "64"}, 'has no "in_memory_compaction_limit"; did you mean'),
        ({"listen_address": "0.0.0.0"}, 'has no "listen_address"'),  # noqa: S104 - that is what must be refused
        ({"concurrent_reads": "many"}, "'many' is not a whole number"),
        ({"concurrent_reads": "1\nseeds: [x]"}, "is not a whole number"),
        ({"disk_access_mode": "a b"}, "is not a word"),
    ],
)
def test_settings_that_it_has_not_are_refused(setting: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        targets.named("cassandra").requirements(told(setting))


@pytest.mark.parametrize("options", [{"allocator": "pooled"}, {"receive_predictor_bytes": (65536,)}, {"gc": "zgc_"}])
def test_what_only_servers_with_netty_have_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises((SpecError, KeyError), match=r"Netty|zgc_"):
        targets.named("cassandra").requirements(told(**options))


def test_its_jvm_has_the_heap_and_the_collector_that_were_asked_for() -> None:
    usual = thrift_files.jvm(CASSANDRA, JAVA, Path("/h"))
    assert {"-Xms2147483648", "-Xmx2147483648", "-XX:+UseConcMarkSweepGC", f"-Xmn{200 * MIB}"} <= set(usual)
    small = thrift_files.jvm(told(heap_bytes=256 * MIB), JAVA, Path("/h"))
    assert f"-Xmn{64 * MIB}" in small
    other = thrift_files.jvm(told(gc="g1"), JAVA, Path("/h"))
    assert "-XX:+UseG1GC" in other
    assert not [option for option in other if option.startswith(("-Xmn", "-XX:+UseConc", "-XX:Survivor"))]


def test_a_column_family_has_a_name_that_it_takes() -> None:
    assert [*map(idl.column_family, ("nyc_taxis-0", "a.b+c"))] == ["nyc_taxis_0", "a_b_c"]


def test_the_keyspace_is_made_before_the_load_with_a_column_family_for_each_index() -> None:
    load = LoadOptions(workload="geopoint", action=BulkAction(indices=3))
    to_do = steps.check(Cell(name="c", levels={}, network=None, target=CASSANDRA, load=load))
    (request,) = to_do.requests
    assert request.path == "/ingest_bench"
    assert request.body is not None
    assert request.body["tables"] == [f"osmgeopoints_{number}" for number in range(3)]
    assert to_do.indices == tuple(f"osmgeopoints-{number}" for number in range(3))


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
def test_only_the_oldest_version_asks_for_256_mib_with_each_flush_and_each_compaction(
    version: str, tmp_path: Path
) -> None:
    results, (summary,) = carried_out(tmp_path, EXPERIMENT.replace("VERSION", version))
    folder = results.run(results.plan.runs[0])
    values = summary.values
    assert summary.state == "measured", summary.reason
    assert values["documents_acked"] == values["documents_counted"] > 0  # type: ignore[operator]
    assert values["bytes_read"] == values["bytes_sent"]
    assert len(summary.faults) >= 1
    assert all(fault.ended for fault in summary.faults)
    # Of its whole life, the system's own column families and what came after the measurement included.
    content = json.loads((folder.raw / "recording.json").read_text())["content"]
    huge = [size for _, size in content["large"]["moments"] if size >= 100 * MIB]
    found = log.parse(folder.log.read_text().splitlines())
    wrote = len(found.flushes) + len(found.compactions)
    assert wrote >= 3 + 3 * len(summary.faults)
    if version == "0.7.4":
        assert set(huge) == {268_435_472}
        # One that the end of the server cut off may have asked before it wrote a line.
        assert wrote <= len(huge) <= wrote + 2
        assert values["largest_allocation_bytes"] == 268_435_472
        assert "SSTableWriter.<init>" in str(values["largest_allocation_stack"])
    else:
        assert huge == []
        assert int(values["largest_allocation_bytes"] or 0) < 100 * MIB


def counted(server: StoreServer, *families: str, keyspace: str = "k") -> dict[str, int]:
    node = thrift_asker.Node(server.address.host, server.address.port)
    try:
        rows: dict[str, int] = thrift_asker.count(node, {"keyspace": keyspace, "tables": families})["rows"]
    finally:
        node.close()
    return rows


@pytest.mark.parametrize("rows", [0, 1, 2, 9, 10, 11, 19, 20, 1000])
def test_rows_are_read_back_to_the_last_one_however_they_fall_into_pages(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thrift_asker, "_FIRST_ROWS", 10)
    monkeypatch.setattr(thrift_asker, "_PAGE_BYTES", 3000)
    with closing(StoreServer({"a": [b"%05d" % number for number in range(rows)], "b": [b"1"]})) as server:
        assert counted(server, "a", "b") == {"a": rows, "b": 1}
        # After the first page as many as have about so many bytes.
        assert all(15 < asked < 30 for asked in server.asked[1:-1])


def test_a_row_without_its_document_is_none() -> None:
    with closing(StoreServer({"a": [b"1", b"2-", b"3"]})) as server:
        assert counted(server, "a") == {"a": 2}


def test_a_page_that_times_out_is_asked_for_again_but_not_for_ever() -> None:
    with closing(StoreServer({"a": [b"1"]})) as server:
        server.times_out = 4
        assert counted(server, "a") == {"a": 1}
        server.times_out = 5
        with pytest.raises(idl.RaisedError, match="TimedOutException"):
            counted(server, "a")


def test_a_keyspace_that_is_not_there_has_no_rows() -> None:
    with closing(StoreServer({})) as server:
        assert counted(server, "a", keyspace="none") == {}
