"""What a column of `summary.csv` is. The tables are `columns.py` and those of the parts that own theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Together = Literal["sum", "max", "min", "machine", "same", ""]
# What a name has that is no count of events: a unit, a mean, or a largest number of things that are there at once.
_UNITS = frozenset({"s", "ms", "seconds", "bytes", "ppm", "percent", "share", "per", "mean", "max", "min", "mss"})


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name (the unit is its end), and what it holds."""

    name: str
    meaning: str
    together: Together = ""
    """What the readings of several nodes become in the run's row. "machine": each node's is that of all. "same": what
    all have alike. "": nothing, for a median or a text of each is none of all; nodes.csv has them."""
    of: str = ""
    """Of a median or another percentile: the column with the number of values that it is of. Else ""."""

    @property
    def is_count(self) -> bool:
        """Whether it counts events: its name has no unit."""
        return _UNITS.isdisjoint(self.name.split("_"))


def once(columns: Iterable[Column]) -> tuple[Column, ...]:
    """These columns; LookupError where two have the same name: a table would have its values twice."""
    found = tuple(columns)
    if twice := [name for name, count in Counter(column.name for column in found).items() if count > 1]:
        raise LookupError(f"columns that two parts have: {', '.join(twice)}")
    return found
