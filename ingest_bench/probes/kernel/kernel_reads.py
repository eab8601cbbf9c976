"""Probe `kernel-reads`: room and bytes of every TCP read of the server's listening ports, seen in the kernel.

It needs nothing of the JVM: native epoll, asynchronous channels and a killed server are all seen. It needs root.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.inputs import record_files, records
from ingest_bench.jvm import listening
from ingest_bench.model.results import Histogram, Measured, Reading, Remark
from ingest_bench.probes import recording
from ingest_bench.probes.kernel.tap import RECORD
from ingest_bench.trials import Trial, tried

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ingest_bench.jvm.logs import Log
    from ingest_bench.model.capability import Capability
    from ingest_bench.probes.context import Events, ReadContext

_READS, _SAID, _LOG = "kernel-reads.bin", "kernel-reads.json", "kernel-reads.log"
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_READY_S = 30
REMEDY = "Run as root; in a container: add the capabilities BPF, PERFMON, SYS_ADMIN and DAC_READ_SEARCH."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What the child said at its end, in the run's folder."""

    pid: int
    lost: int = 0
    records: int = 0
    clocks: tuple[tuple[int, int], ...] = ()
    """CLOCK_MONOTONIC and what CLOCK_REALTIME was ahead of it, from the beginning to the end; none: it did not end."""


class KernelReads:
    """Two small BPF programs: at the entry of the system calls that read, and at sock:sock_recv_length."""

    events: Events = {}  # noqa: RUF012 - the Protocol asks for a plain attribute
    logs: tuple[Log, ...] = ()

    @contextmanager
    def watch(self, server_pid: int, raw: Path) -> Iterator[None]:
        """The server must listen already; MissingCapability when the kernel says no."""
        ports = tuple(endpoint.port for endpoint in listening.endpoints(server_pid))
        if not ports:
            raise RunFailed(f"kernel-reads: process {server_pid} listens on no TCP port yet")
        with _tap(ports, _visible_pid(server_pid), raw / _READS, raw / _LOG) as child:
            try:
                yield
            finally:
                said = _end(child)
                (raw / _SAID).write_text(json.dumps(said | {"pid": server_pid}), encoding="utf-8")

    def read(self, context: ReadContext) -> Iterator[Measured]:
        """Reads of the load within the measurement; bytes of all of them, to compare with what was sent."""
        reads, problem = _load(context)
        if problem:
            yield Remark(probe="kernel-reads", text=problem)
        if reads is None:
            yield Reading("kernel_bytes_read", None)
            return
        data = reads[reads["returned"] > 0]
        whole = int(data["returned"].sum(dtype=np.int64))
        yield Reading("kernel_bytes_read", None if problem else whole)
        within = data[(data["end_ns"] >= context.start_ns) & (data["end_ns"] < context.end_ns)]
        yield from _readings(within)
        if not problem:
            yield from _differences(len(data), whole, context)


def capability() -> Capability:
    """Whether this probe can be used here, found by using it."""
    return tried(Trial(name="kernel-reads", attempt=_try, needs=("setpriv",)))


def _try() -> str:
    with _tap((1,), 0, Path(os.devnull), None):
        pass
    return "BPF programs on tracepoints of the kernel run"


def _visible_pid(pid: int) -> int:
    """The pid as the kernel's programs see it; 0 (any, by port alone) inside a pid namespace: numbers differ there."""
    return pid if str(Path("/proc/self/ns/pid").readlink()) == _INITIAL_PID_NAMESPACE else 0


@contextmanager
def _tap(ports: tuple[int, ...], pid: int, out: Path, log: Path | None) -> Iterator[system.Child]:
    """The child that taps the kernel during the block; MissingCapability when the kernel says no."""
    argv = system.python("ingest_bench.probes.kernel.tap", ",".join(map(str, ports)), str(pid), str(out))
    with system.Child(argv, name="kernel-reads", log=log) as child:
        try:
            child.line(_READY_S)
        except RunFailed:
            said = child.said().splitlines()[-1]
            raise MissingCapability(
                f"kernel-reads: the kernel would not let us watch reads ({said})\n{REMEDY}"
            ) from None
        yield child


def _end(child: system.Child) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(child.rest(_READY_S))
    except (RunFailed, ValueError):
        return {}
    return said


def _load(context: ReadContext) -> tuple[NDArray[np.void] | None, str]:
    """Reads of the load's connections with `end_ns` as CLOCK_REALTIME, and why they may not be all."""
    path, said_path = context.raw / _READS, context.raw / _SAID
    if not path.exists() or not said_path.exists():
        return None, "there is no file of kernel reads in this run"
    said: _Said = records.from_file(_Said, said_path)
    if not said.clocks:
        return None, f"the process that watched the kernel did not end in order: see {_LOG}"
    table = record_files.read(path, np.dtype(list(RECORD)))
    table = table[np.isin(table["peer_port"], list(context.ports))]
    pids = {int(pid) for pid in np.unique(table["pid"])}
    if len(pids) > 1:
        table = table[table["pid"] == said.pid]
    reads = np.empty(len(table), dtype=[("end_ns", "<i8"), ("returned", "<i4"), ("requested", "<u4")])
    reads["end_ns"] = table["at_ns"].astype(np.int64) + _ahead_ns(said.clocks, table["at_ns"])
    reads["returned"], reads["requested"] = table["returned"], table["requested"]
    if said.lost:
        return reads, f"{said.lost} reads came faster than they were written down, and are lost"
    return reads, ""


def _ahead_ns(clocks: tuple[tuple[int, int], ...], at_ns: NDArray[np.uint64]) -> NDArray[np.int64]:
    """What the wall clock was ahead at these moments, between two looks at it in proportion."""
    looks = np.array(clocks, dtype=np.int64)
    # From the first look on: a float has no room for the nanoseconds since 1970.
    moments = at_ns.astype(np.int64) - looks[0, 0]
    grown = np.interp(moments, looks[:, 0] - looks[0, 0], looks[:, 1] - looks[0, 1])
    ahead_ns: NDArray[np.int64] = np.rint(grown).astype(np.int64) + clocks[0][1]
    return ahead_ns


def _readings(reads: NDArray[np.void]) -> Iterator[Measured]:
    sizes, counts = np.unique(reads["returned"], return_counts=True)
    yield Histogram("kernel_read_bytes", {int(size): int(count) for size, count in zip(sizes, counts, strict=True)})
    yield Reading("kernel_reads", len(reads))
    known = reads[reads["requested"] > 0]
    requested, returned = (int(known[name].sum(dtype=np.int64)) for name in ("requested", "returned"))
    yield Reading("read_requested_bytes_mean", requested / len(known) if len(known) else None)
    yield Reading("read_waste_bytes_mean", (requested - returned) / len(known) if len(known) else None)
    yield Reading("read_fill_share", returned / requested if requested else None)


def _differences(count: int, total: int, context: ReadContext) -> Iterator[Remark]:
    """The recording's reads beside the kernel's, when it saw any: all of the load's, from start to end."""
    found = recording.load(context)
    reads = found.content.get("reads")
    if not found.is_whole or not reads or not reads["all"]["count"]:
        return
    recorded = (reads["all"]["count"], reads["all"]["total"])
    if recorded != (count, total):
        yield Remark(
            probe="kernel-reads",
            text=f"the flight recording has {recorded[0]} reads of {recorded[1]} bytes, the kernel {count} of {total}",
            invalidates=True,
        )


KERNEL_READS = KernelReads()
