"""The child process of probe `host`: `python -m ingest_bench.probes.proc PID OUT THREADS` samples /proc until it ends.

One JSON list a line, in the order of `FIELDS`; null for what this machine does not count. In the second file one for
each thread that waited (threads.py), between two samples' `at_ns`.

A new field comes last: lines without it are those of an older ingest-bench, and are read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
import time
from pathlib import Path

from ingest_bench.probes.threads import Threads
from ingest_bench.trials import parse_ticks

PERIOD_NS = 100_000_000
FIELDS = (
    "at_ns",
    "server_user_ns",
    "server_system_ns",
    "server_minor_faults",
    "server_major_faults",
    "server_threads",
    "server_rss_bytes",
    "server_voluntary_switches",
    "server_involuntary_switches",
    "cpu_busy_ticks",
    "cpu_idle_ticks",
    "cpu_steal_ticks",
    "context_switches",
    "run_queue",
    "pressure_cpu_some_us",
    "pressure_io_some_us",
    "pressure_io_full_us",
    "pressure_memory_some_us",
    "pressure_memory_full_us",
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
    "server_threads_stopped",
    "server_threads_blocked",
    "server_throttled_ns",
    "at_monotonic_ns",
)
# Every kernel counts these; of the others it may lack some.
ALWAYS = (*FIELDS[: FIELDS.index("pressure_cpu_some_us")], "server_threads_stopped", "server_threads_blocked")
_VMSTAT = FIELDS[FIELDS.index("thp_fault_alloc") : FIELDS.index("allocstall") + 1]
_PRESSURE = (("cpu", "some"), ("io", "some"), ("io", "full"), ("memory", "some"), ("memory", "full"))
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Number = int | None


def throttled_ns(pid: int) -> int | None:
    """How long quotas of CPU held back the process's cgroup (version 1 or 2), the times of its CPUs added up.

    None where it has no such count, as the root of version 2.
    """
    for line in _text(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        mounts = ("cpu", "cpu,cpuacct") if "cpu" in controllers.split(",") else () if controllers else ("", "unified")
        for mount in mounts:
            counts = _text(f"/sys/fs/cgroup/{mount}{path}/cpu.stat").split()
            found = dict(zip(counts[::2], counts[1::2], strict=False))
            if "throttled_time" in found:
                return int(found["throttled_time"])
            if "throttled_usec" in found:
                return int(found["throttled_usec"]) * 1000
    return None


def parse_stat(text: str) -> tuple[int, int, int, int, int, int]:
    """CPU ns in user mode and in the kernel, minor and major faults, threads, resident bytes (man 5 proc, PID/stat)."""
    # The name of the program may hold spaces and brackets: count from its end. Index 0 is the state, field 3.
    fields = text[text.rindex(")") + 2 :].split()
    user_ns, system_ns = int(fields[11]) * TICK_NS, int(fields[12]) * TICK_NS
    return user_ns, system_ns, int(fields[7]), int(fields[9]), int(fields[17]), int(fields[21]) * _PAGE_BYTES


def parse_system(text: str) -> tuple[int, int, int, int, int]:
    """Busy, idle and stolen ticks of all CPUs, context switches, processes that run or wait for one (/proc/stat)."""
    lines = dict(line.partition(" ")[::2] for line in text.splitlines())
    return *parse_ticks(text), int(lines["ctxt"]), int(lines["procs_running"])


def parse_pressure(text: str) -> dict[str, int]:
    """Microseconds of "some" and "full" stalls since boot (/proc/pressure/*)."""
    return {line.split()[0]: int(line.rpartition("total=")[2]) for line in text.splitlines() if "total=" in line}


def sample(pid: int, threads: Threads) -> list[Number]:
    """One line, in the order of `FIELDS`. FileNotFoundError or ProcessLookupError when the server is gone."""
    server = parse_stat(_read(f"/proc/{pid}/stat"))
    machine = parse_system(_read("/proc/stat"))
    at_ns, at_monotonic_ns = time.time_ns(), time.monotonic_ns()
    switched = threads.sample(at_ns)
    states = (threads.states()["T"], threads.states()["D"])
    counted = (*server, *switched, *machine, *_pressure(), *_vmstat(), *states, throttled_ns(pid))
    return [at_ns, *counted, at_monotonic_ns]


def _pressure() -> list[Number]:
    totals = {resource: parse_pressure(_text(f"/proc/pressure/{resource}")) for resource in ("cpu", "io", "memory")}
    return [totals[resource].get(kind) for resource, kind in _PRESSURE]


def parse_vmstat(text: str) -> dict[str, int]:
    """Counters since boot (/proc/vmstat). `allocstall` is that of all zones, each of which has its own today."""
    counters = {name: int(value) for name, value in (line.split() for line in text.splitlines())}
    stalls = [value for name, value in counters.items() if name.startswith("allocstall")]
    return counters | ({"allocstall": sum(stalls)} if stalls else {})


def _vmstat() -> list[Number]:
    counters = parse_vmstat(_text("/proc/vmstat"))
    return [counters.get(name) for name in _VMSTAT]


def _text(path: str) -> str:
    try:
        return _read(path)
    except OSError:
        return ""


def _read(path: str) -> str:
    """What stands there: names of processes and of cgroups may be any bytes."""
    return Path(path).read_text(encoding="utf-8", errors="surrogateescape")


def main(pid: int, out: Path, waits: Path) -> None:
    """Samples until the server is gone or this process is ended; a late sample does not delay the next ones."""
    # Two files for each thread of the server stay open, and 1024 are usual: they were too few for 510 threads.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    threads = Threads(pid)
    following_ns = time.monotonic_ns()
    with (
        out.open("w", encoding="utf-8", buffering=1) as lines,
        waits.open("w", encoding="utf-8", buffering=1) as waited,
    ):
        while True:
            try:
                lines.write(json.dumps(sample(pid, threads)) + "\n")
                for wait in threads.waits():
                    waited.write(json.dumps(dataclasses.asdict(wait)) + "\n")
            except (FileNotFoundError, ProcessLookupError):
                return
            now_ns = time.monotonic_ns()
            following_ns = max(following_ns + PERIOD_NS, now_ns)
            time.sleep((following_ns - now_ns) / 1e9)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
