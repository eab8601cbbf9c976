"""HTTP/2 against a small server on loopback: windows, resets, GOAWAY, and settings that change."""

from __future__ import annotations

import dataclasses
import gc
import ssl
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import certificates
import gevent
import pytest
from bulk_server import Reply, accept_all, answer, bulk_server
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from http2_server import Http2Server, http2_server, start_response
from hyperframe.frame import GoAwayFrame, PingFrame
from test_protocols import ProtocolCase, lines, send_arrival
from test_users import outcome

from ingest_bench.errors import SpecError
from ingest_bench.model.load import Http2Windows, LoadOptions, ProtocolOptions
from ingest_bench.model.target import Endpoint, ServerAddress, Tls
from ingest_bench.protocols import http1
from ingest_bench.protocols.http2 import Http2Connection, Http2TlsConnection, StreamReader, build_request_headers
from ingest_bench.protocols.protocol import create_protocol
from ingest_bench.protocols.response import ConnectionBrokenError
from ingest_bench.protocols.upstream import Traffic, resolve_upstream

BODY = b'{"index":{}}\n{"a":1}\n' * 10
LARGE = b'{"index":{}}\n{"a":"%s"}\n' % (b"0123456789" * 50_000)
LONG_NS = 60 * 10**9
WINDOWS = Http2Windows(2**30, 2**30)
REJECTED = answer(b"{}", "413 Payload Too Large")


class Client:
    """A connection to a server, and its counters."""

    def __init__(self, address: Endpoint, windows: Http2Windows = WINDOWS, tls: Tls | None = None) -> None:
        self.traffic = Traffic()
        upstream = resolve_upstream(ServerAddress(endpoint=address, tls=tls), traffic=self.traffic, alpn="h2")
        self.connection = (Http2Connection if tls is None else Http2TlsConnection)(upstream, StreamReader(windows))
        upstream.deadlines.watch(self.connection)
        headers = {"content-type": "application/x-ndjson", "X-Source": "bench"}
        self.connection.headers = build_request_headers("/i/_bulk", upstream.addresses[0], headers, "POST")
        self.close_deadlines = upstream.deadlines.close

    def send(self, body: bytes = BODY, timeout_ns: int = LONG_NS) -> tuple[int, bytes]:
        self.connection.close_if_ended()
        response = self.connection.exchange(b"", body, timeout_ns)
        return response.status, response.body

    def fails(self, body: bytes = BODY, timeout_ns: int = LONG_NS) -> tuple[str, str, bool | None]:
        """Return outcome, message and `may_be_stored` of a request without a response."""
        with pytest.raises(ConnectionBrokenError) as caught:
            self.send(body, timeout_ns)
        return caught.value.outcome, str(caught.value), caught.value.may_be_stored


@dataclasses.dataclass
class Place:
    """Starts servers, and clients that are closed before them."""

    stack: ExitStack

    def open(
        self, reply: Reply = accept_all, windows: Http2Windows = WINDOWS, **options: Any
    ) -> tuple[Client, Http2Server]:
        server = self.stack.enter_context(http2_server(reply, **options))
        server.keep_bodies = True
        client = Client(server.address, windows)
        self.stack.callback(client.close_deadlines)
        return client, server


@pytest.fixture
def place() -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(stack)


def goaway(last_stream: int, code: ErrorCodes = ErrorCodes.NO_ERROR, reason: bytes = b"") -> bytes:
    return GoAwayFrame(last_stream_id=last_stream, error_code=code, additional_data=reason).serialize()


def once(*results: Any) -> Callable[[H2Connection, int], Any]:
    """Act once with each of these, a value or a function, and then no more."""
    remaining = iter(results)

    def act(session: H2Connection, stream: int) -> Any:
        result = next(remaining, b"")
        return result(session, stream) if callable(result) else result

    return act


def reset(code: ErrorCodes) -> Callable[[H2Connection, int], None]:
    return lambda session, stream: session.reset_stream(stream, code)


def wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit
        gevent.sleep(0.001)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {SettingCodes.INITIAL_WINDOW_SIZE: 10_001},
        {SettingCodes.INITIAL_WINDOW_SIZE: 2**20, SettingCodes.MAX_FRAME_SIZE: 60_000},
        {SettingCodes.HEADER_TABLE_SIZE: 0, SettingCodes.MAX_CONCURRENT_STREAMS: 1},
    ],
)
def test_bodies_larger_than_the_windows_are_read_completely(place: Place, settings: dict[SettingCodes, int]) -> None:
    client, server = place.open(settings=settings)
    bodies = [BODY, LARGE, BODY, LARGE]
    sent_bytes = 0
    for body in bodies:
        assert client.send(body)[0] == 200
        connection, traffic = client.connection, client.traffic
        sent_bytes += connection.bytes_sent
        assert 0 < connection.sent_ns < connection.written_ns <= connection.first_byte_ns <= connection.done_ns
    connection.close()
    wait_until(lambda: server.bytes_read == traffic.bytes_written)
    assert server.bodies == bodies
    assert (server.connections, server.bytes_read) == (traffic.connects, sent_bytes)
    # The connection's window remains 65,535, and the server returns it as it reads.
    assert traffic.window_stalls >= 2
    assert traffic.window_stalled_ns > 0
    assert traffic.stream_window_bytes == settings.get(SettingCodes.INITIAL_WINDOW_SIZE, 65_535)
    head = server.heads[-1].decode()
    assert head.startswith("POST /i/_bulk HTTP/2\r\n")
    assert f"\r\n:authority: {server.address}\r\n" in head
    assert "\r\nx-source: bench\r\n" in head
    assert f"\r\ncontent-length: {len(LARGE)}\r\n" in head


def test_no_stall_is_counted_while_the_windows_suffice(place: Place) -> None:
    client, _ = place.open()
    for _ in range(3):
        client.send(b"x" * 20_000)
    assert client.traffic.window_stalls == client.traffic.window_stalled_ns == 0


@pytest.mark.parametrize("windows", [WINDOWS, Http2Windows(1, 65_535), Http2Windows(2**31 - 1, 65_535)])
def test_response_larger_than_our_windows_is_read(place: Place, windows: Http2Windows) -> None:
    content = b"0123456789" * (3 if windows.stream_bytes == 1 else 30_000)
    client, _ = place.open(lambda _body, _number: answer(content), windows)
    for _ in range(3):
        assert client.send() == (200, content)


