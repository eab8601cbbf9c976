"""Files of ready bulk bodies, as a source of documents: which lines are action lines, and what each item adds.

An item is an action line with its document, or the action line of a deletion alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ingest_bench.errors import RunFailed
from ingest_bench.inputs.user_json import parse_json
from ingest_bench.units import quoted

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
_KIND = re.compile(
    rb'\s*\{\s*"(?:index"\s*:\s*\{(?:[^\n]*?("_id")\s*:)?|create"\s*:\s*\{(?:[^\n]*?("_id")\s*:)?|(update)"|(delete)")'
)
_ADDS = np.array([1, 1, 1, 0, -1], dtype=np.int8)
_ADDS_AGAIN = np.array([1, 0, 0, 0, 0], dtype=np.int8)
# An index with an id and a deletion. A creation is refused the second time, and an update may be a script that counts.
_REPEATABLE = {1, 4}


class Action(NamedTuple):
    """The parts of an action line that the run must know."""

    name: str
    index_name: str
    """Empty: the index in the path of the request."""
    pipeline: str
    """Empty: none of its own."""


def parse_action(value: Any) -> Action | None:
    """Return the action of a parsed line; None for any other line.

    ValueError for an action line that no server takes, such as one with an unknown key.
    """
    if not isinstance(value, dict) or len(value) != 1:
        return None
    name, meta = next(iter(value.items()))
    if name not in ACTIONS or not isinstance(meta, dict):
        return None
    if unknown := sorted(meta.keys() - _META):
        raise ValueError(f"is an action line with the key {quoted(unknown[0])}, which no server knows; take it out")
    names = {key: meta.get(key, "") for key in ("_index", "pipeline")}
    if wrong := next((key for key, text in names.items() if not isinstance(text, str)), None):
        raise ValueError(f'is an action line whose "{wrong}" is {quoted(names[wrong])}, not a text; write it as one')
    if wrong := next((key for key, text in names.items() if not text.isprintable()), None):
        raise ValueError(f'is an action line whose "{wrong}" is {quoted(names[wrong])}, and no server has such a name')
    return Action(name, names["_index"], names["pipeline"])


def is_action_line(line: bytes) -> bool:
    """Return True if a line is an action line that servers take."""
    try:
        return parse_action(parse_json(line.decode())) is not None
    except (ValueError, RecursionError):
        return False


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
                missing = f"{path}: an action line of a bulk is missing"
                raise RunFailed(f"{missing} where this stands: {line[:60]!r}", elsewhere=missing)
        yield found
    if waiting:
        raise RunFailed(
            f"{path}: ends after the action line {waiting[:60]!r}: its document is missing",
            elsewhere=f"{path}: ends after an action line: its document is missing",
        )


class Effect(NamedTuple):
    """What items do to their index."""

    adds: NDArray[np.int8] | None = None
    """Each of them; None: 1 each, every time."""
    adds_again: NDArray[np.int8] | None = None
    """When they are sent once more."""
    is_repeatable: bool = False
    """Whether the index is the same when all of them are carried out twice."""


def effect_of(parts: Sequence[bytes]) -> Effect:
    """What these items do to their index, by their actions, and whether they have ids."""
    kinds = [kind.lastindex or 0 if (kind := _KIND.match(part)) else 0 for part in parts]
    return Effect(_ADDS[kinds], _ADDS_AGAIN[kinds], _REPEATABLE.issuperset(kinds)) if any(kinds) else Effect()
