"""Links of a run with several nodes in real namespaces."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from readied import ready

from ingest_bench.errors import MissingCapability
from ingest_bench.experiment import catalog
from ingest_bench.faults import timeline
from ingest_bench.faults.kind import Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.model.network import Impairment, LinkName, Profile
from ingest_bench.network.act import link as link_module
from ingest_bench.network.act import uml
from ingest_bench.network.act.link import Links
from ingest_bench.network.act.sandbox import Namespace
from ingest_bench.network.measure import check, readings

pytestmark = pytest.mark.netns

UNSHAPED = catalog.load_profile("unshaped")
ETHERNET = catalog.load_profile("ethernet")
MS = 10**6
SERVER = """
import socket, sys
listener = socket.create_server((sys.argv[1], 9))
print("ready", flush=True)
while True:
    connection, peer = listener.accept()
    connection.sendall(peer[0].encode())
    connection.close()
"""
CLIENT = """
import json, socket, sys, time
began = time.monotonic()
try:
    with socket.create_connection((sys.argv[1], 9), timeout=float(sys.argv[2])) as connection:
        client = connection.recv(100).decode()
        port = connection.getsockname()[1]
    print(json.dumps([client, port, (time.monotonic() - began) * 1000]))
except OSError as error:
    print(json.dumps([type(error).__name__, 0, 0]))
"""


def plan_links(
    nodes: int, clients: Profile = UNSHAPED, peers: Sequence[Profile] = (UNSHAPED,)
) -> dict[LinkName, Sequence[Profile]]:
    numbers = range(1, nodes + 1)
    clients_links: dict[LinkName, Sequence[Profile]] = {LinkName((number,)): (clients,) for number in numbers}
    return clients_links | {LinkName(pair): peers for pair in itertools.combinations(numbers, 2)}


@contextmanager
def start_servers(links: Links) -> Iterator[None]:
    """Run a server on each node during the block."""
    with ExitStack() as stack:
        for link in links.clients:
            stack.enter_context(ready(link.server.command((sys.executable, "-c", SERVER, link.server_address))))
        yield


def connect(namespace: Namespace, address: str, limit_s: float = 20) -> tuple[str, int, float]:
    """Return the client's address as the server sees it, the client's port, and the time in ms."""
    client, port, took_ms = json.loads(namespace.run((sys.executable, "-c", CLIENT, address, str(limit_s))))
    return client, port, took_ms


@pytest.fixture(scope="module")
def three() -> Iterator[Links]:
    with (
        link_module.open_links(
            plan_links(3, ETHERNET, peers=(replace(ETHERNET, to_server=Impairment(), to_client=Impairment()),))
        ) as links,
        start_servers(links),
    ):
        yield links


def test_clients_and_nodes_reach_every_node(three: Links) -> None:
    addresses = [link.server_address for link in three.clients]
    assert addresses == ["127.18.2.1", "127.18.2.2", "127.18.2.3"]
    for address in addresses:
        assert connect(three.client, address)[0] == "198.18.1.1"
    for link, other in itertools.permutations(three.clients, 2):
        client, port, _ = connect(link.server, other.server_address)
        # By the local port a probe distinguishes connections of nodes from those of the load.
        assert client == link.server_address
        assert port >= 61000


def test_each_link_passes_its_own_checks(three: Links) -> None:
    for name in (LinkName((2,)), LinkName((1, 3))):
        results = check.check_link(three.by_name[name])
        assert [result for result in results if not result.passed] == []
        assert {result.link for result in results} == {str(name)}
    rates = [name for name, link in three.by_name.items() if link.profile.to_server.rate_bps]
    assert rates == [LinkName((1,)), LinkName((2,)), LinkName((3,))]


def test_columns_of_several_links_count_each_namespace_once(three: Links) -> None:
    readings.start_counting(*three.clients)
    for link in three.clients:
        connect(three.client, link.server_address)
    together = readings.link_columns(*three.clients)
    separate = [readings.link_columns(link, clients=False) for link in three.clients]
    packets = [columns["wire_packets"] for columns in separate]
    assert all(isinstance(count, int) and count >= 8 for count in packets)
    assert together["wire_packets"] == sum(int(str(count)) for count in packets)
    assert together["retransmits"] == 0


@pytest.mark.parametrize("direction", ["to-server", "to-client"])
def test_partition_of_a_node_affects_only_its_peers(three: Links, direction: str) -> None:
    fault = Fault(kind="partition", link="peers", node=2, direction=direction, at_ns=0, for_ns=1)  # type: ignore[arg-type]
    first, second, third = three.clients
    active = timeline.begin_fault(fault, Stage(links=three))
    try:
        assert connect(first.server, second.server_address, 0.5)[0] == "TimeoutError"
        assert connect(second.server, third.server_address, 0.5)[0] == "TimeoutError"
        assert connect(first.server, third.server_address)[0] == first.server_address
        assert connect(three.client, second.server_address)[0] == "198.18.1.1"
    finally:
        active.end()
    assert connect(first.server, second.server_address)[0] == first.server_address


def test_throttle_of_a_node_applies_to_its_links(three: Links) -> None:
    def rates() -> dict[str, int | None]:
        return {
            str(name): link.profile.to_client.rate_bps for name, link in three.by_name.items() if name.kind == "peers"
        }

    fault = Fault(kind="throttle", link="peers", node=3, rate_bps=10**8, at_ns=0, for_ns=1)
    active = timeline.begin_fault(fault, Stage(links=three))
    try:
        assert rates() == {"peers-1-2": None, "peers-1-3": 10**8, "peers-2-3": 10**8}
        results = {result.name: result for result in check.check_link(three.by_name[LinkName((1, 3))])}
        assert results["rate to-client"].passed, results["rate to-client"]
    finally:
        active.end()
    assert set(rates().values()) == {None}


@pytest.mark.netem
def test_delay_between_nodes_applies_in_both_directions() -> None:
    if uml.find_uml_problem():
        pytest.skip(uml.find_uml_problem())
    delayed = replace(
        UNSHAPED, name="delayed", to_server=Impairment(delay_ns=20 * MS), to_client=Impairment(delay_ns=5 * MS)
    )
    with link_module.open_links(plan_links(2, peers=(delayed,)), netem="uml") as links, start_servers(links):
        assert links.backend == "uml"
        (link,) = (link for name, link in links.by_name.items() if name.kind == "peers")
        assert {result.name for result in check.check_link(link) if not result.passed} == set()
        first, second = links.clients
        # A handshake, and then the reply: two round trips of 25 ms.
        for client_link, server_link in ((first, second), (second, first)):
            assert connect(client_link.server, server_link.server_address)[2] >= 50
        assert connect(links.client, second.server_address)[0] == "198.18.1.1"


def test_impossible_links_are_reported_before_anything_starts() -> None:
    unknown = replace(UNSHAPED, name="unknown", congestion_control="no-such")
    with pytest.raises(MissingCapability, match="congestion_control"):
        link_module.require_links(plan_links(2, peers=(unknown,)))
