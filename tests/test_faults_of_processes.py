"""Faults of a JVM in whole runs, on the sink and on servers that keep their documents in files."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_run import carried_out

from ingest_bench.faults.clients import misbehaving
from ingest_bench.model.results import Happened, RunRecord

# By the clock: what it is there for takes the processor, and not the load.
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


def happened(folder: Path, text: str) -> tuple[RunRecord, dict[str, object]]:
    """The record and the values of a run that was measured."""
    results, (summary,) = carried_out(folder, text)
    assert summary.state == "measured", summary.reason
    (record,) = results.records().values()
    return record, dict(summary.values)


def seen(record: RunRecord) -> dict[str, Happened]:
    assert all(fault.ended is not None and fault.ended > fault.started for fault in record.faults)
    return {fault.kind: fault for fault in record.faults}


@pytest.mark.ordinary
@pytest.mark.jvm
@pytest.mark.netns
def test_a_jvm_collects_dumps_its_heap_and_has_few_files_while_it_is_loaded(tmp_path: Path) -> None:
    text = 'probes = ["gc"]' + LOAD.format(name="sink", seconds=9) + '[[fault]]\nkind = "gc"\nat = "1s"\n'
    text += '[[fault]]\nkind = "heap-dump"\nat = "3s"\n[[fault]]\nkind = "file-descriptors"\nat = "6s"\nfor = "2s"\n'
    text += '[[fault]]\nkind = "pause"\nat = "7s"\nfor = "500ms"\n'
    # The folders of a cell have the names of its levels: "users=2".
    text += "[factors]\nusers = [2]\n"
    record, values = happened(tmp_path, text)
    found = seen(record)
    assert found["gc"].seen.startswith("node 1: collected within ")
    assert found["heap-dump"].seen.startswith("node 1: ")
    assert " MB within " in found["heap-dump"].seen
    assert found["file-descriptors"].seen.startswith("node 1: 4 left beside the ")
    full = values["full_gcs"]
    # A dump of live objects collects first.
    assert isinstance(full, int)
    assert full == 2
    assert values["documents_counted"] == values["documents_acked"]
    assert not list(tmp_path.rglob("*.hprof"))


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.parametrize(
    "kind",
    # What only the kernel can do for these two it does for an ordinary user, too.
    [
        pytest.param(kind, marks=[pytest.mark.ordinary] if kind in ("half-open", "syn-flood") else [])
        for kind in misbehaving.CLIENTS
    ],
)
def test_the_load_stays_exact_beside_clients_that_misbehave(tmp_path: Path, kind: str) -> None:
    text = 'probes = ["reads"]' + LOAD.format(name="sink", seconds=5)
    record, values = happened(tmp_path, text + f'[[fault]]\nkind = "{kind}"\nat = "1s"\nfor = "3s"\nconnections = 8\n')
    said = seen(record)[kind].seen
    opened = int(said.removeprefix("node 1: ").split(" connections")[0])
    assert opened >= 8
    assert (opened == 8) == (kind in ("slow-bodies", "zero-window", "half-open", "syn-flood"))
    assert (", 8 of them held by the server at the end" in said) == (kind in ("half-open", "syn-flood"))
    # Who sends on after the answer 413 may see a reset in its place.
    assert (" ended by the server" in said or " answers 413" in said) == (kind in ("oversized", "garbage"))
    assert (" closed windows at a time" in said) == (kind == "zero-window")
    assert values["bytes_read"] == values["bytes_sent"]
    assert values["documents_counted"] == values["documents_acked"]
    assert values["requests_failed"] == 0


@pytest.mark.nightly
@pytest.mark.ordinary
@pytest.mark.jvm
@pytest.mark.netns
def test_without_a_local_port_a_new_connection_fails_and_an_open_one_stays(tmp_path: Path) -> None:
    text = LOAD.format(name="sink", seconds=12) + '[[fault]]\nkind = "exhausted-ports"\nat = "1s"\nfor = "4s"\n'
    record, values = happened(tmp_path, text + '[[fault]]\nkind = "reset"\nat = "1500ms"\n')
    found = seen(record)
    assert found["exhausted-ports"].seen == "none of 28232 ports left"
    # They were open, also half a second after there was no port for another one.
    assert int(found["reset"].seen.split()[0]) >= 2
    silent_s = values["silent_s"]
    assert isinstance(silent_s, int | float)
    # Full seconds, and on a busy machine a reset takes some of them: from its end on nobody could connect.
    assert found["exhausted-ports"].ended is not None
    assert found["reset"].ended is not None
    alone_s = (found["exhausted-ports"].ended - found["reset"].ended) // 10**9
    assert alone_s - 1 <= silent_s <= 4
    assert isinstance(values["recovery_s"], float)
    counted, acked = values["documents_counted"], values["documents_acked"]
    assert isinstance(counted, int)
    assert isinstance(acked, int)
    assert counted >= acked


@pytest.mark.nightly
@pytest.mark.opensearch
@pytest.mark.netns
def test_a_node_that_is_killed_comes_back_with_all_that_it_acknowledged(tmp_path: Path) -> None:
    text = LOAD.format(name="opensearch", seconds=60)
    record, values = happened(tmp_path, text + '[[fault]]\nkind = "kill"\nat = "5s"\nfor = "1s"\n')
    (killed,) = record.faults
    assert killed.ended is not None
    assert killed.ended - killed.started > 10**9
    assert killed.seen.startswith("node 1: ready again ")
    counted, acked, failed = (values[name] for name in ("documents_counted", "documents_acked", "requests_failed"))
    assert isinstance(counted, int)
    assert isinstance(acked, int)
    assert isinstance(failed, int)
    assert failed >= 1
    assert acked <= counted <= acked + 200 * failed
    assert values["lost_documents"] == 0
    # The log goes on where it was: it has two starts.
    assert (next(tmp_path.rglob("server.log"))).read_text().count("] started") == 2
