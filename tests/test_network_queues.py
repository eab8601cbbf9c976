from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingest_bench import system
from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.experiment import catalog, contradictions
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act import box, uml
from ingest_bench.network.measure import expected, qdiscs
from ingest_bench.network.plan import guest, link_plan, netem, queues

MS = 10**6
FAIR = Impairment(rate_bps=10**8, delay_ns=25 * MS, queue="fq_codel")
# What tc 6.1 printed of these in a guest; what it says of hfsc is no JSON.
HFSC = (
    '{"kind":"hfsc","handle":"2:","root":true,"refcnt":2,"options":{default 1 },'
    '"bytes":9,"packets":5,"drops":2,"qlen":1}'
)
CODEL = (
    '{"kind":"fq_codel","handle":"3:","parent":"2:1","options":{"limit":10240,"flows":1024,"quantum":1514,'
    '"target":4999,"interval":99999,"memory_limit":33554432,"ecn":true,"drop_batch":64},"drops":2,"ecn_mark":7}'
)
CLASSES = (
    "class hfsc 2: root \nclass hfsc 2:1 parent 2: leaf 3: rt m1 0bit d 0us m2 100Mbit \n"
    "class fq_codel 3:1f5 parent 3: \n"
)


@pytest.mark.parametrize(
    ("impairment", "lines"),
    [
        (
            FAIR,
            (
                "qdisc replace dev d root handle 1: netem limit 5883 delay 25000us",
                "qdisc replace dev d parent 1:1 handle 2: hfsc default 1",
                "class replace dev d parent 2: classid 2:1 hfsc rt m2 100000000bit",
                (
                    "qdisc replace dev d parent 2:1 handle 3: fq_codel limit 10240 quantum 1514 "
                    "target 5000us interval 100000us noecn"
                ),
            ),
        ),
        (
            Impairment(rate_bps=10**7, queue="red", ecn=True),
            (
                "qdisc replace dev d root handle 2: hfsc default 1",
                "class replace dev d parent 2: classid 2:1 hfsc rt m2 10000000bit",
                (
                    "qdisc replace dev d parent 2:1 handle 3: red limit 62074 min 5172 max 15518 avpkt 1000 "
                    "burst 9 bandwidth 10000000bit adaptive ecn"
                ),
            ),
        ),
        (
            Impairment(rate_bps=10**7, queue="cake", ecn=True),
            ("qdisc replace dev d root handle 2: cake bandwidth 10000000bit raw",),
        ),
        # A mark of netem in place of a loss, and a queue's own.
        (
            Impairment(rate_bps=10**7, loss_ppm=10_000, queue="cake", ecn=True),
            (
                "qdisc replace dev d root handle 1: netem limit 1000 loss random 1% ecn",
                "qdisc replace dev d parent 1:1 handle 2: cake bandwidth 10000000bit raw",
            ),
        ),
    ],
)
def test_a_queue_stands_behind_what_holds_packets_back(impairment: Impairment, lines: tuple[str, ...]) -> None:
    assert netem.lines("d", impairment, 1500) == lines
    assert netem.lines("d", impairment, 1500, rate_by_netem=True) == lines


def test_another_rate_is_set_in_place_and_another_queue_is_made_anew() -> None:
    slower = replace(FAIR, rate_bps=10**6)
    assert netem.change("d", FAIR, slower, 1500) == netem.lines("d", slower, 1500)
    for other in (replace(FAIR, queue="red"), replace(FAIR, queue="cake"), replace(FAIR, queue="fifo")):
        assert netem.change("d", FAIR, other, 1500) == ("qdisc del dev d root", *netem.lines("d", other, 1500))


def test_the_lengths_of_red_fit_into_the_kernels_average() -> None:
    for rate_bps, mtu_bytes, frames in (
        (10**4, 576, None),
        (10**11, 1500, None),
        (10**9, 9000, 887),
        (10**9, 1500, 32),
    ):
        impairment = Impairment(rate_bps=rate_bps, queue="red", limit_packets=frames)
        red = queues.red_lengths(
            frame_bytes=mtu_bytes + netem.ETHERNET_HEADER_BYTES, frames=netem.queue_frames(impairment, mtu_bytes)
        )
        # iproute2, tc/tc_red.c, tc_red_eval_ewma; include/net/red.h, red_check_params
        excess, weight = red.burst_packets + 1 - red.marks_from / 1000, 1
        assert excess >= 1
        while excess > (1 - (1 - 2.0**-weight) ** red.burst_packets) * 2.0**weight:
            weight += 1
        assert red.marks_all_from.bit_length() + weight <= 32
        assert 0 < red.marks_from < red.marks_all_from < red.limit


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"queue": "codel"}, "'codel' is not one of fifo, fq_codel, cake, red"),
        ({"queue": "fq_codel"}, 'nothing ever waits in "fq_codel" without a bottleneck; add a rate'),
        ({"queue": "cake", "rate": "1mbit", "limit_packets": "9"}, "cake has no limit in packets"),
        ({"queue": "red", "rate": "1mbit", "limit_packets": "31"}, "31 frames of 1514 bytes; .* between 32 and 5,284"),
        ({"queue": "red", "rate": "1mbit", "limit_packets": "5285"}, "5,285 frames .* averages at most 8 MB"),
        ({"queue": "red", "rate": "1mbit", "burst": "9KiB"}, "burst: a token bucket has a FIFO"),
        ({"queue": "red", "rate": "1mbit", "netem_rate": "1mbit"}, "netem_rate: it would be a second bottleneck"),
        ({"queue": "fifo", "rate": "1mbit", "ecn": "on"}, 'ecn does nothing without loss .* another queue than "fifo"'),
    ],
)
def test_a_queue_that_cannot_be_meant_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        catalog.profile("unshaped", {"mtu": "1500", "gso_max_segs": "1", "to_server": keys})


