"""CPU time of this machine that other processes take: other experiments, busy neighbours, and other virtual machines.

Two experiments at the same time halve each other's rate, and neither sees it in its own numbers.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ingest_bench import system
from ingest_bench.errors import RunFailed

# The kernel's list of sockets shows an abstract name with "@" for the leading zero byte.
_SOCKET_PREFIX = "ingest-bench/"
# Not the pid alone: in two containers on the host's network both may be process 1.
_PROCESS_TOKEN = secrets.token_hex(4)
# sizeof(sun_path), unix(7).
_MAX_SOCKET_NAME_BYTES = 107
# Share of all CPUs. A quiet machine's own services take less.
_MIN_OTHERS_SHARE = 0.10
_BUSY_LOOP = "while :; do :; done"


def parse_ticks(stat: str) -> tuple[int, int, int]:
    """Return the busy, idle and stolen ticks of all CPUs since boot (proc(5), /proc/stat).

    Stolen: a process was ready to run, but the hypervisor ran another virtual machine.
    """
    user, nice, kernel, idle, iowait, irq, softirq, steal = map(int, stat.split("\n", 1)[0].split()[1:9])
    return user + nice + kernel + irq + softirq, idle + iowait, steal


def read_stolen_ticks() -> tuple[int, int]:
    """Return the stolen ticks and the total ticks of all CPUs since boot."""
    ticks = parse_ticks(Path("/proc/stat").read_text(encoding="ascii"))
    return ticks[2], sum(ticks)


def compute_stolen_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Return the share of CPU time that was stolen between two results of `read_stolen_ticks`."""
    return (after[0] - before[0]) / max(1, after[1] - before[1])


@contextlib.contextmanager
def announce_experiment(path: Path) -> Iterator[None]:
    """Show all processes of this machine that results are being written to *path*, until the block or process ends.

    The name of a socket, not a locked file: it leaves nothing behind and needs no folder that all can write.
    """
    prefix, path_bytes = f"\0{_SOCKET_PREFIX}{_own_token()}/".encode(), os.fsencode(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as announcement:
        # Of a long path keep the end, which says more.
        announcement.bind(prefix + path_bytes[-(_MAX_SOCKET_NAME_BYTES - len(prefix)) :])
        yield


def list_other_experiments() -> tuple[str, ...]:
    """Return the result paths of other processes' experiments; of long paths the end."""
    listed_prefix = f"@{_SOCKET_PREFIX}"
    lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    names = {line.partition(listed_prefix)[2] for line in lines if listed_prefix in line}
    return tuple(sorted(path for token, _, path in (name.partition("/") for name in names) if token != _own_token()))


def _own_token() -> str:
    return f"{os.getpid()}-{_PROCESS_TOKEN}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUsage:
    """CPU seconds at a moment."""

    at_s: float
    all_s: float
    """Of all processes, by /proc/stat, without interrupts, which belong to no process."""
    own_s: float
    """Of this process and its children that have exited."""

    @classmethod
    def read(cls) -> CpuUsage:
        """Return the present usage."""
        times = psutil.cpu_times()
        return cls(at_s=time.monotonic(), all_s=times.user + times.nice + times.system, own_s=sum(os.times()[:4]))


@dataclass(slots=True)
class OtherUsers:
    """Other users of this machine during a run."""

    experiments: set[str] = field(default_factory=set)
    cpu: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the report; empty if no other user was visible."""
        experiments = f"another experiment ran at the same time ({', '.join(sorted(self.experiments))})"
        texts = (experiments if self.experiments else "", self.cpu)
        return tuple(f"this machine is shared: {text}" for text in texts if text)


@contextlib.contextmanager
def watch_other_users(*, starts_everything: bool) -> Iterator[OtherUsers]:
    """Record who else uses the machine during the block; complete at its end.

    *starts_everything*: every process of the run starts and exits inside the block. Otherwise, as with a server that
    was running before, CPU time cannot be attributed and is left out.
    """
    others, before = OtherUsers(set(list_other_experiments())), CpuUsage.read()
    try:
        yield others
    finally:
        others.experiments |= set(list_other_experiments())
        if starts_everything:
            others.cpu = describe_other_cpu(before, CpuUsage.read(), psutil.cpu_count() or 1)


def describe_other_cpu(before: CpuUsage, after: CpuUsage, cores: int) -> str:
    """Return how much CPU other processes took; "" below 10% of all CPUs."""
    used_s, duration_s = after.all_s - before.all_s, after.at_s - before.at_s
    cores_used = (used_s - (after.own_s - before.own_s)) / duration_s if duration_s > 0 else 0.0
    if cores_used < _MIN_OTHERS_SHARE * cores:
        return ""
    return f"other processes took {cores_used:.1f} of its {cores} CPUs on average"


@contextlib.contextmanager
def start_neighbours(count: int, pid: int) -> Iterator[tuple[int, ...]]:
    """Start busy processes on the CPUs that process *pid* may use, at our own priority; yield their pids.

    They die with the thread that begins the block.
    """
    try:
        cpus = os.sched_getaffinity(pid)
    except ProcessLookupError:
        # It was killed a moment ago, and will be restarted on our CPUs.
        cpus = os.sched_getaffinity(0)
    children: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            children.append(system.start(("sh", "-c", _BUSY_LOOP)))
            os.sched_setaffinity(children[-1].pid, cpus)
        yield tuple(child.pid for child in children)
    finally:
        for child in children:
            child.kill()
            child.wait()


def read_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a single-threaded process; raise RunFailed if it has exited."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except (OSError, IndexError) as error:
        raise RunFailed(f"neighbours: one of them exited early ({error})") from None


def read_run_delays_ns(pid: int) -> dict[int, int]:
    """Return how long each present thread has waited for a CPU since it started (sched-stats.rst, schedstat field 2).

    Empty if the process is gone, for example because it is being killed.
    """
    delays_ns = {}
    for task in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            delays_ns[int(task.name)] = int((task / "schedstat").read_text(encoding="ascii").split()[1])
    return delays_ns


def compute_mean_run_delay(pid: int) -> float | None:
    """Return the seconds per second that the process's present threads together have waited for a CPU in its life."""
    try:
        age_s = time.time() - psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return None
    return sum(read_run_delays_ns(pid).values()) / 1e9 / max(age_s, 0.001)


def sum_added_delays_s(before: Mapping[int, int], after: Mapping[int, int]) -> float:
    """Return the seconds that threads waited between two reads, without threads that have exited since."""
    return sum(waited_ns - before.get(thread, 0) for thread, waited_ns in after.items()) / 1e9
