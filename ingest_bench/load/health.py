"""How the generator itself is: CPU, and how late its event loop comes around."""

from __future__ import annotations

import os
import struct
import time
from typing import TYPE_CHECKING

import gevent

from ingest_bench.load.live.figures import cpu_mark
from ingest_bench.model.samples import CpuMark, Standstill

if TYPE_CHECKING:
    from pathlib import Path

# To look each 10 ms took half of the CPU of a worker that has nothing to send: 14 ms a second, 7 at 50 ms (busy machine
# of 2 cores, November 2026).
_TICK_S = 0.05
_MARK_NS = 10**9
# Less is jitter: no request is called slow for it (analysis.stalls).
_STANDSTILL_NS = 5 * 10**7
_pack = struct.Struct(f"<{len(CpuMark._fields)}q").pack
_pack_standstill = struct.Struct(f"<{len(Standstill._fields)}q").pack
_SUB_BITS = 5


class Lateness:
    """A histogram of durations in constant memory: 32 steps to a power of two, so a quantile is 3% high at most."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total = 0

    @property
    def count(self) -> int:
        """How many there were."""
        return self._total

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


class Watch:
    """Watches this process while it sends: the CPU that it uses, each second into a file, and its event loop.

    Into another file goes each time in which the loop stood still.
    `lateness` is how late a greenlet wakes that asked for 50 ms: what any user of this loop waits at least.
    """

    def __init__(self, cpu: Path, standstills: Path, start_ns: int) -> None:
        self.lateness = Lateness()
        self._start_ns = start_ns
        self._fd, self._standstills = (
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644) for path in (cpu, standstills)
        )
        self._first = self._last = self._mark()
        self._greenlet = gevent.spawn(self._watch)

    @property
    def cpu_ns(self) -> int:
        """What it used so far, since the beginning."""
        return self._last.user_ns + self._last.system_ns - self._first.user_ns - self._first.system_ns

    def close(self) -> None:
        """No more watching, after a last mark."""
        self._greenlet.kill()
        self._last = self._mark()
        os.close(self._fd)
        os.close(self._standstills)

    def _watch(self) -> None:
        # The seconds are those of the load.
        next_ns = self._start_ns
        while True:
            due_ns = time.monotonic_ns() + int(_TICK_S * 1e9)
            gevent.sleep(_TICK_S)
            now_ns = time.monotonic_ns()
            self.lateness.add(now_ns - due_ns)
            if now_ns - due_ns >= _STANDSTILL_NS:
                os.write(self._standstills, _pack_standstill(due_ns, now_ns))
            if now_ns >= next_ns:
                self._last = self._mark()
                next_ns += ((now_ns - next_ns) // _MARK_NS + 1) * _MARK_NS

    def _mark(self) -> CpuMark:
        mark = cpu_mark()
        os.write(self._fd, _pack(*mark))
        return mark
