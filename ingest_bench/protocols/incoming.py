"""What a connection has to know of an answer, whatever the protocol: where it ends, and what it begins with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Protocol

from ingest_bench.protocols.verdict import BrokenResponseError

_BUFFER_BYTES = 64 * 1024


class Head(Protocol):
    """What the beginning of an answer says."""

    @property
    def status(self) -> int:
        """As HTTP has it (RFC 9110, 15), whatever the protocol."""

    @property
    def close(self) -> bool:
        """Whether the server takes nothing more on this connection."""

    @property
    def retry_after_s(self) -> int:
        """How long the server wants to be left alone; 0: it does not say it."""


class Incoming(Protocol):
    """An answer as it comes: bytes go into `room()`, and `came` and `closed` tell what they are.

    Once it `is_whole`, its body is `buffer[start:end]`. Each of the three raises BrokenAnswerError.
    """

    buffer: bytearray
    view: memoryview
    is_complete: bool
    start: int
    end: int
    filled: int

    @property
    def head(self) -> Head | None:
        """None: it has not come yet."""

    @property
    def same_bytes(self) -> int | None:
        """An answer as long as this one with as many bytes as its first ones means the same; None: nothing says so."""

    def reset(self) -> None:
        """Nothing has come of the next answer."""

    def free_space(self) -> memoryview:
        """Where the next bytes go."""

    def feed(self, size_bytes: int) -> None:
        """So many bytes more are in the room."""

    def feed_eof(self) -> None:
        """The server has closed: the answer is whole if that is how its body ends."""


class Said(NamedTuple):
    """What the answers to the calls of one request say together."""

    status: int
    words: bytes = b""
    close: bool = False
    retry_after_s: int = 0


class Frames(ABC):
    """The answers to some calls, each a frame that begins with its length, as they come (`Incoming`).

    Once they are whole, the body is what the server said where that is no success.
    """

    head_bytes: ClassVar[int]
    """How much of a frame has to be there before its length is known."""

    def __init__(self) -> None:
        self.greets = False
        """Whether a connection begins with what is asked: no later request has an answer like that one."""
        self.buffer = bytearray(_BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self.reset()

    @property
    @abstractmethod
    def awaited(self) -> int:
        """How many frames the answer has."""

    @abstractmethod
    def length(self, place: int) -> int:
        """Of the frame whose head is there in the buffer, the head included; BrokenAnswerError when it can be none."""

    @abstractmethod
    def said(self, frames: list[bytes]) -> Said:
        """What all of them say together; BrokenAnswerError for what is no answer to what was asked."""

    def reset(self) -> None:
        """Nothing has come of the next answer."""
        self.head: Said | None = None
        self.is_complete = False
        self.start = self.end = self.filled = 0

    @property
    def same_bytes(self) -> int | None:
        """All of it: an answer that says that all went well has no words."""
        return self.filled if self.head is not None and self.head.status == 200 and not self.greets else None

    def free_space(self) -> memoryview:
        """Where the next bytes go."""
        return self.view[self.filled :]

    def feed(self, size_bytes: int) -> None:
        """So many bytes more are in the room."""
        self.filled += size_bytes
        frames: list[bytes] = []
        place = 0
        while len(frames) < self.awaited and self.filled - place >= self.head_bytes:
            start, place = place, place + self.length(place)
            if place > self.filled:
                break
            frames.append(bytes(self.view[start:place]))
        if len(frames) < self.awaited:
            # Room for a byte too much, which has to be seen, and for so much that it is worth a read.
            self._make_room(max(place, self.filled) + 4096)
            return
        if self.filled > place:
            raise BrokenResponseError(f"{self.filled - place} bytes more than were asked for")
        self.head = self.said(frames)
        self.is_complete = True
        self._keep(self.head.words)

    def feed_eof(self) -> None:  # noqa: B027 - nothing is to be done
        """The server has closed: a frame has its length, so nothing is whole that was not before."""

    def _keep(self, words: bytes) -> None:
        """What was said in the place of what it was decoded from; of a success the bytes stay, to know the next one."""
        self.start = self.end = self.filled
        if words:
            self.start, self.end = 0, len(words)
            self._make_room(self.end)
            self.buffer[: self.end] = words

    def _make_room(self, size_bytes: int) -> None:
        if size_bytes > len(self.buffer):
            grown = bytearray(size_bytes)
            grown[: self.filled] = self.view[: self.filled]
            self.buffer, self.view = grown, memoryview(grown)
