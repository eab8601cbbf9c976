from __future__ import annotations

import errno
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ingest_bench import system
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.ledger import book, sessions, watchdog
from ingest_bench.ledger.steps import Action, Step, Undo, chosen, setting_step


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("INGEST_BENCH_STATE", str(folder))
    return folder


def writes(path: Path, value: str) -> Step:
    """A step that writes a file, with what was in it as its undo."""
    old = Action(path=str(path), value=path.read_text(encoding="ascii").strip())
    return Step(name=path.name, do=Action(path=str(path), value=value), undo=(Undo(action=old),))


def made(state: Path, name: str = "key") -> book.Ledger:
    return book.Ledger.create(sessions.state_folder() / f"{name}.jsonl", book.new_header(f"session {state}", 60))


def test_the_old_value_is_in_the_file_before_the_change_is_made(state: Path, tmp_path: Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("old\n", encoding="ascii")
    ledger = made(state)
    seen = []

    def on_stage(name: str) -> None:
        if name == "setting: noted":
            seen.append((setting.read_text(encoding="ascii"), ledger.path.read_text(encoding="utf-8")))

    ledger.change(writes(setting, "new"), on_stage)
    assert [value for value, _ in seen] == ["old\n"]
    assert '"value": "old"' in seen[0][1]
    assert setting.read_text(encoding="ascii") == "new\n"


def test_undoing_goes_backwards_to_the_oldest_value(state: Path, tmp_path: Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("1", encoding="ascii")
    ledger = made(state)
    for value in ("2", "3"):
        ledger.change(writes(setting, value), lambda _: None)
    assert sessions.restore().undone == (f"echo 2 > {setting}", f"echo 1 > {setting}")
    assert setting.read_text(encoding="ascii") == "1\n"
    assert list(state.glob("*.jsonl")) == []


def test_nothing_to_undo_is_a_success_and_so_is_undoing_twice(state: Path, tmp_path: Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("1", encoding="ascii")
    ledger = made(state)
    ledger.change(writes(setting, "2"), lambda _: None)
    setting.unlink()
    assert sessions.restore().undone == ()
    assert book.finish(ledger.path) == []


def test_an_undo_whose_trace_is_not_there_is_left_out(state: Path, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    undo = Undo(action=Action(argv=("touch", str(touched))), look=("echo", "nothing of ours"), shows="handle 5be7:")
    made(state).change(Step(name="step", do=Action(argv=("true",)), undo=(undo,)), lambda _: None)
    assert sessions.restore().undone == ()
    assert not touched.exists()


def test_a_command_that_ends_well_but_does_not_say_so_was_refused() -> None:
    Action(argv=("echo", "Started recording 1"), says="Started recording").carry_out()
    with pytest.raises(RunFailed, match="it was refused, and said: Could not start"):
        Action(argv=("echo", "Could not start"), says="Started recording").carry_out()


def test_no_change_follows_once_a_session_is_closed(state: Path, tmp_path: Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("old", encoding="ascii")
    ledger = made(state)
    ledger.mark_closed()
    with pytest.raises(RunFailed, match="time is over"):
        ledger.change(writes(setting, "new"), lambda _: None)
    assert setting.read_text(encoding="ascii") == "old"
    book.finish(ledger.path)
    with pytest.raises(RunFailed, match="time is over"):
        ledger.change(writes(setting, "new"), lambda _: None)


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
    state: Path, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    setting = tmp_path / "setting"
    setting.write_text("old", encoding="ascii")
    ledger = made(state)
    ledger.change(writes(setting, "new"), lambda _: None)
    assert not ledger.is_lost()
    spoil(ledger.path)
    assert ledger.is_lost()
    with pytest.raises(RunFailed, match="not done, another program deleted or changed"):
        ledger.change(writes(setting, "newer"), lambda _: None)
    # The watchdog has the open file alone, and finds nothing in an emptied one.
    if spoil in (SPOILED["deleted"], SPOILED["moved"], SPOILED["replaced"]):
        assert book.finish(ledger.path, opened=book.Ledger(ledger.path, ledger.descriptor))
        assert setting.read_text(encoding="ascii") == "old\n"
        assert book.finish(ledger.path, opened=ledger) == []
    else:
        assert book.finish(ledger.path, opened=ledger)
    assert setting.read_text(encoding="ascii") == "old\n"
    assert not ledger.is_lost()


def test_journal_of_a_session_that_was_put_back_is_removed_without_an_undo(state: Path, tmp_path: Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("old", encoding="ascii")
    ledger = made(state)
    ledger.change(writes(setting, "new"), lambda _: None)
    with pytest.MonkeyPatch.context() as killed:
        killed.setattr(Path, "unlink", lambda *_: None)
        assert book.finish(ledger.path)
    setting.write_text("changed by another program later", encoding="ascii")
    assert sessions.restore().undone == ()
    assert setting.read_text(encoding="ascii") == "changed by another program later"
    assert not ledger.path.exists()


def test_failed_undo_of_a_deleted_journal_does_not_advise_net_restore(state: Path) -> None:
    ledger = made(state)
    undo = (Undo(action=Action(argv=("false",))),)
    ledger.change(Step(name="bad", do=Action(argv=("true",)), undo=undo), lambda _: None)
    ledger.path.unlink()
    for _ in range(2):
        with pytest.raises(RunFailed, match=r"not put back:\nfalse: exit 1.*\nPut it back by hand: .*was deleted"):
            book.finish(ledger.path, opened=ledger)


def test_one_undo_that_fails_does_not_stop_the_others_and_can_be_tried_again(state: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.write_text("old", encoding="ascii")
    ledger = made(state)
    ledger.change(writes(first, "new"), lambda _: None)
    ledger.change(
        Step(name="bad", do=Action(argv=("true",)), undo=(Undo(action=Action(argv=("false",))),)), lambda _: None
    )
    ledger.change(writes(second, "new"), lambda _: None)
    with pytest.raises(RunFailed, match="not put back:\nfalse: exit 1") as caught:
        sessions.restore()
    assert "net restore" in str(caught.value)
    assert first.read_text(encoding="ascii") == second.read_text(encoding="ascii") == "old\n"
    assert ledger.path.exists()


def test_a_command_that_cannot_be_started_does_not_stop_the_others(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = tmp_path / "setting"
    setting.write_text("old", encoding="ascii")
    ledger = made(state)
    ledger.change(writes(setting, "new"), lambda _: None)
    undo = (Undo(action=Action(argv=("true",))),)
    ledger.change(Step(name="a command", do=Action(argv=("true",)), undo=undo), lambda _: None)

    def refused(*_: object, **__: object) -> str:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(system, "run", refused)
    with pytest.raises(RunFailed, match=r"not put back:\na command: .*Resource temporarily unavailable\nTry again"):
        sessions.restore()
    assert setting.read_text(encoding="ascii") == "old\n"
    monkeypatch.undo()
    monkeypatch.setenv("INGEST_BENCH_STATE", str(state))
    assert "true" in sessions.restore().undone


HEADER = {"what": "a", "pid": 1, "boot_id": "b", "until_realtime_ns": 1, "until_boottime_ns": 1}


@pytest.mark.parametrize(
    ("whole", "said"),
    [
        (json.dumps({"header": {**HEADER, "user": "me"}}).encode(), 'the key "user" is not known'),
        (json.dumps({"header": {**HEADER, "schema": 2}}).encode(), "schema 2, known is 1"),
        (b'{"header": {"what": "\xff\xfe\x00"}}', "codec can't decode"),
        (json.dumps({"header": HEADER}).encode() + b'\n{"step": 5}', "5 is not a text"),
        (json.dumps({"header": HEADER}).encode() + b'\n{"step": "a", "undo": 5}', "5 is not a list"),
        (b"{}", "is not an object"),
        (b"[]", "is not an object"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_keeps_nobody_from_the_others(
    state: Path, tmp_path: Path, whole: bytes, said: str
) -> None:
    setting, bad = tmp_path / "setting", sessions.state_folder() / "bad.jsonl"
    bad.write_bytes(whole + b"\n")

    def left() -> None:
        setting.write_text("old", encoding="ascii")
        header = book.new_header("good", 60, (str(setting),))
        ledger = book.Ledger.create(state / "good.jsonl", header)
        ledger.change(writes(setting, "new"), lambda _: None)
        ledger.close()

    left()
    with pytest.raises(RunFailed, match=rf"bad.jsonl: what a session has changed cannot be read .*{said}"):
        sessions.restore()
    assert setting.read_text(encoding="ascii") == "old\n"
    left()
    assert [applied.what for applied in sessions.show()] == ["good"]
    (named,) = sessions.unreadable()
    assert named.startswith(f"{bad}: ")
    sessions.finish_leftovers("another", (str(setting),))
    assert setting.read_text(encoding="ascii") == "old\n"
    with pytest.raises(RunFailed, match="use the version of ingest-bench that wrote it"):
        sessions.finish_leftovers("bad", ())
    assert list(state.glob("*.jsonl")) == [bad]
    # Cut off before the end of its first line: nothing was changed.
    bad.write_bytes(whole)
    assert sessions.restore().undone == ()
    assert not bad.exists()


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_line_that_was_cut_off_is_a_change_that_was_not_made(state: Path, tmp_path: Path, cut: int) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.write_text("old", encoding="ascii")
    ledger = made(state)
    ledger.change(writes(first, "new"), lambda _: None)
    whole = ledger.path.read_bytes()
    ledger.change(writes(second, "new"), lambda _: None)
    added = len(ledger.path.read_bytes()) - len(whole)
    os.truncate(ledger.path, len(whole) + min(cut, added - 2))
    assert sessions.restore().undone == (f"echo old > {first}",)


def test_after_a_reboot_there_is_nothing_to_undo(state: Path, tmp_path: Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("old", encoding="ascii")
    ledger = made(state)
    ledger.change(writes(setting, "new"), lambda _: None)
    text = ledger.path.read_text(encoding="utf-8")
    boot = text.split('"boot_id": "')[1][:36]
    ledger.path.write_text(text.replace(boot, "0" * 36), encoding="utf-8")
    assert sessions.restore().undone == ()
    assert setting.read_text(encoding="ascii") == "new\n"
    assert list(state.glob("*.jsonl")) == []


def test_what_is_left_of_a_session_of_one_network_namespace_is_found_by_its_key(state: Path, tmp_path: Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("old", encoding="ascii")
    ledger = book.Ledger.create(sessions.file_of("key", ("net",)), book.new_header("a session", 60, within=("net",)))
    ledger.change(writes(setting, "new"), lambda _: None)
    ledger.close()
    sessions.finish_leftovers("key")
    assert setting.read_text(encoding="ascii") == "new\n"
    sessions.finish_leftovers("key", within=("net",))
    assert setting.read_text(encoding="ascii") == "old\n"
    assert list(state.glob("*.jsonl")) == []


def test_a_lock_has_one_owner_who_is_named_to_the_second(state: Path) -> None:
    with sessions.locked("key"):
        made(state)
        assert [applied.alive for applied in sessions.show()] == [True]
        with pytest.raises(RunFailed, match=rf"in use by pid {os.getpid()}: session"), sessions.locked("key"):
            pass
        with sessions.locked("another"):
            pass
    assert [applied.alive for applied in sessions.show()] == [False]


COUNTER = """
import sys, pathlib
from ingest_bench.ledger import sessions
from ingest_bench.errors import RunFailed
number, done = pathlib.Path(sys.argv[1]), 0
while done < 50:
    try:
        with sessions.locked("key", "counting", (sys.argv[1],)):
            number.write_text(str(int(number.read_text()) + 1))
            done += 1
    except RunFailed:
        pass
"""


def test_lock_files_are_removed_and_still_exclude_each_other(state: Path, tmp_path: Path) -> None:
    number = tmp_path / "number"
    number.write_text("0")
    argv = (sys.executable, "-c", COUNTER, str(number))
    processes = [subprocess.Popen(argv) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert number.read_text() == "200"
    assert list(state.glob("*.lock")) == []


def test_lock_that_a_process_holds_is_not_removed(state: Path) -> None:
    with sessions.locked("key"):
        with sessions.locked("another"):
            pass
        assert [path.name for path in state.glob("*.lock")] == ["key.lock"]
    assert list(state.glob("*.lock")) == []


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_state_folder_that_others_can_write_is_refused(state: Path, mode: int) -> None:
    state.mkdir()
    state.chmod(mode)
    with pytest.raises(SpecError, match="others can write here"):
        sessions.restore()


def test_a_state_folder_in_a_folder_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "is_root", lambda: True)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o777)
    (theirs / "link").symlink_to(tmp_path)
    monkeypatch.setenv("INGEST_BENCH_STATE", str(theirs / "link" / "state"))
    with pytest.raises(SpecError, match=f"{theirs}: others can write here"):
        sessions.restore()


def test_a_setting_is_read_as_it_must_be_written() -> None:
    assert chosen("always [madvise] never") == "madvise"
    assert chosen("4096\t131072\t6291456") == "4096\t131072\t6291456"


@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/sys/../../etc/passwd", "/proc/sys/no/such"])
def test_a_host_setting_is_a_file_of_the_kernel(path: str) -> None:
    with pytest.raises(SpecError, match=r"host setting|no such setting"):
        setting_step(Path(path), "1")


def test_on_a_full_disk_nothing_is_changed_and_everything_is_put_back(state: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.write_text("old", encoding="ascii")
    ledger = made(state)
    ledger.change(writes(first, "new"), lambda _: None)
    # As on a full disk, a part of the line is written, and then nothing more.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ledger.path.stat().st_size + 30, hard))
    try:
        with pytest.raises(RunFailed, match="cannot be noted"):
            ledger.change(writes(second, "new"), lambda _: None)
        assert second.read_text(encoding="ascii") == "old"
        assert sessions.restore().undone == (f"echo old > {first}",)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        with pytest.raises(RunFailed, match="cannot be noted"):
            made(state, "other")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert first.read_text(encoding="ascii") == "old\n"
    assert list(state.glob("*.jsonl")) == []


@pytest.mark.parametrize(
    ("path", "is_gone"), [("nowhere", True), ("in-a-circle", False), ("file/below", False), ("file", False)]
)
def test_only_what_the_kernel_says_is_not_there_is_gone_and_any_other_failure_is_told(
    state: Path, tmp_path: Path, path: str, *, is_gone: bool
) -> None:
    (tmp_path / "in-a-circle").symlink_to("in-a-circle")
    (tmp_path / "file").touch()
    action = Action(argv=("rmdir", str(tmp_path / path)))
    ledger = made(state)
    undo = Undo(action=action, exists=str(tmp_path / path))
    ledger.change(Step(name="step", do=Action(argv=("true",)), undo=(undo,)), lambda _: None)
    if is_gone:
        assert sessions.restore().undone == ()
    else:
        with pytest.raises(RunFailed, match="not put back"):
            sessions.restore()
    assert ledger.path.exists() == (not is_gone)


def test_a_command_that_cannot_look_does_not_say_that_nothing_is_there(state: Path) -> None:
    for look in (("no-such-program",), ("ls", "--no-such-option"), ("ls", "/no/such/folder")):
        ledger = made(state)
        undo = Undo(action=Action(argv=("true",)), look=look, shows="x")
        ledger.change(Step(name="step", do=Action(argv=("true",)), undo=(undo,)), lambda _: None)
        with pytest.raises(RunFailed, match="not put back"):
            sessions.restore()
        ledger.path.unlink()


def test_a_mount_is_gone_when_the_kernel_has_none_there_and_not_when_its_list_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needed(place: str) -> bool:
        return Undo(action=Action(argv=("true",)), mounted=place).is_needed()

    assert needed("/proc")
    assert not needed(str(tmp_path))
    # A blank is four characters there (man 5 proc).
    text = f"1 2 0:3 / {tmp_path}/a\\040b rw - ext4 /dev/loop0 rw\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert needed(f"{tmp_path}/a b")
    assert not needed(f"{tmp_path}/a")
    monkeypatch.undo()

    def refused(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(RunFailed, match="nobody can tell what is mounted"):
        needed(str(tmp_path))
    # A process whose state is hidden may well run (proc with hidepid).
    with pytest.raises(RunFailed, match="nobody can tell whether it runs"):
        Undo(action=Action(argv=("true",)), pid=os.getpid()).is_needed()


def test_of_a_process_that_has_ended_nothing_is_left_to_undo() -> None:
    def needed(pid: int) -> bool:
        return Undo(action=Action(argv=("true",)), look=("echo", "on"), shows="on", pid=pid).is_needed()

    with subprocess.Popen(("sleep", "60")) as process:
        assert needed(process.pid)
        process.kill()
        limit = time.monotonic() + 10
        # Nobody has asked for its status yet: it stands there, dead.
        while needed(process.pid):
            assert time.monotonic() < limit
    assert not needed(process.pid)


def test_no_change_follows_once_the_time_is_over_though_nobody_has_put_anything_back(
    state: Path, tmp_path: Path
) -> None:
    setting = tmp_path / "setting"
    setting.write_text("old", encoding="ascii")
    assert sessions.state_folder() == state
    ledger = book.Ledger.create(state / "key.jsonl", book.new_header("a session", 1e-9))
    with pytest.raises(RunFailed, match="time is over"):
        ledger.change(writes(setting, "new"), lambda _: None)
    assert setting.read_text(encoding="ascii") == "old"


HOLDER = """
import sys
from ingest_bench.ledger import sessions
with sessions.locked(sys.argv[1], sys.argv[2], sys.argv[3:]):
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_a_resource_has_one_owner_who_is_named_to_those_of_other_keys_and_state_folders(
    state: Path, tmp_path: Path
) -> None:
    # Not the name of a file that anybody would lock in earnest.
    shared, free = f"/proc/sys/{tmp_path}/tcp_rmem", f"/proc/sys/{tmp_path}/tcp_wmem"
    other = {**os.environ, "INGEST_BENCH_STATE": str(tmp_path / "other")}
    argv = (sys.executable, "-c", HOLDER, "net-1-7", "ethernet on eth0 to 192.0.2.1:9200", shared)
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=other) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        sentence = rf"^{shared}: in use by pid {process.pid}: ethernet on eth0 to 192.0.2.1:9200; try again"
        with pytest.raises(RunFailed, match=sentence), sessions.locked("net-1-8", "ours", (shared,)):
            pass
        with sessions.locked("net-1-8", "ours", (free,)):
            pass
        process.kill()
        process.wait()
        with sessions.locked("net-1-8", "ours", (shared,)):
            pass
    assert state.is_dir()


def test_what_a_dead_session_left_of_a_resource_is_put_back_before_another_key_changes_it(
    state: Path, tmp_path: Path
) -> None:
    setting = tmp_path / "setting"
    setting.write_text("old\n", encoding="ascii")
    path = sessions.state_folder() / "first.jsonl"
    ledger = book.Ledger.create(path, book.new_header(f"first {state}", 60, (str(setting),)))
    ledger.change(writes(setting, "first"), lambda _: None)
    ledger.close()
    with watchdog.session("second", "second", time_limit_s=60, resources=(str(setting),)) as second:
        assert setting.read_text(encoding="ascii") == "old\n"
        second.change((writes(setting, "second"),))
        assert setting.read_text(encoding="ascii") == "second\n"
    assert setting.read_text(encoding="ascii") == "old\n"
    assert list(state.glob("*.jsonl")) == []


def test_a_file_that_a_session_has_no_lock_on_is_not_written(state: Path, tmp_path: Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("old", encoding="ascii")
    assert state.parent == tmp_path
    with (
        pytest.raises(RunFailed, match="no lock on"),
        watchdog.session("key", "a session", time_limit_s=60) as opened,
    ):
        opened.change((writes(setting, "new"),))
    assert setting.read_text(encoding="ascii") == "old"


def test_an_interface_is_found_by_its_number_and_one_that_is_gone_leaves_nothing_to_undo() -> None:
    action = Action(path="/proc/sys/net/ipv6/conf/{name}/mtu", value="1500")
    number, name = socket.if_nameindex()[0]
    named = Undo(action=action, look=("ip", "link", "show", "dev", "{name}"), index=number).named()
    assert named is not None
    assert named.action.path == f"/proc/sys/net/ipv6/conf/{name}/mtu"
    assert named.look[-1] == name
    assert Undo(action=action, index=2**31 - 1).named() is None
