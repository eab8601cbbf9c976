"""The ids that users give to documents: which one is new, and how they are written into a body in place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

# With this module, not when the first user starts: numpy takes 11 ms for it, and the workers of a load start together.
from numpy.random import default_rng

from ingest_bench.documents.body import Body
from ingest_bench.errors import RunFailed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ingest_bench.model.workload import Conflicts

# Ten digits, as the ids have that Rally gives.
DIGITS = 10
_POWERS = 10 ** np.arange(DIGITS - 1, -1, -1, dtype=np.int64)


class Ids:
    """The ids that one of several users gives: its n-th is `first + user + n * users`, so that users never meet."""

    def __init__(self, user: int, users: int, conflicts: Conflicts, seed: int, first: int = 0) -> None:
        self._user = first + user
        self._users = users
        self._conflicts = conflicts
        self._random = default_rng([seed, user, 5])
        self._given = 0
        self._next_old = 0

    def take(self, old: NDArray[np.bool_]) -> NDArray[np.int64]:
        """An id for each document: one given before where it is `old`, a new one elsewhere."""
        before = self._given + np.cumsum(~old)
        if self._conflicts == "random":
            again = (self._random.random(len(old)) * before).astype(np.int64)
        else:
            again = (self._next_old + np.cumsum(old) - 1) % np.maximum(before, 1)
            self._next_old += int(old.sum())
        self._given = int(before[-1])
        return self._user + np.where(old, again, before - 1) * self._users


def drawn_old(documents: int, probability_ppm: int, seed: int) -> NDArray[np.bool_]:
    """Which documents of a body take an id that was given before: the same ones for the same seed."""
    old = default_rng([seed, 4]).random(documents) < probability_ppm / 1e6
    old[0] = False
    return old


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A body with a gap for the id of each document."""

    data: bytearray
    places: NDArray[np.int64]
    """Where each gap begins."""
    old: NDArray[np.bool_]
    """Whether the document takes an id that was given before. The first never does: there may be none yet."""
    lines: int = 1
    """How many lines each item has."""
    sizes: NDArray[np.int64] | None = None
    """Bytes of each item; None: each has that number of lines."""
    compress: bool = False
    is_repeatable: bool = True
    """Whether the id says where the server puts the document, so that the same one twice is there once."""

    def copy(self) -> Template:
        """One that another user may write into."""
        return replace(self, data=bytearray(self.data))

    def filled(self, ids: Ids) -> Body:
        """The body with the user's next ids. They stand in the place of those that it had before."""
        taken = ids.take(self.old)
        if int(taken.max()) >= 10**DIGITS:
            raise RunFailed(f"more than {10**DIGITS} document ids were given; take a shorter run")
        view = np.frombuffer(self.data, dtype=np.uint8)
        view[self.places[:, None] + np.arange(DIGITS)] = taken[:, None] // _POWERS % 10 + ord("0")
        adds = (~self.old).astype(np.int8)
        count = len(self.places)
        body = Body(
            self.data,
            count,
            sizes=self.sizes,
            lines=self.lines,
            adds=adds,
            ids=taken,
            is_repeatable=self.is_repeatable,
        )
        return body.packed() if self.compress else body
