"""The users of a load in this process, against small real servers: what the sample of each ticket says."""

from __future__ import annotations

import gc
import itertools
import socket
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from bulk_server import Reply, accept_all, answer, bulk_answer, bulk_server, documents_in
from gevent.event import Event

from ingest_bench.documents.body import Body
from ingest_bench.load.recorder import unsent
from ingest_bench.load.work import Work
from ingest_bench.model.samples import OUTCOMES, Sample
from ingest_bench.model.target import Endpoint

with pytest.MonkeyPatch.context() as patched:
    # Without it Locust lets gevent patch the whole process: the servers here are threads, and pytest is no load.
    patched.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    from locust.env import Environment

    from ingest_bench.load.users import sender
    from ingest_bench.load.users.bulk import BulkUser
    from ingest_bench.load.users.search import SearchUser
    from ingest_bench.load.users.sender import Sender

ITEMS = 10
BULK = Body(b"".join(b'{"index":{}}\n{"n":%d}\n' % number for number in range(ITEMS)), ITEMS)
HEAD = b"POST /i/_bulk HTTP/1.1\r\nhost: x\r\ncontent-length: "
PLANNED_NS = 1
TOO_MANY = answer(b"{}", "429 Too Many Requests")


class Kept:
    """In place of a recorder."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def add(self, *sample: int) -> None:
        self.samples.append(Sample(*sample))

    @property
    def only(self) -> Sample:
        (sample,) = self.samples
        return sample


class Clock:
    """In place of gevent's sleep: tells how long was waited, and goes on at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, then: Callable[[], object] = lambda: None) -> None:
        self.waited_s: list[float] = []
        self._then = then
        monkeypatch.setattr(sender, "gevent", SimpleNamespace(sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.waited_s.append(seconds)
        self._then()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def started(address: Endpoint, kind: type[Sender] = BulkUser, **own: Any) -> tuple[Any, Kept]:
    """A user that is ready to send, and what it will leave."""
    kept = Kept()
    nothing: Any = None
    work = Work(address=address, source=nothing, recorder=kept, users=range(3, 99))
    work.end_ns = 2**62
    made = {"abstract": False, "work": work, "recorder": kept, "head": HEAD, "retries": 5, "numbers": iter([3]), **own}
    user = type("User", (kind,), made)(Environment())
    user.on_start()
    return user, kept


def sent(reply: Reply, **own: Any) -> tuple[Sample, Work, int]:
    """The sample of one bulk, the account, and how many bytes the server read."""
    with bulk_server(reply) as server:
        user, kept = started(server.address, **own)
        gevent.spawn(user.send, PLANNED_NS, BULK).get(timeout=60)
        user.on_stop()
    user.work.deadlines.close()
    return kept.only, user.work, server.bytes_read


def outcome(sample: Sample) -> str:
    return OUTCOMES[sample.outcome]


def documents(sample: Sample) -> tuple[int, int, int]:
    return sample.documents, sample.documents_acked, sample.documents_failed


def items(*statuses: list[int]) -> Reply:
    """One answer after the other, each with the status of each item of what was sent."""
    return lambda _body, number: answer(bulk_answer(statuses[number - 1]))


def test_a_bulk_that_is_taken_at_once_is_one_attempt(clock: Clock) -> None:
    sample, work, read = sent(accept_all)
    assert outcome(sample) == "ok"
    assert documents(sample) == (10, 10, 0)
    assert (sample.planned_ns, sample.attempts, sample.status, sample.user) == (PLANNED_NS, 1, 200, 3)
    assert sample.bytes_sent == read
    assert PLANNED_NS < sample.sent_ns < sample.done_ns
    assert (work.acked, work.documents_resent, clock.waited_s) == (10, 0, [])


def test_a_bulk_that_is_taken_on_the_third_try_is_one_sample_of_all_three(clock: Clock) -> None:
    began_ns: list[int] = []

    def reply(body: bytes, number: int) -> bytes:
        began_ns.append(time.monotonic_ns())
        return TOO_MANY if number < 3 else accept_all(body, number)

    sample, work, read = sent(reply)
    assert outcome(sample) == "ok"
    assert documents(sample) == (10, 10, 0)
    assert (sample.attempts, sample.status, sample.bytes_sent) == (3, 200, read)
    assert sample.sent_ns < began_ns[0]
    assert began_ns[2] < sample.done_ns
    assert (work.acked, work.documents_resent, work.item_failures) == (10, 20, {})
    assert clock.waited_s == [0.05, 0.1]


def test_what_was_acknowledged_in_any_attempt_counts_and_what_failed_for_good_is_not_forgotten(clock: Clock) -> None:
    first = [201] * 6 + [400] + [429] * 3
    sample, work, read = sent(items(first, [201, 429, 201], [201]))
    assert outcome(sample) == "partial"
    assert documents(sample) == (10, 9, 1)
    assert (sample.attempts, sample.bytes_sent) == (3, read)
    assert (work.acked, work.documents_resent, dict(work.item_failures)) == (9, 4, {"400 kind_400": 1})
    assert clock.waited_s == [0.05, 0.1]


@pytest.mark.parametrize(
    ("first", "ended", "told"),
    [([429] * 10, "rejected", (10, 0, 10)), ([201] * 7 + [429] * 3, "partial", (10, 7, 3))],
)
def test_what_is_rejected_for_ever_has_failed_once(
    clock: Clock, first: list[int], ended: str, told: tuple[int, int, int]
) -> None:
    left = first.count(429)
    # 429 for the whole bulk, as a node says it whose pressure limit is reached.
    sample, work, _ = sent(lambda body, _: TOO_MANY if documents_in(body) == left else items(first)(body, 1), retries=2)
    assert (outcome(sample), documents(sample), sample.attempts) == (ended, told, 3)
    assert work.documents_resent == 2 * left
    assert sum(work.item_failures.values()) == left
    assert clock.waited_s[:2] == [0.05, 0.1]


def test_after_the_end_of_the_load_nothing_is_sent_again(clock: Clock) -> None:
    with bulk_server(lambda _body, _number: TOO_MANY) as server:
        user, kept = started(server.address)
        user.work.stopped = True
        gevent.spawn(user.send, PLANNED_NS, BULK).get(timeout=60)
        user.on_stop()
    assert (outcome(kept.only), documents(kept.only), kept.only.attempts) == ("rejected", (10, 0, 10), 1)
    assert clock.waited_s == [0.01]


def test_a_connection_that_breaks_on_the_second_try_leaves_open_only_what_was_sent_again(clock: Clock) -> None:
    first = items([201] * 8 + [429] * 2)
    sample, work, read = sent(lambda body, number: first(body, number) if number == 1 else None)
    assert (outcome(sample), documents(sample), sample.attempts, sample.status) == (
        "connection-error",
        (10, 8, 0),
        2,
        0,
    )
    assert sample.bytes_sent == read
    assert work.acked == 8
    assert len(clock.waited_s) == 2


def test_a_request_that_hung_and_was_reset_has_its_time() -> None:
    def hangs(_body: bytes, _number: int) -> None:
        time.sleep(0.05)

    sample, _, _ = sent(hangs)
    assert outcome(sample) == "connection-error"
    assert sample.done_ns - sample.sent_ns >= 0.05e9


def test_a_connection_that_is_refused_is_a_ticket_that_was_tried_and_of_which_nothing_was_sent(clock: Clock) -> None:
    with bulk_server() as server:
        address = server.address
    user, kept = started(address)
    gevent.spawn(user.send, PLANNED_NS, BULK).get(timeout=60)
    sample = kept.only
    assert (outcome(sample), sample.attempts, sample.bytes_sent) == ("connection-error", 1, 0)
    assert sample.sent_ns == sample.done_ns > PLANNED_NS
    assert clock.waited_s == [0.01]


def test_a_user_that_is_ended_in_the_middle_of_a_request_leaves_its_ticket_cut_off() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        user, kept = started(Endpoint(*listener.getsockname()))
        greenlet = gevent.spawn(user.send, PLANNED_NS, BULK)
        while not user._connection.bytes_sent:
            gevent.idle()
        greenlet.kill()
        user.on_stop()
    sample = kept.only
    assert (outcome(sample), documents(sample), sample.attempts) == ("cut-off", (10, 0, 0), 1)
    assert sample.bytes_sent > len(BULK.data)
    assert sample.sent_ns < sample.done_ns


def test_a_user_that_is_ended_before_it_tries_again_leaves_its_ticket_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    pausing = Event()

    def never() -> None:
        pausing.set()
        Event().wait()

    Clock(monkeypatch, never)
    with bulk_server(items([201] * 8 + [429] * 2)) as server:
        user, kept = started(server.address)
        greenlet = gevent.spawn(user.send, PLANNED_NS, BULK)
        assert pausing.wait(60)
        ended_ns = time.monotonic_ns()
        greenlet.kill()
        user.on_stop()
    sample = kept.only
    assert (outcome(sample), documents(sample), sample.attempts, sample.status) == ("cut-off", (10, 8, 0), 1, 0)
    assert sample.done_ns >= ended_ns
    assert user.work.documents_resent == 0


def test_a_user_that_fails_itself_loses_no_ticket(clock: Clock) -> None:
    with bulk_server() as server:
        user, kept = started(server.address, judge=staticmethod(lambda *_: 1 / 0), is_success=lambda *_: False)
        with pytest.raises(ZeroDivisionError):
            gevent.spawn(user.send, PLANNED_NS, BULK).get(timeout=60)
        user.on_stop()
    assert (outcome(kept.only), documents(kept.only), clock.waited_s) == ("cut-off", (10, 0, 0), [])


def test_the_samples_of_one_user_after_the_other_share_nothing(clock: Clock) -> None:
    replies = itertools.cycle([TOO_MANY, answer(bulk_answer([201] * 9 + [400])), None, accept_all(bytes(BULK.data), 0)])
    with bulk_server(lambda _body, _number: next(replies)) as server:
        user, kept = started(server.address)
        for planned_ns in range(1, 7):
            gevent.spawn(user.send, planned_ns, BULK).get(timeout=60)
        user.on_stop()
    assert [(sample.planned_ns, outcome(sample), sample.attempts) for sample in kept.samples] == [
        (1, "partial", 2),
        (2, "connection-error", 1),
        (3, "ok", 1),
        (4, "partial", 2),
        (5, "connection-error", 1),
        (6, "ok", 1),
    ]
    assert [documents(sample) for sample in kept.samples[:3]] == [(10, 9, 1), (10, 0, 0), (10, 10, 0)]
    assert sum(sample.bytes_sent for sample in kept.samples) == server.bytes_read
    assert user.work.acked == sum(sample.documents_acked for sample in kept.samples)
    assert len(clock.waited_s) == 4


def test_a_ticket_that_was_never_sent_has_its_wait() -> None:
    sample = unsent(5, 12)
    assert (outcome(sample), sample.attempts, sample.user) == ("cut-off", 0, -1)
    assert sample.done_ns - sample.planned_ns == 7
    assert (*documents(sample), sample.bytes_sent) == (0, 0, 0, 0)


def test_the_pause_after_a_failure_doubles_and_stays_below_its_limit_for_ever(clock: Clock) -> None:
    pauses_s = [sender.pause_s(0.01, number, 1.0) for number in range(1, 5000)]
    assert pauses_s[:8] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0]
    assert set(pauses_s[7:]) == {1.0}
    with bulk_server() as server:
        address = server.address
    user, _ = started(address)
    user.failures_in_a_row = 1024
    gevent.spawn(user.send, PLANNED_NS, BULK).get(timeout=60)
    assert (user.failures_in_a_row, clock.waited_s) == (1025, [1.0])


QUERY = Body(b'{"query":{"match_all":{}}}', 0)
FOUND = answer(b'{"took":3,"timed_out":false,"_shards":{"total":2,"successful":2,"failed":0},"hits":{}}')


def test_a_query_that_is_not_answered_in_time_times_out(clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        user, kept = started(Endpoint(*listener.getsockname()), SearchUser, timeout_ns=50_000_000)
        begun_ns = time.monotonic_ns()
        gevent.spawn(user.send, PLANNED_NS, QUERY).get(timeout=60)
        user.work.deadlines.close()
    sample = kept.only
    assert outcome(sample) == "timeout"
    # Of the whole exchange, connecting included.
    assert sample.done_ns - begun_ns >= 50_000_000
    assert clock.waited_s == [0.1]


def test_queries_are_tickets_without_documents(clock: Clock) -> None:
    replies = iter([FOUND, FOUND.replace(b'"failed":0', b'"failed":1'), TOO_MANY])
    with bulk_server(lambda _body, _number: next(replies)) as server:
        user, kept = started(server.address, SearchUser, retries=0)
        for _ in range(3):
            gevent.spawn(user.send, PLANNED_NS, QUERY).get(timeout=60)
        user.on_stop()
    assert [outcome(sample) for sample in kept.samples] == ["ok", "partial", "rejected"]
    assert {(*documents(sample), sample.attempts) for sample in kept.samples} == {(0, 0, 0, 1)}
    assert sum(sample.bytes_sent for sample in kept.samples) == server.bytes_read
    assert (user.work.acked, clock.waited_s) == (0, [0.1, 0.1])
    assert len(user.work.errors()) == 2


def test_a_user_that_has_gone_is_forgotten_with_its_connection() -> None:
    gc.disable()
    try:
        with bulk_server() as server:
            user, _ = started(server.address)
            work = user.work
            gone = []
            for _ in range(20):
                gevent.spawn(user.send, PLANNED_NS, BULK).get(timeout=60)
                user.on_stop()
                gone.append(weakref.ref(user._connection))
                # Another user of the same load takes its place.
                user.on_start()
            assert [one for one in gone if one() is not None] == []
            assert len(work.deadlines._connections) == 1
            work.deadlines.close()
    finally:
        gc.enable()


def test_a_rate_of_bytes_goes_by_the_bodies_and_not_by_what_is_written_already() -> None:
    source: Any = SimpleNamespace(for_user=lambda _user: iter([Body(b"x" * 1000, 4), Body(b"x" * 3000, 8)]))
    for unit, expected, means in (("bytes", 500.0, [1000.0, 2000.0]), ("documents", 2.0, [4.0, 6.0])):
        work = Work(address=Endpoint("127.0.0.1", 1), source=source, recorder=Kept(), users=range(1))
        sizes = work.sizes(unit, expected)  # type: ignore[arg-type]
        bodies = work.bodies(0)
        assert next(sizes) == expected
        for mean in means:
            next(bodies)
            assert next(sizes) == mean
    work = Work(address=Endpoint("127.0.0.1", 1), source=source, recorder=Kept(), users=range(1))
    assert next(work.sizes("requests", 1.0)) == 1.0
