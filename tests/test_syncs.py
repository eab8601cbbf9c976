"""Syncs of files that wait for us: how long, whose, and when nobody is there any more."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ordinary_user
import pytest

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.faults import checks, timeline
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.host import supervised
from ingest_bench.host import syncs as host_syncs
from ingest_bench.host.node_resources import NodeResources
from ingest_bench.host.syncs import Syncs, syncs
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.target import TargetOptions

S = 10**9
# By each line on its input it syncs a file, in so many threads, and says how long the longest of that took, in ms.
SYNCER = """
import mmap, os, sys, threading, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.truncate(file, 4096)
memory = mmap.mmap(file, 4096)
calls = {"fsync": lambda: os.fsync(file), "fdatasync": lambda: os.fdatasync(file), "msync": memory.flush,
         "write": lambda: os.write(file, b"x")}
def timed(call, took):
    began = time.monotonic()
    call()
    took.append(time.monotonic() - began)
for line in sys.stdin:
    name, count = line.split()
    took = []
    threads = [threading.Thread(target=timed, args=(calls[name], took)) for _ in range(int(count))]
    [one.start() for one in threads]
    [one.join() for one in threads]
    print(max(took) * 1000, flush=True)
"""


def slow(delay_ms: int, at_ns: int = 0) -> Fault:
    return Fault(kind="slow-fsync", at_ns=at_ns, for_ns=S, delay_ns=delay_ms * 10**6)


def test_a_slow_fsync_says_how_slow() -> None:
    cell = Cell(name="c", levels={}, network=None, target=TargetOptions(), load=LoadOptions(measure_ns=9 * S))
    for delay_ns in (None, 0):
        fault = Fault(kind="slow-fsync", at_ns=0, for_ns=S, delay_ns=delay_ns)
        with pytest.raises(SpecError, match="how long does each wait"):
            checks.check(Cell(name="c", levels={}, network=None, target=cell.target, load=cell.load, faults=(fault,)))


@pytest.mark.parametrize("machine", supervised.MACHINES)
def test_the_filter_lets_everything_through_but_syncs(machine: str) -> None:
    arch, _, calls = supervised.MACHINES[machine]
    code = supervised.program(machine)
    lines = [
        (int.from_bytes(code[at : at + 2], "little"), code[at + 2], code[at + 3], code[at + 4 : at + 8])
        for at in range(0, len(code), 8)
    ]

    def says(number: int, of: int) -> int:
        place, value = 0, 0
        while True:
            kind, yes, no, constant = lines[place]
            given = int.from_bytes(constant, "little")
            if kind == 0x06:
                return given
            if kind == 0x20:
                value = {0: number, 4: of}[given]
                place += 1
            else:
                place += 1 + (yes if value == given else no)

    asked = {number for number in range(500) if says(number, arch) == 0x7FC00000}
    assert asked == set(calls.values())
    assert {says(number, 0x40000003) for number in range(500)} == {0x7FFF0000}


class Syncer:
    """A process that syncs when it is told to."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen

    def tell(self, name: str, threads: int = 1) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{name} {threads}\n")
        self.popen.stdin.flush()

    def took_ms(self) -> float:
        assert self.popen.stdout is not None
        return float(self.popen.stdout.readline())

    def ask(self, name: str, threads: int = 1) -> float:
        self.tell(name, threads)
        return self.took_ms()


@contextmanager
def syncing(asked: Syncs, folder: Path) -> Iterator[Syncer]:
    argv = asked.command((sys.executable, "-S", "-c", SYNCER, str(folder / "file")))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as popen:
        try:
            yield Syncer(popen)
        finally:
            popen.kill()


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Syncs]:
    if not (found := host_syncs.capability()).present:
        pytest.skip(found.detail)
    # A name longer than a socket may have.
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    with syncs(folder) as made:
        yield made
    assert not [*folder.iterdir()]


