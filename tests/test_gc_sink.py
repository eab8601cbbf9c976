"""The probe `gc` on every collector that a Java has: recording and log of one running server tell the same."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
from probe_lab import make_context, notes, read, readings
from servers import BULK, served

from ingest_bench.jvm import options
from ingest_bench.jvm.java import find_java
from ingest_bench.model.target import Collector, TargetOptions
from ingest_bench.probes import gc_log, jvm_options, recording

pytestmark = [pytest.mark.jvm, pytest.mark.netns]

JAVAS = (11, 17, 25)
COLLECTORS: list[tuple[int, Collector]] = [
    (java, gc)
    for java in JAVAS
    for gc, choice in options.COLLECTORS.items()
    if choice.first_java <= java <= choice.last_java
]
BODY = b'{"index":{}}\n{"text":"%s"}\n' % (b"x" * 4000) * 1000


@pytest.mark.nightly
@pytest.mark.parametrize(("java", "gc"), COLLECTORS)
def test_recording_and_log_of_a_running_server_agree(java: int, gc: Collector, tmp_path: Path) -> None:
    raw = tmp_path / "home" / "raw"
    raw.mkdir(parents=True)
    # 1.5 times the heap passes through it.
    target = TargetOptions(name="sink", version=f"java{java}", heap_bytes=64 << 20, gc=gc)
    with served(tmp_path, target, jvm_options(["reads", "gc"], raw, java)) as server:
        for _ in range(24):
            assert server.http.request("POST", "/test/_bulk", BODY, BULK).status == 200
        end_ns = time.time_ns()
        # As in a run, whose documents are counted now: a pause is logged before its event is written.
        time.sleep(0.3)
    java_found = find_java(java)
    full_context = make_context(raw, 0, end_ns, {1}, lambda: recording.reader_command(java_found))
    # The recording begins a moment after the log, and ends before the JVM does.
    since = dataclasses.replace(full_context, start_ns=recording.load_recording(full_context).content["first_ns"])
    outputs = read("gc", since)
    assert notes(outputs) == []
    values = readings(outputs)
    assert values["gc_collector"] == gc
    assert values["gc_pauses"] == values["gc_pauses_log"] > 0
    assert 0 < values["gc_pause_ms_max"] <= values["gc_pause_ms_total"]
    assert 0 < values["heap_after_gc_max_bytes"] <= 64 << 20


@pytest.mark.nightly
def test_humongous_regions_are_counted_without_debug_lines(tmp_path: Path) -> None:
    raw = tmp_path / "home" / "raw"
    raw.mkdir(parents=True)
    # Half of G1's smallest region of 1 MiB: each receive buffer is humongous.
    target = TargetOptions(name="sink", version="java17", heap_bytes=64 << 20, receive_predictor_bytes=(512 << 10,))
    with served(tmp_path, target, jvm_options(["gc"], raw, 17)) as server:
        for _ in range(24):
            assert server.http.request("POST", "/test/_bulk", BODY, BULK).status == 200
    log = raw / "gc.log"
    assert "[gc,humongous" not in log.read_text()
    with log.open() as lines:
        assert max(before for _, before, _ in gc_log.parse_gc_log(lines).humongous_regions) > 0
