"""The user's own documents: a file of NDJSON, text lines or bulk items, plain or compressed, checked before the start.

A bulk item is an action line with its document, or the action line of a deletion alone.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ingest_bench.documents.lines import is_plain, read_chunks, split_lines
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.inputs.user_json import parse_json, read_object
from ingest_bench.units import quote_value

# Most bytes and lines parsed before the start, at about 150 MB/s and 400,000 lines/s. The last line of a longer plain
# file is parsed too.
CHECK_BYTES = 256 * 1024**2
_CHECK_LINES = 2_000_000
_TAIL_BYTES = 64 * 1024**2
# `http.max_content_length` of Elasticsearch and OpenSearch, by default.
MAX_REQUEST_BYTES = 100 * 1024**2
_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "UTF-8", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}

ACTIONS = frozenset({"index", "create", "update", "delete"})
# Valid keys of an action line, including old names with an underscore (bulk API, 5.6 to today).
_META_KEYS = frozenset(
    (
        *("_id", "_index", "_type", "_routing", "routing", "_parent", "parent", "_version", "version"),
        *("_version_type", "version_type", "if_seq_no", "if_primary_term", "op_type", "pipeline"),
        *("require_alias", "require_data_stream", "dynamic_templates", "list_executed_pipelines"),
        *("_retry_on_conflict", "retry_on_conflict", "_source", "_timestamp", "_ttl"),
    )
)
# The start of an action line, in any spacing that JSON allows. Parsing every line of a corpus as JSON while it is sent
# would make the sender the bottleneck.
_ACTION_WITH_DOCUMENT = re.compile(rb'\s*\{\s*"(?:index|create|update)"\s*:')
_DELETION = re.compile(rb'\s*\{\s*"delete"\s*:')
# The number of the last group (`lastindex`) selects what an item adds to the index, by its action and whether it has
# an id: at first, and when it is sent again.
_KIND = re.compile(
    rb'\s*\{\s*"(?:index"\s*:\s*\{(?:[^\n]*?("_id")\s*:)?|create"\s*:\s*\{(?:[^\n]*?("_id")\s*:)?|(update)"|(delete)")'
)
_ADDS = np.array([1, 1, 1, 0, -1], dtype=np.int8)
_ADDS_WHEN_RESENT = np.array([1, 0, 0, 0, 0], dtype=np.int8)
# `index` with an id, and a deletion. A second `create` is refused, and an update may be a script that counts.
_IDEMPOTENT = {1, 4}


class Action(NamedTuple):
    """The parts of an action line that the run needs."""

    name: str
    index_name: str
    """Empty: the index in the path of the request."""
    pipeline: str
    """Empty: the line names none."""


def parse_action(value: Any) -> Action | None:
    """Return the action of a parsed line; None for any other line.

    ValueError for an action line that no server accepts, such as one with an unknown key.
    """
    if not isinstance(value, dict) or len(value) != 1:
        return None
    name, meta = next(iter(value.items()))
    if name not in ACTIONS or not isinstance(meta, dict):
        return None
    if unknown := sorted(meta.keys() - _META_KEYS):
        raise ValueError(f"is an action line with the unknown key {quote_value(unknown[0])}; remove it")
    names = {key: meta.get(key, "") for key in ("_index", "pipeline")}
    for key, text in names.items():
        if not isinstance(text, str):
            raise ValueError(f'is an action line whose "{key}" is {quote_value(text)}, not a string')  # noqa: TRY004 - as the others
        if not text.isprintable():
            raise ValueError(f'is an action line whose "{key}" is {quote_value(text)}, an invalid name')
    return Action(name, names["_index"], names["pipeline"])


def is_action_line(line: bytes) -> bool:
    """Return True if a line is a valid action line."""
    try:
        return parse_action(parse_json(line.decode())) is not None
    except (ValueError, RecursionError):
        return False


def join_items(blocks: Iterator[list[bytes]], path: Path) -> Iterator[list[bytes]]:
    """Yield bulk items, each an action line with its document, from the lines of a file.

    RunFailed if an action line is missing, or the document of the last one.
    """
    action = b""
    for block in blocks:
        items: list[bytes] = []
        for line in block:
            if action:
                items.append(b"%s\n%s" % (action, line))
                action = b""
            elif _ACTION_WITH_DOCUMENT.match(line):
                action = line
            elif _DELETION.match(line):
                items.append(line)
            else:
                missing = f"{path}: an action line of a bulk is missing"
                raise RunFailed(f"{missing} before {line[:60]!r}", remote_message=missing)
        yield items
    if action:
        raise RunFailed(
            f"{path}: ends after the action line {action[:60]!r}: its document is missing",
            remote_message=f"{path}: ends after an action line: its document is missing",
        )


def item_effects(items: Sequence[bytes]) -> dict[str, Any]:
    """Return the fields of `Body` for what bulk items add to their index, by their actions and ids."""
    kinds = [kind.lastindex or 0 if (kind := _KIND.match(item)) else 0 for item in items]
    if not any(kinds):
        return {}
    is_idempotent = _IDEMPOTENT.issuperset(kinds)
    return {"adds": _ADDS[kinds], "adds_when_resent": _ADDS_WHEN_RESENT[kinds], "is_idempotent": is_idempotent}


def find_boundary(path: Path, offset: int, has_action_lines: bool) -> int:
    """Return where the first document (of bulk bodies: item) begins at or after a byte offset of a plain file.

    A document that looks like an action line could be mistaken for one; the published corpora have none.
    """
    size = path.stat().st_size
    if offset <= 0 or offset >= size:
        return max(0, min(offset, size))
    with path.open("rb") as file:
        file.seek(offset - 1)
        file.readline()
        while has_action_lines:
            start = file.tell()
            line = file.readline()
            if not line or is_action_line(line):
                return start
        return file.tell()


def find_end(path: Path, documents: int, has_action_lines: bool) -> int:
    """Return where the first *documents* documents (of bulk bodies: items) of a plain file end, or its size."""
    size = path.stat().st_size
    if has_action_lines:
        items = itertools.chain.from_iterable(join_items(split_lines(read_chunks(path), path), path))
        return min(size, sum(len(item) + 1 for item in itertools.islice(items, documents)))
    before = 0
    for piece in read_chunks(path):
        feeds = piece.count(b"\n")
        if feeds >= documents:
            offsets = np.flatnonzero(np.frombuffer(piece, dtype=np.uint8) == ord("\n"))
            return before + int(offsets[documents - 1]) + 1
        documents -= feeds
        before += len(piece)
    return size


@dataclass(frozen=True, slots=True)
class Corpus:
    """A file of documents."""

    path: Path
    has_action_lines: bool
    """Bulk bodies: action lines stand between the documents and are sent unchanged."""
    is_text: bool = False
    """Documents are lines of any text, instead of JSON objects."""
    documents: int | None = None
    """None if the file is longer than what is checked before the start."""
    indices: tuple[str, ...] = ()
    """Indices in its action lines, as far as these were checked."""
    has_unnamed_index: bool = False
    """True if action lines without an index were read: the path of the request names theirs."""
    pipelines: tuple[str, ...] = ()
    """Ingest pipelines in its action lines, as far as these were checked."""
    mean_bytes: float = 0
    """Mean size of the checked documents (of bulk bodies: items)."""


# Before the digest. Cassandra 0.7 accepts 48 characters in all.
_STEM_CHARACTERS = 20
_INDEX_PARTS = frozenset({"aliases", "mappings", "settings"})
# Settings that GET /INDEX/_settings returns and no server accepts.
_PRIVATE_SETTINGS = frozenset({"creation_date", "provided_name", "uuid", "version"})


def index_name(path: Path) -> str:
    """Return the index of a file's documents: named after the file, with the characters that every server accepts.

    The digest tells files apart whose names differ in other characters.
    """
    stem = re.sub(r"[^a-z0-9]+", "-", path.name.lstrip(".").partition(".")[0].lower())[:_STEM_CHARACTERS].strip("-")
    digest = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:8]
    return "-".join(filter(None, ("ingest-bench", stem, digest)))


def read_index_body(mapping: str | None, index_settings: str | None) -> dict[str, Any]:
    """Return the body that creates the index of a file's documents. Without a mapping the server maps new fields."""
    body = {}
    if mapping is not None:
        body["mappings"] = _read_index_part(mapping, "mappings", "load.mapping")
    if index_settings is not None:
        settings = body["settings"] = _read_index_part(index_settings, "settings", "load.index_settings")
        if isinstance(table := settings.get("index"), dict):
            settings["index"] = {key: value for key, value in table.items() if key not in _PRIVATE_SETTINGS}
    return body


