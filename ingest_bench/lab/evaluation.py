"""From the files of runs to summaries and reports. Repeatable at any time: it needs no root, no server, no network."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from ingest_bench import probes, report
from ingest_bench.analysis.compare import cells, comparable
from ingest_bench.analysis.run import delivery, nodes, summary
from ingest_bench.analysis.search import knees
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.inputs import files, visible
from ingest_bench.inputs.records import from_json
from ingest_bench.jvm.java import Java, again
from ingest_bench.lab import buffer_advice, window, wires
from ingest_bench.model.experiment import Cell, Plan, Run, RunState
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.network import LinkName
from ingest_bench.model.results import Measured, Remark, RunRecord, Summary, Value
from ingest_bench.network.measure import waits as waits_module
from ingest_bench.network.measure import wire
from ingest_bench.probes import context as context_module
from ingest_bench.probes import recording, vantage
from ingest_bench.report.tables import knee_table, text_tables, whatif_table
from ingest_bench.results import layout, run_folder
from ingest_bench.results.layout import Results
from ingest_bench.results.run_folder import NodeFolder, RunFolder


def run_summary(
    plan: Plan, planned: Run, folder: RunFolder, record: RunRecord, java_home: Path | None = None
) -> Summary:
    """One run as one row, from its raw files. Recordings are read by the user's Java, or one of this machine."""
    _check_times(folder, record)
    if unknown := record.link.keys() - summary.NAMES:
        raise SpecError(f"{folder.path / 'run.json'}: this file is damaged: link: there is no column {min(unknown)!r}")
    cell, samples, report = planned.cell, folder.samples(), window.report(folder, planned.cell)
    if cell.load.warm_up_ns == "auto" and record.measure_start_realtime_ns is not None:
        until_ns = record.out_of_memory_realtime_ns if record.state == "oom" else None
        record = dataclasses.replace(record, **window.fields(folder, cell, until_ns=until_ns))
    measured = [_measured(planned, node, report, record, java_home) for node in folder.nodes(cell.target.nodes)]
    seen = measured[0]
    if len(measured) > 1:
        seen = nodes.together(measured, nodes.loaded(measured, samples, report, _only(cell)))
    found = summary.summarise(
        record,
        cell,
        samples,
        report,
        seen,
        experiment=plan.experiment,
        queries=folder.queries(),
        changed_files=folder.changed(record.files),
        cpu=folder.cpu(),
        standstills=folder.standstills(),
        reads=np.concatenate([node.reads() for node in folder.nodes(cell.target.nodes)]),
        nodes=_of_nodes(cell, folder, record, report, measured),
        delivered=_delivered(cell, folder) if record.state == "measured" and report is not None else None,
    )
    noted = (Remark(probe="load", text=text) for text in record.notes)
    said = wires.remarks(folder, cell.target.nodes, found.state)
    return visible.summary(dataclasses.replace(found, remarks=(*found.remarks, *noted, *said)))


def summaries(
    results: Results, java_home: Path | None = None, states: Collection[RunState] | None = None
) -> list[Summary]:
    """A row for each run that was started and each cell that was left out, in the order of the experiment's levels.

    With `states` only runs whose records have one of these: nothing that the others left is read.
    """
    plan, records = results.plan, results.records()
    found = [
        run_summary(plan, run, results.run(run), records[run.id], java_home)
        for run in plan.runs
        if run.id in records and (states is None or records[run.id].state in states)
    ]
    return cells.in_order([*found, *left_out(plan)], plan.factors)


def any_summaries(results: Results) -> list[Summary]:
    """The same, at least one; SpecError where nothing was carried out yet."""
    found = summaries(results)
    if not found:
        raise SpecError(
            f"{results.path}: none of its runs was carried out yet; `run --resume {results.path}` does them"
        )
    return found


def left_out(plan: Plan) -> list[Summary]:
    """A row for each cell that the plan names and does not run, with its reason."""
    return [
        visible.summary(
            Summary(
                run=f"{each.cell}/1",
                cell=each.cell,
                replicate=1,
                levels=each.levels,
                state="inapplicable",
                reason=each.reason,
                values={},
                experiment=plan.experiment,
            )
        )
        for each in plan.left_out
    ]


def kept(path: Path) -> list[Summary]:
    """The rows of a results folder's summary.csv, or of such a file alone, as they were written.

    A run of the folder's plan that has no row is "planned". SpecError when the file is not there or is no summary.csv.
    """
    source = _table(path)
    try:
        rows = [visible.summary(row) for row in text_tables.read_summary_csv(files.text(source))]
    except OSError as error:
        raise SpecError(f"{source}: cannot be read ({error.strerror}); give results/<experiment>/<start>") from None
    except ValueError as error:
        raise SpecError(f"{source}: {error}") from None
    if not path.is_dir():
        return rows
    plan = layout.open_results(path).plan
    there = {row.run for row in rows}
    return cells.in_order([*rows, *(_planned(run) for run in plan.runs if run.id not in there)], plan.factors)


def judged(path: Path) -> comparable.Results:
    """The same, with the facts of its machine: what is judged, or what it is judged by."""
    summaries, file = kept(path), _table(path)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return comparable.Results(summaries=summaries, facts=layout.facts(path), source=f"{file} (sha256 {digest})")


def _table(path: Path) -> Path:
    """The summary.csv of a results folder; a file is one itself."""
    return path / layout.SUMMARY if path.is_dir() else path


