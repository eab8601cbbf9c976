"""A run of a real cluster: two OpenSearch nodes in their own namespaces, and faults of one of them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from test_run import carried_out, number

from ingest_bench.network.measure import wire

CLUSTER = """
probes = ["reads", "gc", "host"]
[network]
profile = "ethernet"
[peers]
profile = "ethernet"
to_server.rate = "500mbit"
[target]
nodes = 2
heap = "512m"
[load]
workload = "nyc_taxis"
users = 4
bulk_documents = 100
arrivals = "60/s"
warm_up = "2s"
measure = "6s"
[[fault]]
kind = "pause"
node = 2
at = "2s"
for = "1500ms"
[[fault]]
kind = "throttle"
link = "peers"
node = 2
rate = "100mbit"
at = "4s"
for = "1s"
"""


@pytest.mark.opensearch
@pytest.mark.netns
def test_cluster_is_counted_exactly_and_each_node_has_its_folder(tmp_path: Path) -> None:
    results, (summary,) = carried_out(tmp_path, CLUSTER)
    assert summary.state == "measured", summary.reason
    values = summary.values
    assert number(summary, "documents_counted") == number(summary, "documents_acked") > 0
    assert values["bytes_read"] == values["bytes_sent"]
    assert [number(node, "bytes_read") > 0 for node in summary.nodes] == [True, True]
    assert sum(number(node, "bytes_read") for node in summary.nodes) == values["bytes_read"]
    assert sum(number(node, "documents_acked") for node in summary.nodes) == values["documents_acked"]
    for name in ("reads", "gc_pauses", "server_cpu_s"):
        assert sum(number(node, name) for node in summary.nodes) == pytest.approx(number(summary, name))
    # Its peer waited for the paused node: snapshots are every 250 ms, and a bulk may have been sent late in the pause.
    faults = [(fault.kind, fault.node, fault.link) for fault in summary.faults]
    assert faults == [("pause", 2, ""), ("throttle", 2, "peers")]
    assert number(summary.nodes[1], "peer_wait_ms_max") >= 500
    folder = results.path / summary.run
    assert [len(list(folder.glob(name))) for name in ("raw/wire.json", "node-2/raw/wire.json")] == [1, 1]
    assert {path.name for path in (folder / "node-2").iterdir()} == {"raw", "server.log"}
    record = wire.read_wire(folder / "raw" / "wire-peers-1-2.json")["to-server"]
    assert record is not None
    # Every document is sent to the replica on the second node, in a form that is not much shorter.
    replicated_bytes = sum(size * count for size, count in record.frames.items())
    assert replicated_bytes > 0.4 * number(summary, "bytes_sent")
    with (results.path / "nodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["node"]) for row in rows] == [(summary.run, "1"), (summary.run, "2")]


# The oldest and the newest have different discovery settings (discovery.zen, cluster.initial_master_nodes).
@pytest.mark.nightly
@pytest.mark.elasticsearch
@pytest.mark.netns
@pytest.mark.parametrize("version", ["5.6.16", "8.19.21"])
def test_elasticsearch_cluster_is_counted_exactly(tmp_path: Path, version: str) -> None:
    plain = CLUSTER.partition("[[fault]]")[0].replace(
        "[target]", f'[target]\nname = "elasticsearch"\nversion = "{version}"'
    )
    _, (summary,) = carried_out(tmp_path, plain)
    assert summary.state == "measured", summary.reason
    assert number(summary, "documents_counted") == number(summary, "documents_acked") > 0
    assert [number(node, "bytes_read") > 0 for node in summary.nodes] == [True, True]
