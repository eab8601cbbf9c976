"""Kafka itself: what was acknowledged is what the offsets say, and what was sent is what its JVM read."""

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


def number(found: Summary, name: str) -> int:
    value = found.values[name]
    assert isinstance(value, int), (name, value)
    return value


@pytest.mark.nightly
def test_records_and_bytes_are_the_same_at_both_ends(tmp_path: Path) -> None:
    _, (found,) = carried_out(tmp_path, BROKER + 'measure = "2s"\n[network]\nprofile = "ethernet"\n')
    assert found.state == "measured", found.reason
    assert number(found, "documents_counted") == number(found, "documents_acked") > 1000
    assert number(found, "bytes_read") == number(found, "bytes_sent")
    # A request of Kafka begins with its length, which is read alone.
    assert min(found.histograms["read_bytes"]) == 4


@pytest.mark.nightly
def test_connections_that_broke_and_a_broker_that_stood_still_lose_no_acknowledged_record(tmp_path: Path) -> None:
    results, (found,) = carried_out(tmp_path, BROKER + FAULTS)
    assert found.state == "measured", found.reason
    assert number(found, "documents_counted") >= number(found, "documents_acked") > 1000
    report = results.run(results.plan.runs[0]).load_report()
    assert report is not None
    assert len(report.local_ports) >= 4, "each of the two connections was made again"
