"""Plans with several nodes: links, faults and levels, the start of a cluster, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from running import canned_http

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.experiment import spec
from ingest_bench.faults import checks
from ingest_bench.jvm.java import Java
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import AdminRequest
from ingest_bench.model.network import LinkName
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.network.plan import link_plan
from ingest_bench.targets.base import NodeStart
from ingest_bench.targets.builtin.sink import Sink
from ingest_bench.targets.elastic import node, node_options
from ingest_bench.targets.elastic.versions import ELASTICSEARCH, OPENSEARCH

NODES = tuple(Endpoint(link_plan.node_address(number), 9200) for number in (1, 2, 3))
JAVA = Java(home=Path("/java"), version=17, source="")
THREE = "[target]\nnodes = 3\n"
SLOW = """
[[fault]]
name = "slow"
kind = "throttle"
link = "peers"
node = 2
rate = "20mbit"
delay = "5ms"
at = "1s"
for = "2s"
"""


def load_cells(folder: Path, text: str, *sets: str) -> tuple[Cell, ...]:
    (folder / "x.toml").write_text(text)
    cells = spec.build_cells(spec.load_experiment(str(folder / "x.toml"), sets))
    for cell in cells:
        checks.check_faults(cell)
    return cells


def test_each_node_has_a_link_to_the_clients_and_one_to_each_other_node(tmp_path: Path) -> None:
    (cell,) = load_cells(tmp_path, THREE + '[network]\nprofile = "ethernet"\n[peers]\nto_server.delay = "5ms"\n')
    states = {
        str(name): [state.name for state in profiles] for name, profiles in checks.list_link_profiles(cell).items()
    }
    assert states == {
        **{f"clients-{number}": ["ethernet"] for number in (1, 2, 3)},
        **{f"peers-{pair}": ["unshaped"] for pair in ("1-2", "1-3", "2-3")},
    }
    assert checks.list_link_profiles(cell)[LinkName((1, 2))][0].to_server.delay_ns == 5_000_000


def test_one_node_has_one_link_on_loopback(tmp_path: Path) -> None:
    (cell,) = load_cells(tmp_path, "[load]\nusers = 1\n")
    assert {name: state.name for name, (state,) in checks.list_link_profiles(cell).items()} == {
        LinkName((1,)): "loopback"
    }


def test_a_throttle_changes_only_the_links_of_its_node(tmp_path: Path) -> None:
    (cell,) = load_cells(tmp_path, THREE + SLOW)
    changed = {str(name): profiles[1:] for name, profiles in checks.list_link_profiles(cell).items() if profiles[1:]}
    assert list(changed) == ["peers-1-2", "peers-2-3"]
    (state,) = changed["peers-1-2"]
    assert (state.mtu_bytes, state.to_server.rate_bps, state.to_client.delay_ns) == (65534, 20_000_000, 5_000_000)


def test_a_fault_with_a_name_is_a_level_of_the_factor_fault(tmp_path: Path) -> None:
    always = SLOW.replace('name = "slow"\n', "").replace("node = 2", "node = 1")
    levels = load_cells(tmp_path, '[factors]\nfault = ["none", "slow"]\n' + THREE + SLOW + always)
    assert [[fault.node for fault in cell.faults] for cell in levels] == [[1], [2, 1]]
    with pytest.raises(SpecError, match=r'fault: no \[\[fault\]\] is named "slwo"; did you mean "slow"'):
        load_cells(tmp_path, THREE + SLOW, "fault=slwo")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            THREE + '[network]\nprofile = "loopback"\n',
            '"loopback" has one namespace, and each of 3 nodes requires its own',
        ),
        (THREE + '[peers]\nprofile = "loopback"\n', "peers: "),
        (THREE + '[peers]\ntcp_rmem = "4096 16384 65536"\n', "peers.tcp_rmem: a namespace has one value"),
        (THREE + "[load]\nnodes = 4\n", "load.nodes: node 4 does not exist; target.nodes is 3"),
        (THREE + SLOW.replace("node = 2", "node = 4"), "node 4 does not exist; target.nodes is 3"),
        (SLOW.replace("node = 2\n", ""), "link peers requires target.nodes > 1"),
        (THREE + SLOW.replace("node = 2", 'direction = "to-server"'), "to-server on link peers requires a node"),
        (THREE + SLOW.replace('rate = "20mbit"\ndelay = "5ms"\n', ""), "fault throttle: "),
        (THREE + SLOW.replace('"throttle"', '"partition"'), "fault partition: it does not use rate"),
        (THREE + '[[fault]]\nkind = "flush"\nat = "1s"\nnode = 2\n', "fault flush: it acts on all nodes"),
        (
            THREE + '[[fault]]\nkind = "pause"\nat = "1s"\nfor = "1s"\nlink = "peers"\n',
            "fault pause: it does not act on links",
        ),
        (THREE + SLOW.replace('"slow"', '"none"'), '"none" is the level without a fault'),
        ("[target]\nnodes = 10\n", "nodes: "),
        ('[target]\nnodes = 2\nurl = "http://127.0.0.1:9200"\n', "target.nodes: the server of target.url runs already"),
    ],
)
def test_impossible_plans_of_several_nodes_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_cells(tmp_path, text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_each_node_of_a_cluster_knows_all_addresses() -> None:
    options = TargetOptions(nodes=3)
    argv = node_options.build_argv(
        OPENSEARCH.version(options), NodeStart(options, JAVA, Path("/home"), 1, NODES), Path("/dist")
    )
    assert {
        "-Enode.name=node-2",
        "-Enetwork.host=127.18.2.2",
        "-Etransport.port=9300",
        "-Ediscovery.seed_hosts=127.18.2.1:9300,127.18.2.2:9300,127.18.2.3:9300",
        "-Ecluster.initial_cluster_manager_nodes=node-1,node-2,node-3",
    } <= set(argv)
    assert "-Ediscovery.type=single-node" not in argv


def test_an_old_elasticsearch_has_its_own_discovery_settings() -> None:
    version = ELASTICSEARCH.table["5.6.16"]
    assert node_options.cluster_settings(version, 0, NODES) == {
        "node.name": "node-1",
        "transport.tcp.port": "9300",
        "discovery.zen.ping.unicast.hosts": "127.18.2.1:9300,127.18.2.2:9300,127.18.2.3:9300",
        "discovery.zen.minimum_master_nodes": "2",
    }
    later = node_options.cluster_settings(ELASTICSEARCH.table["7.17.29"], 0, NODES)
    assert later["cluster.initial_master_nodes"] == "node-1,node-2,node-3"


@pytest.mark.parametrize(("replicas", "copies"), [(None, 2), (1, 1), (0, 0)])
def test_an_index_has_a_copy_on_each_node_and_waits_for_all(replicas: int | None, copies: int) -> None:
    options = TargetOptions(nodes=3, replicas=replicas)
    settings = OPENSEARCH.index_body(options, {})["settings"]
    assert settings["index.number_of_replicas"] == copies
    assert ("index.write.wait_for_active_shards" in settings) == bool(copies)
    mapped = OPENSEARCH.index_body(options, {"settings": {"number_of_replicas": 5}})["settings"]
    # The settings of a track win, unless the target has replicas.
    assert ("index.number_of_replicas" not in mapped) == (replicas is None)


def test_preloaded_indices_wait_for_their_copies() -> None:
    def prepare(*names: str, replicas: int | None = None) -> tuple[AdminRequest, ...]:
        mapping = {"settings": {"number_of_shards": 2}}
        return OPENSEARCH.prepare(TargetOptions(nodes=3, replicas=replicas), names, mapping).requests_if_preloaded

    green, first, last = prepare("rides", "more")
    assert green == last
    assert (green.until_path, green.until_value, green.accepted_statuses) == ("status", "green", (200, 408))
    assert green.path.startswith("/_cluster/health/rides,more?wait_for_status=green&")
    assert first.body is not None
    cancelled = [tuple(command["cancel"].values()) for command in first.body["commands"]]
    assert cancelled == [
        (name, shard, node, True) for name in ("rides", "more") for shard in (0, 1) for node in ("node-2", "node-3")
    ]
    # If not each node has a copy, their places are unknown yet.
    (only,) = prepare("rides", replicas=1)
    assert only.until_value == "green"
    assert prepare() == ()


@pytest.mark.parametrize("wrong", ["x", "", "-1", 0, 1025, 10**12, 1.5, True, None, [2], "\u00b2"])
@pytest.mark.parametrize("nodes", [1, 3])
def test_an_invalid_number_of_shards_is_refused(nodes: int, wrong: Any) -> None:
    options = TargetOptions(nodes=nodes)
    for settings in (
        {"number_of_shards": wrong},
        {"index.number_of_shards": wrong},
        {"index": {"number_of_shards": wrong}},
    ):
        with pytest.raises(SpecError, match=r'mapping: "number_of_shards" is .*write a whole number from 1 to 1024'):
            OPENSEARCH.prepare(options, ("rides",), {"settings": settings})
        request = AdminRequest(method="PUT", path="/rides", body={"settings": settings})
        with pytest.raises(SpecError, match="number_of_shards"):
            OPENSEARCH.adapt_track_request(options, "create-index", request)


def test_a_number_of_shards_may_be_text() -> None:
    settings = {"number_of_shards": "2", "index": {"refresh_interval": "1s"}}
    prepared = OPENSEARCH.prepare(TargetOptions(nodes=3), ("rides",), {"settings": settings})
    body = prepared.requests[0].body or {}
    assert "index.number_of_shards" not in body["settings"]
    assert len((prepared.requests_if_preloaded[1].body or {})["commands"]) == 2 * 2


def test_primaries_are_on_the_first_node_and_copies_exist_before_a_load() -> None:
    held, released, green = OPENSEARCH.prepare(TargetOptions(nodes=3), ("rides",), {"mappings": {}}).requests
    assert (held.method, held.path) == ("PUT", "/rides")
    assert held.body is not None
    assert held.body["settings"] == {
        "index.number_of_shards": 1,
        "index.number_of_replicas": 0,
        "index.write.wait_for_active_shards": "all",
        "index.routing.allocation.include._name": "node-1",
    }
    assert (released.path, released.body) == (
        "/rides/_settings",
        {"index.number_of_replicas": 2, "index.routing.allocation.include._name": None},
    )
    # Workloads are published for one node: their replicas are ignored.
    for settings in (
        {"number_of_replicas": 0, "index": {"refresh_interval": "1s"}},
        {"number_of_replicas": 0},
        {"index.number_of_replicas": 0},
        {"index": {"number_of_replicas": 0}},
    ):
        _, second, _ = OPENSEARCH.prepare(TargetOptions(nodes=3), ("rides",), {"settings": settings}).requests
        assert second == released
    assert green.path == "/_cluster/health/rides?wait_for_status=green&timeout=50s"
    create, wait = OPENSEARCH.prepare(TargetOptions(nodes=3, replicas=0), ("rides",), {}).requests
    assert (create.path, wait.path) == ("/rides", green.path)


@pytest.mark.parametrize(
    ("status", "body", "missing"),
    [
        (200, '{"nodes": {"a": {"name": "node-1"}, "b": {"name": "node-3"}, "c": {"name": "node-2"}}}', []),
        (200, '{"nodes": {"a": {"name": "node-1"}, "b": {"name": "node-3"}}}', ["node-2"]),
        (503, '{"error": "master_not_discovered_exception"}', ["node-2", "node-3"]),
        (200, "no JSON", ["node-2", "node-3"]),
        (200, '{"nodes": ["what"]}', ["node-2", "node-3"]),
    ],
)
def test_missing_nodes_of_a_cluster_are_named(status: int, body: str, missing: list[str]) -> None:
    http = canned_http({"/_cluster/state/nodes?local=true": (status, body.encode())})
    assert node.find_missing_nodes(http, 0, 3) == missing
    assert node.find_missing_nodes(http, 0, 1) == []


def test_counters_of_several_sinks_are_added() -> None:
    def read(*bodies: bytes) -> dict[str, Any]:
        return Sink().read_counters([canned_http({"/_counters": (200, body)}) for body in bodies])

    total = read(
        b'{"reads": 3, "by_peer_port": {"40000": {"reads": 3}}}',
        b'{"reads": 4, "by_peer_port": {"40000": {"reads": 1}, "40001": {"reads": 3}}}',
    )
    assert total == {"reads": 7, "by_peer_port": {"40000": {"reads": 4}, "40001": {"reads": 3}}}
    for body in (b'{"reads": {"a": 1}}', b"[1]"):
        with pytest.raises(RunFailed, match="http://h: the counters of its nodes differ in structure"):
            read(b'{"reads": 1}', body)
