"""Bodies in memory: built once, then sent again and again without copying.

Users of a pool take disjoint strides of it. Where documents have ids these are written in place, by the one user that
owns the body, so that an id is new exactly when it should be.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ingest_bench.documents.body import Body
from ingest_bench.documents.ids import Ids, Template
from ingest_bench.errors import SpecError
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.workload import Workload

POOL_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkSize:
    """How much goes into a bulk: so many documents, or at most so many bytes (but one document at least)."""

    documents: int | None = None
    data_bytes: int | None = None


class MakesBodies(Protocol):
    """A protocol (`protocols/`), as far as documents have to know it."""

    @property
    def overhead_bytes(self) -> int:
        """What an item has at most beside its document."""
        ...

    @property
    def most_documents(self) -> int | None:
        """How many documents go into one request at most; None: as many as are asked for."""
        ...

    def body(self, documents: Sequence[bytes], seed: int) -> Body | Template:
        """These documents as a body, or with gaps where a user writes ids. The seed says which ids are old."""
        ...

    def of_file(self, path: Path, *, ready: bool, index: str | None, stream: bool = False) -> MakesBodies:
        """The same for the documents of a file, which may be `ready` items; `index` is where each says that it goes.

        A data stream (`stream`) takes only documents that are new.
        """
        ...


class Bodies(Protocol):
    """Where the users of one worker get their bodies from."""

    def once(self, user: int, users: int, ids: Ids) -> Iterator[Body]:
        """Those of one of several users: all users together have each body once."""
        ...

    def endless(self, user: int, users: int, ids: Ids) -> Iterator[Body]:
        """The bodies of one of several users, again and again; with fewer bodies than users some users share them."""
        ...

    def again(self) -> Bodies:
        """The same bodies, all of which were sent before."""
        ...


@dataclass(frozen=True, slots=True)
class BodyPool:
    """Bodies whose ids the server makes, or that have their own."""

    bodies: tuple[Body, ...]

    def once(self, user: int, users: int, ids: Ids) -> Iterator[Body]:
        """Every `users`-th body."""
        del ids
        return iter(self.bodies[user::users])

    def endless(self, user: int, users: int, ids: Ids) -> Iterator[Body]:
        """Every `users`-th body, and then the same ones; all of them, sent before, when none is this user's own."""
        del ids
        own = self.bodies[user::users]
        sent_before = [body.again() for body in own or self.bodies]
        return itertools.chain(own, itertools.cycle(sent_before))

    def again(self) -> BodyPool:
        """The same bodies, sent before."""
        return BodyPool(tuple(body.again() for body in self.bodies))


@dataclass(frozen=True, slots=True)
class IdPool:
    """Bodies into which users write ids. No two write into the same one."""

    templates: tuple[Template, ...]

    def once(self, user: int, users: int, ids: Ids) -> Iterator[Body]:
        """Every `users`-th body with this user's next ids."""
        return (template.filled(ids) for template in self.templates[user::users])

    def endless(self, user: int, users: int, ids: Ids) -> Iterator[Body]:
        """Every `users`-th body, again and again, each time with the next ids; copies when none is this user's own."""
        own = self.templates[user::users] or tuple(template.copy() for template in self.templates)
        return (template.filled(ids) for template in itertools.cycle(own))

    def again(self) -> IdPool:
        """The same: the ids make the difference."""
        return self


def fill(groups: Iterable[Sequence[bytes]], protocol: MakesBodies, seed: int, pool_bytes: int) -> BodyPool | IdPool:
    """A pool of the first groups of documents that together reach `pool_bytes`."""
    total = 0
    bodies: list[Body] = []
    templates: list[Template] = []
    for number, documents in enumerate(groups):
        made = protocol.body(documents, seed + number)
        if isinstance(made, Body):
            bodies.append(made)
        else:
            templates.append(made)
        total += sum(map(len, documents))
        if total >= pool_bytes:
            break
    return IdPool(tuple(templates)) if templates else BodyPool(tuple(bodies))


def bulk_size(workload: Workload, options: LoadOptions, protocol: MakesBodies) -> BulkSize:
    """The size of a bulk: as given, or as published, or the most that the protocol sends at once.

    SpecError when it is given twice or nothing.
    """
    documents, data_bytes = options.bulk_documents, options.bulk_bytes
    if documents is not None and data_bytes is not None:
        raise SpecError("a bulk has a size in documents or in bytes, not both: take one out")
    if any(given is not None and given < 1 for given in (documents, data_bytes)):
        raise SpecError("a bulk without documents: give a size of at least 1")
    most = protocol.most_documents
    if data_bytes is not None and most is None:
        return BulkSize(data_bytes=data_bytes)
    wanted = documents or workload.bulk_documents
    return BulkSize(documents=wanted if most is None else min(wanted, most))


def group(blocks: Iterable[list[bytes]], size: BulkSize, overhead_bytes: int) -> Iterator[list[bytes]]:
    """The same documents, a list for each bulk; the last one may be smaller.

    `overhead_bytes` is what a document has at most beside itself in a body.
    """
    waiting: list[bytes] = []
    for block in blocks:
        waiting += block
        ends = _ends(waiting, size, overhead_bytes)
        for start, end in itertools.pairwise([0, *ends]):
            yield waiting[start:end]
        if ends:
            waiting = waiting[ends[-1] :]
    if waiting:
        yield waiting


def first(blocks: Iterable[list[bytes]], documents: int) -> Iterator[list[bytes]]:
    """The blocks up to so many documents."""
    left = documents
    for block in blocks:
        yield block[:left]
        left -= len(block)
        if left <= 0:
            return


def _ends(waiting: Sequence[bytes], size: BulkSize, overhead_bytes: int) -> list[int]:
    if size.documents is not None:
        return list(range(size.documents, len(waiting) + 1, size.documents))
    limit = size.data_bytes or 1
    ends, total, begin = [], 0, 0
    for place, document in enumerate(waiting):
        total += len(document) + overhead_bytes
        if total > limit and place > begin:
            ends.append(place)
            begin = place
            total = len(document) + overhead_bytes
    return ends
