"""Where a process listens."""

from __future__ import annotations

import psutil

from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.model.target import Endpoint

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}  # noqa: S104 - found, not chosen


def endpoints(pid: int) -> tuple[Endpoint, ...]:
    """The TCP addresses on which the process takes connections, as a client in its own network namespace gets there.

    The lowest port first, each port once. Java opens its sockets for IPv4 and IPv6 together.
    """
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        raise RunFailed(f"attach: pid {pid} has ended") from None
    except psutil.AccessDenied:
        said = f"attach: pid {pid}: where it listens cannot be read. Run as root, or give --url."
        raise MissingCapability(said) from None
    found: dict[int, Endpoint] = {}
    for one in sorted(connections, key=lambda one: (one.laddr.port, one.laddr.ip) if one.laddr else (0, "")):
        if one.status == psutil.CONN_LISTEN:
            host = one.laddr.ip.removeprefix("::ffff:")
            found.setdefault(one.laddr.port, Endpoint(_EVERYWHERE.get(host, host), one.laddr.port))
    return tuple(found.values())
