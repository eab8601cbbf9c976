"""The protocol of Cassandra 0.7: calls, what their answers mean, and what a broken server cannot do to a load."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_protocols import Sent, Spoken, replies, sent, ticket
from test_users import PLANNED_NS, started
from thrift_server import THRIFT, refused, returned, rows, thrift_server

from ingest_bench import idl
from ingest_bench.model.load import LoadOptions, ProtocolOptions
from ingest_bench.protocols import create_protocol
from ingest_bench.protocols.thrift.thrift_frames import Frames
from ingest_bench.protocols.verdict import BrokenResponseError

with pytest.MonkeyPatch.context() as patched:
    patched.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")

    from ingest_bench.load import users

WIRE = ProtocolOptions(protocol="thrift", keys={"keyspace": "k"})
SPEECH = Spoken(WIRE, lambda body: [*rows(body).values()], lambda _: returned(), server=thrift_server)
TIMED_OUT = returned(te=THRIFT.TimedOutException())


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "gevent", SimpleNamespace(sleep=lambda _: None))


def framed(message: bytes) -> bytes:
    return idl.LENGTH.pack(len(message)) + message


def answered(*answers: bytes | None, retries: int = 5) -> Sent:
    return sent(SPEECH, replies(*answers), retries=retries)


def protocol(**options: Any) -> Any:
    return create_protocol(WIRE, "nyc_taxis", LoadOptions(**options))


def test_timeouts_without_an_end_fail_and_leave_open_what_is_there() -> None:
    found = answered(*[TIMED_OUT] * 3, retries=2)
    assert (found.outcome, found.documents, found.sample.status) == ("http-error", (10, 0, 0), 504)
    assert dict(found.work.item_failures) == {"504 TimedOutException": 10}


def test_what_an_attempt_before_may_have_written_is_open_although_the_last_one_wrote_nothing() -> None:
    unavailable = returned(ue=THRIFT.UnavailableException())
    for first in (TIMED_OUT, None):
        found = answered(first, unavailable, unavailable, retries=2)
        assert (found.outcome, found.documents, found.sample.status) == ("rejected", (10, 0, 0), 503)
    found = answered(*[unavailable] * 3, retries=2)
    assert (found.outcome, found.documents) == ("rejected", (10, 0, 10))


def test_the_words_of_a_refusal_are_told() -> None:
    found = answered(returned(ire=THRIFT.InvalidRequestException(why="No such column family ä")))
    assert found.work.errors() == ("1 x InvalidRequestException: No such column family ä",)
    assert dict(found.work.item_failures) == {"400 InvalidRequestException": 10}


def test_a_server_that_does_not_know_the_call_has_an_error_of_its_own() -> None:
    found = answered(refused("Invalid method name"))
    assert (found.outcome, found.documents, found.sample.status) == ("http-error", (10, 0, 0), 500)
    assert found.work.errors() == ("1 x TApplicationException: Invalid method name",)


def test_a_keyspace_that_is_not_there_is_told_and_the_call_behind_it_answered() -> None:
    gone = returned("set_keyspace", ire=THRIFT.InvalidRequestException(why="Keyspace k does not exist"))
    with thrift_server(lambda _body, _number: returned(), gone) as server:
        sample, work = ticket(SPEECH, server.address, 0)
    assert sample.status == 400
    assert work.errors() == ("1 x InvalidRequestException: Keyspace k does not exist",)


def test_a_keyspace_that_is_there_later_is_named_again() -> None:
    gone = returned("set_keyspace", ire=THRIFT.InvalidRequestException(why="Keyspace k does not exist"))
    with thrift_server(lambda _body, _number: returned(), gone) as server:
        user, kept = started(server.address, protocol=SPEECH.protocol)
        for _ in range(2):
            gevent.spawn(user.send, PLANNED_NS, SPEECH.body()).get(timeout=60)
            server.greeting = returned("set_keyspace")
        user.on_stop()
        user.upstream.deadlines.close()
    assert [sample.status for sample in kept.samples] == [400, 200]
    assert kept.samples[0].bytes_sent == kept.samples[1].bytes_sent
    assert server.connections == 2


def test_what_a_connection_was_answered_at_its_beginning_is_no_answer_to_a_later_request() -> None:
    both = returned("set_keyspace") + returned()
    with thrift_server(lambda _body, number: both if number == 2 else returned()) as server:
        user, kept = started(server.address, protocol=SPEECH.protocol)
        for _ in range(2):
            gevent.spawn(user.send, PLANNED_NS, SPEECH.body()).get(timeout=60)
        user.on_stop()
        user.upstream.deadlines.close()
    assert [sample.documents_acked for sample in kept.samples] == [10, 0]


@pytest.mark.parametrize(
    "broken",
    [
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x00\x00\x05hello",
        returned() + b"\x00",
        returned() + returned(),
        returned("set_keyspace"),
        b"\x00\x00\x00\x08" + returned()[4:12],
        # Maps and lists of two thousand million things, in messages of some bytes.
        *(
            framed(returned()[4:-1] + field)
            for field in (b"\x0d\0\x09\x0b\x0b\x7f\xff\xff\xff", b"\x0f\0\x09\0\x7f\xff\xff\xff")
        ),
        framed(returned()[4:-1] + b"\x0c\0\x01" * 100_000),
        # An exception that the interface does not have, a result of a call that has none, bytes behind the message,
        # and the answer to the call number 7.
        framed(returned()[4:-1] + b"\x0c\0\x04\x0b\0\x01\0\0\0\x04gone\0\0"),
        framed(returned()[4:-1] + b"\x08\0\0\0\0\0\x05\0"),
        framed(returned()[4:] + b"behind"),
        framed(returned()[4:-2] + b"\x07\0"),
    ],
)
def test_what_is_no_answer_is_a_broken_one(broken: bytes) -> None:
    found = answered(broken)
    assert (found.outcome, found.sample.documents_acked, found.sample.attempts) == ("invalid-response", 0, 1)


@given(data=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_of_a_server_do_more_than_break_its_answer(data: bytes) -> None:
    frames = Frames()
    frames.calls = ("batch_mutate",)
    for answer in (
        data,
        struct.pack(">I", len(data)) + data,
        struct.pack(">I", 40 + len(data)) + returned()[4:] + data,
    ):
        frames.reset()
        frames.free_space()[: len(answer)] = answer
        try:
            frames.feed(len(answer))
        except BrokenResponseError:
            continue
        assert not frames.is_complete or frames.head is not None


def test_an_answer_that_comes_byte_by_byte_is_whole_at_its_last_one() -> None:
    frames = Frames()
    frames.calls = ("set_keyspace", "batch_mutate")
    answer = returned("set_keyspace") + TIMED_OUT
    for place, byte in enumerate(answer):
        assert not frames.is_complete
        frames.free_space()[0] = byte
        frames.feed(1)
        assert frames.is_complete == (place == len(answer) - 1)
    assert frames.head is not None
    assert (frames.head.status, bytes(frames.view[frames.start : frames.end])) == (504, b"TimedOutException")
