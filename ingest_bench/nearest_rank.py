"""Percentiles by nearest rank: the least value that at least so many percent of all values do not exceed.

It is a value that occurred, never one between two: read sizes have gaps where nothing ever is. A percentile that is
beyond the values that there are is none: of 600 requests the 99.9th percentile would be the longest, by another name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def rank(percent: float, count: int) -> int | None:
    """The place, from 0, of that percentile among so many sorted values; None where n < 1 / (1 - q).

    That of 100 percent is the last, however few there are.
    """
    # In whole hundred-millionths: 99.9 / 100 * 2000 is 1998.0000000000002, and 100 - 99.9 is 0.09999999999999432.
    share, whole = round(percent * 10**6), 10**8
    above = whole - share
    if not count or count * above < (whole if above else 0):
        return None
    return max(0, -(-count * share // whole) - 1)


def percentile(counts: Mapping[int, int], percent: float) -> int | None:
    """That percentile of counted values; None where `rank` has none."""
    place = rank(percent, sum(counts.values()))
    if place is None:
        return None
    seen = 0
    for value in sorted(counts):
        seen += counts[value]
        if seen > place:
            return value
    raise AssertionError("a rank is one of the values")
