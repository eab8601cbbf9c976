"""HTTP/2 by `h2`: requests are streams of one connection, one at a time. Without TLS by prior knowledge, else by ALPN.

A sender waits when it has used up the server's window of the stream or of the connection: `Traffic` counts these waits.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection, H2ConnectionStateMachine
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import H2Error, ProtocolError
from h2.settings import SettingCodes, Settings
from hpack import NeverIndexedHeaderTuple

from ingest_bench.protocols.connection import READ, Connection
from ingest_bench.protocols.http1 import RESPONSE_LIMIT_BYTES
from ingest_bench.protocols.response import ConnectionBrokenError, InvalidResponseError, ResponseHead, ResponseReader
from ingest_bench.protocols.tls import TlsConnection, TlsSocket

if TYPE_CHECKING:
    import _socket

    from ingest_bench.model.load import Http2Windows
    from ingest_bench.protocols.response import Response
    from ingest_bench.protocols.upstream import Address, Upstream

    Headers = tuple[tuple[bytes, bytes], ...]

# Headers are built in order and in lower case, so that h2 need not do it for each request.
_CONFIG = H2Configuration(header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False)
# RFC 9113, 6.9.2: the window of a connection before its first WINDOW_UPDATE.
_INITIAL_WINDOW_BYTES = 65_535
# More than a TLS record, so that none remains in OpenSSL.
_RECEIVE_BYTES = 64 * 1024
# Passed to the kernel at once.
_SEND_BYTES = 256 * 1024
# In a row: a server that floods us with frames must not stop the event loop, and with it all timeouts.
_READS = 8
_DATA = bytes((0, 0))  # RFC 9113, 6.1: type and flags of a frame of a body that is not the last one
_SETTINGS = 4  # RFC 9113, 6.5: the type of the first frame of a server
_NO_HTTP2 = (
    'Without TLS the server must accept HTTP/2 by prior knowledge (h2c); otherwise use load.http_version = "1.1".'
)
_NO_ALPN = 'TLS: the server does not offer HTTP/2 (ALPN h2). Enable it there, or use load.http_version = "1.1".'


def build_request_headers(path: str, address: Address, headers: Mapping[str, str], method: str) -> Headers:
    """Return the headers of each request, except content-length."""
    scheme = "http" if address.tls_context is None else "https"
    pseudo = {":method": method, ":scheme": scheme, ":authority": address.name, ":path": path}
    return tuple((name.lower().encode(), value.encode()) for name, value in (pseudo | dict(headers)).items())


class _StateMachine(H2ConnectionStateMachine):
    """Without the rule that GOAWAY ends everything: streams that the server has accepted go on (RFC 9113, 6.8)."""

    def process_input(self, input_: ConnectionInputs) -> list[Event]:
        return [] if input_ is ConnectionInputs.RECV_GOAWAY else super().process_input(input_)


class _Session(H2Connection):
    def clear_outbound_data_buffer(self) -> None:
        """Do nothing after GOAWAY: a server waits for the acknowledgement of its earlier settings and pings."""


class StreamReader(ResponseReader):
    """Reader of frames: of the connection, and of the response on the newest stream."""

    def __init__(self, windows: Http2Windows) -> None:
        self._windows = windows
        self._received = memoryview(bytearray(_RECEIVE_BYTES))
        super().__init__(0)
        self.open_session()

    comparable_bytes = None

    def reset(self) -> None:
        """Start with the next response."""
        super().reset()
        self.buffer = bytearray()
        self.failure: ConnectionBrokenError | None = None
        """Why there will be no response on the stream."""

    def open_session(self) -> None:
        """Start a connection."""
        self.stream_id = 0
        self.end_reason = ""
        """Reason of the server to accept no more requests on it."""
        self.is_confirmed = False
        """True: the server has sent frames."""
        self.session = session = _Session(_CONFIG)
        session.state_machine = _StateMachine()
        settings = {
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.INITIAL_WINDOW_SIZE: self._windows.stream_bytes,
            SettingCodes.MAX_HEADER_LIST_SIZE: session.DEFAULT_MAX_HEADER_LIST_SIZE,
        }
        session.local_settings = Settings(initial_values=settings)
        session.initiate_connection()
        if more_bytes := self._windows.connection_bytes - _INITIAL_WINDOW_BYTES:
            session.increment_flow_control_window(more_bytes)

    def open_stream(self, headers: Headers, body_bytes: int) -> None:
        """Start a request."""
        # Indexed, the lengths would drive the other headers out of the table.
        length = NeverIndexedHeaderTuple(b"content-length", b"%d" % body_bytes)
        self.stream_id = self.session.get_next_available_stream_id()
        self.session.send_headers(self.stream_id, (*headers, length))

    @property
    def window_bytes(self) -> int:
        """Bytes of the request that the server accepts now; 0 or less: none."""
        return self.session.local_flow_control_window(self.stream_id)

    def free_space(self) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._received

    def feed(self, size_bytes: int) -> None:
        """Parse more received bytes."""
        received = self._received[:size_bytes]
        if not self.is_confirmed and received[3:4] != bytes((_SETTINGS,)):
            raise InvalidResponseError(f"not HTTP/2: the response begins with {bytes(received[:40])!r}. {_NO_HTTP2}")
        self.is_confirmed = True
        try:
            events = self.session.receive_data(received)
        except H2Error as error:
            raise InvalidResponseError(f"invalid HTTP/2: {type(error).__name__}: {error}") from None
        for event in events:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        if isinstance(event, ConnectionTerminated):
            text = (event.additional_data or b"")[:100].decode("utf-8", "replace")
            self.end_reason = f"GOAWAY {_error_name(event.error_code)} {text}".strip()
            if (event.last_stream_id or 0) < self.stream_id and not self.is_complete:
                # It guarantees that it has not processed the stream.
                message = f"the server ended the connection before it processed the request: {self.end_reason}"
                self.failure = ConnectionBrokenError("connection-error", message, may_be_stored=False)
        elif getattr(event, "stream_id", 0) != self.stream_id:
            return
        elif isinstance(event, ResponseReceived):
            headers = dict(event.headers)
            status, retry_after = headers[b":status"], headers.get(b"retry-after", b"")[:9]
            if not re.fullmatch(b"[2-5][0-9]{2}", status):
                raise InvalidResponseError(f"invalid HTTP/2: the status is {status[:40]!r}")
            self.head = ResponseHead(int(status), retry_after_s=int(retry_after) if retry_after.isdigit() else 0)
        elif isinstance(event, DataReceived):
            self.buffer += event.data or b""
            self.end = len(self.buffer)
            if self.end > RESPONSE_LIMIT_BYTES:
                raise InvalidResponseError(f"the response is larger than the limit of {RESPONSE_LIMIT_BYTES} bytes")
            self.session.acknowledge_received_data(event.flow_controlled_length or 0, self.stream_id)
        elif isinstance(event, StreamEnded):
            self.is_complete = True
        elif isinstance(event, StreamReset) and not self.is_complete:
            is_refused = event.error_code == ErrorCodes.REFUSED_STREAM
            self.failure = ConnectionBrokenError(
                "connection-error",
                f"the server reset the request: {_error_name(event.error_code)}",
                may_be_stored=False if is_refused else None,
            )


def _error_name(code: Any) -> str:
    return str(getattr(code, "name", code))


class Http2Connection(Connection):
    """A connection whose `exchange` sends a request as a stream."""

    _reader: StreamReader
    headers: Headers = ()
    """Of each request, except content-length."""

    def __init__(self, upstream: Upstream, reader: StreamReader) -> None:
        super().__init__(upstream, reader)
        self._pending = memoryview(b"")
        """Frames that the kernel has not accepted yet."""

    def exchange(self, head: bytes, body: bytes | bytearray, timeout_ns: int) -> Response:
        """Return the response to one request with `headers`; ConnectionBrokenError without one."""
        del head
        reader = self._reader
        reader.reset()
        self.deadline_ns = time.monotonic_ns() + timeout_ns
        self.bytes_sent = self.first_byte_ns = self.sent_ns = self.written_ns = 0
        try:
            if self._sock is None:
                self.local_port = 0
                self._pending = memoryview(b"")
                self._sock = self._connect()
                reader.open_session()
            else:
                self._readable.stop()
            self._wait_for_stream()
            reader.open_stream(self.headers, len(body))
            self.sent_ns = time.monotonic_ns()
            self._send_body(memoryview(body))
            while not reader.is_complete:
                self._step()
            response = self._receive()
            self._traffic.stream_window_bytes = reader.session.remote_settings.initial_window_size
            if not self.written_ns:
                self._stop_sending(response)
            return response
        finally:
            self._finish_exchange()
            if not self._closes():
                # PING and SETTINGS are acknowledged between requests, too.
                self._readable.start(self.close_if_ended)

    def close_if_ended(self) -> None:
        """Handle frames since the last response, and close a connection that the server has ended."""
        with contextlib.suppress(ConnectionBrokenError):
            if self._sock is not None:
                self._receive_available()
        self._closes()

    def _closes(self) -> bool:
        """Close the connection if the server accepts no more requests on it; return True if it is closed."""
        if self._sock is not None and self._reader.end_reason:
            self.close()
        return self._sock is None

    def _wait_for_stream(self) -> None:
        """Wait until the server allows a stream: it may allow none for a while."""
        reader = self._reader
        while reader.session.remote_settings.max_concurrent_streams < 1:
            self._step()
            if reader.end_reason:
                message = f"the server accepted no request: {reader.end_reason}"
                raise ConnectionBrokenError("connection-error", message, may_be_stored=False)

    def _send_body(self, body: memoryview) -> None:
        """Send the request as the server's windows allow; return early if the response is complete."""
        reader = self._reader
        end = self._make_frames(body, 0)
        while not reader.is_complete:
            if not self._flush():
                if self._wait_for_either() & READ:
                    self._read_once()
            elif end < len(body):
                self._receive_available()
                if not reader.is_complete and reader.window_bytes <= 0:
                    self._wait_for_window()
                if not reader.is_complete:
                    end = self._make_frames(body, end)
            elif not reader.is_complete:
                self.written_ns = time.monotonic_ns()
                return

    def _make_frames(self, body: memoryview, start: int) -> int:
        """Make frames of the next part of a body, as large as the server's windows allow, and return its end."""
        session, stream_id = self._reader.session, self._reader.stream_id
        self._collect()
        end = min(len(body), start + min(self._reader.window_bytes, _SEND_BYTES))
        if end <= start:
            return start
        # Frames of the largest size are made here: 0.2 ms of CPU per MB. `send_data` needs 2 ms.
        size = session.max_outbound_frame_size
        head = size.to_bytes(3, "big") + _DATA + stream_id.to_bytes(4, "big")
        offsets = range(start, end - size, size)
        for windows in (session, session.streams[stream_id]):
            windows.outbound_flow_control_window -= size * len(offsets)
        start += size * len(offsets)
        session.send_data(stream_id, body[start:end], end_stream=end == len(body))
        self._collect(*(part for offset in offsets for part in (head, body[offset : offset + size])))
        return end

    def _wait_for_window(self) -> None:
        """Wait until the server's windows allow to send, or the response is complete, and count this."""
        reader, begin_ns = self._reader, time.monotonic_ns()
        try:
            while reader.window_bytes <= 0 and not reader.is_complete:
                self._step()
        finally:
            self._traffic.window_stalls += 1
            self._traffic.window_stalled_ns += time.monotonic_ns() - begin_ns

    def _stop_sending(self, response: Response) -> None:
        """Give up the stream after a response that came before the whole request was sent."""
        if response.status < 400:
            raise self._invalid(f"the server sent {response.status} before it had the whole request")
        # The server may have reset it.
        with contextlib.suppress(ProtocolError):
            self._reader.session.reset_stream(self._reader.stream_id, ErrorCodes.CANCEL)
        self._collect()
        self._flush()

    def _step(self) -> None:
        """Send pending frames, and wait until the socket takes more of them or has received some."""
        if self._flush():
            self._wait(self._readable)
        elif not self._wait_for_either() & READ:
            return
        self._read_once()

    def _receive_available(self) -> None:
        """Handle the frames that are there, such as WINDOW_UPDATE."""
        for _ in range(_READS):
            if not (self._poll_readable(0) and self._read_once()):
                return

    def _feed(self, size_bytes: int) -> None:
        reader = self._reader
        super()._feed(size_bytes)
        if not size_bytes:
            reader.end_reason = reader.end_reason or "closed"
            return
        self._collect()
        self._flush()
        failure, reader.failure = reader.failure, None
        if failure is not None:
            raise failure

    def _collect(self, *frames: bytes | memoryview) -> None:
        """Append these frames, and then those of h2, to the pending ones."""
        last_frames = self._reader.session.data_to_send()
        if frames or last_frames:
            self._pending = memoryview(b"".join((self._pending, *frames, last_frames)))

    def _flush(self) -> bool:
        """Pass pending frames to the kernel; return True if it accepted all, or if the response is complete anyway."""
        sock, reader = self._sock, self._reader
        while self._pending:
            assert sock is not None  # noqa: S101 - the callers have checked it
            try:
                sent_bytes = sock.send(self._pending)
            except BlockingIOError:
                return False
            except OSError as error:
                self._pending = memoryview(b"")
                with contextlib.suppress(OSError):
                    # A response, or the reason, may be there.
                    while received := sock.recv_into(reader.free_space()):
                        super()._feed(received)
                reader.end_reason = reader.end_reason or "closed"
                if reader.is_complete:
                    return True
                raise reader.failure or self._broken(f"{error.strerror} {self._progress}") from None
            self.bytes_sent += sent_bytes
            self._traffic.bytes_written += sent_bytes
            self._pending = self._pending[sent_bytes:]
        return True

    @property
    def _progress(self) -> str:
        reason = self._reader.end_reason if self._reader.is_confirmed else f"it sent no HTTP/2. {_NO_HTTP2}"
        return f"{super()._progress} ({reason})" if reason else super()._progress


class Http2TlsConnection(Http2Connection, TlsConnection):
    """The same over TLS."""

    def _connect(self) -> _socket.socket:
        try:
            sock = super()._connect()
        except ConnectionBrokenError as error:
            if "NO_APPLICATION_PROTOCOL" not in str(error):
                raise
            raise self._broken(_NO_ALPN) from None
        if cast("TlsSocket", sock).tls.selected_alpn_protocol() != "h2":
            raise self._broken(_NO_ALPN)
        return sock
