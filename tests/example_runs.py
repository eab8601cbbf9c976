"""Synthetic runs: samples, reports, probe outputs, records, and results folders of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from ingest_bench.analysis.run.sample_columns import Samples
from ingest_bench.analysis.run.summary import RunInputs
from ingest_bench.experiment import spec
from ingest_bench.inputs import files, records
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Profile
from ingest_bench.model.results import Histogram, ProbeOutput, Reading, RunRecord
from ingest_bench.model.samples import CPU_MARK, OUTCOMES, SAMPLE, WorkerReport
from ingest_bench.model.target import TargetOptions
from ingest_bench.network.measure import tcp_info
from ingest_bench.network.measure.wire import TcpSnapshot, WireRecord
from ingest_bench.results import layout

SECOND = 10**9
START = 1_000 * SECOND  # of the worker, CLOCK_MONOTONIC
OFFSET = 1_700_000_000 * SECOND
WARM_UP_S, MEASURE_S = 2, 5


def cell(**changed: Any) -> Cell:
    levels = {"network.profile": "ethernet", "target.receive_predictor": "512KiB"}
    target = TargetOptions(name="opensearch", receive_predictor_bytes=(524288,))
    fields: dict[str, Any] = {"network": Profile(name="ethernet"), "target": target, "load": LoadOptions()}
    return Cell(**({"name": "ethernet-512KiB", "levels": levels} | fields | changed))


def record(**changed: Any) -> RunRecord:
    levels = {"network.profile": "ethernet", "target.receive_predictor": "512KiB"}
    fields: dict[str, Any] = {"state": "measured", "documents_counted": 7000, "server": {"version": "2.19.6"}}
    fields |= {"run": "ethernet-512KiB/0", "replicate": 0, "cell": "ethernet-512KiB", "levels": levels}
    return RunRecord(**(fields | changed))


def sample(planned_s: float, done_s: float, **changed: Any) -> dict[str, int]:
    """Return a request of 100 documents and 50,000 bytes; seconds from the start of the load."""
    row = {
        "scheduled_ns": START + round(planned_s * SECOND),
        "sent_ns": START + round(planned_s * SECOND),
        "written_ns": START + round(planned_s * SECOND),
        "first_byte_ns": START + round(done_s * SECOND),
        "done_ns": START + round(done_s * SECOND),
        "bytes_sent": 50_000,
        "documents": 100,
        "documents_acked": 100,
        "documents_failed": 0,
        "attempts": 1,
        "status": 200,
        "outcome": 0,
        "user": 0,
        "address": 0,
        "local_port": 40000,
        "bytes_unanswered": 0,
    }
    if "outcome" in changed:
        changed["outcome"] = OUTCOMES.index(changed["outcome"])
        row["documents_acked"] = 0
    row |= changed
    if row["outcome"] >= OUTCOMES.index("http-error"):
        row["bytes_unanswered"] = changed.get("bytes_unanswered", row["bytes_sent"])
    return row


def samples(rows: list[dict[str, int]]) -> Samples:
    records = np.zeros(len(rows), dtype=SAMPLE)
    for number, row in enumerate(rows):
        for name, value in row.items():
            records[name][number] = value
    return records


def timed(scheduled_s: Any, done_s: Any) -> Samples:
    """Return a request for each pair of times, in seconds from the start of the load."""
    rows = samples([sample(0, 0)]).repeat(len(done_s))
    scheduled_ns, done_ns = (
        START + (np.asarray(times_s) * SECOND).astype(np.int64) for times_s in (scheduled_s, done_s)
    )
    rows["scheduled_ns"] = rows["sent_ns"] = rows["written_ns"] = scheduled_ns
    rows["done_ns"] = rows["first_byte_ns"] = done_ns
    return rows


def steady() -> Samples:
    """Return ten requests a second for the whole load: 1000 documents/s, responses after 10 ms."""
    return samples([sample(n / 10, n / 10 + 0.01) for n in range((WARM_UP_S + MEASURE_S) * 10)])


def queued(due_per_s: int, answered_per_s: int, seconds: int) -> Samples:
    """Return an open loop against a server with a queue, which processes documents one by one at its own rate."""
    due_s = np.arange(due_per_s * seconds) / due_per_s
    answer_s = 1 / answered_per_s
    # A response comes a service time after the previous one, or after the request was due, whichever is later.
    place = np.arange(1, len(due_s) + 1) * answer_s
    done_s = place + np.maximum.accumulate(due_s - place + answer_s)
    return timed(due_s, done_s)


def report(**changed: Any) -> WorkerReport:
    fields: dict[str, Any] = {
        "started_monotonic_ns": START,
        "realtime_minus_monotonic_ns": OFFSET,
        "warm_up_end_ns": START + WARM_UP_S * SECOND,
        "measure_end_ns": START + (WARM_UP_S + MEASURE_S) * SECOND,
        "bytes_written": 70 * 50_000,
        "local_ports": (40000,),
        "item_failures": {},
        "cpu_ns": SECOND,
        "loop_lag_p99_ns": 1000,
        "errors": (),
    }
    return WorkerReport(**(fields | changed))


def cpu(*shares: float) -> Samples:
    """Return the CPU marks of a process that used these shares of a core in successive seconds."""
    at_ns = START + np.arange(len(shares) + 1) * SECOND
    used_ns = np.round(np.cumsum([0.0, *shares]) * SECOND)
    marks = np.zeros(len(at_ns), dtype=CPU_MARK)
    marks["at_ns"], marks["user_ns"], marks["system_ns"] = at_ns, used_ns // 4, used_ns - used_ns // 4
    return marks


def tcp_connection(**changed: Any) -> tcp_info.Connection:
    """Return the kernel's data about a connection on which nothing has happened yet."""
    return dataclasses.replace(tcp_info.parse_tcp_info(40000, 9200, bytes(tcp_info.INFO_BYTES)), **changed)


