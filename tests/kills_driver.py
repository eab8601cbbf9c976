"""Program that tests kill: it changes the machine, prints "running", and restores it after a line of input.

    host         settings of the machine, each increased by one, so that no other program notices
    node HOME    a node with resources of its own, and every fault of the host on it

It prints "undoing" before it restores. Errors are on its standard error.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from fault_lab import make_resource_stage

from ingest_bench import system
from ingest_bench.errors import IngestBenchError, RunFailed
from ingest_bench.faults import FAULTS
from ingest_bench.host.node_resources import create_resources
from ingest_bench.host.settings import SETTINGS, apply_settings
from ingest_bench.model.experiment import Fault, HostSettings

# A paused process writes nothing, so `pause` is last.
FAULTS_OF_HOST = (
    Fault(kind="memory", at_ns=0, headroom_bytes=1 << 20),
    Fault(kind="cpu", at_ns=0, cores=0.5),
    Fault(kind="cpu", at_ns=0, neighbours=1),
    Fault(kind="slow-disk", at_ns=0, rate_bps=80 * 10**6),
    Fault(kind="slow-fsync", at_ns=0, delay_ns=20 * 10**6),
    Fault(kind="full-disk", at_ns=0),
    Fault(kind="file-descriptors", at_ns=0),
    Fault(kind="pause", at_ns=0),
)
# Writes and syncs a log repeatedly, from its start when its disk is full.
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


def wait_for_line() -> None:
    sys.stdout.write("running\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write("undoing\n")
    sys.stdout.flush()


def change_settings() -> None:
    low, pressure, high, orphans = (
        int(number) + 1
        for key in ("tcp_mem", "tcp_max_orphans")
        for number in SETTINGS[key].path.read_text(encoding="ascii").split()
    )
    with apply_settings(HostSettings(tcp_max_orphans=orphans, tcp_mem=(low, pressure, high))):
        wait_for_line()


def run_node(home: Path) -> None:
    home.mkdir()
    with create_resources({"cpu", "memory", "disk", "throttle", "syncs"}, [home]) as (resources,):
        argv = resources.wrap((sys.executable, "-I", "-S", "-c", WRITER, str(home)))
        child = system.start(argv, stdout=subprocess.PIPE)
        assert child.stdout is not None
        try:
            if child.stdout.readline() != b"up\n":
                raise RunFailed("the writer did not start")
            stage = make_resource_stage(resources, home, child.pid)
            with ExitStack() as stack:
                for fault in FAULTS_OF_HOST:
                    active = FAULTS[fault.kind].begin(fault, stage)
                    # A short fault may fail because it had no effect.
                    stack.enter_context(suppress(RunFailed))
                    stack.callback(active.end)
                wait_for_line()
        finally:
            system.stop(child)
            child.stdout.close()


def main(arguments: list[str]) -> int:
    try:
        match arguments:
            case ["host"]:
                change_settings()
            case ["node", home]:
                run_node(Path(home))
    except IngestBenchError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
