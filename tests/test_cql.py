"""Protocol `cql`: frames, meaning of errors, and invalid responses."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from cql_server import INDICES, cql_server, encode_error, encode_response, encode_success, parse_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_protocols import fill_body, send_arrival
from test_row_protocols import CQL

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.model.target import Endpoint, ServerAddress, Tls
from ingest_bench.protocols import cql_wire, thrift_wire
from ingest_bench.protocols.cql import VOID, CqlReader, expect_prepared, insert_statement
from ingest_bench.protocols.response import InvalidResponseError
from ingest_bench.protocols.upstream import resolve_upstream

TIMED_OUT = encode_error(0x1100, "Operation timed out", struct.pack(">Hii", 5, 0, 1))
OVERLOADED = encode_error(0x1001, "Query timed out before it could start")


def test_more_rows_than_a_batch_can_count_are_refused() -> None:
    with pytest.raises(SpecError, match="at most 65,535 rows, not 65,536"):
        CQL.protocol(bulk_documents=65_536)
    with pytest.raises(SpecError, match="at most 65,535 rows"):
        CQL.protocol().build_body([b""] * 65_536, 1)
    body = fill_body(CQL.protocol(), [b""] * 65_535)
    assert len(parse_batch(bytes(body.data))) == 65_535


def test_tls_is_refused() -> None:
    user_class = CQL.protocol().user_class()
    endpoint = Endpoint("127.0.0.1", 1)
    user = type(
        "One",
        (user_class,),
        {"upstream": resolve_upstream(ServerAddress(endpoint=endpoint, tls=Tls(name="localhost")))},
    )
    with pytest.raises(RunFailed, match="cql: TLS is not supported"):
        user(SimpleNamespace()).on_start()


@pytest.mark.parametrize(
    ("first", "later", "failed"),
    [
        (OVERLOADED, OVERLOADED, 10),
        (encode_error(0x1002, "bootstrapping"), OVERLOADED, 10),
        # Some rows of the batch were under way when the error occurred.
        (encode_error(0x1001, "Too many in flight hints: 7"), OVERLOADED, 0),
        (encode_error(0x1000, "Cannot achieve consistency level ALL"), OVERLOADED, 0),
        (TIMED_OUT, OVERLOADED, 0),
        (None, OVERLOADED, 0),
    ],
)
def test_rows_have_failed_only_if_no_attempt_may_have_written(first: bytes | None, later: bytes, failed: int) -> None:
    result = CQL.send_with_replies(first, later, later, retries=2)
    assert (result.outcome, result.documents, result.sample.attempts) == ("rejected", (10, 0, failed), 3)
    assert result.sample.status == 503


@pytest.mark.parametrize(
    ("response", "status", "kind"),
    [
        (encode_error(0x2200, "Batch too large ä"), 400, "400 Invalid"),
        (encode_error(0x2000, "line 1:0"), 400, "400 SyntaxError"),
        (encode_error(0x2100, "User has no MODIFY"), 403, "403 Unauthorized"),
        (encode_error(0x0000, "java.lang.NullPointerException"), 500, "500 ServerError"),
        (encode_error(0x1500, "failed", b"more"), 500, "500 WriteFailure"),
        (encode_error(0x7777, "new"), 500, "500 Error 0x7777"),
    ],
)
def test_error_message_of_the_server_is_reported(response: bytes, status: int, kind: str) -> None:
    result = CQL.send_with_replies(response)
    assert (result.outcome, result.documents, result.sample.status) == (
        "http-error",
        (10, 0, 0 if status >= 500 else 10),
        status,
    )
    assert dict(result.state.item_failures) == {kind: 10}
    assert kind.partition(" ")[2] in result.state.errors()[0]


def test_forgotten_statement_is_prepared_again() -> None:
    result = CQL.send_with_replies(
        encode_error(0x2500, "Prepared query with ID 1 not found", b"\0\1x"), encode_success()
    )
    assert (result.outcome, result.documents, result.sample.attempts) == ("ok", (10, 10, 0), 2)
    assert result.server.connections == 2
    assert result.sample.bytes_sent == result.server.bytes_read


def test_missing_table_is_reported() -> None:
    with cql_server(
        lambda _body, _number: encode_success(), ready=encode_error(0x2200, "table i does not exist")
    ) as server:
        sample, state = send_arrival(CQL.case, server.address, 0)
    assert (sample.status, sample.documents_failed) == (400, 10)
    assert state.errors() == ("1 x Invalid: table i does not exist",)


def test_required_authentication_is_reported() -> None:
    with cql_server(
        lambda _body, _number: encode_success(), ready=encode_response(cql_wire.AUTHENTICATE, b"\0\1x")
    ) as server:
        sample, state = send_arrival(CQL.case, server.address, 3)
    assert (sample.status, sample.attempts) == (401, 1)
    assert "requires a user and password" in state.errors()[0]
    assert server.requests == 0


def test_prepared_statement_with_another_id_is_invalid() -> None:
    other_id = cql_wire.PREPARED.to_bytes(4, "big") + b"\0\x10" + b"x" * 16
    with cql_server(lambda _body, _number: encode_success(), prepared=other_id) as server:
        sample, state = send_arrival(CQL.case, server.address, 0)
    assert sample.documents_acked == 0
    assert "unexpected response" in state.errors()[0]


def test_warnings_and_tracing_before_the_body_are_skipped() -> None:
    warned = struct.pack(">HH", 1, 5) + b"large"
    assert (
        CQL.send_with_replies(
            encode_response(cql_wire.RESULT, warned + cql_wire.VOID.to_bytes(4, "big"), flags=8)
        ).outcome
        == "ok"
    )
    traced = b"i" * 16 + warned + cql_wire.VOID.to_bytes(4, "big")
    assert CQL.send_with_replies(encode_response(cql_wire.RESULT, traced, flags=10)).outcome == "ok"


@pytest.mark.parametrize(
    "invalid",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        # A response of version 5, and a request.
        b"\x85" + encode_success()[1:],
        b"\x04" + encode_success()[1:],
        cql_wire.HEAD.pack(0x84, 0, 0, cql_wire.RESULT, -1),
        cql_wire.HEAD.pack(0x84, 0, 0, cql_wire.RESULT, 2**31 - 1),
        # Compressed, and with a payload: neither was requested.
        encode_response(cql_wire.RESULT, b"\0\0\0\1", flags=1),
        encode_response(cql_wire.RESULT, b"\0\0\0\1", flags=4),
        encode_response(cql_wire.RESULT, b"\xff\xff", flags=8),
        encode_response(cql_wire.RESULT, b""),
        encode_response(cql_wire.RESULT, cql_wire.ROWS.to_bytes(4, "big")),
        encode_response(cql_wire.READY, b""),
        # A response to another request, and one of the handshake.
        encode_response(cql_wire.RESULT, cql_wire.VOID.to_bytes(4, "big"), stream=7),
        encode_response(cql_wire.RESULT, cql_wire.prepared_prefix(insert_statement("k", "i")) + b"metadata"),
        encode_response(cql_wire.ERROR, b"\0\0"),
        encode_response(cql_wire.ERROR, b"\0\0\0\0\xff\xffx"),
        encode_success() + b"\0",
        encode_success() + encode_success(),
    ],
)
def test_unexpected_frame_is_an_invalid_response(invalid: bytes) -> None:
    reader = CqlReader()
    reader.expected = (VOID,)
    reader.free_space()[: len(invalid)] = invalid
    with pytest.raises(InvalidResponseError):
        reader.feed(len(invalid))


def test_invalid_response_is_not_retried() -> None:
    result = CQL.send_with_replies(encode_success() + b"\0")
    assert (result.outcome, result.sample.documents_acked, result.sample.attempts) == ("invalid-response", 0, 1)


@given(data=st.binary(max_size=200), opcode=st.integers(0, 255), flags=st.integers(0, 255))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_response_or_invalid(data: bytes, opcode: int, flags: int) -> None:
    reader = CqlReader()
    reader.expected = (VOID,)
    for response in (
        data,
        encode_response(opcode, data, flags),
        encode_response(cql_wire.ERROR, data),
        encode_response(cql_wire.RESULT, data),
    ):
        reader.reset()
        reader.free_space()[: len(response)] = response
        try:
            reader.feed(len(response))
        except InvalidResponseError:
            continue
        assert not reader.is_complete or reader.head is not None


@given(data=st.binary(max_size=100))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_rows_or_invalid(data: bytes) -> None:
    for body in (data, cql_wire.ROWS.to_bytes(4, "big") + data):
        try:
            cql_wire.parse_rows(body)
        except thrift_wire.BrokenMessageError:
            continue


def test_responses_may_arrive_in_any_order_and_byte_by_byte() -> None:
    statements = [insert_statement("k", index) for index in INDICES]
    reader = CqlReader()
    reader.expected = tuple(expect_prepared(stream, text) for stream, text in enumerate(statements))
    prepared = reversed([*enumerate(statements)])
    response = b"".join(
        encode_response(cql_wire.RESULT, cql_wire.prepared_prefix(text) + b"meta", stream=stream)
        for stream, text in prepared
    )
    for position in range(len(response)):
        assert not reader.is_complete
        reader.free_space()[:1] = response[position : position + 1]
        reader.feed(1)
        assert reader.is_complete == (position == len(response) - 1)
    assert reader.head is not None
    assert reader.head.status == 200
    # One of them twice does not replace another.
    twice = encode_response(cql_wire.RESULT, cql_wire.prepared_prefix(statements[0])) * len(statements)
    reader.reset()
    reader.free_space()[: len(twice)] = twice
    with pytest.raises(InvalidResponseError, match="unexpected response"):
        reader.feed(len(twice))
