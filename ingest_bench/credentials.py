"""Who we are to a server that runs already: from the environment, into the header of a request, and nowhere else."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from ingest_bench.errors import SpecError

USER, PASSWORD, API_KEY = "INGEST_BENCH_USER", "INGEST_BENCH_PASSWORD", "INGEST_BENCH_API_KEY"


def headers(environment: Mapping[str, str]) -> dict[str, str]:
    """The header that says who we are; empty when the environment says nothing. No message repeats a value."""
    user, password, key = (environment.get(name, "") for name in (USER, PASSWORD, API_KEY))
    if not (user or password or key):
        return {}
    if key and (user or password):
        raise SpecError(f"{API_KEY} and {USER} are both set; keep one of them")
    if key:
        if not key.isascii() or not key.isprintable() or " " in key:
            raise SpecError(f"{API_KEY}: it is no key; it must be one word, as the server gave it (base64)")
        return {"authorization": f"ApiKey {key}"}
    if not user or not password:
        raise SpecError(f"{USER} and {PASSWORD} belong together; {PASSWORD if user else USER} is not set")
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
