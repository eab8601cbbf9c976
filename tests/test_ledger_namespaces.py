"""Sessions in several network namespaces: settings of the whole machine, and of one namespace."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import commands
import pytest
from fault_lab import wait_until
from ledger_lab import apply_undo
from readied import ready

from ingest_bench.errors import RunFailed
from ingest_bench.ledger import namespaces, sessions, watchdog
from ingest_bench.ledger.journal import Journal, create_header
from ingest_bench.ledger.namespaces import Namespace
from ingest_bench.ledger.steps import Action, Undo, make_setting_step

pytestmark = [
    pytest.mark.netns,
    pytest.mark.usefixtures("state"),
    # They change the swappiness of the machine.
    pytest.mark.machine,
    # The inode of a namespace that is gone may be reused by another test.
    pytest.mark.measures,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change settings of the machine"),
]

DRIVER = str(Path(__file__).with_name("namespace_driver.py"))
SWAPPINESS, RMEM = Path("/proc/sys/vm/swappiness"), Path("/proc/sys/net/ipv4/tcp_rmem")
RESTORE = (str(Path(sys.executable).with_name("ingest-bench")), "net", "restore")
HOLD = ("unshare", "--net", "sh", "-c", "echo ready; exec sleep 600")
RMEM_262144 = (str(RMEM), "4096 65536 262144", "net")
RMEM_524288 = (str(RMEM), "4096 65536 524288", "net")


@pytest.fixture
def swappiness() -> Iterator[int]:
    """The present value, which is restored."""
    before = int(SWAPPINESS.read_text(encoding="ascii"))
    yield before
    SWAPPINESS.write_text(str(before), encoding="ascii")


def read_numbers(path: Path) -> list[int]:
    return [*map(int, path.read_text(encoding="ascii").split())]


def read_max_rmem(enter: Sequence[str]) -> str:
    return subprocess.run((*enter, "cat", str(RMEM)), capture_output=True, text=True, check=True).stdout.split()[2]


@contextmanager
def create_namespace() -> Iterator[tuple[str, ...]]:
    """Yield the prefix of a command that runs in a new network namespace."""
    with ready(HOLD) as holder:
        try:
            yield ("nsenter", "--target", str(holder.pid), "--net")
        finally:
            holder.kill()


@contextmanager
def run_driver(enter: Sequence[str], *arguments: str, is_alone: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Yield the driver once it has written the value."""
    pipe, env = subprocess.PIPE, {**os.environ, "DRIVER": "alone" if is_alone else ""}
    with subprocess.Popen(
        (*enter, sys.executable, DRIVER, *arguments), stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env
    ) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "set\n", driver.communicate()
            yield driver
        finally:
            driver.kill()


def leave_behind(enter: Sequence[str], *arguments: str) -> None:
    """Kill a session and its watchdog, so that its change stays."""
    with run_driver(enter, *arguments, is_alone=True) as driver:
        driver.send_signal(signal.SIGKILL)
        driver.wait()


def run_restore() -> tuple[int, str]:
    """Return the exit code and output of `net restore`."""
    completed = subprocess.run(RESTORE, capture_output=True, text=True, check=False, timeout=commands.LIMIT_S)
    return completed.returncode, completed.stdout + completed.stderr


def test_machine_setting_of_another_network_namespace_is_restored_from_anywhere(swappiness: int) -> None:
    # `ip netns exec` mounts another /sys and /proc.
    mount = ("unshare", "--mount", "sh", "-c", 'mount -t sysfs none /sys; mount -t proc none /proc; exec "$@"', "sh")
    with create_namespace() as enter:
        leave_behind((*enter, *mount), str(SWAPPINESS), str(swappiness + 1))
        assert read_numbers(SWAPPINESS) == [swappiness + 1]
        assert [session.is_undoable_here for session in sessions.list_sessions()] == [True]
        assert run_restore()[0] == 0
    assert read_numbers(SWAPPINESS) == [swappiness]
    assert sessions.list_sessions() == []


def test_machine_setting_is_locked_across_network_namespaces(
    swappiness: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create_namespace() as enter, run_driver(enter, str(SWAPPINESS), str(swappiness + 1)) as driver:
        for state in ("state", "another"):
            monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / state))
            with (
                pytest.raises(RunFailed, match=rf"swappiness: in use by pid \d+: driver {SWAPPINESS}"),
                watchdog.open_session("mine", "mine", time_limit_s=60, resources=(str(SWAPPINESS),)),
            ):
                pass
        driver.communicate("\n", timeout=60)
    assert read_numbers(SWAPPINESS) == [swappiness]
    with watchdog.open_session("mine", "mine", time_limit_s=60, resources=(str(SWAPPINESS),)) as session:
        session.apply((make_setting_step(SWAPPINESS, str(swappiness + 2)),))
    assert read_numbers(SWAPPINESS) == [swappiness]


def test_namespace_setting_may_be_changed_in_two_namespaces_at_the_same_time() -> None:
    ours = read_numbers(RMEM)
    with create_namespace() as first, create_namespace() as second:
        with run_driver(first, *RMEM_262144), run_driver(second, *RMEM_524288):
            pass
        assert read_numbers(RMEM) == ours


