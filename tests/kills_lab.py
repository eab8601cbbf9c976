"""A machine for sessions that are killed: snapshots of all that they can change, and the sessions themselves.

They run in a mount namespace and network of the test, so that a snapshot has no other mounts and links. Sysctls,
cgroups, loop devices and disk rules are those of the whole machine.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import random
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

import commands
import psutil
from interface_lab import HAS_IPV6, Lab, holder, lab

from ingest_bench.jvm import cache
from ingest_bench.network.act import link as link_module

TESTS = Path(__file__).parent
IS_ROOT = os.geteuid() == 0
# Generous for a busy machine; still ends a test that hangs.
LIMIT_S = 300
# Undoing may be asynchronous: a loop device is removed after its mount.
_SETTLE_S = 20
# A file system of 16 pages; a session of an interface writes 2 of them.
_STATE_PAGES, _PAGE_BYTES = 16, 4096
STAGES = ("set-up", "at work", "undo")
COMMAND = (sys.executable, "-c", "from ingest_bench.cli import main; main()")
_BLKIO = Path("/sys/fs/cgroup/blkio")
# It changes by itself.
_UNSTABLE = "nf_conntrack_count"
# A copied mount of another process would keep its loop device busy.
_LET_GO = """
findmnt --raw --noheadings --output SOURCE,TARGET | while read -r source target; do
    case $source in /dev/loop*) umount --lazy "$target" ;; esac
done
"""
_SYSCTLS = ("sysctl", "--all", "--ignore", "--pattern", "^net[.]")
_MACHINE = "cat /proc/self/mountinfo; ip netns list; losetup --list --noheadings --output NAME,BACK-FILE"


@dataclass(frozen=True)
class Machine:
    """Where a killed session runs."""

    lab: Lab
    mounts: tuple[str, ...]
    """Prefix of a command to run it in the mount namespace."""
    root: Path
    """The root folder of the mount namespace."""
    folder: Path

    @property
    def state(self) -> Path:
        """Return the state folder."""
        return self.root / str(self.lab.state).lstrip("/")

    def snapshot(self) -> dict[str, list[str]]:
        """Return all that a session may change, by part, as other programs report it."""
        parts = {
            # First, because a busy machine takes longer for the commands below than faults last.
            "rules": "\n".join(sorted(_rules(str(self.folder)))),
            "cgroups": "\n".join(sorted(_cgroups())),
            "client": self.lab.snapshot() + self.lab.run(*_SYSCTLS),
            "server": self.lab.swap_ends().snapshot() + self.lab.swap_ends().run(*_SYSCTLS),
            "settings": run(("sysctl", "net.ipv4.tcp_mem", "net.ipv4.tcp_max_orphans")),
            "mounts": _ours(run((*self.mounts, "sh", "-c", _MACHINE)), str(self.folder)),
            "ledgers": "\n".join(f"{path.name}: {path.read_text()}" for path in sorted(self.state.glob("*.jsonl"))),
        }
        return {name: [line for line in _pieces(text) if _UNSTABLE not in line] for name, text in parts.items()}

    def describe_changes(self, before: Mapping[str, list[str]]) -> str:
        """Return the differences to a snapshot, after some time to settle; empty if there are none."""
        limit = time.monotonic() + _SETTLE_S
        while (now := self.snapshot()) != before and time.monotonic() < limit:
            time.sleep(0.2)
        return "\n".join(
            line for name in now for line in difflib.unified_diff(before[name], now[name], name, n=0, lineterm="")
        )

    def fill_state(self, room_pages: int) -> None:
        """Fill the state folder except for this number of pages."""
        descriptor = os.open(self.state / "full", os.O_WRONLY | os.O_CREAT)
        try:
            room = os.fstatvfs(descriptor)
            if (size_bytes := room.f_bavail * room.f_frsize - room_pages * _PAGE_BYTES) > 0:
                os.posix_fallocate(descriptor, 0, size_bytes)
        finally:
            os.close(descriptor)

    def empty_state(self) -> None:
        """Free the state folder."""
        (self.state / "full").unlink(missing_ok=True)


def run(argv: Sequence[str]) -> str:
    """Return the output of a command that must succeed."""
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout


def _pieces(text: str) -> list[str]:
    """Split a text into lines, and JSON into objects."""
    return text.replace("},{", "},\n{").splitlines()


def _ours(text: str, folder: str) -> str:
    """Remove loop devices of other processes."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("/dev/loop") or folder in line)


