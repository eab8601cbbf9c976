"""Sessions and watchdogs killed at random moments: afterwards the machine is as before, to the byte.

Of 100 kills 42 hit a real interface, 22 settings of the machine, 14 a virtual link (`net exec`), 15 a process with
every fault of the host, 3 whole runs with faults of each family, and 4 a link with a netem router. Each stage (set-up,
at work, undo) is equally likely. The moment within it is drawn from its length without a kill. One third of the
sessions have a state folder that is full or becomes full, one third have PATH=/usr/bin:/bin, and one half of those that
need no root belong to an ordinary user. One kill in six hits a watchdog: then the session restores the machine, or is
killed too and `net restore` does.

Of the machine's settings only tcp_mem and tcp_max_orphans are changed, by 1, which has no visible effect.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import commands
import ordinary_user
import psutil
import pytest
from _pytest.mark import ParameterSet
from kills_lab import COMMAND, IS_ROOT, KINDS, LIMIT_S, STAGES, Kind, Machine, Session, Surroundings, machine, session

pytestmark = [pytest.mark.netns, pytest.mark.processes, pytest.mark.machine]

# `nox -s kills` kills 1,000 times.
KILLS = int(os.environ.get("INGEST_BENCH_KILLS", "50"))
SEED = int(os.environ.get("INGEST_BENCH_KILL_SEED", time.time_ns() % 10**6))
ENDED = "ended before"
MARKS = {
    "run": [pytest.mark.jvm, pytest.mark.nightly],
    "box": [pytest.mark.netem, pytest.mark.nightly],
    "interface": [pytest.mark.nightly],
    "node": [pytest.mark.nightly],
}
WATCHED = [kind for kind in KINDS if kind.has_watchdog]
COLUMNS = ("kind", "kills", *STAGES, ENDED, "full state", "small PATH", "ordinary user", "failures")


@dataclass
class Tally:
    """Kills by kind, and failures."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    took_s: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Length of each stage of a kind."""

    def note(self, name: str, hit: str, around: Surroundings) -> None:
        counts = self.counts.setdefault(name, Counter())
        also = {
            "full state": around.room_pages is not None,
            "small PATH": around.small_path,
            "ordinary user": around.user is not None or not IS_ROOT,
        }
        counts.update([hit, *(["kills"] if hit in STAGES else []), *(word for word, is_so in also.items() if is_so)])

    def table(self) -> str:
        rows = [[name, *(str(counts[column]) for column in COLUMNS[1:])] for name, counts in self.counts.items()]
        total = sum(self.counts.values(), Counter())
        rows = [list(COLUMNS), *rows, ["all", *(str(total[column]) for column in COLUMNS[1:])]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)


