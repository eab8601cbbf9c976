"""Where a name leads, asked of one name server anew each time: by c-ares, as curl and many other clients do."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from gevent.resolver.ares import Resolver

if TYPE_CHECKING:
    from ingest_bench.model.target import Endpoint

# resolv.conf(5): RES_TIMEOUT and RES_DFLRETRY.
_TIMEOUT_S, _TRIES = 5.0, 2


def looked_up(where: Endpoint, resolver: Endpoint) -> tuple[tuple[int, Any], ...] | OSError:
    """Family and address of all that the host stands for, or why nobody knows.

    Each lookup has a channel of its own, so that nothing is remembered, and goes on in the event loop.
    """
    asking = Resolver(
        use_environ=False,
        servers=[resolver.host],
        udp_port=resolver.port,
        tcp_port=resolver.port,
        timeout=_TIMEOUT_S,
        tries=_TRIES,
    )
    try:
        found = asking.getaddrinfo(where.host, where.port, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        return error
    finally:
        asking.close()
    return tuple(dict.fromkeys((int(family), address) for family, *_, address in found))
