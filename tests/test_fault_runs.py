"""Faults of JVMs and clients in whole runs, on the sink and on a persistent server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_run import carried_out

from ingest_bench.faults import misbehaving
from ingest_bench.model.results import FaultRecord, RunRecord

# With scheduled arrivals, the CPU serves what the test measures, and not an unlimited load.
LOAD = """
[load]
workload = "nyc_taxis"
users = 2
bulk_documents = 200
arrivals = "25/s"
warm_up = "1s"
measure = "{seconds}s"
[target]
name = "{name}"
heap = "512m"
"""


def run_measured(folder: Path, text: str) -> tuple[RunRecord, dict[str, Any]]:
    """Return the record and the values of a measured run."""
    results, (summary,) = carried_out(folder, text)
    assert summary.state == "measured", summary.reason
    (record,) = results.read_records().values()
    return record, dict(summary.values)


def index_faults(record: RunRecord) -> dict[str, FaultRecord]:
    assert all(fault.end_ns is not None and fault.end_ns > fault.start_ns for fault in record.faults)
    return {fault.kind: fault for fault in record.faults}


@pytest.mark.ordinary
@pytest.mark.jvm
@pytest.mark.netns
def test_jvm_collects_dumps_its_heap_and_has_few_descriptors_under_load(tmp_path: Path) -> None:
    text = 'probes = ["gc"]' + LOAD.format(name="sink", seconds=9) + '[[fault]]\nkind = "gc"\nat = "1s"\n'
    text += '[[fault]]\nkind = "heap-dump"\nat = "3s"\n[[fault]]\nkind = "file-descriptors"\nat = "6s"\nfor = "2s"\n'
    text += '[[fault]]\nkind = "pause"\nat = "7s"\nfor = "500ms"\n'
    # The folders of cells are named after levels: "users=2".
    text += "[factors]\nusers = [2]\n"
    record, values = run_measured(tmp_path, text)
    faults = index_faults(record)
    assert faults["gc"].effect.startswith("node 1: collected within ")
    assert faults["heap-dump"].effect.startswith("node 1: ")
    assert " MB within " in faults["heap-dump"].effect
    assert faults["file-descriptors"].effect.startswith("node 1: 4 free next to ")
    # A dump of live objects collects first.
    assert values["full_gcs"] == 2
    assert values["documents_counted"] == values["documents_acked"]
    assert not list(tmp_path.rglob("*.hprof"))


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.parametrize(
    "kind",
    # The kernel must do these two for an ordinary user too.
    [
        pytest.param(kind, marks=[pytest.mark.ordinary] if kind in ("half-open", "syn-flood") else [])
        for kind in misbehaving.MISBEHAVING_CLIENTS
    ],
)
def test_load_stays_exact_next_to_misbehaving_clients(tmp_path: Path, kind: str) -> None:
    text = 'probes = ["reads"]' + LOAD.format(name="sink", seconds=5)
    text += f'[[fault]]\nkind = "{kind}"\nat = "1s"\nfor = "3s"\nconnections = 8\n'
    record, values = run_measured(tmp_path, text)
    effect = index_faults(record)[kind].effect
    opened = int(effect.removeprefix("node 1: ").split(" connections")[0])
    assert opened >= 8
    assert (opened == 8) == (kind in ("slow-bodies", "zero-window", "half-open", "syn-flood"))
    assert (", 8 of them held by the server at the end" in effect) == (kind in ("half-open", "syn-flood"))
    # A client that continues to send after the response 413 may get a reset instead.
    assert (" closed by the server" in effect or " responses 413" in effect) == (kind in ("oversized", "garbage"))
    assert (" closed windows at a time" in effect) == (kind == "zero-window")
    assert values["bytes_read"] == values["bytes_sent"]
    assert values["documents_counted"] == values["documents_acked"]
    assert values["requests_failed"] == 0


@pytest.mark.nightly
@pytest.mark.opensearch
@pytest.mark.netns
def test_killed_node_returns_with_all_acknowledged_documents(tmp_path: Path) -> None:
    text = LOAD.format(name="opensearch", seconds=60)
    record, values = run_measured(tmp_path, text + '[[fault]]\nkind = "kill"\nat = "5s"\nfor = "1s"\n')
    (kill,) = record.faults
    assert kill.end_ns is not None
    assert kill.end_ns - kill.start_ns > 10**9
    assert kill.effect.startswith("node 1: ready ")
    acked, failed = values["documents_acked"], values["requests_failed"]
    assert failed >= 1
    assert acked <= values["documents_counted"] <= acked + 200 * failed
    assert values["lost_documents"] == 0
    # The log continues: it has two starts.
    assert (next(tmp_path.rglob("server.log"))).read_text().count("] started") == 2


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_load_is_affected_once_its_connections_break(tmp_path: Path) -> None:
    text = LOAD.format(name="sink", seconds=11)
    text += '[[fault]]\nkind = "dns-failure"\nat = "1s"\nfor = "2s"\n'
    text += '[[fault]]\nkind = "dns-failure"\nat = "4s"\nfor = "4s"\n[[fault]]\nkind = "reset"\nat = "4500ms"\n'
    record, values = run_measured(tmp_path, text)
    effects = [fault.effect for fault in record.faults if fault.kind == "dns-failure"]
    # During the first one, all connections stayed open.
    assert effects[0] == "no client resolved the name"
    assert int(effects[1].removesuffix(" lookups failed")) >= 2
    assert int(index_faults(record)["reset"].effect.split()[0]) >= 2
    # Full seconds between the reset and the end of the failure.
    assert 1 <= values["zero_throughput_s"] <= 4
    assert isinstance(values["recovery_s"], float)
    assert values["documents_counted"] >= values["documents_acked"] > 0
