"""Bodies with document ids that are written in place, and the counting that decides which id is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from ingest_bench.errors import RunFailed
from ingest_bench.model.workload import BulkAction

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Ten digits, as the ids have that Rally gives.
DIGITS = 10
_POWERS = 10 ** np.arange(DIGITS - 1, -1, -1, dtype=np.int64)


@dataclass(slots=True)
class Counter:
    """The ids that one of several users gave: its n-th is `user + n * users`, so that users never meet."""

    user: int
    users: int
    conflicts: Literal["none", "sequential", "random"]
    random: np.random.Generator
    given: int = 0
    _next_old: int = 0

    def take(self, old: NDArray[np.bool_]) -> NDArray[np.int64]:
        """An id for each document: one given before where it is `old`, a new one elsewhere."""
        before = self.given + np.cumsum(~old)
        if self.conflicts == "random":
            again = (self.random.random(len(old)) * before).astype(np.int64)
        else:
            again = (self._next_old + np.cumsum(old) - 1) % np.maximum(before, 1)
            self._next_old += int(old.sum())
        self.given = int(before[-1])
        return self.user + np.where(old, again, before - 1) * self.users


@dataclass(slots=True)
class Template:
    """A body with a gap for each id."""

    data: bytearray
    places: NDArray[np.int64]
    old: NDArray[np.bool_]
    conflicts: Literal["none", "sequential", "random"]
    documents: int = field(init=False)

    def __post_init__(self) -> None:
        self.documents = len(self.places)

    @classmethod
    def build(cls, documents: Sequence[bytes], targets: tuple[str, ...], action: BulkAction, seed: int) -> Template:
        """A body of these documents. The first one never takes an old id: there may be none yet."""
        random = np.random.default_rng([seed, 4])
        old = random.random(len(documents)) < action.conflict_probability_ppm / 1e6
        old[0] = False
        data = bytearray()
        places = []
        for number, document in enumerate(documents):
            update = old[number] and action.on_conflict == "update"
            target = f'"_index":"{targets[number % len(targets)]}",' if targets else ""
            data += f'{{"{"update" if update else "index"}":{{{target}"_id":"'.encode()
            places.append(len(data))
            data += b'%s"}}\n' % (b"0" * DIGITS)
            data += b'{"doc": %s}\n' % document if update else document + b"\n"
        return cls(data, np.array(places, dtype=np.int64), old, action.conflicts)

    def copy(self) -> Template:
        """One that another user may write into."""
        return Template(bytearray(self.data), self.places, self.old, self.conflicts)

    def counter(self, user: int, users: int, seed: int) -> Counter:
        """The counting of one user, from its first id."""
        return Counter(user, users, self.conflicts, np.random.default_rng([seed, user, 5]))

    def write(self, counter: Counter) -> int:
        """How many ids are new of those that the body has now. What was in it before is gone."""
        ids = counter.take(self.old)
        if int(ids.max()) >= 10**DIGITS:
            raise RunFailed(f"more than {10**DIGITS} document ids were given; take a shorter run")
        view = np.frombuffer(self.data, dtype=np.uint8)
        view[self.places[:, None] + np.arange(DIGITS)] = ids[:, None] // _POWERS % 10 + ord("0")
        return self.documents - int(self.old.sum())
