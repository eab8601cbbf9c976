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
from ingest_bench.network.act import link as link_module
from ingest_bench.network.act import uml
from ingest_bench.network.measure import expected, qdiscs
from ingest_bench.network.plan import link_plan, netem

MS = 10**6
FAIR = Impairment(rate_bps=10**8, delay_ns=25 * MS, queue="fq_codel")
# Output of tc 6.1 in User-Mode Linux; that of hfsc is not JSON.
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
        # Marks of netem instead of losses, and of a queue.
        (
            Impairment(rate_bps=10**7, loss_ppm=10_000, queue="cake", ecn=True),
            (
                "qdisc replace dev d root handle 1: netem limit 1000 loss random 1% ecn",
                "qdisc replace dev d parent 1:1 handle 2: cake bandwidth 10000000bit raw",
            ),
        ),
    ],
)
def test_aqm_queue_is_below_a_shaper(impairment: Impairment, lines: tuple[str, ...]) -> None:
    assert netem.qdisc_lines("d", impairment, 1500) == lines
    assert netem.qdisc_lines("d", impairment, 1500, rate_by_netem=True) == lines


def test_red_lengths_fit_into_the_kernels_average() -> None:
    for rate_bps, mtu_bytes, frames in (
        (10**4, 576, None),
        (10**11, 1500, None),
        (10**9, 9000, 887),
        (10**9, 1500, 32),
    ):
        impairment = Impairment(rate_bps=rate_bps, queue="red", limit_packets=frames)
        red = netem.red_limits(
            frame_bytes=mtu_bytes + netem.ETHERNET_HEADER_BYTES, frames=netem.queue_frames(impairment, mtu_bytes)
        )
        # iproute2, tc/tc_red.c, tc_red_eval_ewma; include/net/red.h, red_check_params
        excess, weight = red.burst_packets + 1 - red.min_bytes / 1000, 1
        assert excess >= 1
        while excess > (1 - (1 - 2.0**-weight) ** red.burst_packets) * 2.0**weight:
            weight += 1
        assert red.max_bytes.bit_length() + weight <= 32
        assert 0 < red.min_bytes < red.max_bytes < red.limit_bytes


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"queue": "codel"}, 'did you mean "fq_codel"'),
        ({"queue": "fq_codel"}, '"fq_codel" requires a bottleneck. Add a rate'),
        ({"queue": "cake", "rate": "1mbit", "limit_packets": "9"}, "cake has no limit in packets"),
        ({"queue": "red", "rate": "1mbit", "limit_packets": "31"}, "31 frames of 1514 bytes; .* between 32 and 5,284"),
        ({"queue": "red", "rate": "1mbit", "limit_packets": "5285"}, "5,285 frames .* averages at most 8 MB"),
        ({"queue": "red", "rate": "1mbit", "burst": "9KiB"}, "burst conflicts with queue"),
        (
            {"queue": "red", "rate": "1mbit", "netem_rate": "1mbit"},
            "netem_rate conflicts with queue .*second bottleneck",
        ),
        ({"queue": "fifo", "rate": "1mbit", "ecn": "on"}, 'ecn does nothing without loss .* a queue other than "fifo"'),
    ],
)
def test_contradictory_queue_keys_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        catalog.load_profile("unshaped", {"mtu": "1500", "gso_max_segs": "1", "to_server": keys})


def test_queue_requires_single_segments() -> None:
    with pytest.raises(SpecError, match="queue would count super-packets"):
        catalog.load_profile("unshaped", {"to_client": {"queue": "cake", "rate": "1mbit"}})
    assert contradictions._RED_BYTES == netem.RED_LARGEST_BYTES
    assert contradictions._RED_FRAMES == netem.SMALLEST_QUEUE_FRAMES


def test_queue_options_are_compared_with_the_impairment() -> None:
    rate_only = replace(FAIR, delay_ns=0, ecn=True)
    output = f"[{HFSC},{CODEL}]"
    assert qdiscs.find_differences(output, rate_only, 1500) == []
    assert qdiscs.parse_counters(output) == qdiscs.Counters(5, 2)
    assert qdiscs.find_differences(output, replace(rate_only, ecn=False), 1500) == ["fq_codel ecn is 1.0, not 0"]
    assert qdiscs.find_differences(f"[{HFSC}]", rate_only, 1500) == ["fq_codel is missing"]
    assert qdiscs.find_differences(output, Impairment(), 1500) == ["hfsc is unexpected", "fq_codel is unexpected"]
    assert qdiscs.find_differences(output, replace(rate_only, limit_packets=9), 1500) == [
        "fq_codel limit is 10240.0, not 9"
    ]
    # The kernel's default qdisc is not a difference.
    assert qdiscs.find_differences(json.dumps([{"kind": "fq_codel", "handle": "0:"}]), Impairment(), 1500) == []
    cake = json.dumps([{"kind": "cake", "handle": "2:", "options": {"bandwidth": 1250000, "overhead": 0}}])
    assert qdiscs.find_differences(cake, Impairment(rate_bps=10**7, queue="cake"), 1500) == []
    assert qdiscs.find_differences(cake, Impairment(rate_bps=10**8, queue="cake"), 1500) != []


