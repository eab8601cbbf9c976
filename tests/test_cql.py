"""The protocol of Cassandra 4 and later: frames, what its errors mean, and what a broken server cannot do to a load."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from cql_server import INDICES, cql_server, done, frame, raised, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from test_protocols import Sent, Spoken, replies, sent, ticket, whole

from ingest_bench import idl
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.idl import cql
from ingest_bench.model.load import LoadOptions, ProtocolOptions
from ingest_bench.model.target import Endpoint, ServerAddress, Tls
from ingest_bench.protocols import create_protocol
from ingest_bench.protocols.cql import insert_statement
from ingest_bench.protocols.cql.cql_frames import Frames, known
from ingest_bench.protocols.verdict import BrokenResponseError
from ingest_bench.protocols.way import resolve_upstream

with pytest.MonkeyPatch.context() as patched:
    patched.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")

    from ingest_bench.load import users

WIRE = ProtocolOptions(protocol="cql", keys={"keyspace": "k"})
SPEECH = Spoken(WIRE, lambda body: [*rows(body).values()], lambda _: done(), server=cql_server)
TIMED_OUT = raised(0x1100, "Operation timed out", struct.pack(">Hii", 5, 0, 1))
OVERLOADED = raised(0x1001, "Query timed out before it could start")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "gevent", SimpleNamespace(sleep=lambda _: None))


def answered(*answers: bytes | None, retries: int = 5) -> Sent:
    return sent(SPEECH, replies(*answers), retries=retries)


def protocol(**options: Any) -> Any:
    return create_protocol(WIRE, "nyc_taxis", LoadOptions(**options))


def test_more_rows_than_a_batch_can_count_are_refused() -> None:
    with pytest.raises(SpecError, match="at most 65,535 rows, and these are 65,536"):
        protocol(bulk_documents=65_536)
    with pytest.raises(SpecError, match="at most 65,535 rows"):
        protocol().build_body([b""] * 65_536, 1)
    body = whole(protocol(), [b""] * 65_535)
    assert len(rows(bytes(body.data))) == 65_535


def test_an_encrypted_way_is_refused() -> None:
    made = protocol().user_class()
    there = Endpoint("127.0.0.1", 1)
    user = type(
        "One", (made,), {"upstream": resolve_upstream(ServerAddress(endpoint=there, tls=Tls(name="localhost")))}
    )
    with pytest.raises(RunFailed, match="cql: this protocol has no TLS here"):
        user(SimpleNamespace()).on_start()


def test_timeouts_without_an_end_fail_and_leave_open_what_is_there() -> None:
    found = answered(*[TIMED_OUT] * 3, retries=2)
    assert (found.outcome, found.documents, found.sample.status) == ("http-error", (10, 0, 0), 504)
    assert dict(found.work.item_failures) == {"504 WriteTimeout": 10}
    assert found.work.errors() == ("3 x WriteTimeout: Operation timed out",)


@pytest.mark.parametrize(
    ("first", "again", "failed"),
    [
        (OVERLOADED, OVERLOADED, 10),
        (raised(0x1002, "bootstrapping"), OVERLOADED, 10),
        # Some rows of the batch were under way before that was found.
        (raised(0x1001, "Too many in flight hints: 7"), OVERLOADED, 0),
        (raised(0x1000, "Cannot achieve consistency level ALL"), OVERLOADED, 0),
        (TIMED_OUT, OVERLOADED, 0),
        (None, OVERLOADED, 0),
    ],
)
def test_rows_have_failed_where_no_attempt_can_have_written(first: bytes | None, again: bytes, failed: int) -> None:
    found = answered(first, again, again, retries=2)
    assert (found.outcome, found.documents, found.sample.attempts) == ("rejected", (10, 0, failed), 3)
    assert found.sample.status == 503


@pytest.mark.parametrize(
    ("answer", "status", "kind"),
    [
        (raised(0x2200, "Batch too large ä"), 400, "400 Invalid"),
        (raised(0x2000, "line 1:0"), 400, "400 SyntaxError"),
        (raised(0x2100, "User has no MODIFY"), 403, "403 Unauthorized"),
        (raised(0x0000, "java.lang.NullPointerException"), 500, "500 ServerError"),
        (raised(0x1500, "failed", b"more"), 500, "500 WriteFailure"),
        (raised(0x7777, "new"), 500, "500 Error 0x7777"),
    ],
)
def test_the_words_of_a_refusal_are_told(answer: bytes, status: int, kind: str) -> None:
    found = answered(answer)
    assert (found.outcome, found.documents, found.sample.status) == (
        "http-error",
        (10, 0, 0 if status >= 500 else 10),
        status,
    )
    assert dict(found.work.item_failures) == {kind: 10}
    assert kind.partition(" ")[2] in found.work.errors()[0]


def test_a_server_that_has_forgotten_a_statement_is_told_it_again() -> None:
    found = answered(raised(0x2500, "Prepared query with ID 1 not found", b"\0\1x"), done())
    assert (found.outcome, found.documents, found.sample.attempts) == ("ok", (10, 10, 0), 2)
    assert found.server.connections == 2
    assert found.sample.bytes_sent == found.server.bytes_read


def test_a_table_that_is_not_there_is_told() -> None:
    with cql_server(lambda _body, _number: done(), ready=raised(0x2200, "table i does not exist")) as server:
        sample, work = ticket(SPEECH, server.address, 0)
    assert (sample.status, sample.documents_failed) == (400, 10)
    assert work.errors() == ("1 x Invalid: table i does not exist",)


def test_a_server_that_wants_to_know_who_we_are_is_told_apart() -> None:
    with cql_server(lambda _body, _number: done(), ready=frame(cql.AUTHENTICATE, b"\0\1x")) as server:
        sample, work = ticket(SPEECH, server.address, 3)
    assert (sample.status, sample.attempts) == (401, 1)
    assert "wants a name and a password" in work.errors()[0]
    assert server.requests == 0


def test_a_statement_with_another_id_is_no_statement_of_ours() -> None:
    told = cql.PREPARED.to_bytes(4, "big") + b"\0\x10" + b"x" * 16
    with cql_server(lambda _body, _number: done(), prepared=told) as server:
        sample, work = ticket(SPEECH, server.address, 0)
    assert sample.documents_acked == 0
    assert "is no answer to this" in work.errors()[0]


def test_a_warning_stands_before_what_is_said() -> None:
    warned = struct.pack(">HH", 1, 5) + b"large"
    assert answered(frame(cql.RESULT, warned + cql.VOID.to_bytes(4, "big"), flags=8)).outcome == "ok"
    traced = b"i" * 16 + warned + cql.VOID.to_bytes(4, "big")
    assert answered(frame(cql.RESULT, traced, flags=10)).outcome == "ok"


@pytest.mark.parametrize(
    "broken",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        # Of version 5, and a request.
        b"\x85" + done()[1:],
        b"\x04" + done()[1:],
        cql.HEAD.pack(0x84, 0, 0, cql.RESULT, -1),
        cql.HEAD.pack(0x84, 0, 0, cql.RESULT, 2**31 - 1),
        # Packed, and with a payload: nobody asked for that.
        frame(cql.RESULT, b"\0\0\0\1", flags=1),
        frame(cql.RESULT, b"\0\0\0\1", flags=4),
        frame(cql.RESULT, b"\xff\xff", flags=8),
        frame(cql.RESULT, b""),
        frame(cql.RESULT, cql.ROWS.to_bytes(4, "big")),
        frame(cql.READY, b""),
        # To another request than ours, and what a connection was answered at its beginning.
        frame(cql.RESULT, cql.VOID.to_bytes(4, "big"), stream=7),
        frame(cql.RESULT, cql.prepared_prefix(insert_statement("k", "i")) + b"metadata"),
        frame(cql.ERROR, b"\0\0"),
        frame(cql.ERROR, b"\0\0\0\0\xff\xffx"),
        done() + b"\0",
        done() + done(),
    ],
)
def test_what_is_no_answer_is_a_broken_one(broken: bytes) -> None:
    found = answered(broken)
    assert (found.outcome, found.sample.documents_acked, found.sample.attempts) == ("invalid-response", 0, 1)


@given(data=st.binary(max_size=200), opcode=st.integers(0, 255), flags=st.integers(0, 255))
@settings(max_examples=200, deadline=None)
def test_no_bytes_of_a_server_do_more_than_break_its_answer(data: bytes, opcode: int, flags: int) -> None:
    frames = Frames()
    for answer in (data, frame(opcode, data, flags), frame(cql.ERROR, data), frame(cql.RESULT, data)):
        frames.reset()
        frames.free_space()[: len(answer)] = answer
        try:
            frames.feed(len(answer))
        except BrokenResponseError:
            continue
        assert not frames.is_complete or frames.head is not None


@given(data=st.binary(max_size=100))
@settings(max_examples=200, deadline=None)
def test_no_bytes_of_a_server_do_more_than_break_its_rows(data: bytes) -> None:
    for body in (data, cql.ROWS.to_bytes(4, "big") + data):
        try:
            cql.parse_rows(body)
        except idl.BrokenMessageError:
            continue


def test_answers_may_come_in_any_order_and_byte_by_byte() -> None:
    statements = [insert_statement("k", index) for index in INDICES]
    frames = Frames()
    frames.wanted = tuple(known(stream, text) for stream, text in enumerate(statements))
    asked = reversed([*enumerate(statements)])
    answer = b"".join(frame(cql.RESULT, cql.prepared_prefix(text) + b"meta", stream=stream) for stream, text in asked)
    for place in range(len(answer)):
        assert not frames.is_complete
        frames.free_space()[:1] = answer[place : place + 1]
        frames.feed(1)
        assert frames.is_complete == (place == len(answer) - 1)
    assert frames.head is not None
    assert frames.head.status == 200
    # One of them twice is not all of them.
    twice = frame(cql.RESULT, cql.prepared_prefix(statements[0])) * len(statements)
    frames.reset()
    frames.free_space()[: len(twice)] = twice
    with pytest.raises(BrokenResponseError, match="no answer to this"):
        frames.feed(len(twice))
