"""Summary of one run: all its columns, series, stalls and notes as one row."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from ingest_bench.analysis import quantiles
from ingest_bench.analysis.run import bursts, delivery, generator, integrity, steady
from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.columns import COLUMNS, per_gb_columns
from ingest_bench.analysis.run.nodes import find_stacks
from ingest_bench.analysis.run.sample_columns import Samples, SampleSource, Window
from ingest_bench.analysis.stalls import attribution, phases, suspects
from ingest_bench.inputs import records
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import MIN_MEASURE_NS, LoadOptions
from ingest_bench.model.network import Profile
from ingest_bench.model.results import (
    CauseIntervals,
    ColumnValue,
    Counters,
    Histogram,
    InvalidReason,
    Note,
    ProbeOutput,
    Reading,
    RunRecord,
    Series,
    Stall,
    Summary,
)
from ingest_bench.model.samples import WorkerReport, describe_item_failures
from ingest_bench.model.target import TargetOptions
from ingest_bench.units import format_time

NAMES = frozenset(column.name for column in COLUMNS)
_NOT_COUNTABLE = "cannot be counted"
# Begins each note on documents that a server refused.
REFUSED = "refused documents: "
# Counters of the server for the load's connections (by peer port), by column.
_CONNECTION_COUNTERS = {
    "sink_reads": "reads",
    "sink_bytes_read": "bytes_read",
    "sink_buffers": "buffers_allocated",
    "sink_buffer_bytes": "buffer_bytes_allocated",
}
_READ_COLUMNS = ("bytes_read", "reads", "read_bytes_mean", "read_bytes_p50", "read_bytes_p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """Everything that was recorded about one run."""

    record: RunRecord
    cell: Cell
    samples: SampleSource
    report: WorkerReport | None
    outputs: Sequence[ProbeOutput]
    """Probe outputs, combined over the nodes."""
    experiment: str = ""
    queries: SampleSource | None = None
    cpu: Sequence[Samples] = ()
    """CPU marks of each worker process."""
    loop_stalls: Sequence[Samples] = ()
    """Event-loop stalls of each worker process."""
    reads: Samples | None = None
    """The server's reads of the load's connections, if recorded."""
    nodes: Sequence[Mapping[str, ColumnValue]] = ()
    """Columns of each node."""
    delivered: Mapping[str, ColumnValue] | None = None
    """Columns of `delivery.delivery_columns`, if documents could be read back."""
    changed_files: Sequence[str] = ()
    """A sentence for each raw file that was changed after the run."""


@dataclass(slots=True)
class _LoadResults:
    """Results of the load's samples and report; empty without a report."""

    values: dict[str, ColumnValue] = field(default_factory=dict)
    series: dict[str, Series] = field(default_factory=dict)
    stalls: tuple[Stall, ...] = ()
    notes: list[Note] = field(default_factory=list)
    busy: generator.WorkerCpu | None = None


def summarise(inputs: RunInputs) -> Summary:
    """Return one run as a row: a value for each column, None if a number is unavailable.

    A measured run that fails its integrity checks (`integrity.find_invalid_reasons`) becomes invalid, with all reasons.
    Its values are kept for diagnosis; tables and plots leave them out.
    """
    inputs = dataclasses.replace(inputs, report=_cut_at_out_of_memory(inputs.report, inputs.record))
    record, (start_ns, end_ns) = inputs.record, _measurement(inputs)
    histograms = {item.name: item.counts for item in inputs.outputs if isinstance(item, Histogram)}
    results = _LoadResults() if inputs.report is None else _evaluate_load(inputs, inputs.report)
    values: dict[str, ColumnValue] = dict.fromkeys(column.name for column in COLUMNS)
    values |= {**_condition_columns(record, inputs.cell), **results.values}
    values |= {**record.link, **quantiles.size_columns(histograms)}
    values |= {item.name: item.value for item in inputs.outputs if isinstance(item, Reading)}
    # JFR does not see the reads of native epoll and of asynchronous channels: its zeros are then unknown values.
    if values["bytes_read"] == 0 and values["documents_acked"]:
        values |= dict.fromkeys(_READ_COLUMNS)
        histograms.pop("read_bytes", None)
    values |= flush_columns(record.counters, start_ns, end_ns)
    values |= integrity.lost_documents(record.faults, values)
    values |= delivery.server_columns(record, inputs.cell.target.nodes, start_ns, end_ns)
    values |= inputs.delivered or {}
    notes = (
        *(item for item in inputs.outputs if isinstance(item, Note)),
        *results.notes,
        *(Note(source="load", text=text) for text in (*delivery.describe_losses(values), *_describe_state(inputs))),
    )
    reasons = _find_invalid_reasons(inputs, results, values, notes) if record.state == "measured" else []
    values |= per_gb_columns(values)
    if unknown := sorted(values.keys() - NAMES):
        raise LookupError(f"values without a column: {', '.join(unknown)}")
    return Summary(
        run=record.run,
        cell=record.cell,
        replicate=record.replicate,
        levels=record.levels,
        instrumented=record.instrumented,
        state="invalid" if reasons else record.state,
        reason="; ".join(filter(None, (record.reason, *(reason.text for reason in reasons)))),
        invalid_for=tuple(reason.kind for reason in reasons),
        values=values,
        histograms=histograms,
        series={item.name: item for item in inputs.outputs if isinstance(item, Series)} | results.series,
        experiment=inputs.experiment,
        measure_start_ns=start_ns,
        measure_end_ns=end_ns,
        faults=record.faults,
        notes=notes,
        nodes=tuple(dict(row) for row in inputs.nodes),
        stalls=results.stalls,
        stacks=find_stacks(inputs.outputs) or {},
    )


