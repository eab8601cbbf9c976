"""Builders of faults, cells and stages, and a node whose process is `cat`."""

from __future__ import annotations

import dataclasses
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ingest_bench.errors import MissingCapability
from ingest_bench.faults import checks
from ingest_bench.faults.kind import Node, Stage
from ingest_bench.host.node_resources import NodeResources
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import LinkName, Profile
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.network.act.link import Link, Links, open_link

S = 10**9
TIMEOUT_S = 60
CELL = Cell(name="c", levels={}, network=None, target=TargetOptions(), load=LoadOptions(measure_ns=20 * S))


def make_fault(kind: Any, **keys: Any) -> Fault:
    """Return a fault that begins at once and has a duration."""
    return Fault(kind=kind, at_ns=0, for_ns=1, **keys)


def make_cell(*faults: Fault, target: TargetOptions | None = None) -> Cell:
    """Return a cell of 20 s with these faults."""
    return dataclasses.replace(CELL, faults=faults, target=target or CELL.target)


def start_now() -> Callable[[], int]:
    """Return a function that returns the present moment as the start of the measurement."""
    start_ns = time.monotonic_ns()
    return lambda: start_ns


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def skip_without(require: Callable[[], object]) -> None:
    """Skip the test if this machine lacks what a function requires."""
    try:
        require()
    except MissingCapability as error:
        pytest.skip(f"needs root: {error}")


def list_loop_devices(folder: Path) -> list[str]:
    """Return the loop devices on files in a folder. The kernel detaches one some time after the last write to it."""
    lines = subprocess.run(("losetup", "-a"), capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if str(folder) in line]


class NodeProcess:
    """Process of a node: `cat`, restarted after a kill."""

    def __init__(self, argv: Sequence[str] = ("cat",)) -> None:
        self._argv = argv
        self.popen = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        """Return when it has opened all its files, so that it answers."""
        popen = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert popen.stdin is not None
        assert popen.stdout is not None
        popen.stdin.write(b"ready\n")
        popen.stdin.flush()
        assert popen.stdout.readline() == b"ready\n"
        return popen

    @property
    def jvm_pid(self) -> int:
        pid: int = self.popen.pid
        return pid

    @property
    def listen(self) -> Endpoint:
        return Endpoint("127.0.0.1", 1)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.communicate()

    def restart(self, timeout_s: float) -> None:
        assert timeout_s == TIMEOUT_S
        self.popen = self._start()

    def is_paused(self) -> bool:
        return Path(f"/proc/{self.jvm_pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@contextmanager
def start_processes(count: int) -> Iterator[tuple[NodeProcess, ...]]:
    """Start node processes for the block."""
    processes = tuple(NodeProcess() for _ in range(count))
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()


def make_stage(processes: Sequence[Any], jcmd: Callable[[int, Sequence[str]], str] = lambda *_: "") -> Stage:
    """Return a stage with a node for each process."""
    return Stage(
        nodes=tuple(
            Node(number=number, process=process, home=Path("/"), jcmd=jcmd, boot_limit_s=TIMEOUT_S)
            for number, process in enumerate(processes, 1)
        )
    )


def make_links_stage(*links: Link) -> Stage:
    """Return a stage with a link from the client to each node."""
    return Stage(links=Links(by_name={LinkName((number,)): link for number, link in enumerate(links, 1)}))


@contextmanager
def open_link_for(network: Profile, *faults: Fault) -> Iterator[Link]:
    """Open a link of a profile that is made for these faults too."""
    cell = dataclasses.replace(make_cell(*faults), network=network)
    checks.check_faults(cell)
    with open_link(network, later_profiles=checks.list_link_profiles(cell)[LinkName((1,))]) as link:
        yield link


def make_resource_stage(resources: NodeResources | None = None, home: Path = Path("/"), pid: int = 0) -> Stage:
    """Return a stage with one node that has these resources."""
    stage = make_stage([SimpleNamespace(jvm_pid=pid)])
    stage.nodes[0].resources, stage.nodes[0].home = resources or NodeResources(), home
    return stage


def build_query(name: str, record_type: int) -> bytes:
    """Return a DNS query."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 77, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", record_type, 1)
