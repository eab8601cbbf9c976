"""A connection to a node, and the child process that asks it: one question on stdin, its answer on stdout.

Both are JSON; an answer with "error" or "unanswered" is none. The child is started by its path, so that it imports
little and is there soon (`targets.asking`).
"""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, TypeVar

from ingest_bench import idl

N = TypeVar("N")


class Connection:
    """A node, asked over one connection."""

    def __init__(self, host: str, port: int) -> None:
        self._sock = socket.create_connection((host, port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._sock.makefile("rb")

    def close(self) -> None:
        """No connection."""
        self._file.close()
        self._sock.close()

    def send(self, request: bytes) -> None:
        """All of it goes to the node."""
        self._sock.sendall(request)

    def read(self, size_bytes: int) -> bytes:
        """So many bytes of what it answers."""
        data = self._file.read(size_bytes)
        if len(data) < size_bytes:
            raise ConnectionError("the node closed the connection")
        return data


def answer_question(
    connect: Callable[[str, int], N], questions: Mapping[str, Callable[[N, Mapping[str, Any]], dict[str, Any]]]
) -> None:
    """Answers the question on stdin. The arguments are host, port, and the limit for all of it in seconds."""
    host, port, limit_s = sys.argv[1:]
    question = json.loads(sys.stdin.read())
    signal.signal(signal.SIGALRM, _over)
    try:
        # For all of it: a socket's own timeout begins anew with each read.
        signal.setitimer(signal.ITIMER_REAL, float(limit_s))
        found = questions[question["ask"]](connect(host, int(port)), question)
    except TimeoutError as error:
        found = {"unanswered": f"TimeoutError: {error}"}
    except (OSError, idl.RaisedError, idl.BrokenMessageError) as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.stdout.write(json.dumps(found))


def _over(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError("timed out")
