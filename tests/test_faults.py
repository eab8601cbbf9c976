"""Times of faults by a clock of the test, checks before a run, and effects that several faults share."""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
import time
import typing
from collections import Counter
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from fault_lab import CELL, S, make_cell, make_fault, make_stage, start_now, start_processes, wait_until

from ingest_bench.errors import RunAborted, RunFailed, SpecError
from ingest_bench.faults import FAULTS, apply, checks, forged_packets, timeline
from ingest_bench.faults.kind import ActiveFault, Node, Stage
from ingest_bench.lab import campaign
from ingest_bench.model.experiment import Cell, Fault, Plan, Run
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Impairment, LinkName, Profile
from ingest_bench.model.target import TargetOptions
from ingest_bench.network.act.link import Link, Links
from ingest_bench.network.plan.link_plan import Layout

UNKNOWN_DURATION = LoadOptions(measure_documents=1)


class Clock:
    """Replaces `time`, and the event at the end of the load."""

    def __init__(self, end_ns: int) -> None:
        self.now_ns = 0
        self.end_ns = end_ns

    def now(self) -> int:
        return self.now_ns

    def wait(self, seconds: float) -> bool:
        self.now_ns = min(self.end_ns, self.now_ns + round(seconds * S))
        return self.now_ns >= self.end_ns


def run_with_clock(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, fault: Fault, measure_s: int | None = 20, **stage: Any
) -> timeline.FaultRunner:
    monkeypatch.setattr(timeline, "time", SimpleNamespace(monotonic_ns=clock.now, time_ns=clock.now))
    measure_ns = None if measure_s is None else measure_s * S
    runner = timeline.FaultRunner(Stage(load_ended=clock, **stage), lambda: 0, measure_ns)  # type: ignore[arg-type]
    runner.run(0, fault, checks.iterate_begin_times(fault, 0, 1))
    assert not runner.errors
    return runner


def list_begins(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, measure_s: int | None = 20, duration_s: int = 0
) -> list[float]:
    """Return when each flush began, in seconds, if the load ends 25 s after the start of the measurement."""
    clock = Clock(25 * S)
    runner = run_with_clock(monkeypatch, clock, fault, measure_s, flush=lambda: clock.wait(duration_s))
    assert all(record.end_ns == record.start_ns + duration_s * S for record in runner.records)
    return [record.start_ns / S for record in runner.records]


FLUSH = Fault(kind="flush", at_ns=2 * S, every_ns=6 * S)


@pytest.mark.parametrize(
    ("fault", "options", "begins"),
    [
        (dataclasses.replace(FLUSH, every_ns=0), {}, [2]),
        (FLUSH, {}, [2, 8, 14]),
        # Without a known duration of the measurement, until the load ends.
        (FLUSH, {"measure_s": None}, [2, 8, 14, 20]),
        (dataclasses.replace(FLUSH, every_ns=7 * S), {"measure_s": None}, [2, 9, 16, 23]),
        # Turns during an earlier turn are skipped.
        (Fault(kind="flush", at_ns=1 * S, every_ns=2 * S), {"duration_s": 5}, [1, 7, 13, 19]),
    ],
)
def test_faults_begin_at_their_times(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, options: dict[str, Any], begins: list[float]
) -> None:
    assert list_begins(monkeypatch, fault, **options) == begins


def test_seed_determines_the_times_of_random_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(kind="flush", at_ns=5 * S, every_ns=2 * S, random=True)
    begins = list_begins(monkeypatch, fault)
    assert begins == sorted(begins) == list_begins(monkeypatch, fault)
    assert len(begins) >= 2
    assert 5 < min(begins) < max(begins) < 20
    pause = make_fault("pause", every_ns=10 * S, random=True)
    samples = [list(itertools.islice(checks.iterate_begin_times(pause, 0, seed), 4000)) for seed in (1, 2)]
    assert samples[0] != samples[1]
    assert all(9.5 * S < times[-1] / len(times) < 10.5 * S for times in samples)
    assert all(later - earlier > 1 for earlier, later in itertools.pairwise(samples[0]))


def test_restarts_are_counted_for_each_node() -> None:
    cell = make_cell(make_fault("kill", every_ns=6 * S), make_fault("kill", node=2))
    assert [checks.count_restarts(cell, node) for node in (1, 2)] == [4, 5]


