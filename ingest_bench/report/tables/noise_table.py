"""The table of an A/A test: what of a change would be noise, and how many replicates would show one."""

from __future__ import annotations

from collections.abc import Sequence

from ingest_bench.analysis.compare import cells, comparison, noise
from ingest_bench.analysis.run import per_gb
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.model.results import Summary
from ingest_bench.report.tables.words import short

# All that `gate`, `compare` and `trend` can be asked for: of totals the share of a GB.
ALL = tuple(dict.fromkeys(per_gb.compared(column.name) for column in COLUMNS))


def table(summaries: Sequence[Summary], columns: Sequence[str] = comparison.COMPARED) -> list[list[str]]:
    """A head and a row for each column of each cell; nothing where the experiment did not run against itself."""
    found = noise.noise(summaries, columns)
    if not found:
        return []
    levels = [key for key in cells.varying(summaries) if key != "side"]
    wanted = [f"replicates for {change:.0%}" for change in noise.WANTED]
    head = [*levels, "column", "mean", "runs a side", "comparisons", "spread", "they show", *wanted, "sides differ"]
    return [head, *(_row(each, levels) for each in found)]


def _row(each: noise.Noise, levels: Sequence[str]) -> list[str]:
    shares = ["" if share is None else f"{share:.1%}" for share in (each.spread, each.detectable)]
    needed = ["" if each.spread is None else str(each.replicates(change) or "> 1,000") for change in noise.WANTED]
    differ = {True: "yes", False: "no", None: "one run a side"}[each.sides.is_distinct]
    own = [each.levels.get(key, "") for key in levels]
    return [*own, each.sides.column, short(each.mean), str(each.runs), str(each.comparisons), *shares, *needed, differ]
