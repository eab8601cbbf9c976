"""`report`: rebuild tables and pictures. `recommend`: say what limits the runs, and how to test it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ingest_bench.analysis import search
from ingest_bench.analysis.compare import bisection
from ingest_bench.analysis.receive_buffers import Limits
from ingest_bench.cli import screen
from ingest_bench.cli.options import App, OutputOptions, ResultsFolder, grouped, take_results
from ingest_bench.errors import SpecError
from ingest_bench.lab import advice, buffer_advice, evaluation
from ingest_bench.model.experiment import Plan
from ingest_bench.model.results import Summary
from ingest_bench.report import (
    advice_table,
    bisection_table,
    buffer_tables,
    cell_tables,
    change_tables,
    digest,
    headline,
    search_table,
    summary_files,
)
from ingest_bench.results import layout
from ingest_bench.results.layout import Results
from ingest_bench.units import format_bytes

app = App()

_INVALID = 3
_JSON_FIELDS = ("run", "cell", "replicate", "instrumented", "levels", "state", "reason", "values")
_COMPLETE = frozenset({"measured", "oom", "inapplicable"})


@app.command("report")
@grouped
def rebuild_report(folder: ResultsFolder, output: OutputOptions, svg: bool = False, parquet: bool = False) -> int:
    """Rebuild the tables and pictures of a results folder from its raw files."""
    results = layout.open_results(take_results(folder), to_write=True)
    if parquet:
        # Before the raw files are read, which takes minutes.
        summary_files.require_pyarrow()
    summaries = evaluation.require_summaries(results)
    evaluation.write_report(results, summaries, svg=svg, parquet=parquet)
    return print_results(results, summaries, output)


def print_results(
    results: Results, summaries: list[Summary], output: OutputOptions, documents: list[dict[str, Any]] | None = None
) -> int:
    """Print the finding, its table and the path of the page; return the exit code: 3 if a run is not valid.

    With *documents*, JSON is appended there.
    """
    plan, page = results.plan, results.report / "index.html"
    knees = [] if plan.search is None else search.find_knees(plan, summaries)
    bisected = bisection.judge_releases(plan.bisection, summaries) if plan.bisection else None
    if bisected is not None:
        findings = bisection_table.describe_result(bisected)
    else:
        findings = digest.describe_endings(summaries, f"{results.path.absolute()}/")
        findings += search_table.describe_knees(knees) or [headline.describe_finding(summaries)]
    sentences = [
        *findings,
        *(describe(summaries) for describe in (digest.describe_stalls, digest.describe_errors)),
        digest.describe_warnings(summaries),
    ]
    sentences = list(filter(None, sentences))
    if output.open_page:
        screen.open_page(page)
    if output.as_json:
        runs = [{name: getattr(run, name) for name in _JSON_FIELDS} for run in summaries]
        notes = cell_tables.list_notes(summaries)
        document = {"report": page, "sentences": sentences, "notes": notes, "runs": runs}
        document |= {"bisection": bisection_table.to_document(bisected)} if bisected else {}
        if documents is None:
            screen.print_json(document)
        else:
            documents.append(document)
        return _exit_code(plan, summaries, knees, bisected)
    if output.wide:
        head, *rows = cell_tables.cell_rows(summaries)
        screen.print_table(plan.description, head, rows)
    if noise := change_tables.noise_rows(summaries):
        title = "A/A: noise, and the changes that this many replicates show (95% confidence, 80% power)"
        screen.print_table(title, noise[0], noise[1:], noise[0].index("column") + 1)
    folder = results.path.parent if results.path.parent.name == plan.experiment else results.path
    last = [f"report: {page}{'' if output.open_page else '   (--open)'}", digest.suggest_next(summaries, str(folder))]
    last = list(filter(None, last))
    rows = bisection_table.release_rows(bisected) if bisected else digest.digest_rows(summaries)
    screen.print_digest(rows, sentences, last)
    if output.verbose:
        screen.print_notes(cell_tables.list_notes(summaries))
    for line in last:
        screen.print_text(line)
    return _exit_code(plan, summaries, knees, bisected)


def _exit_code(
    plan: Plan, summaries: Sequence[Summary], knees: Sequence[search.Knee], bisected: bisection.Progress | None
) -> int:
    if bisected is not None:
        return 0 if bisected.is_solved else _INVALID
    if knees:
        return 0 if all(knee.result.is_knee for knee in knees) else _INVALID
    is_complete = len(summaries) == len(plan.runs) + len(plan.skipped_cells)
    return 0 if is_complete and all(run.state in _COMPLETE for run in summaries) else _INVALID


@app.command("results")
def list_results(
    folder: Annotated[
        Path, typer.Argument(help="An experiment's name, or a folder with results below it.")
    ] = layout.RESULTS,
) -> None:
    """List past runs: experiment, start, and how many of its runs are measured."""
    rows = []
    for path in sorted(file.parent for file in layout.find_experiment(folder).rglob(layout.PLAN)):
        try:
            states = Counter(record.state for record in Results(path).read_records().values())
            counts = [f"{count} {state}" for state, count in states.items()]
            rows.append([path.parent.name, str(path), f"{', '.join(counts) or 0} of {len(Results(path).plan.runs)}"])
        except SpecError as error:
            rows.append([path.parent.name, str(path), str(error).partition(": ")[2]])
    if not rows:
        problem = "there are no results below it" if layout.find_experiment(folder).is_dir() else "does not exist"
        raise SpecError(f"{folder}: {problem}. Make some: ingest-bench run quickstart")
    screen.print_table("", ["experiment", "results", "runs"], rows, 3)


@app.command()
@grouped
def recommend(
    folders: Annotated[list[Path], typer.Argument(help="Results folders, or experiments' names.")],
    as_json: bool = False,
    buffers: Annotated[bool, typer.Option("--buffers", help="Print the cost of each receive buffer instead.")] = False,
) -> int:
    """Say what limits the runs: sockets, connections, heap, direct memory, G1 regions, receive buffers. Runs nothing.

    Each advice names its evidence (columns of summary.csv and settings) and the command that tests it.
    """
    documents: list[dict[str, Any]] = []
    code = 0
    for folder in folders:
        results = layout.open_results(take_results(folder), to_write=True)
        summaries = evaluation.require_summaries(results)
        cells, runs = buffer_advice.advise_cells(results, summaries), advice.observe_runs(results, summaries)
        findings, unchecked = advice.find_advice(results, runs, cells), advice.list_unchecked(runs, cells)
        findings_json = [dataclasses.asdict(finding) for finding in findings]
        documents.append({"results": results.path, "advice": findings_json, "not_checked": unchecked})
        if buffers:
            for cell in cells:
                _print_buffers(cell)
        elif not as_json:
            blocks = advice_table.describe_findings(findings) if runs else ["no advice: no run has a result"]
            screen.print_blocks(blocks, advice_table.describe_unchecked(unchecked) if runs else "")
        code = code if runs else _INVALID
    if as_json:
        screen.print_json(documents)
    return code


def _print_buffers(cell: buffer_advice.BufferAdvice) -> None:
    screen.print_heading(cell.cell)
    if cell.recommendation is None:
        screen.print_text(f"no recommendation: {cell.problem}\n")
        return
    head, *rows = buffer_tables.cost_rows(cell.costs)
    screen.print_table("", head, rows)
    for line in _describe_limits(cell.limits):
        screen.print_text(line)
    if any(cost.is_extrapolated for cost in cell.costs):
        screen.print_text(
            "extrapolated: reads filled the recorded buffer, so how much more was waiting is unknown. Record a larger "
            "buffer."
        )
    if cell.disagreement:
        screen.print_text(cell.disagreement)
    screen.print_text(describe_errors(cell.errors))
    screen.print_text(f"recommended: {cell.recommendation.reason}\n")


def _describe_limits(limits: Limits) -> Iterator[str]:
    if limits.tlab_bytes is None:
        yield "TLAB sizes of the network's threads are unknown: record them with the probe allocations"
    else:
        yield f"a TLAB of the network's threads held {format_bytes(limits.tlab_bytes)} on average"
    if limits.region_bytes is None:
        yield "the size of heap regions is unknown: record it with the probe gc and G1"
    else:
        region = format_bytes(limits.region_bytes)
        yield f"a heap region has {region}: a buffer larger than half of that is a humongous object"


def describe_errors(errors: Sequence[float]) -> str:
    """Describe how far the prediction was off for other buffer sizes on the same network."""
    if not errors:
        return (
            "the prediction error on this network is unknown: measure another receive buffer too, with the probe "
            "kernel-reads if the server does not count its buffers"
        )
    low, high = min(errors), max(errors)
    sizes = f"{len(errors)} other size{'s' if len(errors) > 1 else ''}"
    span = f"{low:+.1%} to {high:+.1%}" if len(errors) > 1 else f"{low:+.1%}"
    return f"checked on this network: the prediction error for {sizes} was {span}"
