"""Summaries and reports from the files of runs. Repeatable at any time, without root, server and network."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ingest_bench import probes, targets
from ingest_bench.analysis import search
from ingest_bench.analysis.compare import cells, changes, trend
from ingest_bench.analysis.run import bursts, clock, delivery, nodes, steady, summary
from ingest_bench.analysis.run.sample_columns import SampleSource
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog, key_paths
from ingest_bench.inputs import escaping, files
from ingest_bench.inputs.records import from_json, to_json
from ingest_bench.jvm.java import Java, find_recorded
from ingest_bench.lab import advice, buffer_advice, link_watch
from ingest_bench.model.experiment import Cell, Plan, Run, RunState
from ingest_bench.model.network import LinkName
from ingest_bench.model.results import ColumnValue, NodeObserver, Note, ProbeOutput, Reading, RunRecord, Summary
from ingest_bench.model.samples import WorkerReport
from ingest_bench.network.measure import readings as waits_module
from ingest_bench.network.measure import wire
from ingest_bench.probes import context as context_module
from ingest_bench.probes import observer, recording
from ingest_bench.report import advice_table, buffer_tables, reports, search_table, summary_files
from ingest_bench.results import layout
from ingest_bench.results.layout import NodeFolder, Results, RunFolder

# Readings of the whole recording.
_TOTALS = ("bytes_read", "reads_recorded", "reads_empty")


def load_measured_report(folder: RunFolder, cell: Cell) -> WorkerReport | None:
    """Return the load's report with its measurement; None if the load never ended.

    With `warm_up = "auto"` the start of the measurement is computed from the samples each time and never stored in the
    load's files, so that a better detector can be applied to old results.
    """
    report = folder.read_load_report()
    if report is None or cell.load.warm_up_ns != "auto":
        return report
    return steady.measure_from_steady(folder.samples(), report, cell.load.measure_ns)


def measurement_fields(folder: RunFolder, cell: Cell, *, until_ns: int | None = None) -> dict[str, Any]:
    """Return the measurement on CLOCK_REALTIME and the compared clocks, as fields of the run's record.

    *until_ns*: end of the server (CLOCK_REALTIME). If the measurement lasted less than a second then, the warm-up is
    measured instead. Empty if the load never ended.
    """
    report = load_measured_report(folder, cell)
    if report is None:
        return {}
    offset_ns = report.realtime_minus_monotonic_ns
    start_ns, end_ns = report.warm_up_end_ns + offset_ns, report.measure_end_ns + offset_ns
    if until_ns is not None:
        if until_ns - start_ns < 10**9:
            start_ns = report.started_monotonic_ns + offset_ns
        end_ns = max(start_ns, min(until_ns, end_ns))
    return {
        "warm_up_ns": report.warm_up_end_ns - report.started_monotonic_ns,
        "measure_start_realtime_ns": start_ns,
        "measure_end_realtime_ns": end_ns,
        "clock_offsets": report.clock_offsets,
    }


def summarise_run(
    plan: Plan, planned: Run, folder: RunFolder, record: RunRecord, java_home: Path | None = None
) -> Summary:
    """Return one run as one row, from its raw files. Recordings are read by the user's Java, or one of this machine."""
    _check_times(folder, record)
    if unknown := record.link.keys() - summary.NAMES:
        raise SpecError(f"{folder.path / 'run.json'}: this file is damaged: link: there is no column {min(unknown)!r}")
    cell, samples, report = planned.cell, folder.samples(), load_measured_report(folder, planned.cell)
    if cell.load.warm_up_ns == "auto" and record.measure_start_realtime_ns is not None:
        until_ns = record.out_of_memory_realtime_ns if record.state == "oom" else None
        record = dataclasses.replace(record, **measurement_fields(folder, cell, until_ns=until_ns))
    node_count = cell.target.node_count
    outputs = [_read_node(planned, node, samples, report, record, java_home) for node in folder.nodes(node_count)]
    merged = outputs[0]
    if len(outputs) > 1:
        merged = nodes.merge_nodes(outputs, nodes.loaded_nodes(outputs, samples, _address_nodes(cell, record, report)))
    inputs = summary.RunInputs(
        record=record,
        cell=cell,
        samples=samples,
        report=report,
        outputs=merged,
        experiment=plan.experiment,
        queries=folder.queries(),
        changed_files=folder.describe_changes(record.files),
        cpu=folder.read_load_records("cpu"),
        loop_stalls=folder.read_load_records("loop_stalls"),
        reads=np.concatenate([node.read_socket_reads() for node in folder.nodes(node_count)]),
        nodes=_node_columns(cell, folder, record, report, outputs),
        delivered=_delivered_columns(cell, folder) if record.state == "measured" and report is not None else None,
    )
    row = summary.summarise(inputs)
    run_notes = (Note(source="load", text=text) for text in record.notes)
    frame_notes = link_watch.last_frames_notes(folder, node_count, row.state)
    notes = (*row.notes, *run_notes, *frame_notes)
    return escaping.escape_summary(dataclasses.replace(row, notes=notes, headline=plan.headline))