def _planned(run: Run) -> Summary:
    planned = Summary(
        run=run.id,
        cell=run.cell.name,
        replicate=run.replicate,
        levels=run.cell.levels,
        instrumented=run.instrumented,
        state="planned",
        reason="it was not carried out",
        values={},
    )
    return visible.summary(planned)


def write_tables(results: Results, found: list[Summary]) -> None:
    """Write summary.csv, summary.json and histograms.csv anew."""
    results.write(report.REPORTS["tables"](cells.in_order(found, results.plan.factors)))


def write_report(
    results: Results, found: list[Summary], *, svg: bool = False, parquet: bool = False
) -> tuple[Path, ...]:
    """Write everything that can be rebuilt. The paths of the pictures, the main one first.

    With `svg` each of them is there as SVG, too; with `parquet` there is a summary.parquet.
    """
    ordered = cells.in_order(found, results.plan.factors)
    extra = report.parquet_table(ordered) if parquet else {}
    files = {name: content for build in report.REPORTS.values() for name, content in build(ordered).items()}
    compared = predicted(results, ordered)
    if compared:
        files["report/predicted.md"] = text_tables.markdown(compared, 3).encode()
        files["report/predicted.csv"] = text_tables.csv_text(compared).encode()
    # The knee is the main picture of a search.
    files = knee_table.files(searched := knees.knees(results.plan, ordered)) | files
    if svg:
        extra |= report.vector(lambda: knee_table.files(searched) | report.REPORTS["pictures"](ordered))
    results.write(files | extra)
    return tuple(results.path / name for name in files if name.endswith(".png"))


def predicted(results: Results, found: list[Summary]) -> list[list[str]]:
    """What receive buffers were predicted to cost beside what the server counted; empty where it does not count."""
    return whatif_table.predicted(buffer_advice.predictions(results, found))


def _measured(
    planned: Run, node: NodeFolder, load: WorkerReport | None, record: RunRecord, java_home: Path | None
) -> list[Measured]:
    watching = probes.chosen(planned.cell.probes)
    if load is None or record.measure_start_realtime_ns is None or record.measure_end_realtime_ns is None:
        return []
    context = context_module.ReadContext(
        raw=node.raw,
        start_ns=record.measure_start_realtime_ns,
        end_ns=record.measure_end_realtime_ns,
        ports=frozenset(load.local_ports),
        reader=lambda: recording.reader(_runtime(node, record, java_home)),
    )
    seen = vantage.VANTAGES[planned.cell.target.vantage].read(watching, context)
    tcp = (*waits_module.losses(node.raw, load.local_ports), *waits_module.held_back(node.raw, load.local_ports))
    return [*seen, *wire.frame_sizes(node.raw), *tcp]


def _of_nodes(
    cell: Cell,
    folder: RunFolder,
    record: RunRecord,
    report: WorkerReport | None,
    measured: Sequence[Sequence[Measured]],
) -> tuple[dict[str, Value], ...]:
    """What is known of each of several nodes; nothing where there is one, or where the load never got so far."""
    start_ns, end_ns = record.measure_start_realtime_ns, record.measure_end_realtime_ns
    if not record.node_links or start_ns is None or end_ns is None:
        return ()
    count = cell.target.nodes
    if len(record.node_links) != count:
        raise SpecError(f"{folder.path / 'run.json'}: this file is damaged: node_links: there are {count} nodes")
    pairs = (LinkName(pair) for pair in itertools.combinations(range(1, count + 1), 2))
    waited = waits_module.waited({name: wire.seen(folder.wire(name)) for name in pairs}, count, start_ns, end_ns)
    values = nodes.values(measured, record.node_links, folder.samples(), report, _only(cell))
    return tuple(value | waits for value, waits in zip(values, waited, strict=True))


def _only(cell: Cell) -> int | None:
    """The node that the load goes to; None: all."""
    return None if cell.load.nodes == "all" else cell.load.nodes


def _delivered(cell: Cell, folder: RunFolder) -> Mapping[str, Value] | None:
    """What became of each acknowledged document; None where the server cannot be read back."""
    told = folder.delivered(cell.target.nodes)
    if told is None:
        return None
    users = cell.load.users or catalog.workload(cell.load.workload).users
    try:
        return delivery.values(delivery.read(told), folder.samples(), users)
    except ValueError as error:
        raise SpecError(f"{folder.path}: what its nodes delivered (delivered.bin) is damaged: {error}") from None


def _check_times(folder: RunFolder, record: RunRecord) -> None:
    """SpecError where the measurement of run.json cannot lie within that load."""
    load, start_ns, end_ns = folder.load_report(), record.measure_start_realtime_ns, record.measure_end_realtime_ns
    if load is None or start_ns is None or end_ns is None:
        return
    began_ns = load.started_monotonic_ns + load.realtime_minus_monotonic_ns
    if not 0 <= start_ns - began_ns <= end_ns - began_ns <= run_folder.LONGEST_LOAD_NS:
        raise SpecError(
            f"{folder.path / 'run.json'}: this file is damaged, or load/load.json: its measurement does not lie within "
            "the load's time"
        )


def _runtime(folder: NodeFolder, record: RunRecord, java_home: Path | None) -> Java:
    """The Java that reads the run's recordings."""
    try:
        kept = from_json(Java, record.server.get("runtime"))
    except ValueError as error:
        raise SpecError(f"{folder.path / 'run.json'}: this file is damaged: server: runtime: {error}") from None
    return again(kept, java_home)
