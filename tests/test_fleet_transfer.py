"""Transfer of the files of remote workers to the disk of `run`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from bulk_server import bulk_server
from running import free_port
from test_fleet_load import agents, supervising
from test_load_process import plan_for

from ingest_bench.load.supervisor import Progress, start_load
from ingest_bench.model.samples import SAMPLE

pytestmark = pytest.mark.processes
LARGE_BYTES = 500_000_000 // SAMPLE.itemsize * SAMPLE.itemsize


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

    def grow(progress: Progress) -> None:
        if progress.phase == "done" and not peaks:
            # Samples without any time.
            os.truncate(tmp_path / "machine-0" / "load-1" / "samples-0.bin", LARGE_BYTES)
            peaks.append(peak_bytes(child("ingest_bench.load.fleet.master")))

    with bulk_server() as server, agents(tmp_path, port, 1), supervising(tmp_path, port, 1) as there:
        plan = plan_for(server.address, tmp_path)
        report = start_load(plan, fleet=there).wait(grow)
        peaks.append(peak_bytes(child("ingest_bench.load.fleet.master")))
    assert plan.record_file("samples").stat().st_size == LARGE_BYTES
    samples = np.memmap(plan.record_file("samples"), dtype=SAMPLE, mode="r")[: server.requests]
    assert samples["documents_acked"].sum() == server.documents > 0
    assert report.longest_heartbeat_gap_ns < 4e9
    # The pieces under way have 2 MB together; Python gives memory back late.
    assert peaks[1] - peaks[0] < 30e6
