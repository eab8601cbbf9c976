"""Body of one request: its items, what each adds to the index, and the ids that users write into it in place."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

# At import, not when the first user starts: it takes numpy 11 ms, and the workers of a load start together.
from numpy.random import default_rng
from numpy.typing import NDArray

from ingest_bench.errors import RunFailed
from ingest_bench.model.load import Conflicts

# Level 1: the sender must not become the bottleneck; higher levels make nyc_taxis bodies only a few percent smaller.
_GZIP_LEVEL = 1
# Ids have ten digits, as in Rally.
DIGITS = 10
_POWERS = 10 ** np.arange(DIGITS - 1, -1, -1, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """Payload of one request. The n-th item of the response belongs to its n-th item."""

    data: bytes | bytearray
    """Bytes on the wire."""
    documents: int
    """Number of items."""
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Bytes of each item; empty for queries."""
    adds: NDArray[np.int8] | None = None
    """Documents that each item adds to its index: 1, 0 if its id exists already, -1 for a deletion.

    None: 1 each, however often the body is sent, because the server assigns the ids.
    """
    adds_when_resent: NDArray[np.int8] | None = None
    """The same once the body was sent before; None: as `adds`."""
    ids: NDArray[np.int64] | None = None
    """The id of each item, if ingest-bench assigned it."""
    is_idempotent: bool = False
    """True if processing all items twice has the same result as once: each has an id of its own."""
    gzip: bool = False

    @property
    def text(self) -> bytes | bytearray:
        """The items, decompressed."""
        return gzip.decompress(self.data) if self.gzip else self.data

    def item_offsets(self) -> NDArray[np.int64]:
        """Return the offset of each item in `text`, then the end of the last one."""
        return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.sizes)))

    def select_items(self, items: Sequence[int], created_items: Sequence[int] = ()) -> Body:
        """Return a body with some of the items, to retry them after they were rejected.

        *created_items* created a document although their id was expected to exist: the item that should have created
        it was rejected. A selected item with such an id adds nothing any more.
        """
        if len(items) == self.documents:
            return self
        offsets, text, selected = self.item_offsets(), memoryview(self.text), np.array(items, dtype=np.int64)
        adds = None if self.adds is None else self.adds[selected]
        if adds is not None and self.ids is not None and created_items:
            exists = np.isin(self.ids[selected], self.ids[list(created_items)])
            adds = np.where(exists, 0, adds).astype(np.int8)
        body = Body(
            b"".join(text[offsets[item] : offsets[item + 1]] for item in items),
            len(items),
            sizes=self.sizes[selected],
            adds=adds,
            adds_when_resent=None if self.adds_when_resent is None else self.adds_when_resent[selected],
            ids=None if self.ids is None else self.ids[selected],
            is_idempotent=self.is_idempotent,
        )
        return body.compress() if self.gzip else body

    def as_resent(self) -> Body:
        """Return this body as it counts once it was sent before."""
        return self if self.adds_when_resent is None else replace(self, adds=self.adds_when_resent)

    def copy(self) -> Body:
        """Return this body, as `BodyTemplate.copy` does: several users may send it."""
        return self

    def fill(self, _ids: IdSequence) -> Body:
        """Return this body, as `BodyTemplate.fill` does: it has no gaps."""
        return self

    def count_added(self, excluded_items: Sequence[int] = ()) -> int:
        """Return how many documents the index gains if all items but *excluded_items* are acknowledged."""
        if self.adds is None:
            return self.documents - len(excluded_items)
        return int(self.adds.sum()) - int(self.adds[list(excluded_items)].sum())

    def compress(self) -> Body:
        """Return this body for `Content-Encoding: gzip`."""
        # mtime 0: equal documents give equal bytes.
        return replace(self, data=gzip.compress(self.data, _GZIP_LEVEL, mtime=0), gzip=True)


def item_sizes(items: Sequence[bytes]) -> NDArray[np.int64]:
    """Return the bytes of each item."""
    return np.fromiter(map(len, items), dtype=np.int64, count=len(items))


class IdSequence:
    """Ids that one user assigns: its n-th new id is `first + user + n * users`, so that users never collide."""

    def __init__(self, user: int, users: int, conflicts: Conflicts, seed: int, first: int = 0) -> None:
        self._start = first + user
        self._users = users
        self._conflicts = conflicts
        self._random = default_rng([seed, user, 5])
        self._assigned = 0
        self._next_reused = 0

    def take(self, reuses_id: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return an id for each document: one assigned before where *reuses_id* is true, a new one elsewhere."""
        assigned = self._assigned + np.cumsum(~reuses_id)
        if self._conflicts == "random":
            reused = (self._random.random(len(reuses_id)) * assigned).astype(np.int64)
        else:
            reused = (self._next_reused + np.cumsum(reuses_id) - 1) % np.maximum(assigned, 1)
            self._next_reused += int(reuses_id.sum())
        self._assigned = int(assigned[-1])
        return self._start + np.where(reuses_id, reused, assigned - 1) * self._users


def draw_reused(documents: int, probability_ppm: int, seed: int) -> NDArray[np.bool_]:
    """Draw which documents of a body reuse an id; a seed always gives the same ones."""
    reuses_id = default_rng([seed, 4]).random(documents) < probability_ppm / 1e6
    reuses_id[0] = False
    return reuses_id


@dataclass(frozen=True, slots=True, eq=False)
class BodyTemplate:
    """A body with a gap for the id of each document."""

    data: bytearray
    id_offsets: NDArray[np.int64]
    reuses_id: NDArray[np.bool_]
    """Documents that reuse an id. The first never does: there may be none yet."""
    sizes: NDArray[np.int64]
    """Bytes of each item."""
    compress: bool = False
    is_idempotent: bool = True
    """True if the server stores a document under its id, so that a duplicate replaces the first one."""

    def as_resent(self) -> BodyTemplate:
        """Return this template: new ids make new documents."""
        return self

    def copy(self) -> BodyTemplate:
        """Return a copy that another user may write into."""
        return replace(self, data=bytearray(self.data))

    def fill(self, ids: IdSequence) -> Body:
        """Write the user's next ids into the gaps and return the body. It shares its bytes with this template."""
        new_ids = ids.take(self.reuses_id)
        if int(new_ids.max()) >= 10**DIGITS:
            raise RunFailed(f"more than {10**DIGITS} document ids were assigned. Shorten the run.")
        view = np.frombuffer(self.data, dtype=np.uint8)
        view[self.id_offsets[:, None] + np.arange(DIGITS)] = new_ids[:, None] // _POWERS % 10 + ord("0")
        body = Body(
            self.data,
            len(self.id_offsets),
            sizes=self.sizes,
            adds=(~self.reuses_id).astype(np.int8),
            ids=new_ids,
            is_idempotent=self.is_idempotent,
        )
        return body.compress() if self.compress else body
