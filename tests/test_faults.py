"""When faults begin and end, by a clock of the test's own."""

from __future__ import annotations

import dataclasses
import errno
import functools
import itertools
import os
import resource
import subprocess
import sys
import threading
import time
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ingest_bench.errors import RunAborted, RunFailed, SpecError
from ingest_bench.faults import FAULTS, checks, timeline
from ingest_bench.faults.kind import Begun
from ingest_bench.faults.links.layers import other_state
from ingest_bench.faults.processes import file_descriptors
from ingest_bench.faults.stage import Node, Stage, hold
from ingest_bench.host import disk
from ingest_bench.lab import campaign
from ingest_bench.model.experiment import Cell, Fault, Plan, Run
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Impairment, LinkName, Profile
from ingest_bench.model.results import Happened
from ingest_bench.model.target import Endpoint, TargetOptions
from ingest_bench.network.act.link import Link
from ingest_bench.network.act.links import Links
from ingest_bench.network.plan.link_plan import Layout

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
        timeline, "time", SimpleNamespace(monotonic_ns=lambda: clock.now_ns, time_ns=lambda: clock.now_ns)
    )

    def flush() -> None:
        clock.now_ns += takes_s * S

    stage = Stage(flush=flush)
    following = timeline.Following(what, stage, lambda: 0, None if measure_s is None else measure_s * S)
    following.over = clock  # type: ignore[assignment]
    # A fault without a length has a thread of its own. Here it is over at once, by the clock.
    monkeypatch.setattr(threading, "Thread", AtOnce)
    following.follow()
    assert not following.errors
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

    def begin(fault: Fault, _stage: Stage) -> Begun:
        began.append(fault.kind)
        if fault.kind == "pause":
            return Begun(end=lambda: ended.set() or "")  # type: ignore[func-returns-value]
        assert let_go.wait(60)
        return Begun()

    monkeypatch.setattr(timeline, "begin", begin)
    flush, pause = Fault(kind="flush", at_ns=1, every_ns=10**6), Fault(kind="pause", at_ns=2, for_ns=10**6)
    with timeline.happening((flush, pause), Stage(), lambda: 1, LoadOptions(measure_documents=1)) as seen:
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

    def begin(fault: Fault, _stage: Stage) -> Begun:
        def end() -> str:
            ended.append(fault.at_ns)
            raise error

        return Begun(end=end)

    monkeypatch.setattr(timeline, "begin", begin)
    lasting = tuple(Fault(kind="pause", at_ns=at_ns, for_ns=100 * S) for at_ns in (1, 2))
    following = timeline.Following(lasting, Stage(), lambda: 1)
    monkeypatch.setattr(following.over, "wait", lambda _: len(following.records) == 2)
    following.follow()
    assert ended == [1, 2]
    assert [record.ended for record in following.records] == [None, None]
    assert following.errors == [error, error]


def test_one_that_fails_ends_no_other_has_no_more_turns_and_every_failure_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried, last_ended = [], threading.Event()

    def begin(fault: Fault, _stage: Stage) -> Begun:
        tried.append(fault.at_ns)
        if fault.at_ns == 1:
            raise RunFailed("the first one cannot begin")

        def end() -> str:
            if fault.at_ns == 2:
                raise ValueError("the second one cannot end")
            last_ended.set()
            return "well"

        return Begun(end=end)

    monkeypatch.setattr(timeline, "begin", begin)
    # Each of the others begins only after the one before it has failed.
    again = Fault(kind="flush", at_ns=1, every_ns=10**6)
    broken = Fault(kind="pause", at_ns=2, for_ns=10 * 10**6, every_ns=20 * 10**6)
    late = Fault(kind="pause", at_ns=100 * 10**6, for_ns=10 * 10**6)
    with (
        pytest.raises(RunFailed) as caught,
        timeline.happening((again, broken, late), Stage(), lambda: 1, LoadOptions(measure_documents=1)) as seen,
    ):
        assert last_ended.wait(20)
    assert str(caught.value) == ("fault: the first one cannot begin\nfault: ValueError: the second one cannot end")
    assert sorted(tried) == [1, 2, late.at_ns]
    # One that did not begin is no record; one that did not end has no end.
    assert [(record.kind, record.seen, record.ended is not None) for record in seen.records] == [
        ("pause", "", False),
        ("pause", "well", True),
    ]


