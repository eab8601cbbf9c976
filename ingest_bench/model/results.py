"""What a run left: readings of probes, its record, and its summary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ingest_bench.model.experiment import RunState
from ingest_bench.model.load import ClockOffset
from ingest_bench.model.network import Promise

Value = int | float | str | None
Counters = dict[str, int | dict[str, dict[str, int]]]
"""What a server counted itself: numbers, and tables. `by_peer_port`: of each connection, by its port. `flushes` and
`compactions`: each with the CLOCK_REALTIME `at_ns` of its beginning, and the `bytes` of the file that it wrote."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One number that a probe saw. The name is a column of `analysis.run.columns.COLUMNS`; None: unavailable."""

    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class Histogram:
    """Exact counts by value, such as read sizes: `counts[size_bytes] == reads`."""

    name: str
    counts: dict[int, int]


@dataclass(frozen=True, slots=True)
class Series:
    """A value over time; the moments are CLOCK_REALTIME nanoseconds."""

    name: str
    at_ns: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Stacks:
    """Allocated bytes by stack: its frames, the outermost first, with ";" between (Brendan Gregg's folded form).

    The first frame is "outside TLABs" or "new TLABs", whose bytes are the TLAB's; the last one is the object's class.
    """

    folded: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What a probe has to say about its numbers: why one is unavailable, what was lost, what it did not understand."""

    probe: str
    text: str
    invalidates: bool = False
    """Two sources of one number disagree: the run is invalid."""


ReasonKind = Literal[
    "promise", "no report", "nothing sent", "bytes", "documents", "no answer", "generator", "probe", "files"
]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a run that was carried out is invalid: what was broken, and a sentence about it."""

    kind: ReasonKind
    text: str


@dataclass(frozen=True, slots=True)
class Interval:
    """A span with a cause; the moments are CLOCK_REALTIME nanoseconds, the end is excluded."""

    cause: str
    start_ns: int
    end_ns: int
    thread: str = ""
    """Whose it was, where only some threads had it; empty: the whole process, or it is none of a process."""
    port: int = 0
    """The load's own, where it was of one connection."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A cause that was looked for from start to end of the measurement: without spans it was found nowhere."""

    cause: str
    spans: tuple[Interval, ...]
    node: int | None = None
    stops: bool = False
    """Whether nothing is answered while it lasts: then whoever is answered all the same proves that it was not."""
    sudden: bool = False
    """Whether it has no length itself: what it causes begins with it, and nobody knows when that ends."""
    before_sending: bool = False
    """Whether it holds requests back before they are sent."""
    varies: bool = False
    """Whether it is not always as strong: a span that made nobody wait says little about another one."""
    starves: bool = False
    """Whether threads get no CPU while it lasts: whatever one of them does then takes longer for want of it."""
    error_ns: int = 50_000_000
    """How far from the truth a span may begin or end. Ten looks a second are 50 ms off."""


Measured = Reading | Histogram | Series | Stacks | Remark | Watched

