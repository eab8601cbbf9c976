"""Options of the JVM from what was asked, and what a running JVM must say when it obeyed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest_bench import system
from ingest_bench.errors import SpecError

if TYPE_CHECKING:
    from ingest_bench.model.server import Collector


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A garbage collector: its options, the Java versions that have it, and the start of its bean's name."""

    options: tuple[str, ...]
    bean: str
    first_java: int = 0
    last_java: int = 99


# CMS: removed in 14 (JEP 363). ZGC: experimental on 11, a product since 15 (JEP 377).
COLLECTORS: Mapping[Collector, Choice] = {
    "g1": Choice(options=("-XX:+UseG1GC",), bean="G1 "),
    "cms": Choice(
        options=(
            "-XX:+UseConcMarkSweepGC",
            "-XX:CMSInitiatingOccupancyFraction=75",
            "-XX:+UseCMSInitiatingOccupancyOnly",
        ),
        bean="ConcurrentMarkSweep",
        last_java=13,
    ),
    "parallel": Choice(options=("-XX:+UseParallelGC",), bean="PS "),
    "serial": Choice(options=("-XX:+UseSerialGC",), bean="MarkSweepCompact"),
    "zgc": Choice(options=("-XX:+UseZGC",), bean="ZGC", first_java=11),
}


# Options whose text the JVM gives to a shell, or that name a file of more options. Anywhere in an option: a start
# script may split ES_JAVA_OPTS at spaces.
_RUNS_A_COMMAND = re.compile(r"-XX:(?:OnError|OnOutOfMemoryError|Flags|VMOptionsFile)\b|jdwp\b.*\blaunch\s*=")


def refuse_commands(jvm: Iterable[str]) -> None:
    """Raise SpecError for an option that makes the JVM run a command, when we are root."""
    for option in jvm:
        if system.is_root() and _RUNS_A_COMMAND.search(option):
            raise SpecError(
                f"jvm: {option}: it can make the JVM run a command, which root refuses. Leave it out, or run as an "
                "ordinary user."
            )


def heap(heap_bytes: int) -> tuple[str, ...]:
    """A heap of exactly that size from the start, so that growing it is no part of what is measured."""
    return (f"-Xms{heap_bytes}", f"-Xmx{heap_bytes}")


def collector(gc: Collector, java_version: int) -> tuple[str, ...]:
    """The options that choose a collector; none for "default". SpecError when that Java has no such one."""
    if gc == "default":
        return ()
    choice = COLLECTORS[gc]
    if not choice.first_java <= java_version <= choice.last_java:
        have = ", ".join(name for name, each in COLLECTORS.items() if each.first_java <= java_version <= each.last_java)
        raise SpecError(f'target.gc: Java {java_version} has no "{gc}" (it has: {have})')
    experimental = ("-XX:+UnlockExperimentalVMOptions",) if gc == "zgc" and java_version < 15 else ()
    return (*experimental, *choice.options)


def or_g1(gc: Collector) -> Collector:
    """The collector of a server that nobody tunes: what was asked for, or G1."""
    return "g1" if gc == "default" else gc


def obeyed(gc: Collector, beans: tuple[str, ...]) -> bool:
    """Whether a JVM with these collector beans runs the collector that was asked for."""
    return gc == "default" or any(bean.startswith(COLLECTORS[gc].bean) for bean in beans)
