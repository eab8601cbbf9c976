"""Exact order statistics: percentiles of more values than fit into memory, and histograms with exact counts.

Percentiles take a few passes in constant memory. A pass counts the values by range; the next pass subdivides the range
of the wanted value, until its values fit into memory or are all equal. Rejected: the limited resolution of estimating
histograms, and sorting on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from ingest_bench.model.results import ColumnValue, nearest_rank, percentile

Values = np.ndarray[Any, np.dtype[Any]]
Passes = Callable[[], Iterator[Mapping[str, Values]]]

BINS_PER_OCTAVE = 4
# Values of one range in memory: 8 MB.
_MAX_KEPT = 1 << 20
_PARTS = 1 << 16
# 40 bits of nanoseconds are 18 minutes, and leave bits for 97 days of seconds.
_TIME_BITS = 40
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(slots=True)
class _Range:
    """A range of values, `low` to `high` inclusive, that contains percentiles; `ranks` count from 0 within it."""

    kind: str
    low: int
    high: int
    count: int
    ranks: dict[float, int]
    parts: Values | None = None
    kept: list[Values] = field(default_factory=list)

    @property
    def part_width(self) -> int:
        return -(-(self.high - self.low + 1) // _PARTS)

    def add(self, values: Values) -> None:
        """Keep or count the values of one piece that are inside the range."""
        inside = values[(values >= self.low) & (values <= self.high)]
        if self.count <= _MAX_KEPT:
            self.kept.append(inside)
            return
        # Unsigned, because the difference of two 64-bit integers may exceed 63 bits.
        above = inside.astype(np.uint64) - np.uint64(self.low % 2**64)
        counts = np.bincount((above // np.uint64(self.part_width)).astype(np.int64), minlength=_PARTS)
        self.parts = counts if self.parts is None else self.parts + counts

    def results(self) -> dict[tuple[str, float], int]:
        """Return the percentiles that are determined after a pass; empty if the range must be subdivided."""
        if self.count > _MAX_KEPT:
            return {(self.kind, percent): self.low for percent in self.ranks} if self.low == self.high else {}
        ranks = sorted(set(self.ranks.values()))
        kept = np.partition(np.concatenate(self.kept), ranks)
        return {(self.kind, percent): int(kept[place]) for percent, place in self.ranks.items()}

    def subdivide(self) -> Iterator[_Range]:
        """Yield the parts of the range that contain the percentiles."""
        assert self.parts is not None  # noqa: S101 - there was a pass
        ends = np.cumsum(self.parts)
        part_of = {percent: int(np.searchsorted(ends, place, side="right")) for percent, place in self.ranks.items()}
        for part in sorted(set(part_of.values())):
            low, count = self.low + part * self.part_width, int(self.parts[part])
            before = int(ends[part]) - count
            ranks = {percent: self.ranks[percent] - before for percent, of in part_of.items() if of == part}
            yield _Range(self.kind, low, min(self.high, low + self.part_width - 1), count, ranks)


def percentiles(passes: Passes, percents: Mapping[str, Sequence[float]]) -> dict[tuple[str, float], int]:
    """Return the wanted percentiles for each kind of values, except those with too few values (`nearest_rank`).

    *passes* yields all values in pieces, each time it is called.
    """
    ranges = _full_ranges(passes, percents)
    results: dict[tuple[str, float], int] = {}
    while ranges:
        for piece in passes():
            for item in ranges:
                item.add(piece[item.kind])
        following: list[_Range] = []
        for item in ranges:
            determined = item.results()
            results |= determined
            following += [] if determined else item.subdivide()
        ranges = following
    return results


def _full_ranges(passes: Passes, percents: Mapping[str, Sequence[float]]) -> list[_Range]:
    extents: dict[str, tuple[int, int, int]] = {}
    for piece in passes():
        for kind in percents:
            values = piece[kind]
            if len(values):
                count, low, high = extents.get(kind, (0, _INT64_MAX, _INT64_MIN))
                extents[kind] = count + len(values), min(low, int(values.min())), max(high, int(values.max()))
    ranges = []
    for kind, (count, low, high) in extents.items():
        ranks = {percent: place for percent in percents[kind] if (place := nearest_rank(percent, count)) is not None}
        if ranks:
            ranges.append(_Range(kind, low, high, count, ranks))
    return ranges


def medians_by_second(second: Values, response_ns: Values) -> tuple[Values, Values]:
    """Return the distinct seconds, and the median time of each.

    One sort for all: selecting the times of each second separately took 25 CPU minutes for a day.
    """
    if response_ns.min(initial=0) >= 0 and response_ns.max(initial=0) < 1 << _TIME_BITS:
        # Sorting one combined number is three times as fast.
        combined = np.sort((second << _TIME_BITS) | response_ns)
        second, response_ns = combined >> _TIME_BITS, combined & ((1 << _TIME_BITS) - 1)
    else:
        order = np.lexsort((response_ns, second))
        second, response_ns = second[order], response_ns[order]
    first = np.flatnonzero(np.diff(second, prepend=-1))
    counts = np.diff(first, append=len(second))
    # Same as numpy's inverted_cdf: the smallest value with at least half of the values at or below it.
    return second[first], response_ns[first + (counts + 1) // 2 - 1]


def mean_value(counts: Mapping[int, int]) -> float | None:
    """Return the mean of counted values; None without any."""
    number = sum(counts.values())
    return sum(value * count for value, count in counts.items()) / number if number else None


def merge_counts(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return the sum of all counts by value."""
    merged: dict[int, int] = {}
    for counts in histograms:
        for value, count in counts.items():
            merged[value] = merged.get(value, 0) + count
    return merged


