"""What a worker's users send: each user has bodies of its own, so that none is sent by two."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from ingest_bench.load import bodies, corpus, lines, streams
from ingest_bench.load.bodies import IdPool
from ingest_bench.load.corpus import Corpus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.load.bodies import Bodies, Body
    from ingest_bench.load.plan import LoadPlan


def checked(plan: LoadPlan) -> LoadPlan:
    """The plan with its corpus looked through; SpecError names the line."""
    if plan.options.documents is None:
        return plan
    found = corpus.check(Path(plan.options.documents))
    return dataclasses.replace(plan, corpus=str(found.path.absolute()), corpus_is_bulk=found.bulk)


def unpacked(plan: LoadPlan) -> LoadPlan:
    """The plan with a corpus that several workers can read: each reads a part of a plain file."""
    if plan.corpus is None or plan.workers == 1:
        return plan
    return dataclasses.replace(plan, corpus=str(lines.unpack(Path(plan.corpus), plan.out)))


class Supply:
    """The bodies of one worker."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._bodies = _synthetic(plan) if plan.corpus is None else _corpus(plan, Path(plan.corpus))

    def for_user(self, number: int) -> Iterator[Body]:
        """The bodies of one user, without end."""
        plan = self._plan
        if isinstance(self._bodies, IdPool):
            # Ids are counted through all users of all workers, so that two never give the same one.
            return self._bodies.cycle(number, plan.users)
        return self._bodies.cycle(number // plan.workers, len(plan.own_users))


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
    return streams.open_bodies(
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
