"""Faults of processes (`pause`, `kill`, `gc`, `heap-dump`, `file-descriptors`) on a node whose process is `cat`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from fault_lab import NodeProcess, S, make_fault, make_stage, start_processes, wait_until

from ingest_bench.errors import RunFailed
from ingest_bench.faults import processes, timeline
from ingest_bench.faults.kind import Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.model.load import LoadOptions

GC = Fault(kind="gc", at_ns=0)
HEAP_DUMP = Fault(kind="heap-dump", at_ns=0)
Pair = tuple[NodeProcess, NodeProcess]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with start_processes(2) as (first, second):
        yield first, second


@pytest.fixture
def process(pair: Pair) -> NodeProcess:
    return pair[0]


def test_fault_of_a_node_that_is_down_is_skipped(process: NodeProcess) -> None:
    stage = dataclasses.replace(make_stage([process]), flush=pytest.fail)
    kill = timeline.begin_fault(make_fault("kill"), stage)
    assert timeline.begin_fault(GC, stage).effect == "node 1: skipped: it is down"
    assert timeline.begin_fault(Fault(kind="flush", at_ns=0), stage).effect == "skipped: node 1 is down"
    kill.end()


def make_restart_wait(process: NodeProcess, started: threading.Event, ready: threading.Event) -> None:
    restart = process.restart

    def restart_slowly(timeout_s: float) -> None:
        started.set()
        assert ready.wait(60)
        restart(timeout_s)

    process.restart = restart_slowly  # type: ignore[method-assign]


def test_fault_does_not_wait_for_a_node_that_is_starting(process: NodeProcess) -> None:
    stage, ready = make_stage([process]), threading.Event()
    make_restart_wait(process, threading.Event(), ready)
    ending = threading.Thread(target=timeline.begin_fault(make_fault("kill"), stage).end)
    ending.start()
    pause = timeline.begin_fault(make_fault("pause"), stage)
    assert timeline.begin_fault(GC, stage).effect == "node 1: skipped: it is down"
    ready.set()
    ending.join(60)
    assert process.is_paused()
    pause.end()
    assert not process.is_paused()


def test_kill_waits_for_its_starting_node_and_its_duration_counts_from_then(process: NodeProcess) -> None:
    stage, started, ready = make_stage([process]), threading.Event(), threading.Event()
    make_restart_wait(process, started, ready)
    ending = threading.Thread(target=timeline.begin_fault(make_fault("kill"), stage).end)
    ending.start()
    assert started.wait(20)
    kill = Fault(kind="kill", at_ns=1, for_ns=S // 10)
    with timeline.run_faults((kill,), stage, lambda: 1, LoadOptions(measure_documents=1)) as runner:
        wait_until(lambda: runner.begun)
        assert not runner.records
        ready_ns = time.time_ns()
        ready.set()
        wait_until(lambda: runner.records and runner.records[0].end_ns)
    ending.join(60)
    (record,) = runner.records
    assert record.end_ns is not None
    assert record.start_ns >= ready_ns
    assert record.end_ns - record.start_ns >= kill.for_ns
    assert record.effect.startswith("node 1: ready ")


def test_no_node_is_killed_after_the_end_of_the_load(process: NodeProcess) -> None:
    stage, pid = make_stage([process]), process.jvm_pid
    stage.load_ended.set()
    assert timeline.begin_fault(make_fault("kill"), stage).end() == "node 1: skipped: the load had ended"
    assert process.jvm_pid == pid
    assert not stage.nodes[0].is_down


def test_kill_that_fails_on_one_node_is_undone_on_the_other(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = make_stage(pair)

    def fail() -> None:
        raise RunFailed("it is still there")

    monkeypatch.setattr(pair[1], "kill", fail)
    with pytest.raises(RunFailed, match="it is still there"):
        timeline.begin_fault(make_fault("kill"), stage)
    assert not stage.nodes[0].is_down
    assert pair[0].popen.poll() is None
    monkeypatch.undo()
    # Another kill restarts the second one too.
    timeline.begin_fault(make_fault("kill"), stage).end()
    assert [node.is_down for node in stage.nodes] == [False, False]


def test_killed_nodes_restart_in_parallel(pair: Pair) -> None:
    both = threading.Barrier(2)

    def restart(own_restart: Callable[[float], None], timeout_s: float) -> None:
        own_restart(timeout_s)
        both.wait(20)  # as a node of a cluster, which is ready when it has found the others

    for process in pair:
        process.restart = functools.partial(restart, process.restart)  # type: ignore[method-assign]
    effect = timeline.begin_fault(make_fault("kill"), make_stage(pair)).end()
    assert effect.count("after its restart") == 2


def test_effect_that_could_not_begin_does_not_begin_after_a_restart(process: NodeProcess) -> None:
    (node,) = make_stage([process]).nodes

    def fail() -> None:
        raise RunFailed("no")

    with pytest.raises(RunFailed, match="no"):
        node.hold("pause", fail, fail)
    timeline.begin_fault(make_fault("kill"), Stage(nodes=(node,))).end()
    assert not node.is_down


def test_node_that_is_killed_during_a_collection_is_skipped(process: NodeProcess) -> None:
    def jcmd(pid: int, command: Sequence[str]) -> str:
        if command[0] == "GC.run":
            timeline.begin_fault(make_fault("kill"), stage)
            raise RunFailed(f"pid {pid} has exited")
        return "GC invocations=7\n"

    stage = make_stage([process], jcmd)
    assert timeline.begin_fault(GC, stage).effect == "node 1: skipped: it was killed meanwhile"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("-XX:+UseG1GC", r"gc: node 1 accepted GC\.run, but did not collect"),
        ("-XX:CICompilerCount=2 -XX:+DisableExplicitGC -XX:+UseG1GC", r"gc: node 1 has -XX:.DisableExplicitGC"),
    ],
)
def test_gc_without_a_collection_fails_the_run(process: NodeProcess, flags: str, message: str) -> None:
    stage = make_stage([process], lambda _pid, _command: f"1:\n{flags}\nGC invocations=7\n")
    with pytest.raises(RunFailed, match=message):
        timeline.begin_fault(GC, stage)


def test_simultaneous_heap_dumps_use_two_files_and_leave_none(tmp_path: Path, process: NodeProcess) -> None:
    inner: list[str] = []

    def jcmd(_pid: int, command: Sequence[str]) -> str:
        # A JVM takes a quoted path as one argument, even if it contains "=".
        path = Path(command[1].removeprefix('"').removesuffix('"'))
        if path.exists():
            return f"Unable to create {path}: File exists"
        path.write_bytes(bytes(2_000_000 if inner else 1_000_000))
        if not inner:
            inner.append("")
            inner.append(timeline.begin_fault(HEAP_DUMP, stage).effect)
        return "Heap dump file created"

    stage = make_stage([process], jcmd)
    stage.nodes[0].home = tmp_path
    assert timeline.begin_fault(HEAP_DUMP, stage).effect.startswith("node 1: 1 MB within ")
    assert inner[1].startswith("node 1: 2 MB within ")
    assert not list(tmp_path.iterdir())


def read_limit(process: NodeProcess) -> tuple[int, int]:
    return resource.prlimit(process.jvm_pid, resource.RLIMIT_NOFILE)


def test_descriptor_limit_that_was_not_set_is_restored(process: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, before, read = make_stage([process]), read_limit(process), processes._read_descriptor_limit
    limits = iter([read(process.jvm_pid), "99", "99"])
    monkeypatch.setattr(processes, "_read_descriptor_limit", lambda pid: next(limits, "") or read(pid))
    with pytest.raises(RunFailed, match=r"the limit of process \d+ was set to \d+, but is 99"):
        timeline.begin_fault(make_fault("file-descriptors"), stage)
    assert read_limit(process) == before
    active = timeline.begin_fault(make_fault("file-descriptors"), stage)
    assert read_limit(process) != before
    active.end()
    assert read_limit(process) == before


def test_restarted_process_without_the_limit_keeps_its_own(
    process: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage([process])
    few = timeline.begin_fault(make_fault("file-descriptors"), stage)
    kill = timeline.begin_fault(make_fault("kill"), stage)

    def fail(_pid: int) -> set[int]:
        raise RunFailed("permission denied")

    monkeypatch.setattr(processes, "_list_descriptors", fail)
    with pytest.raises(RunFailed, match="permission denied"):
        kill.end()
    monkeypatch.undo()
    few.end()
    assert read_limit(process) == resource.getrlimit(resource.RLIMIT_NOFILE)


def test_numbers_of_closed_descriptors_count_as_free(process: NodeProcess) -> None:
    program = """