def _evaluate_load(inputs: RunInputs, report: WorkerReport) -> _LoadResults:
    record, cell, samples = inputs.record, inputs.cell, inputs.samples
    window = load.measurement_window(report)
    # A worker without a report took its samples with it: without any sample the totals are unknown.
    values: dict[str, ColumnValue] = dict(load.document_totals(samples)) if len(samples) else {}
    values["bytes_sent"] = report.bytes_written
    if record.out_of_memory_realtime_ns is not None:
        started_ns = report.started_monotonic_ns + report.realtime_minus_monotonic_ns
        after_s = (record.out_of_memory_realtime_ns - started_ns) / 1e9
        values |= {"out_of_memory": record.out_of_memory, "out_of_memory_after_s": after_s}
    values |= {**server_count_columns(record.counters, report.local_ports), **load.load_columns(samples, window)}
    if record.faults and len(samples):
        offset_ns = report.realtime_minus_monotonic_ns
        rate = load.smooth_docs_per_s(samples, report)
        values["recovery_s"] = integrity.recovery_s(
            rate, record.faults, window.start_ns + offset_ns, window.end_ns + offset_ns
        )
    if inputs.queries is not None:
        values |= load.query_columns(inputs.queries, window)
    median_ms = values["response_ms_p50"]
    busy = generator.busiest_worker(inputs.cpu, window)
    values |= {**generator.generator_columns(report, busy), **steady.steady_columns(samples, report)}
    values |= generator.closed_loop_columns(samples, window, report, median_ms)
    values |= generator.window_columns(samples, report)
    causes = [
        *suspects.fault_causes(record.faults, report.measure_end_ns + report.realtime_minus_monotonic_ns),
        *(item for item in inputs.outputs if isinstance(item, CauseIntervals)),
        *suspects.generator_causes(inputs.loop_stalls, report),
    ]
    is_burst = cell.load.arrivals.shape == "burst"
    stalls = attribution.find_stalls(samples, report, median_ms, causes, inputs.reads, has_idle_spans=is_burst)
    if is_burst:
        # A second without a due request is no outage.
        spread = bursts.spread_column(samples, report, cell.load.arrivals.period_ns)
        values |= {"zero_throughput_s": None, **spread}
    values |= {**attribution.stall_columns(stalls), **phases.phase_columns(samples, report, inputs.reads)}
    texts = [
        *(f"{REFUSED}{text}" for text in describe_item_failures(report.item_failures, report.item_reasons)),
        _describe_short_measurement(record, cell, window),
        load.describe_differing_addresses(samples, report),
        generator.describe_loop_lag(report, median_ms),
        generator.describe_hidden_waiting(values, window.length_s),
    ]
    # Faults disturb on purpose, and other arrivals change the load: neither is expected to be steady.
    if not record.faults and cell.load.arrivals.shape in ("closed", "constant", "poisson"):
        texts.append(steady.describe_steadiness(values, is_automatic=cell.load.warm_up_ns == "auto"))
    notes = [
        *(Note(source="load", text=text) for text in texts if text),
        *attribution.note_stalls(stalls, report, samples, cell),
    ]
    return _LoadResults(values, load.load_series(samples, report), stalls, notes, busy)


def _find_invalid_reasons(
    inputs: RunInputs, results: _LoadResults, values: Mapping[str, ColumnValue], notes: Iterable[Note]
) -> list[InvalidReason]:
    report = inputs.report
    reasons = [InvalidReason("files", text) for text in inputs.changed_files]
    is_encrypted = inputs.cell.target.is_encrypted
    reasons += integrity.find_invalid_reasons(
        inputs.record, inputs.samples, report, values, inputs.queries, is_encrypted=is_encrypted
    )
    # With the sink, whose work costs nothing, the generator is always the limit: that is the purpose of the sink.
    if report is not None and _server_name(inputs.record, inputs.cell.target) != "sink":
        limit = generator.describe_generator_limit(report, results.busy, values["response_ms_p50"])
        reasons += [InvalidReason("generator", limit)] if limit else []
    return reasons + [InvalidReason("probe", f"probe {note.source}: {note.text}") for note in notes if note.invalidates]


