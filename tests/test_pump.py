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
import numpy as np
import pytest
import unpatched_locust  # noqa: F401 - before Locust
from bulk_server import Reply, answer, bulk_answer, bulk_server, documents_in
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from locust.exception import StopUser
from test_users import Kept, started

from ingest_bench.documents.body import Body
from ingest_bench.load import users
from ingest_bench.load.loops import ArrivalQueue, OpenLoop
from ingest_bench.load.users import RetryingUser, ScheduledUser
from ingest_bench.load.worker_state import WorkerState
from ingest_bench.model.load import BulkAction
from ingest_bench.model.samples import OUTCOMES, Sample
from ingest_bench.model.target import Endpoint
from ingest_bench.protocols.bulk import Bulk


def bulk(documents: int, padding: int = 0) -> Body:
    item = b'{"index":{}}\n{"n":1%s}\n' % (b" " * padding)
    return Body(item * documents, documents, np.full(documents, len(item)))


def user_of(
    bodies: Iterator[Body], address: Endpoint, *, pumps: bool, arrivals: ArrivalQueue | None = None, **own: Any
) -> tuple[Any, Kept]:
    """A user that is ready to send these, and what it will leave."""
    user, kept = started(address, ScheduledUser, **{"retries": 2, "pumps": pumps} | own)
    user.state.source = SimpleNamespace(bodies_of=lambda _number: bodies)
    user.state.arrivals = arrivals or user.state.arrivals
    return user, kept


def begun(user: Any) -> gevent.Greenlet:
    """The user at work, whose load lasts as long as there are bodies."""

    def work() -> None:
        with pytest.raises(StopUser):
            user.send_arrivals()

    greenlet = gevent.spawn(work)
    start_ns = time.monotonic_ns()
    user.state.arrivals.open(start_ns, start_ns + 60 * 10**9)
    return greenlet


def finish(user: Any) -> None:
    """Let the user send everything, and stop it."""
    begun(user).get(timeout=60)
    stop(user)


def stop(user: Any) -> None:
    user.on_stop()
    user.upstream.deadlines.close()


def sent(reply: Reply, bodies: list[Body], *, pumps: bool, **own: Any) -> tuple[list[Sample], WorkerState, int, int]:
    """The samples, the account, the bytes that the server read and the documents that it was sent."""
    with bulk_server(reply) as server:
        user, kept = user_of(iter(bodies), server.address, pumps=pumps, **own)
        finish(user)
        # What was written is read before the server is looked at: its thread may be behind.
        limit = time.monotonic() + 10
        while server.bytes_read < user.upstream.traffic.bytes_written and time.monotonic() < limit:
            time.sleep(0.001)
    return kept.samples, user.state, server.bytes_read, server.documents


def account(samples: list[Sample], work: WorkerState) -> tuple[Any, ...]:
    """All that does not depend on clocks and ports."""
    counts = [
        (
            OUTCOMES[sample.outcome],
            sample.documents,
            sample.documents_acked,
            sample.documents_failed,
            sample.attempts,
            sample.status,
            sample.bytes_sent,
            sample.user,
            sample.address,
        )
        for sample in samples
    ]
    return counts, work.acknowledged, work.documents_resent, dict(work.item_failures)


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


@examples(60)
@given(
    script=st.lists(st.sampled_from([*REPLIES, *["usual"] * 6]), min_size=1, max_size=12),
    documents=st.lists(st.integers(1, 4), min_size=1, max_size=8),
)
def test_counts_are_the_same_with_and_without_the_pump(script: list[str], documents: list[int]) -> None:
    def reply(body: bytes, number: int) -> bytes | None:
        return REPLIES[script[(number - 1) % len(script)]](body)

    bodies = [bulk(count) for count in documents]
    with pytest.MonkeyPatch.context() as patch:
        # Pauses after failures: the same in both, and nothing that has to be waited for.
        patch.setattr(users, "gevent", SimpleNamespace(sleep=lambda _seconds: None))
        closed = [sent(reply, bodies, pumps=pumps) for pumps in (False, True)]
    (plain, plain_work, plain_bytes, _), (pumped, pumped_work, pumped_bytes, _) = closed
    assert account(pumped, pumped_work) == account(plain, plain_work)
    assert pumped_bytes == plain_bytes
    assert len(pumped) == len(bodies)


def test_the_pump_sends_all_but_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    by_greenlet: list[int] = []
    plain = RetryingUser.send

    def counted(self: Any, scheduled_ns: int, body: Body, begun: Any = None) -> None:
        by_greenlet.append(scheduled_ns)
        plain(self, scheduled_ns, body, begun)

    monkeypatch.setattr(users.IngestUser, "send", counted, raising=False)
    samples, work, read, documents = sent(usual, [bulk(2)] * 50, pumps=True)
    # The one that opens the connection.
    assert len(by_greenlet) == 1
    assert (len(samples), work.acknowledged, documents) == (50, 100, 100)
    assert sum(sample.bytes_sent for sample in samples) == read
    for sample, following in itertools.pairwise(samples):
        assert (
            sample.scheduled_ns
            <= sample.sent_ns
            < sample.written_ns
            <= sample.first_byte_ns
            <= sample.done_ns
            <= following.scheduled_ns
        )


def test_each_sample_has_the_port_of_its_connection() -> None:
    def reply(body: bytes, number: int) -> bytes:
        return REPLIES["says close"](body) if number == 5 else usual(body, number)  # type: ignore[return-value]

    samples, work, _, _ = sent(reply, [bulk(2)] * 10, pumps=True)
    before, after = ({sample.local_port for sample in some} for some in (samples[:5], samples[5:]))
    assert (len(before), len(after), len(before | after)) == (1, 1, 2)
    assert work.acknowledged == 20


