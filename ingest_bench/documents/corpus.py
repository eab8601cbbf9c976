"""The user's own documents: a file of NDJSON or of ready bulk bodies, plain or compressed, checked before the start."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest_bench.documents.actions import parse_action
from ingest_bench.documents.lines import chunks, is_plain, lines
from ingest_bench.errors import SpecError
from ingest_bench.inputs.user_json import parse_json

# Most bytes and lines parsed before anything starts, at about 150 MB/s and 400,000 lines/s. The last line of a longer
# plain file is parsed too.
CHECK_BYTES = 256 * 1024**2
_CHECK_LINES = 2_000_000
_TAIL_BYTES = 64 * 1024**2
_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "UTF-8", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


@dataclass(frozen=True, slots=True)
class Corpus:
    """A file of documents."""

    path: Path
    bulk: bool
    """Ready bulk bodies: action lines stand between the documents and are sent as they are."""
    documents: int | None = None
    """`None` when the file is longer than what is checked before the start."""
    indices: tuple[str, ...] = ()
    """The indices that its action lines name, as far as they were checked."""
    unnamed: bool = False
    """Whether action lines were found that name none: theirs is the one that the request's path names."""
    pipelines: tuple[str, ...] = ()
    """The ingest pipelines that its action lines name, as far as they were checked."""


def check(path: Path, *, bulk: bool | None = None, limit_bytes: int = CHECK_BYTES) -> Corpus:
    """The corpus, when it can be sent; SpecError names file, line and remedy.

    `bulk` says whether action lines stand between the documents; None finds out by the first line. A file that has
    not changed since is not read again.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    return _check(path, bulk, limit_bytes, (status.st_ino, status.st_size, status.st_mtime_ns))


@functools.cache
def _check(path: Path, bulk: bool | None, limit_bytes: int, _state: tuple[int, ...]) -> Corpus:
    checker = _Checker(path, bulk)
    total = 0
    for block in lines(checker.watch(chunks(path)), path):
        for line in block:
            checker.line(line)
            total += len(line) + 1
        if total >= limit_bytes or checker.number >= _CHECK_LINES:
            break
    else:
        return checker.end()
    _check_tail(path)
    return checker.corpus(None)


class _Checker:
    """What was seen of a file, line by line."""

    def __init__(self, path: Path, bulk: bool | None) -> None:
        self._path = path
        self.number = 0
        self._documents = 0
        self._failure: SpecError | None = None
        self._needs_document = False
        self._ended = True
        self.bulk = bulk
        self._indices: set[str] = set()
        self._pipelines: set[str] = set()

    def watch(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._ended = piece.endswith(b"\n")
            yield piece

    def line(self, line: bytes) -> None:
        if self._failure:
            raise self._failure
        self.number += 1
        if self.number == 1:
            self._first(line)
        try:
            self._count(self._parsed(line))
        except SpecError as error:
            # A bad last line means something else than a bad line: that is known only when the next one comes.
            self._failure = error

    def end(self) -> Corpus:
        if not self.number:
            raise SpecError(f"{self._path}: is empty; give a file with one JSON document a line")
        if self._failure and not self._ended:
            raise self._error("is the last one and ends in the middle; the file is cut off, get the whole one")
        if self._failure:
            raise self._failure
        if self.bulk and self._needs_document:
            raise self._error("is an action line and the file ends there: its document is missing; get the whole file")
        return self.corpus(self._documents)

    def corpus(self, documents: int | None) -> Corpus:
        return Corpus(
            path=self._path,
            bulk=bool(self.bulk),
            documents=documents,
            indices=tuple(sorted(self._indices - {""})),
            unnamed="" in self._indices,
            pipelines=tuple(sorted(self._pipelines - {""})),
        )

    def _count(self, value: dict[str, Any]) -> None:
        """Count a line as the document or the action line that it is."""
        if self._needs_document or self.bulk is False:
            self._needs_document = False
            self._documents += 1
            return
        try:
            action = parse_action(value)
        except ValueError as error:
            raise self._error(str(error)) from None
        if self.bulk is None:
            self.bulk = action is not None
            self._count(value)
        elif action is None:
            raise self._error("is no action line of a bulk; the line after a document must be one")
        else:
            self._indices.add(action.index_name)
            self._pipelines.add(action.pipeline)
            self._needs_document = action.name != "delete"
            self._documents += action.name == "delete"

    def _first(self, line: bytes) -> None:
        for mark, name in _BYTE_ORDER_MARKS.items():
            if line.startswith(mark):
                raise self._error(f"begins with a byte order mark of {name}; convert the file to UTF-8 without one")
        if line.lstrip().startswith(b"["):
            raise SpecError(f"{self._path}: is a JSON array: give one document a line, such as with jq -c '.[]'")

    def _parsed(self, line: bytes) -> dict[str, Any]:
        if not line.strip():
            raise self._error("is empty; take it out")
        try:
            value = parse_json(line.decode())
        except UnicodeDecodeError as error:
            raise self._error(
                f"is not UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1}); "
                "does the file mix encodings? convert it, such as with iconv -f LATIN1 -t UTF-8"
            ) from None
        except RecursionError:
            raise self._error("is nested too deeply to be read; no server takes such a document") from None
        except ValueError as error:
            raise self._error(f"is not JSON ({error}); every line must be one whole document") from None
        if isinstance(value, dict):
            return value
        what = "not a JSON object; every line must be one"
        raise self._error(f"is {line[:20]!r}, {what}", elsewhere=f"is {what}")

    def _error(self, text: str, elsewhere: str | None = None) -> SpecError:
        where = f"{self._path}: line {self.number} "
        return SpecError(where + text, elsewhere=None if elsewhere is None else where + elsewhere)


def _check_tail(path: Path) -> None:
    if not is_plain(path):
        return
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
    try:
        parse_json(last.decode())
    except RecursionError:
        raise SpecError(f"{path}: its last line is nested too deeply to be read; no server takes it") from None
    except ValueError:
        raise SpecError(
            f"{path}: ends in the middle of a line ({last[:40]!r}…); get the whole file",
            elsewhere=f"{path}: ends in the middle of a line; get the whole file",
        ) from None
