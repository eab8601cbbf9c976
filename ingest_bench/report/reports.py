"""Build all files of a report: tables and pictures, and the page from them.

A report is a function from summaries, in the order in which they are shown (`cells.in_order`), to the content of files
by their names below the results folder. To add one, write the function and add a line to `REPORTS`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ingest_bench.analysis.compare import cells, comparison
from ingest_bench.model.results import Summary
from ingest_bench.report import cell_tables, change_tables, page, page_charts, stall_table, summary_files
from ingest_bench.report.cell_tables import TOPICS, Topic
from ingest_bench.report.summary_files import to_csv, to_markdown

Files = dict[str, bytes]
Rows = Sequence[Sequence[str]]


def build_tables(summaries: Sequence[Summary]) -> Files:
    """Build the tables of every experiment."""
    files = {
        "summary.csv": summary_files.format_summary_csv(summaries),
        "summary.json": summary_files.format_summary_json(summaries),
        "histograms.csv": summary_files.format_histograms_csv(summaries),
        "report/cells.md": to_markdown(cell_tables.cell_rows(summaries), len(cells.varying_keys(summaries)) or 1),
    }
    if any(summary.nodes for summary in summaries):
        files["nodes.csv"] = summary_files.format_nodes_csv(summaries)
    if any("wire_bytes" in run.histograms for run in summaries):
        files["report/wire.csv"] = summary_files.format_histograms_csv(summaries, "wire_bytes", "frames")
    changes = comparison.compare_pairs(summaries, comparison.DEFAULT_COLUMNS)
    for name, rows in (
        ("comparisons", change_tables.change_numbers(changes)),
        ("stalls", stall_table.stall_rows(summaries)),
    ):
        if len(rows) > 1:
            files[f"report/{name}.csv"] = to_csv(rows)
    return {name: text.encode() for name, text in files.items()}


def build_topic(topic: Topic, summaries: Sequence[Summary]) -> Files:
    """Build the table of a topic; nothing where it does not apply."""
    rows = cell_tables.topic_rows(topic, summaries)
    numbers_from = len(cells.varying_keys(summaries)) + bool(topic.publication)
    return _build_table(topic.name, rows, numbers_from, cell_tables.topic_csv_rows(topic, summaries))


def build_noise(summaries: Sequence[Summary]) -> Files:
    """Build the table of an A/A experiment, of every column; nothing for other experiments."""
    rows = change_tables.noise_rows(summaries, change_tables.EVERY_COLUMN)
    return _build_table("noise", rows, rows[0].index("column") + 1 if rows else 0)


def build_acknowledged(summaries: Sequence[Summary]) -> Files:
    """Build the table of acknowledged documents; nothing where the fault is not a factor."""
    rows = cell_tables.acknowledged_rows(summaries)
    return _build_table("acknowledged", rows, len(rows[0]) if rows else 0)


def build_stacks(summaries: Sequence[Summary]) -> Files:
    """Build a file with the complete stacks of each run that has some."""
    return {
        f"report/{page_charts.folded_file_name(run)}": page_charts.format_folded(run).encode()
        for run in summaries
        if run.stacks
    }


def build_pictures(summaries: Sequence[Summary]) -> Files:
    """Build the pictures, the main one first."""
    # Imported late: matplotlib takes most of a second, and most commands draw nothing.
    from ingest_bench.report import plot_cells, plot_grid, plot_over_time  # noqa: PLC0415

    if not any(run.state in ("measured", "oom") for run in summaries):
        return {}
    functions: dict[str, Callable[[Sequence[Summary]], bytes | None]] = {
        name: partial(plot_cells.draw_picture, name) for name in plot_cells.CELL_PICTURES
    }
    functions |= {
        "matrix": plot_grid.draw_matrix,
        "forwarding": plot_cells.draw_forwarding,
        "machine": plot_over_time.draw_machine,
        "large-allocations": plot_over_time.draw_large_allocations,
    }
    drawn = {f"{name}.png": function(summaries) for name, function in functions.items()}
    files = {name: content for name, content in drawn.items() if content is not None}
    for cell in cells.group_by_cell(summaries):
        for run in sorted(cell.valid, key=lambda run: (run.instrumented, run.replicate))[:1]:
            if (content := plot_over_time.draw_timeline(run)) is not None:
                files[_timeline_name(cell.name, files)] = content
    return {f"report/{name}": content for name, content in files.items()}


def build_page(
    summaries: Sequence[Summary], files: Mapping[str, bytes], facts: Mapping[str, object], advice: Rows = ()
) -> Files:
    """Build the page of a results folder, with the pictures and tables among *files*, its machine's facts, and advice.

    *advice*: a table with a head.
    """
    sections = [
        ("What limits these runs, and the command that tests it (`ingest-bench recommend`)", advice, {}),
        ("Noise: the same against itself", change_tables.noise_rows(summaries), {}),
        ("Acknowledged documents", cell_tables.acknowledged_rows(summaries), {}),
        *(
            (topic.title, cell_tables.topic_rows(topic, summaries), {show.head: show.meaning for show in topic.columns})
            for topic in TOPICS.values()
        ),
    ]
    more = [(title, page.render_table(rows, meanings=heads)) for title, rows, heads in sections if len(rows) > 1]
    pictures = {name.removeprefix("report/"): content for name, content in files.items() if name.endswith(".png")}
    drawn = tuple(f"report/{name}" for name in page.DRAWN_BY_PAGE)
    attached = {name: content for name, content in files.items() if name.endswith(".csv") or name.startswith(drawn)}
    text = page.render_results(summaries, pictures, more, facts=facts, files=attached)
    return {"report/index.html": text.encode()}


def build_svg(build: Callable[[], Files]) -> Files:
    """Build the pictures among these files as SVG, under the same names with another suffix."""
    from ingest_bench.report import plot_style  # noqa: PLC0415

    with plot_style.as_svg():
        files = build()
    return {f"{name.removesuffix('.png')}.svg": content for name, content in files.items() if name.endswith(".png")}


def _build_table(
    name: str, rows: Sequence[Sequence[str]], numbers_from: int, csv_rows: Sequence[Sequence[object]] | None = None
) -> Files:
    if not rows:
        return {}
    return {
        f"report/{name}.csv": to_csv(rows if csv_rows is None else csv_rows).encode(),
        f"report/{name}.md": to_markdown(rows, numbers_from).encode(),
    }


def _timeline_name(cell: str, files: Mapping[str, object]) -> str:
    """Return a file name for a cell; cells that differ only in characters that it cannot have get different names."""
    plain = re.sub("[^A-Za-z0-9.=-]+", "-", cell)
    digest = f"-{hashlib.sha256(cell.encode()).hexdigest()[:12]}"
    return f"time-{plain}{digest if f'time-{plain}.png' in files else ''}.png"


REPORTS: Mapping[str, Callable[[Sequence[Summary]], Files]] = {
    "tables": build_tables,
    **{topic.name: partial(build_topic, topic) for topic in TOPICS.values()},
    "allocations": build_stacks,
    "noise": build_noise,
    "acknowledged": build_acknowledged,
    "pictures": build_pictures,
}
