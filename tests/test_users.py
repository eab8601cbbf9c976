"""The users of a load in this process, against small real servers: what the sample of each arrival says."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import socket
import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import example_runs as attributes
import gevent
import numpy as np
import pytest
import unpatched_locust  # noqa: F401 - before Locust
from bulk_server import Reply, accept_all, answer, bulk_answer, bulk_server, documents_in
from gevent.event import Event
from locust.env import Environment

from ingest_bench.analysis.run import integrity
from ingest_bench.documents.body import Body
from ingest_bench.errors import RunFailed
from ingest_bench.load import users, worker_state
from ingest_bench.load.recorder import unpack_sample, unsent_sample
from ingest_bench.load.users import IngestUser, QueryUser, RetryingUser
from ingest_bench.load.worker_state import WorkerState
from ingest_bench.model.load import BulkAction
from ingest_bench.model.results import InvalidReason, RunRecord
from ingest_bench.model.samples import OUTCOMES, Sample
from ingest_bench.model.target import Endpoint, ServerAddress
from ingest_bench.protocols.bulk import Bulk, Search
from ingest_bench.protocols.http1 import build_request_head
from ingest_bench.protocols.protocol import Protocol
from ingest_bench.protocols.response import Verdict
from ingest_bench.protocols.upstream import resolve_upstream

ITEMS = 10
BULK_ITEMS = [b'{"index":{}}\n{"n":%d}\n' % number for number in range(ITEMS)]
BULK = Body(b"".join(BULK_ITEMS), ITEMS, np.array([*map(len, BULK_ITEMS)]))
PLANNED_NS = 1
TOO_MANY = answer(b"{}", "429 Too Many Requests")


class Kept:
    """Replaces the recorder."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def add(self, packed: bytes) -> None:
        self.samples.append(unpack_sample(packed))

    @property
    def only(self) -> Sample:
        (sample,) = self.samples
        return sample


