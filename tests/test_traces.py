"""Rates over time: what a trace says, and a link that has them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.experiment import catalog
from ingest_bench.faults import checks, timeline
from ingest_bench.faults.links import trace
from ingest_bench.faults.links.layers import other_state
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Impairment, LinkName, Profile
from ingest_bench.model.target import TargetOptions
from ingest_bench.network.act.link import link
from ingest_bench.network.act.links import Links
from ingest_bench.network.plan.places import DIRECTIONS

MBIT = 10**6
S = 10**9


def test_a_trace_of_lines_with_rates_begins_again_after_its_last_one() -> None:
    steps, length_ns = trace.parse("0,10mbit\n1.5,2mbit\n2,0bit\n", "x")
    first = [(step.at_ns / S, step.rate_bps) for step in itertools.islice(trace.moments(steps, length_ns), 5)]
    assert first == [(0, 10 * MBIT), (1.5, 2 * MBIT), (2, 64_000), (3.5, 10 * MBIT), (5, 2 * MBIT)]


def test_a_trace_of_moments_has_the_rate_of_its_packets_in_each_half_second() -> None:
    # 1000 packets in the first half second, 500 in the second one, none in the third, one in the last.
    moments = [number // 2 for number in range(1000)] + [500 + number for number in range(500)] + [1900, 2000]
    steps, length_ns = trace.parse("\n".join(map(str, moments)), "x")
    assert length_ns == 2 * S
    assert [step.rate_bps for step in steps] == [24 * MBIT, 12 * MBIT, 64_000, 64_000]


@pytest.mark.parametrize(
    ("length_ms", "steps"),
    [(1, [0]), (7, [0]), (499, [0]), (500, [0]), (600, [0]), (999, [0]), (1000, [0, 0.5]), (1600, [0, 0.5, 1])],
)
def test_a_packet_each_millisecond_is_one_rate_however_long_the_trace_is(length_ms: int, steps: list[float]) -> None:
    found, length_ns = trace.parse("\n".join(map(str, range(1, length_ms + 1))), "x")
    assert [step.at_ns / S for step in found] == steps
    # A packet at the very moment at which a step ends is the next one's.
    assert [step.rate_bps for step in found] == pytest.approx([12 * MBIT] * len(steps), rel=1 / 400)
    assert length_ns >= S // 2
    assert length_ns % (length_ms * 10**6) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least one line"),
        ("0,10mbit\n0.1,2mbit", "line 2: the seconds begin at 0 and grow by 0.5"),
        ("1,10mbit", "line 1: the seconds begin at 0"),
        ("0,10mbit\nx", 'line 2: "x" is no'),
        ("0,nan\n", "line 1"),
        ("nan,1mbit\n", "line 1"),
        ("0,1mbit\n1e400,1mbit", "line 2"),
        ("0,1mbit\n1,101gbit", "x, at 1s: rate: 101000000000 is not between 10kbit and 100gbit"),
        ("1\n" * 10_000, "x, at 0ns: rate: 120000000000 is not between"),
        ("5\n4\n", "never fall"),
        ("0\n", "never fall"),
        ("1.5\n", "is CSV"),
        ("99999999999999999999\n", "at most 24 hours"),
        ("0,1mbit\n86401,1mbit", "line 2: a trace is at most 24 hours"),
    ],
)
def test_what_is_no_trace_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        trace.parse(text, "x")


def cell(file: Path, profile: Profile, direction: Any = "both") -> Cell:
    fault = Fault(kind="trace", at_ns=0, for_ns=S, trace=str(file), direction=direction)
    return Cell(name="c", levels={}, network=profile, target=TargetOptions(), load=LoadOptions(), faults=(fault,))


def test_a_link_without_a_rate_and_a_file_that_is_not_there_are_refused_before_anything_starts(tmp_path: Path) -> None:
    file, ethernet = tmp_path / "trace", catalog.profile("ethernet")
    with pytest.raises(SpecError, match="cannot be read"):
        checks.check(cell(file, ethernet))
    file.write_text("0,1mbit\n")
    checks.check(cell(file, ethernet))
    with pytest.raises(SpecError, match="has no rate to-server and to-client that could change"):
        checks.check(cell(file, Profile(name="free")))
    one_way = Profile(name="up", to_server=Impairment(rate_bps=MBIT))
    with pytest.raises(SpecError, match="has no rate to-client that could change"):
        checks.check(cell(file, one_way))
    with pytest.raises(SpecError, match="has no rate to-client that could change"):
        checks.check(cell(file, one_way, "to-client"))
    checks.check(cell(file, one_way, "to-server"))


def test_what_is_no_file_is_no_trace_and_nobody_waits_for_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, said in ((pipe, "named pipe"), (Path("/dev/zero"), "device"), (tmp_path, "directory")):
        with pytest.raises(SpecError, match=said):
            checks.check(cell(path, catalog.profile("ethernet")))


@pytest.mark.measures
@pytest.mark.netns
def test_a_link_has_the_rates_of_a_trace_beside_another_fault_and_at_last_its_own(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text("0,100mbit\n0.5,50mbit\n")
    ethernet = catalog.profile("ethernet")
    with link(ethernet, later=tuple(checks.states(cell(file, ethernet))[LinkName((1,))])) as made:
        stage = Stage(links=Links(by_name={LinkName((1,)): made}))
        begun = timeline.begin(Fault(kind="trace", at_ns=0, for_ns=1, trace=str(file)), stage)
        seen = set()
        with other_state(made, lambda profile: dataclasses.replace(profile, mtu_bytes=1400)):
            until = time.monotonic() + 2.2
            while time.monotonic() < until:
                seen.add((made.profile.to_server.rate_bps, made.profile.mtu_bytes))
                time.sleep(0.01)
        assert seen == {(100 * MBIT, 1400), (50 * MBIT, 1400)}
        changes = int(begun.end().split()[0])
        assert 3 <= changes <= 6
        assert made.profile == ethernet


@pytest.mark.netns
@pytest.mark.parametrize(("direction", "slow"), [("to-server", 0), ("to-client", 1)])
def test_a_trace_of_one_direction_leaves_the_other_as_it_is(tmp_path: Path, direction: Any, slow: int) -> None:
    file = tmp_path / "trace"
    file.write_text("0,20mbit\n")
    ethernet = catalog.profile("ethernet")
    fault = Fault(kind="trace", at_ns=0, for_ns=1, trace=str(file), direction=direction)
    states = checks.states(cell(file, ethernet, direction))[LinkName((1,))]
    with link(ethernet, later=tuple(states)) as made:

        def rates() -> list[int]:
            """Of each end, as the kernel has them."""
            shown = [end.namespace.run(("tc", "-j", "qdisc", "show", "dev", end.device)) for end in made.ends]
            return [queue["options"]["rate"] * 8 for text in shown for queue in json.loads(text)]

        own = rates()
        assert len(own) == 2
        begun = timeline.begin(fault, Stage(links=Links(by_name={LinkName((1,)): made})))
        until = time.monotonic() + 60
        while made.profile == ethernet:
            assert time.monotonic() < until
            time.sleep(0.01)
        expected = list(own)
        expected[slow] = 20 * MBIT
        assert rates() == expected
        begun.end()
        assert rates() == own


def test_a_change_that_fails_is_the_faults_error() -> None:
    replay = trace.Replay((trace.Step(0, MBIT),), S, DIRECTIONS)

    def fail() -> None:
        raise RunFailed("no")

    thread = threading.Thread(target=replay.follow, args=(fail,))
    thread.start()
    with pytest.raises(RunFailed, match="no"):
        replay.stop(thread)
