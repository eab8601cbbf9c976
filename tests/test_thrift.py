"""Protocol `thrift`: calls, meaning of their results, and invalid responses."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_protocols import send_bodies
from test_row_protocols import THRIFT as KIND
from test_users import started
from thrift_server import THRIFT, encode_exception, encode_result, thrift_server

from ingest_bench.protocols import thrift_wire
from ingest_bench.protocols.response import InvalidResponseError
from ingest_bench.protocols.thrift import ThriftReader

TIMED_OUT = encode_result(te=THRIFT.TimedOutException())


def encode_frame(message: bytes) -> bytes:
    return thrift_wire.LENGTH.pack(len(message)) + message


def test_error_message_of_the_server_is_reported() -> None:
    result = KIND.send_with_replies(encode_result(ire=THRIFT.InvalidRequestException(why="No such column family ä")))
    assert result.state.errors() == ("1 x InvalidRequestException: No such column family ä",)
    assert dict(result.state.item_failures) == {"400 InvalidRequestException": 10}


def test_unknown_call_is_a_server_error() -> None:
    result = KIND.send_with_replies(encode_exception("Invalid method name"))
    assert (result.outcome, result.documents, result.sample.status) == ("http-error", (10, 0, 0), 500)
    assert result.state.errors() == ("1 x TApplicationException: Invalid method name",)


def test_keyspace_that_exists_later_is_set_again() -> None:
    missing = encode_result("set_keyspace", ire=THRIFT.InvalidRequestException(why="Keyspace k does not exist"))
    with thrift_server(lambda _body, _number: encode_result(), missing) as server:
        user, sink = started(server.address, protocol=KIND.case.protocol)
        for _ in range(2):
            send_bodies(user, KIND.case.body())
            server.greeting = encode_result("set_keyspace")
        user.on_stop()
        user.upstream.deadlines.close()
    assert [sample.status for sample in sink.samples] == [400, 200]
    assert user.state.errors() == ("1 x InvalidRequestException: Keyspace k does not exist",)
    assert sink.samples[0].bytes_sent < sink.samples[1].bytes_sent, "rows are sent only with a keyspace"
    assert server.connections == 2


def test_response_of_the_handshake_is_not_a_later_response() -> None:
    two_responses = encode_result("set_keyspace") + encode_result()
    with thrift_server(lambda _body, number: two_responses if number == 2 else encode_result()) as server:
        user, sink = started(server.address, protocol=KIND.case.protocol)
        send_bodies(user, *[KIND.case.body()] * 2)
        user.on_stop()
        user.upstream.deadlines.close()
    assert [sample.documents_acked for sample in sink.samples] == [10, 0]


@pytest.mark.parametrize(
    "invalid",
    [
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x00\x00\x05hello",
        encode_result() + b"\x00",
        encode_result() + encode_result(),
        encode_result("set_keyspace"),
        b"\x00\x00\x00\x08" + encode_result()[4:12],
        # Maps and lists of two billion items in messages of some bytes.
        *(
            encode_frame(encode_result()[4:-1] + field)
            for field in (b"\x0d\0\x09\x0b\x0b\x7f\xff\xff\xff", b"\x0f\0\x09\0\x7f\xff\xff\xff")
        ),
        encode_frame(encode_result()[4:-1] + b"\x0c\0\x01" * 100_000),
        # An undeclared exception, a result of a void call, surplus bytes, and the response to call number 7.
        encode_frame(encode_result()[4:-1] + b"\x0c\0\x04\x0b\0\x01\0\0\0\x04gone\0\0"),
        encode_frame(encode_result()[4:-1] + b"\x08\0\0\0\0\0\x05\0"),
        encode_frame(encode_result()[4:] + b"behind"),
        encode_frame(encode_result()[4:-2] + b"\x07\0"),
    ],
)
def test_unexpected_message_is_an_invalid_response(invalid: bytes) -> None:
    reader = ThriftReader()
    reader.expected = ("batch_mutate",)
    reader.grow(len(invalid))
    reader.free_space()[: len(invalid)] = invalid
    with pytest.raises(InvalidResponseError):
        reader.feed(len(invalid))


@given(data=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_response_or_invalid(data: bytes) -> None:
    reader = ThriftReader()
    reader.expected = ("batch_mutate",)
    for response in (
        data,
        struct.pack(">I", len(data)) + data,
        struct.pack(">I", 40 + len(data)) + encode_result()[4:] + data,
    ):
        reader.reset()
        reader.free_space()[: len(response)] = response
        try:
            reader.feed(len(response))
        except InvalidResponseError:
            continue
        assert not reader.is_complete or reader.head is not None


def test_response_is_complete_at_its_last_byte() -> None:
    reader = ThriftReader()
    reader.expected = ("set_keyspace", "batch_mutate")
    response = encode_result("set_keyspace") + TIMED_OUT
    for position, byte in enumerate(response):
        assert not reader.is_complete
        reader.free_space()[0] = byte
        reader.feed(1)
        assert reader.is_complete == (position == len(response) - 1)
    assert reader.head is not None
    assert (reader.head.status, bytes(reader.view[reader.start : reader.end])) == (504, b"TimedOutException")