def test_response_larger_than_the_limit_is_invalid(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest_bench.protocols.http2.RESPONSE_LIMIT_BYTES", 100_000)
    client, _ = place.open(lambda _body, _number: answer(b"x" * 200_000))
    assert client.fails()[:2] == ("invalid-response", "the response is larger than the limit of 100000 bytes")
    assert http1.RESPONSE_LIMIT_BYTES > 100_000


def change(settings: dict[SettingCodes | int, int]) -> Callable[[H2Connection, int], bytes]:
    def act(session: H2Connection, _stream: int) -> bytes:
        session.update_settings(settings)
        return session.data_to_send()

    return act


def test_window_that_shrinks_during_a_request_is_respected(place: Place) -> None:
    # The server ends the connection if more is sent than its windows allow.
    client, server = place.open(act_early=once(change({SettingCodes.INITIAL_WINDOW_SIZE: 100})))
    assert client.send(LARGE[:70_000])[0] == 200
    assert client.send(LARGE[:3_000])[0] == 200
    assert server.connections == 1
    assert client.traffic.stream_window_bytes == 100


@pytest.mark.parametrize("setting", [SettingCodes.MAX_CONCURRENT_STREAMS, SettingCodes.INITIAL_WINDOW_SIZE])
def test_server_that_allows_no_stream_or_no_byte_is_a_timeout(place: Place, setting: SettingCodes) -> None:
    client, server = place.open(act=once(change({setting: 0})))
    client.send()
    assert client.fails(timeout_ns=10**8)[:2] == ("timeout", "no response in time")
    is_stall = setting == SettingCodes.INITIAL_WINDOW_SIZE
    assert bool(client.connection.sent_ns) == bool(client.traffic.window_stalled_ns >= 10**8) == is_stall
    assert server.requests == 1
    assert client.send()[0] == 200
    assert server.connections == 2


def test_stream_is_sent_once_the_server_allows_it(place: Place) -> None:
    client, server = place.open(act=once(change({SettingCodes.MAX_CONCURRENT_STREAMS: 0})))
    client.send()
    later = gevent.spawn(client.send)
    gevent.sleep(0.02)
    assert not later.ready()
    server.send(change({SettingCodes.MAX_CONCURRENT_STREAMS: 1})(server.session, 0))
    assert later.get(timeout=20)[0] == 200
    assert server.connections == 1


def test_stream_that_was_not_processed_is_not_in_doubt(place: Place) -> None:
    client, server = place.open(act=once(b"", reset(ErrorCodes.REFUSED_STREAM), goaway(3, reason=b"drain")))
    client.send()
    assert client.fails() == ("connection-error", "the server reset the request: REFUSED_STREAM", False)
    message = "the server ended the connection before it processed the request: GOAWAY NO_ERROR drain"
    assert client.fails() == ("connection-error", message, False)
    assert client.send()[0] == 200
    assert (server.connections, client.traffic.connects) == (2, 2)


@pytest.mark.parametrize("case", [reset(ErrorCodes.REFUSED_STREAM), lambda *_: goaway(0)])
def test_request_that_was_not_processed_is_retried_though_bytes_were_sent(case: Any) -> None:
    wire = ProtocolOptions(keys={"path": "/i/_bulk"})
    bulk = ProtocolCase(wire, lambda body: lines(body)[1::2], lambda _: b"", options=LoadOptions(http_version="2"))
    with http2_server(act=once(case)) as server:
        server.keep_bodies = True
        sample, state = send_arrival(bulk, server.address, 5)
    assert (outcome(sample), sample.attempts, sample.documents_acked) == ("ok", 2, 10)
    assert state.documents_resent == 10
    assert len(set(server.bodies)) == 1


def test_stream_that_the_server_resets_is_in_doubt_and_the_connection_remains(place: Place) -> None:
    def reset_in_response(session: H2Connection, stream: int) -> None:
        start_response(session, stream, answer(b"x"))
        session.reset_stream(stream, ErrorCodes.INTERNAL_ERROR)

    client, server = place.open(act=once(reset(ErrorCodes.ENHANCE_YOUR_CALM), reset_in_response))
    assert client.fails() == ("connection-error", "the server reset the request: ENHANCE_YOUR_CALM", None)
    assert client.fails() == ("connection-error", "the server reset the request: INTERNAL_ERROR", None)
    assert client.connection.bytes_sent > len(BODY)
    assert client.send()[0] == 200
    assert (server.connections, server.requests) == (1, 1)


def test_accepted_request_is_answered_after_goaway(place: Place) -> None:
    client, server = place.open(act=once(goaway(2**31 - 1) + goaway(1)))
    assert client.send()[0] == 200
    assert not client.connection.is_open
    assert client.send()[0] == 200
    assert server.connections == 2


def test_reason_of_goaway_is_in_the_error_of_a_closed_connection(place: Place) -> None:
    frames = goaway(1, ErrorCodes.ENHANCE_YOUR_CALM, b"too_many_pings")
    client, _ = place.open(lambda _body, _number: None, act=once(frames))
    message = "the server closed the connection before it responded (GOAWAY ENHANCE_YOUR_CALM too_many_pings)"
    assert client.fails() == ("connection-error", message, None)
    assert client.fails()[1] == "the server closed the connection before it responded"


def test_connection_that_the_server_ends_while_idle_is_replaced(place: Place) -> None:
    client, server = place.open()
    client.send()
    server.send(goaway(1))
    wait_until(lambda: not client.connection.is_open)
    client.send()
    server.end_connections()
    client.send()
    assert (server.connections, client.traffic.connects) == (3, 3)


def test_ping_is_answered_while_the_client_is_idle(place: Place) -> None:
    client, server = place.open()
    client.send()
    before = client.traffic.bytes_written
    server.send(PingFrame(opaque_data=b"12345678").serialize())
    wait_until(lambda: server.bytes_read == before + 17)
    assert client.traffic.bytes_written == before + 17
    assert client.send()[0] == 200


def test_flood_of_pings_does_not_keep_the_event_loop(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    client, server = place.open()
    client.send()
    connection, reads = client.connection, 0
    receive = connection._read_once

    def send_ping() -> None:
        server.send(PingFrame(opaque_data=b"12345678").serialize())
        assert connection._poll_readable(20_000)

    def receive_and_provoke() -> bool:
        nonlocal reads
        reads += 1
        has_received = receive()
        if reads < 50:
            send_ping()
        return has_received

    monkeypatch.setattr(connection, "_read_once", receive_and_provoke)
    send_ping()
    connection.close_if_ended()
    assert 0 < reads < 50
    assert client.send()[0] == 200
    assert server.connections == 1


def test_settings_are_acknowledged_despite_a_goaway_behind_them(place: Place) -> None:
    settings = change({SettingCodes.INITIAL_WINDOW_SIZE: 100_000})
    client, server = place.open(act=once(b"", lambda *call: settings(*call) + goaway(2**31 - 1)))
    client.send()
    client.send()
    assert not client.connection.is_open
    wait_until(lambda: server.session.local_settings.initial_window_size == 100_000)


@pytest.mark.parametrize("is_reset", [False, True])
def test_early_rejection_is_a_response_and_the_connection_remains(place: Place, is_reset: bool) -> None:
    def reject(session: H2Connection, stream: int) -> bytes:
        session.send_headers(stream, [(":status", "413"), ("retry-after", "7")])
        session.send_data(stream, b"too large", end_stream=True)
        if is_reset:
            session.reset_stream(stream, ErrorCodes.NO_ERROR)
        return session.data_to_send()

    client, server = place.open(act_early=once(b"", reject))
    client.send()
    response = client.connection.exchange(b"", LARGE, LONG_NS)
    assert (response.status, response.body, response.retry_after_s) == (413, b"too large", 7)
    assert client.connection.written_ns == 0
    assert client.connection.bytes_sent < len(LARGE)
    assert client.send()[0] == client.send(LARGE)[0] == 200
    client.connection.close()
    wait_until(lambda: server.bytes_read == client.traffic.bytes_written)
    assert server.connections == 1


def test_success_before_the_end_of_the_request_is_invalid(place: Place) -> None:
    def accept(session: H2Connection, stream: int) -> bytes:
        session.send_headers(stream, [(":status", "200")], end_stream=True)
        return session.data_to_send()

    client, _ = place.open(act_early=once(accept))
    assert client.fails(LARGE)[:2] == ("invalid-response", "the server sent 200 before it had the whole request")


def test_interim_responses_and_trailers_do_not_change_the_response(place: Place) -> None:
    def send_interim(session: H2Connection, stream: int) -> bytes:
        session.send_headers(stream, [(":status", "103"), ("link", "x")])
        return session.data_to_send()

    def send_trailers(session: H2Connection, stream: int) -> None:
        session.send_headers(stream, [(":status", "200")])
        session.send_data(stream, b"stored")
        session.send_headers(stream, [("digest", "x")], end_stream=True)

    client, _ = place.open(act_early=once(send_interim), act=once(send_trailers))
    assert client.send(LARGE) == (200, b"stored")
    assert client.connection.written_ns < client.connection.first_byte_ns


@pytest.mark.parametrize(
    "frames",
    [
        b"\x00\x00\x05\x00\x01\x00\x00\x00\x01hello",  # DATA before HEADERS
        b"\x00\x00\x03\x01\x05\x00\x00\x00\x01abc",  # no :status
        b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\xff\xff\xff\xff",  # a window of 4 GiB
        b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\xff\xff",  # windows above 2 GiB
    ],
)
def test_invalid_frames_are_an_invalid_response(place: Place, frames: bytes) -> None:
    client, server = place.open(act=once(frames))
    kind, text, _ = client.fails()
    assert (kind, text.startswith("invalid HTTP/2: ")) == ("invalid-response", True)
    assert client.send()[0] == 200
    assert server.connections == 2


def test_server_of_http1_alone_is_named() -> None:
    # It replies to the first bytes of the preface.
    reply = answer(b"no", "400 Bad Request")
    with bulk_server(lambda _body, _number: reply, stop_reading_after_bytes=1) as server:
        client = Client(server.address)
        kind, text, _ = client.fails()
        client.close_deadlines()
    assert kind == "invalid-response"
    assert text.startswith("not HTTP/2: the response begins with b'HTTP/1.1 400 Bad Request")
    assert text.endswith('use load.http_version = "1.1".')
    with bulk_server(lambda _body, _number: None, stop_reading_after_bytes=1) as server:
        client = Client(server.address)
        _, text, _ = client.fails()
        client.close_deadlines()
    assert "(it sent no HTTP/2. Without TLS the server must accept" in text


def test_unreferenced_connection_is_freed_at_once_after_it_was_closed(place: Place) -> None:
    client, _ = place.open()
    client.send()
    client.connection.close()
    connection = weakref.ref(client.connection)
    gc.disable()
    try:
        del client.connection
        assert connection() is None
    finally:
        gc.enable()


@pytest.mark.processes
def test_http2_over_tls_requires_alpn(tmp_path: Path) -> None:
    certs = certificates.create_certificates(tmp_path)
    tls = Tls(name="localhost", ca_pem=certs.ca.read_text())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certs.server)
    with http2_server(tls=context) as server:
        client = Client(server.address, tls=tls)
        assert client.fails()[:2] == (
            "connection-error",
            'TLS: the server does not offer HTTP/2 (ALPN h2). Enable it there, or use load.http_version = "1.1".',
        )
        assert client.traffic.bytes_written == 0
        context.set_alpn_protocols(["h2"])
        for body in (BODY, LARGE, BODY, LARGE):
            assert client.send(body)[0] == 200
        client.connection.close()
        wait_until(lambda: server.bytes_read == client.traffic.bytes_written)
        assert client.traffic.window_stalls > 0
        client.close_deadlines()


def test_keys_of_http2_are_refused_where_they_have_no_effect() -> None:
    with pytest.raises(SpecError, match=r"load\.http_version: frames is not HTTP"):
        create_protocol(ProtocolOptions(protocol="frames"), "i", LoadOptions(http_version="2"))
    with pytest.raises(SpecError, match=r"require load\.http_version"):
        create_protocol(ProtocolOptions(keys={"path": "/"}), "i", LoadOptions(http2_stream_window_bytes=1))
