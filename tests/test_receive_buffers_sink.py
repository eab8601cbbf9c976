"""Ground truth: what other receive buffers are said to cost is what the sink really allocates with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers import Served, served

from ingest_bench import system
from ingest_bench.analysis.buffers import receive_buffers
from ingest_bench.analysis.buffers.netty import Fixed
from ingest_bench.jvm.java import find
from ingest_bench.model.results import READ_FIELDS
from ingest_bench.model.target import TargetOptions
from ingest_bench.probes import jvm_options, recording
from ingest_bench.probes.context import ReadContext
from ingest_bench.targets.small.sink import Sink

pytestmark = [pytest.mark.jvm, pytest.mark.netns]

KIB = 1024
SENDER = str(Path(__file__).with_name("bulk_sender.py"))
Reads = np.ndarray[Any, np.dtype[Any]]


def run(path: Path, *predictor_bytes: int) -> tuple[TargetOptions, Reads, dict[str, Any]]:
    """A sink with these buffers that takes the same bulks as any other: its reads, and what it counted."""
    raw = path / "home" / "raw"
    raw.mkdir(parents=True)
    asked = TargetOptions(
        name="sink", version="java17", heap_bytes=128 << 20, receive_predictor_bytes=tuple(predictor_bytes)
    )
    # Loopback, and each bulk in one write smaller than a segment: it lies there whole when the sink is woken. What
    # arrives in pieces differs from run to run by more than the prediction may.
    with served(path, asked, jvm_options(["reads"], raw, 17), medium="loopback") as server:
        host, port = server.listen.host, server.listen.port
        system.run(server.between.client.command([sys.executable, SENDER, host, str(port), "5,20,40,60", "100"]))
        counted = counters(server)
    java = find(17)
    ports = frozenset(map(int, counted["by_peer_port"]))
    recording.load(ReadContext(raw=raw, start_ns=0, end_ns=2**62, ports=ports, reader=lambda: recording.reader(java)))
    reads = np.fromfile(raw / "reads.bin", dtype=np.dtype(list(READ_FIELDS)))
    # The sink counted until it was asked; what came later is the end of the connections.
    ordered = reads[np.argsort(reads["end_ns"], kind="stable")]
    return asked, ordered[: counted["buffers_allocated"]], counted


def counters(server: Served) -> dict[str, Any]:
    target = server.target
    assert isinstance(target, Sink)
    return target.counters((server.http,))


@pytest.mark.nightly
@pytest.mark.parametrize("sizes", [(64, 65536), (4096, 524288)])
def test_the_adaptive_allocator_is_replayed_to_the_byte(sizes: tuple[int, int], tmp_path: Path) -> None:
    asked, reads, counted = run(tmp_path, *sizes)
    buffers = receive_buffers.made_with(asked)
    assert buffers is not None
    (cost,) = receive_buffers.what_if(reads, buffers, candidates=[buffers])
    assert cost.ingested_bytes == counted["bytes_read"]
    assert cost.allocations == counted["buffers_allocated"]
    assert cost.allocated_bytes == counted["buffer_bytes_allocated"]


@pytest.mark.nightly
def test_fixed_buffers_really_cost_what_was_predicted_within_ten_percent(tmp_path: Path) -> None:
    candidates = [Fixed(size * KIB) for size in (4, 16, 32, 64)]
    _, reads, _ = run(tmp_path / "recorded", 256 * KIB)
    predicted = receive_buffers.what_if(reads, Fixed(256 * KIB), candidates=candidates)
    for cost in predicted:
        size = cost.buffers.largest_bytes
        _, _, counted = run(tmp_path / str(size), size)
        real = counted["buffer_bytes_allocated"] / counted["bytes_read"]
        assert cost.share == pytest.approx(real, rel=0.10)