@dataclass
class Killing:
    """Sessions of one kind that are killed in turn."""

    at: Machine
    kind: Kind
    tally: Tally
    dice: random.Random
    before: dict[str, list[str]] = field(default_factory=dict)

    def measure(self) -> None:
        """Check that a session changes the machine and restores it without a kill; record the length of its stages."""
        self.before = self.at.snapshot()
        if self.kind.name in self.tally.took_s:
            return
        with session(self.at, self.kind, self.dice, Surroundings()) as opened:
            assert opened.reach(1), opened.stderr
            if self.kind.work_s is None:
                # Before its first fault begins.
                opened.listen_until(opened.since[1] + 1)
            during = self.at.snapshot()
            opened.end()
        changed = [part for part in during if during[part] != self.before[part]]
        assert set(self.kind.seen_in) <= set(changed), changed
        # A run with such short faults may be invalid.
        assert opened.popen.returncode in {0, 3}, opened.stderr
        assert len(opened.since) == len(STAGES) + 1, opened.stderr
        assert self.at.describe_changes(self.before) == ""
        self.tally.took_s[self.kind.name] = _took_s(opened)

    def kill_many(self, kill: Callable[[int], bool], count: float) -> None:
        """Kill *count* sessions. One that ends before its moment does not count."""
        done, wanted = 0, max(1, round(count))
        for number in range(4 * wanted + 10):
            done += kill(number)
            if done == wanted:
                return
        self.tally.failures.append(f"{self.kind.name}, seed {SEED}: only {done} of {wanted} were killed in their time")

    def kill(self, number: int) -> bool:
        """Kill a session at a random moment of a stage; return False if it had ended before."""
        hit = ENDED
        around = self._drawn()
        with self._judged(self.kind.name, number, around):
            with session(self.at, self.kind, self.dice, around) as opened:
                self._let_it_run(opened, around)
                opened.popen.kill()
                opened.end()
            was_killed = opened.popen.returncode == -signal.SIGKILL
            if not was_killed and opened.stage == len(STAGES) - 1:
                # The machine is quicker or slower than it was.
                self.tally.took_s[self.kind.name] = _took_s(opened)
            assert was_killed or "Traceback" not in opened.stderr, opened.stderr
            hit = STAGES[opened.stage] if was_killed else ENDED
            self.tally.note(self.kind.name, hit, around)
        return hit != ENDED

    def kill_watchdog(self, number: int) -> bool:
        """Kill a watchdog; its session restores, or is killed too and `net restore` does. False if it had ended."""
        hit = ENDED
        around, are_both = self._drawn(), self.dice.random() < 0.5
        name = f"watchdog of {self.kind.name}, {'then both' if are_both else 'alone'}"
        with self._judged(name, number, around):
            with session(self.at, self.kind, self.dice, around) as opened:
                self._let_it_run(opened, around)
                hit = self._kill_a_watchdog(opened)
                if are_both:
                    opened.listen_until(time.monotonic() + self.dice.uniform(0, 0.2))
                    opened.popen.kill()
                opened.end()
            assert are_both or "Traceback" not in opened.stderr, opened.stderr
            if are_both:
                self._restore(around)
            self.tally.note(name, hit, around)
        return hit != ENDED

    def _drawn(self) -> Surroundings:
        is_full, has_small_path, is_other = (self.dice.random() < share for share in (1 / 3, 1 / 3, 1 / 2))
        user = commands.ORDINARY_UID if self.kind.any_user and IS_ROOT and is_other else None
        is_full = is_full and IS_ROOT and self.kind.has_watchdog
        room_pages = self.dice.randrange(4) if is_full else None
        # Full or nearly full from the start, or full once everything is set up.
        return Surroundings(room_pages, self.dice.random() < 0.5, has_small_path, user)

    def _let_it_run(self, opened: Session, around: Surroundings) -> None:
        """Wait until a random moment of a random stage."""
        stage = self.dice.randrange(len(STAGES))
        wait_s = self.dice.uniform(0, self.tally.took_s[self.kind.name][stage])
        if around.room_pages is not None and around.full_later and stage:
            opened.reach(1)
            self.at.fill_state(0)
        if opened.reach(stage):
            opened.listen_until(opened.since[stage] + wait_s)

    def _kill_a_watchdog(self, opened: Session) -> str:
        """Kill a watchdog, the next one if none has started yet; return the stage of the session."""
        limit = time.monotonic() + LIMIT_S
        while not (dogs := opened.watchdogs()):
            assert time.monotonic() < limit
            if not opened.listen_until(time.monotonic() + 0.01):
                return ENDED
        stage = STAGES[opened.stage]
        with contextlib.suppress(psutil.NoSuchProcess):
            self.dice.choice(dogs).kill()
        return stage

    def _restore(self, around: Surroundings) -> None:
        enter = self.at.lab.client if self.kind.in_network else self.at.mounts
        argv = (*enter, *COMMAND, "net", "restore")
        environment = around.environment(self.at)
        done = subprocess.run(argv, capture_output=True, text=True, env=environment, cwd="/", timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    @contextmanager
    def _judged(self, name: str, number: int, around: Surroundings) -> Iterator[None]:
        """Check that the machine is as before after the block; otherwise note the failure and restore it."""
        if around.room_pages is not None and not around.full_later:
            self.at.fill_state(around.room_pages)
        try:
            yield
            assert not (left := self.at.describe_changes(self.before)), left
        except AssertionError as error:
            self.tally.counts.setdefault(name, Counter())["failures"] += 1
            self.tally.failures.append(f"{name}, seed {SEED}, number {number}, {around}: {error}")
            self.at.empty_state()
            self._restore(Surroundings())
            self.before = self.at.snapshot()
        finally:
            self.at.empty_state()


def _took_s(ended: Session) -> tuple[float, ...]:
    """Return the length of each stage of a session that was not killed."""
    took_s = [end - start for start, end in itertools.pairwise(ended.since)]
    return (took_s[0], ended.kind.work_s or took_s[1], took_s[2])


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("kills")) as prepared:
        yield prepared


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    counted = Tally()
    try:
        yield counted
    finally:
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            sys.stdout.write(f"\n\nseed {SEED}\n{counted.table()}\n")
            sys.stdout.flush()


def killing(at: Machine, kind: Kind, tally: Tally, purpose: str) -> Killing:
    if reason := kind.needs():
        pytest.skip(reason)
    if kind.any_user:
        # Every second session belongs to an ordinary user.
        ordinary_user.before()
    dice = random.Random(f"{SEED} {purpose} {kind.name}")  # noqa: S311 - dice, not a secret
    sessions = Killing(at, kind, tally, dice)
    sessions.measure()
    return sessions


def parametrized(kinds: Sequence[Kind]) -> list[ParameterSet]:
    return [pytest.param(kind, marks=MARKS.get(kind.name, ()), id=kind.name) for kind in kinds]


@pytest.mark.parametrize("kind", parametrized(KINDS))
def test_session_killed_at_any_moment_leaves_nothing(at: Machine, kind: Kind, tally: Tally) -> None:
    sessions = killing(at, kind, tally, "kills")
    sessions.kill_many(sessions.kill, KILLS * kind.share / 100)
    assert tally.failures == []


@pytest.mark.nightly
@pytest.mark.parametrize("kind", parametrized(WATCHED))
def test_watchdog_killed_at_any_moment_is_replaced(at: Machine, kind: Kind, tally: Tally) -> None:
    sessions = killing(at, kind, tally, "watchdogs")
    sessions.kill_many(sessions.kill_watchdog, KILLS / 5 * kind.share / sum(kind.share for kind in WATCHED))
    assert tally.failures == []
