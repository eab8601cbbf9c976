"""One run as one row."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from ingest_bench.analysis.numbers import histogram
from ingest_bench.analysis.run import (
    closed_loop,
    delivery,
    generator_health,
    integrity,
    over_time,
    per_gb,
    recovery,
    steady,
)
from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.analysis.run.nodes import stacks
from ingest_bench.analysis.run.sample_columns import Samples, Tickets, Window
from ingest_bench.analysis.stalls import attribution, phases, sentences, sources
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import LEAST_NS, LoadOptions, WorkerReport
from ingest_bench.model.network import Profile
from ingest_bench.model.results import (
    Counters,
    Histogram,
    Measured,
    Reading,
    Reason,
    Remark,
    RunRecord,
    Series,
    Stall,
    Summary,
    Value,
)
from ingest_bench.model.target import TargetOptions
from ingest_bench.units import format_time

NAMES = frozenset(column.name for column in COLUMNS)
_CANNOT_BE_COUNTED = "cannot be counted"
_OWN = {
    "sink_reads": "reads",
    "sink_bytes_read": "bytes_read",
    "sink_buffers": "buffers_allocated",
    "sink_buffer_bytes": "buffer_bytes_allocated",
}
# The same, of all connections together.
_OWN_IN_ALL = {"server_direct_allocations": "direct_allocations"}


def summarise(
    record: RunRecord,
    cell: Cell,
    samples: Tickets,
    report: WorkerReport | None,
    measured: Iterable[Measured],
    *,
    experiment: str = "",
    queries: Tickets | None = None,
    cpu: Sequence[Samples] = (),
    standstills: Sequence[Samples] = (),
    reads: Samples | None = None,
    nodes: Sequence[Mapping[str, Value]] = (),
    delivered: Mapping[str, Value] | None = None,
    changed_files: Sequence[str] = (),
) -> Summary:
    """Everything that is known of one run: a value for each column, None where a number is unavailable.

    `delivered` is what became of its documents, where the server could be read back (`delivery.values`); `reads` are
    the server's reads of the load's connections, where they were seen.
    `changed_files`: a sentence for each raw file that is not what the run left.

    A measured run whose integrity is broken (`integrity.verdict`) comes back as invalid, with all reasons. Its values
    stay in it for whoever looks for the cause; tables and plots leave them out.
    """
    measured = tuple(measured)
    readings, histograms, series = _sorted(measured)
    remarks = tuple(item for item in measured if isinstance(item, Remark))
    found: tuple[Stall, ...] = ()
    values: dict[str, Value] = dict.fromkeys(column.name for column in COLUMNS)
    values |= conditions(record, cell)
    values["documents_counted"] = record.documents_counted
    if record.state == "measured":
        values["documents_check"] = _CANNOT_BE_COUNTED if record.documents_counted is None else "counted"
    if values["documents_check"] == _CANNOT_BE_COUNTED:
        text = f"{_server(record, cell.target)} {_CANNOT_BE_COUNTED}: nobody checked that it has what it acknowledged"
        remarks += (Remark(probe="load", text=text),)
    report = _cut(report, record)
    busy = None
    if report is not None:
        # A worker that ended without a report took samples with it: nobody knows the totals.
        values |= (load.totals(samples) if len(samples) else {}) | {"bytes_sent": report.bytes_written}
        values |= _out_of_memory(record, report) | own_counts(record.counters, report.local_ports)
        values |= load.measured(samples, load.window_of(report))
        if queries is not None:
            values |= load.queried(queries, load.window_of(report))
        busy = generator_health.busiest(cpu, load.window_of(report))
        values |= {**generator_health.values(report, busy), **steady.values(samples, report)}
        values |= closed_loop.values(samples, load.window_of(report), report, values["response_ms_p50"])
        series |= over_time.series(samples, report)
        causes = sources.watched(measured, record.faults, standstills, report)
        found = attribution.of_load(samples, report, values["response_ms_p50"], causes, reads)
        values |= {**attribution.values(found), **phases.values(samples, report, reads)}
        remarks += (
            *_ended_at_once(record, cell, load.window_of(report)),
            *load.differing_addresses(samples, report),
            *generator_health.remarks(report, values["response_ms_p50"]),
            *closed_loop.remarks(values, load.window_of(report)),
            *sentences.remarks(found, report, samples, cell),
        )
        # A fault is meant to disturb, and a step load is not steady.
        if not record.faults and cell.load.arrivals.shape in ("closed", "constant", "poisson"):
            remarks += tuple(steady.remarks(values, sought=cell.load.warm_up_ns == "auto"))
    values |= {**record.link, **histogram.sizes(histograms), **readings}
    blind = _blind(values)
    values |= dict.fromkeys(blind)
    start_ns, end_ns = _window(record, report)
    values |= written(record.counters, start_ns, end_ns)
    values |= recovery.lost(record.faults, values)
    values |= delivery.own(record, cell.target.nodes, start_ns, end_ns) | dict(delivered or {})
    remarks += tuple(Remark(probe="load", text=text) for text in (*delivery.remarks(values), *_survived(record)))
    if record.faults and report is not None and len(samples) and start_ns is not None and end_ns is not None:
        rate = over_time.smooth_docs_per_s(samples, report)
        values["recovery_s"] = recovery.recovery_s(rate, record.faults, start_ns, end_ns)
    reasons: list[Reason] = []
    if record.state == "measured":
        reasons = [Reason("files", text) for text in changed_files]
        reasons += integrity.verdict(record, samples, report, values, queries)
        # Without a server that costs anything the generator is always the limit: that is what the sink is for.
        if report is not None and _server(record, cell.target) != "sink":
            reasons += generator_health.generator_bound(report, busy, values["response_ms_p50"])
        said = (f"probe {remark.probe}: {remark.text}" for remark in remarks if remark.invalidates)
        reasons += (Reason("probe", text) for text in said)
    return Summary(
        run=record.run,
        cell=record.cell,
        replicate=record.replicate,
        levels=record.levels,
        instrumented=record.instrumented,
        state="invalid" if reasons else record.state,
        reason="; ".join(filter(None, (record.reason, *(each.text for each in reasons)))),
        invalid_for=tuple(each.kind for each in reasons),
        values=_in_columns({**values, **per_gb.shares(values)}),
        histograms={name: counts for name, counts in histograms.items() if not (blind and name == "read_bytes")},
        series=series,
        experiment=experiment,
        measure_start_ns=start_ns,
        measure_end_ns=end_ns,
        faults=record.faults,
        remarks=remarks,
        nodes=tuple(dict(values) for values in nodes),
        stalls=found,
        stacks=stacks(measured) or {},
    )


def conditions(record: RunRecord, cell: Cell) -> dict[str, Value]:
    """The columns that say what was asked for."""
    options = cell.target
    version = record.server.get("version") or options.version
    name = _server(record, options)
    return {
        "network": " ".join([cell.network.name, *_overrides(cell.levels)]) if cell.network else "as-is",
        "netem_backend": record.netem_backend or None,
        "target": f"{name} {version}" if version else name,
        "java": record.server.get("java"),
        "workload": sent(cell),
        "receive_predictor_bytes": _predictor(options.receive_predictor_bytes),
        "heap_bytes": record.server.get("heap_bytes") if options.runs_already else options.heap_bytes,
    }


def _in_columns(values: dict[str, Value]) -> dict[str, Value]:
    """The same; LookupError where one has no column: no table would show it."""
    if unknown := sorted(values.keys() - NAMES):
        raise LookupError(f"values without a column: {', '.join(unknown)}")
    return values


def sent(cell: Cell) -> str:
    """What was sent: the name of a workload, of a track or of a file."""
    path = cell.load.track.path if cell.load.track else cell.load.documents
    return PurePath(path or cell.load.workload).name


def _server(record: RunRecord, options: TargetOptions) -> str:
    """What kind of server it was: one that ran already says it itself."""
    if not options.runs_already:
        return options.name
    return str(record.server.get("name", options.url or f"pid {options.attach}"))


def own_counts(counters: Counters, ports: Sequence[int]) -> dict[str, Value]:
    """What the server counted itself, on the connections from these ports or in all; nothing where it does not."""
    values: dict[str, Value] = {}
    for column, key in _OWN_IN_ALL.items():
        if isinstance(count := counters.get(key), int):
            values[column] = count
    by_port = counters.get("by_peer_port")
    if isinstance(by_port, dict):
        found = [by_port.get(str(port), {}) for port in ports]
        values |= {column: sum(one.get(key, 0) for one in found) for column, key in _OWN.items()}
    return values


def written(counters: Counters, start_ns: int | None, end_ns: int | None) -> dict[str, Value]:
    """The server's own flushes and compactions within the measurement; nothing where it does not tell them."""
    flushes, compactions = counters.get("flushes"), counters.get("compactions")
    if not isinstance(flushes, dict) or not isinstance(compactions, dict) or start_ns is None or end_ns is None:
        return {}
    sizes = [one["bytes"] for one in flushes.values() if start_ns <= one["at_ns"] < end_ns]
    return {
        "flushes": len(sizes),
        "flush_bytes_mean": sum(sizes) / len(sizes) if sizes else None,
        "compactions": sum(start_ns <= one["at_ns"] < end_ns for one in compactions.values()),
    }


