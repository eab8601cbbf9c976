"""What each option of netem does to packets, on whichever real netem this machine has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from standing_link import link_of, state

from ingest_bench.model.network import Impairment, Promise
from ingest_bench.network.act.link import Link
from ingest_bench.network.measure.check import check
from ingest_bench.network.measure.readings import readings
from ingest_bench.network.measure.readings import start as network_start

pytestmark = pytest.mark.netem

MS = 10**6
# Each after the one before it on the same link, so that what a state leaves behind would show in the next one.
STATES = {
    "delay": Impairment(delay_ns=20 * MS),
    "uniform jitter": Impairment(delay_ns=20 * MS, jitter_ns=8 * MS),
    "normal jitter": Impairment(delay_ns=20 * MS, jitter_ns=5 * MS, distribution="normal"),
    "pareto jitter": Impairment(delay_ns=40 * MS, jitter_ns=10 * MS, distribution="pareto"),
    "paretonormal jitter": Impairment(delay_ns=40 * MS, jitter_ns=10 * MS, distribution="paretonormal"),
    "reorder": Impairment(delay_ns=10 * MS, reorder_ppm=250_000),
    "reorder with a gap": Impairment(delay_ns=10 * MS, reorder_ppm=500_000, reorder_gap=5),
    "duplicate": Impairment(duplicate_ppm=20_000),
    "corrupt": Impairment(corrupt_ppm=30_000),
    "random loss": Impairment(loss_ppm=20_000),
    "correlated loss": Impairment(loss_ppm=20_000, loss_correlation_ppm=250_000, ecn=True),
    "bursts of loss": Impairment(loss_gemodel_ppm=(10_000, 400_000, 900_000, 1_000)),
    "four states of loss": Impairment(loss_state_ppm=(20_000, 500_000)),
    "netem's rate": Impairment(netem_rate_bps=20 * 10**6),
    "netem's rate with overheads": Impairment(netem_rate_bps=20 * 10**6, delay_ns=5 * MS, packet_overhead_bytes=24),
    "slots": Impairment(slot_min_ns=2 * MS, slot_max_ns=4 * MS, slot_packets=20, slot_bytes=64_000),
    "a bucket behind a delay": Impairment(rate_bps=20 * 10**6, delay_ns=10 * MS),
    "a rate alone": Impairment(rate_bps=300 * 10**6),
    "a rate behind duplicates": Impairment(rate_bps=20 * 10**6, duplicate_ppm=20_000),
    "nothing": Impairment(),
}


@pytest.fixture(scope="module")
def standing() -> Iterator[Link]:
    with link_of(STATES.values()) as made:
        yield made


def broken(promises: tuple[Promise, ...]) -> list[Promise]:
    return [promise for promise in promises if not promise.kept]


@pytest.mark.parametrize("name", STATES)
def test_a_state_does_what_it_says_and_nothing_that_came_before(standing: Link, name: str) -> None:
    standing.change(state(STATES[name]))
    found = broken(check(standing))
    if STATES[name].jitter_ns:
        # Jitter has no quantile that a busy machine does not move; its delay is proven without it.
        found = [promise for promise in found if promise.name != "rtt"]
    assert found == []


def test_a_line_that_is_longer_and_worse_than_promised_is_found_out(standing: Link) -> None:
    standing.change(state(Impairment(delay_ns=10 * MS, loss_ppm=50_000)))
    standing.profile = replace(standing.profile, to_server=Impairment(delay_ns=5 * MS))
    names = {promise.name for promise in broken(check(standing))}
    assert {"rtt", "loss to-server", "qdisc to-server"} <= names
    assert "loss to-client" not in names


@pytest.mark.nightly
@pytest.mark.parametrize("rate_bps", [20 * 10**6, 200 * 10**6])
def test_a_bucket_behind_a_delay_that_lets_a_bulk_pass_at_once_is_found_out(standing: Link, rate_bps: int) -> None:
    # 10 ms of the rate.
    bucket = Impairment(rate_bps=rate_bps, delay_ns=10 * MS, burst_bytes=rate_bps // 800)
    standing.change(state(bucket))
    standing.profile = replace(standing.profile, to_server=replace(bucket, burst_bytes=None))
    names = {promise.name for promise in broken(check(standing))}
    assert "bulk to-server" in names
    assert "rate to-server" not in names


def poured(standing: Link) -> dict[str, int]:
    """The readings of 3 MB from the client to the server."""
    network_start(standing)
    answer = "import socket; l = socket.create_server(('198.18.2.1', 9)); print(1, flush=True); c, _ = l.accept()\n"
    answer += "while c.recv(1 << 20): pass\n"
    pour = "import socket; c = socket.create_connection(('198.18.2.1', 9), timeout=60); c.sendall(bytes(3_000_000))\n"
    pour += "c.shutdown(1); c.recv(1)\n"
    argv = standing.server.command((sys.executable, "-c", answer))
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            server.stdout.readline()
            subprocess.run(standing.client.command((sys.executable, "-c", pour)), check=True, timeout=60)
        finally:
            server.kill()
    return {name: value for name, value in readings(standing).items() if isinstance(value, int)}


def test_losses_show_in_the_readings_as_drops_and_retransmits(standing: Link) -> None:
    standing.change(state(Impairment(delay_ns=2 * MS, loss_ppm=20_000)))
    told = poured(standing)
    # About 2100 packets: 42 lost, give or take five standard deviations.
    assert 10 <= told["qdisc_drops"] <= 80
    assert 5_000 < told["loss_ppm"] < 40_000
    assert told["retransmits"] >= told["qdisc_drops"] / 2
    assert told["ecn_marks"] == 0


def test_what_tcp_makes_of_duplicates_and_of_packets_that_overtake_is_counted(standing: Link) -> None:
    standing.change(state(Impairment(delay_ns=2 * MS)))
    names = ("retransmits", "duplicates", "out_of_order", "overtaken")
    # A sender that moves to the other processor overtakes itself (1 transfer of 6): of three one has nothing of it.
    assert [0] * 4 in [[told[name] for name in names] for told in (poured(standing) for _ in range(3))]
    standing.change(state(Impairment(delay_ns=2 * MS, duplicate_ppm=20_000)))
    # About 2100 packets: 42 twice, give or take five standard deviations.
    assert 10 <= poured(standing)["duplicates"] <= 80
    standing.change(state(Impairment(delay_ns=2 * MS, reorder_ppm=100_000)))
    hurried = poured(standing)
    assert hurried["out_of_order"] >= 20
    assert hurried["overtaken"] >= 1


def test_with_ecn_packets_come_marked_in_place_of_lost(standing: Link) -> None:
    standing.change(state(Impairment(delay_ns=2 * MS, loss_ppm=20_000, ecn=True)))
    told = poured(standing)
    assert 10 <= told["ecn_marks"] <= 80
    # What asks for the connection cannot carry a mark: it may be lost, and a lost answer is sent again too.
    assert told["retransmits"] <= 3
    assert told["qdisc_drops"] >= told["ecn_marks"]
    standing.change(state(Impairment(delay_ns=2 * MS)))
    assert poured(standing)["ecn_marks"] == 0