def summarise_runs(
    results: Results, java_home: Path | None = None, states: Collection[RunState] | None = None
) -> list[Summary]:
    """Return a row for each started run and each skipped cell, in the order of the experiment's levels.

    With *states* only for runs in one of these: the files of other runs are not read.
    """
    plan, records = results.plan, results.read_records()
    rows = [
        summarise_run(plan, run, results.run_folder(run), records[run.id], java_home)
        for run in plan.runs
        if run.id in records and (states is None or records[run.id].state in states)
    ]
    skipped = [
        _unexecuted(
            "inapplicable",
            cell.reason,
            run=f"{cell.cell}/1",
            cell=cell.cell,
            replicate=1,
            levels=cell.levels,
            experiment=plan.experiment,
            headline=plan.headline,
        )
        for cell in plan.skipped_cells
    ]
    return cells.in_factor_order([*rows, *skipped], plan.factors)


def require_summaries(results: Results) -> list[Summary]:
    """Return all rows; SpecError if no run was executed yet."""
    if rows := summarise_runs(results):
        return rows
    raise SpecError(f"{results.path}: no run was executed yet. Execute them: `run --resume {results.path}`.")


def read_summaries(path: Path) -> list[Summary]:
    """Return the rows of a results folder's summary.csv, or of such a file.

    A run of the folder's plan without a row is "planned". SpecError if the file is missing or not a summary.csv.
    """
    source = _summary_file(path)
    try:
        rows = [escaping.escape_summary(row) for row in summary_files.parse_summary_csv(files.read_text(source))]
    except FileNotFoundError:
        problem = layout.describe_missing_results(path, layout.SUMMARY)
        raise SpecError(f"{path}: {problem}; give results/<experiment>/<start>") from None
    except OSError as error:
        raise SpecError(f"{source}: cannot be read ({error.strerror}); give results/<experiment>/<start>") from None
    except ValueError as error:
        raise SpecError(f"{source}: {error}") from None
    if not path.is_dir():
        return rows
    plan = layout.open_results(path).plan
    known_runs = {row.run for row in rows}
    missing = [
        _unexecuted(
            "planned",
            "not executed",
            run=run.id,
            cell=run.cell.name,
            replicate=run.replicate,
            levels=run.cell.levels,
            instrumented=run.instrumented,
        )
        for run in plan.runs
        if run.id not in known_runs
    ]
    return cells.in_factor_order([*rows, *missing], plan.factors)


