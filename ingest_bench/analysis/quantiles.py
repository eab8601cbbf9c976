"""Exact order statistics: percentiles of more values than fit into memory, and histograms with exact counts.

Percentiles take a few passes in constant memory. A pass counts the values by range; the next pass subdivides the range
of the wanted value, until its values fit into memory or are all equal. Rejected: the limited resolution of estimating
histograms, and sorting on disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class _Range:
    """A range of values of one kind, `low` to `high` inclusive, and their number."""

    kind: str
    low: int
    high: int
    count: int

    @property
    def part_width(self) -> int:
        return -(-(self.high - self.low + 1) // _PARTS)


def percentiles(passes: Passes, percents: Mapping[str, Sequence[float]]) -> dict[tuple[str, float], int]:
    """Return the wanted percentiles for each kind of values, except those with too few values (`nearest_rank`).

    *passes* yields all values in pieces, each time it is called.
    """
    results: dict[tuple[str, float], int] = {}
    # The range that contains each percentile, and its rank (from 0) within the range.
    wanted: dict[tuple[str, float], tuple[_Range, int]] = {
        (values.kind, percent): (values, rank)
        for values in _full_ranges(passes, percents)
        for percent in percents[values.kind]
        if (rank := nearest_rank(percent, values.count)) is not None
    }
    while wanted:
        inside = _values_inside(passes, {values for values, _ in wanted.values()})
        following = {}
        for key, (values, rank) in wanted.items():
            if values.low == values.high:
                results[key] = values.low
            elif values.count <= _MAX_KEPT:
                results[key] = int(inside[values][rank])
            else:
                counts = inside[values]
                ends = np.cumsum(counts)
                part = int(np.searchsorted(ends, rank, side="right"))
                low, count = values.low + part * values.part_width, int(counts[part])
                high = min(values.high, low + values.part_width - 1)
                following[key] = _Range(values.kind, low, high, count), rank - (int(ends[part]) - count)
        wanted = following
    return results


def _full_ranges(passes: Passes, kinds: Iterable[str]) -> list[_Range]:
    """Return the range of all values of each kind that has any."""
    ranges: dict[str, _Range] = {}
    for piece in passes():
        for kind in kinds:
            if len(values := piece[kind]):
                old = ranges.get(kind, _Range(kind, _INT64_MAX, _INT64_MIN, 0))
                low, high = min(old.low, int(values.min())), max(old.high, int(values.max()))
                ranges[kind] = _Range(kind, low, high, old.count + len(values))
    return list(ranges.values())


def _values_inside(passes: Passes, ranges: Collection[_Range]) -> dict[_Range, Values]:
    """Return the sorted values of each range; of a range with too many the number of values in each of its parts."""
    kept: dict[_Range, list[Values]] = {values: [] for values in ranges}
    for piece in passes():
        for values, own in kept.items():
            inside = piece[values.kind]
            inside = inside[(inside >= values.low) & (inside <= values.high)]
            if values.count <= _MAX_KEPT:
                own.append(inside)
                continue
            # Unsigned, because the difference of two 64-bit integers may exceed 63 bits.
            above = inside.astype(np.uint64) - np.uint64(values.low % 2**64)
            counts = np.bincount((above // np.uint64(values.part_width)).astype(np.int64), minlength=_PARTS)
            own[:] = [counts + own[0] if own else counts]
    return {
        values: np.sort(np.concatenate(own)) if values.count <= _MAX_KEPT else own[0] for values, own in kept.items()
    }


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


def merge_counts(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return the sum of all counts by value."""
    merged: Counter[int] = Counter()
    for counts in histograms:
        merged.update(counts)
    return dict(merged)


def size_columns(histograms: Mapping[str, Mapping[int, int]]) -> dict[str, ColumnValue]:
    """Return the columns that are computed from the histograms that are present."""
    columns: dict[str, ColumnValue] = {}
    if (counts := histograms.get("read_bytes")) is not None:
        reads, total_bytes = sum(counts.values()), sum(value * count for value, count in counts.items())
        columns |= {
            "reads": reads,
            "read_bytes_mean": total_bytes / reads if reads else None,
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
    by_bin: Counter[int] = Counter()
    for value, count in sized.items():
        number = (value.bit_length() - 1) * per_octave
        while upper_edge(number, per_octave) < value:
            number += 1
        by_bin[number] += count
    rows = []
    for number in range(min(by_bin), max(by_bin) + 1):
        lower, upper = upper_edge(number - 1, per_octave) + 1, upper_edge(number, per_octave)
        if lower <= upper:
            rows.append((lower, upper, by_bin[number]))
    return rows


@cache
def upper_edge(number: int, per_octave: int) -> int:
    """Return the largest value of a bin, exact at powers of two."""
    octave, part = divmod(number, per_octave)
    return 1 << octave if part == 0 and octave >= 0 else int(2 ** (number / per_octave))
