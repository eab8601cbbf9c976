"""Bodies of one load worker, from generated documents, a file or the files of a track step.

Small inputs become a pool: built once, then sent again and again without copying. Files larger than the pool are
streamed. The users of a worker take disjoint bodies; ids are written in place by the user that owns the body.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from ingest_bench.documents import corpus as corpora
from ingest_bench.documents import lines
from ingest_bench.documents.body import Body, BodyTemplate, IdSequence
from ingest_bench.documents.synthetic import DocumentGenerator
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.model.load import Conflicts, LoadOptions, TrackFile, Workload

POOL_BYTES = 64 * 1024**2
# Names of plain copies in the folder of a load begin with this.
_DECOMPRESSED = "decompressed-"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkSize:
    """Limit of a bulk: a number of documents, or of bytes (but at least one document)."""

    documents: int | None = None
    data_bytes: int | None = None


class BodyBuilder(Protocol):
    """The part of a protocol (`protocols/`) that this package needs."""

    @property
    def envelope_bytes(self) -> int:
        """Bytes of a request in addition to its items."""
        ...

    @property
    def overhead_bytes(self) -> int:
        """Most bytes that an item has in addition to its document."""
        ...

    def measure(self, document: bytes, /) -> int:
        """Return the bytes of a document within its item."""
        ...

    @property
    def max_documents(self) -> int | None:
        """Most documents in one request; None: no limit."""
        ...

    def build_body(self, documents: Sequence[bytes], seed: int) -> Body | BodyTemplate:
        """Build a body, or a template if users assign ids. The seed decides which documents reuse one."""
        ...

    def for_file(self, file: TrackFile) -> BodyBuilder:
        """Return the builder for the documents of a file; SpecError if the protocol cannot send that file."""
        ...


@dataclass(frozen=True, slots=True)
class BodyPool:
    """Bodies in memory, or templates if users assign ids: no two users write into the same one."""

    bodies: tuple[Body | BodyTemplate, ...] = ()

    def iterate_once(self, user: int, users: int, ids: IdSequence) -> Iterator[Body]:
        """Yield every `users`-th body, with the next ids of this user: all users together get each body once."""
        return (body.fill(ids) for body in self.bodies[user::users])

    def iterate_forever(self, user: int, users: int, ids: IdSequence) -> Iterator[Body]:
        """Yield every `users`-th body, then these again as resent ones or with new ids.

        A user without own bodies resends all, or gets copies of all templates.
        """
        own = self.bodies[user::users]
        resent = [body.as_resent() for body in own or [body.copy() for body in self.bodies]]
        return (body.fill(ids) for body in itertools.chain(own, itertools.cycle(resent)))

    def as_resent(self) -> BodyPool:
        """Return these bodies as they count once they were sent before; new ids make new documents."""
        return BodyPool(tuple(body.as_resent() for body in self.bodies))


def build_pool(groups: Iterable[Sequence[bytes]], protocol: BodyBuilder, seed: int, pool_bytes: int) -> BodyPool:
    """Build a pool of the first groups of documents that together reach *pool_bytes*."""
    total = 0
    bodies = []
    for number, documents in enumerate(groups):
        bodies.append(protocol.build_body(documents, seed + number))
        total += sum(map(len, documents))
        if total >= pool_bytes:
            break
    return BodyPool(tuple(bodies))


def choose_bulk_size(workload: Workload, options: LoadOptions, protocol: BodyBuilder) -> BulkSize:
    """Return the size of a bulk: from the options or the workload, limited by the protocol.

    SpecError if both sizes are set or one is below 1.
    """
    documents, data_bytes = options.bulk_documents, options.bulk_bytes
    if documents is not None and data_bytes is not None:
        raise SpecError("bulk_documents cannot be combined with bulk_bytes")
    if any(size is not None and size < 1 for size in (documents, data_bytes)):
        raise SpecError("a bulk without documents: give a size of at least 1")
    limit = protocol.max_documents
    if data_bytes is not None and limit is None:
        return BulkSize(data_bytes=data_bytes)
    documents = documents or workload.bulk_documents
    return BulkSize(documents=documents if limit is None else min(documents, limit))


def group_documents(blocks: Iterable[list[bytes]], size: BulkSize, protocol: BodyBuilder) -> Iterator[list[bytes]]:
    """Yield the documents of each bulk; the last bulk may be smaller."""
    waiting: list[bytes] = []
    for block in blocks:
        waiting += block
        ends = _bulk_ends(waiting, size, protocol)
        for start, end in itertools.pairwise([0, *ends]):
            yield waiting[start:end]
        if ends:
            waiting = waiting[ends[-1] :]
    if waiting:
        yield waiting


def _bulk_ends(documents: Sequence[bytes], size: BulkSize, protocol: BodyBuilder) -> list[int]:
    if size.documents is not None:
        return list(range(size.documents, len(documents) + 1, size.documents))
    limit, overhead_bytes = (size.data_bytes or 1) - protocol.envelope_bytes, protocol.overhead_bytes
    ends, total, start = [], 0, 0
    for number, item_bytes in enumerate(map(protocol.measure, documents)):
        total += item_bytes + overhead_bytes
        if total > limit and number > start:
            ends.append(number)
            start = number
            total = item_bytes + overhead_bytes
    return ends


def _read_groups(
    file: TrackFile, protocol: BodyBuilder, size: BulkSize, start: int, end: int | None, limit: int | None
) -> Iterator[list[bytes]]:
    """Yield the documents (of bulk bodies: the items) of each bulk in a byte range, at most *limit* in total."""
    path = Path(file.path)
    documents = lines.split_lines(lines.read_chunks(path, start, end), path)
    if file.has_action_lines:
        documents = corpora.join_items(documents, path)
    if not file.is_text:
        documents = (_check_objects(block, path) for block in documents)
    if limit is not None:
        documents = lines.limit_documents(documents, limit)
    return group_documents(documents, size, protocol)


def _check_objects(block: list[bytes], path: Path) -> list[bytes]:
    # Parsing every line again would make the sender the bottleneck. This detects a truncated or foreign line; of an
    # item, which begins with its action line, it checks the end.
    for line in block:
        text = line.strip()
        if not (text.startswith(b"{") and text.endswith(b"}")):
            what = f"{path}: a line is not a JSON object"
            raise RunFailed(f"{what}: {line[:60]!r}", remote_message=what)
    return block


@dataclass(slots=True)
class BodyStream:
    """Bodies of a file that is larger than the pool: read once for all users, each takes the next one."""

    protocol: BodyBuilder
    seed: int
    read_groups: Callable[[], Iterator[list[bytes]]]
    """Starts a pass: yields the documents of each bulk."""
    groups: Iterator[list[bytes]]
    """The unread groups of this pass."""
    is_resent: bool = False
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def iterate_once(self, user: int, users: int, ids: IdSequence) -> Iterator[Body]:
        """Yield the next bodies that no user of this worker had, until the file ends."""
        del user, users
        for documents in self.groups:
            body = self.protocol.build_body(documents, self.seed + next(self._numbers))
            yield (body.as_resent() if self.is_resent else body).fill(ids)

    def as_resent(self) -> BodyStream:
        """Return the stream from its beginning, as sent before."""
        return BodyStream(self.protocol, self.seed, self.read_groups, self.read_groups(), True, self._numbers)


Bodies = BodyPool | BodyStream
"""Bodies that the users of one worker share."""


def open_corpus(
    file: TrackFile,
    protocol: BodyBuilder,
    size: BulkSize,
    *,
    seed: int,
    pool_bytes: int = POOL_BYTES,
    worker: int = 0,
    workers: int = 1,
) -> Bodies:
    """Return one worker's bodies of a file: in memory if they fit into the pool, else as a stream.

    Several workers read a byte range each; a compressed file must be decompressed for all of them first
    (`lines.decompress_to`). A worker for which nothing remains gets an empty pool.
    """
    protocol = protocol.for_file(file)
    start, end, limit = 0, None, file.documents
    if workers > 1:
        if not lines.is_plain(Path(file.path)):
            raise SpecError(
                f"{file.path}: {workers} processes cannot share a compressed file. Decompress it, or use one process."
            )
        (start, end), limit = _byte_range(file, worker, workers), None
    read_groups = partial(_read_groups, file, protocol, size, start, end, limit)
    groups = read_groups()
    buffered: list[list[bytes]] = []
    total = 0
    for documents in groups:
        buffered.append(documents)
        total += sum(map(len, documents))
        if total > pool_bytes:
            return BodyStream(protocol, seed, read_groups, itertools.chain(buffered, groups))
    return build_pool(buffered, protocol, seed, sys.maxsize)


def _byte_range(file: TrackFile, worker: int, workers: int) -> tuple[int, int]:
    """Return one worker's byte range. All workers together have the file, or its first documents."""
    path, size = Path(file.path), file.end_bytes
    if file.documents is None:
        size = path.stat().st_size
    elif size is None:
        size = corpora.find_end(path, file.documents, file.has_action_lines)
    start, end = (
        corpora.find_boundary(path, offset, file.has_action_lines) for offset in lines.part_range(size, worker, workers)
    )
    return min(start, size), min(end, size)


