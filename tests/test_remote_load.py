"""Loads whose workers join over TCP, as from other machines."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bulk_server import bulk_server
from test_load_process import plan_for, samples_of

from ingest_bench.errors import RunFailed
from ingest_bench.load import Progress, Remote, start
from ingest_bench.model.target import Endpoint
from ingest_bench.rates import parse_arrivals

pytestmark = pytest.mark.processes

KNOWN = "open sesame"
JOIN = """
import sys
from pathlib import Path
from ingest_bench.errors import RunFailed
from ingest_bench.load import agent
from ingest_bench.model.target import Endpoint
try:
    agent.join(Endpoint("127.0.0.1", int(sys.argv[1])), sys.argv[2], Path(sys.argv[3]), name=sys.argv[4])
except RunFailed as error:
    sys.exit(str(error))
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def agents(folder: Path, port: int, count: int, *, secret: str = KNOWN) -> Iterator[list[Any]]:
    """So many other machines, all of them this one."""
    started = []
    for number in range(count):
        name = f"machine-{number}"
        argv = [sys.executable, "-c", JOIN, str(port), secret, str(folder / name), name]
        started.append(subprocess.Popen(argv, stderr=subprocess.PIPE, text=True))
    try:
        yield started
    finally:
        for one in started:
            one.kill()
            one.communicate()


def remote(port: int, workers: int) -> Remote:
    return Remote(bind=Endpoint("127.0.0.1", port), workers=workers, secret=KNOWN, patience_s=120)


def test_workers_from_elsewhere_bring_all_their_samples_and_the_sums_are_exact(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 2) as joined:
        plan = plan_for(server.address, tmp_path, arrivals=parse_arrivals("200/s"))
        report = start(plan, remote=remote(port, 2)).wait(lambda _: None)
        assert [one.wait(60) for one in joined] == [0, 0]
    samples = samples_of(plan)
    assert report.bytes_written == server.bytes_read == samples["bytes_sent"].sum()
    assert samples["documents_acked"].sum() == server.documents
    assert set(report.local_ports) == server.ports
    assert [clock.worker for clock in report.clock_offsets] == [0, 1]
    assert len(json.loads((plan.out / "load.json").read_text())["clock_offsets"]) == 2
    # One machine, one clock: each planned time of the schedule is there once, as near as the clock was measured.
    planned = sorted(samples["planned_ns"] - report.started_monotonic_ns)
    assert len(planned) == 160
    worst_ns = max(clock.round_trip_ns for clock in report.clock_offsets)
    assert all(abs(at_ns - n * 5_000_000) <= 2 * worst_ns + 1000 for n, at_ns in enumerate(planned))


def test_a_worker_that_dies_ends_the_load_with_its_name(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 2) as joined:
        process = start(plan_for(server.address, tmp_path, measure_ns=60 * 10**9), remote=remote(port, 2))

        def kill(progress: Progress) -> None:
            if progress.phase == "measure":
                joined[0].kill()

        with pytest.raises(RunFailed, match=r"load worker . of 2 \(machine-0, .*is gone in phase"):
            process.wait(kill)
        # The other one ends too: with 1 by the end of its connection, with 0 once its samples were brought home.
        assert joined[1].wait(60) in (0, 1)


def test_the_process_that_sends_there_dying_is_told_with_its_log(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, agents(tmp_path, port, 1):
        process = start(plan_for(server.address, tmp_path, measure_ns=60 * 10**9), remote=remote(port, 1))

        killed: list[int] = []

        def kill(progress: Progress) -> None:
            if progress.phase == "measure" and not killed:
                killed.append(sender_in(tmp_path / "machine-0"))
                os.kill(killed[0], signal.SIGKILL)

        with pytest.raises(RunFailed, match=r"machine-0.*was killed by signal 9"):
            process.wait(kill)


def test_a_wrong_secret_does_not_join_and_does_not_stand_in_the_way(tmp_path: Path) -> None:
    port = free_port()
    with (
        bulk_server() as server,
        agents(tmp_path / "wrong", port, 1, secret=KNOWN[::-1]) as wrong,
        agents(tmp_path, port, 1),
    ):
        report = start(plan_for(server.address, tmp_path), remote=remote(port, 1)).wait(lambda _: None)
        if wrong[0].poll() is not None:
            assert "refused us" in wrong[0].stderr.read()
    assert report.bytes_written == server.bytes_read


def sender_in(folder: Path) -> int:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text().split("\0")
        except OSError:
            continue
        if "ingest_bench.load.worker" in words and any(word.startswith(str(folder)) for word in words):
            return int(path.parent.name)
    raise AssertionError(f"nobody sends from {folder}")
