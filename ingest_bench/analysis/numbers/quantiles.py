"""Exact order statistics of more values than memory holds: found in a few passes, in flat memory.

A pass counts the values by range. The range that holds the wanted one is looked at more closely in the next pass, until
its values fit into memory, or are all alike. Rejected: a histogram's own resolution, which is what estimates have; and
to sort everything on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingest_bench.nearest_rank import rank

Values = np.ndarray[Any, np.dtype[Any]]
Passes = Callable[[], Iterator[Mapping[str, Values]]]

# Of one range, in memory: 8 MB.
_FIT = 1 << 20
_PARTS = 1 << 16
# 18 minutes in nanoseconds, which leaves room for 97 days of seconds.
_TIME_BITS = 40
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


@dataclass(slots=True)
class _Range:
    """Values from `low` to `high`, both included, in which some percentiles lie, each by its rank (from 0) there."""

    kind: str
    low: int
    high: int
    count: int
    ranks: dict[float, int]
    parts: Values | None = None
    kept: list[Values] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Of each part of the range."""
        return -(-(self.high - self.low + 1) // _PARTS)

    def look(self, values: Values) -> None:
        """One more piece."""
        inside = values[(values >= self.low) & (values <= self.high)]
        if self.count <= _FIT:
            self.kept.append(inside)
            return
        # Without a sign, as the distance of two numbers of 64 bits is.
        above = inside.astype(np.uint64) - np.uint64(self.low % 2**64)
        found = np.bincount((above // np.uint64(self.width)).astype(np.int64), minlength=_PARTS)
        self.parts = found if self.parts is None else self.parts + found

    def found(self) -> dict[tuple[str, float], int]:
        """The percentiles that are known after a pass."""
        if self.count > _FIT:
            return {(self.kind, percent): self.low for percent in self.ranks} if self.low == self.high else {}
        ranks = sorted(set(self.ranks.values()))
        kept = np.partition(np.concatenate(self.kept), ranks)
        return {(self.kind, percent): int(kept[rank]) for percent, rank in self.ranks.items()}

    def closer(self) -> Iterator[_Range]:
        """The parts of the range in which they lie."""
        assert self.parts is not None  # noqa: S101 - there was a pass
        ends = np.cumsum(self.parts)
        part_of = {percent: int(np.searchsorted(ends, rank, side="right")) for percent, rank in self.ranks.items()}
        for part in sorted(set(part_of.values())):
            low, count = self.low + part * self.width, int(self.parts[part])
            before = int(ends[part]) - count
            ranks = {percent: self.ranks[percent] - before for percent, its in part_of.items() if its == part}
            yield _Range(self.kind, low, min(self.high, low + self.width - 1), count, ranks)


def percentiles(passes: Passes, percents: Mapping[str, Sequence[float]]) -> dict[tuple[str, float], int]:
    """For each kind of values the wanted percentiles that `nearest_rank` has of so many.

    `passes` gives all values again at each call, in pieces.
    """
    ranges = _whole(passes, percents)
    found: dict[tuple[str, float], int] = {}
    while ranges:
        for piece in passes():
            for one in ranges:
                one.look(piece[one.kind])
        following: list[_Range] = []
        for one in ranges:
            known = one.found()
            found |= known
            following += [] if known else one.closer()
        ranges = following
    return found


def _whole(passes: Passes, percents: Mapping[str, Sequence[float]]) -> list[_Range]:
    seen: dict[str, tuple[int, int, int]] = {}
    for piece in passes():
        for kind in percents:
            values = piece[kind]
            if len(values):
                count, low, high = seen.get(kind, (0, _MOST, _LEAST))
                seen[kind] = count + len(values), min(low, int(values.min())), max(high, int(values.max()))
    ranges = []
    for kind, (count, low, high) in seen.items():
        ranks = {percent: place for percent in percents[kind] if (place := rank(percent, count)) is not None}
        if ranks:
            ranges.append(_Range(kind, low, high, count, ranks))
    return ranges


def medians(second: Values, response_ns: Values) -> tuple[Values, Values]:
    """Each second that there is, and the median of its times.

    One sort for all: to choose the times of each second among all of them took 25 CPU minutes for a day.
    """
    if response_ns.min(initial=0) >= 0 and response_ns.max(initial=0) < 1 << _TIME_BITS:
        # Of a number that has both, three times as fast.
        both = np.sort((second << _TIME_BITS) | response_ns)
        second, response_ns = both >> _TIME_BITS, both & ((1 << _TIME_BITS) - 1)
    else:
        order = np.lexsort((response_ns, second))
        second, response_ns = second[order], response_ns[order]
    first = np.flatnonzero(np.diff(second, prepend=-1))
    counts = np.diff(first, append=len(second))
    # As numpy's inverted_cdf: the least value that so large a share is not above.
    return second[first], response_ns[first + (counts + 1) // 2 - 1]
