"""The watchdog process: it undoes a session however its program ends."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import syslog
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from fault_lab import wait_until
from ledger_lab import create_journal, make_write_step, write

from ingest_bench.errors import InvalidRun, RunFailed
from ingest_bench.ledger import journal as journals
from ingest_bench.ledger import sessions, watchdog
from ingest_bench.ledger.watchdog import Session, open_session

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("state")]

# The change takes a while, and its command survives the death of its parent.
KILLED_DURING_A_COMMAND = """
import sys
from ingest_bench.ledger.steps import Action, Step, Undo
from ingest_bench.ledger.watchdog import open_session
started, changed, ended = sys.argv[1:]
command = ("sh", "-c", 'echo > "$0"; sleep 1; echo > "$1"; echo > "$2"', started, changed, ended)
undo = (Undo(action=Action(argv=("rm", "-f", changed))),)
with open_session("key", "slow", time_limit_s=600) as session:
    session.apply([Step(name="slow", action=Action(argv=command), undo=undo)])
"""


@pytest.fixture
def setting(tmp_path: Path) -> Path:
    path = tmp_path / "setting"
    path.write_text("old\n", encoding="ascii")
    return path


def is_restored(setting: Path) -> bool:
    return setting.read_text(encoding="ascii") == "old\n" and not sessions.list_sessions()


def find_watchdog_pid() -> int:
    children = Path("/proc/self/task").glob("*/children")
    pids = [int(pid) for line in children for pid in line.read_text(encoding="ascii").split()]
    return next(pid for pid in pids if b"ingest_bench.ledger.watchdog" in Path(f"/proc/{pid}/cmdline").read_bytes())


def test_command_that_survives_its_killed_program_is_awaited_and_undone(tmp_path: Path) -> None:
    started, changed, ended = (tmp_path / name for name in ("started", "changed", "ended"))
    argv = (sys.executable, "-c", KILLED_DURING_A_COMMAND, str(started), str(changed), str(ended))
    with subprocess.Popen(argv) as process:
        wait_until(started.exists)
        process.kill()
    assert not changed.exists(), "the command was faster than the kill"
    wait_until(lambda: not sessions.list_sessions())
    wait_until(ended.exists)
    assert not changed.exists()


def change_in_session(setting: Path, then: Callable[[Session], object]) -> None:
    with open_session("key", "changing", time_limit_s=600, resources=(str(setting),)) as session:
        session.apply([make_write_step(setting, "new")])
        assert setting.read_text(encoding="ascii") == "new\n"
        then(session)


def test_failed_block_is_undone_and_raises_its_own_error(setting: Path) -> None:
    def fail(_: Session) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        change_in_session(setting, fail)
    assert is_restored(setting)


def test_expiry_is_an_error_unless_it_was_awaited(setting: Path) -> None:
    # Long enough for a slow machine to make the change.
    with open_session("key", "waiting", time_limit_s=3, resources=(str(setting),)) as session:
        session.apply([make_write_step(setting, "new")])
        session.wait_until_expired()
        wait_until(lambda: is_restored(setting))

    def be_undone(session: Session) -> None:
        # As `net restore` in another process.
        assert sessions.restore_all().undone == (f"echo old > {setting}",)
        assert session.is_expired()

    with pytest.raises(InvalidRun, match="expired before the work"):
        change_in_session(setting, be_undone)


@pytest.mark.parametrize("watchdog_dies", [False, True])
def test_deleted_journal_is_undone_and_ends_the_session_with_an_error(setting: Path, *, watchdog_dies: bool) -> None:
    def lose_journal(session: Session) -> None:
        session.journal.path.unlink()
        session.wait_until_expired()
        if watchdog_dies:
            os.kill(find_watchdog_pid(), signal.SIGKILL)

    with pytest.raises(RunFailed, match=r"changing: everything was restored, but another program deleted .*key\.jsonl"):
        change_in_session(setting, lose_journal)
    assert is_restored(setting)


def test_sigterm_to_the_watchdog_undoes_the_session_at_once(setting: Path) -> None:
    def terminate(session: Session) -> None:
        os.kill(find_watchdog_pid(), signal.SIGTERM)
        session.wait_until_expired()

    change_in_session(setting, terminate)
    assert is_restored(setting)


def run_watchdog(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Run an expired watchdog in this process, which undoes nothing; return its status and the system's log."""
    logged: list[tuple[int, str]] = []
    delays_s: list[float] = []
    monkeypatch.setattr(syslog, "syslog", lambda priority, text: logged.append((priority, text)))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(time, "sleep", delays_s.append)
    pipe, end = os.pipe()
    os.close(end)
    arguments = (str(path), str(time.clock_gettime_ns(time.CLOCK_BOOTTIME)), str(pipe), str(os.dup(1)))
    try:
        status = watchdog.main(arguments)
    finally:
        os.close(pipe)
    assert delays_s == [1, 1], "three tries"
    ((priority, text),) = logged
    assert priority == syslog.LOG_ERR
    return status, text


def test_failed_undo_is_logged_and_retried_by_the_next_command(setting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = create_journal()
    write(journal, setting, "new")
    journal.close()
    # A folder cannot be written.
    setting.unlink()
    setting.mkdir()
    status, text = run_watchdog(journal.path, monkeypatch)
    assert status == 1
    assert text.startswith("not restored:\n")
    assert str(setting) in text
    assert "Try again: ingest-bench net restore" in text
    assert journal.path.exists()
    with monkeypatch.context() as patch:
        patch.setattr(journals, "undo_session", Mock(side_effect=PermissionError(errno.EPERM, "not permitted", "x")))
        assert run_watchdog(journal.path, patch) == (1, "[Errno 1] not permitted: 'x'")
    setting.rmdir()
    setting.write_text("new", encoding="ascii")
    assert journals.undo_session(journal.path)
    assert setting.read_text(encoding="ascii") == "old\n"
