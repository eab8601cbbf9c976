"""What is sent: documents and how they are bundled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentField:
    """One field of a synthetic document: a generator by name, with its arguments."""

    name: str
    kind: str
    """A key of `load.documents.GENERATORS`."""
    options: dict[str, Any] = field(default_factory=dict)


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

    @property
    def mean_document_bytes(self) -> float:
        """The mean size of a published document, its line feed counted."""
        return self.published_bytes / self.published_documents
