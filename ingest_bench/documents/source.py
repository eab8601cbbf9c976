"""Bodies from a corpus: in memory when it fits into the pool, else streamed, and never read more than once in all."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingest_bench.documents import body as bodies
from ingest_bench.documents.body import POOL_BYTES, Body, BodyPool, BulkSize, IdPool
from ingest_bench.documents.corpus import Corpus
from ingest_bench.documents.lines import OPENERS, boundary, chunks, lines
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.model.workload import BulkAction


@dataclass(slots=True)
class BodyStream:
    """Bodies of a corpus that is larger than the pool: read once for all users, each takes the next."""

    groups: Iterator[list[bytes]]
    reader: _Reader
    passes: int = 0

    def cycle(self, user: int, users: int, *, once: bool = False) -> Iterator[Body]:  # noqa: ARG002 - all users share it
        """The next body that no user of this process had; after the last one the first again."""
        while True:
            documents = next(self.groups, None)
            if documents is None:
                if once:
                    return
                self.groups = self.reader.groups()
                self.passes += 1
                continue
            body = self.reader.bundle(documents)
            yield body.again() if self.passes else body


def open_bodies(
    corpus: Corpus,
    index: str,
    size: BulkSize,
    *,
    seed: int,
    action: BulkAction | None = None,
    pool_bytes: int = POOL_BYTES,
    compress: bool = False,
    part: int = 0,
    parts: int = 1,
    named: bool = False,
    limit: int | None = None,
) -> BodyPool | IdPool | BodyStream:
    """The bodies of process `part` of `parts`: in memory when they fit into the pool, else as a stream.

    Several processes read a byte range each. A compressed file has none: `lines.unpack` it once for all of them.
    With `named` action lines say the index even when there is one; `limit` is how many documents all processes send.
    """
    action = action or BulkAction()
    if corpus.bulk and (action.conflicts != "none" or action.indices != 1):
        raise SpecError(
            f"{corpus.path}: ready bulk bodies have their own ids and indices; take out conflicts and indices"
        )
    if parts > 1 and corpus.path.suffix in OPENERS:
        raise SpecError(
            f"{corpus.path}: {parts} processes cannot share a compressed file; unpack it, or take one process"
        )
    targets = bodies.targets_of(index, action) or ((index,) if named else ())
    reader = _Reader(corpus, targets, size, action, compress, part, parts, limit)
    groups = reader.groups()
    held: list[list[bytes]] = []
    total = 0
    for documents in groups:
        held.append(documents)
        total += sum(map(len, documents))
        if total > pool_bytes:
            break
    else:
        return reader.pool(held, seed)
    if action.conflicts != "none":
        raise SpecError(
            f"{corpus.path}: id conflicts need a corpus of at most {pool_bytes} bytes; make the pool larger"
        )
    return BodyStream(itertools.chain(held, groups), reader)


@dataclass(frozen=True, slots=True)
class _Reader:
    """How one process reads its part of a corpus, as often as it is asked to."""

    corpus: Corpus
    targets: tuple[str, ...]
    size: BulkSize
    action: BulkAction
    compress: bool
    part: int
    parts: int
    limit: int | None

    def groups(self) -> Iterator[list[bytes]]:
        """The documents (of bulk bodies: the items), a list for each bulk."""
        path = self.corpus.path
        if self.parts == 1:
            blocks = lines(chunks(path))
        else:
            length = path.stat().st_size
            edges = [
                boundary(path, length * part // self.parts, self.corpus.bulk) for part in (self.part, self.part + 1)
            ]
            blocks = lines(chunks(path, *edges)) if edges[0] < edges[1] else iter(())
        checked = (_plausible(block, path) for block in blocks)
        documents = _items(checked) if self.corpus.bulk else checked
        return bodies.group(documents if self.limit is None else _first(documents, self._share(self.limit)), self.size)

    def _share(self, limit: int) -> int:
        return limit * (self.part + 1) // self.parts - limit * self.part // self.parts

    def bundle(self, documents: Sequence[bytes]) -> Body:
        if not self.corpus.bulk:
            return bodies.bundle(documents, self.targets, self.compress)
        new, again = _new(documents)
        body = Body(b"\n".join((*documents, b"")), len(documents), new, documents_again=again)
        return bodies.compressed(body) if self.compress else body

    def pool(self, held: list[list[bytes]], seed: int) -> BodyPool | IdPool:
        if not held:
            raise SpecError(f"{self.corpus.path}: no document is left for process {self.part + 1} of {self.parts}")
        if self.action.conflicts != "none":
            return bodies.fill(held, self.targets, self.action, seed, sys.maxsize, self.compress)
        return BodyPool(tuple(self.bundle(documents) for documents in held))


def _plausible(block: list[bytes], path: Path) -> list[bytes]:
    # Parsing every line again would make the sender the limit. This finds a cut or foreign line.
    for line in block:
        if not line.startswith(b"{") or not line.rstrip().endswith(b"}"):
            raise RunFailed(f"{path}: a line is no JSON object: {line[:60]!r}")
    return block


def _first(blocks: Iterator[list[bytes]], left: int) -> Iterator[list[bytes]]:
    for block in blocks:
        if left <= 0:
            return
        yield block[:left]
        left -= len(block)


def _new(items: Sequence[bytes]) -> tuple[int, int]:
    """How many documents these ready items add to their indices, and how many when they are sent once more.

    An item with an id replaces itself. Two with the same id are not noticed: that would take a table of all ids.
    """
    new = again = 0
    for item in items:
        if item.startswith(b'{"delete"'):
            new -= 1
        elif not item.startswith(b'{"update"'):
            new += 1
            again += b'"_id"' not in item[: item.find(b"\n")]
    return new, again


def _items(blocks: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Each action line with its document as one text."""
    waiting = b""
    for block in blocks:
        found: list[bytes] = []
        for line in block:
            if waiting:
                found.append(b"%s\n%s" % (waiting, line))
                waiting = b""
            elif line.startswith(b'{"delete"'):
                found.append(line)
            else:
                waiting = line
        yield found
