"""When faults begin and end, by a clock of the test's own."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from ingest_bench import faults, procedure
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Impairment, LinkName, Profile
from ingest_bench.model.target import TargetOptions
from ingest_bench.network import Direction, Link, Links

S = 10**9
CELL = Cell(name="c", levels={}, network=None, target=TargetOptions(), load=LoadOptions(measure_ns=20 * S))


class Clock:
    """In place of `time`, and of the event that says that the load is over."""

    def __init__(self, end_ns: int) -> None:
        self.now_ns = 0
        self.end_ns = end_ns

    def wait(self, seconds: float) -> bool:
        self.now_ns = min(self.end_ns, self.now_ns + round(seconds * S))
        return self.now_ns >= self.end_ns


class AtOnce:
    """In place of a thread."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], **_: Any) -> None:
        self._run = functools.partial(target, *args)

    def start(self) -> None:
        self._run()

    def is_alive(self) -> bool:
        return False

    def join(self) -> None: ...


def happened(monkeypatch: pytest.MonkeyPatch, *what: Fault, measure_s: int | None = 20, takes_s: int = 0) -> list[Any]:
    """When each flush began, in seconds, until 25 s after the start of the measurement."""
    clock = Clock(25 * S)
    monkeypatch.setattr(
        faults, "time", SimpleNamespace(monotonic_ns=lambda: clock.now_ns, time_ns=lambda: clock.now_ns)
    )

    def flush() -> None:
        clock.now_ns += takes_s * S

    stage = faults.Stage(None, (), flush)
    following = faults.Following(what, stage, lambda: 0, None if measure_s is None else measure_s * S)
    following.over = clock  # type: ignore[assignment]
    # A fault without a length has a thread of its own. Here it is over at once, by the clock.
    monkeypatch.setattr(threading, "Thread", AtOnce)
    following.follow()
    assert following.error is None
    assert all(record.ended == record.started + takes_s * S for record in following.records)
    return [record.started / S for record in following.records]


def test_a_fault_happens_once_where_nothing_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert happened(monkeypatch, Fault(kind="flush", at_ns=2 * S)) == [2]


def test_one_that_is_repeated_happens_until_the_measurement_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert happened(monkeypatch, Fault(kind="flush", at_ns=2 * S, every_ns=6 * S)) == [2, 8, 14]


def test_without_a_known_length_it_happens_until_the_load_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(kind="flush", at_ns=2 * S, every_ns=6 * S)
    assert happened(monkeypatch, fault, measure_s=None) == [2, 8, 14, 20]
    assert happened(monkeypatch, dataclasses.replace(fault, every_ns=7 * S), measure_s=None) == [2, 9, 16, 23]


def test_turns_that_the_one_before_took_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(kind="flush", at_ns=1 * S, every_ns=2 * S)
    assert happened(monkeypatch, fault, takes_s=5) == [1, 6, 11, 16]


def test_what_is_due_while_a_flush_takes_long_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, let_go = threading.Event(), threading.Event()
    began: list[str] = []

    def begin(fault: Fault, _stage: faults.Stage) -> Callable[[], object]:
        began.append(fault.kind)
        if fault.kind == "pause":
            return ended.set
        assert let_go.wait(60)
        return lambda: None

    monkeypatch.setattr(faults, "begin", begin)
    flush, pause = Fault(kind="flush", at_ns=1, every_ns=10**6), Fault(kind="pause", at_ns=2, for_ns=10**6)
    with faults.happening((flush, pause), faults.Stage(None, ()), lambda: 1) as seen:
        # The pause ends although the flush has not; nor does that begin again before it has.
        assert ended.wait(60)
        assert sorted(began) == ["flush", "pause"]
        let_go.set()
    assert all(record.ended for record in seen.records)


def test_several_faults_keep_their_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Fault(kind="flush", at_ns=3 * S, every_ns=10 * S), Fault(kind="flush", at_ns=4 * S)
    assert happened(monkeypatch, first, second) == [3, 4, 13]


@pytest.mark.parametrize("error", [RunFailed("no"), ValueError("no")])
def test_a_fault_whose_end_fails_fails_the_run_and_the_others_end_all_the_same(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    ended = []

    def begin(fault: Fault, _stage: faults.Stage) -> Callable[[], object]:
        def end() -> None:
            ended.append(fault.at_ns)
            raise error

        return end

    monkeypatch.setattr(faults, "begin", begin)
    lasting = tuple(Fault(kind="pause", at_ns=at_ns, for_ns=100 * S) for at_ns in (1, 2))
    following = faults.Following(lasting, faults.Stage(None, ()), lambda: 1)
    monkeypatch.setattr(following.over, "wait", lambda _: len(following.records) == 2)
    following.follow()
    assert ended == [1, 2]
    assert [record.ended for record in following.records] == [None, None]
    assert following.error is error


def test_a_fault_that_fails_in_whatever_way_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(_fault: Fault, _stage: faults.Stage) -> Callable[[], object]:
        raise ValueError("no JSON")

    def hold(fault: Fault) -> None:
        with faults.happening((fault,), faults.Stage(None, ()), lambda: 1) as seen:
            for _ in range(1000):
                if seen.error is None:
                    seen.over.wait(0.01)

    monkeypatch.setattr(faults, "begin", begin)
    for fault in (Fault(kind="flush", at_ns=1), Fault(kind="pause", at_ns=1, for_ns=1)):
        with pytest.raises(RunFailed, match="fault: ValueError: no JSON"):
            hold(fault)


def test_a_jvm_stands_still_until_the_last_of_its_pauses_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, str]] = []
    monkeypatch.setattr(os, "kill", lambda pid, what: told.append((pid, signal.Signals(what).name)))
    stage = faults.Stage(None, (7, 8))
    of_all = faults.begin(Fault(kind="pause", at_ns=0, for_ns=1), stage)
    of_one = faults.begin(Fault(kind="pause", at_ns=0, for_ns=1, node=2), stage)
    assert told == [(7, "SIGSTOP"), (8, "SIGSTOP"), (8, "SIGSTOP")]
    of_all()
    assert told[3:] == [(7, "SIGCONT")]
    of_one()
    assert told[4:] == [(8, "SIGCONT")]


