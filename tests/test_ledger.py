"""Journals, steps and locks: what is on disk before a change, how it is undone, and which failures are reported."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_lab import wait_until
from ledger_lab import FALSE, TRUE, apply_undo, create_journal, make_write_step, write

from ingest_bench import system
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.ledger import journal as journals
from ingest_bench.ledger import sessions, watchdog
from ingest_bench.ledger.journal import Journal, create_header
from ingest_bench.ledger.steps import Action, Undo, make_setting_step, parse_setting


@pytest.fixture
def journal(state: Path) -> Journal:
    created = create_journal()
    assert created.path.parent == state
    return created


def write_old(path: Path) -> Path:
    path.write_text("old\n", encoding="ascii")
    return path


@pytest.fixture
def setting(tmp_path: Path) -> Path:
    return write_old(tmp_path / "setting")


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return write_old(tmp_path / "second")


def test_undo_is_on_disk_before_the_change_is_made(journal: Journal, setting: Path) -> None:
    contents = []

    def on_stage(name: str) -> None:
        if name == "setting: noted":
            contents.append((setting.read_text(encoding="ascii"), journal.path.read_text(encoding="utf-8")))

    journal.apply(make_write_step(setting, "new"), on_stage)
    ((value, text),) = contents
    assert value == "old\n"
    assert '"value": "old"' in text
    assert setting.read_text(encoding="ascii") == "new\n"


def test_steps_are_undone_backwards(journal: Journal, setting: Path) -> None:
    for value in ("2", "3"):
        write(journal, setting, value)
    assert sessions.restore_all().undone == (f"echo 2 > {setting}", f"echo old > {setting}")
    assert setting.read_text(encoding="ascii") == "old\n"
    assert not journal.path.exists()


def test_undo_is_skipped_if_its_path_is_gone_or_its_check_shows_no_change(journal: Journal, setting: Path) -> None:
    write(journal, setting, "2")
    setting.unlink()
    touch = Action(argv=("touch", str(setting)))
    apply_undo(journal, Undo(action=touch, check_argv=("echo", "another"), check_output="handle 5be7:"))
    assert sessions.restore_all().undone == ()
    assert not setting.exists()
    assert journals.undo_session(journal.path) == []


def test_command_without_its_expected_output_has_failed() -> None:
    Action(argv=("echo", "Started recording 1"), expected_output="Started recording").execute()
    with pytest.raises(RunFailed, match=r"refused\. Its output: Could not start"):
        Action(argv=("echo", "Could not start"), expected_output="Started recording").execute()


def test_closed_or_expired_session_allows_no_change(journal: Journal, setting: Path) -> None:
    journal.mark_closed()
    expired = Journal.create(journal.path.with_name("expired.jsonl"), create_header("expired", 1e-9))
    for refusing in (journal, expired):
        with pytest.raises(RunFailed, match="the time limit expired and the session was undone"):
            write(refusing, setting, "new")
    journals.undo_session(journal.path)
    with pytest.raises(RunFailed, match="the time limit expired"):
        write(journal, setting, "new")
    assert setting.read_text(encoding="ascii") == "old\n"


def replace(path: Path) -> None:
    path.with_suffix(".new").write_bytes(path.read_bytes())
    path.with_suffix(".new").rename(path)


SPOILED: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "moved": lambda path: path.rename(path.with_suffix(".old")),
    "emptied": lambda path: os.truncate(path, 0),
    "overwritten": lambda path: path.write_bytes(b"x" * path.stat().st_size),
    "replaced": replace,
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_spoiled_journal_allows_no_change_and_is_undone(
    journal: Journal, setting: Path, spoil: Callable[[Path], object]
) -> None:
    write(journal, setting, "new")
    assert not journal.is_lost()
    spoil(journal.path)
    assert journal.is_lost()
    with pytest.raises(RunFailed, match="not changed: another program deleted or changed"):
        write(journal, setting, "newer")
    # The watchdog has only the open file, and reads nothing in an emptied one.
    if spoil in (SPOILED["deleted"], SPOILED["moved"], SPOILED["replaced"]):
        assert journals.undo_session(journal.path, journal=Journal(journal.path, journal.descriptor))
        assert setting.read_text(encoding="ascii") == "old\n"
        assert journals.undo_session(journal.path, journal=journal) == []
    else:
        assert journals.undo_session(journal.path, journal=journal)
    assert setting.read_text(encoding="ascii") == "old\n"
    assert not journal.is_lost()


def test_journal_of_an_undone_session_is_removed_without_an_undo(journal: Journal, setting: Path) -> None:
    write(journal, setting, "new")
    with pytest.MonkeyPatch.context() as killed:
        killed.setattr(Path, "unlink", lambda *_: None)
        assert journals.undo_session(journal.path)
    setting.write_text("changed by another program later", encoding="ascii")
    assert sessions.restore_all().undone == ()
    assert setting.read_text(encoding="ascii") == "changed by another program later"
    assert not journal.path.exists()


def test_failed_undo_of_a_deleted_journal_does_not_advise_net_restore(journal: Journal) -> None:
    apply_undo(journal, Undo(action=FALSE))
    journal.path.unlink()
    message = r"not restored:\nfalse: exited with status 1.*\nRestore it by hand: .*was deleted"
    for _ in range(2):
        with pytest.raises(RunFailed, match=message):
            journals.undo_session(journal.path, journal=journal)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RunFailed("true: exited with status 1"), "true: exited with status 1"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "a command: .*temporarily unavailable"),
    ],
)
def test_failed_undo_does_not_stop_the_others_and_can_be_retried(
    journal: Journal, setting: Path, second: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    write(journal, setting, "new")
    apply_undo(journal, Undo(action=TRUE), name="a command")
    write(journal, second, "new")

    def fail(*_: object, **__: object) -> str:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(system, "run", fail)
        with pytest.raises(RunFailed, match=rf"not restored:\n{message}\nTry again: ingest-bench net restore"):
            sessions.restore_all()
    assert setting.read_text(encoding="ascii") == second.read_text(encoding="ascii") == "old\n"
    assert "true" in sessions.restore_all().undone


HEADER = {"description": "a", "pid": 1, "boot_id": "b", "deadline_realtime_ns": 1, "deadline_boottime_ns": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps({"header": {**HEADER, "user": "me"}}).encode(), "user"),
        (json.dumps({"header": {**HEADER, "schema": 2}}).encode(), "schema 2 instead of 1"),
        (b'{"header": {"description": "\xff\xfe\x00"}}', "codec can't decode"),
        (json.dumps({"header": HEADER}).encode() + b'\n{"step": 5}', "5 is not a"),
        (json.dumps({"header": HEADER}).encode() + b'\n{"step": "a", "undo": 5}', "5 is not a list"),
        (b"{}", "is not an object"),
        (b"[]", "is not an object"),
        pytest.param(b"[" * 100_000, "recursion", id="recursion"),
    ],
)
def test_unreadable_journal_is_reported_and_does_not_block_others(
    state: Path, setting: Path, text: bytes, reason: str
) -> None:
    unreadable = sessions.ensure_state_folder() / "bad.jsonl"
    unreadable.write_bytes(text + b"\n")

    def leave_behind() -> None:
        setting.write_text("old\n", encoding="ascii")
        journal = create_journal("good", (str(setting),))
        write(journal, setting, "new")
        journal.close()

    leave_behind()
    with pytest.raises(RunFailed, match=rf"bad.jsonl: this session's changes cannot be read: .*{reason}"):
        sessions.restore_all()
    assert setting.read_text(encoding="ascii") == "old\n"
    leave_behind()
    assert [session.description for session in sessions.list_sessions()] == ["good"]
    (error,) = sessions.find_unreadable()
    assert error.startswith(f"{unreadable}: ")
    sessions.undo_leftovers("another", (str(setting),))
    assert setting.read_text(encoding="ascii") == "old\n"
    with pytest.raises(RunFailed, match="Use the version of ingest-bench that wrote it"):
        sessions.undo_leftovers("bad", ())
    assert list(state.glob("*.jsonl")) == [unreadable]
    # Cut off before the end of its first line, it has changed nothing.
    unreadable.write_bytes(text)
    assert sessions.restore_all().undone == ()
    assert not unreadable.exists()


@pytest.mark.parametrize("cut_bytes", [1, 20, 60])
def test_change_of_an_incomplete_line_was_not_made(
    journal: Journal, setting: Path, second: Path, cut_bytes: int
) -> None:
    write(journal, setting, "new")
    complete = journal.path.stat().st_size
    write(journal, second, "new")
    added = journal.path.stat().st_size - complete
    os.truncate(journal.path, complete + min(cut_bytes, added - 2))
    assert sessions.restore_all().undone == (f"echo old > {setting}",)


def test_nothing_is_undone_after_a_reboot(journal: Journal, setting: Path) -> None:
    write(journal, setting, "new")
    text = journal.path.read_text(encoding="utf-8").replace(journals.read_boot_id(), "0" * 36)
    journal.path.write_text(text, encoding="utf-8")
    assert sessions.restore_all().undone == ()
    assert setting.read_text(encoding="ascii") == "new\n"
    assert not journal.path.exists()


def test_leftover_of_a_network_namespace_is_undone_by_its_key(state: Path, setting: Path) -> None:
    path = sessions.locate_journal("key", ("net",))
    journal = Journal.create(path, create_header("a session", 60, namespace_kinds=("net",)))
    write(journal, setting, "new")
    journal.close()
    sessions.undo_leftovers("key")
    assert setting.read_text(encoding="ascii") == "new\n"
    sessions.undo_leftovers("key", namespace_kinds=("net",))
    assert setting.read_text(encoding="ascii") == "old\n"
    assert list(state.glob("*.jsonl")) == []


@pytest.mark.processes
def test_leftover_on_a_resource_is_undone_before_another_key_changes_it(state: Path, setting: Path) -> None:
    journal = create_journal("first", (str(setting),))
    write(journal, setting, "first")
    journal.close()
    with watchdog.open_session("second", "second", time_limit_s=60, resources=(str(setting),)) as session:
        assert setting.read_text(encoding="ascii") == "old\n"
        session.apply((make_write_step(setting, "second"),))
        assert setting.read_text(encoding="ascii") == "second\n"
    assert setting.read_text(encoding="ascii") == "old\n"
    assert list(state.glob("*.jsonl")) == []


@pytest.mark.processes
@pytest.mark.usefixtures("state")
def test_file_without_a_lock_is_not_written(setting: Path) -> None:
    with (
        pytest.raises(RunFailed, match="no lock on"),
        watchdog.open_session("key", "a session", time_limit_s=60) as session,
    ):
        session.apply((make_write_step(setting, "new"),))
    assert setting.read_text(encoding="ascii") == "old\n"


def test_lock_has_one_owner_who_is_reported(state: Path) -> None:
    with sessions.acquire_locks("key"):
        create_journal()
        assert [session.is_watched for session in sessions.list_sessions()] == [True]
        with pytest.raises(RunFailed, match=rf"in use by pid {os.getpid()}: key"), sessions.acquire_locks("key"):
            pass
        with sessions.acquire_locks("another"):
            pass
        # A lock that is held is not removed.
        assert [path.name for path in state.glob("*.lock")] == ["key.lock"]
    assert [session.is_watched for session in sessions.list_sessions()] == [False]
    assert list(state.glob("*.lock")) == []


COUNTER = """
import sys, pathlib
from ingest_bench.ledger import sessions
from ingest_bench.errors import RunFailed
file, count = pathlib.Path(sys.argv[1]), 0
while count < 20:
    try:
        with sessions.acquire_locks("key", "counting", (sys.argv[1],)):
            file.write_text(str(int(file.read_text()) + 1))
            count += 1
    except RunFailed:
        pass
