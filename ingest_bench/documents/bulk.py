"""The bulk format of Elasticsearch and OpenSearch: an action line before each document, and none after a deletion."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

from ingest_bench.documents.body import Body
from ingest_bench.documents.ids import DIGITS, Template
from ingest_bench.errors import RunFailed
from ingest_bench.model.workload import BulkAction, Workload

ACTIONS = frozenset({"index", "create", "update", "delete"})
# What may stand in the value of an action line, old names with an underscore too (bulk API, 5.6 to today).
_META = frozenset(
    (
        *("_id", "_index", "_type", "_routing", "routing", "_parent", "parent", "_version", "version"),
        *("_version_type", "version_type", "if_seq_no", "if_primary_term", "op_type", "pipeline"),
        *("require_alias", "require_data_stream", "dynamic_templates", "list_executed_pipelines"),
        *("_retry_on_conflict", "retry_on_conflict", "_source", "_timestamp", "_ttl"),
    )
)
# The beginning of an action line, in any spacing that JSON allows. To parse every line of a corpus as JSON while it is
# sent would make the sender the limit.
_OTHER_ACTION = re.compile(rb'\s*\{\s*"(?:index|create|update)"\s*:')
_DELETION = re.compile(rb'\s*\{\s*"delete"\s*:')
# Its last group says what an item adds to the index, at first and once more: by its action, and whether it has an id.
_KIND = re.compile(rb'\s*\{\s*"(?:(?:index|create)"\s*:\s*\{(?:[^\n]*?("_id")\s*:)?|(update)"|(delete)")')
_ADDS = np.array([1, 1, 0, -1], dtype=np.int8)
_ADDS_AGAIN = np.array([1, 0, 0, 0], dtype=np.int8)


def action_and_index(line: bytes) -> tuple[str, str]:
    """The action of a bulk's action line and the index that it names; both empty for any other line."""
    try:
        found: Any = json.loads(line)
    except ValueError:
        return "", ""
    if not isinstance(found, dict) or len(found) != 1:
        return "", ""
    name, meta = next(iter(found.items()))
    if name not in ACTIONS or not isinstance(meta, dict) or not meta.keys() <= _META:
        return "", ""
    return name, str(meta.get("_index", ""))


def items(blocks: Iterator[list[bytes]], path: Path) -> Iterator[list[bytes]]:
    """The items of ready bulk bodies, each its action line with its document, from the lines of a file.

    RunFailed when an action line is missing where one must be, or the document of the last one.
    """
    waiting = b""
    for block in blocks:
        found: list[bytes] = []
        for line in block:
            if waiting:
                found.append(b"%s\n%s" % (waiting, line))
                waiting = b""
            elif _OTHER_ACTION.match(line):
                waiting = line
            elif _DELETION.match(line):
                found.append(line)
            else:
                raise RunFailed(f"{path}: an action line of a bulk is missing where this stands: {line[:60]!r}")
        yield found
    if waiting:
        raise RunFailed(f"{path}: ends after the action line {waiting[:60]!r}: its document is missing")


@dataclass(frozen=True, slots=True)
class Packing:
    """How documents become bodies."""

    targets: tuple[str, ...]
    """The indices that action lines name in turn; none: the request's path says the only one."""
    action: BulkAction
    compress: bool
    ready: bool = False
    """The documents are items with action lines of their own."""

    @property
    def overhead_bytes(self) -> int:
        """What an item has at most beside its document."""
        if self.ready:
            return 1
        lines = [_action_line("index", target, ids=self._has_ids) for target in self.targets or ("",)]
        if self.action.on_conflict == "update" and self._has_ids:
            lines = [_action_line("update", target, ids=True) + b'{"doc": }' for target in self.targets or ("",)]
        return max(map(len, lines)) + 1

    @property
    def _has_ids(self) -> bool:
        return self.action.conflicts != "none"

    def pack(self, documents: Sequence[bytes], seed: int) -> Body | Template:
        """These documents as a body, or with gaps where a user writes ids. The seed says which ids are old."""
        if self._has_ids:
            return self._template(documents, seed)
        body = self._as_it_is(documents) if self.ready else self._without_ids(documents)
        return body.packed() if self.compress else body

    def _without_ids(self, documents: Sequence[bytes]) -> Body:
        if not self.targets:
            line = _action_line("index", "", ids=False)
            data = b"".join((line, (b"\n" + line).join(documents), b"\n"))
        else:
            lines = itertools.cycle([_action_line("index", target, ids=False) for target in self.targets])
            data = b"".join(itertools.chain.from_iterable(zip(lines, documents, itertools.repeat(b"\n"))))
        return Body(data, len(documents))

    def _as_it_is(self, parts: Sequence[bytes]) -> Body:
        """An item with an id replaces itself when it is sent once more.

        Two with the same id are not noticed here, that would take a table of all ids: the server's answers tell.
        """
        kinds = [kind.lastindex or 0 if (kind := _KIND.match(part)) else 0 for part in parts]
        fixed = not any(kinds)
        return Body(
            b"\n".join((*parts, b"")),
            len(parts),
            sizes=np.fromiter(map(len, parts), dtype=np.int64, count=len(parts)) + 1,
            adds=None if fixed else _ADDS[kinds],
            adds_again=None if fixed else _ADDS_AGAIN[kinds],
        )

    def _template(self, documents: Sequence[bytes], seed: int) -> Template:
        old = np.random.default_rng([seed, 4]).random(len(documents)) < self.action.conflict_probability_ppm / 1e6
        old[0] = False
        targets = itertools.cycle(self.targets or ("",))
        data = bytearray()
        places = []
        for document, target, is_old in zip(documents, targets, old.tolist(), strict=False):
            update = is_old and self.action.on_conflict == "update"
            data += _action_line("update" if update else "index", target, ids=True)
            # The gap stands before the quote, both braces and the line feed.
            places.append(len(data) - 4 - DIGITS)
            data += b'{"doc": %s}\n' % document if update else document + b"\n"
        return Template(data, np.array(places, dtype=np.int64), old, self.compress)


def _action_line(name: str, target: str, *, ids: bool) -> bytes:
    meta = [f'"_index":{json.dumps(target, ensure_ascii=False)}'] if target else []
    meta += [f'"_id":"{"0" * DIGITS}"'] if ids else []
    return f'{{"{name}":{{{",".join(meta)}}}}}\n'.encode()


def query(action: BulkAction) -> str:
    """The query string of the bulk path, with its question mark; empty when nothing was asked for."""
    asked = {"pipeline": action.pipeline, "refresh": action.refresh}
    text = urlencode({key: value for key, value in asked.items() if value is not None})
    return f"?{text}" if text else ""


def targets_of(index: str, action: BulkAction) -> tuple[str, ...]:
    """The indices that action lines name: none when there is one, which the path says."""
    return () if action.indices == 1 else tuple(f"{index}-{number}" for number in range(action.indices))


def index_names(workload: Workload, action: BulkAction) -> tuple[str, ...]:
    """The indices that a load with this action writes to."""
    return targets_of(workload.index, action) or (workload.index,)
