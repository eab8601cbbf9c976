"""What happens to a link, to a node or to the whole server at a moment of a run, and how it ends again.

| fault | what it does | its end |
|---|---|---|
| `partition` | nothing passes in a direction, and no one is told | packets pass; TCP sends the lost ones again |
| `blackhole` | connections open, but what is sent on them vanishes | as above |
| `mtu-blackhole` | packets above a size vanish, and no one is told | as above |
| `profile`, `throttle` | the link is in another state | the link is in its own state again |
| `trace` | the link's rate changes as a file says | as above |
| `reset` | each established connection is reset at both ends | none: it has no length |
| `pause` | a JVM stands still | it goes on |
| `kill` | a node is killed | it is started again on its files, and is ready |
| `gc` | a JVM collects its whole heap | none |
| `heap-dump` | a JVM writes its live objects to a file | none; the file is removed |
| `file-descriptors` | a JVM can open hardly any file or connection | it may open as many as before |
| `flush` | the server writes to files what it has in memory | none |
| `cpu` | a node has no more than so many cores, or busy neighbours on them | it has all again |
| `memory` | the kernel takes from a node what it can give back | it may have as much as before |
| `fragmented-memory` | free memory of the machine is in single pages | the kernel may join them again |
| `full-disk` | the file system of a node has no block left | it has what it had |
| `slow-disk` | a node's disk reads and writes no more than so much a second, or each is late | what waits goes on |
| `slow-fsync` | each sync of a file waits | it does not, and those that wait go on |
| `slow-bodies`, … (`clients`) | more clients misbehave beside the load | they are gone |
| `exhausted-ports` | the clients have no local port for a new connection | they have all |
| `dns-failure` | the clients cannot look up the server for a new connection | they can |

Faults may overlap: a link or a node has the state of all that last. What several do alike begins with the first one
and ends with the last one. Faults of a link live in its namespaces, and those of a node in its process: they go with
these, also when we are killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest_bench.faults.clients.dns_failure import DNS_FAILURE
from ingest_bench.faults.clients.exhausted_ports import EXHAUSTED_PORTS
from ingest_bench.faults.clients.misbehaving import CLIENTS
from ingest_bench.faults.hosts.cpu import CPU
from ingest_bench.faults.hosts.fragmented_memory import FRAGMENTED_MEMORY
from ingest_bench.faults.hosts.full_disk import FULL_DISK
from ingest_bench.faults.hosts.memory import MEMORY
from ingest_bench.faults.hosts.slow_disk import SLOW_DISK
from ingest_bench.faults.hosts.slow_fsync import SLOW_FSYNC
from ingest_bench.faults.links.blackhole import BLACKHOLE
from ingest_bench.faults.links.mtu_blackhole import MTU_BLACKHOLE
from ingest_bench.faults.links.partition import PARTITION
from ingest_bench.faults.links.profile import PROFILE
from ingest_bench.faults.links.reset import RESET
from ingest_bench.faults.links.throttle import THROTTLE
from ingest_bench.faults.links.trace import TRACE
from ingest_bench.faults.processes.file_descriptors import FILE_DESCRIPTORS
from ingest_bench.faults.processes.flush import FLUSH
from ingest_bench.faults.processes.forced_gc import GC
from ingest_bench.faults.processes.heap_dump import HEAP_DUMP
from ingest_bench.faults.processes.kill import KILL
from ingest_bench.faults.processes.pause import PAUSE

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
    **CLIENTS,
    "exhausted-ports": EXHAUSTED_PORTS,
    "dns-failure": DNS_FAILURE,
}