def _cgroups() -> Iterator[str]:
    """Yield the cgroups of runs, except those of other running tests."""
    own = {child.pid for child in psutil.Process().children(recursive=True)}
    for path in Path("/sys/fs/cgroup").rglob("ingest-bench-*"):
        pid = int(path.name.split("-")[2])
        if path.is_dir() and (pid in own or not psutil.pid_exists(pid)):
            yield str(path)


def _rules(folder: str) -> Iterator[str]:
    """Yield disk rules for devices without a file, or with one in this folder."""
    for path in _BLKIO.glob("blkio.throttle.*_device"):
        for line in path.read_text(encoding="ascii").splitlines():
            device = Path("/sys/dev/block") / line.split()[0] / "loop/backing_file"
            if not device.exists() or folder in device.read_text():
                yield f"{path.name} {line}"


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """Yield a machine. Root gets its own mounts; an ordinary user changes none."""
    with contextlib.ExitStack() as stack:
        mounts: tuple[str, ...] = ()
        root, state = Path("/"), folder / "state"
        network = stack.enter_context(lab(state))
        if IS_ROOT:
            pid = stack.enter_context(holder(("unshare", "--mount", "--propagation", "private")))
            mounts, root = ("nsenter", "--target", str(pid), "--mount", "--"), Path(f"/proc/{pid}/root")
            run((*mounts, "sh", "-c", _LET_GO))
            room = f"size={_STATE_PAGES * _PAGE_BYTES},mode=700"
            run((*mounts, "mount", "-t", "tmpfs", "-o", room, "state", str(state)))
        network = replace(network, client=(*mounts, *network.client))
        # To be restored: a host route, and the MTU of an upper interface.
        network.run("sh", "-c", "ip link add link eth0 name up0 mtu 1450 type macvlan")
        network.run("sh", "-c", "ip route add 198.18.40.2 dev eth0 metric 5 mtu 1490 initcwnd 20")
        if HAS_IPV6:
            network.run("sh", "-c", "ip -6 route add fd00:40::2 dev eth0 metric 5")
        _wait_for_addresses(network)
        yield Machine(network, mounts, root, folder)


def _wait_for_addresses(network: Lab) -> None:
    """Wait for all addresses of both ends, also IPv6: from then on nothing changes by itself."""
    limit = time.monotonic() + 60
    for end in (network.client, network.server):
        while "tentative" in (output := run((*end, "ip", "addr"))) or (HAS_IPV6 and output.count("inet6 fe80") < 2):
            assert time.monotonic() < limit, output
            time.sleep(0.05)


@dataclass(frozen=True)
class Surroundings:
    """Difficult conditions of a session."""

    room_pages: int | None = None
    """Free pages in the state folder; None: enough."""
    full_later: bool = False
    """The state folder is full after set-up, not before."""
    small_path: bool = False
    user: int | None = None

    def environment(self, at: Machine) -> dict[str, str]:
        own = {"HOME": str(at.folder), "INGEST_BENCH_CACHE": str(cache.folder()), "COLUMNS": "100"}
        path = {"PATH": "/usr/bin:/bin"} if self.small_path else {}
        return {**at.lab.env, **own, **path}


