"""Where the bodies of one worker come from: documents that are made, a file of the user's, or the files of a track."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench.documents import bulk, lines, pool, stream
from ingest_bench.documents.bulk import Packing
from ingest_bench.documents.corpus import Corpus
from ingest_bench.documents.ids import Ids
from ingest_bench.documents.pool import POOL_BYTES, Bodies, BodyPool, BulkSize, IdPool
from ingest_bench.documents.synthetic import Documents

if TYPE_CHECKING:
    from ingest_bench.documents.body import Body
    from ingest_bench.model.load import LoadOptions
    from ingest_bench.model.track import Step
    from ingest_bench.model.workload import Conflicts, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The bodies of one of several workers. Each user has bodies of its own, so that none is sent by two."""

    files: tuple[Bodies, ...]
    """The files of a track's step, sent one after the other and each body once; else one, sent without end."""
    once: bool
    conflicts: Conflicts
    seed: int
    users: int
    """Of all workers together."""
    worker: int
    workers: int

    def for_user(self, number: int) -> Iterator[Body]:
        """The bodies of one user, whose number no user of any worker shares."""
        # Ids are counted through all users of all workers, and of a user through all files, so that none comes twice.
        ids = Ids(number, self.users, self.conflicts, self.seed)
        own, own_users = number // self.workers, len(range(self.worker, self.users, self.workers))
        if self.once:
            return itertools.chain.from_iterable(file.once(own, own_users, ids) for file in self.files)
        return self.files[0].endless(own, own_users, ids)


def open_source(
    workload: Workload,
    options: LoadOptions,
    *,
    corpus: Corpus | None = None,
    step: Step | None = None,
    pool_bytes: int = POOL_BYTES,
    users: int = 1,
    worker: int = 0,
    workers: int = 1,
) -> Source:
    """What one worker sends: the files of a track's step, the user's own file, or documents of the workload."""
    files: tuple[Bodies, ...]
    if step is not None:
        files = step_files(
            step, seed=options.seed, pool_bytes=pool_bytes, compress=options.gzip, part=worker, parts=workers
        )
    elif corpus is not None:
        opened = stream.open_file(
            corpus,
            workload.index,
            pool.bulk_size(workload, options.bulk_documents, options.bulk_bytes),
            seed=options.seed,
            pool_bytes=pool_bytes,
            action=options.action,
            compress=options.gzip,
            part=worker,
            parts=workers,
        )
        files = (opened,)
    else:
        files = (synthetic(workload, options, pool_bytes=pool_bytes, part=worker, parts=workers),)
    return Source(
        files=files,
        once=step is not None,
        conflicts=options.action.conflicts,
        seed=options.seed,
        users=users,
        worker=worker,
        workers=workers,
    )


def synthetic(
    workload: Workload, options: LoadOptions, *, pool_bytes: int = POOL_BYTES, part: int = 0, parts: int = 1
) -> BodyPool | IdPool:
    """At least one body, and about `pool_bytes` of documents that are made; those of worker `part` are its own.

    Without a size a bulk has the workload's published number of documents.
    """
    size = pool.bulk_size(workload, options.bulk_documents, options.bulk_bytes)
    packing = Packing(bulk.targets_of(workload.index, options.action), options.action, options.gzip)
    blocks = Documents(workload, options.seed).blocks(part, parts)
    return pool.fill(pool.group(blocks, size, packing.overhead_bytes), packing, options.seed, pool_bytes)


def step_files(
    step: Step, *, seed: int, pool_bytes: int = POOL_BYTES, compress: bool = False, part: int = 0, parts: int = 1
) -> tuple[Bodies, ...]:
    """What a track's bulk step sends, file by file; every action line names its index."""
    return tuple(
        stream.open_file(
            Corpus(Path(file.path), file.bulk),
            file.index,
            BulkSize(documents=step.bulk_documents),
            seed=seed + number,
            action=step.action,
            pool_bytes=pool_bytes,
            compress=compress,
            part=part,
            parts=parts,
            named=True,
            limit=file.documents,
        )
        for number, file in enumerate(step.files)
    )


def unpacked(step: Step, out: Path) -> Step:
    """The step with files that several workers can read, each in a folder of its own: names may be alike."""
    files = []
    for number, file in enumerate(step.files):
        folder = out / f"file-{number}"
        folder.mkdir(exist_ok=True)
        files.append(dataclasses.replace(file, path=str(lines.unpack(Path(file.path), folder))))
    return dataclasses.replace(step, files=tuple(files))
