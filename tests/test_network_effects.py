"""Effects of netem's options on packets, on whichever real netem this machine has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter

import pytest
from standing_link import make_profile, open_for, send

from ingest_bench.model.network import Impairment, LinkCheck
from ingest_bench.network.act.link import Link
from ingest_bench.network.measure.check import check_link
from ingest_bench.network.measure.readings import link_columns, start_counting

pytestmark = pytest.mark.netem

MS = 10**6
# Applied one after the other on the same link, so that leftovers of a state would show in the next one.
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
    "a rate behind duplicates": Impairment(rate_bps=5 * 10**6, duplicate_ppm=20_000),
    **{
        queue: Impairment(rate_bps=20 * 10**6, delay_ns=5 * MS, queue=queue, ecn=True)
        for queue in ("fq_codel", "cake", "red")
    },
    "nothing": Impairment(),
}
# A bottleneck spaces the packets of a burst, and its queue holds all of them.
SPACED = ("a bucket behind a delay", "a rate alone", "a rate behind duplicates", "fq_codel", "cake")


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    with open_for(STATES.values()) as opened:
        yield opened


def failed(checks: tuple[LinkCheck, ...]) -> list[LinkCheck]:
    return [check for check in checks if not check.passed]


@pytest.mark.parametrize("name", STATES)
def test_state_has_its_effects_and_none_of_the_state_before(link: Link, name: str) -> None:
    link.set_profile(make_profile(STATES[name]))
    checks = check_link(link)
    failures = failed(checks)
    # RED has a queue of 82 frames here, and marks from the 7th on.
    assert ("burst to-server" in {check.name for check in checks}) == (name in SPACED)
    if STATES[name].jitter_ns:
        # A busy machine moves all quantiles of a jitter; the delay alone is checked without jitter.
        failures = [check for check in failures if check.name != "rtt"]
    assert failures == []


def send_3_mb(link: Link) -> dict[str, int]:
    """Send 3 MB from the client to the server; return the columns."""
    start_counting(link)
    send(link, 3_000_000)
    return {name: value for name, value in link_columns(link).items() if isinstance(value, int)}


def test_losses_are_counted_as_drops_and_retransmits(link: Link) -> None:
    link.set_profile(make_profile(Impairment(delay_ns=2 * MS, loss_ppm=20_000)))
    columns = send_3_mb(link)
    # About 2100 packets: 42 lost, give or take five standard deviations.
    assert 10 <= columns["qdisc_drops"] <= 80
    assert 5_000 < columns["loss_ppm"] < 40_000
    assert columns["retransmits"] >= columns["qdisc_drops"] / 2
    assert columns["ecn_marks"] == 0


def test_duplicates_and_reordering_are_counted(link: Link) -> None:
    link.set_profile(make_profile(Impairment(delay_ns=2 * MS)))
    names = ("retransmits", "duplicates", "out_of_order", "reorder_events")
    # A sender that moves to another CPU reorders its packets (1 transfer of 6): one of three has no such event.
    assert [0] * 4 in [[columns[name] for name in names] for columns in (send_3_mb(link) for _ in range(3))]
    link.set_profile(make_profile(Impairment(delay_ns=2 * MS, duplicate_ppm=20_000)))
    # About 2100 packets: 42 twice, give or take five standard deviations.
    assert 10 <= send_3_mb(link)["duplicates"] <= 80
    link.set_profile(make_profile(Impairment(delay_ns=2 * MS, reorder_ppm=100_000)))
    reordered = send_3_mb(link)
    assert reordered["out_of_order"] >= 20
    assert reordered["reorder_events"] >= 1


def test_with_ecn_packets_are_marked_instead_of_dropped(link: Link) -> None:
    link.set_profile(make_profile(Impairment(delay_ns=2 * MS, loss_ppm=20_000, ecn=True)))
    # A client whose SYN is lost (1 of 50) repeats it without ECN (sysctl tcp_ecn_fallback).
    columns = next(filter(itemgetter("ecn_marks"), (send_3_mb(link) for _ in range(5))))
    assert 10 <= columns["ecn_marks"] <= 80
    # A SYN cannot be marked: it may be lost, and a lost SYN-ACK is resent too.
    assert columns["retransmits"] <= 3
    assert columns["qdisc_drops"] >= columns["ecn_marks"]
    link.set_profile(make_profile(Impairment(delay_ns=2 * MS)))
    assert send_3_mb(link)["ecn_marks"] == 0


@pytest.mark.parametrize("queue", ["fq_codel", "cake", "red"])
def test_full_queue_marks_packets_with_ecn_and_drops_them_without(link: Link, queue: str) -> None:
    marking = STATES[queue]
    link.set_profile(make_profile(replace(marking, ecn=False)))
    columns = send_3_mb(link)
    assert columns["ecn_marks"] == 0
    assert columns["qdisc_drops"] > 0
    link.set_profile(make_profile(marking))
    assert send_3_mb(link)["ecn_marks"] > 0
