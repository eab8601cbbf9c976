"""Experiment, cells, runs and plan; settings and capabilities of the machine that runs them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Delay, Profile, Rate
from ingest_bench.model.target import TargetOptions
from ingest_bench.model.values import HOUR, MIB, TIB, Between, FilePath, Length, Line, Name, NodeNumber, Seed, Share

FaultTime = Annotated[int, Between(0, 24 * HOUR, "no measurement is longer")]
Probes = Annotated[tuple[Name, ...], Length(0, 50)]
# At least two days of runs.
MAX_RUNS = 10_000
# Levels of one factor.
MAX_LEVELS = 1_000
# Levels of the factor `side` of an A/A test; nothing differs between them.
SIDES = ("A", "B")

SearchStep = Literal["", "estimate", "ramp", "bisect", "confirm"]
# Default of the column that answers an experiment's question: the heap cost of ingestion.
HEADLINE = "allocated_bytes_per_gb"
RunState = Literal["planned", "started", "measured", "oom", "aborted", "invalid", "failed", "inapplicable"]

# Most sysctls are a signed C int.
_INT = 2**31 - 1
Pages = Annotated[int, Between(1, _INT)]
# The kernel refuses less than two pages (mm/page-writeback.c).
DirtyBytes = Annotated[int, Between(8192, TIB, "two pages of 4 KiB at least")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """Result of one capability check: whether it passed, what it found, and how to fix a failure."""

    name: str
    present: bool
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Settings of the servers' machine during a run (`[host]`). None keeps the machine's value.

    Keys are the kernel's names; `host.settings` maps them to files.
    """

    transparent_hugepages: Literal["always", "madvise", "never"] | None = None
    """Which memory gets transparent huge pages: all, what was advised by madvise, or none."""
    transparent_hugepages_defrag: Literal["always", "defer", "defer+madvise", "madvise", "never"] | None = None
    """Whether a page fault without a free huge page stalls for compaction or defers it."""
    numa_balancing: Annotated[int, Between(0, 3, "bits: 1 balances, 2 moves between tiers of memory")] | None = None
    """Whether the kernel moves pages to the NUMA node that uses them."""
    swappiness: Annotated[int, Between(0, 200, "the limit of Linux 5.8; 100 before")] | None = None
    """How readily the kernel swaps instead of dropping file pages."""
    # The key is the sysctl's name, which itself ends with a unit: dirty_bytes = "64MiB".
    dirty_bytes_bytes: DirtyBytes | None = None
    """Unwritten data above which a writing program is blocked."""
    dirty_background_bytes_bytes: DirtyBytes | None = None
    """Unwritten data above which the kernel begins to write."""
    tcp_mem: Annotated[tuple[Pages, ...], Length(3, 3, rising=True)] | None = None
    """Pages of all TCP sockets: no pressure below the first, pressure from the second, limit at the third."""
    tcp_max_orphans: Annotated[int, Between(0, _INT, "a C int")] | None = None
    """Maximum number of TCP sockets that belong to no process."""
    somaxconn: Annotated[int, Between(1, 65535, "the range of all kernels")] | None = None
    """Maximum length of the accept queue."""
    tcp_max_syn_backlog: Annotated[int, Between(1, _INT, "a C int")] | None = None
    """Maximum number of incomplete handshakes at a listening socket."""
    tcp_slow_start_after_idle: bool | None = None
    """Whether a connection returns to slow start after an idle period."""


