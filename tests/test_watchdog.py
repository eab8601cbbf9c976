from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import syslog
import time
from pathlib import Path

import pytest

from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.ledger import book, sessions, watchdog
from ingest_bench.ledger.steps import Action, Step, Undo
from ingest_bench.ledger.watchdog import session

pytestmark = pytest.mark.processes

LIMIT_S = 90

# A change that takes a while, by a command that goes on when its parent is killed.
KILLED_IN_A_COMMAND = """
import sys
from ingest_bench.ledger import Action, Step, Undo, session
started, changed, ended = sys.argv[1:]
command = ("sh", "-c", 'echo > "$0"; sleep 1; echo > "$1"; echo > "$2"', started, changed, ended)
undo = (Undo(action=Action(argv=("rm", "-f", changed))),)
with session("key", "slow", time_limit_s=600) as opened:
    opened.change([Step(name="slow", do=Action(argv=command), undo=undo)])
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / "state"))
    return tmp_path


def written(path: Path, value: str) -> Step:
    old = Action(path=str(path), value=path.read_text(encoding="ascii").strip())
    return Step(name="write", do=Action(path=str(path), value=value), undo=(Undo(action=old),))


def wait_for(path: Path) -> None:
    limit = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < limit
        time.sleep(0.01)


def wait_until_unlocked() -> None:
    limit = time.monotonic() + LIMIT_S
    while any(applied.alive for applied in sessions.show()) or list(sessions.state_folder().glob("*.jsonl")):
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_command_that_outlives_its_killed_tool_is_waited_for_and_undone(state: Path) -> None:
    started, changed, ended = state / "started", state / "changed", state / "ended"
    process = subprocess.Popen((sys.executable, "-c", KILLED_IN_A_COMMAND, str(started), str(changed), str(ended)))
    wait_for(started)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not changed.exists(), "the command ended too early for this test to say anything"
    wait_until_unlocked()
    wait_for(ended)
    assert not changed.exists()


def test_a_block_that_fails_is_put_back_and_its_own_error_is_told(state: Path) -> None:
    setting = state / "setting"
    setting.write_text("old", encoding="ascii")

    def change_and_fail() -> None:
        with session("key", "failing", time_limit_s=600, resources=(str(setting),)) as opened:
            opened.change([written(setting, "new")])
            assert setting.read_text(encoding="ascii") == "new\n"
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        change_and_fail()
    assert setting.read_text(encoding="ascii") == "old\n"
    assert sessions.show() == []


def test_waiting_for_the_end_is_no_error_but_being_overtaken_by_it_is(state: Path) -> None:
    setting = state / "setting"
    setting.write_text("old", encoding="ascii")
    with session("key", "waiting", time_limit_s=0.5, resources=(str(setting),)) as opened:
        opened.change([written(setting, "new")])
        opened.wait()
    assert setting.read_text(encoding="ascii") == "old\n"

    def overtaken() -> None:
        with session("key", "working", time_limit_s=600, resources=(str(setting),)) as opened:
            opened.change([written(setting, "new")])
            # What `net restore` does in another process.
            assert sessions.restore().undone == (f"echo old > {setting}",)
            assert opened.is_over()

    with pytest.raises(InvalidRun, match="was over before the work"):
        overtaken()


@pytest.mark.parametrize("dog_dies", [False, True])
def test_deleted_journal_is_undone_and_ends_the_session_with_an_error(state: Path, *, dog_dies: bool) -> None:
    setting = state / "setting"
    setting.write_text("old", encoding="ascii")

    def deleted() -> None:
        with session("key", "shaping", time_limit_s=600, resources=(str(setting),)) as opened:
            opened.change([written(setting, "new")])
            opened.ledger.path.unlink()
            opened.wait()
            if dog_dies:
                os.kill(watchdog_pid(), signal.SIGKILL)

    with pytest.raises(RunFailed, match=r"shaping: everything was put back, but another program deleted .*key\.jsonl"):
        deleted()
    assert setting.read_text(encoding="ascii") == "old\n"
    assert sessions.show() == []


def watchdog_pid() -> int:
    children = Path("/proc/self/task").glob("*/children")
    pids = [int(pid) for listed in children for pid in listed.read_text(encoding="ascii").split()]
    return next(pid for pid in pids if b"ingest_bench.ledger" in Path(f"/proc/{pid}/cmdline").read_bytes())


def test_sigterm_to_the_watchdog_means_put_back_now(state: Path) -> None:
    setting = state / "setting"
    setting.write_text("old", encoding="ascii")
    with session("key", "terminated", time_limit_s=600, resources=(str(setting),)) as opened:
        opened.waited = True
        opened.change([written(setting, "new")])
        os.kill(watchdog_pid(), signal.SIGTERM)
        limit = time.monotonic() + LIMIT_S
        while not opened.is_over():
            assert time.monotonic() < limit
            time.sleep(0.01)
    assert setting.read_text(encoding="ascii") == "old\n"


def test_what_cannot_be_put_back_is_in_the_log_of_the_system_and_the_next_command_finds_it(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[tuple[int, str]] = []
    monkeypatch.setattr(syslog, "syslog", lambda priority, text: logged.append((priority, text)))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    setting = state / "setting"
    setting.write_text("old", encoding="ascii")
    path = sessions.state_folder() / "key.jsonl"
    ledger = book.Ledger.create(path, book.new_header("a test", 60))
    ledger.change(written(setting, "new"), lambda _: None)
    ledger.close()
    # Nothing can be written to it now, by nobody.
    setting.unlink()
    setting.mkdir()
    pipe, end = os.pipe()
    os.close(end)
    arguments = (str(path), str(time.clock_gettime_ns(time.CLOCK_BOOTTIME)), str(pipe), str(os.dup(1)))
    try:
        assert watchdog.main(arguments) == 1
    finally:
        os.close(pipe)
    ((priority, text),) = logged
    assert priority == syslog.LOG_ERR
    assert text.startswith("not put back:\n")
    assert str(setting) in text
    assert "Try again: ingest-bench net restore" in text
    assert path.exists()
    setting.rmdir()
    setting.write_text("new", encoding="ascii")
    assert book.finish(path)
    assert setting.read_text(encoding="ascii") == "old\n"


def test_what_the_kernel_refuses_the_watchdog_is_tried_three_times_and_logged(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    tried: list[Path] = []

    def refused(_path: Path, _on_stage: object, opened: book.Ledger) -> list[str]:
        tried.append(opened.path)
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    monkeypatch.setattr(syslog, "syslog", lambda _priority, text: logged.append(text))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(book, "finish", refused)
    pipe, end = os.pipe()
    os.close(end)
    path = state / "key.jsonl"
    arguments = (str(path), str(time.clock_gettime_ns(time.CLOCK_BOOTTIME)), str(pipe), str(os.dup(1)))
    try:
        assert watchdog.main(arguments) == 1
    finally:
        os.close(pipe)
    assert tried == [path] * 3
    assert logged == [f"[Errno 1] Operation not permitted: '{path}'"]
