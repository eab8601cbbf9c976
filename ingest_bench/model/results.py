"""Results of a run: probe output, its record (`run.json`), and its summary. Times are CLOCK_REALTIME nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ingest_bench.model.experiment import HEADLINE, RunState
from ingest_bench.model.network import LinkCheck
from ingest_bench.model.samples import ClockOffset

# Version of each file's schema, raised by each change. Other versions are not read.
SCHEMAS: Mapping[str, int] = {"plan.json": 3, "facts.json": 1, "load.json": 2, "run.json": 5}

ColumnValue = int | float | str | None
Counters = dict[str, int | dict[str, dict[str, int]]]
"""The server's own counters: numbers and tables. `by_peer_port`: per connection, by its port. `flushes`, `compactions`:
for each its CLOCK_REALTIME start `at_ns`, and the `bytes` of the written file."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One number from a probe. Its name is a column of `analysis.run.columns.COLUMNS`; None: unavailable."""

    name: str
    value: ColumnValue


@dataclass(frozen=True, slots=True)
class Histogram:
    """Exact counts by value, such as read sizes: `counts[size_bytes] == reads`."""

    name: str
    counts: dict[int, int]


def nearest_rank(percent: float, count: int) -> int | None:
    """Return the index of a percentile among *count* sorted values; None if too few are beyond it: n < 1 / (1 - q).

    It is a value that occurred, not one between two: read sizes have gaps without values. Of 600 requests the 99.9th
    percentile would be the longest by another name, so it is None. 100 percent is the last value.
    """
    # In integer hundred-millionths: 99.9 / 100 * 2000 is 1998.0000000000002, and 100 - 99.9 is 0.09999999999999432.
    share, total = round(percent * 10**6), 10**8
    above = total - share
    if not count or count * above < (total if above else 0):
        return None
    return max(0, -(-count * share // total) - 1)


def percentile(counts: Mapping[int, int], percent: float) -> int | None:
    """Return a percentile of counted values by nearest rank; None if `nearest_rank` is None."""
    index = nearest_rank(percent, sum(counts.values()))
    if index is None:
        return None
    passed = 0
    for value in sorted(counts):
        passed += counts[value]
        if passed > index:
            return value
    raise AssertionError("a rank is the index of a value")


@dataclass(frozen=True, slots=True)
class Series:
    """A value over time."""

    name: str
    at_ns: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Stacks:
    """Allocated bytes by stack, in Brendan Gregg's folded form: frames separated by ";", the outermost first.

    The first frame is "outside TLABs" or "new TLABs" (whose bytes are the TLAB's); the last is the object's class.
    """

    folded: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A probe's remark about its numbers: why one is unavailable, what was lost, what could not be parsed."""

    source: str
    text: str
    invalidates: bool = False
    """Two sources of one number disagree: the run is invalid."""


InvalidKind = Literal[
    "link check", "no report", "nothing sent", "bytes", "documents", "no response", "generator", "probe", "files"
]


@dataclass(frozen=True, slots=True)
class InvalidReason:
    """A condition that did not hold and makes a completed run invalid, with a sentence about it."""

    kind: InvalidKind
    text: str


@dataclass(frozen=True, slots=True)
class Interval:
    """A span with a cause; the end is excluded."""

    cause: str
    start_ns: int
    end_ns: int
    thread: str = ""
    """The affected thread; empty: the whole process, or not a process."""
    port: int = 0
    """The affected connection of the load, by local port; 0: not a single connection."""


@dataclass(frozen=True, slots=True)
class CauseIntervals:
    """Intervals of a cause that was watched for during the whole measurement. No intervals: it did not occur."""

    cause: str
    intervals: tuple[Interval, ...]
    node: int | None = None
    blocks_responses: bool = False
    """This cause blocks all responses; any response during an interval rules it out."""
    is_instant: bool = False
    """The cause has no duration of its own: its effect begins with it and ends at an unknown time."""
    delays_sending: bool = False
    """This cause delays requests before they are sent."""
    varies_in_strength: bool = False
    """Its strength varies: an interval without waiting requests says little about another interval."""
    starves_cpu: bool = False
    """Threads get no CPU during it: whatever a thread does meanwhile takes longer."""
    timing_error_ns: int = 50_000_000
    """Maximum error of an interval's start and end. The default is that of ten samples a second."""


ProbeOutput = Reading | Histogram | Series | Stacks | Note | CauseIntervals

# One socket read of the load's connections in `raw/reads.bin`, as little-endian numpy types. `end_ns` is
# CLOCK_REALTIME, `port` the load's local port. bytes 0: no data available, -1: end of stream; the server
# allocated a buffer for these, too. Blocks are in the recording's order: sort by `end_ns`, stably, before use.
READ_FIELDS: tuple[tuple[str, str], ...] = (("end_ns", "<i8"), ("bytes", "<i4"), ("port", "<i4"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPhase:
    """A named phase of a run and its duration."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """A fault that was injected."""

    kind: str
    start_ns: int
    end_ns: int | None = None
    """None: it was still active when the run failed."""
    direction: str = ""
    link: str = ""
    """The affected links: "clients" or "peers"; empty: not a fault of a link."""
    node: int | None = None
    """None: all nodes."""
    effect: str = ""
    """Observed effect, such as the number of connections that were reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A possible cause of a stall: all its intervals on one thread, connection or node."""

    cause: str
    duration_ns: int
    """Duration within the stall."""
    thread: str = ""
    port: int = 0
    node: int | None = None
    reason: str = ""
    """Why it is ruled out or undecided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A span in which requests waited far longer than usual."""

    start_ns: int
    end_ns: int
    requests: int
    """Number of slow requests; 0: throughput fell, but no request was slow."""
    max_concurrent: int
    """Maximum number of them at one moment."""
    longest_response_ns: int
    """The longest response time among them."""
    causes: tuple[Cause, ...]
    """The attributed causes, longest first; empty: unexplained. Causes that cover the same requests are
    indistinguishable."""
    unexplained_ns: int
    """Time during which requests waited without an attributed cause."""
    ruled_out: tuple[Cause, ...]
    """Watched causes that are ruled out."""
    undecided: tuple[Cause, ...] = ()
    """Causes that occurred during the stall and are neither attributed nor ruled out."""
    phases: tuple[tuple[str, int], ...] = ()
    """Phases of the longest request and their durations (`analysis.stalls`); empty: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """Size and hash of a file when it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObserver:
    """An observer on the machine of a node. The times in the raw files of that node are on its clock."""

    pid: int
    """The JVM that it watched; a pid of that machine."""
    clock: ClockOffset
    """Of CLOCK_REALTIME; with the name of the machine."""


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
    phases: tuple[RunPhase, ...] = ()
    link_checks: tuple[LinkCheck, ...] = ()
    netem_backend: str = ""
    server: dict[str, Any] = field(default_factory=dict)
    """Facts about the server: version, java, allocator, pid, host, port."""
    host: dict[str, str] = field(default_factory=dict)
    """Settings of the server's machine, by the keys of [host]; those that are equal on all machines of observers. Empty
    if they are unknown."""
    documents_counted: int | None = None
    counters: Counters = field(default_factory=dict)
    """The server's counters after the load; empty if it has none."""
    warm_up_ns: int | None = None
    """From the first request to the measurement: as configured, or as detected."""
    measure_start_realtime_ns: int | None = None
    measure_end_realtime_ns: int | None = None
    clock_offsets: tuple[ClockOffset, ...] = ()
    """Offsets of the load workers on other machines, one for each load."""
    observers: tuple[NodeObserver, ...] = ()
    """Observers on other machines, in the order of the nodes."""
    link: dict[str, ColumnValue] = field(default_factory=dict)
    """Readings of the clients' links (sum or median of all nodes): retransmits, mss, drops …"""
    node_links: tuple[dict[str, ColumnValue], ...] = ()
    """The same for the link to each node; empty for a single node."""
    address_nodes: tuple[int, ...] = ()
    """Number of the attached node at each address of the load; empty: unknown."""
    out_of_memory: str = ""
    """The exhausted memory: heap, direct, metaspace …"""
    out_of_memory_realtime_ns: int | None = None
    faults: tuple[FaultRecord, ...] = ()
    skipped: tuple[str, ...] = ()
    """Skipped operations of a track."""
    files: dict[str, FileDigest] = field(default_factory=dict)
    """The run's files, by path relative to its folder."""
    notes: tuple[str, ...] = ()
    """Deviations from the experiment, such as an analyzer that the server lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run as one row of values by column, with its histograms and series."""

    run: str
    cell: str
    replicate: int
    levels: dict[str, str]
    instrumented: bool = False
    """Costly probes watched: rates and response times are left out of throughput tables and plots."""
    state: RunState
    reason: str
    invalid_for: tuple[InvalidKind, ...] = ()
    """Why a completed run is invalid, in the order of detection."""
    values: dict[str, ColumnValue]
    histograms: dict[str, dict[int, int]] = field(default_factory=dict)
    series: dict[str, Series] = field(default_factory=dict)
    experiment: str = ""
    headline: str = HEADLINE
    """The column that answers the experiment's question."""
    measure_start_ns: int | None = None
    """None if the measurement was never reached."""
    measure_end_ns: int | None = None
    faults: tuple[FaultRecord, ...] = ()
    notes: tuple[Note, ...] = ()
    """Notes of the probes."""
    nodes: tuple[dict[str, ColumnValue], ...] = ()
    """Values of each node, by column; empty for a single node."""
    stalls: tuple[Stall, ...] = ()
    stacks: dict[str, int] = field(default_factory=dict)
    """Allocated bytes by stack, as in `Stacks`; empty without the probe."""

    @property
    def measured_s(self) -> float:
        """Return the length of the measurement; 0 if it is unknown."""
        start_ns, end_ns = self.measure_start_ns, self.measure_end_ns
        return 0.0 if start_ns is None or end_ns is None else max(0, end_ns - start_ns) / 1e9

    @property
    def load_span_s(self) -> tuple[float, float]:
        """Return the first second of the load and the end of the measurement, in seconds from its start."""
        load = self.series.get("docs_per_s")
        begin_s = self.seconds(load.at_ns[0]) if load and load.at_ns else 0.0
        return min(0.0, begin_s), self.measured_s

    def seconds(self, at_ns: int) -> float:
        """Return a time in seconds from the start of the measurement."""
        return (at_ns - (self.measure_start_ns or 0)) / 1e9

    @property
    def ending(self) -> str:
        """Return the state with its reason: "invalid: the bytes differ"."""
        return f"{self.state}: {self.reason}" if self.reason else self.state