_LinkFault = Literal["partition", "blackhole", "mtu-blackhole", "profile", "throttle", "trace", "reset", "dns-failure"]
_ProcessFault = Literal["pause", "kill", "gc", "heap-dump", "file-descriptors", "flush"]
_HostFault = Literal["cpu", "memory", "fragmented-memory", "full-disk", "slow-disk", "slow-fsync", "exhausted-ports"]
_ClientFault = Literal[
    "slow-bodies", "garbage", "connection-flood", "oversized", "zero-window", "half-open", "syn-flood"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault at a moment of a run. Times count from the start of the measurement."""

    kind: Literal[_LinkFault, _ProcessFault, _HostFault, _ClientFault]
    """The kind of fault."""
    name: Name | None = None
    """If `fault` is a factor, only cells with this level have the fault; without a name all cells have it."""
    at_ns: FaultTime
    """When it begins, from the start of the measurement."""
    for_ns: FaultTime = 0
    """How long it lasts."""
    every_ns: FaultTime = 0
    """Interval between its beginnings, until the measurement ends; 0: once."""
    random: bool = False
    """`every_ns` is a mean: intervals are exponentially distributed, drawn with the load's seed."""
    link: Literal["clients", "peers"] = "clients"
    """The affected links: between clients and nodes, or between nodes."""
    node: NodeNumber | None = None
    """The affected node (1, 2, …), or the node whose links are affected. None: all."""
    direction: Literal["both", "to-server", "to-client"] = "both"
    """Direction of the affected packets, towards the server or that node, or away from it."""
    profile: FilePath | None = None
    """`profile`: the other network profile, a name or a file."""
    rate_bps: Rate | None = None
    """`throttle`: replaces the rate of the link's profile in each direction. `slow-disk`: rate of reads and writes."""
    iops: Annotated[int, Between(2, 10**6, "io.max takes no 1; a loop device does no more")] | None = None
    """`slow-disk`: reads per second, and writes per second."""
    delay_ns: Delay | None = None
    """`throttle`: the link's delay. `slow-fsync`: delay of each sync call."""
    mtu_bytes: Annotated[int, Between(68, 9216, "IPv4 needs 68 (RFC 791); larger ones are rare")] | None = None
    """`mtu-blackhole`: the largest IP packet that passes."""
    icmp: Literal["dropped", "sent"] = "dropped"
    """`mtu-blackhole`: whether senders of larger packets receive ICMP "fragmentation needed"."""
    trace: FilePath | None = None
    """`trace`: a file with rates over time."""
    cores: Annotated[float, Between(0.01, 1024, "the kernel gives no less than 1 ms of 100")] | None = None
    """`cpu`: CPU quota of a node, in cores."""
    neighbours: Annotated[int, Between(1, 64, "each is a process that is busy")] | None = None
    """`cpu`: number of busy processes that compete for a node's CPUs."""
    share_ppm: Share | None = None
    """`fragmented-memory`: the share of the available memory that is fragmented."""
    headroom_bytes: Annotated[int, Between(MIB, TIB)] | None = None
    """`memory`: what a node may use in addition to its unreclaimable memory."""
    connections: Annotated[int, Between(1, 10_000, "a server has room for more, our client has not")] | None = None
    """Concurrent connections of misbehaving clients."""
    resolver: Literal["servfail", "silent"] = "servfail"
    """`dns-failure`: the name server answers SERVFAIL, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A named axis and its levels, as text as the user wrote them."""

    key: str
    """The key as the user wrote it: "network", "heap", "network.to_server.delay"."""
    levels: tuple[str, ...]
    names_cells: bool = True
    """Whether the level is part of the names of cells. A single value of `--set` that replaces no factor is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One TOML file with the user's overrides: fixed values, factors, replicates."""

    name: str
    description: Line = ""
    """The question that the experiment answers, in one sentence."""
    headline: Name = HEADLINE
    """The column of summary.csv that answers it. The report begins with it."""
    replicates: Annotated[int, Between(1, MAX_RUNS, "no plan has more runs")] = 1
    """Number of runs of each cell."""
    seed: Seed = 1
    """Seed of the order of the runs."""
    probes: Probes = ()
    """The probes that watch each run."""
    costly_probes: Probes = ()
    """Probes that slow the server. They watch additional replicates whose rates are not evaluated."""
    tables: dict[str, dict[str, Any]]
    """The fixed part: tables `network`, `target`, `load` and `host` of the TOML file."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Server settings by target name, applied only in cells with that target."""
    factors: tuple[Factor, ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination of levels, resolved into everything that a run needs."""

    name: str
    levels: dict[str, str]
    network: Profile | None
    """The clients' link to each node. None: not shaped, because the server is already running."""
    peers: Profile | None = None
    """The links between nodes; None for a single node."""
    target: TargetOptions
    load: LoadOptions
    host: HostSettings = field(default_factory=HostSettings)
    faults: tuple[Fault, ...] = ()
    probes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of one cell: new server process, empty data."""

    id: str
    """"<cell>/<replicate>", also its folder below the results."""
    cell: Cell
    replicate: int
    instrumented: bool = False
    """Costly probes watch this run: its rates and response times are not evaluated."""
    step: SearchStep = ""
    """Purpose of the run within a search; "": not part of a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedCell:
    """A cell that is not run because its fault does not apply to its server."""

    cell: str
    levels: dict[str, str]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Goal and limits of a search for the highest rate. Its runs are added to the plan one at a time."""

    goal: str
    """Such as "p99 < 500ms, errors < 0.1%", with the default limit for errors if the user gave none."""
    tolerance_ppm: int = 50_000
    """Maximum distance between the highest rate that meets the goal and the lowest that misses it."""
    max_runs: Annotated[int, Between(3, 1000)] = 16
    """Maximum runs of each cell, including estimate and confirmation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """Search for the release in which a column changed. Runs of further releases are added to the plan one at a time.

    The runs of both ends are in the plan from the start; all others are like these.
    """

    column: Name
    """The column of summary.csv that is judged."""
    key: Line
    """The factor whose levels are the releases: "version"."""
    releases: Annotated[tuple[Line, ...], Length(2, MAX_LEVELS)]
    """All from one end to the other, in Maven's order."""
    is_good_last: bool = False
    """True if the last release is the good end: the search is for a fix."""
    replicates: Annotated[int, Between(3, MAX_RUNS)]
    """Runs of each release before it is judged."""

    @property
    def from_good_to_bad(self) -> tuple[str, ...]:
        """Return the releases, the good end first."""
        return self.releases[::-1] if self.is_good_last else self.releases


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The ordered runs of one experiment."""

    experiment: str
    description: str
    headline: Name = HEADLINE
    seed: int
    factors: tuple[Factor, ...]
    runs: tuple[Run, ...]
    search: Search | None = None
    bisection: Bisection | None = None
    skipped_cells: tuple[SkippedCell, ...] = ()
