"""The frames that the watcher of a link samples, against a capture of all of them by a second instrument."""

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
from ingest_bench.network.act.link import link
from ingest_bench.network.measure import capture, wire
from ingest_bench.network.measure.wire import watch_wire

pytestmark = [pytest.mark.netns, pytest.mark.measures]

ROUNDS = 4000
# Small, middling and full frames, one after the other for some seconds.
POUR = f"""
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
DRAIN = """
import socket, sys
listener = socket.create_server((sys.argv[1], 9))
print("ready", flush=True)
connection, _ = listener.accept()
while connection.recv(1 << 20):
    pass
"""


def captured(path: Path, destination: str) -> Counter[int]:
    """The sizes of all frames for that address."""
    with RawPcapReader(str(path)) as records:
        return Counter(about.wirelen for data, about in records if Ether(data)[IP].dst == destination)


def distance(first: Counter[int], second: Counter[int]) -> float:
    """The largest difference between their shares of frames up to a size (Kolmogorov and Smirnov)."""
    ups, totals = [0, 0], (first.total(), second.total())
    largest = 0.0
    for size in sorted(first.keys() | second.keys()):
        ups = [ups[0] + first[size], ups[1] + second[size]]
        largest = max(largest, abs(ups[0] / totals[0] - ups[1] / totals[1]))
    return largest


def median(counts: Counter[int], share: float = 0.5) -> int:
    """The size up to which that share of them are."""
    passed = 0
    for size in sorted(counts):
        passed += counts[size]
        if passed >= share * counts.total():
            return size
    raise AssertionError(counts)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["ethernet-100m", "loopback"])
def test_the_sampled_sizes_have_the_distribution_of_all_frames(name: str, tmp_path: Path) -> None:
    path = tmp_path / "all.pcap"
    with link(catalog.profile(name)) as made:
        end = made.ends[0]
        with (
            ready(made.server.command((sys.executable, "-c", DRAIN, made.server_address))),
            capture.capturing(end.namespace.command, end.device, path, 2 * 10**7) as lasting,
            watch_wire(made, tmp_path / "wire.json"),
        ):
            argv = made.client.command((sys.executable, "-c", POUR, made.server_address))
            subprocess.run(argv, check=True, timeout=120)
            assert lasting.keep() == 0
        every, watched = captured(path, made.server_address), wire.seen(tmp_path / "wire.json")["to-server"]
    assert watched is not None
    sampled, looked_at = Counter(watched.frames), watched.looked_at
    assert watched.lost == 0
    assert every.total() > 2 * ROUNDS
    assert 300 < looked_at <= every.total(), (looked_at, every.total())
    # One frame stood for 1 to some dozens: of as many that stand for the same, half would tell no more.
    n = looked_at / 2
    # All of them: as many, and the same bytes.
    assert sampled.total() == pytest.approx(every.total(), rel=5 / math.sqrt(n))
    assert watched.frames.keys() <= every.keys()
    # Chosen at random, 2.2 / sqrt(n) is passed once in 10,000 times.
    assert distance(sampled, every) < 2.2 / math.sqrt(n), (looked_at, distance(sampled, every))
    near = 2.5 / math.sqrt(n)
    assert median(every, 0.5 - near) <= median(sampled) <= median(every, 0.5 + near)
    for size in (166, 766):
        share = every[size] / every.total()
        assert share > 0.1
        deviation = math.sqrt(share * (1 - share) / n)
        assert sampled[size] / sampled.total() == pytest.approx(share, abs=5 * deviation)
