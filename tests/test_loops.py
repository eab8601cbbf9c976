"""Arrivals on the real event loop. No bound on how late they come: the machine may be busy."""

from __future__ import annotations

import itertools
import time

import gevent

from ingest_bench.load.loops import ClosedLoop, KernelTimer, OpenLoop

MS = 10**6


def take_all(arrivals: OpenLoop) -> list[tuple[int, int]]:
    """Return the scheduled and actual times of one user that is always free."""
    taken = []
    while scheduled_ns := arrivals.wait_for_next():
        taken.append((scheduled_ns, time.monotonic_ns()))
    return taken


def test_a_kernel_timer_fires_at_its_time_and_at_once_if_past() -> None:
    fired_ns: list[int] = []
    timer = KernelTimer(lambda: fired_ns.append(time.monotonic_ns()))
    at_ns = time.monotonic_ns() + 2_300_000
    timer.set(at_ns)
    while not fired_ns:
        gevent.sleep(0.001)
    assert fired_ns[0] >= at_ns
    timer.set(at_ns)
    while len(fired_ns) < 2:
        gevent.sleep(0.001)
    timer.close()
    timer.close()


def test_a_closed_loop_releases_arrivals_at_once_until_the_end() -> None:
    arrivals = ClosedLoop()
    assert arrivals.wait_for_next() == 0
    before_ns = time.monotonic_ns()
    arrivals.open(before_ns, before_ns + 10**12)
    assert before_ns <= arrivals.wait_for_next() <= time.monotonic_ns()
    arrivals.close()
    assert arrivals.wait_for_next() == 0


def test_a_closed_loop_opens_at_its_start_and_an_open_loop_before() -> None:
    closed, opened = ClosedLoop(), OpenLoop(iter([1 * MS]))
    start_ns = time.monotonic_ns() + 20 * MS
    for arrivals in (closed, opened):
        assert not arrivals.opened.is_set()
        arrivals.open(start_ns, start_ns + 10**12)
    assert (closed.opened.is_set(), opened.opened.is_set()) == (False, True)
    assert gevent.spawn(take_all, opened).get(timeout=60)[0][0] == start_ns + 1 * MS
    assert closed.opened.wait(timeout=60)
    assert closed.wait_for_next() >= start_ns
    for arrivals in (closed, opened):
        arrivals.close()


def test_close_releases_users_that_wait_for_the_start() -> None:
    for arrivals in (ClosedLoop(), OpenLoop(itertools.count(0, MS))):
        never_ns = time.monotonic_ns() + 10**15
        arrivals.open(never_ns, 2 * never_ns)
        arrivals.close()
        assert arrivals.opened.is_set()
        assert arrivals.wait_for_next() == 0


def test_an_open_loop_releases_each_time_once_and_never_early() -> None:
    arrivals = OpenLoop(iter([0, 1 * MS, 3 * MS, 3 * MS, 4 * MS]))
    start_ns = time.monotonic_ns()
    arrivals.open(start_ns, start_ns + 10**12)
    users = [gevent.spawn(take_all, arrivals) for _ in range(2)]
    gevent.joinall(users, timeout=60, raise_error=True)
    got = sorted(itertools.chain(*(user.value for user in users)))
    assert [scheduled_ns - start_ns for scheduled_ns, _ in got] == [0, 1 * MS, 3 * MS, 3 * MS, 4 * MS]
    assert all(actual_ns >= scheduled_ns for scheduled_ns, actual_ns in got)
    assert arrivals.unsent() == ()
    arrivals.close()


def test_arrivals_without_a_free_user_wait_and_are_counted() -> None:
    arrivals = OpenLoop(iter([0, 1, 2]))
    start_ns = time.monotonic_ns()
    arrivals.open(start_ns, start_ns + 10**12)
    while arrivals.waited < 3:
        gevent.sleep(0.001)
    assert [arrivals.wait_for_next() - start_ns for _ in range(3)] == [0, 1, 2]
    assert arrivals.wait_for_next() == 0
    arrivals.close()


def test_arrivals_due_at_the_end_and_not_taken_are_unsent() -> None:
    arrivals = OpenLoop(itertools.count(0, 10 * MS))
    start_ns = time.monotonic_ns()
    arrivals.open(start_ns, start_ns + 10**12)
    while arrivals.waited < 2:
        gevent.sleep(0.001)
    arrivals.close()
    assert arrivals.unsent()[:2] == (start_ns, start_ns + 10 * MS)
    assert arrivals.wait_for_next() == 0


def test_arrivals_due_while_the_timer_is_late_are_unsent() -> None:
    arrivals = OpenLoop(itertools.count(0, MS))
    start_ns = time.monotonic_ns() - 5 * MS
    arrivals.open(start_ns, start_ns + 3 * MS)
    arrivals.close()
    assert arrivals.unsent() == (start_ns, start_ns + MS, start_ns + 2 * MS)


def test_an_arrival_whose_user_ends_the_load_is_taken() -> None:
    arrivals = OpenLoop(iter([1 * MS, 2 * MS, 3 * MS, 10**12]))
    taken = []

    def user() -> None:
        arrivals.opened.wait()
        taken.append(arrivals.wait_for_next())
        while time.monotonic_ns() < start_ns + 4 * MS:
            """The clock has no turn."""
        arrivals.close()

    start_ns = time.monotonic_ns()
    waits = gevent.spawn(user)
    gevent.sleep(0)
    arrivals.open(start_ns, start_ns + 10**12)
    waits.get(timeout=60)
    assert taken == [start_ns + 1 * MS]
    assert arrivals.unsent() == (start_ns + 2 * MS, start_ns + 3 * MS)


def test_no_arrival_is_released_at_the_end_or_later() -> None:
    arrivals = OpenLoop(itertools.count(0, MS))
    start_ns = time.monotonic_ns()
    arrivals.open(start_ns, start_ns + 3 * MS)
    user = gevent.spawn(take_all, arrivals)
    # Not "until 5 ms are over": on a busy machine they are over before the first switch to a greenlet.
    for _ in range(5):
        gevent.sleep(0.002)
    assert not user.ready()
    arrivals.close()
    planned = [scheduled_ns - start_ns for scheduled_ns, _ in user.get(timeout=60)]
    assert {*planned, *(late_ns - start_ns for late_ns in arrivals.unsent())} == {0, MS, 2 * MS}
