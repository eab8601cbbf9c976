"""How the generator itself is: CPU, and how late its event loop comes around."""

from __future__ import annotations

import time

import gevent

_TICK_S = 0.01
_SUB_BITS = 5


class Lateness:
    """A histogram of durations in constant memory: 32 steps to a power of two, so a quantile is 3% high at most."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total = 0

    def add(self, duration_ns: int) -> None:
        """One duration more; a negative one is zero."""
        shift = max(0, duration_ns.bit_length() - _SUB_BITS - 1)
        step = (shift << 8) + (max(0, duration_ns) >> shift)
        self._counts[step] = self._counts.get(step, 0) + 1
        self._total += 1

    def quantile_ns(self, share: float) -> int:
        """The upper edge of the step that holds that share of the durations; 0 without any."""
        left = share * self._total
        for step in sorted(self._counts):
            left -= self._counts[step]
            if left <= 0:
                shift, value = step >> 8, step & 255
                return ((value + 1) << shift) - 1 if shift else value
        return 0


class LoopLag:
    """How late a greenlet wakes that asked for ten milliseconds: what any user of this loop waits at least."""

    def __init__(self) -> None:
        self.lateness = Lateness()
        self._greenlet = gevent.spawn(self._watch)

    def close(self) -> None:
        """No more watching."""
        self._greenlet.kill()

    def _watch(self) -> None:
        while True:
            due_ns = time.monotonic_ns() + int(_TICK_S * 1e9)
            gevent.sleep(_TICK_S)
            self.lateness.add(time.monotonic_ns() - due_ns)