def _overrides(levels: Mapping[str, str]) -> list[str]:
    # A key may be written without its table ("mtu"); the target's and the load's names come before the network's.
    own = _keys(Profile) - _keys(TargetOptions) - _keys(LoadOptions)
    return [
        f"{key.removeprefix('network.')}={level}"
        for key, level in levels.items()
        if (key.startswith("network.") and key != "network.profile") or key.split(".")[0] in own
    ]


def _keys(record: type) -> set[str]:
    units = r"_(ns|bytes|bps|ppm)$"
    return {re.sub(units, "", field.name) for field in dataclasses.fields(record)}


def _predictor(sizes: tuple[int, ...]) -> Value:
    if len(sizes) > 1:
        return "..".join(map(str, sizes))
    return sizes[0] if sizes else None


def _sorted(measured: Iterable[Measured]) -> tuple[dict[str, Value], dict[str, dict[int, int]], dict[str, Series]]:
    readings: dict[str, Value] = {}
    histograms: dict[str, dict[int, int]] = {}
    series: dict[str, Series] = {}
    for item in measured:
        if isinstance(item, Reading):
            readings[item.name] = item.value
        elif isinstance(item, Histogram):
            histograms[item.name] = item.counts
        elif isinstance(item, Series):
            series[item.name] = item
    return readings, histograms, series