@dataclass(slots=True, kw_only=True)
class Source:
    """The bodies of one worker. Each user has bodies of its own, so that none is sent by two."""

    files: list[Bodies]
    """Bodies of each file, sent one file after the other."""
    repeats: bool
    """True if the first file follows the last one."""
    conflicts: Conflicts
    seed: int
    first_id: int
    users: int
    """Users of all workers."""
    worker: int
    workers: int
    _finished: int = field(default=0, init=False)
    """Files that the users have sent, counting each repetition."""

    def bodies_of(self, number: int) -> Iterator[Body]:
        """Yield the bodies of one user; user numbers are unique across workers."""
        # Ids are counted across all workers and, for a user, across all files, so that none is assigned twice.
        ids = IdSequence(number, self.users, self.conflicts, self.seed, self.first_id)
        user, users = number // self.workers, len(range(self.worker, self.users, self.workers))
        if not self.repeats:
            return itertools.chain.from_iterable(file.iterate_once(user, users, ids) for file in self.files)
        first, *others = self.files
        if isinstance(first, BodyPool) and not others:
            return first.iterate_forever(user, users, ids)
        return self._repeat_files(user, users, ids)

    def _repeat_files(self, user: int, users: int, ids: IdSequence) -> Iterator[Body]:
        """Yield the bodies of one user forever; none if no file has any for it."""
        empty = 0
        # A stream that others have read to its end is empty too, until it restarts.
        while empty <= 2 * len(self.files):
            finished = self._finished
            current = finished % len(self.files)
            empty += 1
            for body in self.files[current].iterate_once(user, users, ids):
                empty = 0
                yield body
            # Another user may have reached the end before.
            if finished == self._finished:
                self.files[current] = self.files[current].as_resent()
                self._finished += 1


