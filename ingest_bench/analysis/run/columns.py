"""The columns of `summary.csv` in their order (columns.csv)."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ingest_bench.model.results import ColumnValue

NodeRule = Literal["sum", "max", "min", "machine", "same", ""]
# Words in the names of columns that are not counts of events: a unit, a mean, or a maximum.
_UNITS = frozenset({"s", "ms", "seconds", "bytes", "ppm", "percent", "share", "per", "mean", "max", "min", "mss"})


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, which ends with the unit, and its meaning."""

    name: str
    meaning: str
    node_rule: NodeRule = ""
    """How the readings of several nodes are combined in the run's row. "machine": every node reads the same machine.
    "same": kept if all are equal. "": empty in the run's row, because no combination is meaningful; see nodes.csv."""
    count_column: str = ""
    """For a percentile: the column with the number of values. Else ""."""
    per_gb: bool = False
    """The value grows with the ingested bytes; a second column has it per GB."""

    @property
    def is_count(self) -> bool:
        """Return whether the column counts events: its name has no unit."""
        return _UNITS.isdisjoint(self.name.split("_"))


def _read_columns() -> Iterator[Column]:
    """Yield the columns of columns.csv; a total is followed by its column per GB."""
    with Path(__file__).with_name("columns.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            is_total = row["per_gb"] == "yes"
            rule: NodeRule = row["nodes"]  # type: ignore[assignment]
            yield Column(row["column"], row["meaning"], rule, row["count_column"], is_total)
            if is_total:
                yield Column(f"{row['column']}_per_gb", f"{row['meaning']}; per GB (10^9 bytes) of bytes_measured")


COLUMNS = tuple(_read_columns())
PER_GB_TOTALS = frozenset(column.name for column in COLUMNS if column.per_gb)
EVENT_COUNTS = frozenset(column.name for column in COLUMNS if column.is_count)


def compared_column(column: str) -> str:
    """Return the column to compare instead of *column*: totals are compared per GB."""
    return f"{column}_per_gb" if column in PER_GB_TOTALS else column


def per_gb_columns(values: Mapping[str, ColumnValue]) -> dict[str, float | None]:
    """Return each total per GB of requests that got a response within the measurement."""
    ingested = values.get("bytes_measured")
    shares: dict[str, float | None] = {}
    for name in PER_GB_TOTALS:
        total = values.get(name)
        shares[f"{name}_per_gb"] = None
        if isinstance(ingested, int) and ingested > 0 and isinstance(total, (int, float)):
            shares[f"{name}_per_gb"] = total * 1e9 / ingested
    return shares
