"""The end of requests that take too long."""

from __future__ import annotations

import time
from typing import Protocol
from weakref import WeakSet

import gevent


class Waits(Protocol):
    """A connection, as far as time is concerned."""

    deadline_ns: int
    """CLOCK_MONOTONIC; 0: nothing is being waited for."""

    def expire(self, outcome: str) -> None:
        """Ends what the connection waits for, from another greenlet; its request fails with that outcome."""

    def close(self) -> None:
        """No connection."""


_SWEEP_S = 0.05


class Deadlines:
    """Ends the requests that take too long. One greenlet for all, late by at most a twentieth of a second."""

    def __init__(self) -> None:
        # Weak: a connection whose user has gone is gone with its buffer. Users come and go for as long as a load lasts.
        self._connections: WeakSet[Waits] = WeakSet()
        self._sweeper: gevent.Greenlet | None = None

    def watch(self, connection: Waits) -> None:
        """From now on the connection's `deadline_ns` holds."""
        self._connections.add(connection)
        if self._sweeper is None:
            self._sweeper = gevent.spawn(self._sweep)

    def cut_off(self) -> None:
        """Every request that still waits ends now."""
        for connection in self._connections:
            if connection.deadline_ns:
                connection.expire("cut-off")

    def pending(self) -> list[int]:
        """The deadline of each request that is under way."""
        return [connection.deadline_ns for connection in self._connections if connection.deadline_ns]

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
