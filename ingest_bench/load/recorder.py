"""Every sample on disk, unrounded: appended at each flush, readable up to the last one after a crash."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Protocol

from ingest_bench.model.samples import OUTCOMES, SAMPLE, Sample

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_CODES = {8: "q", 4: "i", 2: "h"}
_pack = struct.Struct("<" + "".join(_CODES[SAMPLE[name].itemsize] for name in Sample._fields)).pack

OUTCOME_INDEX = {name: index for index, name in enumerate(OUTCOMES)}


class KeepsSamples(Protocol):
    """Where users leave what they saw."""

    def add(self, *sample: int) -> None:
        """One sample more: the fields of `Sample`, in their order."""


class Recorder:
    """Writes samples to one file of records (`SAMPLE`). Memory stays flat when it is flushed regularly."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._kept: list[bytes] = []

    def add(self, *sample: int) -> None:
        """One sample more: the fields of `Sample`, in their order."""
        # As a plain tuple, straight to C: to make a record of them for it took 0.1 to 1.5 us a request.
        self._kept.append(_pack(*sample))

    def flush(self) -> None:
        """All samples so far, given to the kernel."""
        rest = memoryview(b"".join(self._kept))
        self._kept.clear()
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def close(self) -> None:
        """The last samples written, and the file closed."""
        self.flush()
        os.close(self._fd)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def unsent(planned_ns: int, end_ns: int) -> Sample:
    """The sample of a ticket that was due and that nobody took until the end: its wait is its response time."""
    return Sample(
        planned_ns=planned_ns,
        sent_ns=end_ns,
        done_ns=end_ns,
        bytes_sent=0,
        documents=0,
        documents_acked=0,
        documents_failed=0,
        attempts=0,
        status=0,
        outcome=OUTCOME_INDEX["cut-off"],
        user=-1,
    )
