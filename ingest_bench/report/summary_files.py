"""Files of summaries (`summary.csv`, `.json`, `.parquet`, `histograms.csv`, `nodes.csv`), and rows as text."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast, get_args

from ingest_bench.analysis import quantiles
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.errors import MissingCapability
from ingest_bench.model.experiment import RunState
from ingest_bench.model.results import ColumnValue, Summary

_HEAD = ("experiment", "run", "replicate", "state", "reason")
_INSTRUMENTED = "instrumented"
"""Last column: "yes" if costly probes watched the run. Its rates and times are then left out of tables."""
_MAX_INT64 = 2**63 - 1
# Counts have at most 64 bits, thus 19 digits.
_INTEGER, _NUMBER = re.compile(r"-?[0-9]{1,19}"), re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")


def format_summary_csv(summaries: Sequence[Summary]) -> str:
    """Format `summary.csv`: one row for each run of any state. An unknown number is an empty cell, never 0."""
    columns = _list_columns(summaries)
    columns[_INSTRUMENTED] = ["yes" if run.instrumented else "no" for run in summaries]
    rows = zip(*columns.values(), strict=True)
    return to_csv([list(columns), *(list(map(_format_value, row)) for row in rows)])


def format_nodes_csv(summaries: Sequence[Summary]) -> str:
    """Format `nodes.csv`: one row for each node of each run with several nodes."""
    nodes = [(run, number, values) for run in summaries for number, values in enumerate(run.nodes, 1)]
    measured = {name for _, _, values in nodes for name in values}
    columns = [column.name for column in COLUMNS if column.name in measured]
    keys = _level_keys(run for run, _, _ in nodes)
    rows = [[*_HEAD[:4], "node", *keys, *columns]]
    for run, number, values in nodes:
        levels = (run.levels.get(key, "") for key in keys)
        numbers = (_format_value(values.get(name)) for name in columns)
        rows.append([run.experiment, run.run, str(run.replicate), run.state, str(number), *levels, *numbers])
    return to_csv(rows)


def format_histograms_csv(summaries: Sequence[Summary], name: str = "read_bytes", number: str = "reads") -> str:
    """Format `histograms.csv`: how many reads had `lower` to `upper` bytes, both included. Only valid runs."""
    rows = [
        [summary.run, *row]
        for summary in summaries
        if summary.state == "measured"
        for row in quantiles.logarithmic_bins(summary.histograms.get(name, {}))
    ]
    return to_csv([["run", "lower", "upper", number], *rows])


def format_summary_json(summaries: Sequence[Summary]) -> str:
    """Format `summary.json`: everything, with exact histograms and series. Stacks have files of their own."""
    tables = [dataclasses.asdict(dataclasses.replace(summary, stacks={})) for summary in summaries]
    for table in tables:
        del table["stacks"]
    return json.dumps(tables, indent=1) + "\n"


def parse_summary_csv(text: str) -> list[Summary]:
    """Return the runs of a `summary.csv`, without histograms and series; raise ValueError that says what is wrong."""
    reader = csv.DictReader(io.StringIO(text), restval="")
    try:
        head, rows = reader.fieldnames or [], [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise ValueError(f"not a summary.csv: line {reader.line_num}: {error}") from None
    missing = [name for name in _HEAD if name not in head]
    if missing:
        raise ValueError(f"not a summary.csv: the column {missing[0]} is missing")
    columns = dict.fromkeys(column.name for column in COLUMNS)
    keys = [name for name in head if name not in columns and name not in (*_HEAD, _INSTRUMENTED)]
    own_names = {key.rpartition(".")[2] for key in keys}
    summaries: dict[str, Summary] = {}
    for number, row in rows:
        if row["state"] not in get_args(RunState):
            raise ValueError(f'line {number}: "{row["state"]}" is not a state of a run')
        if not row["replicate"].isdecimal():
            raise ValueError(f'line {number}: replicate: "{row["replicate"]}" is not a whole number')
        if row["run"] in summaries:
            raise ValueError(f'line {number}: the run "{row["run"]}" is listed twice')
        cell = row["run"].rpartition("/")[0]
        # The factors "network", "workload" and "target" have no column of levels: their columns hold the values.
        named = dict(part.partition("=")[::2] for part in cell.split("+"))
        summaries[row["run"]] = Summary(
            run=row["run"],
            cell=cell,
            replicate=int(row["replicate"]),
            levels={key: named[key] for key in named if key in columns and key not in own_names}
            | {key: row[key] for key in keys},
            state=cast("RunState", row["state"]),
            reason=row["reason"],
            values={name: _parse_value(row.get(name) or "") for name in columns},
            instrumented=row.get(_INSTRUMENTED) == "yes",
            experiment=row["experiment"],
        )
    return list(summaries.values())


def require_pyarrow() -> Any:
    """Return `pyarrow`, a large dependency that only `summary.parquet` needs; raise MissingCapability without it."""
    try:
        import pyarrow  # noqa: PLC0415 - optional
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as error:
        raise MissingCapability(
            f"--parquet: this Python has no pyarrow ({error}). Install it: pip install 'ingest-bench[parquet]'"
        ) from None
    return pyarrow


def format_parquet(summaries: Sequence[Summary]) -> bytes:
    """Format `summary.parquet`: `summary.csv` with a type for each column, for pandas, Polars or DuckDB.

    An unknown number is null, never 0. A column is int64 if all its numbers are whole, else float64.
    """
    arrow = require_pyarrow()
    arrays = {name: _to_arrow(arrow, values) for name, values in _list_columns(summaries).items()}
    arrays[_INSTRUMENTED] = arrow.array([run.instrumented for run in summaries], arrow.bool_())
    content = io.BytesIO()
    arrow.parquet.write_table(arrow.table(arrays), content)
    return content.getvalue()


def to_csv(rows: Sequence[Sequence[object]]) -> str:
    """Format rows as CSV with line feeds."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def to_markdown(rows: Sequence[Sequence[str]], numbers_from: int = 1) -> str:
    """Format rows as a Markdown table, the first as its head; columns from `numbers_from` on are right-aligned."""
    head, *body = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    rule = ["---" if place < numbers_from else "---:" for place in range(len(head))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *body))


