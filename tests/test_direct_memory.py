"""Target `direct-memory` on real JVMs: its counts are those of the recording, and out-of-memory is a result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_run import carried_out, number

from ingest_bench.model.results import Summary

pytestmark = [pytest.mark.nightly, pytest.mark.jvm, pytest.mark.netns]

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
    _, (summary,) = carried_out(folder, ALONE.format(version=version, mode=mode, load=load, jvm=jvm, more=more))
    return summary


@pytest.mark.parametrize("version", ["java11", "java25"])
def test_each_counted_buffer_is_recorded(version: str, tmp_path: Path) -> None:
    summary = run(tmp_path, version)
    assert summary.state == "measured", summary.reason
    values = summary.values
    assert values["server_direct_allocations"] == values["direct_allocations_recorded"]
    allocations, calls, full = (number(summary, name) for name in ("direct_allocations", "system_gcs", "full_gcs"))
    assert sum(summary.histograms["direct_allocation_ns"].values()) == allocations > 100
    # 32 MiB hold 32 to 128 buffers; a call during a collection starts none of its own.
    assert 0 < full <= calls
    assert values["direct_allocations_per_system_gc"] == pytest.approx(allocations / calls)
    longest = max(summary.series["direct_wait_ms"].values)
    assert longest == values["direct_allocation_ms_max"]
    if version != "java11":
        assert number(summary, "direct_buffer_used_max_bytes") <= (32 << 20) + (1 << 20)


def test_each_request_is_a_buffer_in_mode_fed(tmp_path: Path) -> None:
    summary = run(tmp_path, "java17", "fed", load='bulk = "500kB"')
    assert summary.state == "measured", summary.reason
    values = summary.values
    assert values["documents_counted"] == values["documents_acked"]
    assert values["server_direct_allocations"] == values["direct_allocations_recorded"]
    assert number(summary, "system_gcs") > 0


@pytest.mark.parametrize(
    ("version", "jvm", "more"),
    [("java17", '"-XX:+DisableExplicitGC"', ""), ("java21", "", 'retain = "1s"')],
    ids=["no-collection", "all-retained"],
)
def test_the_server_runs_out_of_buffers_that_are_not_reclaimed(
    version: str, jvm: str, more: str, tmp_path: Path
) -> None:
    summary = run(tmp_path, version, jvm=jvm, more=more)
    assert summary.state == "oom", summary.reason
    values = summary.values
    assert values["out_of_memory"] == "direct"
    assert re.match(
        "direct: (Direct buffer memory|Cannot reserve [0-9]+ bytes of direct buffer memory)", summary.reason
    )
    assert number(summary, "out_of_memory_after_s") > 0
    assert number(summary, "direct_allocations") > 0
    # The JDK sleeps 1, 2, 4 … 256 ms before the error; the last one ends in its millisecond.
    assert "128 ms: " in str(values["direct_sleeps"])
