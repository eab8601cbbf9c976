"""What a worker's users send: each user has bodies of its own, so that none is sent by two."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench.documents import body as bodies
from ingest_bench.documents import corpus, lines, source
from ingest_bench.documents.body import IdPool
from ingest_bench.documents.corpus import Corpus
from ingest_bench.documents.tracks import supply as track

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.documents.body import Bodies, Body
    from ingest_bench.load.plan import LoadPlan
    from ingest_bench.model.track import Step


def checked(plan: LoadPlan) -> LoadPlan:
    """The plan with its corpus looked through; SpecError names the line."""
    if plan.options.documents is None:
        return plan
    found = corpus.check(Path(plan.options.documents))
    return dataclasses.replace(plan, corpus=str(found.path.absolute()), corpus_is_bulk=found.bulk)


def unpacked(plan: LoadPlan) -> LoadPlan:
    """The plan with a corpus that several workers can read: each reads a part of a plain file."""
    if plan.workers == 1:
        return plan
    if plan.step is not None:
        return dataclasses.replace(plan, step=_plain(plan.step, plan.out))
    if plan.corpus is None:
        return plan
    return dataclasses.replace(plan, corpus=str(lines.unpack(Path(plan.corpus), plan.out)))


class Supply:
    """The bodies of one worker."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._bodies = _bodies(plan)

    def for_user(self, number: int) -> Iterator[Body]:
        """The bodies of one user: without end, or each once when they are those of a track."""
        plan = self._plan
        once = plan.step is not None
        if isinstance(self._bodies, IdPool):
            # Ids are counted through all users of all workers, so that two never give the same one.
            return self._bodies.cycle(number, plan.users, once=once)
        return self._bodies.cycle(number // plan.workers, len(plan.own_users), once=once)


def _bodies(plan: LoadPlan) -> Bodies:
    if plan.step is not None:
        return track.bodies(
            plan.step,
            seed=plan.options.seed,
            pool_bytes=plan.pool_bytes,
            compress=plan.options.gzip,
            part=plan.worker,
            parts=plan.workers,
        )
    return _synthetic(plan) if plan.corpus is None else _corpus(plan, Path(plan.corpus))


def _plain(step: Step, out: Path) -> Step:
    """The step with files that several workers can read, each in a folder of its own: names may be alike."""
    files = []
    for number, file in enumerate(step.files):
        folder = out / f"file-{number}"
        folder.mkdir(exist_ok=True)
        files.append(dataclasses.replace(file, path=str(lines.unpack(Path(file.path), folder))))
    return dataclasses.replace(step, files=tuple(files))


def _synthetic(plan: LoadPlan) -> Bodies:
    options = plan.options
    return bodies.pool(
        plan.workload,
        bulk_documents=options.bulk_documents,
        bulk_bytes=options.bulk_bytes,
        seed=options.seed,
        pool_bytes=plan.pool_bytes,
        action=options.action,
        compress=options.gzip,
        part=plan.worker,
        parts=plan.workers,
    )


def _corpus(plan: LoadPlan, path: Path) -> Bodies:
    options = plan.options
    return source.open_bodies(
        Corpus(path=path, bulk=plan.corpus_is_bulk, documents=None),
        plan.workload.index,
        bodies.bulk_size(plan.workload, options.bulk_documents, options.bulk_bytes),
        seed=options.seed,
        pool_bytes=plan.pool_bytes,
        action=options.action,
        compress=options.gzip,
        part=plan.worker,
        parts=plan.workers,
    )
