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
# Output of tc 6.1 on a kernel with netem, after each impairment was set.
OUTPUTS = [
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


@pytest.mark.parametrize(("impairment", "options"), OUTPUTS)
def test_output_of_tc_matches_the_impairment(impairment: Impairment, options: dict[str, object]) -> None:
    assert qdiscs.find_differences(json.dumps([{**NETEM, "options": options}]), impairment, 1500) == []


@pytest.mark.parametrize("options", [options for _, options in OUTPUTS])
def test_differing_option_is_named(options: dict[str, object]) -> None:
    other = Impairment(delay_ns=7 * MS, loss_ppm=1)
    differences = qdiscs.find_differences(json.dumps([{**NETEM, "options": options}]), other, 1500)
    assert any(text.startswith("netem delay.delay is") for text in differences)


def test_missing_and_unexpected_qdiscs_are_differences() -> None:
    assert qdiscs.find_differences(json.dumps([TBF]), Impairment(), 1500) == ["tbf is unexpected"]
    assert qdiscs.find_differences("[]", Impairment(delay_ns=MS), 1500) == ["netem is missing"]


def test_rounding_of_tc_is_tolerated_and_another_rate_is_not() -> None:
    assert qdiscs.find_differences(json.dumps([TBF]), Impairment(rate_bps=10**9), 1500) == []
    differences = qdiscs.find_differences(json.dumps([TBF]), Impairment(rate_bps=10**8), 1500)
    assert "tbf rate is 125000000.0, not 1.25e+07" in differences
    without_peak = {**TBF, "options": {"rate": 125000000, "burst": 250000, "lat": 48000}}
    differences = qdiscs.find_differences(json.dumps([without_peak]), Impairment(rate_bps=10**9), 1500)
    assert differences == ["tbf minburst is None, not 12500"]


def test_second_netem_is_the_bottleneck() -> None:
    distant = Impairment(rate_bps=10**9, delay_ns=MS, limit_packets=412)
    line = {"delay": 0.001, "jitter": 0, "correlation": 0}
    root = {**NETEM, "options": {"limit": netem.netem_limit_packets(distant, 1500), "delay": line}}
    rate, slot = {"rate": 125000000, "packetoverhead": 0}, {"min-delay": 0.0001, "max-delay": 0.0001}
    child = {**NETEM, "handle": "2:", "parent": "1:1", "options": {"limit": 412, "rate": rate, "slot": slot}}
    assert qdiscs.find_differences(json.dumps([root, child]), distant, 1500) == []
    assert qdiscs.find_differences(json.dumps([root]), distant, 1500) == ["netem is missing"]
    without_slot = {**child, "options": {"limit": 412, "rate": rate}}
    assert qdiscs.find_differences(json.dumps([root, without_slot]), distant, 1500) == [
        "netem slot.min-delay is None, not 0.0001"
    ]
    rate_only = Impairment(rate_bps=10**9, limit_packets=412)
    assert qdiscs.find_differences(json.dumps([child]), rate_only, 1500, rate_by_netem=True) == []
    assert qdiscs.find_differences(json.dumps([child]), rate_only, 1500) == ["netem is unexpected", "tbf is missing"]


def test_counters_are_those_of_the_root() -> None:
    child = {**TBF, "packets": 4, "drops": 1}
    assert qdiscs.parse_counters(json.dumps([{**NETEM, "options": {}}, child])) == qdiscs.Counters(5, 2)
