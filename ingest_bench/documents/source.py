"""Bodies of one load worker, from generated documents, a file or the files of a track step.

Small inputs become a pool: built once, then sent again and again without copying. Files larger than the pool are
streamed. The users of a worker take disjoint bodies; ids are written in place by the user that owns the body.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ingest_bench.documents import corpus as corpora
from ingest_bench.documents import lines
from ingest_bench.documents.body import Body, BodyTemplate, IdSequence
from ingest_bench.documents.corpus import Corpus
from ingest_bench.documents.synthetic import DocumentGenerator
from ingest_bench.errors import RunFailed, SpecError

if TYPE_CHECKING:
    from ingest_bench.model.load import Conflicts, LoadOptions, Step, Workload

POOL_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkSize:
    """Limit of a bulk: a number of documents, or of bytes (but at least one document)."""

    documents: int | None = None
    data_bytes: int | None = None


class BodyBuilder(Protocol):
    """The part of a protocol (`protocols/`) that this package needs."""

    @property
    def overhead_bytes(self) -> int:
        """Most bytes that an item has in addition to its document."""
        ...

    @property
    def max_documents(self) -> int | None:
        """Most documents in one request; None: no limit."""
        ...

    def build_body(self, documents: Sequence[bytes], seed: int) -> Body | BodyTemplate:
        """Build a body, or a template if users assign ids. The seed decides which documents reuse one."""
        ...

    def for_file(
        self, path: Path, *, has_action_lines: bool, index: str | None, is_data_stream: bool = False
    ) -> BodyBuilder:
        """Return the builder for a file, whose documents may be bulk items already and go to *index*.

        A data stream only takes `create` operations.
        """
        ...


class Bodies(Protocol):
    """Bodies that the users of one worker share."""

    def iterate_once(self, user: int, users: int, ids: IdSequence) -> Iterator[Body]:
        """Yield the bodies of one user; all users together get each body once."""
        ...

    def iterate_forever(self, user: int, users: int, ids: IdSequence) -> Iterator[Body]:
        """Yield the bodies of one user repeatedly; if there are fewer bodies than users, some users share them."""
        ...

    def as_resent(self) -> Bodies:
        """Return these bodies as they count once all were sent before."""
        ...


@dataclass(frozen=True, slots=True)
class BodyPool:
    """Bodies in memory whose ids the server assigns, or that have their own."""

    bodies: tuple[Body, ...]

    def iterate_once(self, user: int, users: int, ids: IdSequence) -> Iterator[Body]:
        """Yield every `users`-th body."""
        del ids
        return iter(self.bodies[user::users])

    def iterate_forever(self, user: int, users: int, ids: IdSequence) -> Iterator[Body]:
        """Yield every `users`-th body, then these again as resent ones; a user without own bodies resends all."""
        del ids
        own = self.bodies[user::users]
        resent = [body.as_resent() for body in own or self.bodies]
        return itertools.chain(own, itertools.cycle(resent))

    def as_resent(self) -> BodyPool:
        """Return these bodies as they count once they were sent before."""
        return BodyPool(tuple(body.as_resent() for body in self.bodies))


@dataclass(frozen=True, slots=True)
class IdPool:
    """Bodies in memory into which users write ids. No two users write into the same one."""

    templates: tuple[BodyTemplate, ...]

    def iterate_once(self, user: int, users: int, ids: IdSequence) -> Iterator[Body]:
        """Yield every `users`-th body with the next ids of this user."""
        return (template.fill(ids) for template in self.templates[user::users])

    def iterate_forever(self, user: int, users: int, ids: IdSequence) -> Iterator[Body]:
        """Yield every `users`-th body repeatedly, with new ids each time; a user without own ones gets copies."""
        own = self.templates[user::users] or tuple(template.copy() for template in self.templates)
        return (template.fill(ids) for template in itertools.cycle(own))

    def as_resent(self) -> IdPool:
        """Return this pool: new ids make new documents."""
        return self


def build_pool(
    groups: Iterable[Sequence[bytes]], protocol: BodyBuilder, seed: int, pool_bytes: int
) -> BodyPool | IdPool:
    """Build a pool of the first groups of documents that together reach *pool_bytes*."""
    total = 0
    bodies: list[Body] = []
    templates: list[BodyTemplate] = []
    for number, documents in enumerate(groups):
        body = protocol.build_body(documents, seed + number)
        if isinstance(body, Body):
            bodies.append(body)
        else:
            templates.append(body)
        total += sum(map(len, documents))
        if total >= pool_bytes:
            break
    return IdPool(tuple(templates)) if templates else BodyPool(tuple(bodies))


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


def group_documents(blocks: Iterable[list[bytes]], size: BulkSize, overhead_bytes: int) -> Iterator[list[bytes]]:
    """Yield the documents of each bulk; the last bulk may be smaller.

    *overhead_bytes* is the most that an item has in addition to its document.
    """
    waiting: list[bytes] = []
    for block in blocks:
        waiting += block
        ends = _bulk_ends(waiting, size, overhead_bytes)
        for start, end in itertools.pairwise([0, *ends]):
            yield waiting[start:end]
        if ends:
            waiting = waiting[ends[-1] :]
    if waiting:
        yield waiting


def _bulk_ends(documents: Sequence[bytes], size: BulkSize, overhead_bytes: int) -> list[int]:
    if size.documents is not None:
        return list(range(size.documents, len(documents) + 1, size.documents))
    limit = size.data_bytes or 1
    ends, total, start = [], 0, 0
    for number, document in enumerate(documents):
        total += len(document) + overhead_bytes
        if total > limit and number > start:
            ends.append(number)
            start = number
            total = len(document) + overhead_bytes
    return ends


def limit_documents(blocks: Iterable[list[bytes]], documents: int) -> Iterator[list[bytes]]:
    """Yield blocks up to a total number of documents."""
    remaining = documents
    for block in blocks:
        yield block[:remaining]
        remaining -= len(block)
        if remaining <= 0:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusReader:
    """Reads one worker's part of a file, as often as requested."""

    corpus: Corpus
    protocol: BodyBuilder
    size: BulkSize
    seed: int
    start: int = 0
    end: int | None = None
    """The byte range; None: to the end of the file."""
    limit: int | None = None
    """Most documents to read."""

    def read_groups(self) -> Iterator[list[bytes]]:
        """Yield the documents (of bulk bodies: the items) of each bulk."""
        path = self.corpus.path
        blocks = lines.split_lines(lines.read_chunks(path, self.start, self.end), path)
        items = corpora.join_items(blocks, path) if self.corpus.has_action_lines else blocks
        documents: Iterator[list[bytes]] = (_check_objects(block, path) for block in items)
        if self.limit is not None:
            documents = limit_documents(documents, self.limit)
        return group_documents(documents, self.size, self.protocol.overhead_bytes)


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

    reader: CorpusReader
    groups: Iterator[list[bytes]]
    """The unread groups of this pass."""
    passes: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def iterate_once(self, user: int, users: int, ids: IdSequence) -> Iterator[Body]:
        """Yield the next bodies that no user of this worker had, until the file ends."""
        del user, users
        for documents in self.groups:
            built = self.reader.protocol.build_body(documents, self.reader.seed + next(self._numbers))
            body = built if isinstance(built, Body) else built.fill(ids)
            yield body.as_resent() if self.passes else body

    def iterate_forever(self, user: int, users: int, ids: IdSequence) -> Iterator[Body]:
        """Yield the next body that no user of this worker had; after the last one the first again."""
        while True:
            passes = self.passes
            yield from self.iterate_once(user, users, ids)
            # Another user may have reached the end before.
            if passes == self.passes:
                self.passes += 1
                self.groups = self.reader.read_groups()

    def as_resent(self) -> BodyStream:
        """Return the stream from its beginning, as sent before."""
        return BodyStream(self.reader, self.reader.read_groups(), self.passes + 1)


