"""Server on loopback that speaks HTTP/2, and misbehaves on demand. Its replies are texts of HTTP/1.1."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, suppress

from bulk_server import BulkServer, Reply, accept_all, documents_in
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, SettingsAcknowledged, StreamEnded
from h2.settings import SettingCodes, Settings

Act = Callable[[H2Connection, int], bytes | None]
"""Called with the connection and the stream of each request. Returns frames to send; None: there is no reply."""


class Http2Server(BulkServer):
    """Replies once the client has acknowledged the settings: until then it may still send that."""

    def __init__(
        self,
        reply: Reply = accept_all,
        *,
        settings: Mapping[SettingCodes, int] | None = None,
        act: Act = lambda _session, _stream: b"",
        act_early: Act = lambda _session, _stream: b"",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.settings = dict(settings or {})
        self.act, self.act_early = act, act_early
        self.session: H2Connection
        """Of the newest connection."""
        super().__init__(reply, tls=tls)

    def serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ssl.SSLError), self._secured(connection) as secured:
            self._serve_session(secured)

    def _serve_session(self, connection: socket.socket) -> None:
        session = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        session.local_settings = Settings(client=False, initial_values=self.settings)
        session.max_inbound_frame_size = session.local_settings.max_frame_size
        self.session = session
        session.initiate_connection()
        connection.sendall(session.data_to_send())
        bodies: dict[int, bytes] = {}
        ended: list[int] = []
        unsent: dict[int, bytes] = {}
        is_acknowledged = False
        while data := self._read(connection):
            for event in session.receive_data(data):
                if isinstance(event, RequestReceived):
                    headers = dict(event.headers)
                    lines = b"".join(b"%s: %s\r\n" % header for header in event.headers)
                    with self.lock:
                        self.heads.append(b"%s %s HTTP/2\r\n%s" % (headers[b":method"], headers[b":path"], lines))
                    bodies[event.stream_id] = b""
                    connection.sendall(self.act_early(session, event.stream_id) or b"")
                elif isinstance(event, DataReceived) and event.stream_id in bodies:
                    bodies[event.stream_id] += event.data
                    session.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, StreamEnded):
                    ended.append(event.stream_id)
                elif isinstance(event, SettingsAcknowledged):
                    is_acknowledged = True
            while is_acknowledged and ended:
                stream = ended.pop(0)
                frames = self.act(session, stream)
                connection.sendall(session.data_to_send() + (frames or b""))
                if frames is not None and not self._reply(session, stream, bodies.pop(stream), unsent):
                    return
            for stream in list(unsent):
                unsent[stream] = send_body(session, stream, unsent[stream])
                if not unsent[stream]:
                    del unsent[stream]
            connection.sendall(session.data_to_send())

    def _reply(self, session: H2Connection, stream: int, body: bytes, unsent: dict[int, bytes]) -> bool:
        with self.lock:
            self.requests += 1
            number = self.requests
            self.documents += documents_in(body)
            if self.keep_bodies:
                self.bodies.append(body)
        reply = self.reply(body, number)
        if reply is None:
            return False
        unsent[stream] = start_response(session, stream, reply)
        return True


def start_response(session: H2Connection, stream: int, reply: bytes) -> bytes:
    """Send the head of a response, and return its body."""
    head, _, content = reply.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = [(":status", status.split(" ")[1])]
    headers += [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
    session.send_headers(stream, headers, end_stream=not content)
    return content


def send_body(session: H2Connection, stream: int, content: bytes) -> bytes:
    """Send as much of a body as the client's windows allow, and return the rest."""
    while content and (
        size := min(session.local_flow_control_window(stream), session.max_outbound_frame_size, len(content))
    ):
        session.send_data(stream, content[:size], end_stream=size == len(content))
        content = content[size:]
    return content


def http2_server(
    reply: Reply = accept_all,
    *,
    settings: Mapping[SettingCodes, int] | None = None,
    act: Act = lambda _session, _stream: b"",
    act_early: Act = lambda _session, _stream: b"",
    tls: ssl.SSLContext | None = None,
) -> AbstractContextManager[Http2Server]:
    return closing(Http2Server(reply, settings=settings, act=act, act_early=act_early, tls=tls))
