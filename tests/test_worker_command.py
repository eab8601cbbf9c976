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
from test_load_process import plan_for, samples_of
from test_remote_load import KNOWN, free_port, sender_in, supervising

from ingest_bench.cli import app
from ingest_bench.errors import RunFailed
from ingest_bench.load import Progress, Remote, joined, start
from ingest_bench.model.target import Endpoint

pytestmark = pytest.mark.processes


@contextmanager
def worker(folder: Path, connect: str, *, secret: str = KNOWN) -> Iterator[subprocess.Popen[str]]:
    """The command, whose files go below the folder."""
    folder.mkdir()
    argv = [sys.executable, "-c", "from ingest_bench.cli import main; main()", "worker", "--connect", connect]
    environment = os.environ | {"INGEST_BENCH_SECRET": secret, "TMPDIR": str(folder)}
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
        with supervising(port, 1) as there_joined:
            start(plan, joined=there_joined).wait(lambda _: None)
        out, errors = there.communicate(timeout=60)
        assert samples_of(plan)["documents_acked"].sum() == server.documents > 0
    assert (there.returncode, errors) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["waiting", "joined", "load", f"127.0.0.1:{port}"]
    assert not list((tmp_path / "there").iterdir())


@pytest.mark.parametrize("busy", [True, False], ids=["in a load", "between loads"])
def test_ctrl_c_ends_it_in_order_and_the_supervisor_is_told(tmp_path: Path, busy: bool) -> None:
    port = free_port()
    told: list[Progress] = []
    with bulk_server() as server, worker(tmp_path / "there", f"127.0.0.1:{port}") as there:
        plan = plan_for(server.address, tmp_path, measure_ns=60 * 10**9)

        def interrupt(progress: Progress) -> None:
            if progress.phase == "measure" and not told:
                told.append(progress)
                there.send_signal(signal.SIGINT)

        with supervising(port, 1) as there_joined:
            if not busy:
                said_until(there, "joined")
                there.send_signal(signal.SIGINT)
                assert there.wait(60) == 130
            with pytest.raises(RunFailed, match="it was interrupted there"):
                start(plan, joined=there_joined).wait(interrupt)
        _, errors = there.communicate(timeout=60)
    assert there.returncode == 130
    assert "interrupted: everything that was started is stopped" in errors
    assert not list((tmp_path / "there").iterdir())
    with pytest.raises(AssertionError):
        sender_in(tmp_path / "there")


def test_another_secret_ends_it_with_what_to_do(tmp_path: Path) -> None:
    port = free_port()
    remote = Remote(bind=Endpoint("127.0.0.1", port), workers=1, secret=KNOWN, patience_s=60)
    with worker(tmp_path / "there", f"127.0.0.1:{port}", secret=KNOWN[::-1]) as there:

        def tell(said: str) -> None:
            if said.startswith("refused"):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), joined(remote, tell):
            pass
        _, errors = there.communicate(timeout=60)
    assert there.returncode == 3
    assert "refused us: the secret is another one (environment INGEST_BENCH_SECRET" in " ".join(errors.split())
    assert KNOWN not in errors


def test_the_death_of_the_supervisor_ends_it_with_an_error(tmp_path: Path) -> None:
    port = free_port()
    code = f"""
import sys, time
from ingest_bench.load import Remote, joined
from ingest_bench.model.target import Endpoint
with joined(Remote(bind=Endpoint("127.0.0.1", {port}), workers=1, secret="{KNOWN}"), print):
    print("here", flush=True)
    time.sleep(60)
"""
    with worker(tmp_path / "there", f"127.0.0.1:{port}") as there:
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as supervisor:
            said_until(supervisor, "here")
            supervisor.kill()
        _, errors = there.communicate(timeout=60)
    assert there.returncode == 3
    assert "ended before its experiment did" in errors or "Connection reset" in errors


def test_an_address_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["worker", "--connect", "bench:http"]) == 2
    assert "write it like" in capsys.readouterr().err
