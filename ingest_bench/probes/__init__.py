"""Observers of a run: each watches into `raw/` and later reads its files.

| probe | what it sees | with |
|---|---|---|
| reads | size of every socket read of the load's connections | flight recorder |
| gc | pauses, full collections, heap, failures, direct buffers | flight recorder, and the GC log |
| allocations | memory taken outside TLABs, and TLABs, by layer | flight recorder; costs 6 to 20% of CPU |
| large-allocations | objects of 1 MiB and more: who, how often, humongous or not | the same |
| direct-memory | direct buffers: each that the server tells of, and how room was found for them | flight recorder |
| host | CPU, context switches, faults, run queue, waits of threads, pressure, huge pages | /proc, by a child process |
| stalls | what threads did and waited for, safepoints, slow files: causes of stalls | flight recorder |
| kernel-reads | room and bytes of every read, with any transport | BPF, by a child process; needs root |

A probe is one file with a `Probe` (context.py) and one line in `PROBES`. A vantage (vantage.py) watches with those of a
run, and reads what they left. A number that could not be had is a Reading of None with a Remark that says why, never
zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.inputs.records import nearest
from ingest_bench.probes import oom, recording
from ingest_bench.probes.allocations import ALLOCATIONS
from ingest_bench.probes.context import Events, Probe, ReadContext
from ingest_bench.probes.direct_memory import DIRECT_MEMORY
from ingest_bench.probes.host import HOST
from ingest_bench.probes.kernel.kernel_reads import KERNEL_READS, capability
from ingest_bench.probes.large_allocations import LARGE_ALLOCATIONS
from ingest_bench.probes.oom import OutOfMemory, find_oom
from ingest_bench.probes.pauses.gc import GC
from ingest_bench.probes.reads import READS
from ingest_bench.probes.stalls import STALLS
from ingest_bench.probes.vantage import VANTAGES, AttachedTo, FromOutside, Started, Vantage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = [
    "PROBES",
    "VANTAGES",
    "AttachedTo",
    "FromOutside",
    "OutOfMemory",
    "Probe",
    "ReadContext",
    "Started",
    "Vantage",
    "capability",
    "chosen",
    "find_oom",
    "jvm_options",
    "require",
]

PROBES: Mapping[str, Probe] = {
    "reads": READS,
    "gc": GC,
    "allocations": ALLOCATIONS,
    "large-allocations": LARGE_ALLOCATIONS,
    "direct-memory": DIRECT_MEMORY,
    "host": HOST,
    "stalls": STALLS,
    "kernel-reads": KERNEL_READS,
}


def chosen(names: Iterable[str]) -> Mapping[str, Probe]:
    """The probes of these names; SpecError for a name that no probe has."""
    for name in names:
        if name not in PROBES:
            raise SpecError(f'there is no probe "{name}"; {nearest(name, PROBES)}')
    return {name: PROBES[name] for name in names}


def require(names: Iterable[str]) -> None:
    """MissingCapability for a probe that this machine cannot have."""
    if KERNEL_READS in (PROBES[name] for name in names) and not (found := capability()).present:
        raise MissingCapability(f"{found.name}: {found.detail}. {found.remedy}")


# The first with an open flight recorder and unified logging.
_OLDEST_JAVA = 11


def jvm_options(names: Iterable[str], raw: Path, java_version: int, profile: Path | None = None) -> tuple[str, ...]:
    """Options of the server's JVM for these probes: at most one recording, whose settings are written to `raw`.

    It records beside that what the settings file `profile` says (`recording.profile`), also without any probe.
    With any or no probe: what lets `find_oom` see an OutOfMemoryError. The server's user must be able to write to
    `raw`, and `raw` must be absolute.
    """
    if java_version < _OLDEST_JAVA:
        raise MissingCapability(f"probes need Java {_OLDEST_JAVA} or later, the server would run on {java_version}")
    watching = [PROBES[name] for name in names]
    events: Events = {}
    for probe in watching:
        recording.merge(events, probe.events)
    records = bool(events) or profile is not None
    options = recording.options(raw) if records else ()
    if records:
        recording.settings_file(raw).write_text(recording.settings(events, profile), encoding="utf-8")
    own = [log.start_option(raw) for probe in watching for log in probe.logs]
    return (*options, *own, *oom.jvm_options(raw))
