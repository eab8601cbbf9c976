"""When the next request is due. A ticket is a planned time; open and closed loop differ only in who drops it."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from gevent.event import Event
from gevent.hub import Waiter

from ingest_bench.load.alarm import Alarm
from ingest_bench.load.health import Lateness

if TYPE_CHECKING:
    from collections.abc import Iterator


class Tickets(Protocol):
    """What users wait on."""

    opened: Event
    """Set when users may ask for tickets, or when there are none any more; until then they wait."""
    waited: int
    """Tickets that no user was free for when they were due."""
    queue: Lateness
    """How late a ticket was given to a user that was free: the generator's own delay."""

    def open(self, start_ns: int, end_ns: int) -> None:
        """None is planned before `start_ns`, which is still to come, and none at `end_ns` or later."""

    def take(self) -> int:
        """The planned time of the caller's next request, once it is due; 0: there is none any more."""

    def due(self, now_ns: int) -> int:
        """The planned time of a ticket that is due and was not taken; 0: there is none now. It never waits."""

    def close(self) -> None:
        """No more tickets: who waits gets 0."""

    def unsent(self) -> tuple[int, ...]:
        """The planned times of tickets that nobody took."""


class ClosedLoop:
    """A user's ticket drops when its last request is finished: no queue, so no lock is needed."""

    def __init__(self) -> None:
        self.opened = Event()
        self.waited = 0
        self.queue = Lateness()
        self._end_ns = 0
        self._alarm: Alarm | None = None

    def open(self, start_ns: int, end_ns: int) -> None:
        """Tickets until `end_ns`. Users are held until the start: a ticket of theirs is planned when they ask."""
        self._end_ns = end_ns
        self._alarm = Alarm(self._begin)
        self._alarm.set(start_ns)

    def take(self) -> int:
        """Now, until the end."""
        now_ns = time.monotonic_ns()
        return now_ns if now_ns < self._end_ns else 0

    def due(self, now_ns: int) -> int:
        """Now, until the end."""
        return now_ns if now_ns < self._end_ns else 0

    def close(self) -> None:
        """No more tickets."""
        self._end_ns = 0
        self._begin()

    def unsent(self) -> tuple[int, ...]:
        """None: a ticket that is not taken does not drop."""
        return ()

    def _begin(self) -> None:
        if self._alarm is not None:
            self._alarm.close()
        self.opened.set()


class OpenLoop:
    """A clock drops tickets on schedule. A ticket that no user is free for waits, and its wait is response time."""

    def __init__(self, offsets_ns: Iterator[int]) -> None:
        self.opened = Event()
        self.waited = 0
        self.queue = Lateness()
        self._offsets_ns = offsets_ns
        self._due: deque[int] = deque()
        self._idle: deque[Waiter] = deque()
        self._start_ns = self._end_ns = self._next_ns = 0
        self._over = True
        self._is_given = False
        """Whether the next ticket is that of a user already: it may end the load before the one after it is planned."""
        self._alarm = Alarm(self._drop)

    def open(self, start_ns: int, end_ns: int) -> None:
        """Tickets at the planned offsets from `start_ns`, until `end_ns`. Users are let in at once: the clock rings."""
        self._over = False
        self._start_ns, self._end_ns = start_ns, end_ns
        if self._plan_next():
            self._alarm.set(self._next_ns)
        self.opened.set()

    def take(self) -> int:
        """The oldest ticket that is due, or the next one when it is; 0 after the end."""
        if self._due and time.monotonic_ns() < self._end_ns:
            return self._due.popleft()
        if self._over:
            return 0
        waiter = Waiter()
        self._idle.append(waiter)
        return int(waiter.get())

    def due(self, now_ns: int) -> int:
        """The oldest ticket that is due; 0 when there is none, and after the end."""
        return self._due.popleft() if self._due and now_ns < self._end_ns else 0

    def close(self) -> None:
        """No more tickets. Those that are due and not taken are `unsent`, also when the clock is late."""
        end_ns = min(time.monotonic_ns(), self._end_ns)
        if self._is_given:
            self._plan_next()
        while not self._over and self._next_ns < end_ns:
            self.waited += 1
            self._due.append(self._next_ns)
            self._plan_next()
        self._over = True
        self._end_ns = 0
        self._alarm.close()
        self._dismiss()
        self.opened.set()

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
                self._is_given = True
                self._idle.popleft().switch(planned_ns)
            if not self._plan_next():
                return

    def _plan_next(self) -> bool:
        """Whether there is one more ticket. After the last of a schedule that ends, users are dismissed."""
        self._is_given = False
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