def _condition_columns(record: RunRecord, cell: Cell) -> dict[str, ColumnValue]:
    """Return the columns that describe the conditions of a run, and the number of its documents."""
    options = cell.target
    version = record.server.get("version") or options.version
    name = _server_name(record, options)
    predictor, is_uncounted = options.receive_predictor_bytes, record.documents_counted is None
    # A launched JVM may round the size up, and collectors with survivor spaces report less than the whole.
    heap_bytes = record.server.get("heap_bytes")
    return {
        "network": " ".join([cell.network.name, *_network_overrides(cell.levels)]) if cell.network else "as-is",
        "netem_backend": record.netem_backend or None,
        "target": f"{name} {version}" if version else name,
        "java": record.server.get("java"),
        "workload": workload_name(cell),
        "receive_predictor_bytes": "..".join(map(str, predictor))
        if len(predictor) > 1
        else next(iter(predictor), None),
        "heap_bytes": heap_bytes if options.is_already_running else max(options.heap_bytes, heap_bytes or 0),
        "documents_counted": record.documents_counted,
        "documents_check": None if record.state != "measured" else _NOT_COUNTABLE if is_uncounted else "counted",
    }


def _server_name(record: RunRecord, options: TargetOptions) -> str:
    """Return the kind of server; a server that was already running reports its own."""
    if not options.is_already_running:
        return options.name
    return str(record.server.get("name", options.location))


def workload_name(cell: Cell) -> str:
    """Return the name of the workload, track or file that was sent."""
    path = cell.load.track.path if cell.load.track else cell.load.documents
    return PurePath(path or cell.load.workload).name


def _network_overrides(levels: Mapping[str, str]) -> list[str]:
    # A key may be written without its table ("mtu"); the target's and the load's keys take precedence.
    network_keys, *others = (set(records.fields_by_key(table)) for table in (Profile, TargetOptions, LoadOptions))
    network_keys = network_keys.difference(*others)
    return [
        f"{key.removeprefix('network.')}={level}"
        for key, level in levels.items()
        if (key.startswith("network.") and key != "network.profile") or key.split(".")[0] in network_keys
    ]


def server_count_columns(counters: Counters, ports: Sequence[int]) -> dict[str, ColumnValue]:
    """Return the server's own counters, in total or for the connections from *ports*; empty if it has none."""
    columns: dict[str, ColumnValue] = {}
    if isinstance(allocations := counters.get("direct_allocations"), int):
        columns["server_direct_allocations"] = allocations
    by_port = counters.get("by_peer_port")
    if isinstance(by_port, dict):
        connections = [by_port.get(str(port), {}) for port in ports]
        for column, key in _CONNECTION_COUNTERS.items():
            columns[column] = sum(connection.get(key, 0) for connection in connections)
    return columns


def flush_columns(counters: Counters, start_ns: int | None, end_ns: int | None) -> dict[str, ColumnValue]:
    """Return the server's own flushes and compactions within the measurement; empty if it reports none."""
    flushes, compactions = counters.get("flushes"), counters.get("compactions")
    if not isinstance(flushes, dict) or not isinstance(compactions, dict) or start_ns is None or end_ns is None:
        return {}
    sizes = [flush["bytes"] for flush in flushes.values() if start_ns <= flush["at_ns"] < end_ns]
    return {
        "flushes": len(sizes),
        "flush_bytes_mean": sum(sizes) / len(sizes) if sizes else None,
        "compactions": sum(start_ns <= compaction["at_ns"] < end_ns for compaction in compactions.values()),
    }


def _cut_at_out_of_memory(report: WorkerReport | None, record: RunRecord) -> WorkerReport | None:
    """Return the report with the measurement of the record: the load continued after the server ran out of memory."""
    start_ns, end_ns = record.measure_start_realtime_ns, record.measure_end_realtime_ns
    if report is None or record.state != "oom" or start_ns is None or end_ns is None:
        return report
    offset_ns = report.realtime_minus_monotonic_ns
    return dataclasses.replace(report, warm_up_end_ns=start_ns - offset_ns, measure_end_ns=end_ns - offset_ns)


def _measurement(inputs: RunInputs) -> tuple[int | None, int | None]:
    """Return start and end of the measurement on CLOCK_REALTIME."""
    record, report = inputs.record, inputs.report
    if report is None:
        return record.measure_start_realtime_ns, record.measure_end_realtime_ns
    offset_ns = report.realtime_minus_monotonic_ns
    return report.warm_up_end_ns + offset_ns, report.measure_end_ns + offset_ns


def _describe_short_measurement(record: RunRecord, cell: Cell, window: Window) -> str:
    """Describe that `measure_documents` ended the measurement too early; "" if it did not."""
    length_ns = window.end_ns - window.start_ns
    if record.state != "measured" or cell.load.measure_documents is None or length_ns >= MIN_MEASURE_NS:
        return ""
    length, shortest = format_time(length_ns), format_time(MIN_MEASURE_NS)
    return f"the measurement lasted {length}; less than {shortest} is not meaningful: measure more documents"


def _describe_state(inputs: RunInputs) -> Iterator[str]:
    """Yield messages about a measured run whose server cannot be counted, or ran out of memory."""
    record = inputs.record
    if record.state != "measured":
        return
    if record.documents_counted is None:
        name = _server_name(record, inputs.cell.target)
        yield f"{name} {_NOT_COUNTABLE}: it was not checked that it has the documents that it acknowledged"
    if record.out_of_memory:
        yield f"the server continued after an OutOfMemoryError: {record.reason}"
