"""Bulk bodies: built once, then sent again and again without copying.

Users of a pool take disjoint strides of it. Where documents have ids the bodies are patched in place, by the one user
that owns them, so that an id is new exactly when it should be.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import urlencode

from ingest_bench.documents.ids import Template
from ingest_bench.documents.synthetic import Documents
from ingest_bench.errors import SpecError
from ingest_bench.model.workload import BulkAction, Workload

POOL_BYTES = 64 * 1024**2
# Level 1: the sender must not become the limit; higher levels made nyc_taxis bodies smaller by a few percent only.
GZIP_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Body:
    """What one bulk request sends."""

    data: bytes | bytearray
    documents: int
    documents_new: int
    """Without the documents whose id was given before: what the index must count in the end."""
    gzip: bool = False
    documents_again: int | None = None
    """How many are new when the same body is sent once more; None: as many, the server makes the ids."""

    def again(self) -> Body:
        """The same body when it was sent before."""
        return self if self.documents_again is None else replace(self, documents_new=self.documents_again)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkSize:
    """How much goes into a bulk: so many documents, or at most so many bytes (but one document at least)."""

    documents: int | None = None
    data_bytes: int | None = None


class Bodies(Protocol):
    """Where users get their bodies from."""

    def cycle(self, user: int, users: int, *, once: bool = False) -> Iterator[Body]:
        """The bodies of one of several users: without end, or each of the pool's bodies once among all users."""
        ...


@dataclass(frozen=True, slots=True)
class BodyPool:
    """Bodies in memory."""

    bodies: tuple[Body, ...]

    def cycle(self, user: int, users: int, *, once: bool = False) -> Iterator[Body]:
        """Every `users`-th body, again and again; with fewer bodies than users some users share one."""
        if once:
            return iter(self.bodies[user::users])
        own = self.bodies[user % len(self.bodies) :: users]
        sent_before = [body.again() for body in own]
        return itertools.chain(own if user < len(self.bodies) else (), itertools.cycle(sent_before))


@dataclass(frozen=True, slots=True)
class IdPool:
    """Bodies whose documents have ids. No user shares a body: its ids are written in place before each sending."""

    templates: tuple[Template, ...]
    seed: int
    compress: bool

    def cycle(self, user: int, users: int, *, once: bool = False) -> Iterator[Body]:
        """Every `users`-th body with this user's next ids."""
        first = user if once else user % len(self.templates)
        own = [template.copy() for template in self.templates[first::users]]
        counter = self.templates[0].counter(user, users, self.seed)
        for template in own if once else itertools.cycle(own):
            new = template.write(counter)
            body = Body(template.data, template.documents, new)
            yield compressed(body) if self.compress else body


def pool(
    workload: Workload,
    *,
    bulk_documents: int | None = None,
    bulk_bytes: int | None = None,
    seed: int,
    pool_bytes: int = POOL_BYTES,
    action: BulkAction | None = None,
    compress: bool = False,
    part: int = 0,
    parts: int = 1,
) -> BodyPool | IdPool:
    """At least one body, and about `pool_bytes` of synthetic documents; those of process `part` of `parts` are its own.

    Without a size a bulk has the workload's published number of documents.
    """
    size = bulk_size(workload, bulk_documents, bulk_bytes)
    blocks = Documents(workload, seed).blocks(part, parts)
    action = action or BulkAction()
    return fill(group(blocks, size), targets_of(workload.index, action), action, seed, pool_bytes, compress)


def bulk_size(workload: Workload, documents: int | None, data_bytes: int | None) -> BulkSize:
    """The size of a bulk: as given, or as published; SpecError when it is given twice or nothing."""
    if documents is not None and data_bytes is not None:
        raise SpecError("a bulk has a size in documents or in bytes, not both: take one out")
    if any(given is not None and given < 1 for given in (documents, data_bytes)):
        raise SpecError("a bulk without documents: give a size of at least 1")
    if data_bytes is not None:
        return BulkSize(data_bytes=data_bytes)
    return BulkSize(documents=documents or workload.bulk_documents)


