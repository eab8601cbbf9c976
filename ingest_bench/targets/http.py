"""HTTP requests and questions in other protocols to a server, sent by child processes in the client's namespace."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.inputs import credentials
from ingest_bench.model.load import AdminRequest
from ingest_bench.model.target import Endpoint, ServerAddress
from ingest_bench.targets import counting
from ingest_bench.units import quote_value

T = TypeVar("T")
Enter = Callable[[Sequence[str]], tuple[str, ...]]
# A child enforces time limits itself; this is for one that is stopped.
_CHILD_GRACE_S = 5.0
_MAX_EXCERPT_BYTES = 200
# How long to wait for a condition of a track, such as the end of all merges. Rally waits without a limit.
CONDITION_LIMIT_S = 3600.0
_CONDITION_POLL_S = 0.5


class NoResponse(RunFailed):
    """The server sent no complete response: nothing listens, or it closed the connection."""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON; ValueError for anything else."""
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def excerpt(self) -> str:
        """Return the innermost reason of an error of Elasticsearch, or the beginning of the body, in one line."""
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            cause = self.json()["error"]
            while "caused_by" in cause:
                cause = cause["caused_by"]
            return " ".join(cause["reason"].split())
        return " ".join(self.body[:_MAX_EXCERPT_BYTES].decode("utf-8", "replace").split()) or "nothing"


