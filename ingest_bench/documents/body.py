"""The body of one request, which knows its items: where each begins, and what each adds to the index."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Level 1: the sender must not become the limit; higher levels made nyc_taxis bodies smaller by a few percent only.
_GZIP_LEVEL = 1


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """What one request sends. The n-th item of its answer is about its n-th item."""

    data: bytes | bytearray
    """As it goes over the wire."""
    documents: int
    """How many items it has."""
    sizes: NDArray[np.int64] | None = None
    """Bytes of each item; None: each has the same number of lines."""
    lines: int = 1
    """That number."""
    adds: NDArray[np.int8] | None = None
    """What each item adds to its index: 1, 0 when its id is there already, -1 when it deletes.

    None: 1 each, however often the body is sent, for the server makes the ids.
    """
    adds_again: NDArray[np.int8] | None = None
    """The same when the body was sent before; None: as at first."""
    ids: NDArray[np.int64] | None = None
    """The id of each item, where it is one of ours."""
    is_repeatable: bool = False
    """Whether the server ends up with the same when it carries all items out twice: each has an id of ours."""
    gzip: bool = False

    @property
    def text(self) -> bytes | bytearray:
        """The items, not packed."""
        return gzip.decompress(self.data) if self.gzip else self.data

    def starts(self) -> NDArray[np.int64]:
        """Where each item begins in the text, and where the last one ends.

        Found when somebody asks: the bodies of a pool are sent again and again, and few of them ever need it.
        """
        if self.sizes is None:
            feeds = np.flatnonzero(np.frombuffer(self.text, dtype=np.uint8) == ord("\n"))
            ends = feeds[self.lines - 1 :: self.lines] + 1
        else:
            ends = np.cumsum(self.sizes)
        return np.concatenate((np.zeros(1, dtype=np.int64), ends))

    def only(self, wanted: Sequence[int], made: Sequence[int] = ()) -> Body:
        """A body of some of the items: what is sent again after they were rejected.

        `made` are items whose old id was new to the server, for the item that it is new in was rejected: this one adds
        nothing any more.
        """
        if len(wanted) == self.documents:
            return self
        starts, text, chosen = self.starts(), memoryview(self.text), np.array(wanted, dtype=np.int64)
        data = b"".join(text[starts[item] : starts[item + 1]] for item in wanted)
        body = Body(
            data,
            len(wanted),
            sizes=np.diff(starts)[chosen],
            adds=self._adds(chosen, made),
            adds_again=None if self.adds_again is None else self.adds_again[chosen],
            ids=None if self.ids is None else self.ids[chosen],
            is_repeatable=self.is_repeatable,
        )
        return body.packed() if self.gzip else body

    def _adds(self, chosen: NDArray[np.int64], made: Sequence[int]) -> NDArray[np.int8] | None:
        if self.adds is None or self.ids is None or not made:
            return None if self.adds is None else self.adds[chosen]
        is_there = np.isin(self.ids[chosen], self.ids[list(made)])
        return np.where(is_there, 0, self.adds[chosen]).astype(np.int8)

    def again(self) -> Body:
        """The same body when it was sent before."""
        return self if self.adds_again is None else replace(self, adds=self.adds_again)

    def added(self, without: Sequence[int] = ()) -> int:
        """What the index counts more once all items are acknowledged, without some of them."""
        if self.adds is None:
            return self.documents - len(without)
        return int(self.adds.sum()) - int(self.adds[list(without)].sum())

    def packed(self) -> Body:
        """The same body for `Content-Encoding: gzip`."""
        # mtime 0: the same documents give the same bytes.
        return replace(self, data=gzip.compress(self.data, _GZIP_LEVEL, mtime=0), gzip=True)
