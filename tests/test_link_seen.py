"""Faults of a link report their effect in the kernel, and fail if another program undoes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_lab import make_fault, make_links_stage, open_link_for

from ingest_bench.errors import RunFailed
from ingest_bench.experiment import catalog
from ingest_bench.faults import timeline
from ingest_bench.model.experiment import Fault
from ingest_bench.network.act.link import Link
from ingest_bench.network.measure import qdiscs

pytestmark = pytest.mark.netns
BOTH = "to-server and to-client"
RATE = ("tc", "qdisc", "change", "dev", "{device}", "root", "tbf", "rate", "9mbit", "burst", "9000", "limit", "90000")
# Fault, its effect on a link of profile "ethernet", the command of another program at the client's end, the error.
FAULTS = [
    (
        make_fault("partition"),
        f"frames {BOTH} have no receiver",
        ("ip", "neigh", "replace", "{peer}", "lladdr", "02:00:00:00:00:07", "dev", "{device}"),
        "to-server: frames have a receiver again; another program",
    ),
    (
        make_fault("blackhole", direction="to-client"),
        "segments with data to-client are dropped at the receiver",
        ("tc", "filter", "del", "dev", "{device}", "ingress"),
        "to-client: the filter that drops packets is gone; another program",
    ),
    (
        make_fault("mtu-blackhole", mtu_bytes=1400),
        f"packets above 1400 bytes {BOTH} are dropped at the receiver",
        ("tc", "qdisc", "del", "dev", "{device}", "clsact"),
        "to-client: the filter that drops packets is gone; another program",
    ),
    (
        make_fault("profile", profile="ethernet-100m"),
        "to-server tbf 100mbit, to-client tbf 100mbit, MTU 1500",
        ("ip", "link", "set", "{device}", "mtu", "1400"),
        "the MTU of {device} is 1400, not 1500",
    ),
    (
        make_fault("throttle", rate_bps=50_000_000),
        "to-server tbf 50mbit, to-client tbf 50mbit, MTU 1500",
        RATE,
        "to-server: tbf rate is 1125000.0, not 6.25e\\+06",
    ),
]


@pytest.fixture
def link() -> Iterator[Link]:
    with open_link_for(catalog.load_profile("ethernet"), *(fault for fault, *_ in FAULTS)) as opened:
        yield opened


@pytest.mark.parametrize(("fault", "effect", "command", "error"), FAULTS, ids=[fault.kind for fault, *_ in FAULTS])
def test_fault_reports_its_effect_and_fails_if_it_is_undone(
    link: Link, fault: Fault, effect: str, command: tuple[str, ...], error: str
) -> None:
    active = timeline.begin_fault(fault, make_links_stage(link))
    assert active.effect == f"clients-1: {effect}"
    assert active.end() == ""
    active = timeline.begin_fault(fault, make_links_stage(link))
    client = link.ends[0]
    client.namespace.run([word.format(device=client.device, peer=client.peer) for word in command])
    with pytest.raises(RunFailed, match=f"link clients-1 {error.format(device=client.device)}"):
        active.end()
    # It has ended nevertheless.
    assert not link.overrides
    assert not +link.active_faults


def test_overlapping_faults_report_their_combined_effect(link: Link, tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("0,20mbit\n")
    outer = timeline.begin_fault(make_fault("throttle", rate_bps=50_000_000), make_links_stage(link))
    inner = timeline.begin_fault(
        make_fault("trace", trace=str(tmp_path / "trace"), direction="to-client"), make_links_stage(link)
    )
    assert inner.effect == "at first clients-1: to-server tbf 50mbit, to-client tbf 20mbit, MTU 1500"
    assert inner.end().endswith(" changes of the rate")
    assert outer.end() == ""


def test_fault_that_fails_to_begin_leaves_the_link_unchanged(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    before = link.profile
    monkeypatch.setattr(qdiscs, "find_differences", lambda *_, **__: ["tbf is missing"])
    with pytest.raises(RunFailed, match="link clients-1 to-server: tbf is missing"):
        timeline.begin_fault(FAULTS[-1][0], make_links_stage(link))
    assert (link.profile, link.overrides) == (before, [])


def test_qdiscs_are_described() -> None:
    def shown(*entries: Any) -> str:
        return json.dumps(entries)

    netem = {"kind": "netem", "handle": "1:", "options": {"delay": {"delay": 0.025}, "loss-random": {"loss": 0.01}}}
    fq = {"kind": "fq_codel", "handle": "0:", "options": {}}
    assert qdiscs.describe_qdiscs(shown(fq), "") == "no qdisc"
    assert qdiscs.describe_qdiscs(
        shown(netem, {"kind": "tbf", "handle": "2:", "options": {"rate": 12_500_000}}), ""
    ) == ("netem 25ms loss 1% with tbf 100mbit")
    cake = {"kind": "cake", "handle": "2:", "options": {"bandwidth": 1_250_000}}
    assert qdiscs.describe_qdiscs(shown(cake), "") == "cake 10mbit"
    hfsc = {"kind": "hfsc", "handle": "2:", "options": {}}
    classes = "class hfsc 2:1 parent 2: sc m1 0bit d 0us m2 8Mbit ul m1 0bit d 0us m2 8Mbit"
    assert (
        qdiscs.describe_qdiscs(shown(hfsc, {"kind": "red", "handle": "3:", "options": {}}), classes)
        == "hfsc 8mbit with red"
    )
