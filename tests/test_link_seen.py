"""What a fault of a link says that it saw in the kernel, and that it fails when somebody else undoes it meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_faults import lasting

from ingest_bench.errors import RunFailed
from ingest_bench.experiment import catalog
from ingest_bench.faults import checks, timeline
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import LinkName
from ingest_bench.model.target import TargetOptions
from ingest_bench.network.act.link import Link, link
from ingest_bench.network.act.links import Links
from ingest_bench.network.measure import qdiscs

pytestmark = pytest.mark.netns
BOTH = "to-server and to-client"
RATE = ("tc", "qdisc", "change", "dev", "{device}", "root", "tbf", "rate", "9mbit", "burst", "9000", "limit", "90000")
# What each says on a link of profile "ethernet"; what somebody else does at the client's end; what the fault says then.
FAULTS = [
    (
        lasting("partition"),
        f"frames {BOTH} go to nobody",
        ("ip", "neigh", "replace", "{peer}", "lladdr", "02:00:00:00:00:07", "dev", "{device}"),
        "to-server: frames have a receiver again; somebody else",
    ),
    (
        lasting("blackhole", direction="to-client"),
        "segments with data to-client vanish at the receiver",
        ("tc", "filter", "del", "dev", "{device}", "ingress"),
        "to-client: the filter in which packets vanish is gone; somebody else",
    ),
    (
        lasting("mtu-blackhole", mtu_bytes=1400),
        f"packets above 1400 bytes {BOTH} vanish at the receiver",
        ("tc", "qdisc", "del", "dev", "{device}", "clsact"),
        "to-client: the filter in which packets vanish is gone; somebody else",
    ),
    (
        lasting("profile", profile="ethernet-100m"),
        "to-server tbf 100mbit, to-client tbf 100mbit, MTU 1500",
        ("ip", "link", "set", "{device}", "mtu", "1400"),
        "the MTU of {device} is 1400, not 1500",
    ),
    (
        lasting("throttle", rate_bps=50_000_000),
        "to-server tbf 50mbit, to-client tbf 50mbit, MTU 1500",
        RATE,
        "to-server: tbf rate is 1125000.0, not 6.25e\\+06",
    ),
]


@pytest.fixture
def made() -> Iterator[Link]:
    ethernet = catalog.profile("ethernet")
    faults = tuple(fault for fault, *_ in FAULTS)
    cell = Cell(name="c", levels={}, network=ethernet, target=TargetOptions(), load=LoadOptions(), faults=faults)
    with link(ethernet, later=tuple(checks.states(cell)[LinkName((1,))])) as opened:
        yield opened


def stage_of(*links: Link) -> Stage:
    return Stage(links=Links(by_name={LinkName((number,)): one for number, one in enumerate(links, 1)}))


@pytest.mark.parametrize(("fault", "words", "theirs", "said"), FAULTS, ids=[fault.kind for fault, *_ in FAULTS])
def test_a_fault_says_what_the_kernel_has_and_fails_when_somebody_else_has_changed_that(
    made: Link, fault: Fault, words: str, theirs: tuple[str, ...], said: str
) -> None:
    begun = timeline.begin(fault, stage_of(made))
    assert begun.seen == f"clients-1: {words}"
    assert begun.end() == ""
    begun = timeline.begin(fault, stage_of(made))
    client = made.ends[0]
    client.namespace.run([word.format(device=client.device, peer=client.peer) for word in theirs])
    with pytest.raises(RunFailed, match=f"link clients-1 {said.format(device=client.device)}"):
        begun.end()
    # All the same it has ended.
    assert not made.changes
    assert not +made.layers


def test_one_that_overlaps_another_says_what_both_make_of_the_link(made: Link, tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("0,20mbit\n")
    outer = timeline.begin(lasting("throttle", rate_bps=50_000_000), stage_of(made))
    inner = timeline.begin(lasting("trace", trace=str(tmp_path / "trace"), direction="to-client"), stage_of(made))
    assert inner.seen == "at first clients-1: to-server tbf 50mbit, to-client tbf 20mbit, MTU 1500"
    assert inner.end().endswith(" changes of the rate")
    assert outer.end() == ""


def test_a_link_that_cannot_have_it_has_nothing_of_it(made: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    before = made.profile
    monkeypatch.setattr(qdiscs, "differences", lambda *_, **__: ["tbf is missing"])
    with pytest.raises(RunFailed, match="link clients-1 to-server: tbf is missing"):
        timeline.begin(FAULTS[-1][0], stage_of(made))
    assert (made.profile, made.changes) == (before, [])


def test_queues_have_words() -> None:
    def shown(*all_of_it: Any) -> str:
        return json.dumps(all_of_it)

    netem = {"kind": "netem", "handle": "1:", "options": {"delay": {"delay": 0.025}, "loss-random": {"loss": 0.01}}}
    fq = {"kind": "fq_codel", "handle": "0:", "options": {}}
    assert qdiscs.words(shown(fq), "") == "no queue of ours"
    assert qdiscs.words(shown(netem, {"kind": "tbf", "handle": "2:", "options": {"rate": 12_500_000}}), "") == (
        "netem 25ms loss 1% with tbf 100mbit"
    )
    cake = {"kind": "cake", "handle": "2:", "options": {"bandwidth": 1_250_000}}
    assert qdiscs.words(shown(cake), "") == "cake 10mbit"
    hfsc = {"kind": "hfsc", "handle": "2:", "options": {}}
    classes = "class hfsc 2:1 parent 2: sc m1 0bit d 0us m2 8Mbit ul m1 0bit d 0us m2 8Mbit"
    assert qdiscs.words(shown(hfsc, {"kind": "red", "handle": "3:", "options": {}}), classes) == "hfsc 8mbit with red"