@dataclass(frozen=True, slots=True)
class Http:
    """One server, reached over one kept connection."""

    address: ServerAddress
    child: system.Child
    headers: Mapping[str, str] = field(repr=False)
    """Headers of each request. They go through a pipe, never into a file or a command line."""
    enter: Enter
    """Returns the argv that runs a command in the client's namespace."""
    log: Path | None = None
    """The server's output; None: unknown."""
    home: Path | None = None
    """The home folder of a launched server."""
    deadline: float | None = None
    """Of all requests together, on the monotonic clock; None: each has only its own limit."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Held from a request to its response: several threads restart nodes."""

    @property
    def origin(self) -> str:
        """Return its URL, such as "http://198.18.2.1:9200", with the path prefix."""
        return f"{'http' if self.address.tls is None else 'https'}://{self.address}{self.address.path_prefix}"

    @property
    def endpoint(self) -> Endpoint:
        """Return where it listens."""
        return self.address.endpoint

    def with_deadline(self, limit_s: float) -> Http:
        """Return the same server with a time limit for all further requests."""
        return replace(self, deadline=time.monotonic() + limit_s)

    def remaining_s(self, limit_s: float, request: str) -> float:
        """Return the seconds left for a request; NoResponse if the deadline has passed."""
        remaining_s = limit_s if self.deadline is None else min(limit_s, self.deadline - time.monotonic())
        if remaining_s <= 0:
            raise NoResponse(f"{request}: not sent, the time limit has passed")
        return remaining_s

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60,
    ) -> Response:
        """Return the response, whatever its status; NoResponse if it is not complete in time, connecting included.

        A body is JSON unless `headers` has another Content-Type.
        """
        name = f"{method} {self.origin}{path}"
        remaining_s = self.remaining_s(timeout_s, f"server: {name}")
        content_type = {"Content-Type": "application/json"} if body is not None else {}
        request = {
            "method": method,
            "path": self.address.path_prefix + path,
            "body": None if body is None else base64.b64encode(body).decode(),
            "headers": {**content_type, **self.headers, **(headers or {})},
            "timeout_s": remaining_s,
        }
        reply = self._ask_child(request, remaining_s)
        if "error" in reply:
            # A server that does not speak HTTP is quoted, and its text may have line ends.
            raise NoResponse(f"server: no response to {name} ({' '.join(reply['error'].split())})")
        body = credentials.redact(base64.b64decode(reply["body"]), credentials.list_secrets(self.headers))
        return Response(reply["status"], body)

    def connect(self, timeout_s: float = 5) -> None:
        """Open and close a TCP connection; NoResponse if the port refuses it."""
        remaining_s = self.remaining_s(timeout_s, f"server: {self.endpoint}")
        reply = self._ask_child({"connect": True, "timeout_s": remaining_s}, remaining_s)
        if "error" in reply:
            raise NoResponse(f"server: no connection to {self.endpoint} ({reply['error']})")

    @contextmanager
    def at_port(self, port: int | None) -> Iterator[Http]:
        """Open plain HTTP to another port of the same host, such as one for metrics; None: stay at this one.

        No credentials are sent there.
        """
        if port is None:
            yield self
            return
        address = ServerAddress(endpoint=Endpoint(self.endpoint.host, port))
        with open_http(address, self.enter, self.log) as other:
            yield replace(other, deadline=self.deadline)

    def read(self, name: str, path: str, parse: Callable[[bytes], T]) -> T:
        """Return what `parse` finds in a response with status 200; RunFailed with *name* quotes any other response."""
        response = self.request("GET", path)
        request = f"{name}: GET {self.origin}{path}"
        if response.status != 200:
            raise RunFailed(f"{request} got status {response.status}: {response.excerpt()}")
        try:
            return parse(response.body)
        except ValueError as error:
            raise RunFailed(f"{request}: {error}; the response was: {response.excerpt()}") from None

    def request_json(self, method: str, path: str, body: bytes | None = None, timeout_s: float = 60) -> Any:
        """Return the JSON of a response with status 2xx; RunFailed quotes any other response."""
        response = self.request(method, path, body, timeout_s=timeout_s)
        if not 200 <= response.status < 300:
            raise RunFailed(_describe_refusal(f"{method} {self.origin}{path}", response))
        try:
            return response.json()
        except ValueError:
            raise RunFailed(
                f"server: the response to {method} {self.origin}{path} is not JSON: {response.excerpt()}"
            ) from None

    def request_count(self, path: str, timeout_s: float = 60) -> int:
        """Return the number in `count` of a JSON response; RunFailed for anything else."""
        response = self.request_json("GET", path, timeout_s=timeout_s)
        try:
            return counting.parse_count(response["count"], "count")
        except (KeyError, TypeError, ValueError):
            raise RunFailed(
                f"server: the response to GET {self.origin}{path} has no number of documents: {quote_value(response)}"
            ) from None

    def execute(self, request: AdminRequest) -> None:
        """Send a request, repeatedly until its condition holds; RunFailed if it is refused or that takes too long."""
        body = None if request.body is None else json.dumps(request.body).encode()
        name = f"{request.method} {self.origin}{request.path}"
        limit = time.monotonic() + CONDITION_LIMIT_S
        while True:
            response = self.request(request.method, request.path, body, timeout_s=request.timeout_ns / 1e9)
            if response.status not in request.accepted_statuses:
                raise RunFailed(_describe_refusal(name, response))
            if not request.until_path:
                return
            value = None
            with contextlib.suppress(ValueError):
                value = counting.read_json_path(response.body, request.until_path)
            if value == request.until_value:
                return
            if time.monotonic() > limit:
                raise RunFailed(f"server: {name}: {request.until_path} was not {request.until_value!r} within an hour")
            time.sleep(_CONDITION_POLL_S)

    def ask_rpc(self, protocol: str, ask: str, *, limit_s: float = 60, **arguments: Any) -> dict[str, Any]:
        """Return the answer of an RPC child (`rpc_child.py`): it asks the question in the server's own protocol.

        RunFailed for an answer with "error", NoResponse for one with "unanswered" and after the deadline.
        """
        name = f"{protocol}: {ask} at {self.endpoint}"
        remaining_s = self.remaining_s(limit_s, name)
        program = Path(__file__).with_name("rpc_child.py")
        host, port = self.endpoint.host, str(self.endpoint.port)
        argv = self.enter(system.build_program_argv(program, protocol, host, port, f"{remaining_s:.3f}"))
        output = system.run(argv, timeout_s=remaining_s + _CHILD_GRACE_S, stdin=json.dumps({"ask": ask, **arguments}))
        answer: dict[str, Any] = json.loads(output)
        if "unanswered" in answer:
            raise NoResponse(f"{name}: {answer['unanswered']}")
        if "error" in answer:
            raise RunFailed(f"{name}: {answer['error']}")
        return answer

    def _ask_child(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        with self.lock:
            try:
                reply: dict[str, Any] = json.loads(self.child.request(json.dumps(request), limit_s + _CHILD_GRACE_S))
            except RunFailed:
                # Without the error's text: it may quote a header, which may be a password.
                return {"error": "the HTTP child exited"}
            return reply


def _describe_refusal(request: str, response: Response) -> str:
    return f"server: {request} got status {response.status}: {response.body[:1000].decode(errors='replace')}"


@contextmanager
def open_http(
    address: ServerAddress, enter: Enter = tuple, log: Path | None = None, home: Path | None = None
) -> Iterator[Http]:
    """Start an HTTP child for the server, in the namespace that `enter` leads to."""
    program, endpoint, tls = Path(__file__).with_name("http_child.py"), address.endpoint, address.tls
    headers = credentials.read_authorization(os.environ) if address.has_credentials else {}
    argv = enter(system.build_script_argv(program, endpoint.host, str(endpoint.port)))
    with system.Child(argv, name=f"HTTP child for {address}") as child:
        child.write_line(json.dumps({"host": str(address), "tls": None if tls is None else asdict(tls)}))
        yield Http(address, child, headers, enter, log, home)