def wire_record(*snapshots: TcpSnapshot) -> WireRecord:
    """Return the record of a watcher that observed connections, and no frames."""
    return WireRecord(frames={}, sampled_frames=0, tcp=snapshots)


def measured(**changed: Any) -> list[ProbeOutput]:
    readings = {"bytes_read": 70 * 50_000, "gc_pauses": 3, "gc_pause_ms_total": 12.5, "full_gcs": 0} | changed
    return [
        *(Reading(name, value) for name, value in readings.items()),
        Histogram("read_bytes", {1448: 60, 65536: 40}),
    ]


def inputs(**changed: Any) -> RunInputs:
    fields: dict[str, Any] = {"record": record(), "cell": cell(), "samples": steady(), "report": report()}
    return RunInputs(**(fields | {"outputs": measured()} | changed))


def write_results(folder: Path, experiment: str, **changed: Any) -> layout.Results:
    """Write the results folder of an experiment (TOML) whose runs are measured; *changed*: fields of their records."""
    (folder / "x.toml").write_text(experiment)
    results = layout.create_results(
        folder / "results", spec.build_plan(spec.load_experiment(str(folder / "x.toml"))), {}
    )
    load = report()
    for run in results.plan.runs:
        fields = {"run": run.id, "cell": run.cell.name, "replicate": run.replicate, "levels": run.cell.levels}
        fields["measure_start_realtime_ns"] = load.warm_up_end_ns + load.realtime_minus_monotonic_ns
        fields["measure_end_realtime_ns"] = load.measure_end_ns + load.realtime_minus_monotonic_ns
        run_folder = results.run_folder(run)
        run_folder.create()
        run_folder.write_record(record(**(fields | changed)))
        files.write_json(run_folder.load / "load.json", records.to_json(load))
        steady().tofile(run_folder.load / "samples-0.bin")
    return results
