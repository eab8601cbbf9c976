"""The child process that asks a server over HTTP inside a namespace: JSON lines in, JSON lines out.

Started by its path, with nothing but the standard library, so that it is there at once.
"""

from __future__ import annotations

import base64
import http.client
import json
import sys
from typing import Any


def main(host: str, port: int) -> None:
    """Answer each question on stdin, until it ends."""
    connection: http.client.HTTPConnection | None = None
    for line in sys.stdin:
        question = json.loads(line)
        # A kept connection may have died while nobody used it: then the question is asked again on a new one. One with
        # a body is not: the server may have acted on it before it broke off.
        again = connection is not None and question["body"] is None
        for was_kept in (True, False) if again else (False,):
            connection = connection or http.client.HTTPConnection(host, port)
            try:
                answer = _ask(connection, question)
                break
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                connection = None
                answer = {"error": f"{type(error).__name__}: {error}"}
                if not (was_kept and isinstance(error, (ConnectionError, http.client.BadStatusLine))):
                    break
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _ask(connection: http.client.HTTPConnection, question: dict[str, Any]) -> dict[str, Any]:
    body = None if question["body"] is None else base64.b64decode(question["body"])
    connection.timeout = question["timeout_s"]
    if connection.sock is not None:
        connection.sock.settimeout(question["timeout_s"])
    connection.request(question["method"], question["path"], body, question["headers"])
    response = connection.getresponse()
    return {"status": response.status, "body": base64.b64encode(response.read()).decode()}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