"""


@pytest.mark.processes
def test_lock_files_are_removed_and_still_exclude_each_other(state: Path, tmp_path: Path) -> None:
    file = tmp_path / "number"
    file.write_text("0")
    processes = [subprocess.Popen((sys.executable, "-c", COUNTER, str(file))) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert file.read_text() == "80"
    assert list(state.glob("*.lock")) == []


HOLDER = """
import sys
from ingest_bench.ledger import sessions
with sessions.acquire_locks(sys.argv[1], sys.argv[2], sys.argv[3:]):
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.processes
@pytest.mark.usefixtures("state")
def test_resource_has_one_owner_across_keys_and_state_folders(tmp_path: Path) -> None:
    # Not the name of a file that another program would lock.
    shared, free = f"/proc/sys/{tmp_path}/tcp_rmem", f"/proc/sys/{tmp_path}/tcp_wmem"
    env = {**os.environ, "INGEST_BENCH_STATE": str(tmp_path / "other")}
    argv = (sys.executable, "-c", HOLDER, "net-1-7", "ethernet on eth0 to 192.0.2.1:9200", shared)
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        message = rf"^{shared}: in use by pid {process.pid}: ethernet on eth0 to 192.0.2.1:9200\. Try again"
        with pytest.raises(RunFailed, match=message), sessions.acquire_locks("net-1-8", "ours", (shared,)):
            pass
        with sessions.acquire_locks("net-1-8", "ours", (free,)):
            pass
        process.kill()
        process.wait()
        with sessions.acquire_locks("net-1-8", "ours", (shared,)):
            pass


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_state_folder_that_others_can_write_is_refused(state: Path, mode: int) -> None:
    state.mkdir()
    state.chmod(mode)
    with pytest.raises(SpecError, match="others can write here"):
        sessions.restore_all()


