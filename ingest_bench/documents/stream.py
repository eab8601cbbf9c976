"""Bodies from a file: in memory when it fits into the pool, else streamed, and never read more than once in all."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ingest_bench.documents import actions, lines, pool
from ingest_bench.documents.body import Body
from ingest_bench.documents.corpus import Corpus
from ingest_bench.documents.ids import Ids
from ingest_bench.documents.pool import POOL_BYTES, BodyPool, BulkSize, IdPool, MakesBodies
from ingest_bench.errors import RunFailed, SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How one worker reads its part of a file, as often as it is asked to."""

    corpus: Corpus
    protocol: MakesBodies
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
        blocks = lines.lines(lines.chunks(path, self.start, self.end), path)
        found = actions.items(blocks, path) if self.corpus.bulk else blocks
        documents: Iterator[list[bytes]] = (_plausible(block, path) for block in found)
        if self.limit is not None:
            documents = pool.first(documents, self.limit)
        return pool.group(documents, self.size, self.protocol.overhead_bytes)


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
            made = self.reader.protocol.body(documents, self.reader.seed + next(self._numbers))
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

    def again(self) -> BodyStream:
        """The same bodies from the first on, sent before."""
        return BodyStream(self.reader, self.reader.groups(), self.passes + 1)


def open_file(
    corpus: Corpus,
    protocol: MakesBodies,
    size: BulkSize,
    *,
    seed: int,
    pool_bytes: int = POOL_BYTES,
    part: int = 0,
    parts: int = 1,
    index: str | None = None,
    is_stream: bool = False,
    limit: int | None = None,
    end_bytes: int | None = None,
) -> BodyPool | IdPool | BodyStream:
    """The bodies of worker `part` of `parts`: in memory when they fit into the pool, else as a stream.

    Several workers read a byte range each. A compressed file has none: `lines.unpack` it once for all of them.
    With an `index` each item says that it goes there; `limit` is how many documents all workers send: the first ones of
    the file, however many workers there are. They end at `end_bytes`, where somebody has looked that up: else each of
    several workers does it. A worker for which nothing is left has an empty pool.
    """
    protocol = protocol.of_file(corpus.path, ready=corpus.bulk, index=index, stream=is_stream)
    if parts > 1 and not lines.is_plain(corpus.path):
        raise SpecError(
            f"{corpus.path}: {parts} processes cannot share a compressed file; unpack it, or take one process"
        )
    reader = Reader(corpus=corpus, protocol=protocol, size=size, seed=seed, limit=limit)
    if parts > 1:
        start, end = _range(corpus, part, parts, limit, end_bytes)
        reader = dataclasses.replace(reader, start=start, end=end, limit=None)
    groups = reader.groups()
    held: list[list[bytes]] = []
    total = 0
    for documents in groups:
        held.append(documents)
        total += sum(map(len, documents))
        if total > pool_bytes:
            return BodyStream(reader, itertools.chain(held, groups))
    return pool.fill(held, protocol, seed, sys.maxsize)


def _range(corpus: Corpus, part: int, parts: int, limit: int | None, end_bytes: int | None) -> tuple[int, int]:
    """The bytes of one worker. All workers together have the whole file, or its first `limit` documents."""
    path, is_bulk = corpus.path, corpus.bulk
    if limit is None:
        size = path.stat().st_size
    else:
        size = lines.end_of(path, limit, is_bulk) if end_bytes is None else end_bytes
    start, end = (lines.boundary(path, place, is_bulk) for place in lines.share(size, part, parts))
    return min(start, size), min(end, size)


def _plausible(block: list[bytes], path: Path) -> list[bytes]:
    # Parsing every line again would make the sender the limit. This finds a cut or foreign line; of an item, which has
    # an action line of its own, it looks at the end.
    for line in block:
        text = line.strip()
        if not (text.startswith(b"{") and text.endswith(b"}")):
            what = f"{path}: a line is no JSON object"
            raise RunFailed(f"{what}: {line[:60]!r}", elsewhere=what)
    return block
