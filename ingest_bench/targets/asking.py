"""Questions to a server that speaks no HTTP: a child asks each, in its own protocol and inside a namespace."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.targets.http import NoAnswer

if TYPE_CHECKING:
    from ingest_bench.targets.http import Http

# How much longer than its limit a child may live: it says itself that the time is over.
_GRACE_S = 5.0


def answer(server: str, program: Path, http: Http, limit_s: float, question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer that the program has to this question, asked in the client's namespace.

    The program is given host, port and limit in seconds, reads the question on its stdin and writes the answer, both
    JSON. RunFailed for an answer with "error", NoAnswer for one with "unanswered" and where no time is left.
    """
    left_s = limit_s if http.deadline is None else min(limit_s, http.deadline - time.monotonic())
    what = f"{server}: {question['ask']} at {http.endpoint}"
    if left_s <= 0:
        raise NoAnswer(f"{what} was not asked any more: the time for it was over")
    argv = http.enter(system.program(program, http.endpoint.host, str(http.endpoint.port), f"{left_s:.3f}"))
    found: dict[str, Any] = json.loads(system.run(argv, timeout_s=left_s + _GRACE_S, stdin=json.dumps(question)))
    if "unanswered" in found:
        raise NoAnswer(f"{what}: {found['unanswered']}")
    if "error" in found:
        raise RunFailed(f"{what}: {found['error']}")
    return found
