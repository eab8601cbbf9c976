"""`ingest-bench worker` as a process, with a supervisor in the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bulk_server import bulk_server
from running import free_port
from test_fleet_load import keys_in, sender_in, supervising
from test_load_process import plan_for, samples_of

from ingest_bench.errors import RunFailed
from ingest_bench.load.supervisor import Progress, start_load

pytestmark = pytest.mark.processes


@contextmanager
def worker(folder: Path, connect: str) -> Iterator[subprocess.Popen[str]]:
    """The command, whose files go below the folder."""
    folder.mkdir()
    key = keys_in(folder.parent) / "worker-1.key"
    argv = [sys.executable, "-c", "from ingest_bench.cli import main; main()", "worker", "--connect", connect]
    environment = os.environ | {"INGEST_BENCH_KEYS": str(key), "TMPDIR": str(folder)}
    pipe = subprocess.PIPE
    popen = subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True)
    try:
        yield popen
    finally:
        popen.kill()
        popen.communicate()


def said_until(popen: subprocess.Popen[str], word: str) -> None:
    assert popen.stdout is not None
    for line in popen.stdout:
        if line.startswith(word):
            return
    raise AssertionError(f"it ended without {word}")


def test_it_sends_what_it_is_told_and_ends_with_the_experiment_and_leaves_no_file(tmp_path: Path) -> None:
    port = free_port()
    with bulk_server() as server, worker(tmp_path / "there", f"127.0.0.1:{port}") as there:
        plan = plan_for(server.address, tmp_path)
        with supervising(tmp_path, port, 1) as there_joined:
            start_load(plan, fleet=there_joined).wait(lambda _: None)
        output, errors = there.communicate(timeout=60)
        assert samples_of(plan)["documents_acked"].sum() == server.documents > 0
    assert (there.returncode, errors) == (0, "")
    assert [line.split()[0] for line in output.splitlines()] == ["waiting", "joined", "load", f"127.0.0.1:{port}"]
    assert not list((tmp_path / "there").iterdir())


@pytest.mark.nightly
@pytest.mark.parametrize("busy", [True, False], ids=["in a load", "between loads"])
def test_ctrl_c_ends_it_in_order_and_the_supervisor_is_told(tmp_path: Path, busy: bool) -> None:
    port = free_port()
    interrupted: list[Progress] = []
    with bulk_server() as server, worker(tmp_path / "there", f"127.0.0.1:{port}") as there:
        plan = plan_for(server.address, tmp_path, measure_ns=60 * 10**9)

        def interrupt(progress: Progress) -> None:
            if progress.phase == "measure" and not interrupted:
                interrupted.append(progress)
                there.send_signal(signal.SIGINT)

        with supervising(tmp_path, port, 1) as there_joined:
            if not busy:
                said_until(there, "joined")
                there.send_signal(signal.SIGINT)
                assert there.wait(60) == 130
            with pytest.raises(RunFailed, match="was interrupted on its machine"):
                start_load(plan, fleet=there_joined).wait(interrupt)
        _, errors = there.communicate(timeout=60)
    assert there.returncode == 130
    assert "interrupted: everything that was started is stopped" in errors
    assert not list((tmp_path / "there").iterdir())
    with pytest.raises(AssertionError):
        sender_in(tmp_path / "there")
