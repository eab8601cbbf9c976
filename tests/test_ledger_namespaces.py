"""Sessions of several network namespaces: what is the whole machine's, and what is of one of them."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import commands
import pytest
from readied import ready

from ingest_bench.errors import RunFailed
from ingest_bench.ledger import book, namespaces, sessions, watchdog
from ingest_bench.ledger.namespaces import Namespace
from ingest_bench.ledger.steps import Action, Step, Undo, setting_step

pytestmark = [
    pytest.mark.netns,
    # They change the swappiness of the machine.
    pytest.mark.machine,
    # A namespace that is gone may have its number again in that of another test.
    pytest.mark.measures,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change settings of the machine"),
]

DRIVER = str(Path(__file__).with_name("namespace_driver.py"))
SWAPPINESS, RMEM = Path("/proc/sys/vm/swappiness"), Path("/proc/sys/net/ipv4/tcp_rmem")
RESTORE = (str(Path(sys.executable).with_name("ingest-bench")), "net", "restore")
HOLD = ("unshare", "--net", "sh", "-c", "echo ready; exec sleep 600")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def swappiness() -> Iterator[int]:
    """What it is now; and afterwards it is that."""
    before = int(SWAPPINESS.read_text(encoding="ascii"))
    yield before
    SWAPPINESS.write_text(str(before), encoding="ascii")


def says(path: Path) -> list[int]:
    return [*map(int, path.read_text(encoding="ascii").split())]


def most(enter: Sequence[str]) -> str:
    """The largest buffer for reads there."""
    return subprocess.run((*enter, "cat", str(RMEM)), capture_output=True, text=True, check=True).stdout.split()[2]


@contextmanager
def namespace() -> Iterator[tuple[str, ...]]:
    """What goes before a command to run it in a network namespace that is there for the block."""
    with ready(HOLD) as holder:
        try:
            yield ("nsenter", "--target", str(holder.pid), "--net")
        finally:
            holder.kill()


@contextmanager
def setting(enter: Sequence[str], *words: str, alone: bool = False) -> Iterator[subprocess.Popen[str]]:
    """The driver, when the value stands."""
    pipe, env = subprocess.PIPE, {**os.environ, "DRIVER": "alone" if alone else ""}
    with subprocess.Popen(
        (*enter, sys.executable, DRIVER, *words), stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env
    ) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "set\n", driver.communicate()
            yield driver
        finally:
            driver.kill()


def left_behind(enter: Sequence[str], *words: str) -> None:
    """The session and its watchdog were killed, and what they set stands."""
    with setting(enter, *words, alone=True) as driver:
        driver.send_signal(signal.SIGKILL)
        driver.wait()


def restored() -> tuple[int, str]:
    """The exit code of `net restore` and all that it said."""
    done = subprocess.run(RESTORE, capture_output=True, text=True, check=False, timeout=commands.LIMIT_S)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("mounted", [False, True], ids=["nsenter", "a /sys of its own"])
def test_what_a_session_of_another_network_namespace_left_of_the_machine_is_put_back_from_anywhere(
    swappiness: int, *, mounted: bool
) -> None:
    # As `ip netns exec` does it: its /sys and /proc are other mounts.
    inner = ("unshare", "--mount", "sh", "-c", 'mount -t sysfs none /sys; mount -t proc none /proc; exec "$@"', "sh")
    with namespace() as enter:
        left_behind((*enter, *(inner if mounted else ())), str(SWAPPINESS), str(swappiness + 1))
        assert says(SWAPPINESS) == [swappiness + 1]
        assert [one.here for one in sessions.show()] == [True]
        assert restored()[0] == 0
    assert says(SWAPPINESS) == [swappiness]
    assert sessions.show() == []


def test_two_sessions_of_two_network_namespaces_do_not_change_the_same_setting_of_the_machine(
    swappiness: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with namespace() as enter, setting(enter, str(SWAPPINESS), str(swappiness + 1)) as driver:
        for state in ("state", "another"):
            monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / state))
            told = rf"swappiness: in use by pid \d+: driver {SWAPPINESS}"
            with (
                pytest.raises(RunFailed, match=told),
                watchdog.session("mine", "mine", time_limit_s=60, resources=(str(SWAPPINESS),)),
            ):
                pass
        driver.communicate("\n", timeout=60)
    assert says(SWAPPINESS) == [swappiness]
    with watchdog.session("mine", "mine", time_limit_s=60, resources=(str(SWAPPINESS),)) as opened:
        opened.change((setting_step(SWAPPINESS, str(swappiness + 2)),))
    assert says(SWAPPINESS) == [swappiness]


def test_what_a_dead_session_of_another_namespace_left_is_put_back_before_the_next_change(swappiness: int) -> None:
    with namespace() as enter:
        left_behind(enter, str(SWAPPINESS), str(swappiness + 1))
        with watchdog.session("mine", "mine", time_limit_s=60, resources=(str(SWAPPINESS),)) as opened:
            assert says(SWAPPINESS) == [swappiness]
            opened.change((setting_step(SWAPPINESS, str(swappiness + 2)),))
        assert says(SWAPPINESS) == [swappiness]


def test_the_same_setting_of_two_network_namespaces_is_two_and_none_is_undone_in_the_other() -> None:
    ours = says(RMEM)
    with namespace() as first, namespace() as second:
        with (
            setting(first, str(RMEM), "4096 65536 262144", "net"),
            setting(second, str(RMEM), "4096 65536 524288", "net"),
        ):
            pass
        assert says(RMEM) == ours


def test_what_is_left_in_one_network_namespace_outlives_the_same_session_of_another() -> None:
    with namespace() as first, namespace() as second:
        ours = most(first)
        left_behind(first, str(RMEM), "4096 65536 262144", "net")
        own = ("sh", "-c", 'echo "4096 65536 393216" > "$0"', str(RMEM))
        subprocess.run((*second, *own), check=True)
        with setting(second, str(RMEM), "4096 65536 524288", "net") as driver:
            driver.communicate("\n", timeout=60)
        assert (most(first), most(second)) == ("262144", "393216")
        subprocess.run((*first, *RESTORE), capture_output=True, check=True)
        assert (most(first), most(second)) == (ours, "393216")


def test_a_session_does_not_begin_before_what_is_left_of_it_in_another_mount_namespace_is_put_back(
    tmp_path: Path,
) -> None:
    file = tmp_path / "file"
    file.write_text("theirs\n", encoding="ascii")
    undo = Undo(action=Action(path=str(file), value="old"))
    with ready(("unshare", "--mount", "sh", "-c", "echo ready; exec sleep 600")) as holder:
        inode = Path(f"/proc/{holder.pid}/ns/mnt").stat().st_ino
        within = (Namespace(kind="mnt", inode=inode),)
        header = dataclasses.replace(book.new_header("theirs", 60), within=within)
        ledger = book.Ledger.create(sessions.state_folder() / "key.jsonl", header)
        ledger.change(Step(name="file", do=Action(argv=("true",)), undo=(undo,)), lambda _: None)
        ledger.close()
        told = rf"left of it must be put back first, in the mount namespace mnt:\[{inode}\]: nsenter --mount="
        with pytest.raises(RunFailed, match=told), watchdog.session("key", "ours", time_limit_s=60, within=("mnt",)):
            pass
        assert file.read_text(encoding="ascii") == "theirs\n"
        assert ledger.path.exists()
        holder.kill()
        holder.wait()
    # Its files are there, also when it is gone.
    with watchdog.session("key", "ours", time_limit_s=60, within=("mnt",)):
        assert file.read_text(encoding="ascii") == "old\n"


def test_restore_names_what_it_cannot_look_at_and_how_to_get_there_and_not_once_that_is_gone() -> None:
    ours = says(RMEM)
    with namespace() as enter:
        left_behind(enter, str(RMEM), "4096 65536 262144", "net")
        code, said = restored()
        assert code == RunFailed.exit_code
        assert "nothing to put back" in said
        plain = " ".join(said.split())
        assert f"driver {RMEM}" in plain
        inode = Path(f"/proc/{enter[2]}/ns/net").stat().st_ino
        assert f"network namespace net:[{inode}]: nsenter --net=/proc/{enter[2]}/" in plain
        assert plain.rstrip("│╯╰─ ").endswith("ingest-bench net restore")
        assert [one.here for one in sessions.show()] == [False]
        read = ("cat", str(RMEM))
        assert subprocess.run((*enter, *read), capture_output=True, text=True, check=True).stdout.split()[2] == "262144"
        # As it says.
        again = subprocess.run((*enter, *RESTORE), capture_output=True, check=True)
        assert b"1 change put back" in again.stdout
        assert subprocess.run((*enter, *read), capture_output=True, text=True, check=True).stdout.split()[2] != "262144"
        left_behind(enter, str(RMEM), "4096 65536 262144", "net")
        assert restored()[0] != 0
    assert restored() == (0, "nothing to put back\n")
    assert sessions.show() == []
    assert says(RMEM) == ours


def test_a_namespace_that_nothing_but_an_open_file_or_a_mount_keeps_is_not_gone(tmp_path: Path) -> None:
    with namespace() as enter:
        path = Path(f"/proc/{enter[2]}/ns/net")
        kept = Namespace(kind="net", inode=path.stat().st_ino)
        assert kept.entrance() is not None
        mounted = tmp_path / "net"
        mounted.touch()
        with path.open("rb") as file:
            os.kill(int(enter[2]), signal.SIGKILL)
            while path.exists():
                time.sleep(0.01)
            opened = f"/proc/{os.getpid()}/fd/{file.fileno()}"
            assert kept.entrance() == f"--net={opened}"
            subprocess.run(("mount", "--bind", opened, str(mounted)), check=True)
        try:
            entrance = kept.entrance()
            assert entrance is not None
            assert entrance.endswith(str(mounted))
            assert not kept.is_gone()
        finally:
            subprocess.run(("umount", str(mounted)), check=True)
    assert kept.is_gone()


def test_a_network_namespace_that_has_got_our_number_before_us_is_gone() -> None:
    ours = namespaces.own("net")
    if not ours.cookie:
        pytest.skip("this kernel has no cookies of network namespaces (Linux 5.14)")
    assert ours.is_ours()
    assert not ours.is_gone()
    assert Namespace(kind="net", inode=ours.inode, cookie=ours.cookie + 10**6).is_gone()


SQUATTER = """
import fcntl, hashlib, os, socket, sys
os.setgid(65534), os.setuid(65534)
kept = []
for resource in sys.argv[1:]:
    name = hashlib.sha256(resource.encode()).hexdigest()[:16]
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].bind(f"\\0ingest-bench/{name}")
    for path in (resource, f"/run/ingest-bench/locks/{name}.lock"):
        try:
            kept.append(open(path))
            fcntl.flock(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except PermissionError:
            pass
print("ready", flush=True)
sys.stdin.read()
"""


def test_no_other_user_can_keep_a_setting_from_us(swappiness: int) -> None:
    argv = ("/usr/bin/python3", "-c", SQUATTER, str(SWAPPINESS))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "ready\n"
        with watchdog.session("mine", "mine", time_limit_s=60, resources=(str(SWAPPINESS),)) as opened:
            opened.change((setting_step(SWAPPINESS, str(swappiness + 1)),))
        squatter.communicate()
    assert says(SWAPPINESS) == [swappiness]
