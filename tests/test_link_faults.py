"""Faults of a link: what a trace file says, their effect in the kernel, and failure if another program undoes it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fault_lab import S, make_cell, make_fault, make_links_stage, open_link_for

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.experiment import catalog
from ingest_bench.faults import checks, link_profile, timeline
from ingest_bench.faults.apply import override_profile
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act.link import Link
from ingest_bench.network.measure import qdiscs

MBIT = 10**6


def test_csv_trace_repeats_after_its_last_rate() -> None:
    changes, duration_ns = link_profile.parse_trace("0,10mbit\n1.5,2mbit\n2,0bit\n", "x")
    repeated = itertools.islice(link_profile.repeat_trace(changes, duration_ns), 5)
    assert [(change.at_ns / S, change.rate_bps) for change in repeated] == [
        (0, 10 * MBIT),
        (1.5, 2 * MBIT),
        (2, 64_000),
        (3.5, 10 * MBIT),
        (5, 2 * MBIT),
    ]


def test_mahimahi_trace_has_the_mean_rate_of_each_half_second() -> None:
    # 1000 packets in the first half second, 500 in the second, none in the third, one in the last.
    moments = [number // 2 for number in range(1000)] + [500 + number for number in range(500)] + [1900, 2000]
    changes, duration_ns = link_profile.parse_trace("\n".join(map(str, moments)), "x")
    assert duration_ns == 2 * S
    assert [change.rate_bps for change in changes] == [24 * MBIT, 12 * MBIT, 64_000, 64_000]


@pytest.mark.parametrize(
    ("duration_ms", "times_s"),
    [(1, [0]), (7, [0]), (499, [0]), (500, [0]), (600, [0]), (999, [0]), (1000, [0, 0.5]), (1600, [0, 0.5, 1])],
)
def test_constant_mahimahi_trace_has_one_rate_for_any_duration(duration_ms: int, times_s: list[float]) -> None:
    changes, duration_ns = link_profile.parse_trace("\n".join(map(str, range(1, duration_ms + 1))), "x")
    assert [change.at_ns / S for change in changes] == times_s
    # A packet at the end of a step belongs to the next one.
    assert [change.rate_bps for change in changes] == pytest.approx([12 * MBIT] * len(times_s), rel=1 / 400)
    assert duration_ns >= S // 2
    assert duration_ns % (duration_ms * 10**6) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one line"),
        ("0,10mbit\n0.1,2mbit", "line 2: the seconds must begin at 0 and grow by at least 0.5"),
        ("1,10mbit", "line 1: the seconds must begin at 0"),
        ("0,10mbit\nx", 'line 2: "x" is not'),
        ("0,nan\n", "line 1"),
        ("nan,1mbit\n", "line 1"),
        ("0,1mbit\n1e400,1mbit", "line 2"),
        ("0,1mbit\n1,101gbit", "x, at 1s: rate: 101000000000 is not between 10kbit and 100gbit"),
        ("1\n" * 10_000, "x, at 0ns: rate: 120000000000 is not between"),
        ("5\n4\n", "must not fall"),
        ("0\n", "must not fall"),
        ("1.5\n", "is CSV"),
        ("99999999999999999999\n", "at most 24 hours"),
        ("0,1mbit\n86401,1mbit", "line 2: a trace is at most 24 hours"),
    ],
)
def test_malformed_trace_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        link_profile.parse_trace(text, "x")


def make_trace_cell(file: Path, profile: Profile, direction: Any = "both") -> Cell:
    return dataclasses.replace(make_cell(make_fault("trace", trace=str(file), direction=direction)), network=profile)


def test_link_without_a_rate_and_missing_file_are_refused(tmp_path: Path) -> None:
    file, ethernet = tmp_path / "trace", catalog.load_profile("ethernet")
    with pytest.raises(SpecError, match="cannot be read"):
        checks.check_faults(make_trace_cell(file, ethernet))
    file.write_text("0,1mbit\n")
    checks.check_faults(make_trace_cell(file, ethernet))
    with pytest.raises(SpecError, match="has no rate to-server and to-client"):
        checks.check_faults(make_trace_cell(file, Profile(name="free")))
    one_way = Profile(name="up", to_server=Impairment(rate_bps=MBIT))
    for direction in ("both", "to-client"):
        with pytest.raises(SpecError, match="has no rate to-client"):
            checks.check_faults(make_trace_cell(file, one_way, direction))
    checks.check_faults(make_trace_cell(file, one_way, "to-server"))


def test_trace_that_is_not_a_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, message in ((pipe, "named pipe"), (Path("/dev/zero"), "device"), (tmp_path, "directory")):
        with pytest.raises(SpecError, match=message):
            checks.check_faults(make_trace_cell(path, catalog.load_profile("ethernet")))


@pytest.mark.measures
@pytest.mark.netns
def test_link_follows_a_trace_with_another_override_and_is_restored(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text("0,100mbit\n0.5,50mbit\n")
    ethernet = catalog.load_profile("ethernet")
    fault = make_fault("trace", trace=str(file))
    with open_link_for(ethernet, fault) as link:
        active = timeline.begin_fault(fault, make_links_stage(link))
        rates = set()
        with override_profile(link, lambda profile: dataclasses.replace(profile, mtu_bytes=1400)):
            deadline = time.monotonic() + 2.2
            while time.monotonic() < deadline:
                rates.add((link.profile.to_server.rate_bps, link.profile.mtu_bytes))
                time.sleep(0.01)
        assert rates == {(100 * MBIT, 1400), (50 * MBIT, 1400)}
        assert 3 <= int(active.end().split()[0]) <= 6
        assert link.profile == ethernet


def test_change_that_fails_is_raised_at_the_end() -> None:
    has_failed = threading.Event()

    def set_profile(profile: Profile) -> None:
        # The first rate is set by the thread that begins the replay.
        if threading.current_thread() is not threading.main_thread():
            has_failed.set()
            raise RunFailed(f"no {profile.to_server.rate_bps}")

    link: Any = SimpleNamespace(
        profile=Profile(name="x"), overrides=[], lock=threading.RLock(), set_profile=set_profile
    )
    changes = (link_profile.RateChange(0, MBIT),)
    counts: list[int] = []
    with (
        pytest.raises(RunFailed, match=f"no {MBIT}"),
        link_profile.replay_trace(link, changes, S, ("to-server",), counts),
    ):
        assert has_failed.wait(60)
    assert link.overrides == counts == []


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


@pytest.mark.netns
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


@pytest.mark.netns
def test_overlapping_faults_report_their_combined_effect(link: Link, tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("0,20mbit\n")
    outer = timeline.begin_fault(make_fault("throttle", rate_bps=50_000_000), make_links_stage(link))
    inner = timeline.begin_fault(
        make_fault("trace", trace=str(tmp_path / "trace"), direction="to-client"), make_links_stage(link)
    )
    assert inner.effect == "at first clients-1: to-server tbf 50mbit, to-client tbf 20mbit, MTU 1500"
    assert inner.end().endswith(" changes of the rate")
    assert outer.end() == ""


@pytest.mark.netns
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
