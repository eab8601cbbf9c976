"""Where a process listens."""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.model.target import Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTEN = "0A"  # TCP_LISTEN, include/net/tcp_states.h
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}  # noqa: S104 - found, not chosen


def endpoints(pid: int) -> tuple[Endpoint, ...]:
    """The TCP addresses on which the process takes connections, as a client in its own network namespace gets there.

    The lowest port first, each port once. Java opens its sockets for IPv4 and IPv6 together. Not by psutil: that reads
    the sockets of our own namespace.
    """
    try:
        inodes = set(_inodes(pid))
        tables = [Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii") for name in ("tcp", "tcp6")]
    except FileNotFoundError:
        raise RunFailed(f"pid {pid} has ended: it listens nowhere") from None
    except PermissionError:
        raise MissingCapability(f"pid {pid}: where it listens cannot be read. Run as root, or as its user.") from None
    found: dict[int, Endpoint] = {}
    for endpoint in (one for table in tables for one in parse(table, inodes)):
        found.setdefault(endpoint.port, endpoint)
    return tuple(found[port] for port in sorted(found))


def parse(table: str, inodes: set[str]) -> Iterator[Endpoint]:
    """The addresses of the listening sockets with these inodes, from /proc/net/tcp or tcp6."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[3] == _LISTEN and fields[9] in inodes:
            words, _, port = fields[1].rpartition(":")
            host = _address(words)
            yield Endpoint(_EVERYWHERE.get(host, host), int(port, 16))


def _address(words: str) -> str:
    """IPv4 and IPv6 are words of 32 bits there, each as this machine has it in memory."""
    packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    if len(packed) == 4:
        return socket.inet_ntoa(packed)
    address = ipaddress.IPv6Address(packed)
    return str(address.ipv4_mapped or address)


def _inodes(pid: int) -> Iterator[str]:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield from re.findall(r"^socket:\[([0-9]+)\]$", str(link.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
