"""A server that already runs, as a user has one: on loopback, started by no command of ingest-bench."""

from __future__ import annotations

import base64
import contextlib
import http.server
import itertools
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servers import launched, visible

from ingest_bench.jvm.process import ServerProcess
from ingest_bench.model.target import Endpoint, ServerAddress, TargetOptions
from ingest_bench.targets.http import Http

_NUMBERS = itertools.count()


@contextmanager
def running(tmp_path: Path, options: TargetOptions) -> Iterator[tuple[Http, ServerProcess]]:
    """Yield a ready server on 127.0.0.1, with its client."""
    with visible(), launched(options, (Endpoint("127.0.0.1", free_port()),), tmp_path) as started:
        yield started


def free_port() -> int:
    """Return a free TCP port on loopback that no test in another process gets.

    It is below the ephemeral range: the kernel gives it to no connection meanwhile.
    """
    for number in _NUMBERS:
        port = 10_000 + (os.getpid() * 997 + number) % 20_000
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError


class _CannedHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append(f"{self.command} {self.path}")  # type: ignore[attr-defined]
        status, body = self.server.responses.get(self.path, (404, b"no such page"))  # type: ignore[attr-defined]
        missing_bytes: int = self.server.missing_bytes  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) + missing_bytes))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - names of http.server

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class _CannedChild:
    def __init__(self, responses: Mapping[str, tuple[int, bytes]]) -> None:
        self._responses = responses
        self.requests: list[dict[str, Any]] = []

    def request(self, line: str, _limit_s: float) -> str:
        request = json.loads(line)
        if "connect" in request:
            return "{}"
        self.requests.append(request)
        status, body = self._responses.get(request["path"], (404, b"no such page"))
        return json.dumps({"status": status, "body": base64.b64encode(body).decode()})


def canned_http(responses: Mapping[str, tuple[int, bytes]]) -> Http:
    """Return a client that gets these responses by path, and 404 for others, without a server."""
    child: Any = _CannedChild(responses)
    return Http(ServerAddress(endpoint=Endpoint("h", 80), host_header="h"), child, {}, tuple)


@contextmanager
def canned_server(
    responses: Mapping[str, tuple[int, bytes]],
    *,
    certificate: Path | None = None,
    missing_bytes: int = 0,
    requests: list[str] | None = None,
) -> Iterator[Endpoint]:
    """Yield the address of an HTTP server in this process with these responses by path, and 404 for others.

    It speaks TLS with a certificate. With `missing_bytes` it closes connections that much too early. Methods and paths
    of its requests are appended to *requests*.
    """
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _CannedHandler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.responses, server.missing_bytes = responses, missing_bytes  # type: ignore[attr-defined]
        server.requests = [] if requests is None else requests  # type: ignore[attr-defined]
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Endpoint("127.0.0.1", server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
