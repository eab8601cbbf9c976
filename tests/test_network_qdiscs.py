from __future__ import annotations

import json

import pytest

from ingest_bench.model.network import Impairment
from ingest_bench.network.measure import qdiscs
from ingest_bench.network.plan import netem

MS = 10**6
COUNTS = {"bytes": 9, "packets": 5, "drops": 2, "overlimits": 0, "requeues": 0, "backlog": 0, "qlen": 1}
NETEM = {"kind": "netem", "handle": "1:", "root": True, "refcnt": 2, **COUNTS}
TBF = {
    "kind": "tbf",
    "handle": "2:",
    "parent": "1:1",
    "options": {"rate": 125000000, "burst": 250000, "minburst": 12375, "lat": 48000},
    **COUNTS,
}
# What tc 6.1 printed on a kernel with netem, after each was set.
SHOWN = [
    (
        Impairment(delay_ns=10 * MS, jitter_ns=3 * MS, delay_correlation_ppm=250_000, limit_packets=1000),
        {"limit": 1000, "delay": {"delay": 0.01, "jitter": 0.003, "correlation": 0.25}, "ecn": False, "gap": 0},
    ),
    (
        Impairment(loss_ppm=10_000, loss_correlation_ppm=500_000),
        {"limit": 1000, "loss-random": {"loss": 0.01, "correlation": 0.5}, "ecn": False, "gap": 0},
    ),
    (
        Impairment(loss_state_ppm=(10_000, 300_000, 200_000)),
        {"limit": 1000, "loss-state": {"p13": 0.01, "p31": 0.3, "p32": 0.2, "p23": 1, "p14": 0}, "ecn": False},
    ),
    (
        Impairment(loss_gemodel_ppm=(10_000, 100_000, 700_000, 1_000), ecn=True),
        {"limit": 1000, "loss-gemodel": {"p": 0.01, "r": 0.1, "1-h": 0.7, "1-k": 0.001}, "ecn": True, "gap": 0},
    ),
    (
        Impairment(duplicate_ppm=10_000, duplicate_correlation_ppm=250_000, corrupt_ppm=1_000),
        {
            "limit": 1000,
            "duplicate": {"duplicate": 0.01, "correlation": 0.25},
            "corrupt": {"corrupt": 0.001, "correlation": 0},
        },
    ),
    (
        Impairment(netem_rate_bps=10**6, packet_overhead_bytes=20, cell_bytes=53, cell_overhead_bytes=5),
        {"limit": 1000, "rate": {"rate": 125000, "packetoverhead": 20, "cellsize": 53, "celloverhead": 5}},
    ),
    (
        Impairment(slot_min_ns=800_000, slot_max_ns=MS, slot_packets=42, slot_bytes=64_000, limit_packets=1000),
        {"limit": 1000, "slot": {"min-delay": 0.0008, "max-delay": 0.001, "packets": 42, "bytes": 64000}},
    ),
]


@pytest.mark.parametrize(("impairment", "options"), SHOWN)
def test_what_the_kernel_shows_is_what_it_was_told(impairment: Impairment, options: dict[str, object]) -> None:
    assert qdiscs.differences(json.dumps([{**NETEM, "options": options}]), impairment, 1500) == []


@pytest.mark.parametrize("options", [options for _, options in SHOWN])
def test_each_option_that_differs_is_named(options: dict[str, object]) -> None:
    other = Impairment(delay_ns=7 * MS, loss_ppm=1)
    wrong = qdiscs.differences(json.dumps([{**NETEM, "options": options}]), other, 1500)
    assert any(text.startswith("netem delay.delay is") for text in wrong)


def test_a_missing_and_a_foreign_queue_are_differences() -> None:
    assert qdiscs.differences(json.dumps([TBF]), Impairment(), 1500) == ["tbf is there"]
    assert qdiscs.differences("[]", Impairment(delay_ns=MS), 1500) == ["netem is missing"]


def test_what_tc_rounds_is_no_difference_and_another_rate_is() -> None:
    assert qdiscs.differences(json.dumps([TBF]), Impairment(rate_bps=10**9), 1500) == []
    wrong = qdiscs.differences(json.dumps([TBF]), Impairment(rate_bps=10**8), 1500)
    assert "tbf rate is 125000000.0, not 1.25e+07" in wrong
    without_peak = {**TBF, "options": {"rate": 125000000, "burst": 250000, "lat": 48000}}
    wrong = qdiscs.differences(json.dumps([without_peak]), Impairment(rate_bps=10**9), 1500)
    assert wrong == ["tbf minburst is None, not 12500"]


def test_of_two_netems_one_is_the_bottleneck() -> None:
    far = Impairment(rate_bps=10**9, delay_ns=MS, limit_packets=412)
    line = {"delay": 0.001, "jitter": 0, "correlation": 0}
    root = {**NETEM, "options": {"limit": netem.queue_limit_packets(far, 1500), "delay": line}}
    rate, slot = {"rate": 125000000, "packetoverhead": 0}, {"min-delay": 0.0001, "max-delay": 0.0001}
    child = {**NETEM, "handle": "2:", "parent": "1:1", "options": {"limit": 412, "rate": rate, "slot": slot}}
    assert qdiscs.differences(json.dumps([root, child]), far, 1500) == []
    assert qdiscs.differences(json.dumps([root]), far, 1500) == ["netem is missing"]
    gathers = {**child, "options": {"limit": 412, "rate": rate}}
    assert qdiscs.differences(json.dumps([root, gathers]), far, 1500) == ["netem slot.min-delay is None, not 0.0001"]
    alone = Impairment(rate_bps=10**9, limit_packets=412)
    assert qdiscs.differences(json.dumps([child]), alone, 1500, rate_by_netem=True) == []
    assert qdiscs.differences(json.dumps([child]), alone, 1500) == ["netem is there", "tbf is missing"]


def test_the_counters_are_the_roots() -> None:
    child = {**TBF, "packets": 4, "drops": 1}
    assert qdiscs.counters(json.dumps([{**NETEM, "options": {}}, child])) == qdiscs.Counters(5, 9, 2)
