"""Table of the keys of a bulk operation, its task and a document set: used, harmless, or named in the run's notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ingest_bench.documents.tracks.template import without_marks
from ingest_bench.units import spelled

# These say something about a track to its readers. "#COMMENT" is a comment in published tracks.
_FOR_READERS = frozenset({"name", "meta", "description"})
_COMMENT = "#"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Treatment of each key of one kind of object. A key that is in no list is named as unknown."""

    used: frozenset[str]
    harmless: frozenset[str]
    """Keys that do not change the requests."""
    named: Mapping[str, str]
    """Keys of Rally or OpenSearch Benchmark that change what is sent and are not supported: what happens instead."""

    def select(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the used keys of *table*."""
        return {key: value for key, value in table.items() if key in self.used}

    def notes(self, table: Mapping[str, Any], where: str) -> Iterator[str]:
        """Name each key of *table* that is neither used nor harmless."""
        for key, value in table.items():
            plain = without_marks(key)
            if key in self.used | self.harmless | _FOR_READERS or plain.startswith(_COMMENT) or value is None:
                continue
            if key not in self.named:
                yield f'{where}: "{spelled(plain)}" is not used: the key is unknown here'
            # 0, false and empty are the defaults.
            elif value:
                yield f'{where}: "{key}" is not used: {self.named[key]}'


BULK = Keys(
    used=frozenset(
        (
            *("operation-type", "bulk-size", "corpora", "indices", "data-streams", "ingest-percentage"),
            *("ingest-doc-count", "looped", "conflicts", "conflict-probability", "on-conflict", "pipeline", "refresh"),
            *("request-params", "request-timeout", "timeout"),
        )
    ),
    # They are about how the tools read files and report.
    harmless=frozenset({"batch-size", "detailed-results", "include-in-reporting", "assertions"}),
    named={
        "headers": "requests have no headers of the track",
        "opaque-id": "requests have no X-Opaque-Id",
        "recency": "old ids are drawn evenly",
        "retries_on_429": "load.retries says how often a rejected document is sent again",
        "type": "today's servers have no document types",
    },
)
TASK = Keys(
    used=frozenset(
        (
            *("clients", "warmup-time-period", "time-period", "ramp-up-time-period", "target-throughput"),
            *("target-interval", "schedule", "ignore-response-error-level"),
        )
    ),
    # "operation" is read before, tags only choose tasks, and no server here is serverless.
    harmless=frozenset({"operation", "tags", "run-on-serverless", "serverless"}),
    named={
        "iterations": "the whole corpus is sent",
        "ramp-down-time-period": "all clients end together",
        "warmup-iterations": "only a warmup-time-period is a warm-up",
    },
)
DOCUMENTS = Keys(
    used=frozenset(
        (
            *("source-file", "source-url", "base-url", "source-format", "includes-action-and-meta-data"),
            *("document-count", "compressed-bytes", "uncompressed-bytes", "target-index", "target-data-stream"),
        )
    ),
    harmless=frozenset({"documents"}),
    named={
        "source-file-parts": "join the parts yourself, and put the whole file into the folder of the track",
        "streaming-ingestion": "documents come from files only",
        "target-type": "today's servers have no document types",
    },
)
