"""Faults of a server's processes: `pause`, `kill`, `gc`, `heap-dump`, `file-descriptors` and `flush`."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import signal
import time
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.faults.apply import act_on_nodes, begin_on_nodes
from ingest_bench.faults.kind import ActiveFault, FaultKind, Node, Stage
from ingest_bench.model.experiment import Cell, Fault

# A thread stops where it enters or leaves the kernel; one that waits for a disk stops when the disk has answered.
_STOP_TIMEOUT_S = 5.0
# Enough for a connection or two, and the files of a segment or two.
FREE_DESCRIPTORS = 4
_GC_COUNT = re.compile(r"GC invocations=(\d+)")


def _pause(node: Node) -> ActiveFault:
    return ActiveFault(
        end_fault=node.hold("pause", lambda: _stop(node.process.jvm_pid), lambda: _continue(node.process.jvm_pid))
    )


def _stop(pid: int) -> None:
    """Send SIGSTOP and wait until no thread runs."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while running := _count_running_threads(pid):
        if time.monotonic() > deadline:
            raise RunFailed(f"pause: {running} threads still run {_STOP_TIMEOUT_S:g} s after SIGSTOP")
        time.sleep(0.001)


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _count_running_threads(pid: int) -> int:
    """Return how many threads are not stopped (man 5 proc, /proc/PID/task/TID/stat)."""
    count = 0
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            count += stat.read_text("ascii", "replace").rpartition(")")[2].split()[0] not in "TtZX"
    return count


PAUSE = FaultKind(scope="node", begin=lambda fault, stage: begin_on_nodes(fault, stage, _pause))


def _find_kill_error(cell: Cell, fault: Fault) -> str:
    del fault
    if cell.load.measure_documents is not None:
        return "the number of restarts must be known in advance. Give the measurement a duration."
    if cell.probes:
        return f"a killed JVM leaves no recording. Remove the probes ({', '.join(cell.probes)})."
    return ""


def _kill(node: Node, stage: Stage) -> ActiveFault:
    """Kill a node by SIGKILL, so that it writes nothing more, and restart it on its files at the end.

    `lost_documents` of the run counts acknowledged documents that are missing afterwards.
    """
    with node.starting, node.lock:
        if stage.load_ended.is_set():
            return ActiveFault(end_fault=lambda: "skipped: the load had ended")
        if not node.counts["kill"]:
            node.is_down = True
            node.process.kill()
        node.counts["kill"] += 1

    def restart() -> str | None:
        with node.starting:
            with node.lock:
                node.counts["kill"] -= 1
                if node.counts["kill"]:
                    return None
            start_s = time.monotonic()
            node.process.restart(node.boot_limit_s)
            with node.lock:
                node.is_down = False
                for begin, _ in node.active.values():
                    begin()
            return f"ready {time.monotonic() - start_s:.1f} s after its restart"

    return ActiveFault(end_fault=restart)


# Its begin waits for a node that is still starting.
KILL = FaultKind(
    scope="node",
    begin=lambda fault, stage: begin_on_nodes(fault, stage, lambda node: _kill(node, stage)),
    is_slow_to_begin=True,
    find_error=_find_kill_error,
)


def _collect_garbage(node: Node) -> str:
    """Run `System.gc()`; raise RunFailed if nothing was collected, as with -XX:+DisableExplicitGC."""
    if "-XX:+DisableExplicitGC" in node.run_jcmd("VM.flags").split():
        raise RunFailed(f"gc: {node.name} has -XX:+DisableExplicitGC and would not collect. Start it without.")
    count_before, start_s = _count_collections(node), time.monotonic()
    node.run_jcmd("GC.run")
    if _count_collections(node) <= count_before:
        raise RunFailed(f"gc: {node.name} accepted GC.run, but did not collect")
    return f"collected within {time.monotonic() - start_s:.2f} s"


def _count_collections(node: Node) -> int:
    """Return how often its collectors ran, by its heap history: -XX:+PerfDisableSharedMem hides the counters."""
    return max(map(int, _GC_COUNT.findall(node.run_jcmd("VM.info"))), default=0)


