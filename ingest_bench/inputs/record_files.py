"""Files of binary records: each has fields of fixed length, and a time is a field whose name ends with `_ns`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ingest_bench.errors import SpecError
from ingest_bench.inputs import files

# 146 years: sums and differences of two such times have 64 bits.
_LATEST_NS = 1 << 62


def read(path: Path, record: np.dtype[Any], start: int = 0, most: int | None = None) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the records of a file from number `start` on, at most `most`. A record that was cut off is left out.

    SpecError when the file cannot be read, or a time in it is none that a clock can show.
    """
    try:
        files.check(path)
        count = max(0, path.stat().st_size // record.itemsize - start)
        count = count if most is None else min(most, count)
        records = np.fromfile(path, dtype=record, count=count, offset=start * record.itemsize)
    except OSError as error:
        raise SpecError(f"{path}: this file cannot be read ({error.strerror})") from None
    for name in record.names or ():
        times_ns = records[name]
        if name.endswith("_ns") and ((times_ns > _LATEST_NS) | (times_ns < -_LATEST_NS)).any():
            raise SpecError(f"{path}: this file is damaged: no clock shows what stands there as {name}")
    return records