def read_comparable(path: Path) -> changes.Results:
    """Return the rows of `read_summaries` with the facts of its machine, to compare it with others."""
    summaries, file = read_summaries(path), _summary_file(path)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    runs = layout.open_results(path).plan.runs if path.is_dir() else ()
    planned = {run.cell.name: run.cell for run in runs if not run.instrumented}
    settings = {name: key_paths.describe_settings(cell) for name, cell in planned.items()}
    return changes.Results(
        summaries=summaries, facts=layout.read_facts(path), settings=settings, source=f"{file} (sha256 {digest})"
    )


def _summary_file(path: Path) -> Path:
    return path / layout.SUMMARY if path.is_dir() else path


def _unexecuted(state: RunState, reason: str, **identity: Any) -> Summary:
    return escaping.escape_summary(Summary(state=state, reason=reason, values={}, **identity))


def write_tables(results: Results, summaries: list[Summary]) -> None:
    """Rewrite summary.csv, summary.json and histograms.csv."""
    results.write_files(reports.REPORTS["tables"](cells.in_factor_order(summaries, results.plan.factors)))


def write_report(
    results: Results, summaries: list[Summary], *, svg: bool = False, parquet: bool = False
) -> tuple[Path, ...]:
    """Write all reports, also as *svg* and *parquet* if set; return the paths of the plots, the main one first."""
    ordered = cells.in_factor_order(summaries, results.plan.factors)
    extra = {"summary.parquet": summary_files.format_parquet(ordered)} if parquet else {}
    files = {name: content for build in reports.REPORTS.values() for name, content in build(ordered).items()}
    predictions = buffer_tables.prediction_rows(buffer_advice.predict_costs(results, ordered))
    if predictions:
        files["report/predicted.md"] = summary_files.to_markdown(predictions, 3).encode()
        files["report/predicted.csv"] = summary_files.to_csv(predictions).encode()
    # The knee is the main plot of a search.
    files = search_table.search_files(knee_points := search.find_knees(results.plan, ordered)) | files
    findings = advice.find_advice(results, advice.observe_runs(results, ordered))
    facts = layout.read_facts(results.path)
    files |= reports.build_page(ordered, files, facts, advice_table.finding_rows(findings))
    if svg:
        extra |= reports.build_svg(
            lambda: search_table.search_files(knee_points) | reports.REPORTS["pictures"](ordered)
        )
    results.write_files(files | extra)
    return tuple(results.path / name for name in files if name.endswith(".png"))


def _read_node(
    planned: Run,
    node: NodeFolder,
    samples: SampleSource,
    load: WorkerReport | None,
    record: RunRecord,
    java_home: Path | None,
) -> list[ProbeOutput]:
    if load is None or record.measure_start_realtime_ns is None or record.measure_end_realtime_ns is None:
        return []
    context = dataclasses.replace(
        _read_context(planned, node, load, record, java_home),
        start_ns=record.measure_start_realtime_ns,
        end_ns=record.measure_end_realtime_ns,
    )
    selected = probes.select_probes(planned.cell.probes)
    observed, watching = planned.cell.target.observer, node.read_observer()
    outputs = list(observer.read_outputs(observed, selected, context, node.clock))
    if observed == "jmx":
        if watching is None:
            # Totals need no clock.
            outputs = [item for item in outputs if isinstance(item, Note) or getattr(item, "name", "") in _TOTALS]
        outputs.append(Note(source="jmx", text=_describe_jmx_clock(watching)))
    is_incomplete = Reading("bytes_read", None) in outputs
    reads = node.read_socket_reads()[: 0 if is_incomplete else None]
    if planned.cell.load.arrivals.shape == "burst":
        outputs += bursts.retained_outputs(outputs, samples, load)
    is_encrypted, clock_offset = planned.cell.target.is_encrypted, watching.clock if watching else None
    return [
        *outputs,
        *clock.clock_outputs(samples, reads, load, clock_offset, is_encrypted=is_encrypted),
        *waits_module.wire_outputs(wire.read_wire(node.raw / wire.WIRE_FILE), load.local_ports),
    ]