def _list_columns(summaries: Sequence[Summary]) -> dict[str, list[ColumnValue]]:
    """Return the columns of `summary.csv` except the last one, each with a value for each run."""
    names = [column.name for column in COLUMNS]
    columns: dict[str, list[ColumnValue]] = {name: [getattr(run, name) for run in summaries] for name in _HEAD}
    keys = [key for key in _level_keys(summaries) if key not in names]
    columns |= {key: [run.levels.get(key, "") for run in summaries] for key in keys}
    return columns | {name: [run.values.get(name) for run in summaries] for name in names}


def _level_keys(summaries: Iterable[Summary]) -> list[str]:
    return list(dict.fromkeys(key for summary in summaries for key in summary.levels))


def _format_value(value: ColumnValue) -> str:
    if value is None:
        return ""
    # Six digits: a nanosecond of a value in milliseconds. More would be arithmetic, not measurement.
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _parse_value(text: str) -> ColumnValue:
    """Parse a number as `_format_value` or a spreadsheet writes it; anything else stays text."""
    if not text:
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _to_arrow(arrow: Any, values: Sequence[ColumnValue]) -> Any:
    present = [value for value in values if value is not None]
    if any(isinstance(value, str) for value in present):
        return arrow.array([None if value is None else str(value) for value in values], arrow.string())
    if present and all(isinstance(value, int) and abs(value) <= _MAX_INT64 for value in present):
        return arrow.array(values, arrow.int64())
    # Converted by Python: pyarrow refuses to round large integers.
    return arrow.array([None if value is None else float(value) for value in values], arrow.float64())
