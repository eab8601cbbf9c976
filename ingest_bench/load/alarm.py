"""A timer of the kernel on CLOCK_MONOTONIC, for the event loop.

libev's own timers end an epoll_wait in whole milliseconds: a request would leave up to 1 ms late, and several at once.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from gevent.hub import get_hub

if TYPE_CHECKING:
    from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # TFD_NONBLOCK and TFD_CLOEXEC have the same values (sys/timerfd.h)
_TFD_TIMER_ABSTIME = 1
_READ = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class _TimerSpec(ctypes.Structure):
    _fields_ = (
        ("every_s", ctypes.c_long),
        ("every_ns", ctypes.c_long),
        ("at_s", ctypes.c_long),
        ("at_ns", ctypes.c_long),
    )


class Alarm:
    """Calls `ring` in the hub, so it must not wait for anything, at each moment that it was set to."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._fd = _LIBC.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._ring = ring
        self._spec = _TimerSpec()
        self._spec_pointer = ctypes.byref(self._spec)
        self._watcher = get_hub().loop.io(self._fd, _READ)
        self._watcher.start(self._rung)

    def set(self, at_ns: int) -> None:
        """Rings once at that moment of CLOCK_MONOTONIC; at once when it is past."""
        self._spec.at_s, self._spec.at_ns = divmod(at_ns, 10**9)
        if _LIBC.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, self._spec_pointer, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        """Never rings again."""
        if self._fd >= 0:
            self._watcher.close()
            os.close(self._fd)
            self._fd = -1

    def _rung(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._ring()
