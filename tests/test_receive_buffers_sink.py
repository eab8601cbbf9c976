"""The predicted cost of receive buffers is what the sink allocates with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers import served
from test_receive_buffers import predict_costs

from ingest_bench import system
from ingest_bench.analysis.receive_buffers import fixed
from ingest_bench.jvm.java import find_java
from ingest_bench.model.results import READ_FIELDS
from ingest_bench.model.target import TargetOptions
from ingest_bench.probes import jvm_options, recording
from ingest_bench.probes.context import ReadContext

pytestmark = [pytest.mark.jvm, pytest.mark.netns]

KIB = 1024
SENDER = str(Path(__file__).with_name("bulk_sender.py"))
Reads = np.ndarray[Any, np.dtype[Any]]


def run(path: Path, size_bytes: int) -> tuple[Reads, dict[str, Any]]:
    """Return the reads and counters of a sink with this buffer, which receives the same bulks."""
    raw = path / "home" / "raw"
    raw.mkdir(parents=True)
    target = TargetOptions(name="sink", version="java17", heap_bytes=128 << 20, receive_predictor_bytes=(size_bytes,))
    # Loopback, and each bulk in one write smaller than a segment: the sink finds complete bulks. What
    # arrives in parts differs between runs by more than the prediction may.
    with served(path, target, jvm_options(["reads"], raw, 17), medium="loopback") as server:
        host, port = server.listen.host, server.listen.port
        system.run(server.link.client.command([sys.executable, SENDER, host, str(port), "5,20,40,60", "100"]))
        counted = server.counters()
    java = find_java(17)
    ports = frozenset(map(int, counted["by_peer_port"]))
    recording.load_recording(
        ReadContext(raw=raw, start_ns=0, end_ns=2**62, ports=ports, reader=lambda: recording.reader_command(java))
    )
    reads = np.fromfile(raw / "reads.bin", dtype=np.dtype(list(READ_FIELDS)))
    # Later reads are the ends of the connections.
    ordered = reads[np.argsort(reads["end_ns"], kind="stable")]
    return ordered[: counted["buffers_allocated"]], counted


@pytest.mark.nightly
def test_fixed_buffers_cost_the_prediction_within_ten_percent(tmp_path: Path) -> None:
    candidates = [fixed(size * KIB) for size in (4, 16, 32, 64)]
    reads, _ = run(tmp_path / "recorded", 256 * KIB)
    predicted = predict_costs(reads, fixed(256 * KIB), candidates=candidates)
    for cost in predicted:
        size = cost.buffers.maximum_bytes
        _, counted = run(tmp_path / str(size), size)
        real = counted["buffer_bytes_allocated"] / counted["bytes_read"]
        assert cost.share == pytest.approx(real, rel=0.10)
