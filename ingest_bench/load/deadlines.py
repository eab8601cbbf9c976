"""The end of requests that take too long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from weakref import WeakSet

import gevent

if TYPE_CHECKING:
    from ingest_bench.load.connection import Connection

_SWEEP_S = 0.05


class Deadlines:
    """Ends the requests that take too long. One greenlet for all, late by at most a twentieth of a second."""

    def __init__(self) -> None:
        # Weak: a connection whose user has gone is gone with its buffer. Users come and go for as long as a load lasts.
        self._connections: WeakSet[Connection] = WeakSet()
        self._sweeper: gevent.Greenlet | None = None

    def watch(self, connection: Connection) -> None:
        """From now on the connection's `deadline_ns` holds."""
        self._connections.add(connection)
        if self._sweeper is None:
            self._sweeper = gevent.spawn(self._sweep)

    def cut_off(self) -> None:
        """Every request that still waits ends now."""
        for connection in self._connections:
            if connection.deadline_ns:
                connection.expire("cut-off")

    def close(self) -> None:
        """No connection is watched, and none is open."""
        if self._sweeper is not None:
            self._sweeper.kill()
        for connection in self._connections:
            connection.close()

    def _sweep(self) -> None:
        while True:
            gevent.sleep(_SWEEP_S)
            self._time_out(time.monotonic_ns())

    def _time_out(self, now_ns: int) -> None:
        for connection in self._connections:
            if 0 < connection.deadline_ns < now_ns:
                connection.expire("timeout")
