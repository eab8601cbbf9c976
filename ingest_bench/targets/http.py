"""Questions to a server over HTTP, asked by a small child process inside the client's namespace."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.model.target import Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ingest_bench.model.target import Tls


Enter = Callable[[Sequence[str]], tuple[str, ...]]
# The asking process keeps the time itself; this is for one that is stopped.
_LATE_S = 5.0
# Of an answer, in an error.
_SAID_BYTES = 200


class NoAnswer(RunFailed):
    """The server did not answer at all: nobody listens, or it broke off."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body as JSON; ValueError for anything else."""
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def beginning(self) -> str:
        """What it says first, in one line, for an error."""
        return " ".join(self.body[:_SAID_BYTES].decode("utf-8", "replace").split()) or "nothing"


@dataclass(frozen=True, slots=True)
class Http:
    """One server, asked over one kept connection."""

    origin: str
    """Such as "http://198.18.2.1:9200", with the path prefix."""
    asker: system.Child
    headers: Mapping[str, str] = field(repr=False)
    """Of each request. They go through a pipe: no file and no command line has them."""
    endpoint: Endpoint
    """Where it listens."""
    enter: Enter
    """Leads a command to where it is asked from, for a question that is none of HTTP."""
    log: Path | None = None
    """What it writes; None: nobody here knows where."""
    home: Path | None = None
    """Its own folder, of a server of ours."""
    deadline: float | None = None
    """Of all questions together, on the monotonic clock; None: each has its own limit alone."""
    path_prefix: str = ""
    """Before the path of every request."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Held from a question to its answer: nodes that are started again are asked by several threads."""

    def within(self, limit_s: float) -> Http:
        """The same server, which is asked nothing any more after that time."""
        return replace(self, deadline=time.monotonic() + limit_s)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60,
    ) -> Answer:
        """The answer, whatever its status; NoAnswer when there is no whole one in time, from the connecting on.

        A body is JSON unless `headers` says else.
        """
        left_s = timeout_s if self.deadline is None else min(timeout_s, self.deadline - time.monotonic())
        if left_s <= 0:
            raise NoAnswer(f"server: {method} {self.origin}{path} was not asked any more: the time for it was over")
        sent = {"Content-Type": "application/json"} if body is not None else {}
        question = {
            "method": method,
            "path": self.path_prefix + path,
            "body": None if body is None else base64.b64encode(body).decode(),
            "headers": {**sent, **self.headers, **(headers or {})},
            "timeout_s": left_s,
        }
        answer = self._ask(question, left_s + _LATE_S)
        if "error" in answer:
            # What is no HTTP is said as it is, with its end of line.
            said = " ".join(answer["error"].split())
            raise NoAnswer(f"server: no answer to {method} {self.origin}{path} ({said})")
        return Answer(answer["status"], base64.b64decode(answer["body"]))

    def connect(self, timeout_s: float = 5) -> None:
        """Nothing, once its port has taken a connection; NoAnswer when it does not."""
        left_s = timeout_s if self.deadline is None else min(timeout_s, self.deadline - time.monotonic())
        if left_s <= 0:
            raise NoAnswer(f"server: {self.endpoint} was not tried any more: the time for it was over")
        answer = self._ask({"connect": True, "timeout_s": left_s}, left_s + _LATE_S)
        if "error" in answer:
            raise NoAnswer(f"server: no connection to {self.endpoint} ({answer['error']})")

    def elsewhere(self, port: int) -> AbstractContextManager[Http]:
        """The same host over plain HTTP at another port, such as one for its metrics alone. No credentials go there."""
        return ask(self.enter, Endpoint(self.endpoint.host, port), log=self.log)

    def expect(self, method: str, path: str, body: bytes | None = None, timeout_s: float = 60) -> Any:
        """The JSON of a good answer; RunFailed with what the server said otherwise."""
        answer = self.request(method, path, body, timeout_s=timeout_s)
        if not 200 <= answer.status < 300:
            said = answer.body[:1000].decode(errors="replace")
            raise RunFailed(f"server: {method} {self.origin}{path} was answered {answer.status}: {said}")
        try:
            return answer.json()
        except ValueError:
            raise RunFailed(
                f"server: {method} {self.origin}{path} was answered with what is not JSON: {answer.beginning()}"
            ) from None

    def _ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        with self.lock:
            try:
                answer: dict[str, Any] = json.loads(self.asker.ask(json.dumps(question), limit_s))
            except RunFailed:
                # Without its words: they may quote a header, which may be a password.
                return {"error": "the asking process ended"}
            return answer


@contextmanager
def ask(
    enter: Enter,
    endpoint: Endpoint,
    *,
    host_header: str = "",
    path_prefix: str = "",
    tls: Tls | None = None,
    headers: Mapping[str, str] | None = None,
    log: Path | None = None,
    home: Path | None = None,
) -> Iterator[Http]:
    """Questions to the server at `endpoint`, asked where `enter` leads."""
    program = Path(__file__).with_name("asker.py")
    argv = enter(system.script(program, endpoint.host, str(endpoint.port)))
    name = host_header or str(endpoint)
    origin = f"{'http' if tls is None else 'https'}://{name}{path_prefix}"
    with system.Child(argv, name=origin) as asker:
        asker.tell(json.dumps({"host": name, "tls": None if tls is None else asdict(tls)}))
        yield Http(origin, asker, headers or {}, endpoint, enter, log, home, path_prefix=path_prefix)
