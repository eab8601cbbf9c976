"""What the protocols of Cassandra have in common: a document is a row, a row has a key of ours, an answer is about all.

The key says that a request may be sent again: a row that comes twice is there once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from ingest_bench.documents.body import draw_reused
from ingest_bench.errors import SpecError
from ingest_bench.model.load import BulkAction
from ingest_bench.model.values import Pattern
from ingest_bench.protocols.verdict import HTTP_ERROR, MESSAGE_BYTES, REJECTED, Verdict, acknowledge_all

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ingest_bench.documents.body import Body
    from ingest_bench.model.load import LoadOptions
    from ingest_bench.protocols.verdict import Response

# DatabaseDescriptor of Cassandra 0.7 and SchemaConstants of 4 and 5: \w+, and of these at most 48.
Keyspace = Annotated[str, Pattern(r"[A-Za-z0-9_]{1,48}", "a keyspace's name: A-Z, a-z, 0-9 and underscore")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKeys:
    """The keys of such a protocol."""

    keyspace: Keyspace
    """Where the tables are (column families), which are called as the indices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProtocol:
    """Documents for tables, in turn."""

    picks_nodes: ClassVar[bool] = False
    max_documents: ClassVar[None] = None
    protocol: ClassVar[str]
    """As PROTOCOLS has it."""
    table: ClassVar[str]
    """What it calls a table."""

    action: BulkAction

    @classmethod
    def check(cls, options: LoadOptions) -> None:
        """SpecError for what such a protocol has not."""
        action = options.action
        if options.gzip:
            raise SpecError(f"load.gzip: {cls.protocol} sends no compressed bodies")
        if action.pipeline is not None or action.refresh is not None or action.operation == "create":
            raise SpecError(
                f"load.action: {cls.protocol} has no pipelines, no refresh and no create; these are of the bulk API"
            )
        if action.conflicts != "none" and action.indices != 1:
            raise SpecError(
                f"load.action: a key that comes again may come to another {cls.table}, and {cls.protocol} does not say "
                "which rows are new; take out conflicts or indices"
            )

    def for_file(self, path: Path, *, has_action_lines: bool, index: str | None, is_data_stream: bool = False) -> Self:
        """The same for the documents of a file; SpecError for ready bulk bodies."""
        del index, is_data_stream
        if has_action_lines:
            raise SpecError(
                f"{path}: these are ready bulk bodies, and this server takes documents alone ({self.protocol})"
            )
        return self

    def old(self, rows: int, seed: int) -> NDArray[np.bool_]:
        """Which of so many rows take a key that was given before: the same ones for the same seed."""
        conflicts = self.action.conflicts != "none"
        return draw_reused(rows, self.action.conflict_probability_ppm if conflicts else 0, seed)

    def judge(self, answer: Response, body: Body, is_unsure: bool = False) -> Verdict:
        """What became of each document: the answer is about all. Each row has a key of ours, so all may go again."""
        del is_unsure
        status, words = answer.status, answer.body[:MESSAGE_BYTES].decode("utf-8", "replace")
        if status == 200:
            return acknowledge_all(body.documents)
        kinds = {f"{status} {words.partition(':')[0]}": body.documents}
        if status in (503, 504):
            everything = tuple(range(body.documents))
            # 503: no replica was asked. 504: one may have written some of it.
            outcome = REJECTED if status == 503 else HTTP_ERROR
            return Verdict(
                outcome=outcome, rejected_items=everything, rejections=kinds, may_be_stored=status == 504, message=words
            )
        in_doubt = body.documents if status >= 500 else 0
        return Verdict(outcome=HTTP_ERROR, failed=body.documents, in_doubt=in_doubt, failures=kinds, message=words)
