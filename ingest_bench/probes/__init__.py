"""Instruments of a run. Each watches into `raw/` and later reads its files.

| probe | measures | source |
|---|---|---|
| reads | size of every socket read of the load's connections | flight recorder |
| heap | bytes allocated on the heap, in all and by role of thread; watches every run | flight recorder and GC log |
| gc | pauses, full collections, heap, failures, direct buffers | flight recorder and GC log |
| allocations | allocations outside TLABs, and new TLABs, by layer | flight recorder; costs 6 to 20% of CPU |
| large-allocations | objects of 1 MiB and more: site, number, humongous or not | the same |
| direct-memory | direct buffers: each that the server reports, and how the JVM made room for them | flight recorder |
| host | CPU, context switches, faults, run queue, waits of threads, pressure, huge pages | /proc, by a child process |
| stalls | activity and waits of threads, safepoints, slow files: causes of stalls | flight recorder |
| kernel-reads | buffer room and bytes of every read, with any transport | BPF, by a child process; needs root |

A probe is one `Probe` (context.py) and one line in `PROBES`. An observer (observer.py) watches with the probes of a run
and reads their files. An unavailable number is a Reading of None with a Note that says why, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ingest_bench.errors import MissingCapability
from ingest_bench.inputs.names import check_name
from ingest_bench.probes import jfr, oom, recording
from ingest_bench.probes.context import Probe, list_logs
from ingest_bench.probes.gc import GC
from ingest_bench.probes.heap import HEAP
from ingest_bench.probes.host import HOST
from ingest_bench.probes.kernel_reads import KERNEL_READS, check_capability

PROBES: Mapping[str, Probe] = {
    "reads": jfr.READS,
    "heap": HEAP,
    "gc": GC,
    "allocations": jfr.ALLOCATIONS,
    "large-allocations": jfr.LARGE_ALLOCATIONS,
    "direct-memory": jfr.DIRECT_MEMORY,
    "host": HOST,
    "stalls": jfr.STALLS,
    "kernel-reads": KERNEL_READS,
}
# The first version with a free flight recorder and unified logging.
_MIN_JAVA = 11


def select_probes(names: Iterable[str]) -> Mapping[str, Probe]:
    """Return the probes of these names and `heap`, which watches every run; SpecError for an unknown name."""
    for name in names:
        check_name(name, PROBES, f'unknown probe "{name}"')
    return {name: PROBES[name] for name in (*names, "heap")}


def require_probes(names: Iterable[str]) -> None:
    """Raise MissingCapability for a probe that this machine cannot run."""
    if KERNEL_READS in (PROBES[name] for name in names) and not (capability := check_capability()).present:
        raise MissingCapability(f"{capability.name}: {capability.detail}. {capability.remedy}")


def jvm_options(names: Iterable[str], raw: Path, java_version: int, profile: Path | None = None) -> tuple[str, ...]:
    """Return JVM options for these probes and `heap`: one recording, whose settings are written to *raw*, and logs.

    It also records the events of the settings file *profile* (`recording.profile_path`). The options that `find_oom`
    needs are always included. *raw* must be absolute and writable for the server's user.
    """
    if java_version < _MIN_JAVA:
        raise MissingCapability(f"probes require Java {_MIN_JAVA} or later; the server would run on {java_version}")
    selected = select_probes(names)
    settings = recording.format_settings(recording.merge_events(probe.events for probe in selected.values()), profile)
    options = recording.start_options(raw)
    recording.settings_path(raw).write_text(settings, encoding="utf-8")
    return (*options, *(log.start_option(raw) for log in list_logs(selected)), *oom.jvm_options(raw))