def size_columns(histograms: Mapping[str, Mapping[int, int]]) -> dict[str, ColumnValue]:
    """Return the columns that are computed from the histograms that are present."""
    columns: dict[str, ColumnValue] = {}
    if (counts := histograms.get("read_bytes")) is not None:
        columns |= {
            "reads": sum(counts.values()),
            "read_bytes_mean": mean_value(counts),
            "read_bytes_p50": percentile(counts, 50),
            "read_bytes_p99": percentile(counts, 99),
        }
    if histograms.get("wire_bytes"):
        columns["wire_bytes_p50"] = percentile(histograms["wire_bytes"], 50)
    return columns


def logarithmic_bins(counts: Mapping[int, int], per_octave: int = BINS_PER_OCTAVE) -> list[tuple[int, int, int]]:
    """Return bins (lower, upper, count) from the smallest to the largest value without a gap; both ends are included.

    The edges are the same for every histogram, so that runs can be compared. Powers of two are upper edges: a read that
    fills a buffer of 64 KiB belongs to the nearly full ones.
    """
    sized = {value: count for value, count in counts.items() if count}
    if not sized:
        return []
    if min(sized) < 1:
        raise ValueError(f"a size of {min(sized)} has no logarithmic bin")
    by_bin: dict[int, int] = {}
    for value, count in sized.items():
        number = _bin_of(value, per_octave)
        by_bin[number] = by_bin.get(number, 0) + count
    rows = []
    for number in range(min(by_bin), max(by_bin) + 1):
        lower, upper = upper_edge(number - 1, per_octave) + 1, upper_edge(number, per_octave)
        if lower <= upper:
            rows.append((lower, upper, by_bin.get(number, 0)))
    return rows


@cache
def upper_edge(number: int, per_octave: int) -> int:
    """Return the largest value of a bin, exact at powers of two."""
    octave, part = divmod(number, per_octave)
    return 1 << octave if part == 0 and octave >= 0 else int(2 ** (number / per_octave))


def _bin_of(value: int, per_octave: int) -> int:
    number = (value.bit_length() - 1) * per_octave
    while upper_edge(number, per_octave) < value:
        number += 1
    return number
