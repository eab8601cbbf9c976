"""Sampled frame sizes of a link, compared with a capture of all frames."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from readied import ready
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapReader

from ingest_bench.experiment import catalog
from ingest_bench.network.act.link import open_link
from ingest_bench.network.measure import capture, wire
from ingest_bench.network.measure.wire import watch_wire

pytestmark = [pytest.mark.netns, pytest.mark.measures]

ROUNDS = 4000
# Small, medium and full frames in turn, for some seconds.
CLIENT = f"""
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 9), timeout=60)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for number in range({ROUNDS}):
    for size in (100, 700, 1000 + 3 * (number % 2000)):
        connection.sendall(bytes(size))
    time.sleep(0.0005)
connection.shutdown(1)
connection.recv(1)
"""
SERVER = """
import socket, sys
listener = socket.create_server((sys.argv[1], 9))
print("ready", flush=True)
connection, _ = listener.accept()
while connection.recv(1 << 20):
    pass
"""


def read_sizes(path: Path, destination: str) -> Counter[int]:
    """Count the sizes of all frames for that address."""
    with RawPcapReader(str(path)) as records:
        return Counter(metadata.wirelen for data, metadata in records if Ether(data)[IP].dst == destination)


def distance(first: Counter[int], second: Counter[int]) -> float:
    """Return the largest difference of the two cumulative distributions (Kolmogorov-Smirnov)."""
    sums, totals = [0, 0], (first.total(), second.total())
    largest = 0.0
    for size in sorted(first.keys() | second.keys()):
        sums = [sums[0] + first[size], sums[1] + second[size]]
        largest = max(largest, abs(sums[0] / totals[0] - sums[1] / totals[1]))
    return largest


def quantile(counts: Counter[int], share: float = 0.5) -> int:
    """Return the size up to which that share of the frames are."""
    passed = 0
    for size in sorted(counts):
        passed += counts[size]
        if passed >= share * counts.total():
            return size
    raise AssertionError(counts)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["ethernet-100m", "loopback"])
def test_sampled_sizes_have_the_distribution_of_all_frames(name: str, tmp_path: Path) -> None:
    path = tmp_path / "all.pcap"
    with open_link(catalog.load_profile(name)) as link:
        end = link.ends[0]
        with (
            ready(link.server.command((sys.executable, "-c", SERVER, link.server_address))),
            capture.start_capture(end.namespace.command, end.device, path, 2 * 10**7) as running,
            watch_wire(link, tmp_path / "wire.json"),
        ):
            argv = link.client.command((sys.executable, "-c", CLIENT, link.server_address))
            subprocess.run(argv, check=True, timeout=120)
            assert running.keep() == 0
        complete, record = read_sizes(path, link.server_address), wire.read_wire(tmp_path / "wire.json")["to-server"]
    assert record is not None
    sampled, sampled_frames = Counter(record.frames), record.sampled_frames
    assert record.lost == 0
    assert complete.total() > 2 * ROUNDS
    assert 300 < sampled_frames <= complete.total(), (sampled_frames, complete.total())
    # A sampled frame counts for 1 to some dozens: half as many with equal weights are as informative.
    n = sampled_frames / 2
    # The scaled counts add up to all frames.
    assert sampled.total() == pytest.approx(complete.total(), rel=5 / math.sqrt(n))
    assert record.frames.keys() <= complete.keys()
    # A random sample exceeds 2.2 / sqrt(n) once in 10,000 times.
    assert distance(sampled, complete) < 2.2 / math.sqrt(n), (sampled_frames, distance(sampled, complete))
    margin = 2.5 / math.sqrt(n)
    assert quantile(complete, 0.5 - margin) <= quantile(sampled) <= quantile(complete, 0.5 + margin)
    for size in (166, 766):
        share = complete[size] / complete.total()
        assert share > 0.1
        deviation = math.sqrt(share * (1 - share) / n)
        assert sampled[size] / sampled.total() == pytest.approx(share, abs=5 * deviation)
