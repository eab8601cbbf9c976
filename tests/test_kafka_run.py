"""Kafka runs: acknowledged records equal the offsets, and sent bytes those that its JVM read."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_run import carried_out

from ingest_bench.model.results import Summary

pytestmark = [pytest.mark.jvm, pytest.mark.netns]
BROKER = """
probes = ["reads"]
[target]
name = "kafka"
heap = "256m"
[target.setting]
"num.network.threads" = "2"
"num.partitions" = "3"
"producer.linger" = "2ms"
"producer.compression" = "lz4"
[load]
workload = "nyc_taxis"
users = 2
bulk_documents = 200
think_time = "10ms"
timeout = "5s"
warm_up = "1s"
"""
FAULTS = """
measure = "5s"
[network]
profile = "ethernet"
[[fault]]
kind = "reset"
at = "1s"
[[fault]]
kind = "pause"
at = "2s"
for = "1s"
"""


def number(run: Summary, name: str) -> int:
    value = run.values[name]
    assert isinstance(value, int), (name, value)
    return value


@pytest.mark.nightly
def test_records_and_bytes_are_equal_at_both_ends(tmp_path: Path) -> None:
    _, (run,) = carried_out(tmp_path, BROKER + 'measure = "2s"\n[network]\nprofile = "ethernet"\n')
    assert run.state == "measured", run.reason
    assert number(run, "documents_counted") == number(run, "documents_acked") > 1000
    assert number(run, "bytes_read") == number(run, "bytes_sent")
    # Kafka reads the length of a request separately.
    assert min(run.histograms["read_bytes"]) == 4


@pytest.mark.nightly
def test_broken_connections_lose_no_acknowledged_record(tmp_path: Path) -> None:
    results, (run,) = carried_out(tmp_path, BROKER + FAULTS)
    assert run.state == "measured", run.reason
    assert number(run, "documents_counted") >= number(run, "documents_acked") > 1000
    report = results.run_folder(results.plan.runs[0]).read_load_report()
    assert report is not None
    assert len(report.local_ports) >= 4, "each of the two connections was made again"