def test_a_queue_of_super_packets_is_refused_and_its_bounds_are_those_of_its_plan() -> None:
    with pytest.raises(SpecError, match="queue would count super-packets"):
        catalog.profile("unshaped", {"to_client": {"queue": "cake", "rate": "1mbit"}})
    assert contradictions._RED_BYTES == queues.RED_LARGEST_BYTES
    assert contradictions._RED_FRAMES == netem.SMALLEST_QUEUE_FRAMES


def test_what_tc_shows_of_a_queue_is_compared_with_what_it_was_told() -> None:
    alone = replace(FAIR, delay_ns=0, ecn=True)
    shown = f"[{HFSC},{CODEL}]"
    assert qdiscs.differences(shown, alone, 1500) == []
    assert qdiscs.counters(shown) == qdiscs.Counters(5, 9, 2)
    assert qdiscs.marks(shown) == 7
    assert qdiscs.differences(shown, replace(alone, ecn=False), 1500) == ["fq_codel ecn is 1.0, not 0"]
    assert qdiscs.differences(f"[{HFSC}]", alone, 1500) == ["fq_codel is missing"]
    assert qdiscs.differences(shown, Impairment(), 1500) == ["hfsc is there", "fq_codel is there"]
    assert qdiscs.differences(shown, replace(alone, limit_packets=9), 1500) == ["fq_codel limit is 10240.0, not 9"]
    # A kernel's own queue is none of ours.
    assert qdiscs.differences(json.dumps([{"kind": "fq_codel", "handle": "0:"}]), Impairment(), 1500) == []
    cake = json.dumps([{"kind": "cake", "handle": "2:", "options": {"bandwidth": 1250000, "overhead": 0}}])
    assert qdiscs.differences(cake, Impairment(rate_bps=10**7, queue="cake"), 1500) == []
    assert qdiscs.differences(cake, Impairment(rate_bps=10**8, queue="cake"), 1500) != []


def test_the_rate_of_a_queue_is_read_back_from_its_class() -> None:
    assert qdiscs.class_differences(CLASSES, FAIR) == []
    assert qdiscs.class_differences("", Impairment(rate_bps=10**7, queue="cake")) == []
    assert "not a real-time curve of" in qdiscs.class_differences(CLASSES, replace(FAIR, rate_bps=10**7))[0]
    assert "hfsc has no class" in qdiscs.class_differences("", FAIR)[0]
    shared = CLASSES.replace(" rt m1", " sc m1")
    assert qdiscs.class_differences(shared, FAIR) != []


def test_a_bulk_is_promised_where_the_queue_lets_all_of_it_wait() -> None:
    assert expected.bulk(replace(FAIR, rate_bps=10**7), 1500) is not None
    # 24 frames would wait 290 ms: CoDel drops from 100 ms on.
    assert expected.bulk(replace(FAIR, rate_bps=10**6), 1500) is None
    assert expected.bulk(Impairment(rate_bps=10**6), 1500) is not None
    assert expected.bulk(Impairment(rate_bps=10**8, queue="red"), 1500) is not None
    assert expected.bulk(Impairment(rate_bps=10**7, queue="red"), 1500) is None


def test_the_guest_refuses_a_rate_that_it_does_not_keep_and_the_kernel_takes_it() -> None:
    fast = Profile(name="x", gso_max_segs=1, to_client=Impairment(rate_bps=10**9, queue="cake"))
    assert guest.refusal(fast) == 'queue = "cake": the User-Mode Linux box keeps a rate of at most 500 Mbit/s with it.'
    assert guest.refusal(replace(fast, to_client=Impairment(rate_bps=5 * 10**8, queue="cake"))) == ""
    assert guest.refusal(replace(fast, to_client=Impairment(rate_bps=10**9))) == ""
    assert fast.needs_netem
    lines = [str(step) for step in link_plan.steps(fast, "kernel")]
    assert "box: tc qdisc replace dev to-client root handle 2: cake bandwidth 1000000000bit raw" in lines


def test_a_box_that_has_netem_and_not_the_queue_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Profile(name="fair", gso_max_segs=1, to_server=FAIR)
    monkeypatch.setattr(box, "BOXES", {"kernel": lambda: "", "uml": lambda: ""})
    monkeypatch.setattr(box, "QUEUES", {"kernel": lambda queue: f"{queue}: no.", "uml": lambda _: ""})
    assert box.choose("auto", (state,)) == "uml"
    assert box.choose("auto", (replace(state, to_server=Impairment(delay_ns=MS)),)) == "kernel"
    with pytest.raises(MissingCapability, match=r'fq_codel: no\.\nProfile "fair" needs it'):
        box.choose("kernel", (replace(state, to_server=Impairment()), state))


def test_a_guest_without_the_module_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "MODULES", tmp_path)
    monkeypatch.setattr(system, "run", lambda _: "6.1\n")
    folder = tmp_path / "6.1/kernel/net/sched"
    folder.mkdir(parents=True)
    (folder / "sch_hfsc.ko").touch()
    assert uml.queue_complaint("red") == f"red: not in User-Mode Linux, for want of {folder / 'sch_red.ko'}."
    (folder / "sch_red.ko").touch()
    assert uml.queue_complaint("red") == ""


@pytest.mark.netns
@pytest.mark.parametrize("queue", queues.MANAGED)
def test_a_queue_is_tried_in_the_kernel_itself(queue: Any) -> None:
    said = box.kernel_queue_complaint(queue)
    assert said == "" or said.startswith(f'{queue}: not in this kernel (tc: "')