@dataclass(frozen=True)
class Kind:
    """A kind of session, and its share of a hundred kills."""

    name: str
    share: int
    argv: Callable[[Machine, random.Random], tuple[str, ...]]
    """Without the prefix that enters the namespaces."""
    in_network: bool = True
    marks: tuple[str, str] = ("running", "undoing")
    """Its output after set-up, and before undoing."""
    work_s: float | None = 0.3
    """It is ended after that time; None: it ends by itself."""
    seen_in: tuple[str, ...] = ()
    """Parts of a snapshot that it changes; empty: it changes only namespaces of its own."""
    any_user: bool = False
    needs: Callable[[], str] = str
    """Returns why it cannot run here; empty if it can."""

    @property
    def has_watchdog(self) -> bool:
        return bool(self.seen_in)


@dataclass
class Session:
    """A running session."""

    kind: Kind
    popen: subprocess.Popen[bytes]
    log: Path
    stage: int = 0
    since: list[float] = field(default_factory=lambda: [time.monotonic()])
    """The start of each stage, and the end."""
    _unread: bytes = b""

    def listen_until(self, until: float, stage: int = len(STAGES)) -> bool:
        """Read its output until that time or stage, and end it in time; return False if it exited."""
        assert self.popen.stdout is not None
        while self.stage < stage and (now := time.monotonic()) < until:
            over = inf if self.kind.work_s is None or self.stage != 1 else self.since[1] + self.kind.work_s
            if now >= over:
                self._tell_to_end()
                continue
            if not select.select([self.popen.stdout], [], [], min(until, over) - now)[0]:
                continue
            block = os.read(self.popen.stdout.fileno(), 65536)
            if not block:
                self.since.append(time.monotonic())
                return False
            *lines, self._unread = (self._unread + block).split(b"\n")
            for line in lines:
                self._take(line.decode())
        return True

    def reach(self, stage: int) -> bool:
        """Wait for a stage; return False if it exited before."""
        limit = time.monotonic() + LIMIT_S
        while self.stage < stage:
            assert time.monotonic() < limit, f"it hangs in {STAGES[self.stage]}"
            if not self.listen_until(limit, stage):
                return False
        return True

    def end(self) -> None:
        """Wait for its exit, by itself or after a kill."""
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        if self.popen.stdout.closed:
            return
        assert not self.listen_until(time.monotonic() + LIMIT_S), f"it does not end, and is in {STAGES[self.stage]}"
        self.popen.wait(LIMIT_S)
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.close()
        self.popen.stdout.close()

    @property
    def stderr(self) -> str:
        """Return its standard error."""
        return self.log.read_text()

    def watchdogs(self) -> list[psutil.Process]:
        processes = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.popen.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    if "ingest_bench.ledger.watchdog" in child.cmdline():
                        processes.append(child)
        return processes

    def _take(self, line: str) -> None:
        if self.stage < 2 and line == self.kind.marks[self.stage]:
            self.stage += 1
            self.since.append(time.monotonic())

    def _tell_to_end(self) -> None:
        assert self.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.write(b"\n")
            self.popen.stdin.flush()
        self.stage = 2
        self.since.append(time.monotonic())