def _read_index_part(file: str, key: str, where: str) -> dict[str, Any]:
    """Return a part of an index from a file: alone, as PUT /INDEX takes it, or as GET /INDEX returns it."""
    table = read_object(Path(file), f"{where} {file}")
    (name, inner), *others = table.items() or [("", None)]
    if not others and isinstance(inner, dict) and name not in ("index", "properties") and key in inner:
        table = inner
    if not _INDEX_PARTS & table.keys():
        return table
    if not isinstance(part := table.get(key), dict):
        raise SpecError(f'{where} {file}: has no object "{key}". Give one, or its content alone.')
    return part


def check_corpus(
    path: Path, *, has_action_lines: bool | None = None, is_text: bool = False, limit_bytes: int = CHECK_BYTES
) -> Corpus:
    """Return the corpus if it can be sent; SpecError names file, line and remedy.

    The first line decides `has_action_lines` if it is None and the file is not one of text lines. A file that has not
    changed is not read again.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    state = status.st_ino, status.st_size, status.st_mtime_ns
    return _check_state(path, False if is_text else has_action_lines, is_text, limit_bytes, state)


@functools.cache
def _check_state(
    path: Path, has_action_lines: bool | None, is_text: bool, limit_bytes: int, _state: tuple[int, ...]
) -> Corpus:
    checker = _Checker(path, has_action_lines, is_text)
    unread = itertools.chain.from_iterable(split_lines(checker.watch(read_chunks(path)), path))
    for line in unread:
        checker.number += 1
        if checker.number == 1:
            checker.check_first(line)
        if len(line) > MAX_REQUEST_BYTES:
            size = f"has {len(line):,} bytes, and servers accept requests of {MAX_REQUEST_BYTES:,} by default"
            raise checker.error(f"{size}; split the document, or remove it")
        try:
            checker.check_line(line)
        except SpecError:
            if next(unread, None) is None and not checker.ends_with_feed:
                incomplete = "is the last one and incomplete: the file is truncated; get the complete one"
                raise checker.error(incomplete) from None
            raise
        checker.total_bytes += len(line) + 1
        if checker.total_bytes >= limit_bytes or checker.number >= _CHECK_LINES:
            if not is_text:
                _check_last_line(path)
            return checker.corpus(is_complete=False)
    return checker.finish()


class _Checker:
    """State of a file check, line by line."""

    def __init__(self, path: Path, has_action_lines: bool | None, is_text: bool) -> None:
        self._path = path
        self._is_text = is_text
        self.number = 0
        self.total_bytes = 0
        self.ends_with_feed = True
        self._documents = 0
        self._needs_document = False
        self._has_action_lines = has_action_lines
        self._indices: set[str] = set()
        self._pipelines: set[str] = set()

    def watch(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self.ends_with_feed = piece.endswith(b"\n")
            yield piece

    def check_line(self, line: bytes) -> None:
        """Count a line as a document or as an action line."""
        text = self._decode(line)
        value = {} if self._is_text else self._parse(text, line)
        if self._needs_document or self._has_action_lines is False:
            self._needs_document = False
            self._documents += 1
            return
        try:
            action = parse_action(value)
        except ValueError as error:
            raise self.error(str(error)) from None
        if action is None and self._has_action_lines:
            raise self.error("is not an action line of a bulk; the line after a document must be one")
        self._has_action_lines = action is not None
        self._documents += action is None or action.name == "delete"
        if action is not None:
            self._indices.add(action.index_name)
            self._pipelines.add(action.pipeline)
            self._needs_document = action.name != "delete"

    def finish(self) -> Corpus:
        if not self.number:
            raise SpecError(f"{self._path}: is empty. Give a file with one document per line.")
        if self._needs_document:
            raise self.error("is an action line and the file ends there: its document is missing; get the whole file")
        return self.corpus(is_complete=True)

    def corpus(self, *, is_complete: bool) -> Corpus:
        return Corpus(
            path=self._path,
            has_action_lines=bool(self._has_action_lines),
            is_text=self._is_text,
            documents=self._documents if is_complete else None,
            indices=tuple(sorted(self._indices - {""})),
            has_unnamed_index="" in self._indices,
            pipelines=tuple(sorted(self._pipelines - {""})),
            mean_bytes=self.total_bytes / max(1, self._documents),
        )

    def check_first(self, line: bytes) -> None:
        for mark, name in _BYTE_ORDER_MARKS.items():
            if line.startswith(mark):
                raise self.error(f"begins with a byte order mark of {name}; convert the file to UTF-8 without one")
        if line.lstrip().startswith(b"[") and not self._is_text:
            raise SpecError(f"{self._path}: is a JSON array. Give one document per line, such as with jq -c '.[]'.")

    def _decode(self, line: bytes) -> str:
        if not line.strip():
            raise self.error("is empty; remove it")
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            raise self.error(
                f"is not UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1}), maybe of mixed encodings; "
                "convert the file, such as with iconv -f LATIN1 -t UTF-8"
            ) from None

    def _parse(self, text: str, line: bytes) -> dict[str, Any]:
        try:
            value = parse_json(text)
        except RecursionError:
            raise self.error("is nested too deeply to be parsed; no server accepts such a document") from None
        except ValueError as error:
            remedy = "every line must be one complete document"
            if self.number == 1:
                remedy += "; for lines of any text use --set text_lines=true"
            raise self.error(f"is not JSON ({error}); {remedy}") from None
        if isinstance(value, dict):
            return value
        problem = "not a JSON object; every line must be one"
        raise self.error(f"is {line[:20]!r}, {problem}", remote_message=f"is {problem}")

    def error(self, text: str, remote_message: str | None = None) -> SpecError:
        where = f"{self._path}: line {self.number} "
        return SpecError(where + text, remote_message=None if remote_message is None else where + remote_message)


def _check_last_line(path: Path) -> None:
    if not is_plain(path):
        return
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
    try:
        parse_json(last.decode())
    except RecursionError:
        raise SpecError(f"{path}: its last line is nested too deeply to be parsed; no server accepts it") from None
    except ValueError:
        raise SpecError(
            f"{path}: ends in the middle of a line ({last[:40]!r}…). Get the complete file.",
            remote_message=f"{path}: ends in the middle of a line. Get the complete file.",
        ) from None