def open_source(
    workload: Workload,
    options: LoadOptions,
    protocol: BodyBuilder,
    *,
    files: Sequence[TrackFile] = (),
    repeats: bool = True,
    pool_bytes: int = POOL_BYTES,
    first_id: int = 0,
    users: int = 1,
    worker: int = 0,
    workers: int = 1,
) -> Source:
    """Return the source of one worker: the documents of files, or generated ones."""
    if files:
        size = choose_bulk_size(workload, options, protocol)
        opened: list[Bodies] = [
            open_corpus(file, protocol, size, seed=seed, pool_bytes=pool_bytes, worker=worker, workers=workers)
            for seed, file in enumerate(files, options.seed)
        ]
        if all(bodies == BodyPool() for bodies in opened):
            names = ", ".join(file.path for file in files)
            raise SpecError(f"{names}: no documents remain for process {worker + 1} of {workers}. Use fewer processes.")
    else:
        opened = [build_synthetic_pool(workload, options, protocol, pool_bytes, worker, workers)]
    return Source(
        files=opened,
        repeats=repeats,
        conflicts=options.action.conflicts,
        seed=options.seed,
        first_id=first_id,
        users=users,
        worker=worker,
        workers=workers,
    )


def build_synthetic_pool(
    workload: Workload,
    options: LoadOptions,
    protocol: BodyBuilder,
    pool_bytes: int = POOL_BYTES,
    worker: int = 0,
    workers: int = 1,
) -> BodyPool:
    """Generate about *pool_bytes* of documents and at least one body; workers get different documents."""
    size = choose_bulk_size(workload, options, protocol)
    blocks = DocumentGenerator(workload, options.seed).blocks(worker, workers)
    return build_pool(group_documents(blocks, size, protocol), protocol, options.seed, pool_bytes)


def decompress_files(files: Iterable[TrackFile], folder: Path) -> tuple[TrackFile, ...]:
    """Return files that several workers can read; `remove_decompressed` deletes the plain copies of compressed ones.

    If only the first documents of a file are sent, their end is searched here, once for all workers.
    """
    decompressed = []
    for number, file in enumerate(files):
        path = lines.decompress_to(Path(file.path), folder / f"{_DECOMPRESSED}{number}")
        end_bytes = file.end_bytes
        if file.documents is not None and end_bytes is None:
            end_bytes = corpora.find_end(path, file.documents, file.has_action_lines)
        decompressed.append(dataclasses.replace(file, path=str(path), end_bytes=end_bytes))
    return tuple(decompressed)


def remove_decompressed(folder: Path) -> None:
    """Delete the plain copies that `decompress_files` wrote into the folder."""
    for path in folder.glob(f"{_DECOMPRESSED}*"):
        path.unlink(missing_ok=True)
