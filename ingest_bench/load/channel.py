"""A child process and its parent: lines of JSON over standard input and output, in a process that runs gevent."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import gevent
from gevent.queue import Queue
from gevent.socket import wait_read, wait_write

_FLUSH_TIMEOUT_S = 5.0
_PR_SET_PDEATHSIG = 1


class LineChannel:
    """Lines of JSON to and from our parent over standard output and input, read and written by greenlets."""

    def __init__(self) -> None:
        os.set_blocking(1, False)
        self.timeout_s: float | None = None
        self._outgoing: Queue[Any] = Queue()
        self._writer = gevent.spawn(self._write)

    def send(self, line: Mapping[str, Any]) -> None:
        """Send a line. Never waits."""
        self._outgoing.put(line)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that arrive, until the parent closes its end. TimeoutError after `timeout_s` of silence."""
        incomplete = b""
        while True:
            wait_read(0, self.timeout_s, TimeoutError())
            block = os.read(0, 1 << 20)
            if not block:
                return
            *lines, incomplete = (incomplete + block).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def flush(self) -> None:
        """Wait, at most 5 s, until the lines are written; no more lines can be sent."""
        self._outgoing.put(StopIteration)
        self._writer.join(timeout=_FLUSH_TIMEOUT_S)

    def _write(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            for line in self._outgoing:
                unwritten = memoryview(json.dumps(line).encode() + b"\n")
                while unwritten:
                    try:
                        unwritten = unwritten[os.write(1, unwritten) :]
                    except BlockingIOError:
                        wait_write(1)


@contextlib.contextmanager
def run_child() -> Iterator[LineChannel]:
    """Run the block as a child process: it dies with its parent, logs warnings, and exits after its last line.

    An exception ends it as any program.
    """
    # Also here: entering a user namespace clears an earlier request.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    channel = LineChannel()
    yield channel
    channel.flush()
    # Greenlets of Locust would delay the exit of the interpreter.
    os._exit(0)
