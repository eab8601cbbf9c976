"""Direct buffers as a table, with the rows beneath ours that JDK-6857566 published for the same threads and limit."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ingest_bench import units
from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.compare.cells import CellRuns
from ingest_bench.model.results import Summary
from ingest_bench.report.tables import text_tables
from ingest_bench.report.tables.text_tables import Shown
from ingest_bench.report.tables.words import bytes_text, key_text, short, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published measurement of threads that do nothing but allocate."""

    threads: int
    limit_bytes: int
    seconds: int
    allocations: int
    waited: tuple[int | None, int | None, int | None]
    """How many found room only after a collection, after a sleep of 1 ms, and after one more of 2 ms."""

    @property
    def values(self) -> Mapping[str, float]:
        """Its numbers by the names of our columns."""
        after, *_ = self.waited
        calls = None if after is None else sum(count or 0 for count in self.waited)
        known = {
            "direct_allocations_per_s": self.allocations / self.seconds,
            "direct_allocation_ms_mean": self.mean_ms,
            "system_gcs_per_s": None if calls is None else calls / self.seconds,
            "direct_allocations_per_system_gc": None if calls is None else self.allocations / calls,
        }
        return {name: value for name, value in known.items() if value is not None}

    @property
    def mean_ms(self) -> float:
        """All that its threads did was to allocate."""
        return self.seconds * self.threads / self.allocations * 1e3

    @property
    def sleeps(self) -> str:
        """Its sleeps as our column has them: who slept 2 ms had slept 1 ms before."""
        _, once, twice = self.waited
        if once is None:
            return ""
        return ", ".join([f"1 ms: {once + (twice or 0)}", *([f"2 ms: {twice}"] if twice else [])])


_COLUMNS = (
    Shown("direct_allocations_per_s", "allocations/s", whole),
    Shown("direct_allocation_ms_mean", "ms each, mean", short),
    Shown("direct_allocation_ms_p50", "p50", short),
    Shown("direct_allocation_ms_p99", "p99", short),
    Shown("direct_allocation_ms_max", "max", short),
    Shown("system_gcs", "System.gc()", whole),
    Shown("direct_allocations_per_system_gc", "allocations for each", short),
    Shown("direct_buffer_used_max_bytes", "direct memory, max", bytes_text),
)
_SLEEPS = "sleeps"


def read(text: str) -> list[Published]:
    """The published rows."""
    return [
        Published(
            threads=int(row["threads"]),
            limit_bytes=int(row["max_direct_memory_mb"]) << 20,
            seconds=int(row["seconds"]),
            allocations=int(row["allocations"]),
            waited=(_count(row["after_system_gc"]), _count(row["after_sleep_1_ms"]), _count(row["after_sleep_2_ms"])),
        )
        for row in csv.DictReader(text.splitlines())
    ]


def table(summaries: Sequence[Summary], published: Sequence[Published]) -> list[list[str]]:
    """A head and a row a cell, each with the published row beneath it; empty when no server told of its buffers."""
    rows = cells.group(summaries)
    if not any(row.measured_or_oom.numbers("direct_allocations") for row in rows):
        return []
    keys = cells.varying(summaries) or list(summaries[0].levels)
    made = [["", *map(key_text, keys), "runs", *(shown.head for shown in _COLUMNS), _SLEEPS]]
    for row in rows:
        levels = [row.levels.get(key, "") for key in keys]
        numbers = [text_tables.spread(row.measured_or_oom.numbers(shown.column), shown.text) for shown in _COLUMNS]
        made.append(["ours", *levels, text_tables.runs(row), *numbers, _sleeps(row)])
        theirs = matching(row, published)
        if theirs is not None:
            same = ["threads", "max direct memory"]
            levels = [row.levels.get(key, "") if key_text(key) in same else "" for key in keys]
            found = (theirs.values.get(shown.column) for shown in _COLUMNS)
            texts = ["" if value is None else shown.text(value) for value, shown in zip(found, _COLUMNS, strict=True)]
            made.append(["published", *levels, "", *texts, theirs.sleeps])
    return made


def matching(row: CellRuns, published: Sequence[Published]) -> Published | None:
    """What was published for these threads and this limit; None for a server that the network feeds."""
    levels = {key_text(key): level for key, level in row.levels.items()}
    try:
        threads, limit = int(levels["threads"]), units.parse_bytes(levels["max direct memory"])
    except (KeyError, ValueError):
        return None
    if levels.get("mode", "alone") != "alone":
        return None
    return next((one for one in published if (one.threads, one.limit_bytes) == (threads, limit)), None)


def _sleeps(row: CellRuns) -> str:
    """Those of the first run: counts by length have no middle."""
    return next((str(run.values.get("direct_sleeps") or "none") for run in row.measured_or_oom.valid), "")


def _count(text: str) -> int | None:
    return int(text) if text else None
