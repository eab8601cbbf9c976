"""The bodies of a track's bulk step, from all its files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ingest_bench.documents import corpus
from ingest_bench.documents.body import POOL_BYTES, Bodies, Body, BodyPool, BulkSize, IdPool
from ingest_bench.documents.corpus import Corpus
from ingest_bench.documents.source import open_bodies
from ingest_bench.model.track import Step, Track


@dataclass(frozen=True, slots=True)
class Chain:
    """Bodies of several sources, one after the other."""

    sources: tuple[Bodies, ...]

    def cycle(self, user: int, users: int, *, once: bool = False) -> Iterator[Body]:
        """All bodies of this user; without end unless `once`."""
        while True:
            sent = False
            for source in self.sources:
                for body in source.cycle(user, users, once=True):
                    sent = True
                    yield body
            if once:
                return
            if not sent:
                # There are fewer bodies than users: this one shares.
                yield from self.sources[user % len(self.sources)].cycle(user, users)


def check(track: Track) -> None:
    """Nothing when every file of the track can be sent; SpecError names file and line."""
    seen = {(file.path, file.bulk) for step in track.steps for file in step.files}
    for path, bulk in sorted(seen):
        corpus.check(Path(path), bulk=bulk)


def bodies(
    step: Step, *, seed: int, pool_bytes: int = POOL_BYTES, compress: bool = False, part: int = 0, parts: int = 1
) -> Bodies:
    """What the users of a bulk step send; every action line names its index. Paths may have been unpacked before."""
    sources = tuple(
        open_bodies(
            Corpus(path=Path(file.path), bulk=file.bulk, documents=None),
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
    # Ids are counted through all files, or one would be given twice.
    if all(isinstance(source, IdPool) for source in sources):
        templates = (source.templates for source in sources if isinstance(source, IdPool))
        return IdPool(tuple(itertools.chain.from_iterable(templates)), seed, compress)
    if all(isinstance(source, BodyPool) for source in sources):
        ready = (source.bodies for source in sources if isinstance(source, BodyPool))
        return BodyPool(tuple(itertools.chain.from_iterable(ready)))
    return Chain(sources)
