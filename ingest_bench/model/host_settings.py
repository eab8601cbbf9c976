"""Settings of the machine that holds the servers, as an experiment may ask for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ingest_bench.model.values import TIB, Between, Several

# A signed C int, as most of the kernel's sysctls are.
_INT = 2**31 - 1
Pages = Annotated[int, Between(1, _INT)]
# Less than two pages is refused by the kernel (mm/page-writeback.c).
DirtyBytes = Annotated[int, Between(8192, TIB, "two pages of 4 KiB at least")]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """What the machine is set to for the time of a run. None leaves what it has.

    The keys are the kernel's own names; `host.settings` says which file each of them is.
    """

    transparent_hugepages: Literal["always", "madvise", "never"] | None = None
    """Who gets huge pages: all, who asks by madvise, nobody."""
    transparent_hugepages_defrag: Literal["always", "defer", "defer+madvise", "madvise", "never"] | None = None
    """What a page fault does that finds no huge page: stall for compaction, or let it be done later."""
    numa_balancing: Annotated[int, Between(0, 3, "bits: 1 balances, 2 moves between tiers of memory")] | None = None
    """Whether the kernel moves pages to the NUMA node that uses them."""
    swappiness: Annotated[int, Between(0, 200, "as Linux 5.8 has it; 100 before")] | None = None
    """How readily the kernel swaps in place of dropping file pages."""
    # The key is the sysctl's name, which ends with a unit of its own: dirty_bytes = "64MiB".
    dirty_bytes_bytes: DirtyBytes | None = None
    """From so much unwritten data on a program that writes has to wait."""
    dirty_background_bytes_bytes: DirtyBytes | None = None
    """From so much unwritten data on the kernel begins to write."""
    tcp_mem: Annotated[tuple[Pages, ...], Several(3, 3, rising=True)] | None = None
    """Pages of all TCP sockets: below the first no pressure, at the second it begins, the third is the most."""
    tcp_max_orphans: Annotated[int, Between(0, _INT, "a C int")] | None = None
    """How many TCP sockets may belong to no process."""
    somaxconn: Annotated[int, Between(1, 65535, "what every kernel takes")] | None = None
    """The longest queue of connections that wait to be accepted."""
    tcp_max_syn_backlog: Annotated[int, Between(1, _INT, "a C int")] | None = None
    """How many handshakes may be under way at a listening socket."""
    tcp_slow_start_after_idle: bool | None = None
    """Whether a connection starts slowly again after a pause."""