def _describe_jmx_clock(watching: NodeObserver | None) -> str:
    if watching is None:
        return (
            "the server's clock is unknown, so its columns within the measurement are empty: it is known only if sent "
            "and read bytes of a connection agree (probe reads)"
        )
    return (
        "the server's clock is estimated by the fastest request; sent and read bytes prove that its error is at most "
        f"{watching.clock.round_trip_ns / 2e6:.3f} ms"
    )


def _read_context(
    planned: Run, node: NodeFolder, load: WorkerReport, record: RunRecord, java_home: Path | None
) -> context_module.ReadContext:
    """Return the files of a node, without a measurement."""
    options = planned.cell.target
    # A plan for a running server does not say which one it is.
    identified = None if options.custom is not None else targets.TARGETS.get(str(record.server.get("name")))
    target = identified or targets.resolve(options)
    return context_module.ReadContext(
        raw=node.raw,
        start_ns=0,
        end_ns=0,
        ports=frozenset(load.local_ports),
        reader=lambda: recording.reader_command(_find_java(node, record, java_home)),
        thread_roles=target.thread_roles,
        network=target.network,
    )


def write_jmx_clocks(planned: Run, folder: RunFolder, record: RunRecord, java_home: Path | None) -> None:
    """Write the clock of each node that was recorded over JMX, by sent and read bytes.

    The clock that JMX itself reports is wrong by 100 ms. A node without limits gets no clock.
    """
    load = folder.read_load_report()
    if load is None or planned.cell.target.observer != "jmx":
        return
    jvms = record.server.get("jvms", [record.server])
    for number, (node, jvm) in enumerate(zip(folder.nodes(planned.cell.target.node_count), jvms, strict=True)):
        recorded = recording.load_recording(_read_context(planned, node, load, record, java_home))
        reads = node.read_socket_reads()[: None if recorded.is_complete else 0]
        is_encrypted = planned.cell.target.is_encrypted
        bound = clock.bound_clock_offset(folder.samples(), reads, load, is_encrypted=is_encrypted)
        if bound is not None:
            offset = bound.to_offset(number, jvm["machine"], jvm["round_trip_ns"], load)
            files.write_json(node.raw / layout.OBSERVER, to_json(NodeObserver(pid=jvm["pid"], clock=offset)))
        # They have the times of no measurement.
        for name in recording.CACHES:
            (node.raw / name).unlink(missing_ok=True)


def _node_columns(
    cell: Cell,
    folder: RunFolder,
    record: RunRecord,
    report: WorkerReport | None,
    outputs: Sequence[Sequence[ProbeOutput]],
) -> tuple[dict[str, ColumnValue], ...]:
    """Return the columns of each of several nodes; empty with one node, or if the load never got that far."""
    start_ns, end_ns = record.measure_start_realtime_ns, record.measure_end_realtime_ns
    if not record.node_links or start_ns is None or end_ns is None:
        return ()
    count = cell.target.node_count
    if len(record.node_links) != count:
        raise SpecError(f"{folder.path / 'run.json'}: this file is damaged: node_links: there are {count} nodes")
    pairs = (LinkName(pair) for pair in itertools.combinations(range(1, count + 1), 2))
    waits = waits_module.node_wait_columns(
        {name: wire.read_wire(folder.wire_file(name)) for name in pairs}, count, start_ns, end_ns
    )
    address_nodes = _address_nodes(cell, record, report)
    columns = nodes.node_columns(outputs, record.node_links, folder.samples(), report, address_nodes)
    return tuple(column | wait for column, wait in zip(columns, waits, strict=True))


def _address_nodes(cell: Cell, record: RunRecord, report: WorkerReport | None) -> tuple[int, ...]:
    """Return the number of the node at each address of the load; empty if unknown, or if a library chose the nodes."""
    if report is None or not report.addresses:
        return ()
    if cell.target.is_already_running:
        return record.address_nodes
    return tuple(range(1, cell.target.nodes + 1)) if cell.load.nodes == "all" else (cell.load.nodes,)


