"""The samples of a load on disk, a piece after the other: a load of any length is read in flat memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ingest_bench.inputs import record_files
from ingest_bench.model.samples import SAMPLE

# Of all files together: enough for numpy to be quick, and little beside the interpreter.
_PIECE_RECORDS = 1 << 20
_LEAST_RECORDS = 1 << 10


class SampleFiles:
    """The samples of some files, by the moment they ended. A record that was cut off is left out.

    Each worker wrote its own file, in the order in which its tickets ended. What was never sent comes last in it.
    """

    def __init__(self, paths: Sequence[Path], record: np.dtype[Any] = SAMPLE) -> None:
        self._paths, self._record = paths, record
        self._sizes = [path.stat().st_size // record.itemsize for path in paths]
        self._kept: np.ndarray[Any, np.dtype[Any]] | None = None

    def __len__(self) -> int:
        return sum(self._sizes)

    def pieces(self) -> Iterator[tuple[np.ndarray[Any, np.dtype[Any]], int | None]]:
        """Samples, and the moment before which no later piece has one that ended; None: there is no later piece."""
        if len(self) <= _PIECE_RECORDS:
            # Few are read once, however often they are looked at.
            if self._kept is None:
                self._kept = self._all()
            yield self._kept, None
            return
        step = max(_LEAST_RECORDS, _PIECE_RECORDS // len(self._paths))
        readers = [self._blocks(path, size, step) for path, size in zip(self._paths, self._sizes, strict=True)]
        ahead = {number: block for number, reader in enumerate(readers) if (block := next(reader, None)) is not None}
        while ahead:
            number = min(ahead, key=lambda one: int(ahead[one]["done_ns"][0]))
            block, following = ahead.pop(number), next(readers[number], None)
            if following is not None:
                ahead[number] = following
            yield block, min((int(one["done_ns"][0]) for one in ahead.values()), default=None)

    def whole(self) -> np.ndarray[Any, np.dtype[Any]]:
        """All of them in memory, by the moment they were sent."""
        found = self._all()
        return found[np.argsort(found["sent_ns"], kind="stable")]

    def _all(self) -> np.ndarray[Any, np.dtype[Any]]:
        found = np.empty(len(self), dtype=SAMPLE)
        at = 0
        for path, size in zip(self._paths, self._sizes, strict=True):
            for block in self._blocks(path, size, _LEAST_RECORDS << 6):
                found[at : at + len(block)] = block
                at += len(block)
        return found

    def _blocks(self, path: Path, size: int, step: int) -> Iterator[np.ndarray[Any, np.dtype[Any]]]:
        for start in range(0, size, step):
            block = record_files.read(path, self._record, start, min(step, size - start))
            yield block if self._record is SAMPLE else _as_now(block)


def _as_now(old: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Older samples as they are today: nobody knows when the kernel had all of a request."""
    found = np.empty(len(old), dtype=SAMPLE)
    for name in SAMPLE.names or ():
        found[name] = old[name] if name in (old.dtype.names or ()) else old["done_ns"]
    return found
