"""What is sent: documents and how they are bundled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Conflicts = Literal["none", "sequential", "random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentField:
    """One field of a synthetic document: a generator by name, with its arguments.

    In TOML the arguments stand beside `name` and `kind`: `{ name = "age", kind = "integer", minimum = 0, … }`.
    """

    name: str
    kind: str
    """A key of `documents.generate.GENERATORS`."""
    row: str = ""
    """Fields with the same row take their values from the same row of their tables, so they belong together."""
    present: float = 1.0
    """The share of the documents that have this field."""
    distinct: int = 16384
    """How many values are made; documents draw from them."""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A search that can be sent beside the indexing."""

    name: str
    body: dict[str, Any]
    weight: int = 1
    """How often it is drawn, against the weights of the other queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAction:
    """What a bulk does with its documents: their ids, their indices, and the parameters of the request."""

    conflicts: Conflicts = "none"
    """`none`: the server makes the ids. The others give ids, and a share of them were sent before."""
    conflict_probability_ppm: int = 250_000
    on_conflict: Literal["index", "update"] = "index"
    indices: int = 1
    """More than one: documents go to `index-0`, `index-1`, … in turn."""
    pipeline: str | None = None
    refresh: Literal["true", "false", "wait_for"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One file of `workloads/`: the published corpus, and how to make documents like it."""

    name: str
    description: str
    source: str
    index: str
    published_documents: int
    published_bytes: int
    bulk_documents: int
    users: int
    mapping: dict[str, Any]
    """The body of the index's creation: settings and mappings (typeless; a target adapts them to its version)."""
    fields: tuple[DocumentField, ...]
    queries: tuple[Query, ...] = ()

    @property
    def mean_document_bytes(self) -> float:
        """The mean size of a published document, its line feed counted."""
        return self.published_bytes / self.published_documents
