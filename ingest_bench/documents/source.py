"""Where the bodies of one worker come from: documents that are made, a file of the user's, or the files of a track."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench.documents import lines, pool, stream
from ingest_bench.documents.corpus import Corpus
from ingest_bench.documents.ids import Ids
from ingest_bench.documents.pool import POOL_BYTES, Bodies, BodyPool, BulkSize, IdPool, MakesBodies
from ingest_bench.documents.synthetic import Documents
from ingest_bench.errors import SpecError

if TYPE_CHECKING:
    from ingest_bench.documents.body import Body
    from ingest_bench.model.load import LoadOptions
    from ingest_bench.model.track import Step
    from ingest_bench.model.workload import Conflicts, Workload


@dataclass(slots=True)
class Loop:
    """Several files, sent one after the other and then from the first on again, by all users of a worker together."""

    files: list[Bodies]
    _place: int = field(default=0, init=False)

    def for_user(self, user: int, users: int, ids: Ids) -> Iterator[Body]:
        """The bodies of one user, without end; none when no file has any for it."""
        empty = 0
        # A stream that others have read to its end has nothing either, until it begins again.
        while empty <= 2 * len(self.files):
            place = self._place
            empty += 1
            for body in self.files[place].once(user, users, ids):
                empty = 0
                yield body
            if place == self._place:
                self.files[place] = self.files[place].again()
                self._place = (place + 1) % len(self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The bodies of one of several workers. Each user has bodies of its own, so that none is sent by two."""

    files: tuple[Bodies, ...]
    """The files of a track's step, sent one after the other; else one, sent without end."""
    once: bool
    """Each body is sent once."""
    loop: Loop | None
    """The files of a step that sends them again and again."""
    conflicts: Conflicts
    seed: int
    first_id: int
    users: int
    """Of all workers together."""
    worker: int
    workers: int

    def for_user(self, number: int) -> Iterator[Body]:
        """The bodies of one user, whose number no user of any worker shares."""
        # Ids are counted through all users of all workers, and of a user through all files, so that none comes twice.
        ids = Ids(number, self.users, self.conflicts, self.seed, self.first_id)
        own, own_users = number // self.workers, len(lines.stride(self.users, self.worker, self.workers))
        if self.once:
            return itertools.chain.from_iterable(file.once(own, own_users, ids) for file in self.files)
        if self.loop is not None:
            return self.loop.for_user(own, own_users, ids)
        return self.files[0].endless(own, own_users, ids)


def open_source(
    workload: Workload,
    options: LoadOptions,
    protocol: MakesBodies,
    *,
    corpus: Corpus | None = None,
    step: Step | None = None,
    pool_bytes: int = POOL_BYTES,
    first_id: int = 0,
    users: int = 1,
    worker: int = 0,
    workers: int = 1,
) -> Source:
    """What one worker sends: the files of a track's step, the user's own file, or documents of the workload."""
    files: tuple[Bodies, ...]
    if step is not None:
        files = step_files(step, protocol, seed=options.seed, pool_bytes=pool_bytes, part=worker, parts=workers)
    elif corpus is not None:
        opened = stream.open_file(
            corpus,
            protocol,
            pool.bulk_size(workload, options, protocol),
            seed=options.seed,
            pool_bytes=pool_bytes,
            part=worker,
            parts=workers,
        )
        if opened == BodyPool(()):
            raise SpecError(f"{corpus.path}: no document is left for process {worker + 1} of {workers}; take fewer")
        files = (opened,)
    else:
        files = (synthetic(workload, options, protocol, pool_bytes=pool_bytes, part=worker, parts=workers),)
    return Source(
        files=files,
        once=step is not None and not step.looped,
        loop=Loop(list(files)) if step is not None and step.looped and len(files) > 1 else None,
        conflicts=options.action.conflicts,
        seed=options.seed,
        first_id=first_id,
        users=users,
        worker=worker,
        workers=workers,
    )


def synthetic(
    workload: Workload,
    options: LoadOptions,
    protocol: MakesBodies,
    *,
    pool_bytes: int = POOL_BYTES,
    part: int = 0,
    parts: int = 1,
) -> BodyPool | IdPool:
    """At least one body, and about `pool_bytes` of documents that are made; those of worker `part` are its own.

    Without a size a bulk has the workload's published number of documents.
    """
    size = pool.bulk_size(workload, options, protocol)
    blocks = Documents(workload, options.seed).blocks(part, parts)
    return pool.fill(pool.group(blocks, size, protocol.overhead_bytes), protocol, options.seed, pool_bytes)


def step_files(
    step: Step, protocol: MakesBodies, *, seed: int, pool_bytes: int = POOL_BYTES, part: int = 0, parts: int = 1
) -> tuple[Bodies, ...]:
    """What a track's bulk step sends, file by file; every item names its index."""
    files = tuple(
        stream.open_file(
            Corpus(Path(file.path), file.bulk),
            protocol,
            BulkSize(documents=step.bulk_documents),
            seed=seed + number,
            pool_bytes=pool_bytes,
            part=part,
            parts=parts,
            index=file.index,
            is_stream=file.stream,
            limit=file.documents,
            end_bytes=file.end_bytes,
        )
        for number, file in enumerate(step.files)
    )
    if all(file == BodyPool(()) for file in files):
        raise SpecError(f"{step.name}: no document is left for process {part + 1} of {parts}; take fewer")
    return files


def unpacked(step: Step, out: Path) -> Step:
    """The step with files that several workers can read, each in a folder of its own: names may be alike.

    Where only the first documents of a file are sent it is looked up here where these end, once for all workers.
    """
    files = []
    for number, file in enumerate(step.files):
        folder = out / f"file-{number}"
        folder.mkdir(exist_ok=True)
        path = lines.unpack(Path(file.path), folder)
        end_bytes = file.end_bytes
        if file.documents is not None and end_bytes is None:
            end_bytes = lines.end_of(path, file.documents, file.bulk)
        files.append(dataclasses.replace(file, path=str(path), end_bytes=end_bytes))
    return dataclasses.replace(step, files=tuple(files))
