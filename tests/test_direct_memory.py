"""Direct buffers on real JVMs: what the server counts is what is recorded, and running out of them is a result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_run import carried_out

from ingest_bench import targets
from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.model.results import Summary
from ingest_bench.report import direct_rows

ALONE = """
probes = ["direct-memory", "gc"]
[target]
name = "direct-memory"
version = "{version}"
heap = "128m"
jvm = [{jvm}]
[target.setting]
mode = "{mode}"
threads = "2"
max_direct_memory = "32m"
{more}
[load]
workload = "nyc_taxis"
users = 2
{load}
warm_up = "500ms"
measure = "2s"
"""
HEARTBEAT = 'bulk_documents = 1\nthink_time = "50ms"'


def run(
    folder: Path, version: str, mode: str = "alone", *, load: str = HEARTBEAT, jvm: str = "", more: str = ""
) -> Summary:
    _, (found,) = carried_out(folder, ALONE.format(version=version, mode=mode, load=load, jvm=jvm, more=more))
    return found


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.parametrize("version", ["java11", "java25"])
def test_each_buffer_that_the_server_counts_is_recorded_and_room_for_it_is_asked_for(
    version: str, tmp_path: Path
) -> None:
    found = run(tmp_path, version)
    assert found.state == "measured", found.reason
    values = found.values
    assert values["server_direct_allocations"] == values["direct_allocations_recorded"]
    allocations, calls, full = (values[name] for name in ("direct_allocations", "system_gcs", "full_gcs"))
    assert isinstance(allocations, int)
    assert isinstance(calls, int)
    assert isinstance(full, int)
    assert sum(found.histograms["direct_allocation_ns"].values()) == allocations > 100
    # 32 MiB hold 32 to 128 buffers; a call that finds a collection under way asks for none of its own.
    assert 0 < full <= calls
    assert values["direct_allocations_per_system_gc"] == pytest.approx(allocations / calls)
    longest = max(found.series["direct_wait_ms"].values)
    assert longest == values["direct_allocation_ms_max"]
    if version != "java11":
        used = values["direct_buffer_used_max_bytes"]
        assert isinstance(used, int)
        assert used <= (32 << 20) + (1 << 20)
    (head, ours) = direct_rows([found])
    assert ours[0] == "ours"
    assert len(head) == len(ours)


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_fed_by_the_network_each_request_is_a_buffer_of_its_size(tmp_path: Path) -> None:
    found = run(tmp_path, "java17", "fed", load='bulk = "500kB"')
    assert found.state == "measured", found.reason
    values = found.values
    assert values["documents_counted"] == values["documents_acked"]
    assert values["server_direct_allocations"] == values["direct_allocations_recorded"]
    calls = values["system_gcs"]
    assert isinstance(calls, int)
    assert calls > 0


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
@pytest.mark.parametrize(
    ("version", "jvm", "more"),
    [("java17", '"-XX:+DisableExplicitGC"', ""), ("java21", "", 'retain = "1s"')],
    ids=["nobody-collects", "all-are-kept"],
)
def test_without_a_way_to_reclaim_buffers_the_server_runs_out_of_them(
    version: str, jvm: str, more: str, tmp_path: Path
) -> None:
    found = run(tmp_path, version, jvm=jvm, more=more)
    assert found.state == "oom", found.reason
    values = found.values
    assert values["out_of_memory"] == "direct"
    assert re.match("direct: (Direct buffer memory|Cannot reserve [0-9]+ bytes of direct buffer memory)", found.reason)
    after_s, allocations = values["out_of_memory_after_s"], values["direct_allocations"]
    assert isinstance(after_s, float)
    assert isinstance(allocations, int)
    assert after_s > 0
    # Of the measurement alone: what was allocated in the warm-up may still be kept.
    assert allocations > 0
    # The JDK sleeps 1, 2, 4 … 256 ms before it gives up; the last one ends with the millisecond of the error.
    assert "128 ms: " in str(values["direct_sleeps"])


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ("setting.mode=both", "target.setting.mode: 'both' is not one of alone, fed"),
        ("setting.threads=0", "target.setting.threads: '0' is not between 1 and 1024"),
        ("setting.thread=1", 'target.setting: direct-memory has no "thread"'),
        ("setting.max_direct_memory=0", "0 means as much as the heap"),
        ("allocator=pooled", "target.allocator: direct-memory asks the JDK for each buffer"),
        ("version=java8", 'target.version: direct-memory has no "java8"'),
        ("gc=cms", 'target.gc: Java 17 has no "cms"'),
    ],
)
def test_what_it_cannot_have_is_one_sentence(chosen: str, said: str) -> None:
    experiment = spec.load("direct-buffers-fed", [chosen])
    (cell, *_) = spec.cells(experiment)
    with pytest.raises(SpecError) as refused:
        targets.of(cell.target).requirements(cell.target)
    assert said in str(refused.value)