GC = FaultKind(
    scope="node", has_duration=False, begin=lambda fault, stage: act_on_nodes(fault, stage, _collect_garbage)
)


def _dump_heap(node: Node) -> str:
    """Dump live objects, which stops the JVM meanwhile, to its own folder, where it can write; remove the file."""
    # A random name: two dumps may be requested at the same time.
    path = node.home / f"heap-dump-{secrets.token_hex(4)}.hprof"
    start_s = time.monotonic()
    try:
        # In quotes: a JVM cuts NAME=VALUE, which the folders of cells have, to NAME.
        output = node.run_jcmd("GC.heap_dump", f'"{path}"')
        if not path.is_file():
            raise RunFailed(f"heap-dump: {node.name} wrote no file. Its output: {output.strip()}")
        return f"{path.stat().st_size / 1e6:.0f} MB within {time.monotonic() - start_s:.2f} s"
    finally:
        path.unlink(missing_ok=True)


HEAP_DUMP = FaultKind(
    scope="node", has_duration=False, begin=lambda fault, stage: act_on_nodes(fault, stage, _dump_heap)
)


def _limit_descriptors(node: Node) -> ActiveFault:
    """Lower the limit of the process (prlimit(2)): open descriptors stay open, a higher number is refused."""
    old_limits: dict[int, str] = {}
    effects: list[str] = []

    def begin() -> None:
        pid = node.process.jvm_pid
        old_limits[pid] = _read_descriptor_limit(pid)
        used = _list_descriptors(pid)
        # The limit is one of numbers, and the lowest free one is next (open(2)).
        unused = (number for number in itertools.count() if number not in used)
        last = next(itertools.islice(unused, FREE_DESCRIPTORS - 1, None))
        _set_descriptor_limit(pid, str(last + 1))
        effects.append(f"{FREE_DESCRIPTORS} free next to {len(used)} open descriptors")

    def end() -> None:
        pid = node.process.jvm_pid
        # A process that is being restarted may not have the limit yet.
        if pid in old_limits and Path(f"/proc/{pid}").exists():
            _set_descriptor_limit(pid, old_limits[pid])

    release = node.hold("file-descriptors", begin, end)
    # Empty if the limit was active already, or if the node is down.
    return ActiveFault("".join(effects), release)


def _list_descriptors(pid: int) -> set[int]:
    return {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}


def _read_descriptor_limit(pid: int) -> str:
    """Return the soft limit."""
    limits = Path(f"/proc/{pid}/limits").read_text(encoding="ascii")
    return next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3]


def _set_descriptor_limit(pid: int, soft: str) -> None:
    """Set the soft limit as the process's own user: root needs CAP_SYS_RESOURCE for that, which containers lack."""
    owner = Path(f"/proc/{pid}").stat()
    argv: tuple[str, ...] = ("prlimit", "--pid", str(pid), f"--nofile={soft}:")
    if owner.st_uid != os.geteuid():
        argv = ("setpriv", f"--reuid={owner.st_uid}", f"--regid={owner.st_gid}", "--clear-groups", *argv)
    system.run(argv)
    if (actual := _read_descriptor_limit(pid)) != soft:
        raise RunFailed(f"file-descriptors: the limit of process {pid} was set to {soft}, but is {actual}")


FILE_DESCRIPTORS = FaultKind(scope="node", begin=lambda fault, stage: begin_on_nodes(fault, stage, _limit_descriptors))


def _flush(_: Fault, stage: Stage) -> ActiveFault:
    if stage.flush is None:
        raise SpecError("fault flush requires a server that ingest-bench started")
    down = [node.name for node in stage.nodes if node.is_down]
    if down:
        return ActiveFault(f"skipped: {' and '.join(down)} is down")
    stage.flush()
    return ActiveFault()


FLUSH = FaultKind(scope="server", has_duration=False, begin=_flush)
