"""The small parts of a load worker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingest_bench.load.health import Lateness
from ingest_bench.load.recorder import Recorder, record
from ingest_bench.model.samples import SAMPLE, Sample


def test_samples_come_back_as_they_went_in(tmp_path: Path) -> None:
    rows = [(*(10**18 + n + more for more in range(5)), n, n, n, n, 0, 1, 200, n % 8, n, 1, 40000) for n in range(3000)]
    with Recorder(tmp_path / "samples-0.bin") as recorder:
        for row in rows:
            recorder.add(record(*row))
    samples = np.fromfile(tmp_path / "samples-0.bin", dtype=SAMPLE)
    assert samples.tolist() == rows


def test_samples_that_were_flushed_are_on_disk_before_the_end(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "samples-0.bin")
    recorder.add(record(*range(len(Sample._fields))))
    recorder.flush()
    assert (tmp_path / "samples-0.bin").stat().st_size == SAMPLE.itemsize
    recorder.close()


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 1.0])
def test_a_quantile_of_lateness_is_at_most_a_thirtieth_too_high(share: float) -> None:
    lateness = Lateness()
    values = [n * n * 37 for n in range(5000)]
    for value in values:
        lateness.add(value)
    true = sorted(values)[int(share * len(values)) - 1]
    assert true <= lateness.quantile_ns(share) <= true * 31 / 30


def test_lateness_without_values_is_zero_and_negative_is_zero() -> None:
    lateness = Lateness()
    assert lateness.quantile_ns(0.99) == 0
    lateness.add(-5)
    assert lateness.quantile_ns(1.0) == 0