def _delivered_columns(cell: Cell, folder: RunFolder) -> Mapping[str, ColumnValue] | None:
    """Return the fate of acknowledged documents; None if the server cannot be read back."""
    delivered = folder.read_delivered(cell.target.nodes)
    if delivered is None:
        return None
    users = cell.load.users or catalog.load_workload(cell.load.workload).users
    try:
        return delivery.delivery_columns(delivery.parse_delivered(delivered), folder.samples(), users)
    except ValueError as error:
        raise SpecError(f"{folder.path}: delivered.bin is damaged: {error}") from None


def _check_times(folder: RunFolder, record: RunRecord) -> None:
    """Raise SpecError if the measurement of run.json cannot be within its load."""
    load, start_ns, end_ns = folder.read_load_report(), record.measure_start_realtime_ns, record.measure_end_realtime_ns
    if load is None or start_ns is None or end_ns is None:
        return
    began_ns = load.started_monotonic_ns + load.realtime_minus_monotonic_ns
    if not 0 <= start_ns - began_ns <= end_ns - began_ns <= layout.MAX_LOAD_NS:
        raise SpecError(
            f"{folder.path / 'run.json'}: this file is damaged, or load/load.json: its measurement is not within "
            "the load's time"
        )


def _find_java(folder: NodeFolder, record: RunRecord, java_home: Path | None) -> Java:
    try:
        recorded = from_json(Java, record.server.get("runtime"))
    except ValueError as error:
        raise SpecError(f"{folder.path / 'run.json'}: this file is damaged: server: runtime: {error}") from None
    return find_recorded(recorded, java_home)


# --- Histories: the results below a folder, the input of a trend

# Folder names by `layout.create`; a second folder in the same second gets a number.
_START = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2}Z(-[0-9]+)?")


def load_history(folder: Path) -> tuple[list[trend.DatedResult], list[str]]:
    """Return every result below the folder, and a message for each that is left out.

    Links to folders are not followed: "latest" would be a duplicate. SpecError if there is no result.
    """
    if not folder.is_dir():
        raise SpecError(f"{folder}: {layout.describe_missing_results(folder)}; give results/<experiment>")
    history: list[trend.DatedResult] = []
    left_out: list[str] = []
    for path, folders, names in os.walk(folder):
        folders.sort()
        if layout.PLAN in names:
            folders.clear()
            try:
                history.append(_load_result(Path(path)))
            except SpecError as error:
                left_out.append(f"left out: {error}")
    if not history:
        reason = "; ".join(left_out) or f"no folder with a {layout.PLAN} is in it"
        raise SpecError(f"{folder}: there are no results below it: {reason}")
    return history, left_out


def _load_result(path: Path) -> trend.DatedResult:
    """Return one results folder; SpecError if it is damaged, or if its runs have another schema."""
    results = layout.open_results(path)
    records = results.read_records().values()
    start = _start_time(path.name, records)
    if not start:
        raise SpecError(f"{path}: its start is unknown: its name is not a time, and no run was started")
    comparable = read_comparable(path)
    java = sorted({str(record.server["java"]) for record in records if record.server.get("java")})
    facts = {**comparable.facts, **({"java": " and ".join(java)} if java else {})}
    return trend.DatedResult(
        start=escaping.escape_line(start),
        experiment=escaping.escape_line(results.plan.experiment),
        results=(changes.Results(summaries=comparable.summaries, facts=facts),),
    )


def _start_time(name: str, records: Iterable[RunRecord]) -> str:
    """Return the folder's name, or the start of its first run if the folder was renamed."""
    if _START.fullmatch(name):
        return name
    first = min((record.started_utc for record in records if record.started_utc), default="")
    return first.replace(":", "-").replace("+00-00", "Z")
