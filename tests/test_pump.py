"""Requests that the event loop sends itself are in the account as those that a greenlet sends, whatever is answered."""

from __future__ import annotations

import dataclasses
import itertools
import socket
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from bulk_server import Reply, answer, bulk_answer, bulk_server, documents_in
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest_bench.documents.body import Body
from ingest_bench.load.recorder import sample_of
from ingest_bench.load.tickets import OpenLoop, Tickets
from ingest_bench.load.work import Work
from ingest_bench.model.samples import OUTCOMES, Sample
from ingest_bench.model.target import Endpoint, Place
from ingest_bench.model.workload import BulkAction
from ingest_bench.protocols.bulk import Bulk
from ingest_bench.protocols.way import way_to

with pytest.MonkeyPatch.context() as patched:
    # Without it Locust lets gevent patch the whole process: the servers here are threads, and pytest is no load.
    patched.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    from locust.env import Environment
    from locust.exception import StopUser

    from ingest_bench.load.users import ingest, tries
    from ingest_bench.load.users.ingest import TicketUser
    from ingest_bench.load.users.tries import Sender


def bulk(documents: int, padding: int = 0) -> Body:
    item = b'{"index":{}}\n{"n":1%s}\n' % (b" " * padding)
    return Body(item * documents, documents, lines=2)


