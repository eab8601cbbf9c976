"""Faults: reversible changes of a link, a node, its host or its clients at a moment of a run.

| fault | effect | end |
|---|---|---|
| `partition` | packets of a direction are lost silently | packets pass; TCP retransmits the lost ones |
| `blackhole` | connections open, but data sent on them is lost silently | as above |
| `mtu-blackhole` | packets above a size are lost, silently or with ICMP | as above |
| `profile`, `throttle` | the link has another profile, rate or delay | the link has its own profile again |
| `trace` | the link's rate follows a recorded trace | as above |
| `reset` | each established connection is reset at both ends | immediate |
| `pause` | a JVM is stopped (SIGSTOP) | SIGCONT |
| `kill` | a node is killed (SIGKILL) | it is restarted on its files, and ready |
| `gc` | a JVM collects its whole heap | immediate |
| `heap-dump` | a JVM writes its live objects to a file | immediate; the file is removed |
| `file-descriptors` | a JVM can open hardly any file or connection | it has its former limit |
| `flush` | the server writes its in-memory data to files | immediate |
| `cpu` | a node has a CPU quota, or busy neighbours on its CPUs | it has all CPUs again |
| `memory` | the kernel reclaims a node's page cache | it has its former limit |
| `fragmented-memory` | free memory of the machine is in single pages | the kernel may join them again |
| `full-disk` | the node's file system has no free block | its blocks are free again |
| `slow-disk` | the node's disk reads and writes are limited per second | waiting requests continue |
| `slow-fsync` | each sync call of a node is delayed | waiting calls continue |
| `slow-bodies` and others (`misbehaving`) | additional clients misbehave next to the load | they are gone |
| `exhausted-ports` | clients have no ephemeral port for a new connection | ports are released |
| `dns-failure` | clients cannot resolve the server's name for a new connection | they can |

Faults may overlap: a link or node has the state of all active faults. An effect that several faults share begins with
the first and ends with the last. A fault of a link lives in its namespaces, and one of a node in its process: both are
gone when these are, also if this program is killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest_bench.faults.blackhole import BLACKHOLE, PARTITION
from ingest_bench.faults.cpu import CPU
from ingest_bench.faults.disk import FULL_DISK, SLOW_DISK, SLOW_FSYNC
from ingest_bench.faults.dns_failure import DNS_FAILURE
from ingest_bench.faults.exhausted_ports import EXHAUSTED_PORTS
from ingest_bench.faults.fragmented_memory import FRAGMENTED_MEMORY
from ingest_bench.faults.link_profile import PROFILE, THROTTLE, TRACE
from ingest_bench.faults.memory import MEMORY
from ingest_bench.faults.misbehaving import MISBEHAVING_CLIENTS
from ingest_bench.faults.mtu_blackhole import MTU_BLACKHOLE
from ingest_bench.faults.processes import FILE_DESCRIPTORS, FLUSH, GC, HEAP_DUMP, KILL, PAUSE
from ingest_bench.faults.reset import RESET

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingest_bench.faults.kind import FaultKind

FAULTS: Mapping[str, FaultKind] = {
    "partition": PARTITION,
    "blackhole": BLACKHOLE,
    "mtu-blackhole": MTU_BLACKHOLE,
    "profile": PROFILE,
    "throttle": THROTTLE,
    "trace": TRACE,
    "reset": RESET,
    "pause": PAUSE,
    "kill": KILL,
    "gc": GC,
    "heap-dump": HEAP_DUMP,
    "file-descriptors": FILE_DESCRIPTORS,
    "flush": FLUSH,
    "cpu": CPU,
    "memory": MEMORY,
    "fragmented-memory": FRAGMENTED_MEMORY,
    "full-disk": FULL_DISK,
    "slow-disk": SLOW_DISK,
    "slow-fsync": SLOW_FSYNC,
    **MISBEHAVING_CLIENTS,
    "exhausted-ports": EXHAUSTED_PORTS,
    "dns-failure": DNS_FAILURE,
}
