"""Records on their way from a worker's disk to ours: in pieces, as many as we take, and on our clock once here.

Never more of them in memory than the pieces that are under way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest_bench.errors import RunFailed
from ingest_bench.model.load import ClockOffset, WorkerReport
from ingest_bench.model.samples import MOMENTS, RECORDS
from ingest_bench.model.values import moments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

# 256 kB, 8 under way: 2 x 210 MB in 0.7 to 1.9 s on loopback while heartbeats come as always.
# Of whole records, whatever they are.
_WHOLE_BYTES = math.lcm(*(record.itemsize for record in RECORDS.values()))
PIECE_BYTES = 256 * 1024 // _WHOLE_BYTES * _WHOLE_BYTES
CREDITS = 8
# Of one message: a plan at most. What is larger comes from nobody of ours.
LIMIT_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Clock:
    """How far another machine's CLOCK_MONOTONIC was ahead of ours, at two moments of ours."""

    before_ns: int = 0
    before_at_ns: int = 0
    after_ns: int = 0
    after_at_ns: int = 0

    def ours(self, theirs_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Moments of that clock on ours. Between the two the offset goes from one to the other evenly.

        One offset for all would be 36 ms off at both ends of an hour, where the clocks differ by 20 ppm.
        """
        since_ns = theirs_ns - (self.before_at_ns + self.before_ns)
        # As floats these are right to a microsecond in a year: only the small product is added.
        lasted_ns = max(1, self.after_at_ns + self.after_ns - self.before_at_ns - self.before_ns)
        gained_ns = np.rint(since_ns * ((self.after_ns - self.before_ns) / lasted_ns)).astype(np.int64)
        return np.asarray(theirs_ns - self.before_ns - gained_ns, dtype=np.int64)

    def moment(self, theirs_ns: int) -> int:
        """One moment of that clock on ours; 0, which is none, stays so."""
        return int(self.ours(np.array([theirs_ns], dtype=np.int64))[0]) if theirs_ns else 0


def on_our_clock(piece: bytes, clock: Clock, record: np.dtype[Any]) -> bytes:
    """The same records, with our clock's times. A time of 0 says that there is none.

    What is no whole record is dropped: so a file ends whose disk was full.
    """
    found = np.frombuffer(piece, dtype=record, count=len(piece) // record.itemsize).copy()
    for name in MOMENTS[record]:
        found[name] = np.where(found[name] == 0, 0, clock.ours(found[name]))
    return found.tobytes()


def report_on_our_clock(report: WorkerReport, clock: Clock, offset: ClockOffset) -> WorkerReport:
    """The report of a worker, with our clock's times."""
    ours: dict[str, Any] = {name: clock.moment(getattr(report, name)) for name in moments(WorkerReport)}
    return dataclasses.replace(
        report,
        **ours,
        realtime_minus_monotonic_ns=time.time_ns() - time.monotonic_ns(),
        clock_offsets=(offset,),
    )


def pieces(path: Path) -> Iterator[dict[str, Any]]:
    """The file in pieces, each as a message; the last one says what all of them are."""
    found, size_bytes, number = hashlib.sha256(), 0, 0
    with path.open("rb") as file:
        while data := file.read(PIECE_BYTES):
            found.update(data)
            size_bytes += len(data)
            yield {"number": number, "data": data}
            number += 1
    yield {"number": number, "sha256": found.hexdigest(), "bytes": size_bytes}


class Incoming:
    """A file that comes in pieces. Records are shifted to our clock as they come; other files stay as they are."""

    def __init__(self, path: Path, clock: Clock | None) -> None:
        self._path = path
        self._clock = clock
        self._record = RECORDS.get(path.name.partition("-")[0], np.dtype("u1"))
        self._hash = hashlib.sha256()
        self._bytes = self._number = 0
        self._file = path.open("wb")

    def take(self, piece: dict[str, Any]) -> bool:
        """Whether it is whole now; RunFailed when what came is not what was sent."""
        if piece["number"] != self._number:
            raise RunFailed(f"{self._path.name}: piece {piece['number']} came where {self._number} was due")
        self._number += 1
        try:
            if "data" in piece:
                self._keep(piece["data"])
                return False
            self._file.close()
        except OSError as error:
            raise RunFailed(f"{self._path}: cannot be written ({error.strerror})") from None
        if (piece["bytes"], piece["sha256"]) != (self._bytes, self._hash.hexdigest()):
            raise RunFailed(
                f"{self._path.name}: what came ({self._bytes} bytes) is not what was sent ({piece['bytes']})"
            )
        return True

    def close(self) -> None:
        """No more pieces."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _keep(self, data: bytes) -> None:
        self._hash.update(data)
        self._bytes += len(data)
        self._file.write(data if self._clock is None else on_our_clock(data, self._clock, self._record))
