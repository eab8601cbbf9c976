"""What a worker's own machine has, and what it gives to whom: files like those of `run`, and who we are."""

from __future__ import annotations

import dataclasses
import socket
from typing import TYPE_CHECKING

from ingest_bench.errors import RunFailed
from ingest_bench.inputs import urls

if TYPE_CHECKING:
    from pathlib import Path

    from ingest_bench.load.plan import LoadPlan
    from ingest_bench.model.target import Place, Tls, Url


def unlike(path: Path, size_bytes: int) -> str:
    """What is wrong with a file that should be as it is where `run` is; empty: nothing."""
    if not path.is_file():
        return f"{path}: this machine does not have this file"
    here = path.stat().st_size
    return "" if here == size_bytes else f"{path}: has {here} bytes, but {size_bytes} there; put the same file here"


def with_credentials(plan: LoadPlan, allowed: str | None, ca_pem: str) -> LoadPlan:
    """Return *plan* for the server at the URL *allowed*, with what this machine knows of that server; else RunFailed.

    The certificates that may vouch for the server are *ca_pem*, or those that this machine trusts: `run` could name
    others, for a server of its own. Host header and the name in the certificate are those of the URL.
    """
    if allowed is None:
        raise RunFailed(
            f"the load to {plan.address} needs credentials, and this worker may not send its own; start it with "
            "--credentials-to and the URL of the server"
        )
    url = urls.parse(allowed)
    try:
        addresses = {url.host, *(str(entry[4][0]) for entry in socket.getaddrinfo(url.host, url.port))}
    except OSError:
        addresses = {url.host}
    for place in plan.places:
        if _is_at(place, url, addresses):
            continue
        asked = "" if place.resolver is None else f", which the name server {place.resolver} looks up"
        host = f" (Host: {place.host_header})" if place.host_header else ""
        raise RunFailed(
            f"the load goes to {'http' if place.tls is None else 'https'}://{place.endpoint}{host}{asked}, and this "
            f"worker gives its credentials to {url} alone (--credentials-to)"
        )

    def own(tls: Tls | None) -> Tls | None:
        return None if tls is None else dataclasses.replace(tls, name=url.host, ca_pem=ca_pem)

    others = tuple(dataclasses.replace(place, host_header=url.authority, tls=own(place.tls)) for place in plan.others)
    return dataclasses.replace(plan, host_header=url.authority, headers={}, tls=own(plan.tls), others=others)


def _is_at(place: Place, url: Url, addresses: set[str]) -> bool:
    """Return True if requests to *place* reach, under its name, the server at *url*, which has these *addresses*."""
    is_there = place.endpoint.host in addresses and place.endpoint.port == url.port
    # A name server that the plan names may give any address.
    is_there = is_there and place.resolver is None and (place.tls is not None) == (url.scheme == "https")
    return is_there and place.host_header in ("", url.authority)
