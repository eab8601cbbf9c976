"""Clients that misbehave: a program that runs in the clients' namespace beside the load, until its standard input ends.

    python rude_clients.py KIND HOST PORT CONNECTIONS

It keeps so many connections, opens a new one for each that the server closes, and says at its end what it saw, as JSON.
It imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import json
import random
import re
import resource
import select
import socket
import struct
import sys
import termios
import time
from collections import Counter
from dataclasses import dataclass, field

_TURN_S = 0.1
# Standard streams, and some to spare.
_OWN_FILES = 16
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
_HEAD = b"POST /_bulk HTTP/1.1\r\nHost: rude\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n"
_BLOCK = bytes(1 << 16)
# As long as no server waits for it: at a byte a turn it takes 28 hours.
_SLOW_BYTES = 10**6
# OpenSearch and Elasticsearch take 100 MB (http.max_content_length), the sink 100 MiB.
_OVERSIZED_BYTES = 1 << 30
_ASK = b"GET / HTTP/1.1\r\nHost: rude\r\n\r\n" * 64
_GARBAGE_BYTES = 1024
# A connection that is ended by a reset leaves no port in TIME_WAIT: the load needs them.
_NO_LINGER = struct.pack("ii", 1, 0)
# asm-generic/socket.h; Python has no name for them. The filter is one instruction of classic BPF: return 0.
_ATTACH_FILTER, _DETACH_FILTER = 26, 27
_NOTHING_COMES_IN = struct.pack("HBBI", 0x06, 0, 0, 0)
# Of whoever is to be told from the load at the server, by its port: the load's are 32768 and above.
OWN_PORTS = range(20_000, 32_000)
# The server forgets a handshake after 63 s (net.ipv4.tcp_synack_retries = 5: 1 + 2 + 4 + 8 + 16 + 32).
_HANDSHAKE_S = 30


@dataclass
class Seen:
    """What became of all connections."""

    opened: int = 0
    refused: int = 0
    ended_by_server: int = 0
    closed_windows: int = 0
    """The most at one time that had answers and no room for more."""
    answers: Counter[str] = field(default_factory=Counter)


class Connection:
    """One connection, as a kind of client treats it; `turn` is called each tenth of a second."""

    # Of the socket's receive buffer; None: the kernel's own.
    room_bytes: int | None = None
    wait_s = 2.0
    is_closed = False

    def __init__(self, place: tuple[str, int], seen: Seen, draw: random.Random) -> None:
        self.seen = seen
        self.draw = draw
        self.socket = socket.socket()
        if self.room_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.room_bytes)
        try:
            self.connect(place)
        except OSError:
            self.socket.close()
            raise
        self.socket.setblocking(False)
        seen.opened += 1
        self.begin()

    def connect(self, place: tuple[str, int]) -> None:
        """The connection itself."""
        self.socket.settimeout(self.wait_s)
        self.socket.connect(place)

    def begin(self) -> None:
        """What it sends first."""

    def turn(self) -> None:
        """What it does each turn; EOFError when it is to be opened anew."""
        self.hear()

    def hear(self) -> None:
        """Read what came, and count the answers; EOFError when the server has ended the connection."""
        with contextlib.suppress(BlockingIOError):
            while True:
                came = self.socket.recv(1 << 16)
                self.seen.answers.update(status.decode() for status in _STATUS.findall(came))
                if not came:
                    self.seen.ended_by_server += 1
                    raise EOFError

    def send(self, data: bytes) -> int:
        """How many of the bytes the kernel took."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """By a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.socket.close()


class SlowBody(Connection):
    """A request whose body comes a byte at a time (slowloris, with a body)."""

    def begin(self) -> None:
        """The head alone."""
        self.send(_HEAD % _SLOW_BYTES)

    def turn(self) -> None:
        """One byte."""
        self.send(b"{")
        self.hear()


class Garbage(Connection):
    """Bytes that are no request of any protocol, on a new connection each turn."""

    def begin(self) -> None:
        """All of them."""
        self.send(self.draw.randbytes(_GARBAGE_BYTES))

    def turn(self) -> None:
        """The next connection."""
        self.hear()
        raise EOFError


class Flood(Connection):
    """Opened, and ended a turn later."""

    def turn(self) -> None:
        """The next connection."""
        raise EOFError


class Oversized(Connection):
    """A request above the limit of any server, sent until the server says so."""

    def begin(self) -> None:
        """The head, which has the length."""
        self.send(_HEAD % _OVERSIZED_BYTES)

    def turn(self) -> None:
        """At most 1 MiB of the body."""
        before = sum(self.seen.answers.values())
        for _ in range(16):
            if not self.send(_BLOCK):
                break
        self.hear()
        if sum(self.seen.answers.values()) > before:
            raise EOFError


