"""Fault `slow-fsync`: which calls are delayed, how long, and how the supervisor may fail."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_lab import make_fault, make_resource_stage, skip_without, wait_until

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.faults import timeline
from ingest_bench.faults.kind import Stage
from ingest_bench.host import supervised, sync_supervisor
from ingest_bench.host.node_resources import NodeResources
from ingest_bench.host.sync_supervisor import SyncSupervisor
from ingest_bench.model.experiment import Fault

# For each line of its input it makes a call in several threads, and prints the longest duration in ms.
SYNCER = """
import ctypes, mmap, os, sys, threading, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.truncate(file, 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(mmap.mmap(file, 4096)))
# mmap.flush would hold Python's lock while it waits, so that several calls wait one after another. 4: MS_SYNC.
msync = lambda: ctypes.CDLL(None).msync(ctypes.c_void_p(address), ctypes.c_size_t(4096), 4)
calls = {"fsync": lambda: os.fsync(file), "fdatasync": lambda: os.fdatasync(file), "msync": msync,
         "write": lambda: os.write(file, b"x")}
def measure(call, durations):
    start = time.monotonic()
    call()
    durations.append(time.monotonic() - start)
for line in sys.stdin:
    name, count = line.split()
    durations = []
    threads = [threading.Thread(target=measure, args=(calls[name], durations)) for _ in range(int(count))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(max(durations) * 1000, flush=True)
"""


def slow(delay_ms: int) -> Fault:
    return make_fault("slow-fsync", delay_ns=delay_ms * 10**6)


@pytest.mark.parametrize("machine", supervised.MACHINES)
def test_filter_traps_only_sync_calls_of_its_architecture(machine: str) -> None:
    arch, _, calls = supervised.MACHINES[machine]
    code = supervised.build_filter(machine)
    lines = [
        (int.from_bytes(code[at : at + 2], "little"), code[at + 2], code[at + 3], code[at + 4 : at + 8])
        for at in range(0, len(code), 8)
    ]

    def run_filter(number: int, call_arch: int) -> int:
        line, value = 0, 0
        while True:
            operation, if_true, if_false, constant_bytes = lines[line]
            constant = int.from_bytes(constant_bytes, "little")
            if operation == 0x06:
                return constant
            if operation == 0x20:
                value = {0: number, 4: call_arch}[constant]
                line += 1
            else:
                line += 1 + (if_true if value == constant else if_false)

    trapped = {number for number in range(500) if run_filter(number, arch) == 0x7FC00000}
    assert trapped == set(calls.values())
    assert {run_filter(number, 0x40000003) for number in range(500)} == {0x7FFF0000}


def start_syncer(supervisor: SyncSupervisor, folder: Path) -> system.Child:
    """Start a supervised process that makes calls on request."""
    return system.Child(supervisor.wrap((sys.executable, "-S", "-c", SYNCER, str(folder / "file"))), name="syncer")


def measure_ms(syncer: system.Child, name: str, threads: int = 1) -> float:
    return float(syncer.request(f"{name} {threads}"))


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[SyncSupervisor]:
    skip_without(sync_supervisor.require_sync_supervisor)
    # Longer than a socket's name may be.
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    with SyncSupervisor(folder).serve() as running:
        yield running
    assert not [*folder.iterdir()]


def stage_of(supervisor: SyncSupervisor) -> Stage:
    return make_resource_stage(NodeResources(sync_supervisor=supervisor))


@pytest.mark.processes
def test_each_sync_call_waits_for_the_longest_delay(supervisor: SyncSupervisor, tmp_path: Path) -> None:
    stage = stage_of(supervisor)
    with start_syncer(supervisor, tmp_path) as syncer:
        assert measure_ms(syncer, "fsync") < 400
        short, long = timeline.begin_fault(slow(200), stage), timeline.begin_fault(slow(500), stage)
        for name in ("fsync", "fdatasync", "msync"):
            # The disk takes its time as well; four calls wait at the same time.
            assert 500 <= measure_ms(syncer, name, 4) < 1950
        assert measure_ms(syncer, "write") < 200
        assert long.end().startswith("node 1: 12 sync calls delayed, 5")
        assert measure_ms(syncer, "fsync") >= 200
        assert short.end().startswith("node 1: 13 sync calls delayed, ")
        assert measure_ms(syncer, "fsync") < 200
        without_effect = timeline.begin_fault(slow(100), stage)
        with pytest.raises(RunFailed, match="made no sync call during the fault"):
            without_effect.end()


@pytest.mark.processes
def test_waiting_call_continues_when_the_fault_ends_and_dies_with_its_process(
    supervisor: SyncSupervisor, tmp_path: Path
) -> None:
    stage = stage_of(supervisor)
    with start_syncer(supervisor, tmp_path) as syncer, start_syncer(supervisor, tmp_path) as killed:
        assert measure_ms(syncer, "fsync") < 400
        fault = timeline.begin_fault(slow(3_600_000), stage)
        syncer.write_line("fsync 1")
        killed.write_line("fsync 2")
        time.sleep(0.5)
        killed.kill()
        assert killed.describe_exit() == "was killed by signal 9"
        effect = fault.end()
        assert 300 < float(syncer.read_line()) < 10_000
        # Including those of the killed process.
        assert "3 sync calls delayed" in effect
        # A restarted process is supervised too.
        with start_syncer(supervisor, tmp_path) as restarted:
            fault = timeline.begin_fault(slow(300), stage)
            assert measure_ms(restarted, "fsync") >= 300
            fault.end()


@pytest.mark.processes
def test_waiting_call_continues_when_the_longer_of_two_faults_ends(supervisor: SyncSupervisor, tmp_path: Path) -> None:
    stage = stage_of(supervisor)
    with start_syncer(supervisor, tmp_path) as syncer:
        short, long = timeline.begin_fault(slow(300), stage), timeline.begin_fault(slow(20_000), stage)
        syncer.write_line("fsync 1")
        wait_until(lambda: supervisor.delayed_calls()[0])
        long.end()
        assert 300 <= float(syncer.read_line()) < 10_000
        assert short.end().startswith("node 1: 1 sync calls delayed, ")


@pytest.mark.processes
def test_process_that_dies_early_is_ignored_and_a_failed_supervisor_fails_the_run(tmp_path: Path) -> None:
    with (  # noqa: PT012
        pytest.raises(RunFailed, match="the supervisor of sync calls failed: OSError"),
        SyncSupervisor(tmp_path).serve() as supervisor,
    ):
        with socket.socket(socket.AF_UNIX) as dying:
            dying.connect(str(tmp_path / ".syncs"))
        with start_syncer(supervisor, tmp_path) as syncer:
            assert measure_ms(syncer, "fsync") < 400
        with socket.socket(socket.AF_UNIX) as liar, (tmp_path / "file").open() as no_listener:
            liar.connect(str(tmp_path / ".syncs"))
            socket.send_fds(liar, [b"!"], [no_listener.fileno()])
            liar.recv(1)
            wait_until(lambda: supervisor._error)


def test_node_without_the_fault_is_not_supervised() -> None:
    assert NodeResources().wrap(("java", "-version")) == ("java", "-version")
    supervised_argv = NodeResources(sync_supervisor=SyncSupervisor(Path("/x"))).wrap(("java",))
    assert Path(supervised.__file__).name in " ".join(supervised_argv)