def open_corpus(
    corpus: Corpus,
    protocol: BodyBuilder,
    size: BulkSize,
    *,
    seed: int,
    pool_bytes: int = POOL_BYTES,
    worker: int = 0,
    workers: int = 1,
    index: str | None = None,
    is_data_stream: bool = False,
    limit: int | None = None,
    end_bytes: int | None = None,
) -> BodyPool | IdPool | BodyStream:
    """Return one worker's bodies of a file: in memory if they fit into the pool, else as a stream.

    Length workers read a byte range each; a compressed file must be decompressed for all of them first
    (`lines.decompress_to`). *index* names the index in each item. *limit* is how many documents all workers send
    together: the first ones of the file, which end at *end_bytes* (None: each worker finds that out itself). A worker
    for which nothing remains gets an empty pool.
    """
    protocol = protocol.for_file(
        corpus.path, has_action_lines=corpus.has_action_lines, index=index, is_data_stream=is_data_stream
    )
    if workers > 1 and not lines.is_plain(corpus.path):
        raise SpecError(
            f"{corpus.path}: {workers} processes cannot share a compressed file. Decompress it, or use one process."
        )
    reader = CorpusReader(corpus=corpus, protocol=protocol, size=size, seed=seed, limit=limit)
    if workers > 1:
        start, end = _byte_range(corpus, worker, workers, limit, end_bytes)
        reader = dataclasses.replace(reader, start=start, end=end, limit=None)
    groups = reader.read_groups()
    buffered: list[list[bytes]] = []
    total = 0
    for documents in groups:
        buffered.append(documents)
        total += sum(map(len, documents))
        if total > pool_bytes:
            return BodyStream(reader, itertools.chain(buffered, groups))
    return build_pool(buffered, protocol, seed, sys.maxsize)


