"""What each queue of a bottleneck does to small packets beside a bulk, on whichever real netem this machine has."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from standing_link import link_of, state

from ingest_bench.model.network import Impairment
from ingest_bench.network.act.link import Link
from ingest_bench.network.measure import qdiscs
from ingest_bench.network.measure.check import check
from ingest_bench.network.measure.readings import readings
from ingest_bench.network.measure.readings import start as network_start

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
# One connection that has always something to send, and the seconds of a handshake beside it every 20 ms.
ANSWER = """
import socket, threading
listening = socket.create_server(("198.18.2.1", 9), backlog=100)
print("ready", flush=True)
def drain(one):
    with one:
        while one.recv(1 << 20): pass
while True:
    threading.Thread(target=drain, args=(listening.accept()[0],), daemon=True).start()
"""
ASK = """
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
class Beside:
    """What was seen beside a bulk."""

    handshakes_s: list[float]
    readings: dict[str, int]
    marks: int
    """Of the queue itself."""
    sent_bps: float

    def quantile_ms(self, share: float) -> float:
        return 1000 * self.handshakes_s[int(share * len(self.handshakes_s))]


def beside_a_bulk(standing: Link, *, filling_s: float = 1.5, seconds: float = 2.0) -> Beside:
    network_start(standing)
    server = standing.server.command((sys.executable, "-c", ANSWER))
    client = standing.client.command((sys.executable, "-c", ASK, str(filling_s), str(seconds)))
    place, device = standing.shaper("to-server")
    with subprocess.Popen(server, stdout=subprocess.PIPE) as answering:
        assert answering.stdout is not None
        try:
            answering.stdout.readline()
            sent = qdiscs.counters(place.run(qdiscs.show(device))).bytes
            asked = subprocess.run(client, check=True, timeout=120, capture_output=True, text=True)
            shown = place.run(qdiscs.show(device))
        finally:
            answering.kill()
    counts = {name: value for name, value in readings(standing).items() if isinstance(value, int)}
    sent_bps = (qdiscs.counters(shown).bytes - sent) * 8 / (filling_s + seconds)
    return Beside(json.loads(asked.stdout), counts, qdiscs.marks(shown), sent_bps)


@pytest.fixture(scope="module")
def standing() -> Iterator[Link]:
    with link_of(STATES.values()) as made:
        yield made


@pytest.mark.nightly
def test_small_packets_wait_for_a_bulk_in_a_fifo_and_hardly_in_queues_of_their_own(standing: Link) -> None:
    found = {}
    for name in ("fifo", "fq_codel", "cake"):
        standing.change(state(STATES[name]))
        found[name] = beside_a_bulk(standing)
    medians_ms = {name: one.quantile_ms(0.5) for name, one in found.items()}
    assert medians_ms["fifo"] > 100, medians_ms
    assert medians_ms["fq_codel"] < medians_ms["fifo"] / 3, medians_ms
    assert medians_ms["cake"] < medians_ms["fifo"] / 3, medians_ms


@pytest.mark.parametrize("queue", ["fq_codel", "cake", "red"])
def test_with_ecn_a_queue_marks_what_it_would_drop_and_the_ends_count_the_same(standing: Link, queue: str) -> None:
    standing.change(state(STATES[queue]))
    dropping = beside_a_bulk(standing, seconds=1)
    assert (dropping.marks, dropping.readings["ecn_marks"]) == (0, 0)
    assert dropping.readings["qdisc_drops"] > 0
    standing.change(state(STATES[f"{queue} with ECN"]))
    marking = beside_a_bulk(standing, seconds=1)
    # The last ones are on their way or in a socket of a process that ended.
    assert 0 < marking.readings["ecn_marks"] <= marking.marks


@pytest.mark.nightly
@pytest.mark.parametrize("name", STATES)
def test_a_link_with_that_queue_keeps_every_promise(standing: Link, name: str) -> None:
    standing.change(state(STATES[name]))
    promises = check(standing)
    assert [promise for promise in promises if not promise.kept] == []
    assert {"rate to-server", "loss to-server", "qdisc to-server", "rtt"} <= {promise.name for promise in promises}
    # RED has a queue of 82 frames here, and acts from the 7th on.
    assert ("bulk to-server" in {promise.name for promise in promises}) == (not name.startswith("red"))