def test_leftover_in_one_network_namespace_is_not_undone_from_another() -> None:
    with create_namespace() as first, create_namespace() as second:
        ours = read_max_rmem(first)
        leave_behind(first, *RMEM_262144)
        write = ("sh", "-c", 'echo "4096 65536 393216" > "$0"', str(RMEM))
        subprocess.run((*second, *write), check=True)
        with run_driver(second, *RMEM_524288) as driver:
            driver.communicate("\n", timeout=60)
        assert (read_max_rmem(first), read_max_rmem(second)) == ("262144", "393216")
        subprocess.run((*first, *RESTORE), capture_output=True, check=True)
        assert (read_max_rmem(first), read_max_rmem(second)) == (ours, "393216")


def test_leftover_in_another_mount_namespace_must_be_undone_first(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("theirs\n", encoding="ascii")
    with ready(("unshare", "--mount", "sh", "-c", "echo ready; exec sleep 600")) as holder:
        inode = Path(f"/proc/{holder.pid}/ns/mnt").stat().st_ino
        other = (Namespace(kind="mnt", inode=inode),)
        header = dataclasses.replace(create_header("theirs", 60), namespaces=other)
        journal = Journal.create(sessions.ensure_state_folder() / "key.jsonl", header)
        apply_undo(journal, Undo(action=Action(path=str(file), value="old")))
        journal.close()
        message = rf"left behind in the mount namespace mnt:\[{inode}\]: nsenter --mount="
        with (
            pytest.raises(RunFailed, match=message),
            watchdog.open_session("key", "ours", time_limit_s=60, namespace_kinds=("mnt",)),
        ):
            pass
        assert file.read_text(encoding="ascii") == "theirs\n"
        assert journal.path.exists()
        holder.kill()
        holder.wait()
    # Files of a mount namespace may exist after it.
    with watchdog.open_session("key", "ours", time_limit_s=60, namespace_kinds=("mnt",)):
        assert file.read_text(encoding="ascii") == "old\n"


def test_restore_reports_how_to_enter_a_namespace_until_it_is_gone() -> None:
    ours = read_numbers(RMEM)
    with create_namespace() as enter:
        leave_behind(enter, *RMEM_262144)
        code, output = run_restore()
        assert code == RunFailed.exit_code
        plain = " ".join(output.split())
        assert f"driver {RMEM}" in plain
        inode = Path(f"/proc/{enter[2]}/ns/net").stat().st_ino
        assert f"network namespace net:[{inode}]: nsenter --net=/proc/{enter[2]}/" in plain
        assert plain.rstrip("│╯╰─ ").endswith("ingest-bench net restore")
        assert [session.is_undoable_here for session in sessions.list_sessions()] == [False]
        assert read_max_rmem(enter) == "262144"
        # As the message says.
        subprocess.run((*enter, *RESTORE), capture_output=True, check=True)
        assert read_max_rmem(enter) != "262144"
        leave_behind(enter, *RMEM_262144)
        assert run_restore()[0] != 0
    assert run_restore()[0] == 0
    assert sessions.list_sessions() == []
    assert read_numbers(RMEM) == ours


def test_namespace_that_an_open_file_or_a_mount_keeps_is_not_gone(tmp_path: Path) -> None:
    with create_namespace() as enter:
        path = Path(f"/proc/{enter[2]}/ns/net")
        namespace = Namespace(kind="net", inode=path.stat().st_ino)
        assert namespace.find_nsenter_option() is not None
        mount_point = tmp_path / "net"
        mount_point.touch()
        with path.open("rb") as file:
            os.kill(int(enter[2]), signal.SIGKILL)
            wait_until(lambda: not path.exists())
            descriptor = f"/proc/{os.getpid()}/fd/{file.fileno()}"
            assert namespace.find_nsenter_option() == f"--net={descriptor}"
            subprocess.run(("mount", "--bind", descriptor, str(mount_point)), check=True)
        try:
            option = namespace.find_nsenter_option()
            assert option is not None
            assert option.endswith(str(mount_point))
            assert not namespace.is_gone()
        finally:
            subprocess.run(("umount", str(mount_point)), check=True)
    assert namespace.is_gone()


def test_namespace_with_our_inode_and_another_cookie_is_gone() -> None:
    ours = namespaces.get_current("net")
    if not ours.cookie:
        pytest.skip("this kernel has no cookies of network namespaces (Linux 5.14)")
    assert ours.is_current()
    assert not ours.is_gone()
    assert Namespace(kind="net", inode=ours.inode, cookie=ours.cookie + 10**6).is_gone()


# Another user takes every lock that it can.
SQUATTER = """
import fcntl, hashlib, os, socket, sys
os.setgid(65534), os.setuid(65534)
taken = []
for resource in sys.argv[1:]:
    name = hashlib.sha256(resource.encode()).hexdigest()[:16]
    taken.append(socket.socket(socket.AF_UNIX))
    taken[-1].bind(f"\\0ingest-bench/{name}")
    for path in (resource, f"/run/ingest-bench/locks/{name}.lock"):
        try:
            taken.append(open(path))
            fcntl.flock(taken[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except PermissionError:
            pass
print("ready", flush=True)
sys.stdin.read()
"""


def test_other_users_cannot_block_a_setting(swappiness: int) -> None:
    argv = ("/usr/bin/python3", "-c", SQUATTER, str(SWAPPINESS))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "ready\n"
        with watchdog.open_session("mine", "mine", time_limit_s=60, resources=(str(SWAPPINESS),)) as session:
            session.apply((make_setting_step(SWAPPINESS, str(swappiness + 1)),))
        squatter.communicate()
    assert read_numbers(SWAPPINESS) == [swappiness]
