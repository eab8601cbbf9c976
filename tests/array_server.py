"""Server that takes JSON arrays and counts their items; tests run it inside namespaces: ADDRESS PORT."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOCK = threading.Lock()
STORED: list[int] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two writes: Nagle's algorithm would delay the second one by 40 ms.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self.reply({"stored": sum(STORED)})

    def do_POST(self) -> None:
        count = len(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        with LOCK:
            STORED.append(count)
        self.reply({})

    def reply(self, content: dict[str, int]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


# More users than the default backlog of 5 connect at once.
ThreadingHTTPServer.request_queue_size = 64
server = ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler)
sys.stdout.write("ready\n")
sys.stdout.flush()
server.serve_forever()
