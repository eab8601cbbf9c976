"""Several nodes, on paper: links, faults and levels, how a cluster is started, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.faults import checks
from ingest_bench.jvm.java import Java
from ingest_bench.model.experiment import Cell
from ingest_bench.model.network import LinkName
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.model.track import AdminRequest
from ingest_bench.network.plan import places
from ingest_bench.targets.elastic import node_answers, node_options
from ingest_bench.targets.elastic.elasticsearch import ELASTICSEARCH
from ingest_bench.targets.elastic.opensearch import OPENSEARCH
from ingest_bench.targets.http import Answer
from ingest_bench.targets.small.sink import Sink

NODES = tuple(Endpoint(places.node_address(number), 9200) for number in (1, 2, 3))
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


def cells(folder: Path, text: str, *sets: str) -> tuple[Cell, ...]:
    (folder / "x.toml").write_text(text)
    found = spec.cells(spec.load(str(folder / "x.toml"), sets))
    for cell in found:
        checks.check(cell)
    return found


def test_each_node_has_a_link_to_the_clients_and_one_to_each_other_node(tmp_path: Path) -> None:
    (cell,) = cells(tmp_path, THREE + '[network]\nprofile = "ethernet"\n[peers]\nto_server.delay = "5ms"\n')
    states = {str(name): [state.name for state in found] for name, found in checks.states(cell).items()}
    assert states == {
        **{f"clients-{number}": ["ethernet"] for number in (1, 2, 3)},
        **{f"peers-{pair}": ["unshaped"] for pair in ("1-2", "1-3", "2-3")},
    }
    assert checks.states(cell)[LinkName((1, 2))][0].to_server.delay_ns == 5_000_000


def test_one_node_has_one_link_on_loopback_as_ever(tmp_path: Path) -> None:
    (cell,) = cells(tmp_path, "[load]\nusers = 1\n")
    assert {name: state.name for name, (state,) in checks.states(cell).items()} == {LinkName((1,)): "loopback"}


def test_a_throttle_is_a_state_of_the_links_of_its_node_alone(tmp_path: Path) -> None:
    (cell,) = cells(tmp_path, THREE + SLOW)
    changed = {str(name): found[1:] for name, found in checks.states(cell).items() if found[1:]}
    assert list(changed) == ["peers-1-2", "peers-2-3"]
    (state,) = changed["peers-1-2"]
    assert (state.mtu_bytes, state.to_server.rate_bps, state.to_client.delay_ns) == (65534, 20_000_000, 5_000_000)


def test_a_fault_with_a_name_is_a_level_of_the_factor_fault(tmp_path: Path) -> None:
    always = SLOW.replace('name = "slow"\n', "").replace("node = 2", "node = 1")
    found = cells(tmp_path, '[factors]\nfault = ["none", "slow"]\n' + THREE + SLOW + always)
    assert [[fault.node for fault in cell.faults] for cell in found] == [[1], [2, 1]]
    with pytest.raises(SpecError, match=r'fault: no \[\[fault\]\] has the name "slwo"; did you mean "slow"'):
        cells(tmp_path, THREE + SLOW, "fault=slwo")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (THREE + '[network]\nprofile = "loopback"\n', '"loopback" has one namespace, and each of 3 nodes has its own'),
        (THREE + '[peers]\nprofile = "loopback"\n', "peers: "),
        (THREE + '[peers]\ntcp_rmem = "4096 16384 65536"\n', "peers.tcp_rmem: a namespace has one such size"),
        (THREE + "[load]\nnodes = 4\n", "load.nodes: there is no node 4, there are 3"),
        (THREE + SLOW.replace("node = 2", "node = 4"), "node 4: there are 3"),
        (SLOW.replace("node = 2\n", ""), "link peers: one node has no peers"),
        (THREE + SLOW.replace("node = 2", 'direction = "to-server"'), "to-server of which node"),
        (THREE + SLOW.replace('rate = "20mbit"\ndelay = "5ms"\n', ""), "fault throttle: to what"),
        (THREE + SLOW.replace('"throttle"', '"partition"'), "fault partition: it has no rate; take rate out"),
        (THREE + '[[fault]]\nkind = "flush"\nat = "1s"\nnode = 2\n', "flush: it is one of all nodes at once"),
        (THREE + '[[fault]]\nkind = "pause"\nat = "1s"\nfor = "1s"\nlink = "peers"\n', "it is none of a link"),
        (THREE + SLOW.replace('"slow"', '"none"'), '"none" is the level where none happens'),
        ("[target]\nnodes = 10\n", "nodes: "),
        ('[target]\nnodes = 2\nurl = "http://127.0.0.1:9200"\n', "target.nodes: the server of target.url runs already"),
    ],
)
def test_what_several_nodes_cannot_have_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        cells(tmp_path, text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_more_copies_than_nodes_are_refused() -> None:
    with pytest.raises(SpecError, match="2 beside the first are 3 copies, and there are 2 nodes"):
        OPENSEARCH.requirements(TargetOptions(nodes=2, replicas=2))


def test_each_node_of_a_cluster_knows_where_all_are() -> None:
    asked = TargetOptions(nodes=3)
    argv = node_options.argv(OPENSEARCH.version(asked), asked, JAVA, Path("/home"), Path("/dist"), 1, NODES, ())
    assert {
        "-Enode.name=node-2",
        "-Enetwork.host=127.18.2.2",
        "-Etransport.port=9300",
        "-Ediscovery.seed_hosts=127.18.2.1:9300,127.18.2.2:9300,127.18.2.3:9300",
        "-Ecluster.initial_cluster_manager_nodes=node-1,node-2,node-3",
    } <= set(argv)
    assert "-Ediscovery.type=single-node" not in argv


def test_an_old_elasticsearch_finds_its_cluster_in_its_own_way() -> None:
    version = ELASTICSEARCH.table["5.6.16"]
    assert dict(node_options.cluster(version, 0, NODES)) == {
        "node.name": "node-1",
        "transport.tcp.port": "9300",
        "discovery.zen.ping.unicast.hosts": "127.18.2.1:9300,127.18.2.2:9300,127.18.2.3:9300",
        "discovery.zen.minimum_master_nodes": "2",
    }
    later = dict(node_options.cluster(ELASTICSEARCH.table["7.17.29"], 0, NODES))
    assert later["cluster.initial_master_nodes"] == "node-1,node-2,node-3"


@pytest.mark.parametrize(("replicas", "copies"), [(None, 2), (1, 1), (0, 0)])
def test_an_index_has_a_copy_on_each_node_and_waits_for_all_of_them(replicas: int | None, copies: int) -> None:
    asked = TargetOptions(nodes=3, replicas=replicas)
    settings = OPENSEARCH.index_body(asked, {})["settings"]
    assert settings["index.number_of_replicas"] == copies
    assert ("index.write.wait_for_active_shards" in settings) == bool(copies)
    given = OPENSEARCH.index_body(asked, {"settings": {"number_of_replicas": 5}})["settings"]
    # A track is done as it is written, unless the target says else.
    assert ("index.number_of_replicas" not in given) == (replicas is None)


def test_indices_that_nodes_have_in_their_files_wait_for_their_copies_too() -> None:
    def again(*names: str, replicas: int | None = None) -> tuple[AdminRequest, ...]:
        mapping = {"settings": {"number_of_shards": 2}}
        return OPENSEARCH.prepare(TargetOptions(nodes=3, replicas=replicas), names, mapping).requests_again

    green, first, last = again("rides", "more")
    assert green == last
    assert (green.until_path, green.until_value, green.accept) == ("status", "green", (200, 408))
    assert green.path.startswith("/_cluster/health/rides,more?wait_for_status=green&")
    assert first.body is not None
    given_up = [tuple(command["cancel"].values()) for command in first.body["commands"]]
    assert given_up == [
        (name, shard, node, True) for name in ("rides", "more") for shard in (0, 1) for node in ("node-2", "node-3")
    ]
    # Where not each node has a copy nobody knows yet which ones do; and files may name no index before they are sent.
    (only,) = again("rides", replicas=1)
    assert only.until_value == "green"
    assert again() == ()


@pytest.mark.parametrize("wrong", ["x", "", "-1", 0, 1025, 10**12, 1.5, True, None, [2], "\u00b2"])
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_number_of_shards_that_is_none_is_refused_before_anything_starts(nodes: int, wrong: Any) -> None:
    asked = TargetOptions(nodes=nodes)
    for settings in (
        {"number_of_shards": wrong},
        {"index.number_of_shards": wrong},
        {"index": {"number_of_shards": wrong}},
    ):
        with pytest.raises(SpecError, match=r'mapping: "number_of_shards" is .*write a whole number from 1 to 1024'):
            OPENSEARCH.prepare(asked, ("rides",), {"settings": settings})
        request = AdminRequest(method="PUT", path="/rides", body={"settings": settings})
        with pytest.raises(SpecError, match="number_of_shards"):
            OPENSEARCH.track_request(asked, "create-index", request)


def test_a_number_of_shards_may_be_a_text_and_stand_beside_the_table_of_an_index() -> None:
    settings = {"number_of_shards": "2", "index": {"refresh_interval": "1s"}}
    prepared = OPENSEARCH.prepare(TargetOptions(nodes=3), ("rides",), {"settings": settings})
    made = prepared.requests[0].body or {}
    assert "index.number_of_shards" not in made["settings"]
    assert len((prepared.requests_again[1].body or {})["commands"]) == 2 * 2


def test_the_first_copy_is_on_the_first_node_and_all_copies_are_there_before_a_load() -> None:
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
    # Whatever a workload says, which is published for one node.
    beside = {"number_of_replicas": 0, "index": {"refresh_interval": "1s"}}
    for said in (
        beside,
        {"number_of_replicas": 0},
        {"index.number_of_replicas": 0},
        {"index": {"number_of_replicas": 0}},
    ):
        _, again, _ = OPENSEARCH.prepare(TargetOptions(nodes=3), ("rides",), {"settings": said}).requests
        assert again == released
    assert green.path == "/_cluster/health/rides?wait_for_status=green&timeout=50s"
    whole, awaited = OPENSEARCH.prepare(TargetOptions(nodes=3, replicas=0), ("rides",), {}).requests
    assert (whole.path, awaited.path) == ("/rides", green.path)


class Told:
    """A node that gives one answer."""

    def __init__(self, status: int, body: str) -> None:
        self.answer = Answer(status, body.encode())

    def request(self, method: str, path: str, **_: Any) -> Answer:
        assert (method, path) == ("GET", "/_cluster/state/nodes?local=true")
        return self.answer

    def expect(self, method: str, path: str) -> Any:
        assert (method, path) == ("GET", "/_counters")
        return self.answer.json()


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
def test_who_is_missing_in_a_cluster_is_known(status: int, body: str, missing: list[str]) -> None:
    told: Any = Told(status, body)
    assert node_answers.missing(told, 0, 3) == missing
    assert node_answers.missing(told, 0, 1) == []


def test_what_several_sinks_counted_is_added_up() -> None:
    nodes: Any = (
        Told(200, '{"reads": 3, "by_peer_port": {"40000": {"reads": 3}}}'),
        Told(200, '{"reads": 4, "by_peer_port": {"40000": {"reads": 1}, "40001": {"reads": 3}}}'),
    )
    assert Sink().counters(nodes) == {"reads": 7, "by_peer_port": {"40000": {"reads": 4}, "40001": {"reads": 3}}}
