"""Transfer of the files of remote workers to the disk of `run`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bulk_server import bulk_server
from running import free_port
from test_fleet_load import agents, ends, supervising
from test_load_process import plan_for, samples_of

from ingest_bench.errors import RunFailed
from ingest_bench.load.fleet.roster import Fleet
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.supervisor import Progress, start_load
from ingest_bench.model.samples import SAMPLE

pytestmark = pytest.mark.processes
LARGE_BYTES = 500_000_000 // SAMPLE.itemsize * SAMPLE.itemsize


def before_they_come(act: Callable[[], None]) -> Callable[[Progress], None]:
    """Acts once the load is done, and nothing has been asked for of what was measured."""
    done: list[bool] = []

    def heard(progress: Progress) -> None:
        if progress.phase == "done" and not done:
            done.append(True)
            act()

    return heard


def child(module: str) -> int:
    """The pid of our own child that runs this module."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and module in (path / "cmdline").read_text().split("\0"):
                return int(path.name)
        except OSError:
            continue
    raise AssertionError(f"none of our children runs {module}")


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.nightly
def test_the_master_holds_no_more_than_some_pieces_while_500_mb_of_samples_come(tmp_path: Path) -> None:
    port = free_port()
    peaks: list[int] = []

    def grow() -> None:
        # Samples without any time.
        os.truncate(tmp_path / "machine-0" / "load-1" / "samples-0.bin", LARGE_BYTES)
        peaks.append(peak_bytes(child("ingest_bench.load.fleet.master")))

    with bulk_server() as server, agents(tmp_path, port, 1), supervising(tmp_path, port, 1) as there:
        plan = plan_for(server.address, tmp_path)
        report = start_load(plan, fleet=there).wait(before_they_come(grow))
        peaks.append(peak_bytes(child("ingest_bench.load.fleet.master")))
    assert plan.sample_file.stat().st_size == LARGE_BYTES
    samples = np.memmap(plan.sample_file, dtype=SAMPLE, mode="r")[: server.requests]
    assert samples["documents_acked"].sum() == server.documents > 0
    assert report.longest_heartbeat_gap_ns < 4e9
    # The pieces under way have 2 MB together; Python gives memory back late.
    assert peaks[1] - peaks[0] < 30e6


@pytest.mark.nightly
def test_a_full_disk_here_fails_the_run_with_the_files_name_and_frees_the_workers(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 1) as started:
        with supervising(tmp_path, port, 1) as there:
            fills_up(plan_for(server.address, tmp_path), there)
            # It sends the next load.
            (tmp_path / "next").mkdir()
            plan = plan_for(server.address, tmp_path / "next")
            start_load(plan, fleet=there).wait(lambda _: None)
            assert len(samples_of(plan))
        assert ends(started) == [(0, "")]


def fills_up(plan: LoadPlan, there: Fleet) -> None:
    full = before_they_come(lambda: plan.sample_file.symlink_to("/dev/full"))
    with pytest.raises(RunFailed, match=r"out/samples-0\.bin: cannot be written \(No space left on device\)"):
        start_load(plan, fleet=there).wait(full)


@pytest.mark.parametrize("kept", [0, 3 * SAMPLE.itemsize, 3 * SAMPLE.itemsize + 7], ids=["none", "three", "broken"])
def test_samples_that_end_early_come_as_far_as_they_are_whole(tmp_path: Path, kept: int) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 1), supervising(tmp_path, port, 1) as there:
        plan = plan_for(server.address, tmp_path)
        theirs = tmp_path / "machine-0" / "load-1" / "samples-0.bin"
        start_load(plan, fleet=there).wait(before_they_come(lambda: os.truncate(theirs, kept)))
        assert len(samples_of(plan)) == kept // SAMPLE.itemsize
