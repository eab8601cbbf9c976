"""The child process that asks a server over HTTP inside a namespace: JSON lines in, JSON lines out.

The first line says what the server is called, and whether it is asked over TLS.

Started by its path, with nothing but the standard library, so that it is there at once.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import sys
from typing import Any


class Connection(http.client.HTTPConnection):
    """A connection to an address, whatever the server is called there."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, name: str) -> None:
        super().__init__(host, port)
        self._context = context
        self._name = name

    def connect(self) -> None:
        """Open it; over TLS the certificate must be for the server's name."""
        self.sock = socket.create_connection((self.host, self.port), self.timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self._name)


def main(host: str, port: int) -> None:
    """Answer each question on stdin, until it ends."""
    server = json.loads(sys.stdin.readline())
    tls = server["tls"]
    context = None if tls is None else ssl.create_default_context(cadata=tls["ca_pem"] or None)
    connection: Connection | None = None
    for line in sys.stdin:
        question = json.loads(line)
        # A kept connection may have died while nobody used it: then the question is asked again on a new one. One with
        # a body is not: the server may have acted on it before it broke off.
        again = connection is not None and question["body"] is None
        for was_kept in (True, False) if again else (False,):
            connection = connection or Connection(host, port, context, tls["name"] if tls else "")
            try:
                answer = _ask(connection, question, server["host"])
                break
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                connection = None
                answer = {"error": f"{type(error).__name__}: {error}"}
                if not (was_kept and isinstance(error, (ConnectionError, http.client.BadStatusLine))):
                    break
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _ask(connection: Connection, question: dict[str, Any], host: str) -> dict[str, Any]:
    body = None if question["body"] is None else base64.b64decode(question["body"])
    connection.timeout = question["timeout_s"]
    if connection.sock is not None:
        connection.sock.settimeout(question["timeout_s"])
    connection.request(question["method"], question["path"], body, {"Host": host, **question["headers"]})
    response = connection.getresponse()
    return {"status": response.status, "body": base64.b64encode(response.read()).decode()}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
