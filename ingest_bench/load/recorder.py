"""Files that a load worker writes: every sample, its CPU use each second, and the stalls of its event loop.

All are appended unrounded and can be read up to the last whole record after a crash.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import gevent
import numpy as np

from ingest_bench.load.figures import RequestFigures, compute_figures, read_cpu_mark
from ingest_bench.model.samples import OUTCOMES, SAMPLE, CpuMark, EventLoopStall, Sample

_CODES = {8: "q", 4: "i", 2: "h"}
_codes = "".join(_CODES[SAMPLE[name].itemsize] for name in Sample._fields)
_layout = struct.Struct("<" + _codes)
_TAIL_START = Sample._fields.index("bytes_unanswered")
_tail = struct.Struct("<" + _codes[_TAIL_START:])
pack_sample: Callable[..., bytes] = _layout.pack
"""Pack the fields of `Sample`, in their order, as on disk."""
pack_sample_tail: Callable[..., bytes] = _tail.pack
"""Pack the fields from `bytes_unanswered` on: many samples in a row have the same."""
pack_sample_with_tail: Callable[[int, int, int, int, int, int, bytes], bytes] = struct.Struct(
    f"<{_codes[:_TAIL_START]}{_tail.size}s"
).pack
"""Pack the fields before the tail, and a packed tail. Takes 0.12 us; `pack_sample` takes 0.26."""
OUTCOME_INDEX = {name: index for index, name in enumerate(OUTCOMES)}

# A tick of 10 ms used half of the CPU of a worker that had nothing to send: 14 ms a second, and 7 ms with a tick of
# 50 ms (busy machine of 2 cores, November 2026).
_TICK_S = 0.05
_MARK_NS = 10**9
# Shorter delays are jitter: the stall analysis calls no request slow for them (analysis.stalls).
_STALL_NS = 5 * 10**7
_pack_mark = struct.Struct(f"<{len(CpuMark._fields)}q").pack
_pack_loop_stall = struct.Struct(f"<{len(EventLoopStall._fields)}q").pack
_SUB_BITS = 5


def unpack_sample(packed: bytes) -> Sample:
    """Return the sample of a packed record."""
    return Sample._make(_layout.unpack(packed))


def unsent_sample(scheduled_ns: int, end_ns: int) -> Sample:
    """Return the sample of an arrival that was due and never taken: its wait until the end is its response time."""
    times = dict.fromkeys(("sent_ns", "written_ns", "first_byte_ns", "done_ns"), end_ns)
    nothing = dict.fromkeys(Sample._fields, 0)
    unsent = {"scheduled_ns": scheduled_ns, "outcome": OUTCOME_INDEX["cut-off"], "user": -1, "address": -1}
    return Sample(**nothing | times | unsent)


class SampleSink(Protocol):
    """Takes the samples of users."""

    @property
    def add(self) -> Callable[[bytes], None]:
        """A function to call with each packed sample."""


class Recorder(AbstractContextManager["Recorder"]):
    """Write samples to one file. Memory stays flat if it is flushed regularly."""

    def __init__(self, path: Path, *, computes_figures: bool = False) -> None:
        self._fd = _open_appending(path)
        self._pending: list[bytes] = []
        # list.append itself: with a method around it, packing and adding took 0.39 us instead of 0.25.
        self.add: Callable[[bytes], None] = self._pending.append
        self._computes_figures = computes_figures
        self.figures = RequestFigures()
        """Of the samples that the kernel has."""

    def flush(self) -> None:
        """Give all samples to the kernel. If it does not take all, keep the others and raise OSError."""
        data, written_bytes = memoryview(b"".join(self._pending)), 0
        try:
            while written_bytes < len(data):
                written_bytes += os.write(self._fd, data[written_bytes:])
        finally:
            written, torn_bytes = divmod(written_bytes, _layout.size)
            if torn_bytes:
                # The next record must not follow a part of one.
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - torn_bytes)
            del self._pending[:written]
            if self._computes_figures:
                self.figures += compute_figures(np.frombuffer(data, dtype=SAMPLE, count=written))

    def close(self) -> None:
        """Flush the last samples and close the file."""
        try:
            self.flush()
        finally:
            os.close(self._fd)

    def __exit__(self, *_: object) -> None:
        self.close()


class DurationHistogram:
    """Histogram of durations in constant memory: 32 steps to a power of two, so a quantile is at most 3% high."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration; a negative one counts as zero."""
        duration_ns = max(0, duration_ns)
        shift = max(0, duration_ns.bit_length() - _SUB_BITS - 1)
        # The upper edge of its step.
        edge_ns = (((duration_ns >> shift) + 1) << shift) - 1
        self._counts[edge_ns] = self._counts.get(edge_ns, 0) + 1
        self.count += 1

    def quantile_ns(self, fraction: float) -> int:
        """Return the upper edge of the step in which that quantile lies; 0 without durations."""
        left = fraction * self.count
        for edge_ns in sorted(self._counts):
            left -= self._counts[edge_ns]
            if left <= 0:
                return edge_ns
        return 0


class ProcessMonitor:
    """Record the CPU use of this process each second, and each stall of its event loop, while it sends.

    `lateness` is how late a greenlet wakes after a sleep of 50 ms: every user of this loop waits at least as long.
    """

    def __init__(self, cpu_file: Path, loop_stall_file: Path, start_ns: int) -> None:
        self.lateness = DurationHistogram()
        self._start_ns = start_ns
        self._cpu_fd, self._stall_fd = _open_appending(cpu_file), _open_appending(loop_stall_file)
        self._first = self._last = self._write_mark()
        self._greenlet = gevent.spawn(self._watch)

    @property
    def cpu_ns(self) -> int:
        """CPU time used from the start to the last mark."""
        return self._last.user_ns + self._last.system_ns - self._first.user_ns - self._first.system_ns

    def close(self) -> None:
        """Stop, after a last mark."""
        self._greenlet.kill()
        self._last = self._write_mark()
        os.close(self._cpu_fd)
        os.close(self._stall_fd)

    def _watch(self) -> None:
        # The seconds of the marks are those of the load.
        next_ns = self._start_ns
        while True:
            due_ns = time.monotonic_ns() + int(_TICK_S * 1e9)
            gevent.sleep(_TICK_S)
            now_ns = time.monotonic_ns()
            self.lateness.add(now_ns - due_ns)
            if now_ns - due_ns >= _STALL_NS:
                os.write(self._stall_fd, _pack_loop_stall(due_ns, now_ns))
            if now_ns >= next_ns:
                self._last = self._write_mark()
                next_ns += ((now_ns - next_ns) // _MARK_NS + 1) * _MARK_NS

    def _write_mark(self) -> CpuMark:
        mark = read_cpu_mark()
        os.write(self._cpu_fd, _pack_mark(*mark))
        return mark


def _open_appending(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