def fill(
    groups: Iterable[Sequence[bytes]],
    targets: tuple[str, ...],
    action: BulkAction,
    seed: int,
    pool_bytes: int,
    compress: bool,
) -> BodyPool | IdPool:
    """A pool of the first groups of documents that together reach `pool_bytes`."""
    total = 0
    bodies: list[Body] = []
    templates: list[Template] = []
    for documents in groups:
        if action.conflicts == "none":
            bodies.append(bundle(documents, targets, compress))
        else:
            templates.append(Template.build(documents, targets, action, seed + len(templates)))
        total += sum(map(len, documents))
        if total >= pool_bytes:
            break
    return IdPool(tuple(templates), seed, compress) if templates else BodyPool(tuple(bodies))


def group(blocks: Iterable[list[bytes]], size: BulkSize) -> Iterator[list[bytes]]:
    """The same documents, a list for each bulk; the last one may be smaller."""
    waiting: list[bytes] = []
    for block in blocks:
        waiting += block
        ends = _ends(waiting, size)
        for start, end in itertools.pairwise([0, *ends]):
            yield waiting[start:end]
        if ends:
            waiting = waiting[ends[-1] :]
    if waiting:
        yield waiting


def bundle(documents: Sequence[bytes], targets: tuple[str, ...], compress: bool) -> Body:
    """A body that indexes these documents into the targets in turn (none: the path says it), ids by the server."""
    if not targets:
        line = b'{"index":{}}\n'
        data = b"".join((line, (b"\n" + line).join(documents), b"\n"))
    else:
        lines = itertools.cycle([b'{"index":{"_index":"%s"}}\n' % target.encode() for target in targets])
        data = b"".join(itertools.chain.from_iterable(zip(lines, documents, itertools.repeat(b"\n"))))
    body = Body(data, len(documents), len(documents))
    return compressed(body) if compress else body


def compressed(body: Body) -> Body:
    """The same body for `Content-Encoding: gzip`."""
    # mtime 0: the same documents give the same bytes.
    return replace(body, data=gzip.compress(body.data, GZIP_LEVEL, mtime=0), gzip=True)


def items(body: Body) -> list[bytes]:
    """Each item of a body, its action line with its document: the n-th is what the n-th item of an answer is about."""
    lines = bytes(gzip.decompress(body.data) if body.gzip else body.data).splitlines(keepends=True)
    parts = []
    place = 0
    while place < len(lines):
        size = 1 if lines[place].lstrip().startswith(b'{"delete"') else 2
        parts.append(b"".join(lines[place : place + size]))
        place += size
    return parts


def only(body: Body, wanted: Sequence[int]) -> Body:
    """A body of some items of another one: what is sent again after a refusal."""
    parts = items(body)
    chosen = Body(b"".join(parts[place] for place in wanted), len(wanted), len(wanted))
    return compressed(chosen) if body.gzip else chosen


def bulk_query(action: BulkAction) -> str:
    """The query string of the bulk path, with its question mark; empty when nothing was asked for."""
    asked = {"pipeline": action.pipeline, "refresh": action.refresh}
    text = urlencode({key: value for key, value in asked.items() if value is not None})
    return f"?{text}" if text else ""


def targets_of(index: str, action: BulkAction) -> tuple[str, ...]:
    """The indices that action lines name: none when there is one, which the path says."""
    return () if action.indices == 1 else tuple(f"{index}-{number}" for number in range(action.indices))


def index_names(workload: Workload, action: BulkAction) -> tuple[str, ...]:
    """The indices that a load with this action writes to."""
    return targets_of(workload.index, action) or (workload.index,)


def _ends(waiting: Sequence[bytes], size: BulkSize) -> list[int]:
    if size.documents is not None:
        return list(range(size.documents, len(waiting) + 1, size.documents))
    limit = size.data_bytes or 1
    # 14: the shortest action line and both line feeds.
    ends, total = [], 0
    for place, document in enumerate(waiting):
        total += len(document) + 14
        if total > limit and total > len(document) + 14:
            ends.append(place)
            total = len(document) + 14
    return ends