class Kept:
    """In place of a recorder."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def add(self, one: bytes) -> None:
        self.samples.append(sample_of(one))


def user_of(
    bodies: Iterator[Body], address: Endpoint, *, pumps: bool, tickets: Tickets | None = None, **own: Any
) -> tuple[Any, Kept]:
    """A user that is ready to send these, and what it will leave."""
    kept = Kept()
    source: Any = SimpleNamespace(for_user=lambda _number: bodies)
    work = Work(source=source, recorder=kept, users=range(3, 4))
    if tickets is not None:
        work.tickets = tickets
    work.end_ns = 2**62
    bulks = Bulk(path="/i/_bulk", action=BulkAction())
    made = {
        "abstract": False,
        "work": work,
        "way": way_to(Place(endpoint=address)),
        "judge": staticmethod(bulks.judge),
        "retries": 2,
        **own,
    }
    user = type("User", (TicketUser, bulks.user()), made)(Environment())
    user.pumps = pumps
    user.on_start()
    return user, kept


def begun(user: Any) -> gevent.Greenlet:
    """The user at work, whose load lasts as long as there are bodies."""

    def work() -> None:
        with pytest.raises(StopUser):
            user.send_until_the_end()

    greenlet = gevent.spawn(work)
    start_ns = time.monotonic_ns()
    user.work.tickets.open(start_ns, start_ns + 60 * 10**9)
    return greenlet


def sent(reply: Reply, bodies: list[Body], *, pumps: bool, **own: Any) -> tuple[list[Sample], Work, int, int]:
    """The samples, the account, the bytes that the server read and the documents that it was sent."""
    with bulk_server(reply) as server:
        user, kept = user_of(iter(bodies), server.address, pumps=pumps, **own)
        begun(user).get(timeout=60)
        user.on_stop()
        user.way.deadlines.close()
        # What was written is read before the server is looked at: its thread may be behind.
        limit = time.monotonic() + 10
        while server.bytes_read < user.way.traffic.bytes_written and time.monotonic() < limit:
            time.sleep(0.001)
    return kept.samples, user.work, server.bytes_read, server.documents


def account(samples: list[Sample], work: Work) -> tuple[Any, ...]:
    """All that does not depend on clocks and ports."""
    told = [
        (
            OUTCOMES[one.outcome],
            one.documents,
            one.documents_acked,
            one.documents_failed,
            one.attempts,
            one.status,
            one.bytes_sent,
            one.user,
            one.address,
        )
        for one in samples
    ]
    return told, work.acked, work.documents_resent, dict(work.item_failures)


def usual(body: bytes, _number: int) -> bytes:
    return answer(bulk_answer([201] * documents_in(body)))


REPLIES: dict[str, Callable[[bytes], bytes | None]] = {
    "usual": lambda body: usual(body, 0),
    "longer": lambda body: answer(bulk_answer([201] * documents_in(body)) + b" "),
    "another head": lambda body: answer(bulk_answer([201] * documents_in(body)), headers="x: y\r\n"),
    "too many": lambda _body: answer(b"{}", "429 Too Many Requests"),
    "one rejected": lambda body: answer(bulk_answer([429] + [201] * (documents_in(body) - 1))),
    "one refused": lambda body: answer(bulk_answer([400] + [201] * (documents_in(body) - 1))),
    "refused": lambda _body: answer(b"no", "400 Bad Request"),
    "interim": lambda body: b"HTTP/1.1 103 Early Hints\r\n\r\n" + usual(body, 0),
    "says close": lambda body: answer(bulk_answer([201] * documents_in(body)), headers="connection: close\r\n"),
    "hangs up": lambda _body: None,
    "nonsense": lambda _body: b"nonsense\r\n\r\n",
}


@settings(max_examples=60, deadline=None)
@given(
    script=st.lists(st.sampled_from([*REPLIES, *["usual"] * 6]), min_size=1, max_size=12),
    documents=st.lists(st.integers(1, 4), min_size=1, max_size=8),
)
def test_whatever_is_answered_the_account_is_the_same_with_and_without_the_pump(
    script: list[str], documents: list[int]
) -> None:
    def reply(body: bytes, number: int) -> bytes | None:
        return REPLIES[script[(number - 1) % len(script)]](body)

    bodies = [bulk(count) for count in documents]
    with pytest.MonkeyPatch.context() as patch:
        # Pauses after failures: the same in both, and nothing that has to be waited for.
        patch.setattr(tries, "gevent", SimpleNamespace(sleep=lambda _seconds: None))
        found = [sent(reply, bodies, pumps=pumps) for pumps in (False, True)]
    (plain, plain_work, plain_bytes, _), (pumped, pumped_work, pumped_bytes, _) = found
    assert account(pumped, pumped_work) == account(plain, plain_work)
    assert pumped_bytes == plain_bytes
    assert len(pumped) == len(bodies)


def test_the_loop_sends_all_but_the_first_request_and_each_has_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    by_greenlet: list[int] = []
    plain = Sender.send

    def counted(self: Any, planned_ns: int, body: Body, begun: Any = None) -> None:
        by_greenlet.append(planned_ns)
        plain(self, planned_ns, body, begun)

    monkeypatch.setattr(ingest.IngestUser, "send", counted, raising=False)
    samples, work, read, documents = sent(usual, [bulk(2)] * 50, pumps=True)
    # The one that opens the connection.
    assert len(by_greenlet) == 1
    assert (len(samples), work.acked, documents) == (50, 100, 100)
    assert sum(one.bytes_sent for one in samples) == read
    for one, following in itertools.pairwise(samples):
        assert (
            one.planned_ns <= one.sent_ns < one.written_ns <= one.first_byte_ns <= one.done_ns <= following.planned_ns
        )


def test_each_sample_has_the_port_of_the_connection_on_which_its_request_went() -> None:
    def reply(body: bytes, number: int) -> bytes:
        return REPLIES["says close"](body) if number == 5 else usual(body, number)  # type: ignore[return-value]

    samples, work, _, _ = sent(reply, [bulk(2)] * 10, pumps=True)
    before, after = ({one.local_port for one in some} for some in (samples[:5], samples[5:]))
    assert (len(before), len(after), len(before | after)) == (1, 1, 2)
    assert work.acked == 20


def test_a_body_that_the_kernel_does_not_take_at_once_is_sent_to_its_end() -> None:
    bodies = [bulk(1), bulk(1), bulk(2, padding=3_000_000), bulk(1), bulk(1)]
    samples, work, read, documents = sent(usual, bodies, pumps=True)
    assert [OUTCOMES[one.outcome] for one in samples] == ["ok"] * 5
    assert (work.acked, documents) == (6, 6)
    assert sum(one.bytes_sent for one in samples) == read
    assert read > 6_000_000


def test_a_request_that_is_not_answered_in_time_times_out_and_the_next_one_goes_on() -> None:
    def reply(body: bytes, number: int) -> bytes:
        if number == 3:
            time.sleep(1)
        return usual(body, number)

    samples, work, _, _ = sent(reply, [bulk(1)] * 5, pumps=True, timeout_ns=200 * 10**6, retries=0)
    assert [OUTCOMES[one.outcome] for one in samples] == ["ok", "ok", "timeout", "ok", "ok"]
    late = samples[2]
    assert 200 * 10**6 <= late.done_ns - late.planned_ns < 900 * 10**6
    assert work.acked == 4


def test_a_user_that_is_ended_while_the_loop_sends_leaves_its_ticket_cut_off() -> None:
    def reply(body: bytes, number: int) -> bytes:
        if number == 4:
            time.sleep(0.5)
        return usual(body, number)

    with bulk_server(reply) as server:
        user, kept = user_of(itertools.repeat(bulk(2)), server.address, pumps=True)
        greenlet = begun(user)
        while server.requests < 4 and not greenlet.ready():
            gevent.sleep(0.001)
        greenlet.kill()
        user.on_stop()
        user.way.deadlines.close()
    *before, last = kept.samples
    assert [OUTCOMES[one.outcome] for one in before] == ["ok"] * 3
    assert (OUTCOMES[last.outcome], last.documents, last.documents_acked, last.attempts) == ("cut-off", 2, 0, 1)
    assert last.bytes_sent > len(bulk(2).data)


def test_what_fails_between_two_requests_is_raised_and_what_was_answered_is_kept() -> None:
    def bodies() -> Iterator[Body]:
        yield from [bulk(1)] * 3
        raise ArithmeticError("a corpus that is cut off")

    with bulk_server(usual) as server:
        user, kept = user_of(bodies(), server.address, pumps=True)
        with pytest.raises(ArithmeticError, match="cut off"):
            begun(user).get(timeout=60)
        user.on_stop()
        user.way.deadlines.close()
    assert [OUTCOMES[one.outcome] for one in kept.samples] == ["ok"] * 3


def test_what_fails_while_an_answer_is_judged_is_raised_with_a_sample_of_its_request() -> None:
    bulks, answers = Bulk(path="/i/_bulk", action=BulkAction()), itertools.count()

    def judge(answer: Any, body: Body, is_unsure: bool = False) -> Any:
        if next(answers) == 2:
            raise ArithmeticError("never seen before")
        return bulks.judge(answer, body, is_unsure)

    with bulk_server(usual) as server:
        user, kept = user_of(itertools.repeat(bulk(1)), server.address, pumps=True, judge=staticmethod(judge))
        with pytest.raises(ArithmeticError, match="never seen"):
            begun(user).get(timeout=60)
        user.on_stop()
        user.way.deadlines.close()
    assert [OUTCOMES[one.outcome] for one in kept.samples] == ["ok", "ok", "cut-off"]


def test_in_an_open_loop_requests_that_are_late_follow_at_once_and_the_others_wait_for_their_time() -> None:
    every_ns = 20 * 10**6

    def reply(body: bytes, number: int) -> bytes:
        if number == 5:
            time.sleep(0.2)
        return usual(body, number)

    tickets = OpenLoop(number * every_ns for number in range(30))
    with bulk_server(reply) as server:
        user, kept = user_of(itertools.repeat(bulk(1)), server.address, pumps=True, tickets=tickets)
        begun(user).get(timeout=60)
        user.on_stop()
        user.way.deadlines.close()
    samples = kept.samples
    assert len(samples) == 30
    planned = [one.planned_ns for one in samples]
    assert {later - earlier for earlier, later in itertools.pairwise(planned)} == {every_ns}
    assert all(one.sent_ns >= one.planned_ns for one in samples)
    waited = [one for one in samples if one.sent_ns - one.planned_ns > every_ns]
    assert len(waited) >= 5
    assert tickets.waited >= len(waited)


def test_a_server_that_hangs_up_beside_its_answers_is_found_out_at_the_next_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answers in (2, 9):
                connection, _ = listener.accept()
                with connection:
                    for _ in range(answers):
                        if connection.recv(65536):
                            connection.sendall(usual(bytes(bulk(1).data), 0))

        served = gevent.get_hub().threadpool.spawn(serve)
        # Nothing may be sent twice without ids: what the server had not read is told as such.
        user, kept = user_of(iter([bulk(1)] * 5), Endpoint(*listener.getsockname()), pumps=True, retries=0)
        begun(user).get(timeout=60)
        user.on_stop()
        user.way.deadlines.close()
        served.get(timeout=60)
    outcomes = [OUTCOMES[one.outcome] for one in kept.samples]
    assert len(outcomes) == 5
    assert outcomes[:2] == ["ok", "ok"]
    assert set(outcomes) <= {"ok", "connection-error"}
    assert user.work.acked == outcomes.count("ok")


@pytest.mark.parametrize("pumps", [False, True])
@pytest.mark.parametrize("last_words", [b"", answer(b"", "408 Request Timeout", headers="connection: close\r\n")])
def test_a_connection_that_the_server_ended_while_nothing_was_asked_is_not_used_any_more(
    pumps: bool, last_words: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(3):
                accepted, _ = listener.accept()
                with accepted:
                    accepted.recv(65536)
                    accepted.sendall(usual(bytes(bulk(1).data), 0))
                    time.sleep(0.02)
                    accepted.sendall(last_words)

        served = gevent.get_hub().threadpool.spawn(serve)
        tickets = OpenLoop(number * 2 * 10**8 for number in range(3))
        address = Endpoint(*listener.getsockname())
        user, kept = user_of(iter([bulk(1)] * 3), address, pumps=pumps, tickets=tickets)
        begun(user).get(timeout=60)
        user.on_stop()
        user.way.deadlines.close()
        served.get(timeout=60)
    assert [OUTCOMES[one.outcome] for one in kept.samples] == ["ok"] * 3
    assert user.way.traffic.connects == 3


def test_repeated_documents_are_counted_by_the_loop_too() -> None:
    import numpy as np  # noqa: PLC0415 - this test alone

    body = dataclasses.replace(bulk(2), adds=np.array([1, 0], dtype=np.int8))

    def reply(body: bytes, _number: int) -> bytes:
        item = b'{"index":{"result":"%s","status":201}}'
        items = b",".join(item % result for result in (b"created", b"updated")[: documents_in(body)])
        return answer(b'{"took":1,"errors":false,"items":[%s]}' % items)

    _, work, _, _ = sent(reply, [body] * 6, pumps=True)
    assert (work.acked, work.documents_repeated) == (12, 6)
