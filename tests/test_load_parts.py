"""The small parts of a load worker."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest
from test_load_process import documents_of, plan_for

from ingest_bench.load import supervisor
from ingest_bench.load.recorder import DurationHistogram, Recorder, pack_sample
from ingest_bench.model.load import Step, TrackFile
from ingest_bench.model.samples import SAMPLE, Sample
from ingest_bench.model.target import Endpoint


def test_samples_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [(*(10**18 + n + more for more in range(5)), n, n, n, n, 0, 1, 200, n % 8, n, 1, 40000) for n in range(3000)]
    with Recorder(tmp_path / "samples-0.bin") as recorder:
        for row in rows:
            recorder.add(pack_sample(*row))
    samples = np.fromfile(tmp_path / "samples-0.bin", dtype=SAMPLE)
    assert samples.tolist() == rows


def test_samples_that_were_flushed_are_on_disk_before_the_end(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "samples-0.bin")
    recorder.add(pack_sample(*range(len(Sample._fields))))
    recorder.flush()
    assert (tmp_path / "samples-0.bin").stat().st_size == SAMPLE.itemsize
    recorder.close()


@contextlib.contextmanager
def full_after(size_bytes: int) -> Iterator[None]:
    """No file grows beyond that size: the write that reaches it is cut, as by a full disk, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_samples_survive_a_full_disk(tmp_path: Path) -> None:
    file, rows = tmp_path / "samples-0.bin", [(n, *[n % 8] * (len(Sample._fields) - 1)) for n in range(60)]
    recorder = Recorder(file, computes_figures=True)
    for row in rows[:20]:
        recorder.add(pack_sample(*row))
    for _ in range(2):
        with full_after(10 * SAMPLE.itemsize + 7), pytest.raises(OSError, match="File too large"):
            recorder.flush()
        assert file.stat().st_size == 10 * SAMPLE.itemsize
        assert recorder.figures.requests == 10
    for row in rows[20:]:
        recorder.add(pack_sample(*row))
    recorder.close()
    assert recorder.figures.requests == 60
    assert np.fromfile(file, dtype=SAMPLE).tolist() == rows


def test_the_file_is_closed_if_the_last_flush_fails(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "samples-0.bin")
    recorder.add(pack_sample(*range(len(Sample._fields))))
    with full_after(0), pytest.raises(OSError, match="File too large"):
        recorder.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(recorder._fd)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 1.0])
def test_a_quantile_is_at_most_3_percent_too_high(share: float) -> None:
    lateness = DurationHistogram()
    values = [n * n * 37 for n in range(5000)]
    for value in values:
        lateness.add(value)
    true = sorted(values)[int(share * len(values)) - 1]
    assert true <= lateness.quantile_ns(share) <= true * 31 / 30


def test_an_empty_histogram_and_negative_durations_are_zero() -> None:
    lateness = DurationHistogram()
    assert lateness.quantile_ns(0.99) == 0
    lateness.add(-5)
    assert lateness.quantile_ns(1.0) == 0


def test_where_a_share_ends_is_looked_up_once_for_all_workers(tmp_path: Path) -> None:
    path = documents_of(tmp_path, 2000)
    packed = tmp_path / "documents.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    file = TrackFile(path=str(packed), index="tiny", documents=1000)
    plan = plan_for(Endpoint("127.0.0.1", 1), tmp_path, step=Step(name="bulk", operation="bulk", files=(file,)))
    plan.folder.mkdir()
    plan = dataclasses.replace(plan, workers=4).with_decompressed_files()
    assert plan.files[0].end_bytes == sum(len(line) + 1 for line in path.read_text().split("\n")[:1000])
    copy = Path(plan.files[0].path)
    copy.write_text("not read to its end")
    assert plan.with_decompressed_files() == plan
    plan.remove_decompressed_files()
    assert not copy.exists()


@pytest.mark.parametrize("moment", ["decompression", "start", "stop"])
def test_no_decompressed_file_is_left_by_a_load_that_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    packed = tmp_path / "documents.json.gz"
    packed.write_bytes(gzip.compress(documents_of(tmp_path).read_bytes()))
    plan = plan_for(Endpoint("127.0.0.1", 1), tmp_path, documents=str(packed), processes=2)
    copies: list[Path] = []

    def interrupt(*_: object) -> NoReturn:
        copies.extend(plan.folder.glob("decompressed-*"))
        raise KeyboardInterrupt

    workers = SimpleNamespace(workers=[], stop=interrupt)
    monkeypatch.setattr(supervisor, "LocalWorkers", interrupt if moment == "start" else lambda *_: workers)
    if moment == "decompression":
        monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        supervisor.start_load(plan).stop()
    assert [copy.exists() for copy in copies] == [False]
