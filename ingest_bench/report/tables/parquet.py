"""`summary.parquet`: summary.csv with a type for each column, for pandas, Polars or DuckDB. It needs pyarrow."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.errors import MissingCapability
from ingest_bench.model.results import Summary, Value

# Of int64.
_LARGEST = 2**63 - 1


def required() -> Any:
    """The library pyarrow; MissingCapability where it is not installed: it is large, and nothing else needs it."""
    try:
        import pyarrow as arrow  # noqa: PLC0415 - it may not be there
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as error:
        raise MissingCapability(
            f"--parquet: this Python has no pyarrow ({error}). Install it: pip install 'ingest-bench[parquet]'"
        ) from None
    return arrow


def summary_parquet(summaries: Sequence[Summary]) -> bytes:
    """One row a run, with the columns of summary.csv in their order. An unknown number is null, never 0.

    A number is int64 where all of its column are whole, else float64, as is a column of which nothing is known.
    """
    arrow = required()
    columns = [column.name for column in COLUMNS]
    keys = dict.fromkeys(key for summary in summaries for key in summary.levels)
    made = {
        "experiment": arrow.array([run.experiment for run in summaries], arrow.string()),
        "run": arrow.array([run.run for run in summaries], arrow.string()),
        "replicate": arrow.array([run.replicate for run in summaries], arrow.int64()),
        "state": arrow.array([run.state for run in summaries], arrow.string()),
        "reason": arrow.array([run.reason for run in summaries], arrow.string()),
    }
    made |= {
        key: arrow.array([run.levels.get(key, "") for run in summaries], arrow.string())
        for key in keys
        if key not in columns
    }
    made |= {name: _column(arrow, [run.values.get(name) for run in summaries]) for name in columns}
    made["instrumented"] = arrow.array([run.instrumented for run in summaries], arrow.bool_())
    content = io.BytesIO()
    arrow.parquet.write_table(arrow.table(made), content)
    return content.getvalue()


def _column(arrow: Any, values: Sequence[Value]) -> Any:
    known = [value for value in values if value is not None]
    if any(isinstance(value, str) for value in known):
        return arrow.array([None if value is None else str(value) for value in values], arrow.string())
    if known and all(isinstance(value, int) and abs(value) <= _LARGEST for value in known):
        return arrow.array(values, arrow.int64())
    # By Python, because pyarrow refuses to round a whole number.
    return arrow.array([None if value is None else float(value) for value in values], arrow.float64())
