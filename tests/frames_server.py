"""Server on loopback that reads frames, and replies to a number of them at once."""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager, closing

from bulk_server import Reply
from thrift_server import FramedServer


class FramesServer(FramedServer):
    """The reply function gets `frames` of them as one request."""

    def __init__(self, reply: Reply, frames: int) -> None:
        self.frames = frames
        super().__init__(reply)

    def _serve_one(self, connection: socket.socket) -> bool:
        frames = []
        for _ in range(self.frames):
            frames.append(self._frame(connection))
            if not frames[-1]:
                return False
        return self._respond(connection, b"".join(frames))


def frames_server(reply: Reply, frames: int = 1) -> AbstractContextManager[FramesServer]:
    return closing(FramesServer(reply, frames))


def parse_frames(data: bytes) -> list[bytes]:
    """Return the documents of frames behind a length of four bytes."""
    documents, offset = [], 0
    while offset < len(data):
        start = offset + 4
        offset = start + int.from_bytes(data[offset:start])
        documents.append(data[start:offset])
    assert offset == len(data)
    return documents