class ZeroWindow(Connection):
    """Requests whose answers nobody reads: the window closes, and the server keeps what it cannot send."""

    room_bytes = 4096
    held_bytes = 0

    def turn(self) -> None:
        """More requests. The window is closed when it was filled and no more of the answers come.

        It is of `room_bytes` at first; closed ones held 4,096 to 5,700 bytes (Linux 6.18, answers of 10 B to 64 KiB).
        """
        self.send(_ASK)
        before = self.held_bytes
        (self.held_bytes,) = struct.unpack("i", fcntl.ioctl(self.socket, termios.FIONREAD, bytes(4)))
        self.is_closed = self.held_bytes == before >= self.room_bytes // 2


def refuse_all(connection: socket.socket) -> None:
    """A filter takes all that comes to it, before TCP sees it."""
    program = ctypes.create_string_buffer(_NOTHING_COMES_IN)
    connection.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


class Vanished(Connection):
    """Whoever is at its end is gone without a word: nothing that comes is answered, not even by a reset."""

    ports = itertools.cycle(OWN_PORTS)

    def connect(self, place: tuple[str, int]) -> None:
        """From a port that is none of the load's."""
        for port in itertools.islice(self.ports, len(OWN_PORTS)):
            with contextlib.suppress(OSError):
                self.socket.bind(("", port))
                break
        else:
            raise OSError(errno.EADDRINUSE, "no port is left that is none of the load's")
        super().connect(place)

    def close(self) -> None:
        """By a reset, which the server hears."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
        super().close()


class HalfOpen(Vanished):
    """A connection whose client is gone: the server hears nothing of it, and holds it."""

    def begin(self) -> None:
        """It is gone at once."""
        refuse_all(self.socket)

    def turn(self) -> None:
        """Nothing."""


class SynFlood(Vanished):
    """A handshake without its last segment: it stands in the server's queue of those that are under way."""

    wait_s = 0.0

    def connect(self, place: tuple[str, int]) -> None:
        """The server's answer is not seen, so that nothing follows."""
        self.begun_s = time.monotonic()
        refuse_all(self.socket)
        with contextlib.suppress(BlockingIOError):
            super().connect(place)

    def turn(self) -> None:
        """Another one, before the server forgets it."""
        if time.monotonic() - self.begun_s > _HANDSHAKE_S:
            raise EOFError


KINDS: dict[str, type[Connection]] = {
    "slow-bodies": SlowBody,
    "garbage": Garbage,
    "connection-flood": Flood,
    "oversized": Oversized,
    "zero-window": ZeroWindow,
    "half-open": HalfOpen,
    "syn-flood": SynFlood,
}


def run(kind: type[Connection], place: tuple[str, int], count: int, seen: Seen) -> None:
    """Keep that many connections until the standard input ends."""
    connections: list[Connection | None] = [None] * count
    draw = random.Random(1)  # noqa: S311 - it is no secret
    while True:
        began = time.monotonic()
        for number, one in enumerate(connections):
            try:
                if one is None:
                    connections[number] = kind(place, seen, draw)
                else:
                    one.turn()
            except (OSError, EOFError) as error:
                if one is None:
                    seen.refused += 1
                    continue
                seen.ended_by_server += isinstance(error, OSError)
                one.close()
                connections[number] = None
            # To wait for each where nobody answers would take them all too long.
            if _is_over(0):
                break
        seen.closed_windows = max(seen.closed_windows, sum(one is not None and one.is_closed for one in connections))
        left_s = max(0.0, began + _TURN_S - time.monotonic())
        if _is_over(left_s):
            break
    for one in connections:
        if one is not None:
            one.close()


def _is_over(within_s: float) -> bool:
    """Whether the standard input has ended, or ends so soon."""
    return bool(select.select([sys.stdin], [], [], within_s)[0])


def _make_room(count: int) -> None:
    """As many file descriptors as so many connections need: 1024 are usual, and a process may ask for more."""
    wanted = count + _OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            sys.exit(f"{count} connections need {wanted} file descriptors, and the limit is {hard} (ulimit -Hn)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    """The program."""
    kind, host, port, count = sys.argv[1:]
    _make_room(int(count))
    seen = Seen()
    run(KINDS[kind], (host, int(port)), int(count), seen)
    json.dump(vars(seen), sys.stdout)


if __name__ == "__main__":
    main()
