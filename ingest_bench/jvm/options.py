"""Options of a JVM: heap, collector and log outputs."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ingest_bench import system, units
from ingest_bench.errors import SpecError
from ingest_bench.model.target import Collector
from ingest_bench.model.values import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorOptions:
    """A garbage collector: its options, the Java versions that have it, and the start of its MBean's name."""

    options: tuple[str, ...]
    bean: str
    first_java: int = 0
    last_java: int = 99


# CMS: removed in 14 (JEP 363). ZGC: experimental on 11, a product since 15 (JEP 377).
COLLECTORS: Mapping[Collector, CollectorOptions] = {
    "g1": CollectorOptions(options=("-XX:+UseG1GC",), bean="G1 "),
    "cms": CollectorOptions(
        options=(
            "-XX:+UseConcMarkSweepGC",
            "-XX:CMSInitiatingOccupancyFraction=75",
            "-XX:+UseCMSInitiatingOccupancyOnly",
        ),
        bean="ConcurrentMarkSweep",
        last_java=13,
    ),
    "parallel": CollectorOptions(options=("-XX:+UseParallelGC",), bean="PS "),
    "serial": CollectorOptions(options=("-XX:+UseSerialGC",), bean="MarkSweepCompact"),
    "zgc": CollectorOptions(options=("-XX:+UseZGC",), bean="ZGC", first_java=11),
}

# Options whose text the JVM gives to a shell, or that name a file of more options. Anywhere in an option: a start
# script may split ES_JAVA_OPTS at spaces.
_RUNS_A_COMMAND = re.compile(r"-XX:(?:OnError|OnOutOfMemoryError|Flags|VMOptionsFile)\b|jdwp\b.*\blaunch\s*=")
_G1_REGION = re.compile(r"-XX:G1HeapRegionSize=(\d{1,12}[kKmMgG]?)")
_LOG_DECORATORS = "time,uptime,level,tags"


def refuse_commands(jvm_options: Iterable[str]) -> None:
    """Raise SpecError for an option that lets the JVM run a command, if we are root."""
    for option in jvm_options:
        if system.is_root() and _RUNS_A_COMMAND.search(option):
            raise SpecError(
                f"jvm: {option}: it can make the JVM run a command, which is refused to root. Remove it, or run as an "
                "ordinary user."
            )


def heap_options(heap_bytes: int) -> tuple[str, ...]:
    """Return the options of a heap that has its full size from the start, so that heap growth is not measured."""
    return (f"-Xms{heap_bytes}", f"-Xmx{heap_bytes}")


def is_requested_heap(actual_bytes: int, heap_bytes: int, beans: Iterable[str], arguments: Iterable[str] = ()) -> bool:
    """Return True if a JVM with these collector MBeans and arguments has the heap that was requested.

    A JVM rounds the size up to whole units: 512 pages of memory (one of its card table), or a larger region of G1.
    """
    unit_bytes, smallest_bytes = 512 * resource.getpagesize(), heap_bytes
    if uses_collector("g1", tuple(beans)):
        chosen = [units.parse_bytes(match[1]) for match in map(_G1_REGION.fullmatch, arguments) if match]
        # Without a choice: a power of two near 1/2048 of the heap, at most 32 MiB (HeapRegion::setup_heap_region_size).
        region_bytes = chosen[-1] if chosen else min(heap_bytes // 2048, 32 * MIB)
        unit_bytes = max(unit_bytes, 1 << (region_bytes - 1).bit_length())
    elif not uses_collector("zgc", tuple(beans)):
        # Collectors with survivor spaces report one of them less than the whole heap.
        smallest_bytes = heap_bytes * 85 // 100
    return smallest_bytes <= actual_bytes < heap_bytes + unit_bytes


def collector_options(gc: Collector, java_version: int) -> tuple[str, ...]:
    """Return the options that choose a collector; none for "default". SpecError if that Java lacks the collector."""
    if gc == "default":
        return ()
    collector = COLLECTORS[gc]
    if not collector.first_java <= java_version <= collector.last_java:
        available = ", ".join(
            name for name, other in COLLECTORS.items() if other.first_java <= java_version <= other.last_java
        )
        raise SpecError(f'target.gc: Java {java_version} has no "{gc}" (available: {available})')
    experimental = ("-XX:+UnlockExperimentalVMOptions",) if gc == "zgc" and java_version < 15 else ()
    return (*experimental, *collector.options)


def default_to_g1(gc: Collector) -> Collector:
    """Return the collector, or G1 for the default of a server without tuning of its own."""
    return "g1" if gc == "default" else gc


def uses_collector(gc: Collector, beans: tuple[str, ...]) -> bool:
    """Return True if a JVM with these collector MBeans runs that collector, or if any will do."""
    return gc == "default" or any(bean.startswith(COLLECTORS[gc].bean) for bean in beans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One file of a JVM's unified logging (Java 11 and later), switched on at start or while the JVM runs."""

    name: str
    """The file's name: "gc.log"."""
    what: str
    """Tags and levels, as -Xlog has them: "gc*=info"."""
    rotation: str = "filecount=0"
    """How the file is rotated; by default never."""

    def start_option(self, folder: Path) -> str:
        """Return the option that logs into this folder from the start of a JVM."""
        return f"-Xlog:{self.what}:file={folder / self.name}:{_LOG_DECORATORS}:{self.rotation}"

    def enable_command(self, folder: Path) -> tuple[str, ...]:
        """Return the jcmd command that starts to log into this folder."""
        return (
            "VM.log",
            f"output={folder / self.name}",
            f"what={self.what}",
            f"decorators={_LOG_DECORATORS}",
            f"output_options={self.rotation}",
        )

    def disable_command(self, folder: Path) -> tuple[str, ...]:
        """Return the jcmd command that removes only this output: an output that logs nothing is closed.

        Not `VM.log disable`, which would remove the server's own outputs too.
        """
        return ("VM.log", f"output={folder / self.name}", "what=all=off")
