"""Ground truth: what the probes saw of the sink is what the sink counted itself."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from servers import BULK, Served, served

from ingest_bench import system
from ingest_bench.jvm.java import find_java
from ingest_bench.model.results import Histogram, Note, ProbeOutput, Reading
from ingest_bench.model.target import TargetOptions
from ingest_bench.probes import PROBES, jvm_options, recording, select_probes
from ingest_bench.probes.context import ReadContext
from ingest_bench.probes.observer import LaunchedObserver
from ingest_bench.targets.builtin.sink import Sink

pytestmark = [pytest.mark.jvm, pytest.mark.netns]

DOCUMENT = b'{"index":{}}\n{"text":"%s"}\n' % (b"x" * 4000)


def sink(java: int, predictor_bytes: int, **chosen: Any) -> TargetOptions:
    return TargetOptions(
        name="sink", version=f"java{java}", heap_bytes=128 << 20, receive_predictor_bytes=(predictor_bytes,), **chosen
    )


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Return a folder below the server's home, which belongs to its user."""
    folder = tmp_path / "home" / "raw"
    folder.mkdir(parents=True)
    return folder


def context(raw: Path, java: int, ports: set[int]) -> ReadContext:
    java_found = find_java(java)
    reader = functools.partial(recording.reader_command, java_found)
    return ReadContext(raw=raw, start_ns=0, end_ns=2**62, ports=frozenset(ports), reader=reader)


def bulks(server: Served, count: int, documents: int) -> None:
    path = "/test/_bulk"
    for _ in range(count):
        assert server.http.request("POST", path, DOCUMENT * documents, BULK).status == 200


def counters(server: Served) -> dict[str, Any]:
    target = server.target
    assert isinstance(target, Sink)
    return target.read_counters((server.http,))


def busiest(counted: dict[str, Any]) -> int:
    """Return the peer's port that sent most: the HTTP child's only connection."""
    ports: dict[str, dict[str, int]] = counted["by_peer_port"]
    return int(max(ports, key=lambda port: ports[port]["bytes_read"]))


def readings(measured: list[ProbeOutput]) -> dict[str, Any]:
    return {item.name: item.value for item in measured if isinstance(item, Reading)}


def histogram(measured: list[ProbeOutput], name: str) -> dict[int, int]:
    return next(item.counts for item in measured if isinstance(item, Histogram) and item.name == name)


@pytest.mark.nightly
@pytest.mark.parametrize("java", [11, 17, 25])
@pytest.mark.parametrize("buffers", ["heap", "direct"])
def test_reads_equal_the_counts_of_the_sink(java: int, buffers: str, tmp_path: Path, raw: Path) -> None:
    options = sink(java, 1024, setting={"sink.buffers": buffers})
    with served(tmp_path, options, jvm_options(["reads", "gc"], raw, java)) as server:
        bulks(server, 5, 1000)
        counted = counters(server)
    for port, truth in counted["by_peer_port"].items():
        measured = LaunchedObserver.read(select_probes(["reads"]), context(raw, java, {int(port)}))
        assert sum(histogram(measured, "read_bytes").values()) == truth["reads"]
        assert readings(measured)["bytes_read"] == truth["bytes_read"]


def test_buffers_of_the_sink_are_allocations_of_the_network_layer(tmp_path: Path, raw: Path) -> None:
    # Half of G1's smallest region of 1 MiB: each buffer is humongous, and outside of every TLAB.
    size = 512 << 10
    with served(tmp_path, sink(17, size), jvm_options(["allocations"], raw, 17)) as server:
        bulks(server, 20, 1000)
        counted = counters(server)
    values = readings(LaunchedObserver.read(select_probes(["allocations"]), context(raw, 17, set())))
    assert counted["buffers_allocated"] > 100
    assert values["outside_tlab_network_bytes"] == pytest.approx(counted["buffer_bytes_allocated"], rel=0.01)
    # Netty itself allocates some small objects outside TLABs when it has a small one.
    assert values["outside_tlab_network_count"] >= counted["buffers_allocated"]


@pytest.mark.nightly
@pytest.mark.bpf
@pytest.mark.parametrize(("java", "buffers"), [(11, "heap"), (17, "heap"), (17, "direct"), (25, "heap")])
def test_kernel_reads_equal_the_counts_of_the_sink(java: int, buffers: str, tmp_path: Path, raw: Path) -> None:
    port, reads, bytes_read = watched(tmp_path, raw, sink(java, 1024, setting={"sink.buffers": buffers}))
    measured = LaunchedObserver.read(select_probes(["kernel-reads"]), context(raw, java, {port}))
    values = readings(measured)
    assert [item for item in measured if isinstance(item, Note)] == []
    assert values["kernel_bytes_read"] == bytes_read
    assert values["kernel_reads"] == reads
    assert values["read_requested_bytes_mean"] == 1024
    assert values["read_waste_bytes_mean"] == pytest.approx(1024 - bytes_read / reads)


@pytest.mark.nightly
@pytest.mark.bpf
@pytest.mark.parametrize("java", [11, 17, 25])
def test_reads_of_native_epoll_are_traced_by_the_kernel_only(java: int, tmp_path: Path, raw: Path) -> None:
    options = sink(java, 1024, setting={"sink.transport": "epoll"})
    port, reads, bytes_read = watched(tmp_path, raw, options, jvm_options(["reads"], raw, java))
    values = readings(measured := LaunchedObserver.read(select_probes(["kernel-reads"]), context(raw, java, {port})))
    assert [item for item in measured if isinstance(item, Note)] == []
    assert (values["kernel_reads"], values["kernel_bytes_read"]) == (reads, bytes_read)
    assert values["read_requested_bytes_mean"] == 1024
    recorded = LaunchedObserver.read(select_probes(["reads"]), context(raw, java, {port}))
    assert set(readings(recorded).values()) == {None}
    assert not any(isinstance(item, Histogram) for item in recorded)
    (remark,) = [item.text for item in recorded if isinstance(item, Note)]
    assert "native transport (epoll)" in remark


def watched(tmp_path: Path, raw: Path, target: TargetOptions, options: tuple[str, ...] = ()) -> tuple[int, int, int]:
    """Watch a sink with the kernel probe; return its busiest port with the reads and bytes that the sink counted."""
    if not system.is_root():
        pytest.skip("needs root")
    with served(tmp_path, target, options) as server:
        before = counters(server)
        with PROBES["kernel-reads"].watch(server.process.jvm_pid, raw):
            bulks(server, 20, 1000)
            after = counters(server)
    port = busiest(after)
    reads, bytes_read = (
        after["by_peer_port"][str(port)][name] - before["by_peer_port"][str(port)][name]
        for name in ("reads", "bytes_read")
    )
    return port, reads, bytes_read
