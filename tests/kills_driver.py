"""Run by tests that kill it: something is done to the machine, "running" is said, and after a line it is taken back.

    host         settings of the machine, each one more than before: nobody else notices
    node HOME    a process with a share of the machine, and every fault of the host on it

It says "undoing" before the way back begins. Its standard error has what went wrong.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from ingest_bench import system
from ingest_bench.errors import IngestBenchError, RunFailed
from ingest_bench.faults import FAULTS
from ingest_bench.faults.stage import Node, Stage
from ingest_bench.host import settings as settings_module
from ingest_bench.host.node_resources import shares
from ingest_bench.host.settings import SETTINGS
from ingest_bench.model.experiment import Fault
from ingest_bench.model.host_settings import HostSettings
from ingest_bench.model.target import Endpoint

# Those that have to be quick come last: what is paused writes nothing.
LASTING = (
    Fault(kind="memory", at_ns=0, room_bytes=1 << 20),
    Fault(kind="cpu", at_ns=0, cores=0.5),
    Fault(kind="cpu", at_ns=0, neighbours=1),
    Fault(kind="slow-disk", at_ns=0, rate_bps=80 * 10**6),
    Fault(kind="slow-fsync", at_ns=0, delay_ns=20 * 10**6),
    Fault(kind="full-disk", at_ns=0),
    Fault(kind="file-descriptors", at_ns=0),
    Fault(kind="pause", at_ns=0),
)
# A server with a log; it writes it from the start when its disk is full.
WRITER = """
import os, sys
print("up", flush=True)
log = os.open(sys.argv[1] + "/log", os.O_CREAT | os.O_WRONLY)
number = 0
while True:
    try:
        os.pwrite(log, b"x" * 65536, number % 64 << 16)
        os.fsync(log)
        number += 1
    except OSError:
        number = 0
"""


@dataclass
class Writer:
    """As much of a server's process as these faults ask for."""

    jvm_pid: int
    listen: Endpoint

    def kill(self) -> None:
        raise NotImplementedError

    def start_again(self, timeout_s: float) -> None:
        raise NotImplementedError


def stand() -> None:
    """What was done stands, until somebody says so."""
    sys.stdout.write("running\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write("undoing\n")
    sys.stdout.flush()


def settings() -> None:
    low, middle, high, orphans = (
        int(number) + 1
        for key in ("tcp_mem", "tcp_max_orphans")
        for number in SETTINGS[key].path.read_text(encoding="ascii").split()
    )
    with settings_module.applied(HostSettings(tcp_max_orphans=orphans, tcp_mem=(low, middle, high))):
        stand()


def node(home: Path) -> None:
    home.mkdir()
    with shares({"cpu", "memory", "disk", "throttle", "syncs"}, [home]) as (share,):
        argv = share.command((*system.script("-c", WRITER), str(home)))
        child = system.start(argv, stdout=subprocess.PIPE)
        assert child.stdout is not None
        try:
            if child.stdout.readline() != b"up\n":
                raise RunFailed("the writer did not start")
            writer = Writer(child.pid, Endpoint("here", 1))
            stage = Stage(nodes=(Node(1, writer, home, lambda _pid, _words: "", 1.0, share),))
            with ExitStack() as stack:
                for fault in LASTING:
                    begun = FAULTS[fault.kind].begin(fault, stage)
                    # So short a one may have seen nothing of what it did, and says so.
                    stack.enter_context(suppress(RunFailed))
                    stack.callback(begun.end)
                stand()
        finally:
            system.stop(child)
            child.stdout.close()


def main(words: list[str]) -> int:
    try:
        match words:
            case ["host"]:
                settings()
            case ["node", home]:
                node(Path(home))
    except IngestBenchError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