# One socket read of the load's connections in `raw/reads.bin`: little-endian numpy type strings. `end_ns` is
# CLOCK_REALTIME, `port` the load's own. bytes 0: the socket had nothing, -1: end of stream; the server allocated a
# buffer for those too. As the recording has them, in blocks: sort by `end_ns`, stably, before use.
READ_FIELDS: tuple[tuple[str, str], ...] = (("end_ns", "<i8"), ("bytes", "<i4"), ("port", "<i4"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A named part of a run and how long it took."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A fault that happened; the moments are CLOCK_REALTIME nanoseconds."""

    kind: str
    started: int
    ended: int | None = None
    """None: it was still there when the run broke."""
    direction: str = ""
    link: str = ""
    """Whose links: "clients" or "peers"; empty: it was none of a link."""
    node: int | None = None
    """None: all nodes."""
    seen: str = ""
    """What was seen of it, such as how many connections were reset; empty: there is nothing to add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What may have caused a stall: all spans with that cause of one thread, one connection or one node."""

    cause: str
    lasted_ns: int
    """Within the stall."""
    thread: str = ""
    port: int = 0
    node: int | None = None
    why: str = ""
    """Why it is ruled out, or why nobody can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A span in which requests waited far longer than usual; the moments are CLOCK_REALTIME nanoseconds."""

    start_ns: int
    end_ns: int
    requests: int
    """How many waited so long; 0: the rate fell, and no request was slow."""
    at_once: int
    """The most of them at one moment."""
    longest_ns: int
    """The longest of their response times."""
    causes: tuple[Cause, ...]
    """Each cause that is named, the longest first; none: it is unexplained. Of several that cover the same nobody can
    tell which it was."""
    unexplained_ns: int
    """How long requests waited whose waiting no named cause explains."""
    ruled_out: tuple[Cause, ...]
    """The causes that were looked for and cannot be it."""
    undecided: tuple[Cause, ...] = ()
    """Those that lasted within and are neither."""
    phases: tuple[tuple[str, int], ...] = ()
    """Where the longest request was and for how long (`analysis.stalls.phases`); none where nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMark:
    """What a file was when it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """`run.json`: the state of a run and everything about it that is not a raw file."""

    run: str
    replicate: int
    cell: str
    levels: dict[str, str]
    instrumented: bool = False
    state: RunState
    reason: str = ""
    started_utc: str = ""
    stages: tuple[Stage, ...] = ()
    promises: tuple[Promise, ...] = ()
    netem_backend: str = ""
    server: dict[str, Any] = field(default_factory=dict)
    """What is known of the server: version, java, allocator, pid, host, port."""
    host: dict[str, str] = field(default_factory=dict)
    """What the server's machine was set to, by the keys of [host]; empty where it is not this machine."""
    documents_counted: int | None = None
    counters: Counters = field(default_factory=dict)
    """After the load; empty for a server that counts nothing."""
    warm_up_ns: int | None = None
    """From the first request to the measurement: as given, or as found."""
    measure_start_realtime_ns: int | None = None
    measure_end_realtime_ns: int | None = None
    clock_offsets: tuple[ClockOffset, ...] = ()
    """Of the load workers on other machines, one a load."""
    link: dict[str, Value] = field(default_factory=dict)
    """Readings of the clients' link (of several nodes: of all together) while it stood: retransmits, mss, drops …"""
    node_links: tuple[dict[str, Value], ...] = ()
    """The same of the link to each node; none where there is one node."""
    out_of_memory: str = ""
    """What ran out: heap, direct, metaspace …"""
    out_of_memory_realtime_ns: int | None = None
    faults: tuple[Happened, ...] = ()
    skipped: tuple[str, ...] = ()
    """Operations of a track that were not done."""
    files: dict[str, FileMark] = field(default_factory=dict)
    """Each file that the run left, by its place in the run's folder."""
    notes: tuple[str, ...] = ()
    """What was done in another way than it was written, such as an analyzer that the server has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run as one row: a value for each column, and its histograms and series."""

    run: str
    cell: str
    replicate: int
    levels: dict[str, str]
    instrumented: bool = False
    """Whether costly probes watched: rates and response times then stay out of tables and pictures of throughput."""
    state: RunState
    reason: str
    invalid_for: tuple[ReasonKind, ...] = ()
    """What was broken in a run that was carried out and is invalid, the first one first."""
    values: dict[str, Value]
    histograms: dict[str, dict[int, int]] = field(default_factory=dict)
    series: dict[str, Series] = field(default_factory=dict)
    experiment: str = ""
    measure_start_ns: int | None = None
    """CLOCK_REALTIME, as the moments of the series; None when the load never got there."""
    measure_end_ns: int | None = None
    faults: tuple[Happened, ...] = ()
    remarks: tuple[Remark, ...] = ()
    """What the probes had to say about their numbers."""
    nodes: tuple[dict[str, Value], ...] = ()
    """Of several nodes what is known of each, by column; empty where there is one."""
    stalls: tuple[Stall, ...] = ()
    stacks: dict[str, int] = field(default_factory=dict)
    """What was allocated by each stack, as in `Stacks`; empty where no probe looked."""
