"""Bodies from a file: in memory when it fits into the pool, else streamed, and never read more than once in all."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ingest_bench.documents import bulk, lines, pool
from ingest_bench.documents.body import Body
from ingest_bench.documents.bulk import Packing
from ingest_bench.documents.corpus import Corpus
from ingest_bench.documents.ids import Ids
from ingest_bench.documents.pool import POOL_BYTES, BodyPool, BulkSize, IdPool
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.model.workload import BulkAction


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How one worker reads its part of a file, as often as it is asked to."""

    corpus: Corpus
    packing: Packing
    size: BulkSize
    seed: int
    start: int = 0
    end: int | None = None
    """The byte range; None: to the end of the file."""
    limit: int | None = None
    """How many documents are read at most."""

    def groups(self) -> Iterator[list[bytes]]:
        """The documents (of bulk bodies: the items), a list for each bulk."""
        path = self.corpus.path
        blocks = lines.lines(lines.chunks(path, self.start, self.end))
        found = bulk.items(blocks, path) if self.corpus.bulk else blocks
        documents: Iterator[list[bytes]] = (_plausible(block, path) for block in found)
        if self.limit is not None:
            documents = pool.first(documents, self.limit)
        return pool.group(documents, self.size, self.packing.overhead_bytes)


@dataclass(slots=True)
class BodyStream:
    """Bodies of a file that is larger than the pool: read once for all users, each takes the next."""

    reader: Reader
    groups: Iterator[list[bytes]]
    """What is left of this pass."""
    passes: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def once(self, user: int, users: int, ids: Ids) -> Iterator[Body]:
        """The next bodies that no user of this worker had, until the file ends."""
        del user, users
        for documents in self.groups:
            made = self.reader.packing.pack(documents, self.reader.seed + next(self._numbers))
            body = made if isinstance(made, Body) else made.filled(ids)
            yield body.again() if self.passes else body

    def endless(self, user: int, users: int, ids: Ids) -> Iterator[Body]:
        """The next body that no user of this worker had; after the last one the first again."""
        while True:
            passes = self.passes
            yield from self.once(user, users, ids)
            # Another user may have come to the end before.
            if passes == self.passes:
                self.passes += 1
                self.groups = self.reader.groups()


def open_file(
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
    """The bodies of worker `part` of `parts`: in memory when they fit into the pool, else as a stream.

    Several workers read a byte range each. A compressed file has none: `lines.unpack` it once for all of them.
    With `named` action lines say the index even when there is one; `limit` is how many documents all workers send: the
    first ones of the file, however many workers there are.
    """
    action = action or BulkAction()
    if corpus.bulk and (action.conflicts != "none" or action.indices != 1):
        raise SpecError(
            f"{corpus.path}: ready bulk bodies have their own ids and indices; take out conflicts and indices"
        )
    if parts > 1 and corpus.path.suffix in lines.OPENERS:
        raise SpecError(
            f"{corpus.path}: {parts} processes cannot share a compressed file; unpack it, or take one process"
        )
    targets = bulk.targets_of(index, action) or ((index,) if named else ())
    packing = Packing(targets, action, compress, corpus.bulk)
    reader = Reader(corpus=corpus, packing=packing, size=size, seed=seed, limit=limit)
    if parts > 1:
        start, end = _range(corpus, part, parts, limit)
        reader = dataclasses.replace(reader, start=start, end=end, limit=None)
    groups = reader.groups()
    held: list[list[bytes]] = []
    total = 0
    for documents in groups:
        held.append(documents)
        total += sum(map(len, documents))
        if total > pool_bytes:
            return BodyStream(reader, itertools.chain(held, groups))
    if not held:
        raise SpecError(f"{corpus.path}: no document is left for process {part + 1} of {parts}")
    return pool.fill(held, packing, seed, sys.maxsize)


def _range(corpus: Corpus, part: int, parts: int, limit: int | None) -> tuple[int, int]:
    """The bytes of one worker. All workers together have the whole file, or its first `limit` documents."""
    path, is_bulk = corpus.path, corpus.bulk
    size = path.stat().st_size if limit is None else lines.end_of(path, limit, is_bulk)
    start, end = (lines.boundary(path, size * number // parts, is_bulk) for number in (part, part + 1))
    return min(start, size), min(end, size)


def _plausible(block: list[bytes], path: Path) -> list[bytes]:
    # Parsing every line again would make the sender the limit. This finds a cut or foreign line; of an item, which has
    # an action line of its own, it looks at the end.
    for line in block:
        text = line.strip()
        if not (text.startswith(b"{") and text.endswith(b"}")):
            raise RunFailed(f"{path}: a line is no JSON object: {line[:60]!r}")
    return block
