"""Faults: reversible changes of a link, a node, its host or its clients at a moment of a run.

The effect of each is in docs/networks-and-faults.md. Faults may overlap: a link or node has the state of all active
faults. An effect that several faults share begins with the first and ends with the last. A fault of a link lives in its
namespaces, and one of a node in its process: both are gone when these are, also if this program is killed.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingest_bench.faults.blackhole import BLACKHOLE, PARTITION
from ingest_bench.faults.cpu_memory import CPU, FRAGMENTED_MEMORY, MEMORY
from ingest_bench.faults.disk import FULL_DISK, SLOW_DISK, SLOW_FSYNC
from ingest_bench.faults.forging import MTU_BLACKHOLE, RESET
from ingest_bench.faults.kind import FaultKind
from ingest_bench.faults.link_profile import PROFILE, THROTTLE, TRACE
from ingest_bench.faults.misbehaving import MISBEHAVING_CLIENTS
from ingest_bench.faults.new_connections import DNS_FAILURE, EXHAUSTED_PORTS
from ingest_bench.faults.processes import FILE_DESCRIPTORS, FLUSH, GC, HEAP_DUMP, KILL, PAUSE

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
