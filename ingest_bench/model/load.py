"""Requests and their schedule: documents and workloads, tracks, arrivals, and the `[load]` of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, get_args

from ingest_bench.model.values import (
    GIB,
    HOUR,
    MS,
    Between,
    FilePath,
    JsonValue,
    Label,
    Length,
    Line,
    Name,
    NodeNumber,
    Pattern,
    S,
    Seed,
    Share,
)

Users = Annotated[int, Between(1, 28_232, "the local ports that Linux has for connections to one server")]
BulkDocuments = Annotated[int, Between(1, 1_000_000, "a hundred times the largest published bulk")]
# A field name stands between quotes in documents.
FieldName = Annotated[
    str,
    Pattern(r'[^"\\\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,255}', "a field's name: at most 255 characters without quotes"),
]
# MetadataCreateIndexService.validateIndexName of OpenSearch, restricted to ASCII.
IndexName = Annotated[
    str,
    Pattern(
        r"[a-z0-9.][a-z0-9._+-]{0,199}", "an index's name: at most 200 of a-z, 0-9, dot, hyphen, plus and underscore"
    ),
]
Conflicts = Literal["none", "sequential", "random"]
ArrivalShape = Literal["closed", "constant", "poisson", "ramp", "steps", "sine", "burst", "recorded"]
RateUnit = Literal["requests", "documents", "bytes"]
# Measurement and warm-up last at most a day each (load.plan); tracks have several of both. Changes made for a run are
# undone after this time at the latest. The watchdog undoes them at once when the process dies.
MAX_LOAD_S = 30 * 24 * 3600
# Beyond what one machine can do: wrk sends a million requests; 100 GB/s are 800 Gbit/s.
MAX_PER_S: Mapping[RateUnit, float] = {"requests": 1e6, "documents": 1e8, "bytes": 1e11}
MIN_MEASURE_NS, MAX_MEASURE_NS = 100 * MS, 24 * HOUR
# One per day: a lower rate sends nothing in any measurement.
MIN_PER_S = 1 / 86_400
# The abort metric for the share of requests of which not every document was acknowledged.
ERRORS = "errors"
AbortMetric = Literal["errors", "p50", "p99", "p99.9", "max"]
ABORT_METRICS: tuple[str, ...] = get_args(AbortMetric)
LoadTime = Annotated[int, Between(0, 24 * HOUR, "longer is no benchmark")]
Operation = Literal[
    "bulk",
    "cluster-health",
    "create-component-template",
    "create-composable-template",
    "create-data-stream",
    "create-index",
    "create-index-template",
    "delete-component-template",
    "delete-composable-template",
    "delete-data-stream",
    "delete-index",
    "delete-index-template",
    "delete-pipeline",
    "force-merge",
    "index-stats",
    "put-pipeline",
    "refresh",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentField:
    """One field of a synthetic document: a generator by name, with its arguments.

    In TOML the arguments are keys of the same table: `{ name = "age", kind = "integer", minimum = 0, … }`.
    """

    name: FieldName
    kind: Name
    """A key of `documents.generate.GENERATORS`."""
    row: Line = ""
    """Fields with the same row name take their values from the same row of their tables."""
    present: Annotated[float, Between(0, 1)] = 1.0
    """The fraction of the documents that have this field."""
    distinct: Annotated[int, Between(1, 10_000_000, "they are made before the load starts")] = 16384
    """Number of distinct values to generate; documents draw from them."""
    options: Annotated[dict[Line, JsonValue], Length(0, 100)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A search that can be sent during indexing."""

    name: Label
    body: dict[Line, JsonValue]
    weight: Annotated[int, Between(1, 1_000_000)] = 1
    """Relative frequency among the workload's queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAction:
    """Options of a bulk: ids and indices of its documents, and parameters of the request."""

    conflicts: Conflicts = "none"
    """`none`: the server generates ids. The others send ids, and repeat a share of them."""
    conflict_probability_ppm: Share = 250_000
    """The share of ids that were sent before."""
    operation: Literal["index", "create"] = "index"
    """`create` is required by data streams, and rejects an existing id."""
    on_conflict: Literal["index", "update"] = "index"
    """The operation for an id that was sent before."""
    indices: Annotated[int, Between(1, 1000, "the default limit of shards per node")] = 1
    """More than one: documents go to `index-0`, `index-1`, … in turn."""
    pipeline: Label | None = None
    """The ingest pipeline of the documents."""
    refresh: Literal["true", "false", "wait_for"] | None = None
    """The parameter `refresh` of each bulk; None: it is not sent."""

    def index_names(self, index: str) -> tuple[str, ...]:
        """Return the names of the indices that documents go to."""
        return (index,) if self.indices == 1 else tuple(f"{index}-{number}" for number in range(self.indices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One file of `workloads/`: a published corpus, and how to generate documents like it."""

    name: Label
    description: Line
    source: Line
    index: IndexName
    published_documents: Annotated[int, Between(1, 10**12)]
    published_bytes: Annotated[int, Between(1, 1_000_000 * GIB)]
    bulk_documents: BulkDocuments
    users: Users
    mapping: dict[Line, JsonValue]
    """Body of the index's creation: settings and typeless mappings. A target adapts them to its version."""
    fields: Annotated[tuple[DocumentField, ...], Length(1, 10_000)]
    queries: Annotated[tuple[Query, ...], Length(0, 1000)] = ()

    @property
    def mean_document_bytes(self) -> float:
        """Return the mean size of a published document, including its line feed."""
        return self.published_bytes / self.published_documents


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate per second. Its text form is "2000/s", "10000docs/s", "50MB/s" or "90/min"."""

    per_s: Annotated[float, Between(0, max(MAX_PER_S.values()))]
    unit: RateUnit = "requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """The schedule of requests. Each shape has a text form, used for factor levels.

    "closed", "2000/s" (constant), "poisson 2000/s", "ramp 100/s..2000/s 30s" (constant afterwards),
    "steps 100/s 200/s 400/s 10s" (10 s each, the last rate continues), "sine 1000/s 50% 60s" (mean, amplitude, period),
    "burst 64 10s" (64 at once every 10 s, idle in between), "recorded FILE" (one number per line: seconds).
    """

    shape: ArrivalShape = "closed"
    rate: Rate | None = None
    """Mean rate; a ramp's first rate."""
    end_rate: Rate | None = None
    """A ramp's last rate."""
    rates: Annotated[tuple[Rate, ...], Length(0, 1000)] = ()
    period_ns: LoadTime = 0
    """Duration of a ramp, of one step, or of one sine period; time from one burst to the next."""
    amplitude_ppm: Share = 0
    """Amplitude of a sine, as a share of its mean."""
    requests: Annotated[int, Between(0, 28_232, "each needs a user of its own")] = 0
    """Requests of a burst."""
    file: FilePath | None = None

    @property
    def is_open_loop(self) -> bool:
        """Return whether a clock schedules requests, instead of the previous response."""
        return self.shape != "closed"

    @property
    def unit(self) -> RateUnit:
        """Return the unit of the rates."""
        return next((rate.unit for rate in (self.rate, *self.rates) if rate is not None), "requests")


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortCondition:
    """A condition that ends a load early. Its text form is "errors > 5% for 10s".

    It is evaluated for each second of the measurement in which requests ended. The load ends when two such seconds lie
    at least `for_ns` apart, both violate the limit, and so does each one between them.
    """

    metric: AbortMetric
    above: Annotated[float, Between(0, 24 * HOUR / MS)]
    """Milliseconds of the response time; for errors a fraction, 0 to 1."""
    for_ns: Annotated[int, Between(S, 24 * HOUR, "figures come each second")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackOptions:
    """A Rally track or OpenSearch Benchmark workload, and the selection from it (`[load.track]`)."""

    path: FilePath
    """Its folder, or a self-contained .json file."""
    parameters: Annotated[dict[Line, JsonValue], Length(0, 1000)] = field(default_factory=dict)
    """The track's own parameters, by name."""
    challenge: Label | None = None
    """A challenge (test procedure) by name; None: the track's default one."""
    test_mode: bool = False
    """Send a thousand documents of each file, without warm-up and target rates."""
    include_tasks: Annotated[tuple[Label, ...], Length(0, 100, separator=",")] = ()
    """Run only these tasks: by name, `type:bulk` or `tag:setup`."""
    exclude_tasks: Annotated[tuple[Label, ...], Length(0, 100, separator=",")] = ()
    """Run all tasks except these."""


HTTP_PROTOCOLS = frozenset({"bulk", "json-array"})
GRPC = "opensearch-grpc"
"""A protocol that always has a connection of HTTP/2."""
# RFC 9113, 6.9.1 and 6.9.2: the largest window, and that of a connection at its start. 1 GiB as h2load.
_MAX_WINDOW_BYTES, _INITIAL_WINDOW_BYTES, _LARGE_WINDOW_BYTES = 2**31 - 1, 65_535, GIB - 1


class Http2Windows(NamedTuple):
    """Flow-control windows that a client of HTTP/2 gives the server for its responses."""

    stream_bytes: int
    connection_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolOptions:
    """A protocol and its keys as in TOML. Set by a target, parsed by the protocol."""

    protocol: Name = "bulk"
    """A key of `protocols.PROTOCOLS`."""
    keys: Annotated[dict[Name, JsonValue], Length(0, 100)] = field(default_factory=dict)
    toml_key: Line = "protocol"
    """The TOML key that holds these keys, for error messages."""

    @property
    def destination(self) -> str:
        """Return the path that documents go to, or the protocol's name if it has no path."""
        return str(self.keys.get("path", self.protocol))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The `[load]` of an experiment. `None` means the workload's published value."""

    workload: FilePath = "nyc_taxis"
    """A workload by name, or a file."""
    documents: FilePath | None = None
    """A file of documents or ready bulk bodies (NDJSON, also .gz .bz2 .zst .zip .tar) instead of synthetic ones."""
    text_lines: bool = False
    """Whether each line of `documents` is one document of any text, such as CSV, instead of a JSON object."""
    mapping: FilePath | None = None
    """A JSON file with the mapping of the index of `documents`; None: the server maps each new field."""
    index_settings: FilePath | None = None
    """A JSON file with the settings of that index; None: one shard, and the server's defaults."""
    track: TrackOptions | None = None
    """A track instead of a workload: it defines everything that is sent."""
    users: Users | None = None
    """Number of concurrent users, each with its own connection; None: the workload's."""
    ramp_up_ns: LoadTime = 0
    """Time over which users start one by one; the warm-up is at least as long."""
    think_time_ns: LoadTime = 0
    """Closed loop: pause of a user after each response. Response times exclude it."""
    bulk_documents: BulkDocuments | None = None
    """Documents per request; None: the workload's."""
    bulk_bytes: Annotated[int, Between(1, GIB, "a server takes 100 MB unless it is told otherwise")] | None = None
    """Maximum bytes per request, instead of `bulk_documents`."""
    action: BulkAction = field(default_factory=BulkAction)
    """Ids, indices and parameters of bulks (a table)."""
    gzip: bool = False
    """Whether bodies are compressed."""
    http_version: Literal["1.1", "2"] = "1.1"
    """The version of HTTP for bulk and json-array. 2: without TLS by prior knowledge (h2c), with TLS by ALPN."""
    http2_stream_window_bytes: Annotated[int, Between(1, _MAX_WINDOW_BYTES, "RFC 9113")] | None = None
    """HTTP/2: the window of a response; None: 1 GiB. The window of a request is a setting of the server."""
    http2_connection_window_bytes: (
        Annotated[int, Between(_INITIAL_WINDOW_BYTES, _MAX_WINDOW_BYTES, "RFC 9113")] | None
    ) = None
    """HTTP/2: the window of all responses of a connection; None: 1 GiB."""
    arrivals: Arrivals = Arrivals()
    """When requests are due: in a closed loop, or by a clock."""
    retries: Annotated[int, Between(0, 1000, "what was rejected so often will be again")] = 5
    """Maximum resends of documents after a 429. Documents that cannot be stored twice (they have ids, or nothing was
    sent yet) are also resent after a 503 and after a broken connection."""
    on_error: Literal["continue", "abort"] = "continue"
    """Whether a failed request ends the load. A request that is retried has not failed."""
    query_users: Annotated[int, Between(0, 28_232, "the local ports that Linux has for connections to one server")] = 0
    """Users that send the workload's queries during indexing, on their own connections."""
    query_arrivals: Arrivals = Arrivals()
    """When queries are due. Rates count requests."""
    processes: Annotated[int, Between(1, 256, "each takes a core")] = 1
    """Number of processes that share the users."""
    nodes: NodeNumber | Literal["all"] = "all"
    """Connect to all nodes of a launched server in turn, or to this one."""
    warm_up_ns: LoadTime | Literal["auto"] = 3 * S
    """"auto": the measurement begins when the samples show a steady load."""
    measure_ns: Annotated[
        int, Between(MIN_MEASURE_NS, MAX_MEASURE_NS, "shorter shows nothing, longer is no benchmark")
    ] = 10 * S
    """Length of the measurement."""
    measure_documents: Annotated[int, Between(1, 10**11, "a day at a million a second")] | None = None
    """Instead of `measure`: measure until this many documents are acknowledged. The load is ended if all requests fail
    for 5 minutes."""
    abort: Annotated[tuple[AbortCondition, ...], Length(0, 10, separator=",")] = ()
    """Conditions that end the load early; the run is then "aborted"."""
    seed: Seed = 1
    """Seed of documents, bodies and random times. The same seed sends the same load."""
    timeout_ns: Annotated[int, Between(MS, 24 * HOUR, "no answer comes sooner; longer is no benchmark")] = 60 * S
    """Time limit of a request, including connecting."""

    @property
    def http2_windows(self) -> Http2Windows | None:
        """Return the windows of responses; None for HTTP/1.1."""
        if self.http_version == "1.1":
            return None
        return Http2Windows(
            self.http2_stream_window_bytes or _LARGE_WINDOW_BYTES,
            self.http2_connection_window_bytes or _LARGE_WINDOW_BYTES,
        )

    @property
    def max_warm_up_ns(self) -> int:
        """Return the longest possible warm-up; for "auto" it is the length of the measurement.

        A transient that ends in the second half of the data cannot be confirmed to have ended.
        """
        return self.warm_up_ns if isinstance(self.warm_up_ns, int) else self.measure_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackIndex:
    """An index that the track declares."""

    name: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSource:
    """Origin and size of a corpus file as the track states them. None: not stated."""

    url: str = ""
    """Download URL; empty: not stated."""
    compressed_bytes: int | None = None
    uncompressed_bytes: int | None = None
    documents: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackFile:
    """A file of a corpus, and the index of its documents."""

    path: str
    """The file's path, whether it exists or must be downloaded."""
    index: str
    """Empty if the file's action lines name the index."""
    has_action_lines: bool = False
    """An action line precedes each document."""
    is_text: bool = False
    """Documents are lines of any text, instead of JSON objects."""
    is_data_stream: bool = False
    """`index` is a data stream, which accepts only `create`."""
    documents: int | None = None
    """Number of documents to send; None sends all."""
    end_bytes: int | None = None
    """Offset of their end in an uncompressed file, computed once for all workers."""
    origin: CorpusSource = CorpusSource()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRequest:
    """One request of a step that is not a bulk."""

    method: Literal["GET", "PUT", "POST", "DELETE"]
    path: str
    """Path with query string."""
    body: dict[str, Any] | None = None
    accepted_statuses: tuple[int, ...] = (200,)
    until_path: str = ""
    """Dotted path in the response: the request is repeated until it holds `until_value`."""
    until_value: Any = None
    timeout_ns: int = 60 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One task of a track's schedule."""

    name: str
    operation: Operation
    clients: int = 1
    warm_up_ns: int = 0
    time_period_ns: int = 0
    """Duration after the warm-up, unless the corpus ends first; 0: until it ends."""
    rate: Rate | None = None
    """None: closed loop."""
    is_poisson: bool = False
    """Requests arrive independently of each other, at the mean `rate`."""
    ramp_up_ns: int = 0
    """Time over which the clients start one by one."""
    ramp_clients_before: int = 0
    """Clients of parallel tasks that start before the first client of this step."""
    ramp_clients_total: int = 0
    """Clients of all tasks that ramp up together; 0: those of this step."""
    looped: bool = False
    """Files are sent repeatedly until the step is ended by its time or its group."""
    bulk_documents: int = 0
    action: BulkAction = field(default_factory=BulkAction)
    query: str = ""
    """Query string of each bulk, in addition to the fields of `action`."""
    timeout_ns: int = 0
    """Time limit of a bulk; 0: that of the load."""
    ignores_errors: bool = False
    """Requests may fail even if the load's `on_error` is "abort"."""
    files: tuple[TrackFile, ...] = ()
    requests: tuple[AdminRequest, ...] = ()
    """The requests of operations other than bulk, in order."""
    group: int = 0
    """Steps of the same nonzero group run concurrently."""
    completes_group: bool = False
    """The end of this step ends the other steps of its group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One challenge (test procedure) of a track."""

    name: str
    description: str
    challenge: str
    indices: tuple[TrackIndex, ...]
    streams: tuple[str, ...]
    """Its data streams."""
    steps: tuple[Step, ...]
    skipped: tuple[str, ...]
    """Skipped operations of the schedule, by name and type."""
    notes: tuple[str, ...] = ()
    """Differences from what Rally or OpenSearch Benchmark do."""
