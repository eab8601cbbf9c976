"""HTTP server on loopback with one file and configurable failures."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Served:
    """The file, the failures, and the requests that were received."""

    data: bytes
    etag: str = '"one"'
    knows_ranges: bool = True
    breaks_after: list[int] = field(default_factory=list)
    """Bytes after which the connection ends, per response."""
    statuses: list[int] = field(default_factory=list)
    """Status codes of the first responses."""
    redirect: str = ""
    requests: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    def ranges(self) -> list[str]:
        return [headers.get("Range", "") for headers in self.requests]


@contextlib.contextmanager
def file_server(served: Served) -> Iterator[Served]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.requests.append(dict(self.headers.items()))
            if served.redirect:
                self.send_response(302)
                self.send_header("Location", served.redirect)
                self.end_headers()
            elif served.statuses:
                self.send_error(served.statuses.pop(0))
            else:
                self._answer()

        def _answer(self) -> None:
            first, size = 0, len(served.data)
            span = self.headers.get("Range", "").removeprefix("bytes=").partition("-")[0]
            same = self.headers.get("If-Range", served.etag) == served.etag
            if span and served.knows_ranges and same:
                first = int(span)
                if first >= size:
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{size}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(size - first))
            self.send_header("ETag", served.etag)
            self.end_headers()
            most = served.breaks_after.pop(0) if served.breaks_after else size
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
