"""Names and addresses on a link. All namespaces are our own, so they are fixed."""

from __future__ import annotations

from typing import Literal, NamedTuple

Direction = Literal["to-server", "to-client"]
DIRECTIONS: tuple[Direction, ...] = ("to-server", "to-client")

# 198.18.0.0/15 is set aside for benchmarks of network devices (RFC 2544, RFC 6890).
CLIENT_ADDRESS = "198.18.1.1"
SERVER_ADDRESS = "198.18.2.1"
CLIENT_GATEWAY = "198.18.1.254"
SERVER_GATEWAY = "198.18.2.254"

# Locally administered; the last four bytes are the address of the only link. Others have the same: each is a segment
# of its own. Known addresses need no ARP, which would cross the link.
CLIENT_MAC = "02:00:c6:12:01:01"
SERVER_MAC = "02:00:c6:12:02:01"
CLIENT_GATEWAY_MAC = "02:00:c6:12:01:fe"
SERVER_GATEWAY_MAC = "02:00:c6:12:02:fe"
# Nobody's. A receiver drops a frame to another host without a word to the sender.
NOBODY_MAC = "02:00:c6:12:ff:ff"

CLIENT_DEVICE = "client0"
SERVER_DEVICE = "server0"


class Ends(NamedTuple):
    """What the two ends of a link are called, where it is not the only one of a namespace."""

    client_device: str = CLIENT_DEVICE
    client_address: str = CLIENT_ADDRESS
    server_device: str = SERVER_DEVICE
    server_address: str = SERVER_ADDRESS


ENDS = Ends()


def to_node(number: int, *, seen_as_local: bool = True) -> Ends:
    """The ends of the clients' link to the node of that number, from 1 on."""
    address = node_address(number, seen_as_local=seen_as_local)
    return Ends(client_device=f"client{number - 1}", server_address=address)


def between(first: int, second: int, *, seen_as_local: bool = True) -> Ends:
    """The ends of the link between two nodes: the first one is where a client would be."""
    one, other = (node_address(number, seen_as_local=seen_as_local) for number in (first, second))
    return Ends(f"peer{second}", one, f"peer{first}", other)


def node_address(number: int, *, seen_as_local: bool = True) -> str:
    """The only address of one of several nodes, on whichever link.

    One of 127.0.0.0/8: on any other OpenSearch and Elasticsearch start no cluster unless the host's vm.max_map_count
    and limit of open files are raised (BootstrapChecks), which only root can do, and for all that run there. A server
    that takes such an address for its own gets one of 198.18.0.0/15.
    """
    return f"127.18.2.{number}" if seen_as_local else f"198.19.2.{number}"


# The two devices of a box are named after where they lead. It is a router: up, with the gateways' MACs and addresses
# (each /32 with a route to the device's end), and its queues shape what passes.
BOX_DEVICES: dict[Direction, str] = {"to-server": "to-server", "to-client": "to-client"}
