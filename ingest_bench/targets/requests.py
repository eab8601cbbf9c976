"""Requests of a workload or a track, carried out over HTTP."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import RunFailed
from ingest_bench.targets import counting

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest_bench.model.track import AdminRequest
    from ingest_bench.targets.http import Http

# How long a condition is waited for, such as the end of all merges. Rally waits for ever.
UNTIL_LIMIT_S = 3600.0
_AGAIN_S = 0.5


def ask(http: Http, request: AdminRequest, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """One request, again until what it waits for is there; RunFailed when the server refuses or it takes too long."""
    body = None if request.body is None else json.dumps(request.body).encode()
    what = f"{request.method} {http.origin}{request.path}"
    limit = time.monotonic() + UNTIL_LIMIT_S
    while True:
        answer = http.request(request.method, request.path, body, timeout_s=request.timeout_ns / 1e9)
        if answer.status not in request.accept:
            said = answer.body[:1000].decode(errors="replace")
            raise RunFailed(f"server: {what} was answered {answer.status}: {said}")
        if not request.until_path or _at(answer.body, request.until_path) == request.until_value:
            return
        if time.monotonic() > limit:
            raise RunFailed(f"server: {what}: {request.until_path} was not {request.until_value!r} within an hour")
        sleep(_AGAIN_S)


def _at(body: bytes, path: str) -> Any:
    """What stands at a dotted path of a JSON answer; None where there is nothing."""
    with contextlib.suppress(ValueError):
        return counting.at(body, path)
    return None
