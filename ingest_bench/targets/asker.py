"""The child process that asks a server over HTTP inside a namespace: JSON lines in, JSON lines out.

The first line says what the server is called, and whether it is asked over TLS.

Started by its path, with nothing but the standard library, so that it is there at once.
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

# No question here has an answer of this size; a body without an end would fill the memory.
_LARGEST_BYTES = 64 * 1024**2


class Connection(http.client.HTTPConnection):
    """A connection to an address, whatever the server is called there."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, name: str) -> None:
        super().__init__(host, port)
        self._context = context
        self._name = name

    def connect(self) -> None:
        """Open it; over TLS the certificate must be for the server's name."""
        self.sock = socket.create_connection((self.host, self.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self._name)


def main(host: str, port: int) -> None:
    """Answer each question on stdin, until it ends."""
    server = json.loads(sys.stdin.readline())
    signal.signal(signal.SIGALRM, _over)
    asker = Asker(host, port, server)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            # For all of it: a socket's own timeout begins anew with each byte that a server lets drip.
            signal.setitimer(signal.ITIMER_REAL, question["timeout_s"])
            answer = asker.answer(question)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except TimeoutError as error:
            asker.connection = None
            answer = {"error": f"TimeoutError: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


class Asker:
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

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """What the server said, or why there is no answer. A connection alone is an answer without a word."""
        if "connect" in question:
            return self._connect()
        # A kept connection may have died while nobody used it: then the question is asked again on a new one. One with
        # a body is not: the server may have acted on it before it broke off.
        again = self.connection is not None and question["body"] is None
        answer: dict[str, Any] = {}
        for was_kept in (True, False) if again else (False,):
            connection = self.connection = self.connection or Connection(*self._address, self._context, self._name)
            try:
                return self._ask(connection, question)
            except (OSError, http.client.HTTPException) as error:
                self.connection = None
                connection.close()
                answer = {"error": f"{type(error).__name__}: {error}"}
                if not (was_kept and isinstance(error, (ConnectionError, http.client.BadStatusLine))):
                    break
        return answer

    def _connect(self) -> dict[str, Any]:
        try:
            socket.create_connection(self._address).close()
        except TimeoutError:
            raise
        except OSError as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {}

    def _ask(self, connection: Connection, question: dict[str, Any]) -> dict[str, Any]:
        body = None if question["body"] is None else base64.b64decode(question["body"])
        headers = {"Host": self._host_header, **question["headers"]}
        connection.request(question["method"], question["path"], body, headers)
        response = connection.getresponse()
        return {"status": response.status, "body": base64.b64encode(_body(response)).decode()}


def _body(response: http.client.HTTPResponse) -> bytes:
    if response.length is not None and response.length <= _LARGEST_BYTES:
        return response.read()
    content = response.read(_LARGEST_BYTES)
    if len(content) == _LARGEST_BYTES:
        raise http.client.HTTPException(f"the answer is longer than {_LARGEST_BYTES} bytes")
    return content


def _over(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError("timed out")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
