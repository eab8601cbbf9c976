"""`gate`, `compare` and `trend`: judge results by thresholds, by an earlier result, or by their history."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from ingest_bench.analysis.compare import changes, comparison, trend
from ingest_bench.cli import screen
from ingest_bench.cli.options import App, Columns, ResultsFolder, check_columns, grouped, take_results
from ingest_bench.experiment import catalog
from ingest_bench.lab import evaluation
from ingest_bench.report import change_tables, gate, page
from ingest_bench.report.summary_files import to_csv
from ingest_bench.results import layout

app = App()

_NO_VERDICT = 3


@app.command("gate")
@grouped
def judge_results(
    folder: ResultsFolder,
    thresholds: Path,
    baseline: Path | None = None,
    junit: Path | None = None,
    markdown: Path | None = None,
    benchmark: Path | None = None,
    as_json: bool = False,
) -> int:
    """Judge results: exit 0 pass, 1 fail, 3 no verdict (an invalid or missing run, or noise that hides the answer).

    Without --baseline the limits may_fall and may_rise are skipped: a first result that passes can be the baseline.
    """
    limits = gate.parse_thresholds(catalog.read_table(thresholds), str(thresholds))
    now = evaluation.read_comparable(take_results(folder))
    verdict = gate.judge(now, limits, evaluation.read_comparable(take_results(baseline)) if baseline else None)
    if as_json:
        screen.print_json({"verdict": verdict.outcome, **dataclasses.asdict(verdict)})
    else:
        rows = [[check.outcome, *check.numbers] for check in verdict.checks]
        screen.print_table("", gate.HEAD, rows, numbers_from=3)
        screen.print_notes(verdict.notes)
        screen.print_notes(verdict.changed_settings, "changed")
        screen.print_text(f"verdict: {verdict.outcome} ({verdict.counts})", screen.OUTCOME_STYLES[verdict.outcome])
    name = next((run.experiment for run in now.summaries if run.experiment), str(folder))
    for file, text in (
        (junit, gate.format_junit(verdict, name)),
        (markdown, gate.format_markdown(verdict, name)),
        (benchmark, gate.format_benchmark_json(now.summaries, limits)),
    ):
        if file is not None:
            screen.write_output(file, text)
    return verdict.exit_code


@app.command("compare")
@grouped
def compare_results(
    before: Annotated[
        Path, typer.Argument(metavar="A", help="A results folder, a summary.csv, or an experiment's name.")
    ],
    now: Annotated[Path, typer.Argument(metavar="B", help="Later results, given alike.")],
    columns: Columns = [],  # noqa: B006 - typer copies it
    csv: Annotated[Path | None, typer.Option(help="Write the table to this file, as numbers.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the intervals drawn to this file.")] = None,
    as_json: bool = False,
) -> int:
    """Show what changed from one result to another: exit 0, or 3 if the results are not comparable."""
    check_columns(columns)
    before, now = take_results(before), take_results(now)
    compared = changes.compare_results(
        evaluation.read_comparable(before), evaluation.read_comparable(now), columns or comparison.DEFAULT_COLUMNS
    )
    if csv is not None:
        screen.write_output(csv, to_csv(change_tables.change_numbers(compared.comparisons)))
    if html is not None:
        screen.write_output(html, page.render_comparison(str(before), str(now), compared))
    if as_json:
        names, *numbers = change_tables.change_numbers(compared.comparisons)
        rows_by_name = [dict(zip(names, row, strict=True)) for row in numbers]
        notes = [*compared.refusals, *compared.notes, *compared.changed_settings]
        screen.print_json({"notes": notes, "changes": rows_by_name})
    elif compared.refusals:
        screen.print_text(f"no verdict: these two results are not comparable: {'; '.join(compared.refusals)}")
    else:
        head, *rows = change_tables.change_rows(compared)
        screen.print_table(f"{before} to {now}", head, rows, numbers_from=2)
        screen.print_notes(compared.notes)
        screen.print_notes(compared.changed_settings, "changed")
        screen.print_text(change_tables.summarise_changes(compared.comparisons))
    return 0 if compared.has_interval and not compared.refusals else _NO_VERDICT


@app.command("trend")
def show_trend(
    folder: Annotated[Path, typer.Argument(help="A folder that holds results folders of different dates.")],
    columns: Columns = [],  # noqa: B006 - typer copies it
    csv: Annotated[Path | None, typer.Option(help="Write the number and level of every result to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the histories drawn to this file.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write a picture of the histories to this file.")] = None,
) -> int:
    """Show what changed over a history of results, since when, and which facts changed with it.

    Exit 0 with or without a change, as compare does; 3 if no cell has 6 results. Use gate for limits.
    """
    check_columns(columns)
    results, skipped = evaluation.load_history(layout.find_experiment(folder))
    found_trend = trend.find_trend(results, list(dict.fromkeys(columns)) or comparison.DEFAULT_COLUMNS)
    notes = [*skipped, *found_trend.notes]
    if csv is not None:
        screen.write_output(csv, to_csv(change_tables.trend_numbers(found_trend)))
    if html is not None or png is not None:
        from ingest_bench.report import plot_history  # noqa: PLC0415 - matplotlib takes most of a second

        if html is not None:
            pictures = plot_history.draw_all(found_trend)
            screen.write_output(html, page.render_trend(str(folder), found_trend, notes, pictures))
        if png is not None:
            screen.write_output(png, plot_history.draw_trend(found_trend))
    head, *rows = change_tables.trend_rows(found_trend)
    if rows:
        screen.print_table(str(folder), head, rows, numbers_from=3)
    screen.print_notes(notes)
    screen.print_text(change_tables.summarise_trend(found_trend))
    return 0 if found_trend.histories else _NO_VERDICT