def test_equal_random_faults_have_independent_times() -> None:
    twin = make_fault("kill", every_ns=4 * S, random=True)
    first, second = (itertools.islice(checks.iterate_begin_times(twin, number, 1), 3) for number in (0, 1))
    assert list(first) != list(second)
    assert checks.count_restarts(make_cell(twin, twin), 1) > checks.count_restarts(make_cell(twin), 1)


def test_end_of_a_pause_does_not_wait_for_a_long_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, flush_may_end = threading.Event(), threading.Event()
    begun: list[str] = []

    def begin(fault: Fault, _stage: Stage) -> ActiveFault:
        begun.append(fault.kind)
        if fault.kind == "pause":
            return ActiveFault(end_fault=lambda: ended.set() or "")  # type: ignore[func-returns-value]
        assert flush_may_end.wait(60)
        return ActiveFault()

    monkeypatch.setattr(timeline, "begin_fault", begin)
    faults = Fault(kind="flush", at_ns=1, every_ns=10**6), Fault(kind="pause", at_ns=2, for_ns=10**6)
    with timeline.run_faults(faults, Stage(), start_now(), UNKNOWN_DURATION) as runner:
        assert ended.wait(60)
        # The flush does not begin again before it has ended.
        assert sorted(begun) == ["flush", "pause"]
        flush_may_end.set()
    assert all(record.end_ns for record in runner.records)


