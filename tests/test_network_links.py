"""All links of a run with several nodes, in real namespaces; the last test repeats this file as an ordinary user."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import ordinary_user
import pytest

from ingest_bench.errors import MissingCapability
from ingest_bench.experiment import catalog
from ingest_bench.faults import timeline
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.model.network import Impairment, LinkName, Profile
from ingest_bench.network.act import links as act_links
from ingest_bench.network.act import uml
from ingest_bench.network.act.links import Links
from ingest_bench.network.act.sandbox import Namespace
from ingest_bench.network.measure import check, readings

pytestmark = pytest.mark.netns

NEAR = catalog.profile("unshaped")
WIRE = catalog.profile("ethernet")
MS = 10**6
ANSWER = """
import socket, sys
listener = socket.create_server((sys.argv[1], 9))
print("ready", flush=True)
while True:
    connection, peer = listener.accept()
    connection.sendall(peer[0].encode())
    connection.close()
"""
CALL = """
import json, socket, sys, time
began = time.monotonic()
try:
    with socket.create_connection((sys.argv[1], 9), timeout=float(sys.argv[2])) as connection:
        said = connection.recv(100).decode()
        port = connection.getsockname()[1]
    print(json.dumps([said, port, (time.monotonic() - began) * 1000]))
except OSError as error:
    print(json.dumps([type(error).__name__, 0, 0]))
"""


def states(
    nodes: int, clients: Profile = NEAR, peers: Sequence[Profile] = (NEAR,)
) -> dict[LinkName, Sequence[Profile]]:
    numbers = range(1, nodes + 1)
    found: dict[LinkName, Sequence[Profile]] = {LinkName((number,)): (clients,) for number in numbers}
    return found | {LinkName(pair): peers for pair in itertools.combinations(numbers, 2)}


@contextmanager
def listening(links: Links) -> Iterator[None]:
    """A server on each node."""
    started = []
    try:
        for link in links.clients:
            argv = link.server.command((sys.executable, "-c", ANSWER, link.server_address))
            started.append(subprocess.Popen(argv, stdout=subprocess.PIPE))
            assert started[-1].stdout is not None
            assert started[-1].stdout.readline() == b"ready\n"
        yield
    finally:
        for server in started:
            server.kill()
            server.wait()
            assert server.stdout is not None
            server.stdout.close()


def call(place: Namespace, address: str, limit_s: float = 20) -> tuple[str, int, float]:
    """Whom the server at that address took for its client, from which port, and how many ms it took."""
    said, port, took_ms = json.loads(place.run((sys.executable, "-c", CALL, address, str(limit_s))))
    return said, port, took_ms


@pytest.fixture(scope="module")
def three() -> Iterator[Links]:
    with (
        act_links.links(
            states(3, WIRE, peers=(replace(WIRE, to_server=Impairment(), to_client=Impairment()),))
        ) as links,
        listening(links),
    ):
        yield links


def test_the_clients_reach_each_node_and_each_node_each_other_one(three: Links) -> None:
    addresses = [link.server_address for link in three.clients]
    assert addresses == ["127.18.2.1", "127.18.2.2", "127.18.2.3"]
    for address in addresses:
        assert call(three.client, address)[0] == "198.18.1.1"
    for link, other in itertools.permutations(three.clients, 2):
        said, port, _ = call(link.server, other.server_address)
        # By its own port a probe tells what a node opened from what the load did.
        assert said == link.server_address
        assert port >= 61000


def test_each_link_has_its_own_promises_and_keeps_them(three: Links) -> None:
    for name in (LinkName((2,)), LinkName((1, 3))):
        promises = check.check(three.by_name[name])
        assert [promise for promise in promises if not promise.kept] == []
        assert {promise.link for promise in promises} == {str(name)}
    rates = [name for name, link in three.by_name.items() if link.profile.to_server.rate_bps]
    assert rates == [LinkName((1,)), LinkName((2,)), LinkName((3,))]


def test_the_counts_of_several_links_are_those_of_all_and_of_a_namespace_once(three: Links) -> None:
    readings.start(*three.clients)
    for link in three.clients:
        call(three.client, link.server_address)
    together = readings.readings(*three.clients)
    each = [readings.readings(link, clients=False) for link in three.clients]
    packets = [one["wire_packets"] for one in each]
    assert all(isinstance(count, int) and count >= 8 for count in packets)
    assert together["wire_packets"] == sum(int(str(count)) for count in packets)
    assert together["retransmits"] == 0


@pytest.mark.parametrize("direction", ["to-server", "to-client"])
def test_a_partition_of_one_node_cuts_its_peers_off_and_nobody_else(three: Links, direction: str) -> None:
    what = Fault(kind="partition", link="peers", node=2, direction=direction, at_ns=0, for_ns=1)  # type: ignore[arg-type]
    first, second, third = three.clients
    begun = timeline.begin(what, Stage(links=three))
    try:
        assert call(first.server, second.server_address, 0.5)[0] == "TimeoutError"
        assert call(second.server, third.server_address, 0.5)[0] == "TimeoutError"
        assert call(first.server, third.server_address)[0] == first.server_address
        assert call(three.client, second.server_address)[0] == "198.18.1.1"
    finally:
        begun.end()
    assert call(first.server, second.server_address)[0] == first.server_address


def test_a_throttle_of_one_node_is_on_its_links_while_it_lasts(three: Links) -> None:
    def rates() -> dict[str, int | None]:
        return {
            str(name): link.profile.to_client.rate_bps for name, link in three.by_name.items() if name.kind == "peers"
        }

    what = Fault(kind="throttle", link="peers", node=3, rate_bps=10**8, at_ns=0, for_ns=1)
    begun = timeline.begin(what, Stage(links=three))
    try:
        assert rates() == {"peers-1-2": None, "peers-1-3": 10**8, "peers-2-3": 10**8}
        promises = {promise.name: promise for promise in check.check(three.by_name[LinkName((1, 3))])}
        assert promises["rate to-client"].kept, promises["rate to-client"]
    finally:
        begun.end()
    assert set(rates().values()) == {None}


@pytest.mark.netem
def test_a_delay_between_nodes_is_there_in_both_directions_also_where_only_a_box_has_netem() -> None:
    if uml.complaint():
        pytest.skip(uml.complaint())
    far = replace(NEAR, name="far", to_server=Impairment(delay_ns=20 * MS), to_client=Impairment(delay_ns=5 * MS))
    with act_links.links(states(2, peers=(far,)), netem="uml") as links, listening(links):
        assert links.backend == "uml"
        (link,) = (link for name, link in links.by_name.items() if name.kind == "peers")
        assert {promise.name for promise in check.check(link) if not promise.kept} == set()
        first, second = links.clients
        # A handshake, and then the answer: two round trips of 25 ms, whoever asks.
        for one, other in ((first, second), (second, first)):
            assert call(one.server, other.server_address)[2] >= 50
        assert call(links.client, second.server_address)[0] == "198.18.1.1"


def test_links_that_this_machine_cannot_make_are_told_before_anything_starts() -> None:
    strange = replace(NEAR, name="strange", congestion_control="no-such")
    with pytest.raises(MissingCapability, match="congestion_control"):
        act_links.require(states(2, peers=(strange,)))


@pytest.mark.nightly
def test_all_of_it_as_an_ordinary_user() -> None:
    ordinary_user.repeat(
        __file__, promised="netns", marks="netns and not netem", limit_s=300, names="not ordinary_user"
    )
