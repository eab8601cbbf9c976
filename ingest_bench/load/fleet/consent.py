"""What a worker's own machine has, and what it gives to whom: files like those of `run`, and who we are."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from ingest_bench.errors import RunFailed
from ingest_bench.inputs import urls

if TYPE_CHECKING:
    from pathlib import Path

    from ingest_bench.load.plan import LoadPlan


def unlike(path: Path, size_bytes: int) -> str:
    """What is wrong with a file that should be as it is where `run` is; empty: nothing."""
    if not path.is_file():
        return f"{path}: this machine does not have this file"
    here = path.stat().st_size
    return "" if here == size_bytes else f"{path}: has {here} bytes, but {size_bytes} there; put the same file here"


def check_credentials(plan: LoadPlan, allowed: str | None) -> None:
    """RunFailed unless this machine was told that what it knows may go to where the plan goes."""
    if allowed is None:
        raise RunFailed(
            f"the load to {plan.address} needs credentials, and this worker gives its own to nobody; start it with "
            "--credentials-to and the URL of the server"
        )
    url = urls.parse(allowed)
    try:
        known = {str(found[4][0]) for found in socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)}
    except OSError:
        known = set()
    for place in plan.places:
        host, port = place.endpoint.host, place.endpoint.port
        # A name server that the plan names may give any address.
        is_there = (host in known or host == url.host) and port == url.port and place.resolver is None
        is_verified = url.scheme == "http" or (place.tls is not None and place.tls.name == url.host)
        if is_there and is_verified:
            continue
        asked = "" if place.resolver is None else f", which the name server {place.resolver} looks up"
        raise RunFailed(
            f"the load goes to {'http' if place.tls is None else 'https'}://{place.endpoint}{asked}, and this worker "
            f"gives its credentials to {url} alone (--credentials-to)"
        )
