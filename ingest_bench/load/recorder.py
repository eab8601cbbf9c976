"""Every sample on disk, unrounded: appended at each flush, readable up to the last one after a crash."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Protocol

from ingest_bench.model.load import OUTCOMES, SAMPLE_FIELDS

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_CODES = {"<i8": "q", "<i4": "i", "<i2": "h"}
_SAMPLE = struct.Struct("<" + "".join(_CODES[kind] for _, kind in SAMPLE_FIELDS))
_pack = _SAMPLE.pack

SAMPLE_BYTES = _SAMPLE.size
OUTCOME_INDEX = {name: index for index, name in enumerate(OUTCOMES)}


class KeepsSamples(Protocol):
    """Where users leave what they saw."""

    def add(
        self,
        planned_ns: int,
        sent_ns: int,
        done_ns: int,
        bytes_sent: int,
        documents: int,
        acked: int,
        failed: int,
        status: int,
        outcome: int,
        user: int,
    ) -> None:
        """One sample more, in the order of `SAMPLE_FIELDS`."""


class Recorder:
    """Writes samples to one file of records as `SAMPLE_FIELDS` says. Memory stays flat when it is flushed regularly."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._kept: list[bytes] = []

    def add(self, *sample: int) -> None:
        """One sample more, in the order of `SAMPLE_FIELDS`."""
        # As a tuple, straight to C: to name the ten numbers here costs more than to pack them.
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
