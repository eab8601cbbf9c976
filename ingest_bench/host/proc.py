"""Child process of probe `host`: `python -m ingest_bench.host.proc PID OUT WAITS` samples /proc until its input ends.

OUT gets one JSON list per line, in the order of `FIELDS`; null if this machine does not count it. WAITS gets one JSON
object (`ThreadWait`) for each thread that waited between two samples, or ran for more than half of the time.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import select
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import MissingCapability
from ingest_bench.host import cgroup_files
from ingest_bench.host.cgroup_files import Cgroup
from ingest_bench.host.cpu import parse_ticks

PERIOD_NS = 100_000_000
PRESSURE = (("cpu", "some"), ("io", "some"), ("io", "full"), ("memory", "some"), ("memory", "full"))
VMSTAT = (
    "thp_fault_alloc",
    "thp_fault_fallback",
    "thp_collapse_alloc",
    "thp_split_page",
    "compact_stall",
    "compact_fail",
    "compact_success",
    "numa_pages_migrated",
    "pgmajfault",
    "allocstall",
)
# Every kernel counts these; it may lack any of the others.
ALWAYS = (
    "at_ns",
    "at_monotonic_ns",
    "server_user_ns",
    "server_system_ns",
    "server_minor_faults",
    "server_major_faults",
    "server_threads",
    "server_rss_bytes",
    "server_context_switches_voluntary",
    "server_context_switches_involuntary",
    "cpu_busy_ticks",
    "cpu_idle_ticks",
    "cpu_steal_ticks",
    "context_switches",
    "run_queue",
    "server_threads_stopped",
    "server_threads_blocked",
)
FIELDS = (
    *ALWAYS,
    *(f"pressure_{resource}_{kind}_us" for resource, kind in PRESSURE),
    *VMSTAT,
    "server_throttled_ns",
    "cgroup_sock_bytes",
    "cgroup_memory_bytes",
)
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Shorter waits within a sample's 100 ms explain nothing.
_MIN_WAIT_NS = 20_000_000


def main(pid: int, samples: Path, waits: Path) -> None:
    """Sample until the server has ended or standard input ends; a late sample does not delay the next ones.

    Prints a line after the first sample. Takes the last one after the end of standard input.
    """
    # Two files per server thread stay open. The usual limit of 1024 was too low for 510 threads.
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    threads, cgroups = ThreadSampler(pid), find_cgroups(pid)
    with (
        samples.open("w", encoding="utf-8", buffering=1) as sample_file,
        waits.open("w", encoding="utf-8", buffering=1) as wait_file,
        # The server has ended.
        suppress(FileNotFoundError, ProcessLookupError),
    ):

        def write_sample() -> None:
            sample_file.write(json.dumps(sample(pid, threads, cgroups)) + "\n")
            for wait in threads.waits():
                wait_file.write(json.dumps(dataclasses.asdict(wait)) + "\n")

        next_ns, is_last = time.monotonic_ns(), False
        write_sample()
        sys.stdout.write("sampling\n")
        sys.stdout.flush()
        while not is_last:
            now_ns = time.monotonic_ns()
            next_ns = max(next_ns + PERIOD_NS, now_ns)
            is_last = bool(select.select([sys.stdin], [], [], (next_ns - now_ns) / 1e9)[0])
            write_sample()


def find_cgroups(pid: int) -> dict[str, Cgroup]:
    """Return the process's cgroups of CPU and memory, of each controller that is mounted here.

    "unshared" is that of memory, unless this process is in it too: then the memory of the load is as well.
    """
    cgroups = {}
    for controller in ("cpu", "memory"):
        with suppress(MissingCapability):
            cgroups[controller] = cgroup_files.find_process_cgroup(pid, controller)
    with suppress(MissingCapability):
        own = cgroup_files.find_process_cgroup("self", "memory")
        if "memory" in cgroups and not own.folder.is_relative_to(cgroups["memory"].folder):
            cgroups["unshared"] = cgroups["memory"]
    return cgroups


def sample(pid: int, threads: ThreadSampler, cgroups: Mapping[str, Cgroup]) -> list[int | None]:
    """Return one line, in the order of `FIELDS`. FileNotFoundError or ProcessLookupError if the server has ended."""
    server = parse_stat(_read(f"/proc/{pid}/stat"))
    machine = parse_system(_read("/proc/stat"))
    at_ns, at_monotonic_ns = time.time_ns(), time.monotonic_ns()
    switches = threads.sample(at_monotonic_ns)
    states = (threads.states()["T"], threads.states()["D"])
    stalls = {
        name: parse_pressure(system.read_text(f"/proc/pressure/{name}") or "") for name in ("cpu", "io", "memory")
    }
    pressures = (stalls[resource].get(kind) for resource, kind in PRESSURE)
    vmstat = parse_vmstat(system.read_text("/proc/vmstat") or "")
    counters = map(vmstat.get, VMSTAT)
    throttled_ns = read_throttled_ns(cgroups["cpu"]) if "cpu" in cgroups else None
    sock_bytes = cgroup_files.read_sock_bytes(cgroups["memory"]) if "memory" in cgroups else None
    memory_bytes = cgroup_files.read_memory_bytes(cgroups["unshared"]) if "unshared" in cgroups else None
    machine_wide = (*machine, *states, *pressures, *counters)
    return [at_ns, at_monotonic_ns, *server, *switches, *machine_wide, throttled_ns, sock_bytes, memory_bytes]


def read_throttled_ns(cgroup: Cgroup) -> int | None:
    """Return the time that CPU quotas held back a cgroup, summed over CPUs; None without such a counter."""
    words = (system.read_text(cgroup.folder / "cpu.stat") or "").split()
    counters = dict(zip(words[::2], map(int, words[1::2]), strict=False))
    throttled_us = counters.get("throttled_usec")
    return counters.get("throttled_time") if throttled_us is None else throttled_us * 1000


def parse_stat(text: str) -> tuple[int, int, int, int, int, int]:
    """Return user ns, system ns, minor and major faults, threads and resident bytes (man 5 proc, PID/stat)."""
    # The program's name may contain spaces and brackets: count from its end. Index 0 is the state, field 3.
    fields = text[text.rindex(")") + 2 :].split()
    user_ns, system_ns = int(fields[11]) * TICK_NS, int(fields[12]) * TICK_NS
    return user_ns, system_ns, int(fields[7]), int(fields[9]), int(fields[17]), int(fields[21]) * _PAGE_BYTES


def parse_system(text: str) -> tuple[int, int, int, int, int]:
    """Return busy, idle and stolen ticks of all CPUs, context switches, runnable processes (/proc/stat)."""
    lines = dict(line.partition(" ")[::2] for line in text.splitlines())
    return *parse_ticks(text), int(lines["ctxt"]), int(lines["procs_running"])


def parse_pressure(text: str) -> dict[str, int]:
    """Return microseconds of "some" and "full" stalls since boot (/proc/pressure/*)."""
    return {line.split()[0]: int(line.rpartition("total=")[2]) for line in text.splitlines() if "total=" in line}


def parse_vmstat(text: str) -> dict[str, int]:
    """Return counters since boot (/proc/vmstat). `allocstall` is the sum over zones, which modern kernels count."""
    counters = {name: int(value) for name, value in (line.split() for line in text.splitlines())}
    stalls = [value for name, value in counters.items() if name.startswith("allocstall")]
    return counters | ({"allocstall": sum(stalls)} if stalls else {})


def _read(path: str) -> str:
    # Names of processes and cgroups may be any bytes.
    return Path(path).read_text(encoding="utf-8", errors="surrogateescape")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadWait:
    """One thread that waited for a CPU, was in state D (disk), or mostly ran between two samples (CLOCK_MONOTONIC)."""

    since_ns: int
    at_ns: int
    thread: int
    """Its id in the pid namespace of the process."""
    name: str
    """Its first 15 characters: the kernel keeps no more."""
    waited_ns: int
    """Time in the run queue. The kernel adds it when the thread runs again: it may exceed the sample interval."""
    state: str
    ran_ns: int = 0


@dataclass(slots=True)
class _Thread:
    """State of one thread at its last sample."""

    status_fd: int
    schedstat_fd: int | None
    schedstat: bytes = b""
    waited_ns: int = 0
    new_wait_ns: int = 0
    ran_ns: int = 0
    new_ran_ns: int = 0
    switches: tuple[int, int] = (0, 0)
    state: str = ""
    name: str = ""
    number: int = 0


class ThreadSampler:
    """Context switches, states and CPU waits of all threads of a process. Keeps the switches of ended threads.

    Files stay open between samples: opening them for each of a server's hundred threads costs more than reading them.
    `status` costs seven times as much as `schedstat`, and is read only for threads that ran since or are not sleeping.
    Activity after a thread's last sample is lost.
    """

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._alive: dict[str, _Thread] = {}
        self._ended_switches = (0, 0)
        self._since_ns = self._at_ns = 0

    def sample(self, at_ns: int) -> tuple[int, int]:
        """Return voluntary and involuntary switches since each thread began. *at_ns*: now, CLOCK_MONOTONIC."""
        self._since_ns, self._at_ns = self._at_ns, at_ns
        alive = {entry.name for entry in os.scandir(self._tasks)}
        for tid in self._alive.keys() - alive:
            self._end(tid)
        for tid in alive:
            try:
                if tid not in self._alive:
                    self._alive[tid] = self._begin(tid)
                _update(self._alive[tid])
            except (ProcessLookupError, FileNotFoundError):
                self._end(tid)
        counts = [self._ended_switches, *(thread.switches for thread in self._alive.values())]
        return sum(voluntary for voluntary, _ in counts), sum(involuntary for _, involuntary in counts)

    def states(self) -> Counter[str]:
        """Return the number of threads by state letter at the last sample (man 5 proc): T stopped, D disk."""
        return Counter(thread.state for thread in self._alive.values())

    def waits(self) -> Iterator[ThreadWait]:
        """Yield the threads that waited between the last two samples, or ran for more than half of the time."""
        if self._since_ns:
            half_ns = (self._at_ns - self._since_ns) / 2
            for thread in self._alive.values():
                if thread.new_wait_ns >= _MIN_WAIT_NS or thread.state == "D" or thread.new_ran_ns > half_ns:
                    yield ThreadWait(
                        since_ns=self._since_ns,
                        at_ns=self._at_ns,
                        thread=thread.number,
                        name=thread.name,
                        waited_ns=thread.new_wait_ns,
                        state=thread.state,
                        ran_ns=thread.new_ran_ns,
                    )

    def _begin(self, tid: str) -> _Thread:
        status_fd = os.open(self._tasks / tid / "status", os.O_RDONLY)
        try:
            # A kernel without CONFIG_SCHED_INFO has no schedstat.
            return _Thread(status_fd, os.open(self._tasks / tid / "schedstat", os.O_RDONLY))
        except FileNotFoundError:
            return _Thread(status_fd, None)

    def _end(self, tid: str) -> None:
        if (thread := self._alive.pop(tid, None)) is not None:
            os.close(thread.status_fd)
            if thread.schedstat_fd is not None:
                os.close(thread.schedstat_fd)
            (voluntary, involuntary), ended = thread.switches, self._ended_switches
            self._ended_switches = (ended[0] + voluntary, ended[1] + involuntary)


def _update(thread: _Thread) -> None:
    if thread.schedstat_fd is not None:
        schedstat = os.pread(thread.schedstat_fd, 256, 0)
        # The first two of three numbers (Documentation/scheduler/sched-stats).
        ran_ns, waited_ns = map(int, schedstat.split()[:2])
        thread.new_ran_ns = ran_ns - thread.ran_ns if thread.schedstat else 0
        thread.new_wait_ns = waited_ns - thread.waited_ns if thread.schedstat else 0
        if schedstat == thread.schedstat and thread.state == "S":
            return
        thread.schedstat, thread.ran_ns, thread.waited_ns = schedstat, ran_ns, waited_ns
    status = os.pread(thread.status_fd, 8192, 0)
    thread.switches, thread.state = parse_switches(status), _status_field(status, b"State")[:1]
    thread.name, thread.number = _status_field(status, b"Name"), parse_number(status)


def parse_switches(status: bytes) -> tuple[int, int]:
    """Return voluntary_ctxt_switches and nonvoluntary_ctxt_switches, the last two lines of a thread's `status`."""
    voluntary, involuntary = status.rstrip().rsplit(b"\n", 2)[1:]
    return int(voluntary.split()[1]), int(involuntary.split()[1])


def parse_number(status: bytes) -> int:
    """Return the thread id in its innermost pid namespace; 0 if missing."""
    numbers = (_status_field(status, b"NSpid") or _status_field(status, b"Pid")).split()
    return int(numbers[-1]) if numbers else 0


def _status_field(status: bytes, name: bytes) -> str:
    _, separator, remainder = (b"\n" + status).partition(b"\n" + name + b":\t")
    return remainder.partition(b"\n")[0].decode(errors="replace") if separator else ""


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
