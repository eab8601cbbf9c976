"""Tickets on the real event loop. No bound on how late they come: the machine may be busy."""

from __future__ import annotations

import itertools
import time

import gevent

from ingest_bench.load.alarm import Alarm
from ingest_bench.load.tickets import ClosedLoop, OpenLoop

MS = 10**6


def taken(tickets: OpenLoop) -> list[tuple[int, int]]:
    """What one user that is always free got: planned and actual times."""
    found = []
    while planned_ns := tickets.take():
        found.append((planned_ns, time.monotonic_ns()))
    return found


def test_an_alarm_rings_at_its_moment_and_at_once_when_that_is_past() -> None:
    rung: list[int] = []
    alarm = Alarm(lambda: rung.append(time.monotonic_ns()))
    at_ns = time.monotonic_ns() + 2_300_000
    alarm.set(at_ns)
    while not rung:
        gevent.sleep(0.001)
    assert rung[0] >= at_ns
    alarm.set(at_ns)
    while len(rung) < 2:
        gevent.sleep(0.001)
    alarm.close()
    alarm.close()


def test_a_closed_loop_gives_a_ticket_at_once_until_the_end() -> None:
    tickets = ClosedLoop()
    assert tickets.take() == 0
    before_ns = time.monotonic_ns()
    tickets.open(before_ns, before_ns + 10**12)
    assert before_ns <= tickets.take() <= time.monotonic_ns()
    tickets.close()
    assert tickets.take() == 0


def test_a_closed_loop_lets_users_in_at_its_start_and_an_open_loop_before() -> None:
    closed, opened = ClosedLoop(), OpenLoop(iter([1 * MS]))
    start_ns = time.monotonic_ns() + 20 * MS
    for tickets in (closed, opened):
        assert not tickets.opened.is_set()
        tickets.open(start_ns, start_ns + 10**12)
    assert (closed.opened.is_set(), opened.opened.is_set()) == (False, True)
    assert gevent.spawn(taken, opened).get(timeout=60)[0][0] == start_ns + 1 * MS
    assert closed.opened.wait(timeout=60)
    assert closed.take() >= start_ns
    for tickets in (closed, opened):
        tickets.close()


def test_users_that_wait_for_the_start_are_let_go_when_there_will_be_none() -> None:
    for tickets in (ClosedLoop(), OpenLoop(itertools.count(0, MS))):
        never_ns = time.monotonic_ns() + 10**15
        tickets.open(never_ns, 2 * never_ns)
        tickets.close()
        assert tickets.opened.is_set()
        assert tickets.take() == 0


def test_an_open_loop_gives_each_planned_time_once_and_never_early() -> None:
    tickets = OpenLoop(iter([0, 1 * MS, 3 * MS, 3 * MS, 4 * MS]))
    start_ns = time.monotonic_ns()
    tickets.open(start_ns, start_ns + 10**12)
    users = [gevent.spawn(taken, tickets) for _ in range(2)]
    gevent.joinall(users, timeout=60, raise_error=True)
    got = sorted(itertools.chain(*(user.value for user in users)))
    assert [planned_ns - start_ns for planned_ns, _ in got] == [0, 1 * MS, 3 * MS, 3 * MS, 4 * MS]
    assert all(actual_ns >= planned_ns for planned_ns, actual_ns in got)
    assert tickets.unsent() == ()
    tickets.close()


def test_tickets_that_no_user_was_free_for_wait_and_are_counted() -> None:
    tickets = OpenLoop(iter([0, 1, 2]))
    start_ns = time.monotonic_ns()
    tickets.open(start_ns, start_ns + 10**12)
    while tickets.waited < 3:
        gevent.sleep(0.001)
    assert [tickets.take() - start_ns for _ in range(3)] == [0, 1, 2]
    assert tickets.take() == 0
    tickets.close()


def test_tickets_that_are_due_at_the_end_and_not_taken_are_told() -> None:
    tickets = OpenLoop(itertools.count(0, 10 * MS))
    start_ns = time.monotonic_ns()
    tickets.open(start_ns, start_ns + 10**12)
    while tickets.waited < 2:
        gevent.sleep(0.001)
    tickets.close()
    assert tickets.unsent()[:2] == (start_ns, start_ns + 10 * MS)
    assert tickets.take() == 0


def test_tickets_that_were_due_while_the_clock_had_no_turn_are_unsent() -> None:
    tickets = OpenLoop(itertools.count(0, MS))
    start_ns = time.monotonic_ns() - 5 * MS
    tickets.open(start_ns, start_ns + 3 * MS)
    tickets.close()
    assert tickets.unsent() == (start_ns, start_ns + MS, start_ns + 2 * MS)


def test_a_ticket_whose_user_ends_the_load_at_once_is_taken_and_those_after_it_are_unsent() -> None:
    tickets = OpenLoop(iter([1 * MS, 2 * MS, 3 * MS, 10**12]))
    found = []

    def user() -> None:
        tickets.opened.wait()
        found.append(tickets.take())
        while time.monotonic_ns() < start_ns + 4 * MS:
            """The clock has no turn."""
        tickets.close()

    start_ns = time.monotonic_ns()
    waits = gevent.spawn(user)
    gevent.sleep(0)
    tickets.open(start_ns, start_ns + 10**12)
    waits.get(timeout=60)
    assert found == [start_ns + 1 * MS]
    assert tickets.unsent() == (start_ns + 2 * MS, start_ns + 3 * MS)


def test_no_ticket_is_planned_at_the_end_or_later_and_who_waits_is_dismissed_by_close() -> None:
    tickets = OpenLoop(itertools.count(0, MS))
    start_ns = time.monotonic_ns()
    tickets.open(start_ns, start_ns + 3 * MS)
    user = gevent.spawn(taken, tickets)
    # Not "until 5 ms are over": on a busy machine they are over before the first switch to anybody.
    for _ in range(5):
        gevent.sleep(0.002)
    assert not user.ready()
    tickets.close()
    planned = [planned_ns - start_ns for planned_ns, _ in user.get(timeout=60)]
    assert {*planned, *(late_ns - start_ns for late_ns in tickets.unsent())} == {0, MS, 2 * MS}
