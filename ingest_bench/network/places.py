"""Names and addresses on a link. They are fixed: every link has namespaces of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

Direction = Literal["to-server", "to-client"]
DIRECTIONS: tuple[Direction, ...] = ("to-server", "to-client")

# 198.18.0.0/15 is set aside for benchmarks of network devices (RFC 2544, RFC 6890).
CLIENT_ADDRESS = "198.18.1.1"
SERVER_ADDRESS = "198.18.2.1"
CLIENT_GATEWAY = "198.18.1.254"
SERVER_GATEWAY = "198.18.2.254"

# Locally administered; the last four bytes are the address. Known addresses need no ARP, which would cross the link.
CLIENT_MAC = "02:00:c6:12:01:01"
SERVER_MAC = "02:00:c6:12:02:01"
CLIENT_GATEWAY_MAC = "02:00:c6:12:01:fe"
SERVER_GATEWAY_MAC = "02:00:c6:12:02:fe"
# Nobody's. A receiver drops a frame to another host without a word to the sender.
NOBODY_MAC = "02:00:c6:12:ff:ff"

CLIENT_DEVICE = "client0"
SERVER_DEVICE = "server0"
# The two devices of a box are named after where they lead.
BOX_DEVICES: dict[Direction, str] = {"to-server": "to-server", "to-client": "to-client"}


class Box(Protocol):
    """A router in the middle of the path; its queues shape what passes.

    It has the devices of `BOX_DEVICES`, up, with the gateways' MACs and addresses (each /32 with a route to the
    device's end), forwards IPv4, and its other ends stand in the client's and the server's namespace, down, as
    `CLIENT_DEVICE` and `SERVER_DEVICE`.
    """

    def run(self, argv: Sequence[str], *, stdin: str | None = None, check: bool = True) -> str:
        """What the command (`tc`, `ip`), run inside, wrote to its standard output."""
