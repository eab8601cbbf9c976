"""Protocols of rows, CQL and Thrift: rules of both, their handshakes, meaning of errors, and invalid responses."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cql_server import INDICES, cql_server, encode_error, encode_response, encode_success, parse_batch
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from test_load_process import loaded, outcomes, plan_for
from test_protocols import DOCUMENTS, ProtocolCase, SentArrival, fill_body, replies, send_arrival, send_bodies, send_to
from test_users import started
from thrift_server import THRIFT as INTERFACE
from thrift_server import encode_exception, encode_result, parse_call, thrift_server

from ingest_bench.analysis.run import integrity
from ingest_bench.documents.body import IdSequence
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.model.load import BulkAction, LoadOptions, ProtocolOptions
from ingest_bench.model.results import RunRecord
from ingest_bench.model.target import Endpoint, ServerAddress, Tls
from ingest_bench.protocols import cql_wire, thrift_wire
from ingest_bench.protocols.cassandra import FrameReader
from ingest_bench.protocols.cql import VOID, CqlReader, expect_prepared, insert_statement
from ingest_bench.protocols.protocol import create_protocol
from ingest_bench.protocols.response import InvalidResponseError
from ingest_bench.protocols.thrift import ThriftReader
from ingest_bench.protocols.upstream import resolve_upstream


@dataclass(frozen=True)
class Kind:
    """A protocol of rows and a server that speaks it."""

    name: str
    rows: Callable[[bytes], Mapping[bytes, tuple[str, bytes]]]
    server: Any
    done: Callable[[], bytes]
    busy: bytes
    """Error after which no row was written."""
    timed_out: bytes
    """Error after which rows may be written."""
    bad_keyspace: str
    handshake: bytes
    """Bytes that a connection sends once."""
    reader_class: type[FrameReader]
    expected: tuple[Any, ...]
    """Response to a body, as the reader expects it."""
    embed: Callable[[bytes, int, int], Iterable[bytes]]
    """Returns responses that have any bytes, an opcode and flags in them."""

    @property
    def protocol_options(self) -> ProtocolOptions:
        return ProtocolOptions(protocol=self.name, keys={"keyspace": "k"})

    @property
    def case(self) -> ProtocolCase:
        return ProtocolCase(
            self.protocol_options, lambda body: [*self.rows(body).values()], lambda _: self.done(), server=self.server
        )

    def protocol(self, **options: Any) -> Any:
        return create_protocol(self.protocol_options, "nyc_taxis", LoadOptions(**options))

    def feed(self, response: bytes) -> FrameReader:
        """Return a reader that got a response at once; InvalidResponseError if it is invalid."""
        reader = self.reader_class()
        reader.expected = self.expected
        reader.grow(len(response))
        reader.free_space()[: len(response)] = response
        reader.feed(len(response))
        return reader

    def send_with_replies(self, *answers: bytes | None, retries: int = 5) -> SentArrival:
        return send_to(self.case, replies(*answers), retries=retries)


def encode_frame(message: bytes) -> bytes:
    return thrift_wire.LENGTH.pack(len(message)) + message


CQL = Kind(
    name="cql",
    rows=parse_batch,
    server=cql_server,
    done=encode_success,
    busy=encode_error(0x1001, ""),
    timed_out=encode_error(0x1100, "Operation timed out", bytes(7)),
    bad_keyspace='a"b',
    handshake=cql_wire.encode_startup() + cql_wire.encode_prepare(insert_statement("k", "i")),
    reader_class=CqlReader,
    expected=(VOID,),
    embed=lambda data, opcode, flags: (
        encode_response(opcode, data, flags),
        encode_response(cql_wire.ERROR, data),
        encode_response(cql_wire.RESULT, data),
    ),
)
THRIFT = Kind(
    name="thrift",
    rows=parse_call,
    server=thrift_server,
    done=encode_result,
    busy=encode_result(ue=INTERFACE.UnavailableException()),
    timed_out=encode_result(te=INTERFACE.TimedOutException()),
    bad_keyspace="a-b",
    handshake=thrift_wire.encode_call("set_keyspace", keyspace="k"),
    reader_class=ThriftReader,
    expected=("batch_mutate",),
    embed=lambda data, _opcode, _flags: (encode_frame(data), encode_frame(encode_result()[4:] + data)),
)


@pytest.fixture(params=[CQL, THRIFT], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


def test_rows_go_to_all_tables_in_turn(kind: Kind) -> None:
    body = fill_body(kind.protocol(action=BulkAction(indices=3)), DOCUMENTS)
    rows = kind.rows(bytes(body.data))
    assert [document for _, document in rows.values()] == DOCUMENTS
    assert [table for table, _ in rows.values()] == [f"nyc_taxis_{number % 3}" for number in range(10)]


def test_keys_are_unique_across_users(kind: Kind) -> None:
    template = kind.protocol().build_body(DOCUMENTS, 1)
    keys = []
    for user in range(3):
        ids, copy = IdSequence(user, 3, "none", 1), template.copy()
        keys += [key for _ in range(4) for key in kind.rows(bytes(copy.fill(ids).data))]
    assert len(keys) == len(set(keys)) == 3 * 4 * len(DOCUMENTS)


def test_conflicts_reuse_a_share_of_the_keys(kind: Kind) -> None:
    action = BulkAction(conflicts="random", conflict_probability_ppm=500_000)
    body = kind.protocol(action=action).build_body(DOCUMENTS * 20, 1).fill(IdSequence(0, 1, "random", 1))
    assert 50 < body.count_added() == len(kind.rows(bytes(body.data))) < 150


@pytest.mark.parametrize("kind", [CQL, THRIFT], ids=lambda kind: kind.name)
@given(documents=st.lists(st.binary(max_size=300), min_size=1, max_size=20), indices=st.integers(1, 3))
@examples(30)
def test_server_reads_any_documents_unchanged(kind: Kind, documents: list[bytes], indices: int) -> None:
    body = fill_body(kind.protocol(action=BulkAction(indices=indices)), documents)
    assert [document for _, document in kind.rows(bytes(body.data)).values()] == documents
    assert int(body.item_offsets()[-1]) == len(body.data)


def test_conflicts_in_several_tables_are_refused(kind: Kind) -> None:
    with pytest.raises(SpecError, match="conflicts cannot be combined with indices"):
        kind.protocol(action=BulkAction(conflicts="random", indices=3))


@pytest.mark.parametrize("keyspace", ["", "a b", "bad", "x" * 49, "ä"])
def test_invalid_keyspace_is_refused(kind: Kind, keyspace: str) -> None:
    keys = {"keyspace": kind.bad_keyspace if keyspace == "bad" else keyspace}
    with pytest.raises(SpecError, match="keyspace"):
        create_protocol(ProtocolOptions(protocol=kind.name, keys=keys), "i", LoadOptions())


def test_repeated_timeouts_fail_with_documents_in_doubt(kind: Kind) -> None:
    result = kind.send_with_replies(*[kind.timed_out] * 3, retries=2)
    assert (result.outcome, result.documents, result.sample.status) == ("http-error", (10, 0, 0), 504)
    assert sum(result.state.item_failures.values()) == 10


def test_server_timeout_is_retried(kind: Kind) -> None:
    result = kind.send_with_replies(kind.timed_out, kind.done())
    assert (result.outcome, result.documents, result.sample.attempts, result.sample.status) == (
        "ok",
        (10, 10, 0),
        2,
        200,
    )
    assert 0 < result.sample.bytes_unanswered < result.sample.bytes_sent == result.server.bytes_read
    first, second = result.server.bodies
    assert first == second


def test_error_is_never_mistaken_for_the_previous_response(kind: Kind) -> None:
    """Check two responses of one length: the second is a success, and may begin as the first."""
    results = [
        kind.send_with_replies(*order, retries=3) for order in ((kind.busy, kind.busy, kind.done()), (kind.done(),))
    ]
    assert [(result.outcome, result.sample.attempts) for result in results] == [("ok", 3), ("ok", 1)]


def test_connection_that_the_node_ended_while_idle_is_replaced(kind: Kind) -> None:
    with (
        kind.server(lambda _body, _number: kind.done()) as server,
        kind.server(lambda _body, _number: kind.done()) as other,
    ):
        upstream = resolve_upstream(ServerAddress(endpoint=server.address), ServerAddress(endpoint=other.address))
        user, sink = started(server.address, protocol=kind.case.protocol, upstream=upstream)
        send_bodies(user, kind.case.body())
        server.end_connections()
        send_bodies(user, kind.case.body())
        user.on_stop()
        user.upstream.deadlines.close()
    assert [(sample.attempts, sample.documents_acked) for sample in sink.samples] == [(1, 10)] * 2
    assert [sample.address for sample in sink.samples] == [0, 1]
    assert [server.connections, other.connections] == [1, 1]
    assert sink.samples[0].bytes_sent == sink.samples[1].bytes_sent


def test_each_connection_has_one_handshake_and_all_bytes_are_counted(kind: Kind) -> None:
    with kind.server(lambda _body, number: None if number == 3 else kind.done()) as server:
        user, sink = started(server.address, protocol=kind.case.protocol)
        for _ in range(4):
            send_bodies(user, kind.case.body())
        user.on_stop()
        user.upstream.deadlines.close()
    handshake, batch = len(kind.handshake), len(kind.case.body().data)
    assert [sample.bytes_sent for sample in sink.samples] == [handshake + batch, batch, handshake + 2 * batch, batch]
    assert sum(sample.bytes_sent for sample in sink.samples) == server.bytes_read == user.upstream.traffic.bytes_written
    assert server.connections == 2


@pytest.mark.processes
def test_load_is_stored_once_with_a_failing_server(kind: Kind, tmp_path: Path) -> None:
    stored: set[bytes] = set()

    def reply(body: bytes, number: int) -> bytes | None:
        if number % 7 == 0:
            return kind.busy
        stored.update(kind.rows(body))
        if number % 11 == 0:
            return None
        return kind.timed_out if number % 13 == 0 else kind.done()

    with kind.server(reply) as server:
        plan = dataclasses.replace(plan_for(server.address, tmp_path), wire=kind.protocol_options)
        report, samples, _ = loaded(plan)
    acked = int(samples["documents_acked"].sum())
    assert report.bytes_written == server.bytes_read == samples["bytes_sent"].sum()
    assert report.documents_resent > 0
    assert "ok" in outcomes(samples)
    unknown = int((samples["documents"] - samples["documents_acked"]).sum())
    assert acked <= len(stored) <= acked + unknown
    values = {"documents_acked": acked, "bytes_sent": report.bytes_written, "documents_counted": len(stored)}
    record = RunRecord(run="x/1", replicate=1, cell="x", levels={}, state="measured")
    assert integrity.find_invalid_reasons(record, samples, report, values) == []


def test_more_rows_than_a_batch_can_count_are_refused() -> None:
    with pytest.raises(SpecError, match="at most 65,535 rows, not 65,536"):
        CQL.protocol(bulk_documents=65_536)
    with pytest.raises(SpecError, match="at most 65,535 rows"):
        CQL.protocol().build_body([b""] * 65_536, 1)
    body = fill_body(CQL.protocol(), [b""] * 65_535)
    assert len(parse_batch(bytes(body.data))) == 65_535


def test_tls_is_refused(kind: Kind) -> None:
    address = ServerAddress(endpoint=Endpoint("127.0.0.1", 1), tls=Tls(name="localhost"))
    user = type("One", (kind.protocol().user_class(),), {"upstream": resolve_upstream(address)})
    with pytest.raises(RunFailed, match=f"{kind.name}: TLS is not supported"):
        user(SimpleNamespace()).on_start()


CQL_OVERLOADED = encode_error(0x1001, "Query timed out before it could start")


@pytest.mark.parametrize(
    ("first", "failed"),
    [
        (CQL_OVERLOADED, 10),
        (encode_error(0x1002, "bootstrapping"), 10),
        # Some rows of the batch were under way when the error occurred.
        (encode_error(0x1001, "Too many in flight hints: 7"), 0),
        (encode_error(0x1000, "Cannot achieve consistency level ALL"), 0),
        (CQL.timed_out, 0),
        (None, 0),
    ],
)
def test_rows_have_failed_only_if_no_attempt_may_have_written(first: bytes | None, failed: int) -> None:
    result = CQL.send_with_replies(first, CQL_OVERLOADED, CQL_OVERLOADED, retries=2)
    assert (result.outcome, result.documents, result.sample.attempts) == ("rejected", (10, 0, failed), 3)
    assert result.sample.status == 503


@pytest.mark.parametrize(
    ("kind", "response", "status", "message"),
    [
        (CQL, encode_error(0x2200, "Batch too large ä"), 400, "Invalid: Batch too large ä"),
        (CQL, encode_error(0x2000, "line 1:0"), 400, "SyntaxError: line 1:0"),
        (CQL, encode_error(0x2100, "User has no MODIFY"), 403, "Unauthorized: User has no MODIFY"),
        (CQL, encode_error(0x0000, "java.lang.NullPointerException"), 500, "ServerError: java.lang.Null"),
        (CQL, encode_error(0x1500, "failed", b"more"), 500, "WriteFailure: failed"),
        (CQL, encode_error(0x7777, "new"), 500, "Error 0x7777: new"),
        (
            THRIFT,
            encode_result(ire=INTERFACE.InvalidRequestException(why="No such column family ä")),
            400,
            "InvalidRequestException: No such column family ä",
        ),
        (THRIFT, encode_exception("Invalid method name"), 500, "TApplicationException: Invalid method name"),
    ],
)
def test_error_message_of_the_server_is_reported(kind: Kind, response: bytes, status: int, message: str) -> None:
    result = kind.send_with_replies(response)
    assert (result.outcome, result.documents, result.sample.status) == (
        "http-error",
        (10, 0, 0 if status >= 500 else 10),
        status,
    )
    assert dict(result.state.item_failures) == {f"{status} {message.partition(':')[0]}": 10}
    (error,) = result.state.errors()
    assert error.startswith(f"1 x {message}")


def test_forgotten_statement_is_prepared_again() -> None:
    result = CQL.send_with_replies(
        encode_error(0x2500, "Prepared query with ID 1 not found", b"\0\1x"), encode_success()
    )
    assert (result.outcome, result.documents, result.sample.attempts) == ("ok", (10, 10, 0), 2)
    assert result.server.connections == 2
    assert result.sample.bytes_sent == result.server.bytes_read


@pytest.mark.parametrize(
    ("responses", "status", "failed", "message"),
    [
        ({"ready": encode_error(0x2200, "table i does not exist")}, 400, 10, "Invalid: table i does not exist"),
        ({"ready": encode_response(cql_wire.AUTHENTICATE, b"\0\1x")}, 401, 10, "requires a user and password"),
        # A prepared statement with another id.
        ({"prepared": cql_wire.PREPARED.to_bytes(4, "big") + b"\0\x10" + b"x" * 16}, 0, 0, "unexpected response"),
    ],
)
def test_handshake_that_fails_is_reported(responses: dict[str, bytes], status: int, failed: int, message: str) -> None:
    with cql_server(lambda _body, _number: encode_success(), **responses) as server:
        sample, state = send_arrival(CQL.case, server.address, 3)
    assert (sample.status, sample.attempts, sample.documents_acked, sample.documents_failed) == (status, 1, 0, failed)
    assert message in state.errors()[0]
    assert server.requests == 0


def test_keyspace_that_exists_later_is_set_again() -> None:
    missing = encode_result("set_keyspace", ire=INTERFACE.InvalidRequestException(why="Keyspace k does not exist"))
    with thrift_server(lambda _body, _number: encode_result(), missing) as server:
        user, sink = started(server.address, protocol=THRIFT.case.protocol)
        for _ in range(2):
            send_bodies(user, THRIFT.case.body())
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
        user, sink = started(server.address, protocol=THRIFT.case.protocol)
        send_bodies(user, *[THRIFT.case.body()] * 2)
        user.on_stop()
        user.upstream.deadlines.close()
    assert [sample.documents_acked for sample in sink.samples] == [10, 0]


def test_warnings_and_tracing_before_the_body_are_skipped() -> None:
    warned = struct.pack(">HH", 1, 5) + b"large" + cql_wire.VOID.to_bytes(4, "big")
    for body, flags in ((warned, 8), (b"i" * 16 + warned, 10)):
        head = CQL.feed(encode_response(cql_wire.RESULT, body, flags)).head
        assert head is not None
        assert head.status == 200


CQL_INVALID = (
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
)
THRIFT_INVALID = (
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\x00\x00\x00\x05hello",
    encode_result() + b"\x00",
    encode_result() + encode_result(),
    encode_result("set_keyspace"),
    b"\x00\x00\x00\x08" + encode_result()[4:12],
    # Maps and lists of two billion items in messages of some bytes.
    encode_frame(encode_result()[4:-1] + b"\x0d\0\x09\x0b\x0b\x7f\xff\xff\xff"),
    encode_frame(encode_result()[4:-1] + b"\x0f\0\x09\0\x7f\xff\xff\xff"),
    encode_frame(encode_result()[4:-1] + b"\x0c\0\x01" * 100_000),
    # An undeclared exception, a result of a void call, surplus bytes, and the response to call number 7.
    encode_frame(encode_result()[4:-1] + b"\x0c\0\x04\x0b\0\x01\0\0\0\x04gone\0\0"),
    encode_frame(encode_result()[4:-1] + b"\x08\0\0\0\0\0\x05\0"),
    encode_frame(encode_result()[4:] + b"behind"),
    encode_frame(encode_result()[4:-2] + b"\x07\0"),
)


@pytest.mark.parametrize(
    ("kind", "invalid"),
    [*((CQL, response) for response in CQL_INVALID), *((THRIFT, response) for response in THRIFT_INVALID)],
)
def test_unexpected_response_is_invalid(kind: Kind, invalid: bytes) -> None:
    with pytest.raises(InvalidResponseError):
        kind.feed(invalid)


def test_invalid_response_is_not_retried(kind: Kind) -> None:
    result = kind.send_with_replies(kind.done() + b"\0")
    assert (result.outcome, result.sample.documents_acked, result.sample.attempts) == ("invalid-response", 0, 1)


@pytest.mark.parametrize("kind", [CQL, THRIFT], ids=lambda kind: kind.name)
@given(data=st.binary(max_size=200), opcode=st.integers(0, 255), flags=st.integers(0, 255))
@examples(200)
def test_any_bytes_are_a_response_or_invalid(kind: Kind, data: bytes, opcode: int, flags: int) -> None:
    for response in (data, *kind.embed(data, opcode, flags)):
        try:
            reader = kind.feed(response)
        except InvalidResponseError:
            continue
        assert not reader.is_complete or reader.head is not None


@given(data=st.binary(max_size=100))
@examples(200)
def test_any_bytes_are_rows_or_invalid(data: bytes) -> None:
    for body in (data, cql_wire.ROWS.to_bytes(4, "big") + data):
        try:
            cql_wire.parse_rows(body)
        except InvalidResponseError:
            continue


def feed_bytewise(reader: FrameReader, response: bytes) -> tuple[int, bytes]:
    """Check that a response is complete at its last byte, and return status and body."""
    for position, byte in enumerate(response):
        assert not reader.is_complete
        reader.free_space()[0] = byte
        reader.feed(1)
        assert reader.is_complete == (position == len(response) - 1)
    assert reader.head is not None
    return reader.head.status, bytes(reader.view[reader.start : reader.end])


def test_responses_to_cql_may_arrive_in_any_order_and_byte_by_byte() -> None:
    statements = [insert_statement("k", index) for index in INDICES]
    reader = CqlReader()
    reader.expected = tuple(expect_prepared(stream, text) for stream, text in enumerate(statements))
    responses = [
        encode_response(cql_wire.RESULT, cql_wire.prepared_prefix(text) + b"meta", stream=stream)
        for stream, text in enumerate(statements)
    ]
    assert feed_bytewise(reader, b"".join(reversed(responses))) == (200, b"")
    # One of them twice does not replace another.
    twice = encode_response(cql_wire.RESULT, cql_wire.prepared_prefix(statements[0])) * len(statements)
    reader.reset()
    reader.free_space()[: len(twice)] = twice
    with pytest.raises(InvalidResponseError, match="unexpected response"):
        reader.feed(len(twice))


def test_responses_to_thrift_may_arrive_byte_by_byte() -> None:
    reader = ThriftReader()
    reader.expected = ("set_keyspace", "batch_mutate")
    assert feed_bytewise(reader, encode_result("set_keyspace") + THRIFT.timed_out) == (504, b"TimedOutException")
