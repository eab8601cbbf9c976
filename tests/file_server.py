"""An HTTP server on loopback that has one file, and serves it as well or as badly as a test wants."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Served:
    """What it has and how it answers; what it was asked."""

    data: bytes
    etag: str = '"one"'
    knows_ranges: bool = True
    breaks_after: list[int] = field(default_factory=list)
    """After so many bytes of the answer the connection ends: of the first answer, the second one, …"""
    statuses: list[int] = field(default_factory=list)
    """In place of the first answers."""
    redirect: str = ""
    says_length: bool = True
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    def ranges(self) -> list[str]:
        return [headers.get("Range", "") for headers in self.asked]


@contextlib.contextmanager
def file_server(served: Served) -> Iterator[Served]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(dict(self.headers.items()))
            if served.redirect:
                self.send_response(302)
                self.send_header("Location", served.redirect)
                self.end_headers()
            elif served.statuses:
                self.send_error(served.statuses.pop(0))
            else:
                self._answer()

        def _answer(self) -> None:
            first, whole = 0, len(served.data)
            span = self.headers.get("Range", "").removeprefix("bytes=").partition("-")[0]
            same = self.headers.get("If-Range", served.etag) == served.etag
            if span and served.knows_ranges and same:
                first = int(span)
                if first >= whole:
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{whole}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{whole - 1}/{whole}")
            else:
                self.send_response(200)
            if served.says_length:
                self.send_header("Content-Length", str(whole - first))
            self.send_header("ETag", served.etag)
            self.end_headers()
            most = served.breaks_after.pop(0) if served.breaks_after else whole
            self.wfile.write(served.data[first : first + most])
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}/corpora"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
