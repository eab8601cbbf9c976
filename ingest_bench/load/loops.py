"""Open and closed loop: release arrivals (scheduled times of requests) to users.

Users wait for arrivals. In an open loop a kernel timer releases them on schedule; in a closed loop finishing a request
releases the next one.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from collections.abc import Callable, Iterator

from gevent.event import Event
from gevent.hub import Waiter, get_hub

from ingest_bench.load.recorder import DurationHistogram

_CLOCK_MONOTONIC = 1
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # TFD_NONBLOCK and TFD_CLOEXEC have the same values (sys/timerfd.h)
_TFD_TIMER_ABSTIME = 1
_READ = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class ClosedLoop:
    """A user's next arrival is due when its last request is finished."""

    def __init__(self) -> None:
        self.opened = Event()
        """Set once users may ask for arrivals, and when there are no more; until then they wait."""
        self.waited = 0
        """Arrivals that were due while no user was free."""
        self.send_delay = DurationHistogram()
        """From the scheduled time until a free user had the arrival: the generator's own delay."""
        self._end_ns = 0
        self._timer: KernelTimer | None = None

    def open(self, start_ns: int, end_ns: int) -> None:
        """Release arrivals until `end_ns`. Users wait for the start, because an arrival is scheduled when they ask."""
        self._end_ns = end_ns
        self._timer = KernelTimer(self._open)
        self._timer.set(start_ns)

    def wait_for_next(self) -> int:
        """Return the current time; 0 after the end."""
        return self.take_due(time.monotonic_ns())

    def take_due(self, now_ns: int) -> int:
        """Return the current time; 0 after the end."""
        return now_ns if now_ns < self._end_ns else 0

    def close(self) -> None:
        """Release no more arrivals."""
        self._end_ns = 0
        self._open()

    def unsent(self) -> tuple[int, ...]:
        """Return (): an arrival exists only once a user asks for it."""
        return ()

    def _open(self) -> None:
        if self._timer is not None:
            self._timer.close()
        self.opened.set()


class OpenLoop:
    """Arrivals are due at scheduled times. If no user is free, an arrival waits, and its wait is response time.

    It has the attributes of a `ClosedLoop`.
    """

    def __init__(self, offsets_ns: Iterator[int]) -> None:
        self.opened = Event()
        self.waited = 0
        self.send_delay = DurationHistogram()
        self._offsets_ns = offsets_ns
        self._due: deque[int] = deque()
        self._idle: deque[Waiter] = deque()
        self._start_ns = self._end_ns = self._next_ns = 0
        self._is_over = True
        self._is_taken = False
        """True while `_next_ns` is with a user already, which may end the load before the next one is scheduled."""
        self._timer = KernelTimer(self._release)

    def open(self, start_ns: int, end_ns: int) -> None:
        """Release arrivals at the offsets from `start_ns`, until `end_ns`. Users may ask at once: the timer decides."""
        self._is_over = False
        self._start_ns, self._end_ns = start_ns, end_ns
        if self._schedule_next():
            self._timer.set(self._next_ns)
        self.opened.set()

    def wait_for_next(self) -> int:
        """Return the oldest arrival that is due, or wait for the next one; 0 after the end."""
        if self._due and time.monotonic_ns() < self._end_ns:
            return self._due.popleft()
        if self._is_over:
            return 0
        waiter = Waiter()
        self._idle.append(waiter)
        return int(waiter.get())

    def take_due(self, now_ns: int) -> int:
        """Return the oldest arrival that is due; 0 if there is none, and after the end."""
        return self._due.popleft() if self._due and now_ns < self._end_ns else 0

    def close(self) -> None:
        """Release no more arrivals. Those due and not taken are `unsent`, also if the timer is late."""
        end_ns = min(time.monotonic_ns(), self._end_ns)
        if self._is_taken:
            self._schedule_next()
        while not self._is_over and self._next_ns < end_ns:
            self.waited += 1
            self._due.append(self._next_ns)
            self._schedule_next()
        self._is_over = True
        self._end_ns = 0
        self._timer.close()
        self._dismiss_idle()
        self.opened.set()

    def unsent(self) -> tuple[int, ...]:
        """Return the scheduled times of arrivals that were due and not taken."""
        return tuple(self._due)

    def _release(self) -> None:
        """Release every arrival that is due. Runs in the hub: a switch to a user returns when that user waits."""
        while not self._is_over:
            now_ns = time.monotonic_ns()
            if self._next_ns > now_ns:
                self._timer.set(self._next_ns)
                return
            scheduled_ns = self._next_ns
            if not self._idle:
                self.waited += 1
                self._due.append(scheduled_ns)
            else:
                self.send_delay.add(now_ns - scheduled_ns)
                self._is_taken = True
                self._idle.popleft().switch(scheduled_ns)
            if not self._schedule_next():
                return

    def _schedule_next(self) -> bool:
        """Return False if there is no next arrival before the end. At the end of the schedule, dismiss idle users."""
        self._is_taken = False
        offset_ns = next(self._offsets_ns, None)
        if offset_ns is None:
            self._is_over = True
            self._dismiss_idle()
            return False
        self._next_ns = self._start_ns + offset_ns
        return self._next_ns < self._end_ns

    def _dismiss_idle(self) -> None:
        while self._idle:
            waiter = self._idle.popleft()
            waiter.hub.loop.run_callback(waiter.switch, 0)


ArrivalQueue = ClosedLoop | OpenLoop
"""The arrivals of one worker process."""


class _TimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("at_s", ctypes.c_long),
        ("at_ns", ctypes.c_long),
    )


class KernelTimer:
    """A timerfd on CLOCK_MONOTONIC that calls `callback` in the hub; `callback` must not wait.

    libev's own timers end an epoll_wait in whole milliseconds: a request would leave up to 1 ms late.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._fd = _LIBC.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._callback = callback
        self._spec = _TimerSpec()
        self._spec_pointer = ctypes.byref(self._spec)
        self._watcher = get_hub().loop.io(self._fd, _READ)
        self._watcher.start(self._expired)

    def set(self, at_ns: int) -> None:
        """Call back once at that moment of CLOCK_MONOTONIC; at once if it is past."""
        self._spec.at_s, self._spec.at_ns = divmod(at_ns, 10**9)
        if _LIBC.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, self._spec_pointer, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        """Never call back again."""
        if self._fd >= 0:
            self._watcher.close()
            os.close(self._fd)
            self._fd = -1

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._callback()
