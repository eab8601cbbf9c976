"""When and how it is sent, and what each request saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from ingest_bench.model.values import (
    GIB,
    HOUR,
    MS,
    Between,
    FilePath,
    Label,
    Line,
    Moment,
    Name,
    NodeNumber,
    S,
    Seed,
    Several,
    Share,
    Value,
)
from ingest_bench.model.workload import BulkAction, BulkDocuments, Users

ArrivalShape = Literal["closed", "constant", "poisson", "ramp", "steps", "sine", "recorded"]
RateUnit = Literal["requests", "documents", "bytes"]
# A measurement ends after a day (load.plan), the longest warm-up too; tracks have several of them. What was changed for
# a run is taken back after that time at the latest; when somebody dies, the watchdog does so at once.
LONGEST_LOAD_S = 30 * 24 * 3600
# More than one machine of today can do: wrk's million of requests, and the bytes of 800 Gbit/s.
MOST_PER_S: Mapping[RateUnit, float] = {"requests": 1e6, "documents": 1e8, "bytes": 1e11}
# The shortest and the longest measurement.
LEAST_NS, LONGEST_NS = 100 * MS, 24 * HOUR
# Less than one in a day would be none in any measurement.
LEAST_PER_S = 1 / 86_400
# The share of the requests of which not every document was acknowledged, as a condition calls it.
ERRORS = "errors"
AbortNumber = Literal["errors", "p50", "p99", "p99.9", "max"]
ABORT_NUMBERS: tuple[str, ...] = get_args(AbortNumber)
LongTime = Annotated[int, Between(0, 24 * HOUR, "longer is no benchmark")]


@dataclass(frozen=True, slots=True)
class Rate:
    """So much of something in a second. Its text form is "2000/s", "10000docs/s", "50MB/s" or "90/min"."""

    per_s: Annotated[float, Between(0, max(MOST_PER_S.values()))]
    unit: RateUnit = "requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """When requests are due. Each shape has a text form, as a factor's level has it.

    "closed", "2000/s" (constant), "poisson 2000/s", "ramp 100/s..2000/s 30s" (then it stays),
    "steps 100/s 200/s 400/s 10s" (each so long, the last one stays), "sine 1000/s 50% 60s" (mean, amplitude, period),
    "recorded FILE" (a number a line: seconds).
    """

    shape: ArrivalShape = "closed"
    rate: Rate | None = None
    """The mean; a ramp's beginning."""
    to: Rate | None = None
    """A ramp's end."""
    rates: Annotated[tuple[Rate, ...], Several(0, 1000)] = ()
    period_ns: LongTime = 0
    """How long a ramp, one step, or one turn of the sine takes."""
    amplitude_ppm: Share = 0
    """Of a sine, as a share of its mean."""
    file: FilePath | None = None

    @property
    def is_open(self) -> bool:
        """Whether a clock decides, and not the answer to the request before."""
        return self.shape != "closed"

    @property
    def unit(self) -> RateUnit:
        """What its rates count."""
        return next((rate.unit for rate in (self.rate, *self.rates) if rate is not None), "requests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """When a load is given up while it runs. Its text form is "errors > 5% for 10s".

    Looked at is each second of the measurement in which requests ended. Once so much time lies between two of them that
    broke the condition, and none between them kept it, the load is ended.
    """

    number: AbortNumber
    above: Annotated[float, Between(0, 24 * HOUR / MS)]
    """Milliseconds of the response time; of errors a share, 0 to 1."""
    for_ns: Annotated[int, Between(S, 24 * HOUR, "figures come each second")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackChoice:
    """A folder with a Rally track or an OpenSearch Benchmark workload, and what is chosen of it."""

    path: FilePath
    """Its folder, or a .json file that is all of it."""
    parameters: Annotated[dict[Line, Value], Several(0, 1000)] = field(default_factory=dict)
    """The track's own parameters, by name."""
    challenge: Label | None = None
    """A challenge (test procedure) by name; None: the track's default one."""
    test_mode: bool = False
    """A thousand documents of each file, without warm-up and target rates."""
    include_tasks: Annotated[tuple[Label, ...], Several(0, 100, separator=",")] = ()
    """Only these tasks: by name, `type:bulk` or `tag:setup`."""
    exclude_tasks: Annotated[tuple[Label, ...], Several(0, 100, separator=",")] = ()
    """All tasks but these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How documents go to a server: a protocol and its keys, as TOML has them.

    A target says it, the protocol reads it.
    """

    protocol: Name = "bulk"
    """A key of `protocols.PROTOCOLS`."""
    keys: Annotated[dict[Name, Value], Several(0, 100)] = field(default_factory=dict)
    written: Line = "protocol"
    """Where they are written, for errors."""

    @property
    def place(self) -> str:
        """Where documents go, in one word: a path, or the name of a protocol without one."""
        return str(self.keys.get("path", self.protocol))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The `[load]` of an experiment. `None` takes the workload's published value."""

    workload: FilePath = "nyc_taxis"
    """A workload by name, or a file."""
    documents: FilePath | None = None
    """A file of documents or ready bulk bodies (NDJSON, also .gz .bz2 .zst .zip .tar) instead of synthetic ones."""
    track: TrackChoice | None = None
    """A track in place of a workload: it then says everything that is sent, and how."""
    users: Users | None = None
    """How many send at the same time, each over a connection of its own; None: the workload's."""
    ramp_up_ns: LongTime = 0
    """Over which time the users start, one after the other; the warm-up is at least as long."""
    think_time_ns: LongTime = 0
    """How long a user of a closed loop waits after each answer. No response time has it: nothing is due then."""
    bulk_documents: BulkDocuments | None = None
    """Documents in a request; None: the workload's."""
    bulk_bytes: Annotated[int, Between(1, GIB, "a server takes 100 MB unless it is told otherwise")] | None = None
    """Bytes in a request at most, in place of `bulk_documents`."""
    action: BulkAction = field(default_factory=BulkAction)
    """What a bulk does with its documents: a table of its own."""
    gzip: bool = False
    """Whether bodies are sent compressed."""
    arrivals: Arrivals = Arrivals()
    """When requests are due: in a closed loop, or by a clock."""
    retries: Annotated[int, Between(0, 1000, "what was rejected so often will be again")] = 5
    """How often documents are sent again: after a 429, and where they cannot be stored twice (each has an id of ours,
    or nothing was sent yet) also after a 503 and a broken connection."""
    on_error: Literal["continue", "abort"] = "continue"
    """What comes after a request that failed: the next one, or the end of the load. One that is tried again has not."""
    query_users: Annotated[int, Between(0, 28_232, "the local ports that Linux has for connections to one server")] = 0
    """Users that send the workload's queries beside the indexing, in connections of their own."""
    query_arrivals: Arrivals = Arrivals()
    """When queries are due. Rates count requests."""
    processes: Annotated[int, Between(1, 256, "each takes a core")] = 1
    """How many processes the users are spread over."""
    nodes: NodeNumber | Literal["all"] = "all"
    """Where connections lead: to all nodes of a server of ours in turn, or to one of them."""
    warm_up_ns: LongTime | Literal["auto"] = 3 * S
    """"auto": the measurement begins where the samples say that the load was steady."""
    measure_ns: Annotated[int, Between(LEAST_NS, LONGEST_NS, "shorter shows nothing, longer is no benchmark")] = 10 * S
    """How long the measurement is."""
    measure_documents: Annotated[int, Between(1, 10**11, "a day at a million a second")] | None = None
    """The measurement ends once so many documents are acknowledged, however long that takes, in place of `measure`.
    It is given up when every request has failed for 5 minutes."""
    abort: Annotated[tuple[Abort, ...], Several(0, 10, separator=",")] = ()
    """The load is given up as soon as one of them is broken; the run is then "aborted"."""
    seed: Seed = 1
    """What decides documents, bodies and random moments. The same seed sends the same."""
    timeout_ns: Annotated[int, Between(MS, 24 * HOUR, "no answer comes sooner; longer is no benchmark")] = 60 * S
    """How long a request may take, connecting included."""

    @property
    def longest_warm_up_ns(self) -> int:
        """What the load runs before the measurement at most: where the data decide, as long as is measured.

        What ends in the second half of the data is not known to have ended.
        """
        return self.warm_up_ns if isinstance(self.warm_up_ns, int) else self.measure_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """How far the CLOCK_MONOTONIC of another machine's worker was ahead of ours; its samples are on our clock."""

    worker: int
    machine: str = ""
    """Its host name, and from where it joined."""
    before_ns: int = 0
    """Measured before the load; the offset is not known better than half the round trip."""
    before_at_ns: int = 0
    """When that was, on our clock."""
    after_ns: int = 0
    """Measured after the load. Between the two moments the offset is taken to change evenly."""
    after_at_ns: int = 0
    round_trip_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a load worker says at its end, beside its samples (`load.json`)."""

    started_monotonic_ns: Moment
    realtime_minus_monotonic_ns: int
    warm_up_end_ns: Moment
    measure_end_ns: Moment
    bytes_written: int
    """Every byte given to the kernel on the load's own connections, headers included, from start to end."""
    local_ports: tuple[int, ...]
    item_failures: dict[str, int]
    """Failed items of bulk answers by "status type", such as "429 es_rejected_execution_exception"."""
    cpu_ns: int
    """Of all workers, from start to end."""
    loop_lag_p99_ns: int
    """How late a timer came around in the worst worker's event loop."""
    errors: tuple[str, ...]
    loop_lags: int | None = None
    """How many timers `loop_lag_p99_ns` is of; None: a report of before this was counted."""
    documents_resent: int = 0
    """Documents that were sent again, each time counted."""
    documents_repeated: int = 0
    """Acknowledged documents whose id had been given before: they do not add to the index."""
    tickets_waited: int = 0
    """Open loop: requests that were due when no user was free."""
    tickets_unsent: int = 0
    """Of these, the ones that were never sent: they are samples too, cut off at the end."""
    queue_p99_ns: int = 0
    """Open loop: from due to a user that was free, the generator's own delay."""
    queue_delays: int | None = None
    """How many requests that was of, in the worst worker."""
    is_open: bool = False
    load_end_ns: Moment = 0
    """The end of the load where it went on after the measurement; else 0."""
    longest_silence_ns: int = 0
    """The longest time between two heartbeats of a worker, of which there is one a second: a pause shows here."""
    clock_offsets: tuple[ClockOffset, ...] = ()
    """Of the workers on other machines."""
    bytes_unread: int = 0
    """Of requests that were refused, each as the last one on its connection: nothing shows that they were read."""
    addresses: tuple[str, ...] = ()
    """Where the load went: a sample's `address` is a place in it. Empty where a library picked the node."""