import os, sys
files = [os.dup(0) for _ in range(50)]
[os.close(file) for file in files[10:40]]
print("ready", flush=True)
sys.stdin.readline()
count = 0
try:
    while count < 50:
        os.dup(0)
        count += 1
except OSError:
    pass
print(count, flush=True)
"""
    process.kill()
    process.popen = subprocess.Popen(
        (sys.executable, "-I", "-S", "-c", program), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.popen.stdout is not None
    assert process.popen.stdout.readline() == b"ready\n"
    open_count = len(list(Path(f"/proc/{process.jvm_pid}/fd").iterdir()))
    active = timeline.begin_fault(make_fault("file-descriptors"), make_stage([process]))
    assert active.effect == f"node 1: 4 free next to {open_count} open descriptors"
    assert process.popen.communicate(b"go\n")[0] == b"4\n"


# State of a process under each fault: paused, few descriptors. A killed one has no state until it is restarted.
PROCESS_STATES = {"pause": (True, False), "file-descriptors": (False, True), "kill": None}


def test_every_pair_of_process_faults_nests_and_crosses(process: NodeProcess) -> None:
    stage = make_stage([process])

    def read_process_state() -> tuple[bool, bool] | None:
        assert stage.nodes[0].is_down == (process.popen.poll() is not None)
        if stage.nodes[0].is_down:
            return None
        return process.is_paused(), resource.prlimit(process.jvm_pid, resource.RLIMIT_NOFILE)[0] < 100

    assert read_process_state() == (False, False)
    for outer, inner, earlier_ends_first in itertools.product(PROCESS_STATES, PROCESS_STATES, (False, True)):
        active = [(kind, timeline.begin_fault(make_fault(kind), stage)) for kind in (outer, inner)]
        both = None if "kill" in (outer, inner) else ("pause" in (outer, inner), "file-descriptors" in (outer, inner))
        assert read_process_state() == both, (outer, inner)
        active.pop(0 if earlier_ends_first else 1)[1].end()
        assert read_process_state() == PROCESS_STATES[active[0][0]], (outer, inner)
        active.pop()[1].end()
        assert read_process_state() == (False, False), (outer, inner)
