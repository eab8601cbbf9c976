"""Exact order statistics: percentiles of more values than fit into memory, and histograms with exact counts.

Rejected: the limited resolution of estimating histograms, and sorting on disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import log2
from typing import Any

import numpy as np

from ingest_bench.model.results import ColumnValue, nearest_rank, percentile

Values = np.ndarray[Any, np.dtype[Any]]
Passes = Callable[[], Iterator[Mapping[str, Values]]]

BINS_PER_OCTAVE = 4
# Bits that one pass decides; their counts take 512 KiB.
_DIGIT_BITS = 16
# Without it, signed numbers have the order of their bits.
_SIGN_BIT = np.uint64(1 << 63)
# 40 bits of nanoseconds are 18 minutes, and leave bits for 97 days of seconds.
_TIME_BITS = 40


def percentiles(passes: Passes, percents: Mapping[str, Sequence[float]]) -> dict[tuple[str, float], int]:
    """Return the wanted percentiles for each kind of values, except those with too few values (`nearest_rank`).

    *passes* yields all values in pieces, each time it is called. This is a radix selection in constant memory: the
    first pass finds the most significant bits of each percentile, the next ones those that follow.
    """
    leading = {(kind, percent): 0 for kind, wanted in percents.items() for percent in wanted}
    # The index of each percentile among the sorted values that begin with its leading bits.
    ranks: dict[tuple[str, float], int] = {}
    for shift in range(64 - _DIGIT_BITS, -1, -_DIGIT_BITS):
        counts_by_group = _count_digits(passes, {(kind, bits) for (kind, _), bits in leading.items()}, shift)
        for (kind, percent), bits in list(leading.items()):
            counts, key = counts_by_group[kind, bits], (kind, percent)
            rank = ranks[key] if key in ranks else nearest_rank(percent, int(counts.sum()))
            if rank is None:
                del leading[key]
                continue
            ends = np.cumsum(counts)
            digit = int(np.searchsorted(ends, rank, side="right"))
            leading[key] = (bits << _DIGIT_BITS) + digit
            ranks[key] = rank - int(ends[digit] - counts[digit])
    return {key: bits - int(_SIGN_BIT) for key, bits in leading.items()}


def _count_digits(passes: Passes, groups: Collection[tuple[str, int]], shift: int) -> dict[tuple[str, int], Values]:
    """Return the counts of the digit at bit *shift*, for each kind and leading bits."""
    counts = {group: np.zeros(1 << _DIGIT_BITS, dtype=np.int64) for group in groups}
    for piece in passes():
        for kind, leading in groups:
            bits = (piece[kind].astype(np.uint64) ^ _SIGN_BIT) >> np.uint64(shift)
            digits = bits[bits >> np.uint64(_DIGIT_BITS) == leading] % (1 << _DIGIT_BITS)
            counts[kind, leading] += np.bincount(digits.astype(np.int64), minlength=1 << _DIGIT_BITS)
    return counts


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


def logarithmic_limits(histograms: Collection[Mapping[int, int]]) -> tuple[float, float]:
    """Return the ends of an axis of powers of two that these histograms share, so that they can be compared by eye."""
    # A bar below 0.5% is too low to see: rare small values would only squeeze the others.
    low = min((log2(percentile(counts, 0.5) or min(counts)) for counts in histograms), default=10.0)
    high = max((log2(max(counts)) for counts in histograms), default=16.0)
    return low - 0.5, max(high, low + 4) + 0.3


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