class Shown(Link):
    """A link of which one sees what is done to it."""

    told: ClassVar[list[str]] = []

    def change(self, profile: Profile) -> None:
        self.profile = profile

    def cut(self, direction: Direction) -> None:
        self.told.append(f"cut {direction}")

    def mend(self, direction: Direction) -> None:
        self.told.append(f"mend {direction}")


def on_a_link() -> tuple[Any, faults.Stage]:
    def run(argv: tuple[str, ...], **_: Any) -> str:
        Shown.told.append(" ".join(argv[:3]))
        return ""

    place: Any = SimpleNamespace(run=run)
    made = Shown(profile=Profile(name="plain"), client=place, server=place, backend="plain")
    Shown.told.clear()
    return made, faults.Stage(Links(by_name={LinkName((1,)): made}), ())


def test_a_link_has_the_state_of_all_faults_that_last_and_at_last_its_own() -> None:
    made, stage = on_a_link()
    slow = faults.begin(Fault(kind="throttle", at_ns=0, for_ns=1, rate_bps=10**6), stage)
    far = faults.begin(Fault(kind="throttle", at_ns=0, for_ns=1, delay_ns=5), stage)
    assert made.profile.to_server == Impairment(rate_bps=10**6, delay_ns=5)
    slow()
    assert made.profile.to_server == Impairment(delay_ns=5)
    again = faults.begin(Fault(kind="throttle", at_ns=0, for_ns=1, delay_ns=5), stage)
    far()
    assert made.profile.to_server == Impairment(delay_ns=5)
    again()
    assert made.profile == Profile(name="plain")


@pytest.mark.parametrize(
    ("kind", "begun", "ended"),
    [
        ("partition", ["cut to-server"], ["mend to-server"]),
        ("blackhole", ["tc qdisc add", "tc -batch -"], ["tc -batch -", "tc filter show", "tc qdisc del"]),
    ],
)
def test_silence_lasts_until_the_last_of_its_faults_has_ended(kind: Any, begun: list[str], ended: list[str]) -> None:
    _, stage = on_a_link()
    fault = Fault(kind=kind, at_ns=0, for_ns=1, direction="to-server")
    first, second = faults.begin(fault, stage), faults.begin(fault, stage)
    assert Shown.told == begun
    first()
    assert Shown.told == begun
    second()
    assert Shown.told == begun + ended


def test_a_flush_that_fails_fails_the_run() -> None:
    def refuse() -> None:
        raise RunFailed("no")

    following = faults.Following((Fault(kind="flush", at_ns=0),), faults.Stage(None, (), refuse), lambda: 0)
    following.follow()
    assert str(following.error) == "no"


@pytest.mark.parametrize(
    ("fault", "load", "said"),
    [
        (Fault(kind="flush", at_ns=21 * S), {}, "it ends after the measurement"),
        (Fault(kind="pause", at_ns=1, for_ns=2 * S, every_ns=2 * S), {}, "it would begin again before it has ended"),
        (Fault(kind="reset", at_ns=1, for_ns=2 * S), {}, "fault reset: it has no length; take for out"),
        (
            Fault(kind="throttle", at_ns=1, for_ns=2 * S, rate_bps=10**6, direction="to-server"),
            {},
            "fault throttle: it has no direction",
        ),
        (
            Fault(kind="flush", at_ns=1),
            {"measure_documents": 10},
            'only one that happens again and again .* every = "5s"',
        ),
    ],
)
def test_what_cannot_happen_as_written_is_refused(fault: Fault, load: dict[str, Any], said: str) -> None:
    cell = dataclasses.replace(CELL, faults=(fault,), load=dataclasses.replace(CELL.load, **load))
    with pytest.raises(SpecError, match=said):
        faults.check(cell)


def test_a_number_of_documents_goes_with_faults_that_are_repeated() -> None:
    load = dataclasses.replace(CELL.load, measure_documents=10)
    faults.check(dataclasses.replace(CELL, faults=(Fault(kind="flush", at_ns=30 * S, every_ns=S),), load=load))


def test_a_server_that_cannot_flush_is_named_before_anything_starts() -> None:
    cell = dataclasses.replace(CELL, target=TargetOptions(name="sink"), faults=(Fault(kind="flush", at_ns=1),))
    with pytest.raises(SpecError, match="fault flush: sink cannot be told"):
        procedure.check(cell)
    procedure.check(dataclasses.replace(cell, target=TargetOptions(name="opensearch")))
