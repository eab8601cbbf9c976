"""A Rally track or OpenSearch Benchmark workload, as far as it indexes: what to do, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ingest_bench.model.load import Rate
from ingest_bench.model.workload import BulkAction

Operation = Literal["delete-index", "create-index", "cluster-health", "bulk", "refresh", "force-merge", "index-stats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackIndex:
    """An index that the track declares."""

    name: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackFile:
    """Documents of a corpus, and where they go."""

    path: str
    index: str
    """Empty when the file's own action lines say it."""
    bulk: bool = False
    """Action lines stand between the documents."""
    documents: int | None = None
    """How many of them are sent; None sends all."""


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
    bulk_documents: int = 0
    action: BulkAction = field(default_factory=BulkAction)
    files: tuple[TrackFile, ...] = ()
    requests: tuple[AdminRequest, ...] = ()
    """What the other six operations ask of the server, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """What a track's folder says, for one of its challenges (test procedures)."""

    name: str
    description: str
    procedure: str
    indices: tuple[TrackIndex, ...]
    steps: tuple[Step, ...]
    skipped: tuple[str, ...]
    """Operations of the schedule that are not done, by name and type."""
    notes: tuple[str, ...] = ()
    """What is done in another way than the track's own tool does it."""