@contextmanager
def session(at: Machine, kind: Kind, dice: random.Random, around: Surroundings) -> Iterator[Session]:
    """Start a session; at the end of the block no process of it may be left."""
    enter = at.lab.client if kind.in_network else at.mounts
    log = at.folder / "log"
    with commands.nothing_left(), log.open("wb") as errors:
        popen = subprocess.Popen(
            (*enter, *commands.as_user(around.user), *kind.argv(at, dice)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=around.environment(at),
            cwd="/",
            start_new_session=True,
        )
        started = Session(kind, popen, log)
        try:
            yield started
        finally:
            popen.kill()
            started.end()


def _interface(_at: Machine, dice: random.Random) -> tuple[str, ...]:
    variants = ("route", "mtu", "plain", *(("ipv6",) if HAS_IPV6 else ()))
    return (sys.executable, str(TESTS / "interface_driver.py"), "tool", "-1", "-1", dice.choice(variants))


def _host(_at: Machine, _dice: random.Random) -> tuple[str, ...]:
    return (sys.executable, str(TESTS / "kills_driver.py"), "host")


def _node(at: Machine, dice: random.Random) -> tuple[str, ...]:
    home = at.folder / f"home-{dice.getrandbits(32):08x}"
    return (sys.executable, str(TESTS / "kills_driver.py"), "node", str(home))


def _link(profiles: Sequence[str]) -> Callable[[Machine, random.Random], tuple[str, ...]]:
    def argv(_at: Machine, dice: random.Random) -> tuple[str, ...]:
        script = "echo running; read -r line; echo undoing"
        return (*COMMAND, "net", "exec", dice.choice(profiles), "--", "sh", "-c", script)

    return argv


SERVER = """
[protocol]
name = "json-array"
format = "lines"
path = "/"
[start]
source = "DiskServer.java"
java = 17
arguments = ["{host}", "{port}", "{home}"]
heap = "128m"
[ready]
path = "/"
[count]
path = "/"
json = "stored"
"""
EXPERIMENT = """
description = "Faults of each family at once, and killed in the middle of them"
[network]
profile = "ethernet"
[target]
file = "server.toml"
[load]
users = 2
bulk_documents = 50
warm_up = "200ms"
measure = "3s"
"""
_FAULTS: Mapping[str, str] = {
    "cpu": 'cores = 0.2\nat = "100ms"\nfor = "2s"',
    "memory": 'headroom = "1MiB"\nat = "200ms"\nfor = "1500ms"',
    "slow-disk": 'rate = "800mbit"\nat = "200ms"\nfor = "2s"',
    "slow-fsync": 'delay = "20ms"\nat = "300ms"\nfor = "2s"',
    "full-disk": 'at = "500ms"\nfor = "1500ms"',
    "throttle": 'rate = "20mbit"\nat = "200ms"\nfor = "2s"',
    "partition": 'at = "1s"\nfor = "300ms"',
    "mtu-blackhole": 'mtu = 1000\nat = "1300ms"\nfor = "500ms"',
    "reset": 'at = "1500ms"',
    "exhausted-ports": 'at = "1s"\nfor = "1s"',
    "file-descriptors": 'at = "500ms"\nfor = "1s"',
    "pause": 'at = "2s"\nfor = "300ms"',
}


def _run(at: Machine, dice: random.Random) -> tuple[str, ...]:
    folder = at.folder / f"run-{dice.getrandbits(32):08x}"
    folder.mkdir()
    shutil.copy(TESTS / "java/DiskServer.java", folder)
    (folder / "server.toml").write_text(SERVER)
    faults = "".join(f'[[fault]]\nkind = "{kind}"\n{keys}\n' for kind, keys in _FAULTS.items())
    (folder / "all.toml").write_text(EXPERIMENT + faults)
    command = shlex.join((sys.executable, str(TESTS / "run_driver.py"), "3", "run", "all.toml", "--out", "out"))
    return ("sh", "-c", f"cd {folder} && exec {command} 3>&1 >&2 < /dev/null")


def _root() -> str:
    return "" if IS_ROOT else "needs root"


def _netem() -> str:
    complaints = [complaint() for complaint in link_module.NETEM_CHECKS.values()]
    return "\n".join(complaints) if all(complaints) else ""


# With cgroup version 2, rules are part of the cgroup.
_NODE = ("mounts", "cgroups", "ledgers", *(("rules",) if _BLKIO.exists() else ()))
KINDS = (
    Kind("interface", 42, _interface, seen_in=("client", "ledgers")),
    Kind("host", 22, _host, in_network=False, seen_in=("settings", "ledgers"), needs=_root),
    Kind("link", 14, _link(("ethernet", "ethernet-100m", "jumbo")), any_user=True),
    Kind("node", 15, _node, seen_in=_NODE, needs=_root),
    Kind("run", 3, _run, marks=("load measure", "stage stop"), work_s=None, seen_in=_NODE, needs=_root),
    Kind("box", 4, _link(("wan-50ms", "lte")), any_user=True, needs=_netem),
)
