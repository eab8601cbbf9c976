"""Numbers from exact counts by value: nothing is rounded before it is counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from ingest_bench.model.results import Value
from ingest_bench.nearest_rank import percentile

BINS_PER_OCTAVE = 4


def total(counts: Mapping[int, int]) -> int:
    """How many values were counted."""
    return sum(counts.values())


def mean(counts: Mapping[int, int]) -> float | None:
    """The mean value; None without any."""
    number = total(counts)
    return sum(value * count for value, count in counts.items()) / number if number else None


def merge(several: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """All counts added up."""
    merged: dict[int, int] = {}
    for counts in several:
        for value, count in counts.items():
            merged[value] = merged.get(value, 0) + count
    return merged


def sizes(histograms: Mapping[str, Mapping[int, int]]) -> dict[str, Value]:
    """The columns that come from histograms, of those that are there."""
    values: dict[str, Value] = {}
    if "read_bytes" in histograms:
        counts = histograms["read_bytes"]
        values |= {
            "reads": total(counts),
            "read_bytes_mean": mean(counts),
            "read_bytes_p50": percentile(counts, 50),
            "read_bytes_p99": percentile(counts, 99),
        }
    if histograms.get("wire_bytes"):
        values["wire_bytes_p50"] = percentile(histograms["wire_bytes"], 50)
    return values


def bins(counts: Mapping[int, int], per_octave: int = BINS_PER_OCTAVE) -> list[tuple[int, int, int]]:
    """Bins (lower, upper, number) from the smallest to the largest value, without a gap; both ends belong to the bin.

    The edges are the same for every histogram, so that runs can be laid over each other. A bin ends at a power of
    two, it does not begin there: a read that fills a buffer of 64 KiB stands with the nearly full ones.
    """
    sized = {value: count for value, count in counts.items() if count}
    if not sized:
        return []
    if min(sized) < 1:
        raise ValueError(f"a size of {min(sized)} cannot stand in logarithmic bins")
    found: dict[int, int] = {}
    for value, count in sized.items():
        number = _bin_of(value, per_octave)
        found[number] = found.get(number, 0) + count
    rows = []
    for number in range(min(found), max(found) + 1):
        lower, upper = upper_edge(number - 1, per_octave) + 1, upper_edge(number, per_octave)
        if lower <= upper:
            rows.append((lower, upper, found.get(number, 0)))
    return rows


@cache
def upper_edge(number: int, per_octave: int) -> int:
    """The largest value of a bin, exact at the powers of two."""
    octave, part = divmod(number, per_octave)
    return 1 << octave if part == 0 and octave >= 0 else int(2 ** (number / per_octave))


def _bin_of(value: int, per_octave: int) -> int:
    number = (value.bit_length() - 1) * per_octave
    while upper_edge(number, per_octave) < value:
        number += 1
    return number
