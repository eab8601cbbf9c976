"""From the files of runs to summaries and reports. Repeatable at any time: it needs no root, no server, no network."""

from __future__ import annotations

from pathlib import Path

from ingest_bench import advise, jvm, network, probes, report, store, visible
from ingest_bench.analysis import cells, knees, summary
from ingest_bench.errors import SpecError
from ingest_bench.jvm.compile import classes
from ingest_bench.jvm.java import Java, again
from ingest_bench.model.experiment import Plan, Run
from ingest_bench.model.results import Measured, RunRecord, Summary
from ingest_bench.records import from_json
from ingest_bench.report import knee, tables, whatif
from ingest_bench.store import Results, RunFolder


def run_summary(
    plan: Plan, planned: Run, folder: RunFolder, record: RunRecord, java_home: Path | None = None
) -> Summary:
    """One run as one row, from its raw files. Recordings are read by the user's Java, or one of this machine."""
    found = summary.summarise(
        record,
        planned.cell,
        folder.samples(),
        folder.load_report(),
        _measured(planned, folder, record, java_home),
        experiment=plan.experiment,
        queries=folder.queries(),
    )
    return visible.summary(found)


def summaries(results: Results, java_home: Path | None = None) -> list[Summary]:
    """A row for each run that was started, in the order in which the experiment lists its levels."""
    plan, records = results.plan, results.records()
    found = [
        run_summary(plan, run, results.run(run), records[run.id], java_home) for run in plan.runs if run.id in records
    ]
    return cells.in_order(found, plan.factors)


def kept(path: Path) -> list[Summary]:
    """The rows of a results folder's summary.csv, or of such a file alone, as they were written.

    A run of the folder's plan that has no row is "planned". SpecError when the file is not there or is no summary.csv.
    """
    source = path / store.SUMMARY if path.is_dir() else path
    try:
        rows = [visible.summary(row) for row in tables.read_summary_csv(source.read_text(encoding="utf-8"))]
    except OSError as error:
        raise SpecError(f"{source}: cannot be read ({error.strerror}); give results/<experiment>/<start>") from None
    except ValueError as error:
        raise SpecError(f"{source}: {error}") from None
    if not path.is_dir():
        return rows
    plan = store.open_results(path).plan
    there = {row.run for row in rows}
    return cells.in_order([*rows, *(_planned(run) for run in plan.runs if run.id not in there)], plan.factors)


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


def write_report(results: Results, found: list[Summary]) -> tuple[Path, ...]:
    """Write everything that can be rebuilt. The paths of the pictures, the main one first."""
    ordered = cells.in_order(found, results.plan.factors)
    files = {name: content for build in report.REPORTS.values() for name, content in build(ordered).items()}
    compared = predicted(results, ordered)
    if compared:
        files["report/predicted.md"] = tables.markdown(compared, 3).encode()
        files["report/predicted.csv"] = tables.csv_text(compared).encode()
    # The knee is the main picture of a search.
    files = knee.files(knees.knees(results.plan, ordered)) | files
    results.write(files)
    return tuple(results.path / name for name in files if name.endswith(".png"))


def predicted(results: Results, found: list[Summary]) -> list[list[str]]:
    """What receive buffers were predicted to cost beside what the server counted; empty where it does not count."""
    return whatif.predicted(advise.predictions(results, found))


def reader(java: Java) -> Path:
    """The classes that read recordings, compiled once."""
    return classes(java, (Path(jvm.__file__).with_name("JfrReader.java"),))


def _measured(planned: Run, folder: RunFolder, record: RunRecord, java_home: Path | None) -> list[Measured]:
    load = folder.load_report()
    if load is None or record.measure_start_realtime_ns is None or record.measure_end_realtime_ns is None:
        return []
    if "runtime" not in record.server:
        window = record.measure_start_realtime_ns, record.measure_end_realtime_ns
        return list(probes.read_from_outside(planned.cell.probes, folder.raw, *window))
    java = _runtime(folder, record, java_home)
    context = probes.ReadContext(
        raw=folder.raw,
        start_ns=record.measure_start_realtime_ns,
        end_ns=record.measure_end_realtime_ns,
        ports=frozenset(load.local_ports),
        java=java.java,
        classes=reader(java),
    )
    return [*probes.read(planned.cell.probes, context), *network.frame_sizes(folder.raw)]


def _runtime(folder: RunFolder, record: RunRecord, java_home: Path | None) -> Java:
    """The Java that reads the run's recordings."""
    try:
        kept = from_json(Java, record.server["runtime"])
    except ValueError as error:
        raise SpecError(f"{folder.path / 'run.json'}: this file is damaged: server: runtime: {error}") from None
    return again(kept, java_home)
