"""Proxy process in front of a server: with TLS, required credentials, or a fixed response.

    python front.py PORT_OF_THE_SERVER [CERTIFICATE [CA_OF_CLIENTS]]        prints its port

FRONT_WANTS in its environment is the Authorization header that it requires; others get 401.
FRONT_SAYS is its response to every request instead of the server's.
FRONT_PREFIX is the path prefix of the server; other paths get 404.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BACKEND = int(sys.argv[1])
WANTS, SAYS = os.environ.get("FRONT_WANTS"), os.environ.get("FRONT_SAYS")
PREFIX = os.environ.get("FRONT_PREFIX", "")
LOCAL = threading.local()


class Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # The standard library writes head and body in two parts; the second one must not wait for an acknowledgement.
    disable_nagle_algorithm = True

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if WANTS is not None and self.headers.get("authorization") != WANTS:
            self.reply(401, b'{"error":"who are you?"}')
        elif SAYS is not None:
            self.reply(200, SAYS.encode())
        elif not self.path.startswith(f"{PREFIX}/"):
            self.reply(404, b"nothing here")
        else:
            self.reply(*self.forward(body))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815 - as the standard library calls them

    def forward(self, body: bytes) -> tuple[int, bytes]:
        if not hasattr(LOCAL, "backend"):
            LOCAL.backend = http.client.HTTPConnection("127.0.0.1", BACKEND)
        kept = {"content-type": self.headers["content-type"]} if "content-type" in self.headers else {}
        LOCAL.backend.request(self.command, self.path.removeprefix(PREFIX), body or None, kept)
        answer = LOCAL.backend.getresponse()
        return answer.status, answer.read()

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore clients that do not trust the certificate."""


server = Server(("127.0.0.1", 0), Front)
if len(sys.argv) > 2:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2])
    if len(sys.argv) > 3:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(sys.argv[3])
    # The handshake runs in the connection's own thread, so that one that hangs does not delay others.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
sys.stdout.write(f"{server.server_address[1]}\n")
sys.stdout.flush()
server.serve_forever()
