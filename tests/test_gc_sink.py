"""The probe `gc` on every collector that a Java has: recording and log of one running server tell the same."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
from servers import BULK, served

from ingest_bench.jvm import options
from ingest_bench.jvm.java import find
from ingest_bench.model.results import Reading, Remark
from ingest_bench.model.server import Collector
from ingest_bench.model.target import TargetOptions
from ingest_bench.probes import chosen, jvm_options, recording
from ingest_bench.probes.context import ReadContext
from ingest_bench.probes.pauses import gclog
from ingest_bench.probes.vantage import Started

pytestmark = [pytest.mark.jvm, pytest.mark.netns]

JAVAS = (11, 17, 25)
EACH: list[tuple[int, Collector]] = [
    (java, gc)
    for java in JAVAS
    for gc, choice in options.COLLECTORS.items()
    if choice.first_java <= java <= choice.last_java
]
BODY = b'{"index":{}}\n{"text":"%s"}\n' % (b"x" * 4000) * 1000


def test_every_collector_is_among_them() -> None:
    assert {gc for _, gc in EACH} == set(options.COLLECTORS)
    assert {java for java, gc in EACH if gc == "zgc"} == set(JAVAS)


@pytest.mark.nightly
@pytest.mark.parametrize(("java", "gc"), EACH)
def test_recording_and_log_of_a_running_server_agree(java: int, gc: Collector, tmp_path: Path) -> None:
    raw = tmp_path / "home" / "raw"
    raw.mkdir(parents=True)
    # Half as much again as the heap goes through it.
    asked = TargetOptions(name="sink", version=f"java{java}", heap_bytes=64 << 20, gc=gc)
    with served(tmp_path, asked, jvm_options(["reads", "gc"], raw, java)) as server:
        for _ in range(24):
            assert server.http.request("POST", "/test/_bulk", BODY, BULK).status == 200
        end_ns = time.time_ns()
        # As in a run, whose documents are counted now: a pause is logged before its event is written.
        time.sleep(0.3)
    found = find(java)
    whole = ReadContext(
        raw=raw,
        start_ns=0,
        end_ns=end_ns,
        ports=frozenset({1}),
        reader=lambda: recording.reader(found),
    )
    # The recording begins a moment after the log, and ends before the JVM does.
    since = dataclasses.replace(whole, start_ns=recording.load(whole).content["first_ns"])
    measured = Started.read(chosen(["gc"]), since)
    assert [item.text for item in measured if isinstance(item, Remark)] == []
    seen: dict[str, Any] = {item.name: item.value for item in measured if isinstance(item, Reading)}
    assert seen["gc_collector"] == gc
    assert seen["gc_pauses"] == seen["gc_pauses_log"] > 0
    assert 0 < seen["gc_pause_ms_max"] <= seen["gc_pause_ms_total"]
    assert 0 < seen["heap_after_gc_max_bytes"] <= 64 << 20


@pytest.mark.nightly
def test_humongous_regions_are_counted_without_a_line_for_each_object_in_a_pause(tmp_path: Path) -> None:
    raw = tmp_path / "home" / "raw"
    raw.mkdir(parents=True)
    # Half of G1's smallest region of 1 MiB: each receive buffer is humongous.
    asked = TargetOptions(name="sink", version="java17", heap_bytes=64 << 20, receive_predictor_bytes=(512 << 10,))
    with served(tmp_path, asked, jvm_options(["gc"], raw, 17)) as server:
        for _ in range(24):
            assert server.http.request("POST", "/test/_bulk", BODY, BULK).status == 200
    log = raw / "gc.log"
    assert "[gc,humongous" not in log.read_text()
    with log.open() as lines:
        assert max(before for _, before, _ in gclog.parse(lines).humongous_regions) > 0
