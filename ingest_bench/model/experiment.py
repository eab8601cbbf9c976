"""The experiment: factors, levels, cells and runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from ingest_bench.model.host_settings import HostSettings
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Delay, Profile, Rate
from ingest_bench.model.target import TargetOptions
from ingest_bench.model.values import HOUR, MIB, TIB, Between, FilePath, Line, Name, NodeNumber, Seed, Several, Share

Moment = Annotated[int, Between(0, 24 * HOUR, "no measurement is longer")]
Probes = Annotated[tuple[Name, ...], Several(0, 50)]
MOST_RUNS = 10_000
"""Of one plan: two days, at the shortest."""
MOST_LEVELS = 1_000
# Of an A/A test: the levels of its factor `side`, between which nothing differs.
SIDES = ("A", "B")
"""Of one factor."""

SearchStep = Literal["", "estimate", "ramp", "bisect", "confirm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that happens at a moment of a run, counted from the start of the measurement."""

    kind: Literal[
        "partition",
        "blackhole",
        "mtu-blackhole",
        "profile",
        "throttle",
        "trace",
        "reset",
        "pause",
        "kill",
        "gc",
        "heap-dump",
        "file-descriptors",
        "flush",
        "cpu",
        "memory",
        "fragmented-memory",
        "full-disk",
        "slow-disk",
        "slow-fsync",
        "slow-bodies",
        "garbage",
        "connection-flood",
        "oversized",
        "zero-window",
        "half-open",
        "syn-flood",
        "exhausted-ports",
        "dns-failure",
    ]
    """What happens."""
    name: Name | None = None
    """Where `fault` is a factor, it happens in the cells whose level has this name; without a name in all."""
    at_ns: Moment
    """When it begins, from the start of the measurement."""
    for_ns: Moment = 0
    """How long it lasts."""
    every_ns: Moment = 0
    """It happens again so long after it began, as long as the measurement lasts; 0: once."""
    random: bool = False
    """`every_ns` is the mean: it begins at moments that are drawn, each by itself, with the load's seed."""
    link: Literal["clients", "peers"] = "clients"
    """Which links: those of the clients to the nodes, or those between nodes."""
    node: NodeNumber | None = None
    """Which node: 1, 2, …; of links those that lead to it. None: all."""
    direction: Literal["both", "to-server", "to-client"] = "both"
    """To the server, or to that node."""
    profile: FilePath | None = None
    """Of a profile: the other network profile, a name or a file."""
    rate_bps: Rate | None = None
    """Of a throttle: what the link's own profile has in its place, in each direction; of a slow disk, of each too."""
    iops: Annotated[int, Between(2, 10**6, "io.max takes no 1; a loop device does no more")] | None = None
    """How many reads, and how many writes, a slow disk does a second."""
    delay_ns: Delay | None = None
    """Of a throttle: the link's delay; of a slow disk how long each read and write waits, of a slow fsync each sync."""
    mtu_bytes: Annotated[int, Between(68, 9216, "IPv4 needs 68 (RFC 791); larger ones are rare")] | None = None
    """The largest IP packet that passes an MTU black hole."""
    icmp: Literal["eaten", "sent"] = "eaten"
    """Whether whoever sends larger ones is told."""
    trace: FilePath | None = None
    """A file with rates over time."""
    cores: Annotated[float, Between(0.01, 1024, "the kernel gives no less than 1 ms of 100")] | None = None
    """How much CPU a node may use."""
    neighbours: Annotated[int, Between(1, 64, "each is a process that is busy")] | None = None
    """How many busy processes there are on a node's CPUs."""
    share_ppm: Share | None = None
    """How much of the memory that is available is fragmented."""
    room_bytes: Annotated[int, Between(MIB, TIB)] | None = None
    """What a node may have beside the memory that it cannot give back."""
    connections: Annotated[int, Between(1, 10_000, "a server has room for more, our client has not")] | None = None
    """How many at a time, of clients that misbehave."""
    resolver: Literal["servfail", "silent"] = "servfail"
    """What a name server does in place of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A named axis and its levels, as text the way the user wrote them."""

    key: str
    """The key as the user wrote it: "network", "heap", "network.to_server.delay"."""
    levels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One TOML file with the user's overrides: what is fixed, what varies, how often."""

    name: str
    description: Line = ""
    """What it asks, in a sentence."""
    replicates: Annotated[int, Between(1, MOST_RUNS, "no plan has more runs")] = 1
    """How often each cell runs."""
    seed: Seed = 1
    """What decides the order of the runs."""
    probes: Probes = ()
    """The probes that watch each run."""
    costly_probes: Probes = ()
    """Probes that slow the server: they run in replicates of their own, whose rates count nowhere."""
    tables: dict[str, dict[str, Any]]
    """The fixed part: `network`, `target`, `load` and `host`, as TOML keeps them."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings of a server by its name: those that only the cells with that target have."""
    factors: tuple[Factor, ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination of levels, resolved into everything that a run needs."""

    name: str
    levels: dict[str, str]
    network: Profile | None
    """The clients' link to each node. None: as it is. A server that runs already has a network of its own."""
    peers: Profile | None = None
    """The links between nodes; None where there are not several."""
    target: TargetOptions
    load: LoadOptions
    host: HostSettings = field(default_factory=HostSettings)
    faults: tuple[Fault, ...] = ()
    probes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of one cell: new process, empty data."""

    id: str
    """"<cell>/<replicate>", also its folder below the results."""
    cell: Cell
    replicate: int
    instrumented: bool = False
    """Whether costly probes watch this run. Its rates and response times then count nowhere."""
    step: SearchStep = ""
    """What a search wants of this run; "": it is no step of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A cell that is not run: its fault cannot happen to its server."""

    cell: str
    levels: dict[str, str]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What a search for the highest rate looks for. Its runs are added to the plan one by one, as they are decided."""

    goal: str
    """Such as "p99 < 500ms, errors < 0.1%": in full, with the limit for errors that it has when none is given."""
    tolerance_ppm: int = 50_000
    """How far the lowest rate that misses the goal may be above the highest one that meets it."""
    most_runs: Annotated[int, Between(3, 1000)] = 16
    """In each cell, the estimate and the confirmation included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The ordered runs of one experiment."""

    experiment: str
    description: str
    seed: int
    factors: tuple[Factor, ...]
    runs: tuple[Run, ...]
    search: Search | None = None
    left_out: tuple[LeftOut, ...] = ()
    """What would be a cell if its fault could happen to its server."""


RunState = Literal["planned", "started", "measured", "oom", "aborted", "invalid", "failed", "inapplicable"]
