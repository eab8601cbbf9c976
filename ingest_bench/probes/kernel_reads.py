"""Probe `kernel-reads`: buffer room and bytes of every TCP read of the server's listening ports, traced in the kernel.

Independent of the JVM: covers native epoll, asynchronous channels and killed servers. Requires root.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed
from ingest_bench.host.capability_checks import run_check
from ingest_bench.inputs import files, records
from ingest_bench.jvm import attach
from ingest_bench.model.experiment import Capability
from ingest_bench.model.results import Histogram, Note, ProbeOutput, Reading
from ingest_bench.probes import recording
from ingest_bench.probes.context import Probe, ReadContext
from ingest_bench.probes.kernel_tap import RECORD

_READS, _REPORT, _LOG = "kernel-reads.bin", "kernel-reads.json", "kernel-reads.log"
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_READY_S = 30
REMEDY = "Run as root; in a container: add the capabilities BPF, PERFMON, SYS_ADMIN and DAC_READ_SEARCH."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """The report of the child process, in the run's folder."""

    pid: int
    lost: int = 0
    clocks: tuple[tuple[int, int], ...] = ()
    """CLOCK_MONOTONIC and the lead of CLOCK_REALTIME over it, from start to end; empty if the child did not finish."""


@contextmanager
def _watch(server_pid: int, raw: Path) -> Iterator[None]:
    """Trace reads during the block. The server must be listening; MissingCapability if the kernel refuses.

    By two small BPF programs: at the entry of the system calls that read, and at sock:sock_recv_length.
    """
    ports = tuple(endpoint.port for endpoint in attach.find_endpoints(server_pid))
    if not ports:
        raise RunFailed(f"kernel-reads: process {server_pid} listens on no TCP port yet")
    # The kernel's programs see other pids inside a pid namespace: match by port alone there.
    is_initial_namespace = str(Path("/proc/self/ns/pid").readlink()) == _INITIAL_PID_NAMESPACE
    with _tap(ports, server_pid if is_initial_namespace else 0, raw / _READS, raw / _LOG) as child:
        try:
            yield
        finally:
            try:
                report: dict[str, Any] = json.loads(child.read_until_exit(_READY_S))
            except (RunFailed, ValueError):
                report = {}
            (raw / _REPORT).write_text(json.dumps(report | {"pid": server_pid}), encoding="utf-8")


def _read(context: ReadContext) -> Iterator[ProbeOutput]:
    """Yield the load's reads within the measurement, and bytes of all reads to compare with the bytes sent."""
    reads, problem = _load_reads(context)
    if problem:
        yield Note(source="kernel-reads", text=problem)
    if reads is None:
        yield Reading("kernel_bytes_read", None)
        return
    data = reads[reads["returned"] > 0]
    total = int(data["returned"].sum(dtype=np.int64))
    yield Reading("kernel_bytes_read", None if problem else total)
    within = data[(data["end_ns"] >= context.start_ns) & (data["end_ns"] < context.end_ns)]
    yield from _readings(within)
    if not problem:
        yield from _compare_with_recording(len(data), total, context)


def check_capability() -> Capability:
    """Check if this probe works here, by using it."""
    return run_check("kernel-reads", _try, programs=("setpriv",))


def _try() -> str:
    with _tap((1,), 0, Path(os.devnull), None):
        pass
    return "BPF programs on tracepoints of the kernel run"


@contextmanager
def _tap(ports: tuple[int, ...], pid: int, file: Path, log: Path | None) -> Iterator[system.Child]:
    """Run the child process that traces reads during the block; MissingCapability if the kernel refuses."""
    argv = system.build_module_argv("ingest_bench.probes.kernel_tap", ",".join(map(str, ports)), str(pid), str(file))
    with system.Child(argv, name="kernel-reads", log=log) as child:
        try:
            child.read_line(_READY_S)
        except RunFailed:
            reason = child.read_stderr_tail().splitlines()[-1]
            raise MissingCapability(f"kernel-reads: the kernel refused to trace reads ({reason})\n{REMEDY}") from None
        yield child


def _load_reads(context: ReadContext) -> tuple[NDArray[np.void] | None, str]:
    """Return reads of the load's connections with `end_ns` on CLOCK_REALTIME, and the reason if some are missing."""
    path, report_path = context.raw / _READS, context.raw / _REPORT
    if not path.exists() or not report_path.exists():
        return None, "there is no file of kernel reads in this run"
    report: _Report = records.from_file(_Report, report_path)
    if not report.clocks:
        return None, f"the process that traced the kernel did not finish: see {_LOG}"
    table = files.read_records(path, np.dtype(list(RECORD)))
    table = table[np.isin(table["peer_port"], list(context.ports))]
    if len(np.unique(table["pid"])) > 1:
        table = table[table["pid"] == report.pid]
    reads = np.empty(len(table), dtype=[("end_ns", "<i8"), ("returned", "<i4"), ("requested", "<u4")])
    reads["end_ns"] = table["at_ns"].astype(np.int64) + _realtime_lead_ns(report.clocks, table["at_ns"])
    reads["returned"], reads["requested"] = table["returned"], table["requested"]
    return reads, f"{report.lost} reads are lost: they came faster than they were written" if report.lost else ""


def _realtime_lead_ns(clocks: tuple[tuple[int, int], ...], at_ns: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the lead of CLOCK_REALTIME over CLOCK_MONOTONIC at these moments, interpolated between samples."""
    samples = np.array(clocks, dtype=np.int64)
    # Relative to the first sample: a float cannot hold the nanoseconds since 1970 exactly.
    moments = at_ns.astype(np.int64) - samples[0, 0]
    drift = np.interp(moments, samples[:, 0] - samples[0, 0], samples[:, 1] - samples[0, 1])
    lead_ns: NDArray[np.int64] = np.rint(drift).astype(np.int64) + clocks[0][1]
    return lead_ns


def _readings(reads: NDArray[np.void]) -> Iterator[ProbeOutput]:
    sizes, counts = np.unique(reads["returned"], return_counts=True)
    yield Histogram("kernel_read_bytes", {int(size): int(count) for size, count in zip(sizes, counts, strict=True)})
    yield Reading("kernel_reads", len(reads))
    with_room = reads[reads["requested"] > 0]
    requested, returned = (int(with_room[name].sum(dtype=np.int64)) for name in ("requested", "returned"))
    yield Reading("read_requested_bytes_mean", requested / len(with_room) if len(with_room) else None)
    yield Reading("read_waste_bytes_mean", (requested - returned) / len(with_room) if len(with_room) else None)
    yield Reading("read_fill_share", returned / requested if requested else None)


def _compare_with_recording(count: int, total: int, context: ReadContext) -> Iterator[Note]:
    """Yield a note if the recording has reads of the load, but not the same ones as the kernel."""
    jfr = recording.load_recording(context)
    reads = jfr.content.get("reads")
    if not jfr.is_complete or not reads or not reads["all"]["count"]:
        return
    recorded = (reads["all"]["count"], reads["all"]["total"])
    if recorded != (count, total):
        yield Note(
            source="kernel-reads",
            text=f"the flight recording has {recorded[0]} reads of {recorded[1]} bytes, the kernel {count} of {total}",
            invalidates=True,
        )


KERNEL_READS = Probe(watch=_watch, read=_read)
