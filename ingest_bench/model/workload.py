"""What is sent: documents and how they are bundled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ingest_bench.model.values import GIB, Between, Form, Label, Line, Name, Several, Share, Value

Users = Annotated[int, Between(1, 28_232, "the local ports that Linux has for connections to one server")]
BulkDocuments = Annotated[int, Between(1, 1_000_000, "a hundred times the largest published bulk")]
# It stands in documents, between quotes.
FieldName = Annotated[
    str, Form(r'[^"\\\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,255}', "a field's name: at most 255 characters without quotes")
]
# MetadataCreateIndexService.validateIndexName of OpenSearch, in ASCII.
IndexName = Annotated[
    str,
    Form(r"[a-z0-9.][a-z0-9._+-]{0,199}", "an index's name: at most 200 of a-z, 0-9, dot, hyphen, plus and underscore"),
]

Conflicts = Literal["none", "sequential", "random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentField:
    """One field of a synthetic document: a generator by name, with its arguments.

    In TOML the arguments stand beside `name` and `kind`: `{ name = "age", kind = "integer", minimum = 0, … }`.
    """

    name: FieldName
    kind: Name
    """A key of `documents.generate.GENERATORS`."""
    row: Line = ""
    """Fields with the same row take their values from the same row of their tables, so they belong together."""
    present: Annotated[float, Between(0, 1)] = 1.0
    """The share of the documents that have this field."""
    distinct: Annotated[int, Between(1, 10_000_000, "they are made before the load starts")] = 16384
    """How many values are made; documents draw from them."""
    options: Annotated[dict[Line, Value], Several(0, 100)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A search that can be sent beside the indexing."""

    name: Label
    body: dict[Line, Value]
    weight: Annotated[int, Between(1, 1_000_000)] = 1
    """How often it is drawn, against the weights of the other queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAction:
    """What a bulk does with its documents: their ids, their indices, and the parameters of the request."""

    conflicts: Conflicts = "none"
    """`none`: the server makes the ids. The others give ids, and a share of them were sent before."""
    conflict_probability_ppm: Share = 250_000
    """How many of the ids were sent before."""
    operation: Literal["index", "create"] = "index"
    """`create` is what a data stream takes, and refuses an id that is there."""
    on_conflict: Literal["index", "update"] = "index"
    """What is sent for an id that was sent before."""
    indices: Annotated[int, Between(1, 1000, "a node holds so many shards")] = 1
    """More than one: documents go to `index-0`, `index-1`, … in turn."""
    pipeline: Label | None = None
    """The ingest pipeline that documents go through."""
    refresh: Literal["true", "false", "wait_for"] | None = None
    """The parameter `refresh` of each bulk; None: there is none."""

    def index_names(self, index: str) -> tuple[str, ...]:
        """The indices that documents go to."""
        return (index,) if self.indices == 1 else tuple(f"{index}-{number}" for number in range(self.indices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One file of `workloads/`: the published corpus, and how to make documents like it."""

    name: Label
    description: Line
    source: Line
    index: IndexName
    published_documents: Annotated[int, Between(1, 10**12)]
    published_bytes: Annotated[int, Between(1, 1_000_000 * GIB)]
    bulk_documents: BulkDocuments
    users: Users
    mapping: dict[Line, Value]
    """The body of the index's creation: settings and mappings (typeless; a target adapts them to its version)."""
    fields: Annotated[tuple[DocumentField, ...], Several(1, 10_000)]
    queries: Annotated[tuple[Query, ...], Several(0, 1000)] = ()

    @property
    def mean_document_bytes(self) -> float:
        """The mean size of a published document, its line feed counted."""
        return self.published_bytes / self.published_documents
