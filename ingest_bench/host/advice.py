"""What of a machine is known to hurt servers like these: one table of rules, each with who says so. Pure.

The rules are the servers' own, for a machine in production. A measurement may want it otherwise: nothing is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest_bench.units import format_bytes

if TYPE_CHECKING:
    from ingest_bench.host.machine import MachineFacts

# Elasticsearch and OpenSearch refuse to start with less, once they listen on more than loopback.
_MAPS = 262_144
_OPEN_FILES = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing of this machine as it was found, and as it is recommended."""

    name: str
    found: str
    hurts: bool
    recommended: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is looked at, when it hurts, what is recommended in its place, and by whom (the name of the document)."""

    name: str
    found: Callable[[MachineFacts], str]
    hurts: Callable[[MachineFacts], bool]
    recommended: str
    source: str


RULES = (
    Rule(
        name="transparent huge pages",
        found=lambda machine: machine.transparent_hugepages or "this kernel has none",
        hurts=lambda machine: machine.transparent_hugepages == "always",
        recommended="madvise or never",
        source='AxonOps, "Linux Memory Configuration"; DSE, "No DataStax Enterprise processing but high CPU usage"',
    ),
    Rule(
        name="numad",
        found=lambda machine: "runs" if machine.numad_runs else "does not run",
        hurts=lambda machine: machine.numad_runs,
        recommended="none: it moves a server's memory between NUMA nodes while that works",
        source='Meltwater, "Riak, Elasticsearch and numad walk into a Red Hat"; numad(8)',
    ),
    Rule(
        name="vm.swappiness",
        found=lambda machine: f"{_number(machine.swappiness)}, {_swap(machine.swap_bytes)}",
        hurts=lambda machine: machine.swap_bytes > 0 and (machine.swappiness or 0) > 1,
        recommended="no swap (swapoff -a), or 1",
        source='Elasticsearch, "Disable swapping"; DataStax, "Recommended production settings" (Cassandra)',
    ),
    Rule(
        name="vm.max_map_count",
        found=lambda machine: _number(machine.max_map_count),
        hurts=lambda machine: machine.max_map_count is not None and machine.max_map_count < _MAPS,
        recommended=f"{_MAPS} or more; 1048575 for Cassandra",
        source='Elasticsearch, "Maximum map count check"; OpenSearch, "Important settings"; Cassandra, StartupChecks',
    ),
    Rule(
        name="open files",
        found=lambda machine: "no limit" if machine.open_files is None else str(machine.open_files),
        hurts=lambda machine: machine.open_files is not None and machine.open_files < _OPEN_FILES,
        recommended=f"{_OPEN_FILES} or more (ulimit -Hn)",
        source='Elasticsearch, "File descriptor check" and "File Descriptors"',
    ),
    Rule(
        name="CPU governor",
        found=lambda machine: ", ".join(machine.cpu_governors) or "this machine has none",
        hurts=lambda machine: any(governor != "performance" for governor in machine.cpu_governors),
        recommended="performance",
        source='DataStax, "Disable settings that impact performance" (Cassandra)',
    ),
)


def advice(machine: MachineFacts) -> tuple[Advice, ...]:
    """Each rule, with what was found of that machine."""
    return tuple(
        Advice(
            name=rule.name,
            found=rule.found(machine),
            hurts=rule.hurts(machine),
            recommended=rule.recommended,
            source=rule.source,
        )
        for rule in RULES
    )


def _number(value: int | None) -> str:
    return "this kernel has none" if value is None else str(value)


def _swap(swap_bytes: int) -> str:
    return f"with {format_bytes(swap_bytes)} of swap" if swap_bytes else "but there is no swap"