class Clock:
    """Replaces gevent's sleep: records the pauses and returns at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, then: Callable[[], object] = lambda: None) -> None:
        self.waited_s: list[float] = []
        self._then = then
        monkeypatch.setattr(users, "gevent", SimpleNamespace(sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.waited_s.append(seconds)
        self._then()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def started(
    address: Endpoint, kind: type[RetryingUser] = IngestUser, protocol: Protocol | None = None, **own: Any
) -> tuple[Any, Kept]:
    """A user that is ready to send, and what it will leave. Its protocol is bulk, where it is not said."""
    kept = Kept()
    nothing: Any = None
    work = WorkerState(source=nothing, users=96)
    work.end_ns = 2**62
    usual = Search("/i/_search") if kind is QueryUser else Bulk(path="/i/_bulk", action=BulkAction())
    speaks = protocol or usual
    attributes = {
        "abstract": False,
        "state": work,
        "upstream": resolve_upstream(ServerAddress(endpoint=address)),
        "judge": staticmethod(speaks.judge),
        "recorder": kept,
        "retries": 5,
        "numbers": itertools.count(3),
        **own,
    }
    user = type("User", (kind, speaks.user_class()), attributes)(Environment())
    user.on_start()
    return user, kept


def closed_address() -> Endpoint:
    """Return an address at which connections are refused."""
    with bulk_server() as server:
        return server.address


def send(user: Any, *bodies: Body) -> None:
    """Send these bodies, usually one, and stop the user."""
    try:
        for body in bodies or (BULK,):
            gevent.spawn(user.send, PLANNED_NS, body).get(timeout=60)
    finally:
        user.on_stop()


def sent(reply: Reply, body: Body = BULK, **own: Any) -> tuple[Sample, WorkerState, int]:
    """The sample of one bulk, the account, and how many bytes the server read."""
    with bulk_server(reply) as server:
        user, kept = started(server.address, **own)
        send(user, body)
    user.upstream.deadlines.close()
    return kept.only, user.state, server.bytes_read


def outcome(sample: Sample) -> str:
    return OUTCOMES[sample.outcome]


def documents(sample: Sample) -> tuple[int, int, int]:
    return sample.documents, sample.documents_acked, sample.documents_failed


def items(*statuses: list[int]) -> Reply:
    """One answer after the other, each with the status of each item of what was sent."""
    return lambda _body, number: answer(bulk_answer(statuses[number - 1]))


def test_an_accepted_bulk_is_one_attempt(clock: Clock) -> None:
    sample, work, read = sent(accept_all)
    assert outcome(sample) == "ok"
    assert documents(sample) == (10, 10, 0)
    assert (sample.scheduled_ns, sample.attempts, sample.status, sample.user) == (PLANNED_NS, 1, 200, 3)
    assert sample.bytes_sent == read
    assert PLANNED_NS < sample.sent_ns < sample.done_ns
    assert (work.acknowledged, work.documents_resent, clock.waited_s) == (10, 0, [])


def test_a_bulk_accepted_at_the_third_attempt_is_one_sample(clock: Clock) -> None:
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
    assert (work.acknowledged, work.documents_resent, work.item_failures) == (10, 20, {})
    assert clock.waited_s == [0.05, 0.1]


def test_documents_acknowledged_or_failed_in_any_attempt_are_counted(clock: Clock) -> None:
    first = [201] * 6 + [400] + [429] * 3
    sample, work, read = sent(items(first, [201, 429, 201], [201]))
    assert outcome(sample) == "partial"
    assert documents(sample) == (10, 9, 1)
    assert (sample.attempts, sample.bytes_sent) == (3, read)
    assert (work.acknowledged, work.documents_resent, dict(work.item_failures)) == (9, 4, {"400 kind_400": 1})
    assert clock.waited_s == [0.05, 0.1]


@pytest.mark.parametrize(
    ("first", "ended", "expected_counts"),
    [([429] * 10, "rejected", (10, 0, 10)), ([201] * 7 + [429] * 3, "partial", (10, 7, 3))],
)
def test_documents_rejected_in_every_attempt_fail_once(
    clock: Clock, first: list[int], ended: str, expected_counts: tuple[int, int, int]
) -> None:
    left = first.count(429)
    # 429 for the whole bulk, as a node says it whose pressure limit is reached.
    sample, work, _ = sent(lambda body, _: TOO_MANY if documents_in(body) == left else items(first)(body, 1), retries=2)
    assert (outcome(sample), documents(sample), sample.attempts) == (ended, expected_counts, 3)
    assert work.documents_resent == 2 * left
    assert sum(work.item_failures.values()) == left
    assert clock.waited_s[:2] == [0.05, 0.1]


def test_after_the_end_of_the_load_nothing_is_retried(clock: Clock) -> None:
    with bulk_server(lambda _body, _number: TOO_MANY) as server:
        user, kept = started(server.address)
        user.state.stopped = True
        send(user)
    assert (outcome(kept.only), documents(kept.only), kept.only.attempts) == ("rejected", (10, 0, 10), 1)
    assert clock.waited_s == [0.01]


def test_a_broken_retry_leaves_only_the_retried_documents_unknown(clock: Clock) -> None:
    first = items([201] * 8 + [429] * 2)
    sample, work, read = sent(lambda body, number: first(body, number) if number == 1 else None)
    assert (outcome(sample), documents(sample), sample.attempts, sample.status) == (
        "connection-error",
        (10, 8, 0),
        2,
        0,
    )
    assert sample.bytes_sent == read
    # The last attempt had no answer, and so no first byte of one.
    assert (sample.first_byte_ns, sample.local_port > 0) == (sample.done_ns, True)
    assert work.acknowledged == 8
    assert len(clock.waited_s) == 2


IDS = dataclasses.replace(BULK, adds=np.ones(ITEMS, dtype=np.int8), is_idempotent=True)
UNAVAILABLE = answer(b'{"error":{"type":"cluster_block_exception"}}', "503 Service Unavailable")
CHUNKED = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
)


def expected_counts(*results: str) -> bytes:
    message = [{"index": {"status": 201 if result == "created" else 200, "result": result}} for result in results]
    return answer(json.dumps({"errors": False, "items": message}, separators=(",", ":")).encode())


@pytest.mark.parametrize("first", [None, UNAVAILABLE, CHUNKED], ids=["no answer", "503", "503 in chunks"])
def test_possibly_stored_documents_with_ids_are_retried_and_counted_once(clock: Clock, first: bytes | None) -> None:
    # The first attempt was carried out without a response: three of the ids were there before.
    after = expected_counts(*["updated"] * 7, *["created"] * 3)
    body = dataclasses.replace(IDS, adds=np.array([0] * 3 + [1] * 7, dtype=np.int8))
    sample, work, read = sent(lambda _body, number: first if number == 1 else after, body=body)
    assert (outcome(sample), documents(sample), sample.attempts, sample.status) == ("ok", (10, 10, 0), 2, 200)
    assert sample.bytes_sent == read
    assert sample.bytes_unanswered == read / 2
    assert (work.acknowledged, work.documents_repeated, work.documents_resent) == (10, 3, 10)
    # As the server asks.
    assert clock.waited_s == ([1] if first == CHUNKED else [0.05])


@pytest.mark.parametrize(
    "first", [None, UNAVAILABLE, answer(bulk_answer([503] * 10))], ids=["no answer", "503", "items with 503"]
)
@pytest.mark.parametrize(
    ("later", "ended", "created"),
    [
        (TOO_MANY, "rejected", (10, 0, 0)),
        (answer(b"no", "403 Forbidden"), "http-error", (10, 0, 0)),
        (answer(bulk_answer([201] * 6 + [429] * 2 + [409] * 2)), "partial", (10, 6, 0)),
    ],
    ids=["429", "403", "some items"],
)
def test_possibly_stored_documents_stay_unknown_after_a_later_refusal(
    clock: Clock, first: bytes | None, later: bytes, ended: str, created: tuple[int, int, int]
) -> None:
    sample, work, _ = sent(lambda _body, number: first if number == 1 else later, body=IDS, retries=1)
    assert (outcome(sample), documents(sample), sample.attempts) == (ended, created, 2)
    assert sum(work.item_failures.values()) == 10 - created[1]
    record = RunRecord(run="x/1", replicate=1, cell="x", levels={}, state="measured")
    values = {"documents_acked": sample.documents_acked, "documents_counted": 10}
    assert integrity.find_invalid_reasons(
        record, attributes.samples([sample._asdict()]), attributes.report(), values
    ) == [InvalidReason("no response", "no request was answered within the measurement")]
    assert clock.waited_s[0] == 0.05


@pytest.mark.usefixtures("clock")
def test_many_kinds_of_item_failures_do_not_fill_the_report() -> None:
    def named(_: bytes, number: int) -> bytes:
        failed = [
            {"index": {"status": 400, "error": {"type": f"{number} {item} {'x' * 5000}", "reason": "y" * 5000}}}
            for item in range(ITEMS)
        ]
        return answer(json.dumps({"errors": True, "items": failed}).encode())

    with bulk_server(named) as server:
        user, kept = started(server.address)
        send(user, *[BULK] * 150)
    failures = user.state.item_failures
    assert sum(failures.values()) == sum(sample.documents_failed for sample in kept.samples) == 1500
    assert len(failures) == 1001
    assert failures["other kinds"] == 500
    assert max(map(len, failures)) == 200
    assert set(user.state.item_reasons.values()) == {"y" * 300}
    assert len(user.state.item_reasons) == 50


def test_only_failed_items_that_may_be_stored_are_unknown(clock: Clock) -> None:
    sample, work, _ = sent(items([201] * 5 + [400] * 3 + [503] * 2))
    assert (outcome(sample), documents(sample)) == ("partial", (10, 5, 3))
    assert dict(work.item_failures) == {"400 kind_400": 3, "503 kind_503": 2}
    # Refused at first, and without an answer later: each as it was.
    refused = answer(bulk_answer([400] * 3 + [429] * 7))
    sample, work, _ = sent(lambda _body, number: refused if number == 1 else None, body=IDS)
    assert (outcome(sample), documents(sample)) == ("connection-error", (10, 0, 3))
    assert clock.waited_s


def test_an_id_created_by_an_old_item_is_not_counted_again_after_a_retry(clock: Clock) -> None:
    # Items 0 and 1 have the same id, new in the first. That is rejected, so the second makes the document. Then the
    # first is sent again and replaces it, without a response; the third attempt gets "updated".
    adds, ids = np.array([1, 0, *[1] * 8], dtype=np.int8), np.array([7, 7, *range(10, 18)], dtype=np.int64)
    body = dataclasses.replace(IDS, adds=adds, ids=ids)
    full, attributes = {"status": 429, "error": {"type": "full"}}, {"status": 201, "result": "created"}
    first = [{"index": full}, *[{"index": attributes}] * 9]
    replies = iter([answer(json.dumps({"errors": True, "items": first}).encode()), None, expected_counts("updated")])
    sample, work, _ = sent(lambda _body, _number: next(replies), body=body)
    assert (outcome(sample), documents(sample), sample.attempts) == ("ok", (10, 10, 0), 3)
    assert work.acknowledged - work.documents_repeated == 9
    assert len(clock.waited_s) == 2


@pytest.mark.parametrize(
    ("first", "ended"), [(None, "connection-error"), (UNAVAILABLE, "http-error"), (CHUNKED, "http-error")]
)
def test_possibly_stored_documents_without_ids_are_not_retried(clock: Clock, first: bytes | None, ended: str) -> None:
    sample, work, read = sent(lambda _body, number: first if number == 1 else accept_all(_body, number))
    assert (outcome(sample), sample.attempts, sample.documents_acked) == (ended, 1, 0)
    assert sample.bytes_unanswered == sample.bytes_sent == read
    (message,) = work.errors()
    assert "not retried: without own ids its documents could be stored twice" in message
    assert (work.documents_resent, clock.waited_s) == (0, [0.01])


@pytest.mark.parametrize(
    ("retry_after", "waited_s"), [("3600", 5.0), ("0", 0.05), ("Fri, 31 Dec 1999 23:59:59 GMT", 0.05)]
)
def test_retry_after_is_respected_up_to_a_limit(clock: Clock, retry_after: str, waited_s: float) -> None:
    later = answer(b"{}", "429 Too Many Requests", headers=f"Retry-After: {retry_after}\r\n")
    sample, _, _ = sent(lambda body, number: later if number == 1 else accept_all(body, number))
    assert (outcome(sample), clock.waited_s) == ("ok", [waited_s])


def test_items_with_503_are_retried_only_with_ids(clock: Clock) -> None:
    first = items([201] * 8 + [503] * 2, [201, 201])
    sample, work, _ = sent(first, body=IDS)
    assert (outcome(sample), documents(sample), sample.attempts) == ("ok", (10, 10, 0), 2)
    sample, work, _ = sent(first)
    # The outcome of the two is unknown.
    assert (outcome(sample), documents(sample), sample.attempts) == ("partial", (10, 8, 0), 1)
    assert dict(work.item_failures) == {"503 kind_503": 2}
    assert ["not retried" in message for message in work.errors()] == [True]
    assert clock.waited_s == [0.05]


def test_a_truncated_response_is_a_connection_error(clock: Clock) -> None:
    def cut(body: bytes, number: int) -> bytes | None:
        if number > 1:
            return accept_all(body, number)
        server.send(accept_all(body, number)[:-5])
        return None

    with bulk_server(cut) as server:
        user, kept = started(server.address)
        send(user, IDS)
    assert (outcome(kept.only), kept.only.attempts, user.state.acknowledged) == ("ok", 2, 10)
    assert user.state.errors() == ("1 x the server closed the connection in the middle of its response",)
    large = Body(b"x" * 30_000_000, 10, is_idempotent=True)
    with bulk_server(lambda _body, _number: None, stop_reading_after_bytes=1) as server:
        user, kept = started(server.address, retries=2)
        send(user, large)
    assert (outcome(kept.only), kept.only.attempts, documents(kept.only)) == ("connection-error", 3, (10, 0, 0))
    assert kept.only.bytes_unanswered == kept.only.bytes_sent > server.bytes_read
    assert len(clock.waited_s) == 1 + 3


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("size_bytes", "ends"),
    [(30_000_000, "connection: close\r\n"), (30_000_000, ""), (200_000, "connection: close\r\n")],
    ids=["not all was sent", "not all was sent and nothing says close", "the kernel took all"],
)
def test_bytes_of_a_request_refused_before_it_was_read_are_unread(size_bytes: int, ends: str) -> None:
    too_large = answer(b"{}", "413 Request Entity Too Large", headers=ends)
    with bulk_server(lambda _body, _number: too_large, stop_reading_after_bytes=1) as server:
        user, kept = started(server.address)
        send(user, Body(b"x" * size_bytes, 10))
    sample = kept.only
    assert (outcome(sample), documents(sample), sample.status) == ("http-error", (10, 0, 10), 413)
    assert (sample.bytes_sent > size_bytes) == (size_bytes == 200_000)
    assert sample.bytes_unanswered == sample.bytes_sent > server.bytes_read


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("requests", [1, 3])
def test_bytes_of_a_last_refused_request_are_unread(requests: int) -> None:
    # The kernel takes it all, nothing says "close", and the server goes.
    with bulk_server(lambda _body, _number: answer(b"{}", "413 Too Large"), stop_reading_after_bytes=1) as server:
        user, kept = started(server.address)
        send(user, *[Body(b"x" * 200_000, 10)] * requests)
    traffic = user.upstream.traffic
    values = {"bytes_sent": traffic.bytes_written, "bytes_read": server.bytes_read}
    assert traffic.bytes_written == sum(sample.bytes_sent for sample in kept.samples) > server.bytes_read
    report = dataclasses.replace(attributes.report(), bytes_unread=traffic.bytes_unread)
    samples = attributes.samples([sample._asdict() for sample in kept.samples])
    message = integrity.find_invalid_reasons(attributes.record(), samples, report, values)
    assert [reason for reason in message if reason.kind == "bytes"] == []


@pytest.mark.usefixtures("clock")
def test_a_refused_request_was_read_if_the_next_one_gets_a_response() -> None:
    refused = [answer(b"{}", "400 Bad Request"), answer(b"{}", "413 Too Large"), TOO_MANY]
    with bulk_server(lambda body, number: refused[number - 1] if number < 4 else accept_all(body, number)) as server:
        user, kept = started(server.address, retries=0)
        send(user, *[BULK] * 4)
        assert server.connections == 1
    assert [sample.status for sample in kept.samples] == [400, 413, 429, 200]
    assert user.upstream.traffic.bytes_unread == sum(sample.bytes_unanswered for sample in kept.samples) == 0


def test_a_server_that_stays_unavailable_gets_the_configured_retries(
    clock: Clock,
) -> None:
    sample, work, _ = sent(lambda _body, _number: UNAVAILABLE, body=IDS, retries=12)
    assert (outcome(sample), documents(sample), sample.attempts) == ("http-error", (10, 0, 0), 13)
    assert max(clock.waited_s) == 5.0
    assert dict(work.item_failures) == {"503 cluster_block_exception": 10}


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (answer(b'{"error":"no"}', "400 Bad Request"), 'http-error: 400: {"error":"no"}'),
        (answer(bulk_answer([201] * 8 + [400] * 2)), "partial: 2 x 400 kind_400, 2 of 10"),
        (None, "connection-error: the server closed the connection before it responded (not retried"),
        (TOO_MANY, "rejected: 429: {}, 10 of 10"),
    ],
)
def test_with_on_error_abort_the_first_failure_ends_the_load(clock: Clock, reply: bytes | None, message: str) -> None:
    def first_but_one(body: bytes, number: int) -> bytes | None:
        return accept_all(body, number) if number == 1 else reply

    with bulk_server(first_but_one) as server:
        user, kept = started(server.address, aborts=True, retries=1)
        user.state.start_ns = PLANNED_NS - 500_000_000
        for _ in range(2):
            assert not user.state.stopped
            gevent.spawn(user.send, PLANNED_NS, BULK).get(timeout=60)
        user.on_stop()
    assert user.state.stopped
    expected = (
        f'a request failed, and on_error is "abort": user 3 to {server.address}, attempt {kept.samples[1].attempts}'
    )
    assert str(user.state.failure).startswith(f"{expected}, due 0.500 s after the start of the load: ")
    assert message in str(user.state.failure)
    assert (0.05 in clock.waited_s) == (reply == TOO_MANY)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("ended", ["cut-off", "timeout"])
def test_a_timeout_aborts_the_load_and_a_cut_off_request_does_not(ended: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        user, kept = started(Endpoint(*listener.getsockname()), aborts=True)
        request = gevent.spawn(user.send, PLANNED_NS, BULK)
        while not user.connection.bytes_sent:
            gevent.idle()
        user.connection.expire(ended)
        request.get(timeout=60)
        user.on_stop()
        user.upstream.deadlines.close()
    assert outcome(kept.only) == ended
    assert bool(user.state.failure) == user.state.stopped == (ended == "timeout")


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("first", "message"),
    [
        (TOO_MANY, "rejected: 429: {}, 10 of 10 documents"),
        (answer(bulk_answer([201] * 8 + [429] * 2)), "partial: 2 x 429 kind_429, 2 of 10 documents"),
    ],
)
def test_a_failed_request_that_is_cut_off_in_its_retry_aborts_the_load(first: bytes, message: str) -> None:
    over = threading.Event()

    def first_alone(_: bytes, number: int) -> bytes | None:
        return first if number == 1 or not over.wait(60) else None

    with bulk_server(first_alone) as server:
        user, kept = started(server.address, aborts=True)
        request = gevent.spawn(user.send, PLANNED_NS, BULK)
        while server.requests < 2:
            gevent.idle()
        user.connection.expire("cut-off")
        request.get(timeout=60)
        over.set()
        user.on_stop()
        user.upstream.deadlines.close()
    assert (outcome(kept.only), kept.only.attempts) == ("cut-off", 2)
    assert user.state.stopped
    assert message in str(user.state.failure)
    assert "attempt 2" in str(user.state.failure)


def test_a_successful_retry_does_not_abort_the_load(clock: Clock) -> None:
    sample, work, _ = sent(lambda body, number: TOO_MANY if number < 3 else accept_all(body, number), aborts=True)
    assert (outcome(sample), work.failure, work.stopped) == ("ok", None, False)
    assert len(clock.waited_s) == 2


def users_of(addresses: list[Endpoint], count: int, **own: Any) -> tuple[list[Any], Kept]:
    """Users that are ready to send, on one way to several addresses."""
    first, kept = started(
        addresses[0], upstream=resolve_upstream(*(ServerAddress(endpoint=address) for address in addresses)), **own
    )
    users = [first]
    for _ in range(count - 1):
        users.append(type(first)(first.environment))
        users[-1].on_start()
    return users, kept


@pytest.mark.usefixtures("clock")
def test_connections_go_to_all_addresses_in_turn() -> None:
    with bulk_server() as packed, bulk_server() as two, bulk_server() as three:
        addresses = [packed.address, two.address, three.address]
        users, kept = users_of(addresses, 6)
        for user in users:
            send(user, *[BULK] * 2)
    assert [sample.address for sample in kept.samples] == [0, 0, 1, 1, 2, 2] * 2
    for server in (packed, two, three):
        assert (server.connections, server.requests) == (2, 4)
        assert all(f"host: {server.address}".encode() in head for head in server.heads)


@pytest.mark.usefixtures("clock")
def test_after_a_closed_connection_the_next_address_is_used() -> None:
    with bulk_server() as packed, bulk_server() as two:
        (user,), kept = users_of([packed.address, two.address], 1)
        gevent.spawn(user.send, PLANNED_NS, BULK).get(timeout=60)
        packed.end_connections()
        send(user)
    assert [sample.address for sample in kept.samples] == [0, 1]
    assert [{sample.local_port} for sample in kept.samples] == [packed.ports, two.ports]


@pytest.mark.usefixtures("clock")
def test_a_dead_address_costs_an_attempt_and_is_named() -> None:
    with bulk_server() as packed, bulk_server() as dead, bulk_server() as three:
        dead.close()
        users, kept = users_of([packed.address, dead.address, three.address], 3)
        for _ in range(4):
            for user in users:
                gevent.spawn(user.send, PLANNED_NS, BULK).get(timeout=60)
        for user in users:
            user.on_stop()
        assert {outcome(sample) for sample in kept.samples} == {"ok"}
        assert [sample.attempts for sample in kept.samples] == [1, 2, 1] + [1] * 9
        assert {sample.address for sample in kept.samples} == {0, 2}
        assert users[0].state.errors() == (f"1 x connect to {dead.address}: Connection refused",)
        assert packed.documents + three.documents == users[0].state.acknowledged == 120


@pytest.mark.usefixtures("clock")
def test_an_address_that_dies_is_replaced_by_the_others() -> None:
    with bulk_server() as packed, bulk_server() as dying:
        users, kept = users_of([packed.address, dying.address], 2)
        for turn in range(6):
            if turn == 2:
                dying.close()
            for user in users:
                gevent.spawn(user.send, PLANNED_NS, IDS).get(timeout=60)
        for user in users:
            user.on_stop()
    assert {outcome(sample) for sample in kept.samples} == {"ok"}
    # The end of the idle connection was seen before a request went there.
    assert [sample.attempts for sample in kept.samples] == [1] * 12
    assert {sample.address for sample in kept.samples[4:]} == {0}
    assert users[0].state.acknowledged == packed.documents + dying.documents == 120


@pytest.mark.usefixtures("clock")
def test_a_name_is_resolved_once_and_each_address_is_tried() -> None:
    with bulk_server() as server:
        way = resolve_upstream(ServerAddress(endpoint=Endpoint("localhost", server.address.port)))
        # As on a machine whose hosts file has both families: no server listens on the first.
        there = [
            (socket.AF_INET6, ("::1", server.address.port, 0, 0)),
            (socket.AF_INET, ("127.0.0.1", server.address.port)),
        ]
        way = dataclasses.replace(way, addresses=(dataclasses.replace(way.addresses[0], sockets=tuple(there)),))
        user, kept = started(server.address, upstream=way)
        send(user)
    assert (outcome(kept.only), kept.only.attempts) == ("ok", 1)
    with pytest.raises(RunFailed, match=r"nowhere\.invalid:9200: unknown host"):
        resolve_upstream(ServerAddress(endpoint=Endpoint("nowhere.invalid", 9200)))


@pytest.mark.usefixtures("clock")
def test_a_server_is_reached_over_ipv6() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        user, _ = started(Endpoint("::1", listener.getsockname()[1]))
        request = gevent.spawn(user.send, PLANNED_NS, BULK)
        while not user.connection.bytes_sent:
            gevent.idle()
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(accept_all(bytes(BULK.data), 1))
            request.get(timeout=60)
        user.on_stop()
    assert user.state.acknowledged == 10


def test_a_request_that_hung_and_was_reset_keeps_its_times() -> None:
    def hangs(_body: bytes, _number: int) -> None:
        time.sleep(0.05)

    sample, _, _ = sent(hangs)
    assert outcome(sample) == "connection-error"
    assert sample.done_ns - sample.sent_ns >= 0.05e9


def test_a_refused_connection_is_an_attempt_without_bytes(clock: Clock) -> None:
    address = closed_address()
    user, kept = started(address)
    send(user)
    sample = kept.only
    assert (outcome(sample), sample.attempts, sample.bytes_sent) == ("connection-error", 6, 0)
    assert sample.sent_ns == sample.done_ns > PLANNED_NS
    assert clock.waited_s == [0.05, 0.1, 0.2, 0.4, 0.8, 0.01]
    assert user.state.documents_resent == 0
    assert user.state.errors() == (f"6 x connect to {address}: Connection refused",)


def test_a_user_killed_during_a_request_leaves_a_cut_off_sample() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        user, kept = started(Endpoint(*listener.getsockname()))
        greenlet = gevent.spawn(user.send, PLANNED_NS, BULK)
        while not user.connection.bytes_sent:
            gevent.idle()
        greenlet.kill()
        user.on_stop()
    sample = kept.only
    assert (outcome(sample), documents(sample), sample.attempts) == ("cut-off", (10, 0, 0), 1)
    assert sample.bytes_sent > len(BULK.data)
    assert sample.sent_ns < sample.done_ns


def test_a_user_killed_before_a_retry_leaves_a_cut_off_sample(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert user.state.documents_resent == 0


def test_an_exception_in_a_user_loses_no_sample(clock: Clock) -> None:
    with bulk_server() as server:
        user, kept = started(server.address, judge=staticmethod(lambda *_: 1 / 0))
        with pytest.raises(ZeroDivisionError):
            send(user)
    assert (outcome(kept.only), documents(kept.only), clock.waited_s) == ("cut-off", (10, 0, 0), [])


def test_consecutive_samples_are_independent(clock: Clock) -> None:
    replies = itertools.cycle([TOO_MANY, answer(bulk_answer([201] * 9 + [400])), None, accept_all(bytes(BULK.data), 0)])
    with bulk_server(lambda _body, _number: next(replies)) as server:
        user, kept = started(server.address)
        for scheduled_ns in range(1, 7):
            gevent.spawn(user.send, scheduled_ns, BULK).get(timeout=60)
        user.on_stop()
    assert [(sample.scheduled_ns, outcome(sample), sample.attempts) for sample in kept.samples] == [
        (1, "partial", 2),
        (2, "connection-error", 1),
        (3, "ok", 1),
        (4, "partial", 2),
        (5, "connection-error", 1),
        (6, "ok", 1),
    ]
    assert [documents(sample) for sample in kept.samples[:3]] == [(10, 9, 1), (10, 0, 0), (10, 10, 0)]
    assert sum(sample.bytes_sent for sample in kept.samples) == server.bytes_read
    assert user.state.acknowledged == sum(sample.documents_acked for sample in kept.samples)
    assert len(clock.waited_s) == 4


def test_an_unsent_arrival_has_its_wait_as_response_time() -> None:
    sample = unsent_sample(5, 12)
    assert (outcome(sample), sample.attempts, sample.user) == ("cut-off", 0, -1)
    assert sample.done_ns - sample.scheduled_ns == 7
    assert (*documents(sample), sample.bytes_sent) == (0, 0, 0, 0)


def test_the_pause_after_a_failure_doubles_up_to_a_limit(clock: Clock) -> None:
    pauses_s = [users.backoff_s(0.01, number, 1.0) for number in range(1, 5000)]
    assert pauses_s[:8] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0]
    assert set(pauses_s[7:]) == {1.0}
    user, _ = started(closed_address(), retries=0)
    user.failures_in_a_row = 1024
    send(user)
    assert (user.failures_in_a_row, clock.waited_s) == (1025, [1.0])


@pytest.mark.parametrize("kind", [IngestUser, QueryUser])
@pytest.mark.parametrize("is_open_loop", [False, True])
def test_an_open_loop_does_not_pause_after_a_failure(
    clock: Clock, kind: type[RetryingUser], is_open_loop: bool
) -> None:
    user, kept = started(closed_address(), kind, retries=0, is_open_loop=is_open_loop)
    send(user)
    assert outcome(kept.only) == "connection-error"
    assert len(clock.waited_s) == (0 if is_open_loop else 1)


QUERY = Body(b'{"query":{"match_all":{}}}', 0)
FOUND_RESPONSE = answer(b'{"took":3,"timed_out":false,"_shards":{"total":2,"successful":2,"failed":0},"hits":{}}')


def test_a_query_without_a_response_times_out(clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        user, kept = started(Endpoint(*listener.getsockname()), QueryUser, timeout_ns=50_000_000)
        begun_ns = time.monotonic_ns()
        send(user, QUERY)
        user.upstream.deadlines.close()
    sample = kept.only
    assert outcome(sample) == "timeout"
    # Of the whole exchange, connecting included.
    assert sample.done_ns - begun_ns >= 50_000_000
    assert clock.waited_s == [0.1]


def test_queries_are_arrivals_without_documents(clock: Clock) -> None:
    replies = iter([FOUND_RESPONSE, FOUND_RESPONSE.replace(b'"failed":0', b'"failed":1'), TOO_MANY])
    with bulk_server(lambda _body, _number: next(replies)) as server:
        user, kept = started(server.address, QueryUser, retries=0)
        send(user, *[QUERY] * 3)
    assert [outcome(sample) for sample in kept.samples] == ["ok", "partial", "rejected"]
    assert {(*documents(sample), sample.attempts) for sample in kept.samples} == {(0, 0, 0, 1)}
    assert sum(sample.bytes_sent for sample in kept.samples) == server.bytes_read
    assert (user.state.acknowledged, clock.waited_s) == (0, [0.1, 0.1])
    assert len(user.state.errors()) == 2


def test_a_stopped_user_leaves_no_connection() -> None:
    gc.disable()
    try:
        with bulk_server() as server:
            user, _ = started(server.address)
            gone = []
            for _ in range(20):
                send(user)
                gone.append(weakref.ref(user.connection))
                # Another user of the same load takes its place.
                user.on_start()
            assert [packed for packed in gone if packed() is not None] == []
            assert len(user.upstream.deadlines._connections) == 1
            user.upstream.deadlines.close()
    finally:
        gc.enable()


def test_a_load_is_hopeless_once_each_user_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = itertools.count(0, 10**9)
    monkeypatch.setattr(worker_state, "time", SimpleNamespace(monotonic_ns=lambda: next(now_ns)))
    source: Any = None
    work = WorkerState(source=source, users=2)
    for _ in range(10):
        work.record_failure(0, Verdict(outcome="rejected", message="429"))
    assert not work.stopped
    work.record_failure(1, Verdict(outcome="rejected", message="429"))
    assert str(work.failure) == "every request failed (11): 11 x 429"


@pytest.mark.parametrize("ended_by_documents", [True, False])
def test_a_load_ended_by_documents_is_given_up_after_failing_for_minutes(
    monkeypatch: pytest.MonkeyPatch, *, ended_by_documents: bool
) -> None:
    now = SimpleNamespace(s=1)
    monkeypatch.setattr(worker_state, "time", SimpleNamespace(monotonic_ns=lambda: now.s * 10**9))
    source: Any = None
    work = WorkerState(source=source, users=2)
    if ended_by_documents:
        work.end_after(1000, start_ns=0)

    def failed_at(*seconds: int) -> bool:
        for now.s in seconds:
            work.record_failure(0, Verdict(outcome="rejected", message="503"))
        return work.stopped

    work.acknowledge(100, now.s * 10**9)
    # As at a request in two hours: one failure is not minutes of failures.
    assert not failed_at(7200, 7500)
    work.acknowledge(1, now.s * 10**9)
    assert not failed_at(7600, 7900)
    # An answer that took no document ends nothing.
    work.acknowledge(0, now.s * 10**9)
    assert failed_at(7901) == ended_by_documents
    assert ended_by_documents == (
        str(work.failure)
        == "no document was acknowledged for 5min, and 899 documents are missing until this load worker ends: 5 x 503"
    )


def test_a_rate_of_bytes_counts_the_bodies_taken() -> None:
    source: Any = SimpleNamespace(bodies_of=lambda _user: iter([Body(b"x" * 1000, 4), Body(b"x" * 3000, 8)]))
    for unit, expected, means in (("bytes", 500.0, [1000.0, 2000.0]), ("documents", 2.0, [4.0, 6.0])):
        work = WorkerState(source=source, users=1)
        sizes = work.sizes(unit, expected)  # type: ignore[arg-type]
        bodies = work.bodies(0)
        assert next(sizes) == expected
        for mean in means:
            next(bodies)
            assert next(sizes) == mean
    work = WorkerState(source=source, users=1)
    assert next(work.sizes("requests", 1.0)) == 1.0


def test_documents_that_end_a_measurement_count_from_its_start() -> None:
    source: Any = None
    work = WorkerState(source=source, users=1)
    work.end_after(30, start_ns=1000)
    for done_ns in (998, 999, 1000, 1001):
        work.acknowledge(10, done_ns)
    assert (work.acknowledged, work.documents_reached_ns) == (40, 0)
    work.acknowledge(10, 1002)
    assert work.end_ns == work.documents_reached_ns > 0


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/_bulk HTTP/1.1\r\nhost: other\r\n", {}), ("/_bulk other", {}), ("/_bulk", {"x": "1\r\nhost: other"})],
)
def test_a_path_or_header_with_a_line_feed_is_refused(path: str, headers: dict[str, str]) -> None:
    address = resolve_upstream(ServerAddress(endpoint=Endpoint("127.0.0.1", 9200))).next_address()
    with pytest.raises(RunFailed, match="invalid path or headers"):
        build_request_head(path, address, headers, "POST")


@pytest.mark.parametrize("text", ["QUxBRERJTjpvcGVuIHNlc2FtZQ==", "ALADDIN:open sesame"])
def test_credentials_that_a_server_quotes_are_in_no_result(clock: Clock, text: str) -> None:  # noqa: ARG001
    error = {"type": f"refused {text}", "reason": f"not allowed: {text}"}
    item = {"index": {"status": 403, "error": error}}
    content = json.dumps({"errors": True, "items": [item] * BULK.documents}).encode()
    for reply in (answer(content), answer(json.dumps({"error": error}).encode(), "403 Forbidden")):
        always = cast(Reply, lambda _body, _number, reply=reply: reply)
        with bulk_server(always) as server:
            address = ServerAddress(endpoint=server.address)
            headers = {"authorization": "Basic QUxBRERJTjpvcGVuIHNlc2FtZQ=="}
            user, _ = started(server.address, upstream=resolve_upstream(address, headers=headers))
            send(user)
        user.upstream.deadlines.close()
        state = user.state
        results = f"{state.item_failures} {state.item_reasons} {state.errors()} {state.failure}"
        assert "refused ***" in results
        assert text not in results
