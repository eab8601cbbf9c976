"""When the next request is due. A ticket is a planned time; open and closed loop differ only in who drops it."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from gevent.hub import Waiter

from ingest_bench.load.alarm import Alarm
from ingest_bench.load.health import Lateness

if TYPE_CHECKING:
    from collections.abc import Iterator


class Tickets(Protocol):
    """What users wait on."""

    waited: int
    """Tickets that no user was free for when they were due."""
    queue: Lateness
    """How late a ticket was given to a user that was free: the generator's own delay."""

    def open(self, start_ns: int, end_ns: int) -> None:
        """From now on tickets are given, none that is planned at `end_ns` or later."""

    def take(self) -> int:
        """The planned time of the caller's next request, once it is due; 0: there is none any more."""

    def close(self) -> None:
        """No more tickets: who waits gets 0."""

    def unsent(self) -> tuple[int, ...]:
        """The planned times of tickets that nobody took."""


class ClosedLoop:
    """A user's ticket drops when its last request is finished: no queue, so no lock is needed."""

    def __init__(self) -> None:
        self.waited = 0
        self.queue = Lateness()
        self._end_ns = 0

    def open(self, start_ns: int, end_ns: int) -> None:  # noqa: ARG002 - users are held until the start
        """Tickets until `end_ns`."""
        self._end_ns = end_ns

    def take(self) -> int:
        """Now, until the end."""
        now_ns = time.monotonic_ns()
        return now_ns if now_ns < self._end_ns else 0

    def close(self) -> None:
        """No more tickets."""
        self._end_ns = 0

    def unsent(self) -> tuple[int, ...]:
        """None: a ticket that is not taken does not drop."""
        return ()


class OpenLoop:
    """A clock drops tickets on schedule. A ticket that no user is free for waits, and its wait is response time."""

    def __init__(self, offsets_ns: Iterator[int]) -> None:
        self.waited = 0
        self.queue = Lateness()
        self._offsets_ns = offsets_ns
        self._due: deque[int] = deque()
        self._idle: deque[Waiter] = deque()
        self._start_ns = self._end_ns = self._next_ns = 0
        self._over = True
        self._alarm = Alarm(self._drop)

    def open(self, start_ns: int, end_ns: int) -> None:
        """Tickets at the planned offsets from `start_ns`, until `end_ns`."""
        self._over = False
        self._start_ns, self._end_ns = start_ns, end_ns
        if self._plan_next():
            self._alarm.set(self._next_ns)

    def take(self) -> int:
        """The oldest ticket that is due, or the next one when it is; 0 after the end."""
        if self._due and time.monotonic_ns() < self._end_ns:
            return self._due.popleft()
        if self._over:
            return 0
        waiter = Waiter()
        self._idle.append(waiter)
        return int(waiter.get())

    def close(self) -> None:
        """No more tickets. Those that are due and not taken are `unsent`, also when the clock is late."""
        end_ns = min(time.monotonic_ns(), self._end_ns)
        while not self._over and self._next_ns < end_ns:
            self.waited += 1
            self._due.append(self._next_ns)
            self._plan_next()
        self._over = True
        self._end_ns = 0
        self._alarm.close()
        self._dismiss()

    def unsent(self) -> tuple[int, ...]:
        """The planned times of tickets that were due and not taken."""
        return tuple(self._due)

    def _drop(self) -> None:
        """Every ticket that is due. Runs in the hub: switching to a user returns when that user waits."""
        while not self._over:
            now_ns = time.monotonic_ns()
            if self._next_ns > now_ns:
                self._alarm.set(self._next_ns)
                return
            planned_ns = self._next_ns
            if not self._idle:
                self.waited += 1
                self._due.append(planned_ns)
            else:
                self.queue.add(now_ns - planned_ns)
                self._idle.popleft().switch(planned_ns)
            if not self._plan_next():
                return

    def _plan_next(self) -> bool:
        """Whether there is one more ticket. After the last of a schedule that ends, users are dismissed."""
        offset_ns = next(self._offsets_ns, None)
        if offset_ns is None:
            self._over = True
            self._dismiss()
            return False
        self._next_ns = self._start_ns + offset_ns
        return self._next_ns < self._end_ns

    def _dismiss(self) -> None:
        while self._idle:
            waiter = self._idle.popleft()
            waiter.hub.loop.run_callback(waiter.switch, 0)
