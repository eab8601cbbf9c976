"""Questions to a server over HTTP, asked by a small child process inside the client's namespace."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import RunFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ingest_bench.model.target import Endpoint


class NoAnswer(RunFailed):
    """The server did not answer at all: nobody listens, or it broke off."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Http:
    """One server, asked over one kept connection."""

    endpoint: Endpoint
    asker: subprocess.Popen[bytes]

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60,
    ) -> Answer:
        """The answer, whatever its status; NoAnswer when there is none. A body is JSON unless `headers` says else."""
        sent = {"Content-Type": "application/json"} if body is not None else {}
        question = {
            "method": method,
            "path": path,
            "body": None if body is None else base64.b64encode(body).decode(),
            "headers": {**sent, **(headers or {})},
            "timeout_s": timeout_s,
        }
        answer = self._ask(question)
        if "error" in answer:
            raise NoAnswer(f"server: no answer to {method} http://{self.endpoint}{path} ({answer['error']})")
        return Answer(answer["status"], base64.b64decode(answer["body"]))

    def expect(self, method: str, path: str, body: bytes | None = None, timeout_s: float = 60) -> Any:
        """The JSON of a good answer; RunFailed with what the server said otherwise."""
        answer = self.request(method, path, body, timeout_s=timeout_s)
        if not 200 <= answer.status < 300:
            said = answer.body[:1000].decode(errors="replace")
            raise RunFailed(f"server: {method} http://{self.endpoint}{path} was answered {answer.status}: {said}")
        return answer.json()

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self.asker.stdin is not None  # noqa: S101 - for the type checker: `ask` opened both pipes
        assert self.asker.stdout is not None  # noqa: S101
        try:
            self.asker.stdin.write(json.dumps(question).encode() + b"\n")
            self.asker.stdin.flush()
            answer: dict[str, Any] = json.loads(
                self.asker.stdout.readline() or b'{"error": "the asking process ended"}'
            )
        except BrokenPipeError:
            return {"error": "the asking process ended"}
        return answer


@contextmanager
def ask(enter: Callable[[Sequence[str]], tuple[str, ...]], endpoint: Endpoint) -> Iterator[Http]:
    """Questions to the server at `endpoint`, asked where `enter` leads."""
    program = Path(__file__).with_name("asker.py")
    argv = enter((sys.executable, "-I", str(program), endpoint.host, str(endpoint.port)))
    asker = system.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield Http(endpoint, asker)
    finally:
        for pipe in (asker.stdin, asker.stdout):
            if pipe is not None:
                pipe.close()
        system.stop(asker)