def _blind(values: Mapping[str, Value]) -> tuple[str, ...]:
    """The read columns, when the probe saw no byte although documents were acknowledged: it looked at the wrong place.

    JFR does not see reads of native epoll or of asynchronous channels. That is no number, and not zero.
    """
    if values["bytes_read"] == 0 and values["documents_acked"]:
        return ("bytes_read", "reads", "read_bytes_mean", "read_bytes_p50", "read_bytes_p99")
    return ()


def _cut(report: WorkerReport | None, record: RunRecord) -> WorkerReport | None:
    """A load goes on for a while after its server ended out of memory: the measurement is what was before."""
    start_ns, end_ns = record.measure_start_realtime_ns, record.measure_end_realtime_ns
    if report is None or record.state != "oom" or start_ns is None or end_ns is None:
        return report
    offset_ns = report.realtime_minus_monotonic_ns
    return dataclasses.replace(report, warm_up_end_ns=start_ns - offset_ns, measure_end_ns=end_ns - offset_ns)


def _out_of_memory(record: RunRecord, report: WorkerReport) -> dict[str, Value]:
    if record.out_of_memory_realtime_ns is None:
        return {}
    started_ns = report.started_monotonic_ns + report.realtime_minus_monotonic_ns
    after_s = (record.out_of_memory_realtime_ns - started_ns) / 1e9
    return {"out_of_memory": record.out_of_memory, "out_of_memory_after_s": after_s}


def _ended_at_once(record: RunRecord, cell: Cell, window: Window) -> Iterator[Remark]:
    """That a measurement shows nothing which a number of documents ended that soon."""
    length_ns = window.end_ns - window.start_ns
    if record.state == "measured" and cell.load.measure_documents is not None and length_ns < LEAST_NS:
        lasted, shortest = format_time(length_ns), format_time(LEAST_NS)
        text = f"the measurement lasted {lasted}, and one of less than {shortest} shows nothing: measure more documents"
        yield Remark(probe="load", text=text)


def _survived(record: RunRecord) -> tuple[str, ...]:
    """That the server lived on after an OutOfMemoryError, where it did."""
    lived_on = record.state == "measured" and record.out_of_memory
    return (f"the server had an OutOfMemoryError and lived on: {record.reason}",) if lived_on else ()


def _window(record: RunRecord, report: WorkerReport | None) -> tuple[int | None, int | None]:
    if report is None:
        return record.measure_start_realtime_ns, record.measure_end_realtime_ns
    offset_ns = report.realtime_minus_monotonic_ns
    return report.warm_up_end_ns + offset_ns, report.measure_end_ns + offset_ns