def test_a_fault_that_fails_in_whatever_way_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(_fault: Fault, _stage: Stage) -> Begun:
        raise ValueError("no JSON")

    def hold(fault: Fault) -> None:
        with timeline.happening((fault,), Stage(), lambda: 1, LoadOptions(measure_documents=1)) as seen:
            for _ in range(1000):
                if not seen.errors:
                    seen.over.wait(0.01)

    monkeypatch.setattr(timeline, "begin", begin)
    for fault in (Fault(kind="flush", at_ns=1), Fault(kind="pause", at_ns=1, for_ns=1)):
        with pytest.raises(RunFailed, match="fault: ValueError: no JSON"):
            hold(fault)


def test_a_fault_that_begins_late_lasts_as_long_and_one_that_never_began_fails_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, spans = Clock(20 * S), []
    monkeypatch.setattr(timeline, "time", SimpleNamespace(monotonic_ns=lambda: clock.now_ns, time_ns=lambda: 0))

    def begin(fault: Fault, _stage: Stage) -> Begun:
        began = clock.now_ns
        if fault.kind == "partition":
            clock.now_ns += 5 * S  # the machine is slow
        return Begun(end=lambda: spans.append((fault.kind, clock.now_ns - began)) or "")  # type: ignore[func-returns-value]

    monkeypatch.setattr(timeline, "begin", begin)
    slow, pause = Fault(kind="partition", at_ns=1 * S, for_ns=S), Fault(kind="pause", at_ns=2 * S, for_ns=2 * S)
    following = timeline.Following((slow, pause), Stage(), lambda: 0, 20 * S)
    following.over = clock  # type: ignore[assignment]
    following.follow()
    assert ("pause", 2 * S) in spans

    with (
        pytest.raises(RunFailed, match="fault: pause had not begun when the load ended"),
        timeline.happening((dataclasses.replace(pause, at_ns=10**6 * S),), Stage(), lambda: 1, CELL.load),
    ):
        pass


