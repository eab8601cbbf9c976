"""Exact percentiles of what was counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def percentile(counts: Mapping[int, int], percent: float) -> int | None:
    """The least value that at least this share of all counted ones does not exceed (nearest rank); None of none."""
    rank = sum(counts.values()) * percent / 100
    seen = 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= rank:
            return value
    return None