def _byte_range(corpus: Corpus, worker: int, workers: int, limit: int | None, end_bytes: int | None) -> tuple[int, int]:
    """Return one worker's byte range. All workers together have the file, or its first *limit* documents."""
    path, has_action_lines = corpus.path, corpus.has_action_lines
    if limit is None:
        size = path.stat().st_size
    else:
        size = corpora.find_end(path, limit, has_action_lines) if end_bytes is None else end_bytes
    start, end = (
        corpora.find_boundary(path, offset, has_action_lines) for offset in lines.part_range(size, worker, workers)
    )
    return min(start, size), min(end, size)


@dataclass(slots=True)
class Loop:
    """Length files, sent one after the other repeatedly, by all users of a worker together."""

    files: list[Bodies]
    _current: int = field(default=0, init=False)

    def bodies_of(self, user: int, users: int, ids: IdSequence) -> Iterator[Body]:
        """Yield the bodies of one user forever; none if no file has any for it."""
        empty = 0
        # A stream that others have read to its end is empty too, until it restarts.
        while empty <= 2 * len(self.files):
            current = self._current
            empty += 1
            for body in self.files[current].iterate_once(user, users, ids):
                empty = 0
                yield body
            if current == self._current:
                self.files[current] = self.files[current].as_resent()
                self._current = (current + 1) % len(self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The bodies of one worker. Each user has bodies of its own, so that none is sent by two."""

    files: tuple[Bodies, ...]
    """The files of a track step, sent one after the other; otherwise one, sent forever."""
    sends_once: bool
    """Each body is sent once."""
    loop: Loop | None
    """The files of a step that sends them repeatedly."""
    conflicts: Conflicts
    seed: int
    first_id: int
    users: int
    """Users of all workers."""
    worker: int
    workers: int

    def bodies_of(self, number: int) -> Iterator[Body]:
        """Yield the bodies of one user; user numbers are unique across workers."""
        # Ids are counted across all workers and, for a user, across all files, so that none is assigned twice.
        ids = IdSequence(number, self.users, self.conflicts, self.seed, self.first_id)
        user, users = number // self.workers, len(lines.part_numbers(self.users, self.worker, self.workers))
        if self.sends_once:
            return itertools.chain.from_iterable(file.iterate_once(user, users, ids) for file in self.files)
        if self.loop is not None:
            return self.loop.bodies_of(user, users, ids)
        return self.files[0].iterate_forever(user, users, ids)


def open_source(
    workload: Workload,
    options: LoadOptions,
    protocol: BodyBuilder,
    *,
    corpus: Corpus | None = None,
    step: Step | None = None,
    pool_bytes: int = POOL_BYTES,
    first_id: int = 0,
    users: int = 1,
    worker: int = 0,
    workers: int = 1,
) -> Source:
    """Return the source of one worker: the files of a track step, the user's file, or generated documents."""
    files: tuple[Bodies, ...]
    if step is not None:
        files = open_step_files(
            step, protocol, seed=options.seed, pool_bytes=pool_bytes, worker=worker, workers=workers
        )
    elif corpus is not None:
        size = choose_bulk_size(workload, options, protocol)
        bodies = open_corpus(
            corpus, protocol, size, seed=options.seed, pool_bytes=pool_bytes, worker=worker, workers=workers
        )
        if bodies == BodyPool(()):
            raise _no_documents_left(str(corpus.path), worker, workers)
        files = (bodies,)
    else:
        pool = build_synthetic_pool(workload, options, protocol, pool_bytes=pool_bytes, worker=worker, workers=workers)
        files = (pool,)
    is_looped = step is not None and step.looped
    return Source(
        files=files,
        sends_once=step is not None and not is_looped,
        loop=Loop(list(files)) if is_looped and len(files) > 1 else None,
        conflicts=options.action.conflicts,
        seed=options.seed,
        first_id=first_id,
        users=users,
        worker=worker,
        workers=workers,
    )


def _no_documents_left(name: str, worker: int, workers: int) -> SpecError:
    return SpecError(f"{name}: no documents remain for process {worker + 1} of {workers}. Use fewer processes.")


def build_synthetic_pool(
    workload: Workload,
    options: LoadOptions,
    protocol: BodyBuilder,
    *,
    pool_bytes: int = POOL_BYTES,
    worker: int = 0,
    workers: int = 1,
) -> BodyPool | IdPool:
    """Generate about *pool_bytes* of documents and at least one body; workers get different documents."""
    size = choose_bulk_size(workload, options, protocol)
    blocks = DocumentGenerator(workload, options.seed).blocks(worker, workers)
    return build_pool(group_documents(blocks, size, protocol.overhead_bytes), protocol, options.seed, pool_bytes)


def open_step_files(
    step: Step, protocol: BodyBuilder, *, seed: int, pool_bytes: int = POOL_BYTES, worker: int = 0, workers: int = 1
) -> tuple[Bodies, ...]:
    """Return the bodies of each file of a track's bulk step; every item names its index."""
    files = tuple(
        open_corpus(
            Corpus(Path(file.path), file.has_action_lines),
            protocol,
            BulkSize(documents=step.bulk_documents),
            seed=seed + number,
            pool_bytes=pool_bytes,
            worker=worker,
            workers=workers,
            index=file.index,
            is_data_stream=file.is_data_stream,
            limit=file.documents,
            end_bytes=file.end_bytes,
        )
        for number, file in enumerate(step.files)
    )
    if all(file == BodyPool(()) for file in files):
        raise _no_documents_left(step.name, worker, workers)
    return files


def decompress_step_files(step: Step, out_folder: Path) -> Step:
    """Return the step with files that several workers can read, each in its own folder: names may be equal.

    If only the first documents of a file are sent, their end is searched here, once for all workers.
    """
    files = []
    for number, file in enumerate(step.files):
        folder = out_folder / f"file-{number}"
        folder.mkdir(exist_ok=True)
        path = lines.decompress_to(Path(file.path), folder)
        end_bytes = file.end_bytes
        if file.documents is not None and end_bytes is None:
            end_bytes = corpora.find_end(path, file.documents, file.has_action_lines)
        files.append(dataclasses.replace(file, path=str(path), end_bytes=end_bytes))
    return dataclasses.replace(step, files=tuple(files))