@pytest.mark.parametrize("kind", [RunFailed, RunAborted])
def test_a_fault_that_fails_is_told_behind_the_failure_of_the_load_and_not_one_that_had_no_time_to_begin(
    monkeypatch: pytest.MonkeyPatch, kind: type[RunFailed]
) -> None:
    def begin(_fault: Fault, _stage: Stage) -> Begun:
        raise RunFailed("pause: no such process")

    monkeypatch.setattr(timeline, "begin", begin)
    late = Fault(kind="pause", at_ns=10**6 * S, for_ns=1)

    def load(*faults: Fault, error: BaseException) -> None:
        with timeline.happening(faults, Stage(), lambda: 1, CELL.load) as seen:
            for _ in range(1000):
                if len(faults) > 1 and not seen.errors:
                    seen.over.wait(0.01)
            raise error

    with pytest.raises(RunFailed) as caught:
        load(Fault(kind="pause", at_ns=1, for_ns=1), late, error=kind("every request failed"))
    assert type(caught.value) is kind
    assert str(caught.value) == "every request failed\nfault: pause: no such process"
    for error in (kind("every request failed"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as alone:
            load(late, error=error)
        assert alone.value is error


class Sleeper:
    """The process of a node: a real one, which a new one follows when it is killed."""

    def __init__(self) -> None:
        self.popen = self._started()

    @staticmethod
    def _started() -> subprocess.Popen[bytes]:
        """It has opened all its files: it answers."""
        popen = subprocess.Popen(("cat",), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert popen.stdin is not None
        assert popen.stdout is not None
        popen.stdin.write(b"ready\n")
        popen.stdin.flush()
        assert popen.stdout.readline() == b"ready\n"
        return popen

    @property
    def jvm_pid(self) -> int:
        return self.popen.pid

    @property
    def listen(self) -> Endpoint:
        return Endpoint("127.0.0.1", 1)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.communicate()

    def start_again(self, timeout_s: float) -> None:
        assert timeout_s == 60
        self.popen = self._started()

    def stands_still(self) -> bool:
        return Path(f"/proc/{self.jvm_pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture
def sleepers() -> Iterator[tuple[Sleeper, Sleeper]]:
    both = Sleeper(), Sleeper()
    yield both
    for one in both:
        one.kill()


def with_nodes(sleepers: Sequence[Sleeper], jcmd: Callable[[int, Sequence[str]], str] = lambda *_: "") -> Stage:
    return Stage(
        nodes=tuple(
            Node(number=number, process=one, home=Path("/"), jcmd=jcmd, boot_limit_s=60)
            for number, one in enumerate(sleepers, 1)
        )
    )


def lasting(kind: Any, **keys: Any) -> Fault:
    return Fault(kind=kind, at_ns=0, for_ns=1, **keys)


def test_a_jvm_stands_still_until_the_last_of_its_pauses_has_ended(sleepers: tuple[Sleeper, Sleeper]) -> None:
    stage = with_nodes(sleepers)
    of_all, of_one = (timeline.begin(lasting("pause", node=node), stage) for node in (None, 2))
    assert [one.stands_still() for one in sleepers] == [True, True]
    of_all.end()
    assert [one.stands_still() for one in sleepers] == [False, True]
    of_one.end()
    assert [one.stands_still() for one in sleepers] == [False, False]


def test_a_node_that_was_killed_is_another_process_with_all_that_lasts(sleepers: tuple[Sleeper, Sleeper]) -> None:
    stage, pids = with_nodes(sleepers), [one.jvm_pid for one in sleepers]
    kill, paused = timeline.begin(lasting("kill", node=1), stage), timeline.begin(lasting("pause"), stage)
    again = timeline.begin(lasting("kill", node=1), stage)
    assert [node.is_down for node in stage.nodes] == [True, False]
    kill.end()
    assert stage.nodes[0].is_down
    assert again.end().startswith("node 1: ready again 0.")
    assert [one.stands_still() for one in sleepers] == [True, True]
    assert [one.jvm_pid == pid for one, pid in zip(sleepers, pids, strict=True)] == [False, True]
    paused.end()
    assert [one.stands_still() for one in sleepers] == [False, False]


def test_what_is_done_to_a_node_that_is_down_is_not_done_and_said_so(sleepers: tuple[Sleeper, Sleeper]) -> None:
    stage = dataclasses.replace(with_nodes(sleepers), flush=pytest.fail)
    kill = timeline.begin(lasting("kill", node=1), stage)
    assert timeline.begin(Fault(kind="gc", at_ns=0, node=1), stage).seen == "node 1: not done, it is down"
    assert timeline.begin(Fault(kind="flush", at_ns=0), stage).seen == "not done, node 1 is down"
    kill.end()


def test_what_is_due_while_a_node_starts_does_not_wait_for_it(sleepers: tuple[Sleeper, Sleeper]) -> None:
    stage, ready = with_nodes(sleepers[:1]), threading.Event()
    start_again = sleepers[0].start_again

    def start_slowly(timeout_s: float) -> None:
        assert ready.wait(60)
        start_again(timeout_s)

    sleepers[0].start_again = start_slowly  # type: ignore[method-assign]
    kill = timeline.begin(lasting("kill"), stage)
    ending = threading.Thread(target=kill.end)
    ending.start()
    pause = timeline.begin(lasting("pause"), stage)
    assert timeline.begin(Fault(kind="gc", at_ns=0), stage).seen == "node 1: not done, it is down"
    ready.set()
    ending.join(60)
    assert sleepers[0].stands_still()
    pause.end()
    assert not sleepers[0].stands_still()


def test_a_kill_that_waits_for_its_node_to_start_holds_up_no_other_fault_and_lasts_from_when_it_is_killed(
    sleepers: tuple[Sleeper, Sleeper],
) -> None:
    stage, starting, ready = with_nodes(sleepers), threading.Event(), threading.Event()
    start_again = sleepers[0].start_again

    def start_slowly(timeout_s: float) -> None:
        starting.set()
        assert ready.wait(60)
        start_again(timeout_s)

    sleepers[0].start_again = start_slowly  # type: ignore[method-assign]
    ending = threading.Thread(target=timeline.begin(lasting("kill", node=1), stage).end)
    ending.start()
    assert starting.wait(20)
    again, pause = Fault(kind="kill", at_ns=1, for_ns=S // 10, node=1), Fault(kind="pause", at_ns=2, for_ns=1, node=2)

    def wait_for(kind: str) -> Happened:
        limit = time.monotonic() + 20
        while not (found := [one for one in seen.records if one.kind == kind and one.ended]):
            assert time.monotonic() < limit, seen.records
            time.sleep(0.01)
        return found[0]

    with timeline.happening((again, pause), stage, lambda: 1, LoadOptions(measure_documents=1)) as seen:
        try:
            wait_for("pause")
            assert len(seen.records) == 1
            ready_ns = time.time_ns()
        finally:
            ready.set()
        killed = wait_for("kill")
    ending.join(60)
    assert killed.ended is not None
    assert killed.started >= ready_ns
    assert killed.ended - killed.started >= again.for_ns
    assert killed.seen.startswith("node 1: ready again ")


def test_no_node_is_killed_once_the_load_is_over(sleepers: tuple[Sleeper, Sleeper]) -> None:
    stage, pid = with_nodes(sleepers[:1]), sleepers[0].jvm_pid
    stage.over.set()
    assert timeline.begin(lasting("kill"), stage).end() == "node 1: not done, the load was over by then"
    assert sleepers[0].jvm_pid == pid
    assert not stage.nodes[0].is_down


def test_a_kill_that_cannot_be_had_at_one_node_is_at_none(
    sleepers: tuple[Sleeper, Sleeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = with_nodes(sleepers)

    def stay() -> None:
        raise RunFailed("it is still there")

    monkeypatch.setattr(sleepers[1], "kill", stay)
    with pytest.raises(RunFailed, match="it is still there"):
        timeline.begin(lasting("kill"), stage)
    assert not stage.nodes[0].is_down
    assert sleepers[0].popen.poll() is None
    monkeypatch.undo()
    # Another kill brings that one back, too.
    timeline.begin(lasting("kill"), stage).end()
    assert [node.is_down for node in stage.nodes] == [False, False]


def test_clients_that_cannot_misbehave_at_one_node_do_so_at_none(
    sleepers: tuple[Sleeper, Sleeper], tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    commands = (("sh", "-c", 'cat; touch "$0"', str(gone)), ("no-such-program",))
    places = [SimpleNamespace(command=lambda _, its=its: its) for its in commands]
    links: Any = SimpleNamespace(clients=[SimpleNamespace(client=place) for place in places])
    with pytest.raises(RunFailed, match="no-such-program"):
        timeline.begin(lasting("garbage"), dataclasses.replace(with_nodes(sleepers), links=links))
    assert gone.exists()


def test_nodes_that_were_killed_together_are_started_together(sleepers: tuple[Sleeper, Sleeper]) -> None:
    both = threading.Barrier(2)

    def start_again(usual: Callable[[float], None], timeout_s: float) -> None:
        usual(timeout_s)
        both.wait(20)  # as a node of a cluster, which is ready when it has found the others

    for one in sleepers:
        one.start_again = functools.partial(start_again, one.start_again)  # type: ignore[method-assign]
    said = timeline.begin(lasting("kill"), with_nodes(sleepers)).end()
    assert said.count("ready again") == 2


def test_a_node_that_is_killed_in_the_middle_of_a_collection_fails_nothing(sleepers: tuple[Sleeper, Sleeper]) -> None:
    def jcmd(pid: int, command: Sequence[str]) -> str:
        if command[0] == "GC.run":
            timeline.begin(lasting("kill"), stage)
            raise RunFailed(f"pid {pid} has ended")
        return "GC invocations=7\n"

    stage = with_nodes(sleepers[:1], jcmd)
    found = timeline.begin(Fault(kind="gc", at_ns=0), stage)
    assert found.seen == "node 1: not done, it was killed meanwhile"


def test_a_process_has_few_file_descriptors_left_for_a_while(sleepers: tuple[Sleeper, Sleeper]) -> None:
    stage, pid = with_nodes(sleepers[:1]), sleepers[0].jvm_pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    first, second = (timeline.begin(lasting("file-descriptors"), stage) for _ in range(2))
    highest = max(int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir())
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (highest + 1 + 4, before[1])
    assert first.seen == f"node 1: 4 left beside the {highest + 1} that are open"
    first.end()
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) != before
    second.end()
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == before


def test_a_process_whose_limit_is_not_what_it_was_set_to_has_its_own_again(
    sleepers: tuple[Sleeper, Sleeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, pid = with_nodes(sleepers[:1]), sleepers[0].jvm_pid
    before, read = resource.prlimit(pid, resource.RLIMIT_NOFILE), file_descriptors._limit
    said = iter([read(pid), "99", "99"])
    monkeypatch.setattr(file_descriptors, "_limit", lambda pid: next(said, "") or read(pid))
    with pytest.raises(RunFailed, match=r"the limit of process [0-9]+ is 99, it was set to "):
        timeline.begin(lasting("file-descriptors"), stage)
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == before
    again = timeline.begin(lasting("file-descriptors"), stage)
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) != before
    again.end()
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == before


def test_a_process_that_was_started_again_and_cannot_have_few_files_lacks_none(
    sleepers: tuple[Sleeper, Sleeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = with_nodes(sleepers[:1])
    few, kill = timeline.begin(lasting("file-descriptors"), stage), timeline.begin(lasting("kill"), stage)

    def refused(_pid: int) -> set[int]:
        raise RunFailed("nobody may look")

    monkeypatch.setattr(file_descriptors, "_open", refused)
    with pytest.raises(RunFailed, match="nobody may look"):
        kill.end()
    monkeypatch.undo()
    few.end()
    assert resource.prlimit(sleepers[0].jvm_pid, resource.RLIMIT_NOFILE) == resource.getrlimit(resource.RLIMIT_NOFILE)


def test_ports_that_are_not_reserved_as_they_should_be_are_all_free_again() -> None:
    values = {"net.ipv4.ip_local_port_range": "32768 60999", "net.ipv4.ip_local_reserved_ports": ""}

    def sysctl(argv: tuple[str, ...]) -> str:
        name, _, value = argv[-1].partition("=")
        if "-w" in argv:
            # Another one, as if somebody else had set it.
            values[name] = value.replace("60999", "60998")
        return values[name]

    place = SimpleNamespace(run=sysctl)
    links: Any = SimpleNamespace(client=place, clients=[SimpleNamespace(layers=Counter())])
    for _ in range(2):
        with pytest.raises(RunFailed, match='was set to "32768-60999" and is "32768-60998"'):
            timeline.begin(lasting("exhausted-ports"), Stage(links=links))
        assert values["net.ipv4.ip_local_reserved_ports"] == ""


def test_a_disk_that_cannot_be_filled_keeps_nothing_of_what_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("/dev/shm")  # noqa: S108 - a file system of its own
    filler, before = disk.Filler(folder), set(folder.iterdir())

    def broken(*_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "posix_fallocate", broken)
    with pytest.raises(RunFailed, match=r"full-disk: .*: Input/output error"):
        hold(Counter(), "full-disk", filler.begin, filler.end)
    assert set(folder.iterdir()) <= before


def test_numbers_of_files_that_were_closed_are_none_that_are_left(sleepers: tuple[Sleeper, Sleeper]) -> None:
    text = "import os, sys; files = [os.dup(0) for _ in range(50)]; [os.close(file) for file in files[10:40]]"
    text += """
print("ready", flush=True)
sys.stdin.readline()
count = 0
try:
    while count < 50:
        os.dup(0)
        count += 1
except OSError:
    pass
print(count, flush=True)
"""
    one = sleepers[0]
    one.kill()
    one.popen = subprocess.Popen(
        (sys.executable, "-I", "-S", "-c", text), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert one.popen.stdout is not None
    assert one.popen.stdout.readline() == b"ready\n"
    open_now = len(list(Path(f"/proc/{one.jvm_pid}/fd").iterdir()))
    begun = timeline.begin(lasting("file-descriptors"), with_nodes((one,)))
    assert begun.seen == f"node 1: 4 left beside the {open_now} that are open"
    assert one.popen.communicate(b"go\n")[0] == b"4\n"


def test_a_jvm_that_was_told_to_collect_and_does_not_fails_the_run(sleepers: tuple[Sleeper, Sleeper]) -> None:
    stage = with_nodes(sleepers, lambda _pid, command: "GC invocations=7\n" * (command[0] != "GC.run"))
    with pytest.raises(RunFailed, match="gc: node 1 was told to collect and did not"):
        timeline.begin(Fault(kind="gc", at_ns=0), stage)


def test_a_jvm_that_collects_only_by_itself_was_not_made_to_collect(sleepers: tuple[Sleeper, Sleeper]) -> None:
    own = itertools.count()

    def jcmd(_pid: int, command: Sequence[str]) -> str:
        flags = "1:\n-XX:CICompilerCount=2 -XX:+DisableExplicitGC -XX:+UseG1GC\n"
        return flags if command == ("VM.flags",) else f"GC invocations={next(own)}\n"

    with pytest.raises(RunFailed, match=r"gc: node 1 has -XX:.DisableExplicitGC"):
        timeline.begin(Fault(kind="gc", at_ns=0), with_nodes(sleepers, jcmd))


def test_two_heap_dumps_at_once_are_two_files_and_none_is_left(
    tmp_path: Path, sleepers: tuple[Sleeper, Sleeper]
) -> None:
    inner: list[str] = []

    def jcmd(_pid: int, command: Sequence[str]) -> str:
        # Between quotes a JVM takes it for one argument, also where it has a "=".
        path = Path(command[1].removeprefix('"').removesuffix('"'))
        if path.exists():
            return f"Unable to create {path}: File exists"
        path.write_bytes(bytes(2_000_000 if inner else 1_000_000))
        if not inner:
            inner.append("")
            inner.append(timeline.begin(Fault(kind="heap-dump", at_ns=0), stage).seen)
        return "Heap dump file created"

    stage = with_nodes(sleepers[:1], jcmd)
    stage.nodes[0].home = tmp_path
    assert timeline.begin(Fault(kind="heap-dump", at_ns=0), stage).seen.startswith("node 1: 1 MB within ")
    assert inner[1].startswith("node 1: 2 MB within ")
    assert not list(tmp_path.iterdir())


def test_what_could_not_begin_does_not_begin_on_the_next_process(sleepers: tuple[Sleeper, Sleeper]) -> None:
    (node,) = with_nodes(sleepers[:1]).nodes

    def fail() -> None:
        raise RunFailed("no")

    with pytest.raises(RunFailed, match="no"):
        node.hold("pause", fail, fail)
    timeline.begin(lasting("kill"), Stage(nodes=(node,))).end()
    assert not node.is_down


def test_a_pause_that_cannot_be_had_at_one_node_is_at_none(sleepers: tuple[Sleeper, Sleeper]) -> None:
    sleepers[1].kill()
    with pytest.raises(ProcessLookupError):
        timeline.begin(lasting("pause"), with_nodes(sleepers))
    assert not sleepers[0].stands_still()


def test_a_reset_of_no_connection_fails_the_run() -> None:
    _, stage = on_a_link()
    with pytest.raises(RunFailed, match="reset: there was no connection to reset"):
        timeline.begin(Fault(kind="reset", at_ns=0), stage)


def test_a_reset_of_a_node_that_is_down_is_not_done_and_said_so(sleepers: tuple[Sleeper, Sleeper]) -> None:
    _, stage = on_a_link()
    stage = dataclasses.replace(stage, nodes=with_nodes(sleepers[:1]).nodes)
    kill = timeline.begin(lasting("kill"), stage)
    assert timeline.begin(Fault(kind="reset", at_ns=0), stage).seen == "not done, node 1 is down"
    kill.end()


def test_every_kind_of_fault_that_an_experiment_may_name_is_there() -> None:
    assert set(typing.get_args(typing.get_type_hints(Fault)["kind"])) == set(FAULTS)


def test_at_random_the_seed_decides_when_a_fault_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(kind="flush", at_ns=5 * S, every_ns=2 * S, random=True)
    found = happened(monkeypatch, fault)
    assert found == sorted(found) == happened(monkeypatch, fault)
    assert len(found) >= 2
    assert min(found) > 5
    assert max(found) < 20
    gaps = [
        list(itertools.islice(checks.moments(lasting("pause", every_ns=10 * S, random=True), 0, seed), 4000))
        for seed in (1, 2)
    ]
    assert gaps[0] != gaps[1]
    assert all(9.5 * S < moments[-1] / len(moments) < 10.5 * S for moments in gaps)
    assert all(later - earlier > 1 for earlier, later in itertools.pairwise(gaps[0]))


def test_a_node_is_started_again_as_often_as_it_is_killed() -> None:
    kills = (lasting("kill", every_ns=6 * S), lasting("kill", node=2))
    cell = dataclasses.replace(CELL, faults=kills)
    assert [checks.restarts(cell, node) for node in (1, 2)] == [4, 5]


def test_two_faults_that_are_written_alike_come_at_random_each_by_itself() -> None:
    twin = lasting("kill", every_ns=4 * S, random=True)
    cell = dataclasses.replace(CELL, faults=(twin, twin))
    latest_ns = cell.load.measure_ns - twin.for_ns
    first, second = (
        sum(1 for _ in itertools.takewhile(lambda at_ns: at_ns <= latest_ns, checks.moments(twin, number, 1)))
        for number in (0, 1)
    )
    assert first != second, "else one counted twice would be the same"
    assert checks.restarts(cell, 1) == first + second


class Shown(Link):
    """A link of which one sees its state."""

    def change(self, profile: Profile) -> None:
        self.profile = profile


LAYOUT = Layout(medium="veth", backend="plain", largest_mtu_bytes=1500, has_ipv6=False)


def on_a_link() -> tuple[Any, Stage]:
    def command(argv: tuple[str, ...]) -> tuple[str, ...]:
        assert "ingest_bench.faults.links.forged_packets" in argv
        return ("sh", "-c", """echo ready; while read -r _; do echo '{"ports": [], "left": 0}'; done""")

    place: Any = SimpleNamespace(run=lambda *_, **__: "", command=command)
    made = Shown(profile=Profile(name="plain"), client=place, server=place, layout=LAYOUT)
    return made, Stage(links=Links(by_name={LinkName((1,)): made}))


def test_a_link_has_the_state_of_all_faults_that_last_and_at_last_its_own() -> None:
    made, _ = on_a_link()

    def begun(**keys: Any) -> ExitStack:
        fault = Fault(kind="throttle", at_ns=0, for_ns=1, **keys)
        changed = FAULTS["throttle"].changed
        assert changed is not None
        stack = ExitStack()
        stack.enter_context(other_state(made, lambda profile: changed(profile, fault, ())))
        return stack

    slow = begun(rate_bps=10**6)
    far = begun(delay_ns=5)
    assert made.profile.to_server == Impairment(rate_bps=10**6, delay_ns=5)
    slow.close()
    assert made.profile.to_server == Impairment(delay_ns=5)
    again = begun(delay_ns=5)
    far.close()
    assert made.profile.to_server == Impairment(delay_ns=5)
    again.close()
    assert made.profile == Profile(name="plain")


def test_a_flush_that_fails_fails_the_run() -> None:
    def refuse() -> None:
        raise RunFailed("no")

    following = timeline.Following((Fault(kind="flush", at_ns=0),), Stage(flush=refuse), lambda: 0)
    following.follow()
    assert [str(error) for error in following.errors] == ["no"]


@pytest.mark.parametrize(
    ("fault", "load", "said"),
    [
        (Fault(kind="flush", at_ns=21 * S), {}, "it ends after the measurement"),
        (Fault(kind="pause", at_ns=1, for_ns=2 * S, every_ns=2 * S), {}, "it would begin again before it has ended"),
        (Fault(kind="flush", at_ns=1, random=True), {}, "at random, how far apart"),
        (Fault(kind="flush", at_ns=1, every_ns=1), {}, "less than 10 ms from its end"),
        (Fault(kind="pause", at_ns=1, for_ns=S, every_ns=S + 1, random=True), {}, "less than 10 ms from its end"),
        (Fault(kind="kill", at_ns=1, for_ns=1, every_ns=S // 10), {}, "a node would be started again 200 times"),
        (Fault(kind="reset", at_ns=1, for_ns=2 * S), {}, "fault reset: it has no length; take for out"),
        (Fault(kind="gc", at_ns=1, mtu_bytes=1400), {}, "fault gc: it has no mtu; take mtu out"),
        (Fault(kind="partition", at_ns=1, for_ns=S, icmp="sent"), {}, "fault partition: it has no icmp; take icmp out"),
        (Fault(kind="exhausted-ports", at_ns=1, for_ns=S, node=1), {}, "it is one of all nodes at once; take node out"),
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
        checks.check(cell)


def test_a_number_of_documents_goes_with_faults_that_are_repeated() -> None:
    load = dataclasses.replace(CELL.load, measure_documents=10)
    checks.check(dataclasses.replace(CELL, faults=(Fault(kind="flush", at_ns=30 * S, every_ns=S),), load=load))


def test_a_server_that_cannot_flush_is_named_before_anything_starts() -> None:
    cell = dataclasses.replace(CELL, target=TargetOptions(name="sink"), faults=(Fault(kind="flush", at_ns=1),))
    with pytest.raises(SpecError, match="flush: sink cannot be told"):
        campaign.check(plan_of(cell))
    campaign.check(plan_of(dataclasses.replace(cell, target=TargetOptions(name="opensearch"))))


def plan_of(cell: Cell) -> Plan:
    run = Run(id=f"{cell.name}/1", cell=cell, replicate=1)
    return Plan(experiment="x", description="", seed=1, factors=(), runs=(run,))


def test_no_sender_is_told_of_an_mtu_that_it_would_not_take() -> None:
    fault = Fault(kind="mtu-blackhole", at_ns=1, for_ns=S, mtu_bytes=551, icmp="sent")
    network = Profile(name="p", gso_max_segs=1)
    with pytest.raises(SpecError, match="no sender takes a path MTU below 552 from ICMP"):
        checks.check(dataclasses.replace(CELL, network=network, faults=(fault,)))
    checks.check(dataclasses.replace(CELL, network=network, faults=(dataclasses.replace(fault, mtu_bytes=552),)))