def test_rate_of_a_queue_is_compared_by_its_class() -> None:
    assert qdiscs.find_class_differences(CLASSES, FAIR) == []
    assert qdiscs.find_class_differences("", Impairment(rate_bps=10**7, queue="cake")) == []
    assert "not a real-time curve of" in qdiscs.find_class_differences(CLASSES, replace(FAIR, rate_bps=10**7))[0]
    assert "hfsc has no class" in qdiscs.find_class_differences("", FAIR)[0]
    shared = CLASSES.replace(" rt m1", " sc m1")
    assert qdiscs.find_class_differences(shared, FAIR) != []


def test_burst_is_planned_only_if_the_queue_holds_all_of_it() -> None:
    assert expected.plan_burst(replace(FAIR, rate_bps=10**7), 1500) is not None
    # 24 frames would wait 290 ms: CoDel drops from 100 ms on.
    assert expected.plan_burst(replace(FAIR, rate_bps=10**6), 1500) is None
    assert expected.plan_burst(Impairment(rate_bps=10**6), 1500) is not None
    assert expected.plan_burst(Impairment(rate_bps=10**8, queue="red"), 1500) is not None
    assert expected.plan_burst(Impairment(rate_bps=10**7, queue="red"), 1500) is None


def test_uml_refuses_a_rate_that_it_cannot_keep_with_a_queue() -> None:
    fast = Profile(name="x", gso_max_segs=1, to_client=Impairment(rate_bps=10**9, queue="cake"))
    message = 'queue = "cake": the User-Mode Linux router keeps a rate of at most 500 Mbit/s with it.'
    assert link_plan.find_uml_conflict(fast) == message
    assert link_plan.find_uml_conflict(replace(fast, to_client=Impairment(rate_bps=5 * 10**8, queue="cake"))) == ""
    assert link_plan.find_uml_conflict(replace(fast, to_client=Impairment(rate_bps=10**9))) == ""
    assert fast.needs_netem
    lines = [str(step) for step in link_plan.link_steps(fast, "kernel")]
    assert "router: tc qdisc replace dev to-client root handle 2: cake bandwidth 1000000000bit raw" in lines


def test_backend_without_the_queue_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Profile(name="fair", gso_max_segs=1, to_server=FAIR)
    monkeypatch.setattr(link_module, "NETEM_CHECKS", {"kernel": lambda: "", "uml": lambda: ""})
    monkeypatch.setattr(link_module, "QUEUE_CHECKS", {"kernel": lambda queue: f"{queue}: no.", "uml": lambda _: ""})
    assert link_module.choose_backend("auto", (state,)) == "uml"
    assert link_module.choose_backend("auto", (replace(state, to_server=Impairment(delay_ns=MS)),)) == "kernel"
    with pytest.raises(MissingCapability, match=r'fq_codel: no\.\nProfile "fair" requires netem'):
        link_module.choose_backend("kernel", (replace(state, to_server=Impairment()), state))


def test_missing_queue_module_of_uml_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_plan, "UML_MODULES", tmp_path)
    monkeypatch.setattr(system, "run", lambda _: "6.1\n")
    folder = tmp_path / "6.1/kernel/net/sched"
    folder.mkdir(parents=True)
    (folder / "sch_hfsc.ko").touch()
    assert uml.find_uml_queue_problem("red") == f"red: not in User-Mode Linux, which lacks {folder / 'sch_red.ko'}."
    (folder / "sch_red.ko").touch()
    assert uml.find_uml_queue_problem("red") == ""


@pytest.mark.netns
@pytest.mark.parametrize("queue", netem.AQM_QUEUES)
def test_queue_is_tried_in_the_kernel(queue: Any) -> None:
    problem = link_module.find_kernel_queue_problem(queue)
    assert problem == "" or problem.startswith(f'{queue}: not in this kernel (tc: "')