def stage_of(asked: Syncs) -> Stage:
    process: Any = SimpleNamespace(jvm_pid=0)

    def jcmd(_pid: int, _command: object) -> str:
        return ""

    return Stage(
        nodes=(
            Node(
                number=1,
                process=process,
                home=Path("/"),
                jcmd=jcmd,
                boot_limit_s=1,
                resources=NodeResources(syncs=asked),
            ),
        )
    )


@pytest.mark.processes
def test_each_sync_waits_as_long_as_the_longest_fault_says(asked: Syncs, tmp_path: Path) -> None:
    stage = stage_of(asked)
    with syncing(asked, tmp_path) as syncer:
        assert syncer.ask("fsync") < 400
        short, long = timeline.begin(slow(200), stage), timeline.begin(slow(500), stage)
        for name in ("fsync", "fdatasync", "msync"):
            # Beside what the disk takes; four at once wait at once.
            assert 500 <= syncer.ask(name, 4) < 1950
        assert syncer.ask("write") < 200
        assert long.end().startswith("node 1: 12 syncs waited, 5")
        assert syncer.ask("fsync") >= 200
        assert short.end().startswith("node 1: 13 syncs waited, ")
        assert syncer.ask("fsync") < 200
        unneeded = timeline.begin(slow(100), stage)
        with pytest.raises(RunFailed, match="synced no file"):
            unneeded.end()


@pytest.mark.processes
def test_a_sync_that_waits_goes_on_when_the_fault_ends_and_dies_with_its_process(asked: Syncs, tmp_path: Path) -> None:
    stage = stage_of(asked)
    with syncing(asked, tmp_path) as syncer, syncing(asked, tmp_path) as killed:
        assert syncer.ask("fsync") < 400
        fault = timeline.begin(slow(3_600_000), stage)
        syncer.tell("fsync")
        killed.tell("fsync", 2)
        time.sleep(0.5)
        killed.popen.kill()
        assert killed.popen.wait(10) < 0
        again = fault.end()
        assert 300 < syncer.took_ms() < 10_000
        # Those of the process that was killed had to wait too.
        assert "3 syncs waited" in again
        # One that is started again is asked as well.
        with syncing(asked, tmp_path) as other:
            fault = timeline.begin(slow(300), stage)
            assert other.ask("fsync") >= 300
            fault.end()


@pytest.mark.processes
def test_a_sync_that_waits_goes_on_when_the_longer_of_two_faults_ends(asked: Syncs, tmp_path: Path) -> None:
    stage = stage_of(asked)
    with syncing(asked, tmp_path) as syncer:
        short, long = timeline.begin(slow(300), stage), timeline.begin(slow(20_000), stage)
        syncer.tell("fsync")
        while not asked.held()[0]:
            time.sleep(0.01)
        long.end()
        assert 300 <= syncer.took_ms() < 10_000
        assert short.end().startswith("node 1: 1 syncs waited, ")


@pytest.mark.processes
def test_one_that_dies_on_its_way_is_none_and_a_supervisor_that_breaks_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="nobody was there to be asked: OSError"), syncs(tmp_path) as made:  # noqa: PT012
        with socket.socket(socket.AF_UNIX) as dying:
            dying.connect(str(tmp_path / ".syncs"))
        with syncing(made, tmp_path) as syncer:
            assert syncer.ask("fsync") < 400
        with socket.socket(socket.AF_UNIX) as liar, (tmp_path / "file").open() as no_listener:
            liar.connect(str(tmp_path / ".syncs"))
            socket.send_fds(liar, [b"!"], [no_listener.fileno()])
            liar.recv(1)
            until = time.monotonic() + 10
            while made._error is None and time.monotonic() < until:
                time.sleep(0.01)


@pytest.mark.processes
def test_an_ordinary_user_may_do_it(tmp_path: Path) -> None:
    del tmp_path
    ordinary_user.repeat(__file__, promised="", limit_s=120, names="not ordinary_user")


def test_nobody_is_asked_about_a_node_without_such_a_fault() -> None:
    assert NodeResources().command(("java", "-version")) == ("java", "-version")
    assert Path(supervised.__file__).name in " ".join(NodeResources(syncs=Syncs(Path("/x"))).command(("java",)))