def test_fault_begins_after_another_of_its_state_that_ends_at_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def begin(fault: Fault, _stage: Stage) -> ActiveFault:
        events.append(f"begin {fault.kind}")

        def end() -> None:
            # As long as commands of the kernel take on a busy machine.
            time.sleep(0.1)
            events.append(f"end {fault.kind}")

        return ActiveFault(end_fault=end)

    monkeypatch.setattr(timeline, "begin_fault", begin)
    faults = [Fault(kind="throttle", at_ns=0, for_ns=S // 20)]
    faults += [Fault(kind=kind, at_ns=S // 20, for_ns=S // 20) for kind in ("partition", "pause")]
    with timeline.run_faults(tuple(faults), Stage(), start_now(), UNKNOWN_DURATION):
        wait_until(lambda: len(events) == 6)
    assert events[:2] == ["begin throttle", "begin pause"], "faults of other states do not wait"
    assert events.index("end throttle") < events.index("begin partition")


def test_record_of_each_turn_contains_its_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    effects: list[tuple[int, int]] = []

    def begin(_fault: Fault, _stage: Stage) -> ActiveFault:
        begun_ns = time.time_ns()

        def end() -> None:
            effects.append((begun_ns, time.time_ns()))

        return ActiveFault(end_fault=end)

    monkeypatch.setattr(timeline, "begin_fault", begin)
    flapping = Fault(kind="partition", at_ns=1, for_ns=10**6, every_ns=20 * 10**6)
    with timeline.run_faults((flapping,), Stage(), start_now(), UNKNOWN_DURATION) as runner:
        wait_until(lambda: len(effects) >= 3)
    spans = [(record.start_ns, record.end_ns or 0) for record in runner.records]
    for (start_ns, end_ns), (begun_ns, ended_ns) in zip(spans, effects, strict=True):
        assert start_ns <= begun_ns < ended_ns <= end_ns
    assert all(end_ns < next_ns for (_, end_ns), (next_ns, _) in itertools.pairwise(spans))


def test_every_failure_is_reported_and_a_failed_fault_has_no_more_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, last_ended = [], threading.Event()

    def begin(fault: Fault, _stage: Stage) -> ActiveFault:
        begun.append(fault.at_ns)
        if fault.at_ns == 1:
            raise RunFailed("the first cannot begin")

        def end() -> str:
            if fault.at_ns == 2:
                raise ValueError("the second cannot end")
            last_ended.set()
            return "good"

        return ActiveFault(end_fault=end)

    monkeypatch.setattr(timeline, "begin_fault", begin)
    # Each begins only after the one before has failed.
    faults = (
        Fault(kind="flush", at_ns=1, every_ns=10**6),
        Fault(kind="pause", at_ns=2, for_ns=10 * 10**6, every_ns=20 * 10**6),
        Fault(kind="pause", at_ns=100 * 10**6, for_ns=10 * 10**6),
    )
    with (
        pytest.raises(RunFailed) as raised,
        timeline.run_faults(faults, Stage(), start_now(), UNKNOWN_DURATION) as runner,
    ):
        assert last_ended.wait(20)
    assert str(raised.value) == "fault: the first cannot begin\nfault: ValueError: the second cannot end"
    assert sorted(begun) == [1, 2, 100 * 10**6]
    # A fault that did not begin has no record; one that did not end has no end.
    assert [(record.kind, record.effect, record.end_ns is not None) for record in runner.records] == [
        ("pause", "", False),
        ("pause", "good", True),
    ]


def test_late_begin_does_not_shorten_a_fault_and_a_late_end_does_not_skip_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, spans_s = Clock(20 * S), []

    def begin(_fault: Fault, _stage: Stage) -> ActiveFault:
        start_s = clock.now_ns // S

        def end() -> str:
            spans_s.append((start_s, clock.now_ns // S))
            clock.now_ns += 3 * S  # the machine is slow
            return ""

        return ActiveFault(end_fault=end)

    monkeypatch.setattr(timeline, "begin_fault", begin)
    fault = Fault(kind="pause", at_ns=2 * S, for_ns=2 * S, every_ns=4 * S)
    run_with_clock(monkeypatch, clock, fault)
    # Due at 2, 6, 10, 14 and 18 s; the one before lasts until 14 s.
    assert spans_s == [(2, 4), (7, 9), (12, 14), (18, 20)]


def test_fault_that_had_no_time_to_begin_fails_the_run() -> None:
    late = Fault(kind="pause", at_ns=10**6 * S, for_ns=2 * S)
    with (
        pytest.raises(RunFailed, match="fault: pause had not begun when the load ended"),
        timeline.run_faults((late,), Stage(), lambda: 1, CELL.load),
    ):
        pass


@pytest.mark.parametrize("kind", [RunFailed, RunAborted])
def test_failure_of_a_fault_is_reported_after_that_of_the_load(
    monkeypatch: pytest.MonkeyPatch, kind: type[RunFailed]
) -> None:
    def begin(_fault: Fault, _stage: Stage) -> ActiveFault:
        raise RunFailed("pause: no such process")

    monkeypatch.setattr(timeline, "begin_fault", begin)
    late = Fault(kind="pause", at_ns=10**6 * S, for_ns=1)

    def run_load(*faults: Fault, error: BaseException) -> None:
        with timeline.run_faults(faults, Stage(), lambda: 1, CELL.load) as runner:
            if len(faults) > 1:
                wait_until(lambda: runner.errors)
            raise error

    with pytest.raises(RunFailed) as raised:
        run_load(Fault(kind="pause", at_ns=1, for_ns=1), late, error=kind("every request failed"))
    assert type(raised.value) is kind
    assert str(raised.value) == "every request failed\nfault: pause: no such process"
    # A fault that had no time to begin is not reported.
    for error in (kind("every request failed"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as alone:
            run_load(late, error=error)
        assert alone.value is error


def test_fault_that_cannot_begin_on_one_node_ends_on_the_others_and_says_why() -> None:
    ended: list[str] = []

    def begin(node: Node) -> ActiveFault:
        if node.number == 2:
            raise RunFailed("the kernel refused it")

        def end() -> str:
            ended.append(node.name)
            raise RunFailed("node 1 never wanted more within 0.0 s")

        return ActiveFault(end_fault=end)

    stage = make_stage([SimpleNamespace(jvm_pid=0)] * 2)
    with pytest.raises(RunFailed, match="the kernel refused it"):
        apply.begin_on_nodes(make_fault("cpu"), stage, begin)
    assert ended == ["node 1"]


def test_ports_are_released_if_they_cannot_be_reserved() -> None:
    values = {"net.ipv4.ip_local_port_range": "32768 60999", "net.ipv4.ip_local_reserved_ports": ""}

    def sysctl(argv: tuple[str, ...]) -> str:
        name, _, value = argv[-1].partition("=")
        if "-w" in argv:
            # As if another program had set it.
            values[name] = value.replace("60999", "60998")
        return values[name]

    link = SimpleNamespace(active_faults=Counter(), lock=threading.RLock())
    links: Any = SimpleNamespace(client=SimpleNamespace(run=sysctl), clients=[link])
    for _ in range(2):
        with pytest.raises(RunFailed, match='was set to "32768-60999", but is "32768-60998"'):
            timeline.begin_fault(make_fault("exhausted-ports"), Stage(links=links))
        assert values["net.ipv4.ip_local_reserved_ports"] == ""


class FakeLink(Link):
    """A link whose profile is changed without a kernel."""

    def set_profile(self, profile: Profile) -> None:
        self.profile = profile


def make_link_stage(ports: str = "[]") -> tuple[Link, Stage]:
    def command(argv: tuple[str, ...]) -> tuple[str, ...]:
        assert forged_packets.__file__ in argv
        reply = json.dumps({"ports": json.loads(ports), "left": 0})
        # It takes as long to start as on a busy machine.
        return ("sh", "-c", f"sleep 0.5; echo ready; while read -r _; do echo '{reply}'; done")

    namespace: Any = SimpleNamespace(run=lambda *_, **__: "", command=command)
    layout = Layout(medium="veth", backend="plain", max_mtu_bytes=1500, has_ipv6=False)
    link = FakeLink(profile=Profile(name="plain"), client=namespace, server=namespace, layout=layout)
    return link, Stage(links=Links(by_name={LinkName((1,)): link}))


def test_link_has_the_profile_of_all_active_faults() -> None:
    link, _ = make_link_stage()

    def begin(**keys: Any) -> ExitStack:
        change = FAULTS["throttle"].change_profile
        assert change is not None
        stack, fault = ExitStack(), make_fault("throttle", **keys)
        stack.enter_context(apply.override_profile(link, lambda profile: change(profile, fault, ())))
        return stack

    slow, far = begin(rate_bps=10**6), begin(delay_ns=5)
    assert link.profile.to_server == Impairment(rate_bps=10**6, delay_ns=5)
    slow.close()
    assert link.profile.to_server == Impairment(delay_ns=5)
    equal = begin(delay_ns=5)
    far.close()
    assert link.profile.to_server == Impairment(delay_ns=5)
    equal.close()
    assert link.profile == Profile(name="plain")


def test_reset_without_a_connection_fails_the_run_unless_the_node_is_down() -> None:
    _, stage = make_link_stage()
    reset = Fault(kind="reset", at_ns=0)
    with pytest.raises(RunFailed, match="reset: there was no connection to reset"):
        timeline.begin_fault(reset, stage)
    with start_processes(1) as processes:
        stage = dataclasses.replace(stage, nodes=make_stage(processes).nodes)
        kill = timeline.begin_fault(make_fault("kill"), stage)
        assert timeline.begin_fault(reset, stage).effect == "skipped: node 1 is down"
        kill.end()


def test_programs_that_forge_packets_are_ready_before_their_time() -> None:
    _, stage = make_link_stage("[4000]")
    reset = Fault(kind="reset", at_ns=S, every_ns=S // 2)
    with timeline.run_faults((reset,), stage, start_now(), UNKNOWN_DURATION) as runner:
        wait_until(lambda: len(runner.records) == 2)
    assert {record.effect for record in runner.records} == {"1 connections"}
    assert all(record.end_ns and record.end_ns - record.start_ns < 0.4 * S for record in runner.records)


def test_router_with_icmp_is_prepared_at_the_receiver() -> None:
    link, stage = make_link_stage()
    server = link.ends[1]
    for icmp, ends in (("dropped", []), ("sent", [(server.address, server.peer)])):
        fault = make_fault("mtu-blackhole", mtu_bytes=1400, icmp=icmp, direction="to-server")
        with FAULTS["mtu-blackhole"].prepare(fault, stage) as prepared:
            assert list(prepared.forgers) == ends


def test_table_has_every_kind_of_fault_of_the_schema() -> None:
    assert set(typing.get_args(typing.get_type_hints(Fault)["kind"])) == set(FAULTS)


@pytest.mark.parametrize(
    ("fault", "load", "message"),
    [
        (Fault(kind="flush", at_ns=21 * S), {}, "it ends after the measurement"),
        (Fault(kind="pause", at_ns=1), {}, 'fault pause: requires for = "5s"'),
        (Fault(kind="pause", at_ns=1, for_ns=2 * S, every_ns=2 * S), {}, "it would begin again before it has ended"),
        (Fault(kind="flush", at_ns=1, random=True), {}, "random requires every"),
        (Fault(kind="flush", at_ns=1, every_ns=1), {}, "less than 10 ms from its end"),
        (Fault(kind="pause", at_ns=1, for_ns=S, every_ns=S + 1, random=True), {}, "less than 10 ms from its end"),
        (Fault(kind="kill", at_ns=1, for_ns=1, every_ns=S // 10), {}, "a node would restart 200 times"),
        (Fault(kind="reset", at_ns=1, for_ns=2 * S), {}, "fault reset: it has no duration. Remove for."),
        (Fault(kind="gc", at_ns=1, mtu_bytes=1400), {}, "fault gc: it does not use mtu. Remove mtu."),
        (Fault(kind="partition", at_ns=1, for_ns=S, icmp="sent"), {}, "fault partition: it does not use icmp"),
        (Fault(kind="gc", at_ns=1, link="peers"), {}, "it does not act on links. Remove link."),
        (Fault(kind="exhausted-ports", at_ns=1, for_ns=S, node=1), {}, "it acts on all nodes at the same time"),
        (
            Fault(kind="throttle", at_ns=1, for_ns=2 * S, rate_bps=10**6, direction="to-server"),
            {},
            "fault throttle: it does not use direction",
        ),
        (make_fault("slow-disk"), {}, r'slow-disk: requires rate = "80mbit" or iops = 100'),
        (make_fault("slow-disk", iops=5, delay_ns=1), {}, "slow-disk: it does not use delay"),
        (make_fault("slow-fsync"), {}, 'slow-fsync: requires delay = "50ms"'),
        (make_fault("slow-fsync", delay_ns=0), {}, 'slow-fsync: requires delay = "50ms"'),
        (make_fault("cpu"), {}, r"requires cores = 0\.5, or neighbours = 2"),
        (make_fault("cpu", cores=0.5, neighbours=2), {}, "cores cannot be combined with neighbours"),
        (make_fault("mtu-blackhole"), {}, "requires mtu = 1400"),
        (make_fault("mtu-blackhole", mtu_bytes=1500), {}, 'no packet of profile "p" is larger than 1500 bytes'),
        (
            make_fault("mtu-blackhole", mtu_bytes=551, icmp="sent"),
            {},
            "senders ignore ICMP with a path MTU below 552",
        ),
        (Fault(kind="flush", at_ns=1), {"measure_documents": 10}, 'Only a repeated fault can: every = "5s"'),
    ],
)
def test_fault_that_cannot_happen_as_written_is_refused(fault: Fault, load: dict[str, Any], message: str) -> None:
    network = Profile(name="p", gso_max_segs=1)
    cell = dataclasses.replace(make_cell(fault), network=network, load=dataclasses.replace(CELL.load, **load))
    with pytest.raises(SpecError, match=message):
        checks.check_faults(cell)
    if load:
        checks.check_faults(dataclasses.replace(cell, faults=(dataclasses.replace(fault, every_ns=S),)))


@pytest.mark.parametrize(
    ("fault", "needs"),
    [
        (make_fault("full-disk"), {"disk"}),
        (make_fault("slow-disk", iops=5), {"disk", "throttle"}),
        (make_fault("slow-fsync", delay_ns=1), {"syncs"}),
        (make_fault("cpu", cores=0.5), {"cpu"}),
        (make_fault("cpu", neighbours=2), set()),
        (make_fault("mtu-blackhole", mtu_bytes=552, icmp="sent"), set()),
    ],
)
def test_fault_is_accepted_with_the_resources_that_it_needs(fault: Fault, needs: set[str]) -> None:
    cell = dataclasses.replace(make_cell(fault), network=Profile(name="p", gso_max_segs=1))
    checks.check_faults(cell)
    assert checks.list_needs(cell) == needs
    if "disk" in needs:
        preloaded = dataclasses.replace(cell, target=TargetOptions(name="cassandra", preloaded_documents=5))
        with pytest.raises(SpecError, match="preloaded documents are on another file system"):
            checks.check_faults(preloaded)


def make_plan(cell: Cell) -> Plan:
    run = Run(id=f"{cell.name}/1", cell=cell, replicate=1)
    return Plan(experiment="x", description="", seed=1, factors=(), runs=(run,))


def test_server_that_cannot_flush_is_refused() -> None:
    flush = Fault(kind="flush", at_ns=1)
    with pytest.raises(SpecError, match="flush: sink has no command that flushes"):
        campaign.check_plan(make_plan(make_cell(flush, target=TargetOptions(name="sink"))))
    campaign.check_plan(make_plan(make_cell(flush, target=TargetOptions(name="opensearch"))))