def test_state_folder_below_one_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "is_root", lambda: True)
    writable = tmp_path / "writable"
    writable.mkdir()
    writable.chmod(0o777)
    (writable / "link").symlink_to(tmp_path)
    monkeypatch.setenv("INGEST_BENCH_STATE", str(writable / "link" / "state"))
    with pytest.raises(SpecError, match=f"{writable}: others can write here"):
        sessions.restore_all()


def test_setting_is_parsed_as_it_must_be_written() -> None:
    assert parse_setting("always [madvise] never") == "madvise"
    assert parse_setting("4096\t131072\t6291456") == "4096\t131072\t6291456"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/etc/passwd", "a host setting is a file below"),
        ("/proc/sys/../../etc/passwd", "a host setting is a file below"),
        ("/proc/sys/no/such", "This kernel lacks the setting"),
    ],
)
def test_host_setting_is_a_file_of_the_kernel(path: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_setting_step(Path(path), "1")


def test_full_disk_allows_no_change_and_an_undo(journal: Journal, setting: Path, second: Path) -> None:
    write(journal, setting, "new")
    # As on a full disk, a part of the line is written, and then nothing.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 30, hard))
    try:
        with pytest.raises(RunFailed, match=r"the undo cannot be written: .*\. The change was not made"):
            write(journal, second, "new")
        assert second.read_text(encoding="ascii") == "old\n"
        assert sessions.restore_all().undone == (f"echo old > {setting}",)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        with pytest.raises(RunFailed, match="cannot be written"):
            create_journal("other")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert setting.read_text(encoding="ascii") == "old\n"
    assert list(journal.path.parent.glob("*.jsonl")) == []


@pytest.mark.parametrize(("path", "is_gone"), [("nowhere", True), ("in-a-circle", False), ("file/below", False)])
def test_only_a_missing_path_is_gone_and_other_errors_are_reported(tmp_path: Path, path: str, *, is_gone: bool) -> None:
    (tmp_path / "in-a-circle").symlink_to("in-a-circle")
    (tmp_path / "file").touch()
    undo = Undo(action=TRUE, existing_path=str(tmp_path / path))
    if is_gone:
        assert not undo.is_needed()
    else:
        with pytest.raises(RunFailed, match="cannot check whether it still exists"):
            undo.is_needed()


@pytest.mark.parametrize("argv", [("no-such-program",), ("ls", "/no/such/folder")])
def test_failed_check_does_not_count_as_no_change(argv: tuple[str, ...]) -> None:
    with pytest.raises(RunFailed, match=argv[0]):
        Undo(action=TRUE, check_argv=argv, check_output="x").is_needed()


def test_mount_or_process_is_not_gone_if_proc_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_needed(mount_point: str) -> bool:
        return Undo(action=TRUE, mount_point=mount_point).is_needed()

    assert is_needed("/proc")
    assert not is_needed(str(tmp_path))
    # A blank is written as four characters (man 5 proc).
    text = f"1 2 0:3 / {tmp_path}/a\\040b rw - ext4 /dev/loop0 rw\n"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda *_, **__: text)
        assert is_needed(f"{tmp_path}/a b")
        assert not is_needed(f"{tmp_path}/a")

    def fail(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(RunFailed, match="cannot check what is mounted"):
        is_needed(str(tmp_path))
    # A process whose state is hidden may run (proc with hidepid).
    with pytest.raises(RunFailed, match="cannot check whether it runs"):
        Undo(action=TRUE, pid=os.getpid()).is_needed()


def test_zombie_and_reaped_process_need_no_undo() -> None:
    def is_needed(pid: int) -> bool:
        return Undo(action=TRUE, check_argv=("echo", "on"), check_output="on", pid=pid).is_needed()

    with subprocess.Popen(("sleep", "60")) as process:
        assert is_needed(process.pid)
        process.kill()
        # It is a zombie, because its status was not read yet.
        wait_until(lambda: not is_needed(process.pid))
    assert not is_needed(process.pid)


def test_interface_is_found_by_its_index_and_one_that_is_gone_needs_no_undo() -> None:
    action = Action(path="/proc/sys/net/ipv6/conf/{name}/mtu", value="1500")
    index, name = socket.if_nameindex()[0]
    undo = Undo(action=action, check_argv=("ip", "link", "show", "dev", "{name}"), interface_index=index).resolve()
    assert undo is not None
    assert undo.action.path == f"/proc/sys/net/ipv6/conf/{name}/mtu"
    assert undo.check_argv[-1] == name
    assert Undo(action=action, interface_index=2**31 - 1).resolve() is None