def test_a_body_larger_than_the_send_buffer_is_sent_completely() -> None:
    bodies = [bulk(1), bulk(1), bulk(2, padding=3_000_000), bulk(1), bulk(1)]
    samples, work, read, documents = sent(usual, bodies, pumps=True)
    assert [OUTCOMES[sample.outcome] for sample in samples] == ["ok"] * 5
    assert (work.acknowledged, documents) == (6, 6)
    assert sum(sample.bytes_sent for sample in samples) == read
    assert read > 6_000_000


def test_a_request_times_out_and_the_next_one_is_sent() -> None:
    def reply(body: bytes, number: int) -> bytes:
        if number == 3:
            time.sleep(1)
        return usual(body, number)

    samples, work, _, _ = sent(reply, [bulk(1)] * 5, pumps=True, timeout_ns=200 * 10**6, retries=0)
    assert [OUTCOMES[sample.outcome] for sample in samples] == ["ok", "ok", "timeout", "ok", "ok"]
    late = samples[2]
    assert 200 * 10**6 <= late.done_ns - late.scheduled_ns < 900 * 10**6
    assert work.acknowledged == 4


def test_a_user_killed_during_the_pump_leaves_a_cut_off_sample() -> None:
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
        stop(user)
    *before, last = kept.samples
    assert [OUTCOMES[sample.outcome] for sample in before] == ["ok"] * 3
    assert (OUTCOMES[last.outcome], last.documents, last.documents_acked, last.attempts) == ("cut-off", 2, 0, 1)
    assert last.bytes_sent > len(bulk(2).data)


def test_an_exception_between_requests_keeps_the_finished_samples() -> None:
    def bodies() -> Iterator[Body]:
        yield from [bulk(1)] * 3
        raise ArithmeticError("a corpus that is cut off")

    with bulk_server(usual) as server:
        user, kept = user_of(bodies(), server.address, pumps=True)
        with pytest.raises(ArithmeticError, match="cut off"):
            begun(user).get(timeout=60)
        stop(user)
    assert [OUTCOMES[sample.outcome] for sample in kept.samples] == ["ok"] * 3


def test_an_exception_while_judging_leaves_a_sample_of_the_request() -> None:
    bulks, answers = Bulk(path="/i/_bulk", action=BulkAction()), itertools.count()

    def judge(answer: Any, body: Body, is_unsure: bool = False) -> Any:
        if next(answers) == 2:
            raise ArithmeticError("never seen before")
        return bulks.judge(answer, body, is_unsure)

    with bulk_server(usual) as server:
        user, kept = user_of(itertools.repeat(bulk(1)), server.address, pumps=True, judge=staticmethod(judge))
        with pytest.raises(ArithmeticError, match="never seen"):
            begun(user).get(timeout=60)
        stop(user)
    assert [OUTCOMES[sample.outcome] for sample in kept.samples] == ["ok", "ok", "cut-off"]


def test_in_an_open_loop_late_requests_follow_at_once() -> None:
    every_ns = 20 * 10**6

    def reply(body: bytes, number: int) -> bytes:
        if number == 5:
            time.sleep(0.2)
        return usual(body, number)

    arrivals = OpenLoop(number * every_ns for number in range(30))
    with bulk_server(reply) as server:
        user, kept = user_of(itertools.repeat(bulk(1)), server.address, pumps=True, arrivals=arrivals)
        finish(user)
    samples = kept.samples
    assert len(samples) == 30
    planned = [sample.scheduled_ns for sample in samples]
    assert {later - earlier for earlier, later in itertools.pairwise(planned)} == {every_ns}
    assert all(sample.sent_ns >= sample.scheduled_ns for sample in samples)
    waited = [sample for sample in samples if sample.sent_ns - sample.scheduled_ns > every_ns]
    assert len(waited) >= 5
    assert arrivals.waited >= len(waited)


def test_a_connection_closed_after_a_response_fails_the_next_request() -> None:
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
        finish(user)
        served.get(timeout=60)
    outcomes = [OUTCOMES[sample.outcome] for sample in kept.samples]
    assert len(outcomes) == 5
    assert outcomes[:2] == ["ok", "ok"]
    assert set(outcomes) <= {"ok", "connection-error"}
    assert user.state.acknowledged == outcomes.count("ok")


@pytest.mark.parametrize("pumps", [False, True])
@pytest.mark.parametrize("last_words", [b"", answer(b"", "408 Request Timeout", headers="connection: close\r\n")])
def test_a_connection_closed_while_idle_is_not_used(pumps: bool, last_words: bytes) -> None:
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
        arrivals = OpenLoop(number * 2 * 10**8 for number in range(3))
        address = Endpoint(*listener.getsockname())
        user, kept = user_of(iter([bulk(1)] * 3), address, pumps=pumps, arrivals=arrivals)
        finish(user)
        served.get(timeout=60)
    assert [OUTCOMES[sample.outcome] for sample in kept.samples] == ["ok"] * 3
    assert user.upstream.traffic.connects == 3


def test_the_pump_counts_repeated_documents() -> None:
    body = dataclasses.replace(bulk(2), adds=np.array([1, 0], dtype=np.int8))

    def reply(body: bytes, _number: int) -> bytes:
        item = b'{"index":{"result":"%s","status":201}}'
        items = b",".join(item % result for result in (b"created", b"updated")[: documents_in(body)])
        return answer(b'{"took":1,"errors":false,"items":[%s]}' % items)

    _, work, _, _ = sent(reply, [body] * 6, pumps=True)
    assert (work.acknowledged, work.documents_repeated) == (12, 6)
