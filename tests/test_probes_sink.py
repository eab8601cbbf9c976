"""Ground truth: what the probes saw of the sink is what the sink counted itself, on every collector of each Java."""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any

import pytest
from probe_lab import histogram, make_context, notes, read, readings
from servers import BULK, Served, served

from ingest_bench import system
from ingest_bench.jvm import options as jvm_options_module
from ingest_bench.jvm.java import find_java
from ingest_bench.model.target import Collector, TargetOptions
from ingest_bench.probes import PROBES, jvm_options, recording
from ingest_bench.probes.context import ReadContext

pytestmark = [pytest.mark.jvm, pytest.mark.netns, pytest.mark.nightly]

DOCUMENT = b'{"index":{}}\n{"text":"%s"}\n' % (b"x" * 4000)
COLLECTORS: list[tuple[int, Collector]] = [
    (java, gc)
    for java in (11, 17, 25)
    for gc, choice in jvm_options_module.COLLECTORS.items()
    if choice.first_java <= java <= choice.last_java
]


def sink(java: int, setting: dict[str, Any], gc: Collector = "default") -> TargetOptions:
    return TargetOptions(
        name="sink",
        heap_bytes=64 << 20,
        gc=gc,
        receive_predictor_bytes=(1024,),
        setting={"sink.java": str(java), **setting},
    )


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Return a folder below the server's home, which belongs to its user."""
    folder = tmp_path / "home" / "raw"
    folder.mkdir(parents=True)
    return folder


def context(raw: Path, java: int, ports: set[int]) -> ReadContext:
    return make_context(raw, ports=ports, reader=functools.partial(recording.reader_command, find_java(java)))


def bulks(server: Served, count: int, documents: int) -> None:
    path = "/test/_bulk"
    for _ in range(count):
        assert server.http.request("POST", path, DOCUMENT * documents, BULK).status == 200


@pytest.mark.parametrize(("java", "gc"), COLLECTORS)
def test_reads_equal_the_counts_of_the_sink_and_both_sources_of_pauses_agree(
    java: int, gc: Collector, tmp_path: Path, raw: Path
) -> None:
    options = sink(java, {"sink.buffers": "direct" if gc == "parallel" else "heap"}, gc)
    with served(tmp_path, options, jvm_options(["reads", "gc"], raw, java)) as server:
        # 1.5 times the heap passes through it.
        bulks(server, 24, 1000)
        counted, end_ns = server.counters(), time.time_ns()
        # As in a run, whose documents are counted now: a pause is logged before its event is written.
        time.sleep(0.3)
    for port, truth in counted["by_peer_port"].items():
        measured = read("reads", context(raw, java, {int(port)}))
        assert sum(histogram(measured).values()) == truth["reads"]
        assert readings(measured)["bytes_read"] == truth["bytes_read"]
    # The recording begins a moment after the log, and ends before the JVM does.
    complete = dataclasses.replace(context(raw, java, {1}), end_ns=end_ns)
    since = dataclasses.replace(complete, start_ns=recording.load_recording(complete).content["first_ns"])
    outputs = read("gc", since)
    assert notes(outputs) == []
    values = readings(outputs)
    assert values["gc_collector"] == gc
    assert values["gc_pauses"] == values["gc_pauses_log"] > 0
    assert 0 < values["gc_pause_ms_max"] <= values["gc_pause_ms_total"]
    assert 0 < values["heap_after_gc_max_bytes"] <= 64 << 20


@pytest.mark.bpf
@pytest.mark.skipif(not system.is_root(), reason="needs root")
@pytest.mark.parametrize(
    ("java", "how"),
    [(11, "heap"), (17, "heap"), (17, "direct"), (25, "heap"), (11, "epoll"), (17, "epoll"), (25, "epoll")],
)
def test_kernel_reads_equal_the_counts_of_the_sink(java: int, how: str, tmp_path: Path, raw: Path) -> None:
    target = sink(java, {"sink.transport": "epoll"} if how == "epoll" else {"sink.buffers": how})
    # A recording would have the reads before the watch too.
    with served(tmp_path, target, jvm_options(["reads"], raw, java) if how == "epoll" else ()) as server:
        before = server.counters()["by_peer_port"]
        with PROBES["kernel-reads"].watch(server.process.jvm_pid, raw):
            bulks(server, 20, 1000)
            after = server.counters()["by_peer_port"]
    # The HTTP child's only connection sent most.
    port = max(after, key=lambda port: after[port]["bytes_read"])
    reads, bytes_read = (after[port][name] - before[port][name] for name in ("reads", "bytes_read"))
    measured = read("kernel-reads", context(raw, java, {int(port)}))
    values = readings(measured)
    assert (values["kernel_reads"], values["kernel_bytes_read"]) == (reads, bytes_read)
    assert values["read_requested_bytes_mean"] == 1024
    assert values["read_waste_bytes_mean"] == pytest.approx(1024 - bytes_read / reads)
    assert notes(measured) == []
    if how == "epoll":
        # The flight recorder does not see reads of a native transport.
        recorded = read("reads", context(raw, java, {int(port)}))
        assert set(readings(recorded).values()) == {None}
        assert "native transport (epoll)" in " ".join(notes(recorded))
