"""A Rally track or OpenSearch Benchmark workload, as far as it indexes: what to do, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ingest_bench.model.load import Rate
from ingest_bench.model.workload import BulkAction

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
class TrackIndex:
    """An index that the track declares."""

    name: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackTemplate:
    """A template that the track declares."""

    name: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a file of a corpus comes from, and what the track says about it. None: it says nothing."""

    url: str = ""
    """Empty: nobody says where it can be downloaded."""
    packed_bytes: int | None = None
    unpacked_bytes: int | None = None
    documents: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackFile:
    """Documents of a corpus, and where they go."""

    path: str
    """Where it is, or would be."""
    index: str
    """Empty when the file's own action lines say it."""
    bulk: bool = False
    """Action lines stand between the documents."""
    stream: bool = False
    """They go to a data stream, in which documents can only be created."""
    documents: int | None = None
    """How many of them are sent; None sends all."""
    end_bytes: int | None = None
    """Where those end in a plain file, once it was looked up for all workers together."""
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRequest:
    """One request of a step that is not a bulk."""

    method: Literal["GET", "PUT", "POST", "DELETE"]
    path: str
    """With its query string."""
    body: dict[str, Any] | None = None
    accept: tuple[int, ...] = (200,)
    until_path: str = ""
    """Dotted path in the answer: the request is repeated until `until_value` stands there."""
    until_value: Any = None
    timeout_ns: int = 60 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One task of a schedule."""

    name: str
    operation: Operation
    clients: int = 1
    warm_up_ns: int = 0
    time_period_ns: int = 0
    """How long the step lasts after its warm-up, unless the corpus ends before; 0: until it ends."""
    rate: Rate | None = None
    """None: closed loop."""
    is_poisson: bool = False
    """Whether requests come at the rate's mean, each independent of the others."""
    ramp_up_ns: int = 0
    """Over which time the clients start, one after the other."""
    clients_before: int = 0
    """Clients of parallel tasks that start before the first one of this step."""
    clients_in_all: int = 0
    """Clients of all tasks that ramp up together; 0: those of this step."""
    looped: bool = False
    """Files are sent again and again, until another thing ends the step."""
    bulk_documents: int = 0
    action: BulkAction = field(default_factory=BulkAction)
    query: str = ""
    """The query string of each bulk, in addition to the fields of `action`."""
    timeout_ns: int = 0
    """Time limit of a bulk; 0: that of the load."""
    ignores_errors: bool = False
    """Whether requests may fail also where `on_error` of the load is "abort"."""
    files: tuple[TrackFile, ...] = ()
    requests: tuple[AdminRequest, ...] = ()
    """What the other operations ask of the server, in order."""
    group: int = 0
    """Steps of the same group, other than 0, run at the same time."""
    completes_group: bool = False
    """Whether the others of the group end when this one does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """What a track's folder says, for one of its challenges (test procedures)."""

    name: str
    description: str
    procedure: str
    indices: tuple[TrackIndex, ...]
    streams: tuple[str, ...]
    """Its data streams."""
    steps: tuple[Step, ...]
    skipped: tuple[str, ...]
    """Operations of the schedule that are not done, by name and type."""
    notes: tuple[str, ...] = ()
    """What is done in another way than the track's own tool does it."""
