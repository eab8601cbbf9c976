"""Effects of each queue on small packets next to a bulk transfer, on whichever real netem this machine has."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from standing_link import make_profile, open_for

from ingest_bench.model.network import Impairment
from ingest_bench.network.act.link import Link
from ingest_bench.network.measure import qdiscs
from ingest_bench.network.measure.check import check_link
from ingest_bench.network.measure.readings import link_columns, start_counting

pytestmark = pytest.mark.netem

MS = 10**6
# 240 ms when it is full.
FIFO = Impairment(rate_bps=20 * 10**6, delay_ns=5 * MS, limit_packets=400)
BARE = replace(FIFO, limit_packets=None)
STATES = {
    "fifo": FIFO,
    **{queue: replace(BARE, queue=queue) for queue in ("fq_codel", "cake", "red")},
    **{f"{queue} with ECN": replace(BARE, queue=queue, ecn=True) for queue in ("fq_codel", "cake", "red")},
}
# A connection that always has data to send; the client also measures a handshake every 20 ms.
SERVER = """
import socket, threading
listening = socket.create_server(("198.18.2.1", 9), backlog=100)
print("ready", flush=True)
def drain(one):
    with one:
        while one.recv(1 << 20): pass
while True:
    threading.Thread(target=drain, args=(listening.accept()[0],), daemon=True).start()
"""
CLIENT = """
import json, socket, sys, threading, time
to, filling_s, seconds = ("198.18.2.1", 9), float(sys.argv[1]), float(sys.argv[2])
bulk, ends, took = socket.create_connection(to), time.monotonic() + filling_s + seconds, []
def pour():
    block = bytes(65536)
    while time.monotonic() < ends:
        bulk.sendall(block)
threading.Thread(target=pour, daemon=True).start()
time.sleep(filling_s)
while time.monotonic() < ends:
    began = time.perf_counter()
    socket.create_connection(to).close()
    took.append(time.perf_counter() - began)
    time.sleep(0.02)
print(json.dumps(sorted(took)), flush=True)
"""


@dataclass(frozen=True)
class Measurement:
    """Measured next to a bulk transfer."""

    handshakes_s: list[float]
    columns: dict[str, int]
    marks: int
    """Counted by the queue."""
    sent_bps: float

    def quantile_ms(self, share: float) -> float:
        return 1000 * self.handshakes_s[int(share * len(self.handshakes_s))]


def measure_with_bulk_transfer(link: Link, *, filling_s: float = 1.5, seconds: float = 2.0) -> Measurement:
    start_counting(link)
    server_argv = link.server.command((sys.executable, "-c", SERVER))
    client_argv = link.client.command((sys.executable, "-c", CLIENT, str(filling_s), str(seconds)))
    place, device = link.shaping_device("to-server")
    with subprocess.Popen(server_argv, stdout=subprocess.PIPE) as server_process:
        assert server_process.stdout is not None
        try:
            server_process.stdout.readline()
            sent = qdiscs.parse_counters(place.run(qdiscs.show_argv(device))).bytes
            output = subprocess.run(client_argv, check=True, timeout=120, capture_output=True, text=True)
            shown = place.run(qdiscs.show_argv(device))
        finally:
            server_process.kill()
    counts = {name: value for name, value in link_columns(link).items() if isinstance(value, int)}
    sent_bps = (qdiscs.parse_counters(shown).bytes - sent) * 8 / (filling_s + seconds)
    return Measurement(json.loads(output.stdout), counts, qdiscs.count_ecn_marks(shown), sent_bps)


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    with open_for(STATES.values()) as opened:
        yield opened


@pytest.mark.nightly
def test_fair_queues_delay_small_packets_less_than_a_fifo(link: Link) -> None:
    results = {}
    for name in ("fifo", "fq_codel", "cake"):
        link.set_profile(make_profile(STATES[name]))
        results[name] = measure_with_bulk_transfer(link)
    medians_ms = {name: result.quantile_ms(0.5) for name, result in results.items()}
    assert medians_ms["fifo"] > 100, medians_ms
    assert medians_ms["fq_codel"] < medians_ms["fifo"] / 3, medians_ms
    assert medians_ms["cake"] < medians_ms["fifo"] / 3, medians_ms


@pytest.mark.parametrize("queue", ["fq_codel", "cake", "red"])
def test_queue_with_ecn_marks_packets_that_the_ends_count(link: Link, queue: str) -> None:
    link.set_profile(make_profile(STATES[queue]))
    dropping = measure_with_bulk_transfer(link, seconds=1)
    assert (dropping.marks, dropping.columns["ecn_marks"]) == (0, 0)
    assert dropping.columns["qdisc_drops"] > 0
    link.set_profile(make_profile(STATES[f"{queue} with ECN"]))
    marking = measure_with_bulk_transfer(link, seconds=1)
    # The last ones are in flight, or in a socket of a process that has exited.
    assert 0 < marking.columns["ecn_marks"] <= marking.marks


@pytest.mark.nightly
@pytest.mark.parametrize("name", STATES)
def test_link_with_each_queue_passes_every_check(link: Link, name: str) -> None:
    link.set_profile(make_profile(STATES[name]))
    checks = check_link(link)
    assert [check for check in checks if not check.passed] == []
    assert {"rate to-server", "loss to-server", "qdisc to-server", "rtt"} <= {check.name for check in checks}
    # RED has a queue of 82 frames here, and marks from the 7th on.
    assert ("burst to-server" in {check.name for check in checks}) == (not name.startswith("red"))
