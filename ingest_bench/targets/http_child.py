"""HTTP child: sends requests to a server from inside a namespace. JSON lines in, JSON lines out.

The first line has the server's name and its TLS options. Started by its path, with only the standard library, so that
it starts at once.
"""

from __future__ import annotations

import base64
import http.client
import json
import signal
import socket
import ssl
import sys
from types import FrameType
from typing import Any

# No response here is that large; a body without an end would fill the memory.
_MAX_BODY_BYTES = 64 * 1024**2


class Connection(http.client.HTTPConnection):
    """A connection to an address, under the name that the server has in its certificate."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, name: str) -> None:
        super().__init__(host, port)
        self._context = context
        self._name = name

    def connect(self) -> None:
        """Open the connection; with TLS, the certificate must be for the server's name."""
        self.sock = socket.create_connection((self.host, self.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self._name)


class Client:
    """One server, and the connection that is kept to it."""

    def __init__(self, host: str, port: int, server: dict[str, Any]) -> None:
        self.connection: Connection | None = None
        self._address = host, port
        self._host_header = server["host"]
        tls = server["tls"]
        self._context = None if tls is None else ssl.create_default_context(cadata=tls["ca_pem"] or None)
        if self._context is not None and tls["client_cert"]:
            self._context.load_cert_chain(tls["client_cert"], tls["client_key"])
        self._name = tls["name"] if tls else ""

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return status and body of the response, or an error; an empty reply to a mere connection."""
        if "connect" in request:
            return self._try_connect()
        # A kept connection may have died while it was idle: then the request is sent again on a new one. Not one with a
        # body: the server may have acted on it before the connection broke.
        has_retry = self.connection is not None and request["body"] is None
        reply: dict[str, Any] = {}
        for was_kept in (True, False) if has_retry else (False,):
            connection = self.connection = self.connection or Connection(*self._address, self._context, self._name)
            try:
                return self._send(connection, request)
            except (OSError, http.client.HTTPException) as error:
                self.connection = None
                connection.close()
                reply = _describe_error(error)
                if not (was_kept and isinstance(error, (ConnectionError, http.client.BadStatusLine))):
                    break
        return reply

    def _try_connect(self) -> dict[str, Any]:
        try:
            socket.create_connection(self._address).close()
        except TimeoutError:
            raise
        except OSError as error:
            return _describe_error(error)
        return {}

    def _send(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        body = None if request["body"] is None else base64.b64decode(request["body"])
        headers = {"Host": self._host_header, **request["headers"]}
        connection.request(request["method"], request["path"], body, headers)
        response = connection.getresponse()
        return {"status": response.status, "body": base64.b64encode(_read_body(response)).decode()}


def main(host: str, port: int) -> None:
    """Handle each request on stdin, until it ends."""
    client = Client(host, port, json.loads(sys.stdin.readline()))
    signal.signal(signal.SIGALRM, _time_out)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            # One limit for everything: a socket's own timeout starts again with each byte that a server sends.
            signal.setitimer(signal.ITIMER_REAL, request["timeout_s"])
            reply = client.handle(request)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except TimeoutError as error:
            client.connection = None
            reply = _describe_error(error)
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def _read_body(response: http.client.HTTPResponse) -> bytes:
    if response.length is not None and response.length <= _MAX_BODY_BYTES:
        return response.read()
    body = response.read(_MAX_BODY_BYTES)
    if len(body) == _MAX_BODY_BYTES:
        raise http.client.HTTPException(f"the response is longer than {_MAX_BODY_BYTES} bytes")
    return body


def _describe_error(error: Exception) -> dict[str, Any]:
    return {"error": f"{type(error).__name__}: {error}"}


def _time_out(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError("timed out")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
