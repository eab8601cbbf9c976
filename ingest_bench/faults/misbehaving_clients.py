"""Clients that misbehave: `misbehaving_clients.py KIND HOST PORT CONNECTIONS`. Standard library only.

The program runs in the clients' namespace next to the load, until its standard input ends. It keeps CONNECTIONS
connections, replaces each that the server closes, and prints its counters at the end, as JSON.
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
_OTHER_DESCRIPTORS = 16
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
_HEAD = b"POST /_bulk HTTP/1.1\r\nHost: misbehaving\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n"
_BLOCK = bytes(1 << 16)
# Longer than any server waits: at a byte per turn it takes 28 hours.
_SLOW_BODY_BYTES = 10**6
# OpenSearch and Elasticsearch accept 100 MB (http.max_content_length), the sink 100 MiB.
_OVERSIZED_BYTES = 1 << 30
_PIPELINED_GETS = b"GET / HTTP/1.1\r\nHost: misbehaving\r\n\r\n" * 64
_GARBAGE_BYTES = 1024
# Closing by a reset leaves no port in TIME_WAIT: the load needs them.
_NO_LINGER = struct.pack("ii", 1, 0)
# asm-generic/socket.h; Python has no names for them. The filter is one instruction of classic BPF: return 0.
_ATTACH_FILTER, _DETACH_FILTER = 26, 27
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
# Distinguish these clients from the load at the server: the load's ports are 32768 and above.
OWN_PORTS = range(20_000, 32_000)
# The server forgets a handshake after 63 s (net.ipv4.tcp_synack_retries = 5: 1 + 2 + 4 + 8 + 16 + 32).
_HANDSHAKE_S = 30


@dataclass
class Counters:
    """Counters of all connections."""

    opened: int = 0
    refused: int = 0
    ended_by_server: int = 0
    closed_windows: int = 0
    """Maximum number at one time of connections with responses and a full receive buffer."""
    responses: Counter[str] = field(default_factory=Counter)


class Connection:
    """One connection of a kind of client. `take_turn` is called every 0.1 s."""

    # Of the socket; None: the kernel's default.
    receive_buffer_bytes: int | None = None
    connect_timeout_s = 2.0
    is_window_closed = False
    first = b""
    """Sent at the begin."""
    per_turn = b""

    def __init__(self, server: tuple[str, int], counters: Counters, generator: random.Random) -> None:
        self.counters = counters
        self.generator = generator
        self.socket = socket.socket()
        if self.receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer_bytes)
        try:
            self.connect(server)
        except OSError:
            self.socket.close()
            raise
        self.socket.setblocking(False)
        counters.opened += 1
        self.begin()

    def connect(self, server: tuple[str, int]) -> None:
        """Open the connection."""
        self.socket.settimeout(self.connect_timeout_s)
        self.socket.connect(server)

    def begin(self) -> None:
        """Send the first bytes."""
        self.send(self.first)

    def take_turn(self) -> None:
        """Act once; raise EOFError if the connection must be replaced."""
        self.send(self.per_turn)
        self.receive()

    def receive(self) -> None:
        """Read and count responses; raise EOFError if the server has closed the connection."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self.socket.recv(1 << 16)
                self.counters.responses.update(status.decode() for status in _STATUS.findall(data))
                if not data:
                    self.counters.ended_by_server += 1
                    raise EOFError

    def send(self, data: bytes) -> int:
        """Return how many of the bytes the kernel took."""
        try:
            return self.socket.send(data) if data else 0
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Close the connection by a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.socket.close()


class _SlowBody(Connection):
    """A request whose body is sent one byte at a time (slowloris, with a body)."""

    first = _HEAD % _SLOW_BODY_BYTES
    per_turn = b"{"


class _Garbage(Connection):
    """Bytes that are not a request of any protocol, on a new connection each turn."""

    def begin(self) -> None:
        self.send(self.generator.randbytes(_GARBAGE_BYTES))

    def take_turn(self) -> None:
        self.receive()
        raise EOFError


class _Flood(Connection):
    """A connection that is closed a turn later."""

    def take_turn(self) -> None:
        raise EOFError


class _Oversized(Connection):
    """A request above the limit of any server, sent until the server responds."""

    first = _HEAD % _OVERSIZED_BYTES

    def take_turn(self) -> None:
        responses_before = self.counters.responses.total()
        # At most 1 MiB of the body.
        for _ in range(16):
            if not self.send(_BLOCK):
                break
        self.receive()
        if self.counters.responses.total() > responses_before:
            raise EOFError


class _ZeroWindow(Connection):
    """Requests whose responses are not read: the window closes, and the server keeps what it cannot send.

    The window is closed if the buffer is half full and no more responses arrive. Closed windows had 4,096 to 5,700
    unread bytes (Linux 6.18, responses of 10 B to 64 KiB).
    """

    receive_buffer_bytes = 4096
    unread_bytes = 0

    def take_turn(self) -> None:
        self.send(_PIPELINED_GETS)
        before = self.unread_bytes
        (self.unread_bytes,) = struct.unpack("i", fcntl.ioctl(self.socket, termios.FIONREAD, bytes(4)))
        self.is_window_closed = self.unread_bytes == before >= self.receive_buffer_bytes // 2


def drop_incoming(connection: socket.socket) -> None:
    """Attach a filter that drops all incoming packets before TCP sees them."""
    program = ctypes.create_string_buffer(_DROP_ALL)
    connection.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


class _Vanished(Connection):
    """A client that has vanished: it answers no packet, not even by a reset."""

    ports = itertools.cycle(OWN_PORTS)

    def connect(self, server: tuple[str, int]) -> None:
        # From a port that the load does not use.
        for port in itertools.islice(self.ports, len(OWN_PORTS)):
            with contextlib.suppress(OSError):
                self.socket.bind(("", port))
                break
        else:
            raise OSError(errno.EADDRINUSE, "all ports outside of the load's range are in use")
        super().connect(server)

    def close(self) -> None:
        # The reset must reach the server.
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
        super().close()


class _HalfOpen(_Vanished):
    """A connection whose client has vanished: the server is not notified, and keeps it."""

    def begin(self) -> None:
        drop_incoming(self.socket)

    def take_turn(self) -> None:
        pass


class _SynFlood(_Vanished):
    """A handshake without its last segment: it stays in the server's queue of pending handshakes."""

    connect_timeout_s = 0.0

    def connect(self, server: tuple[str, int]) -> None:
        self.start_s = time.monotonic()
        drop_incoming(self.socket)
        with contextlib.suppress(BlockingIOError):
            super().connect(server)

    def take_turn(self) -> None:
        if time.monotonic() - self.start_s > _HANDSHAKE_S:
            raise EOFError


KINDS: dict[str, type[Connection]] = {
    "slow-bodies": _SlowBody,
    "garbage": _Garbage,
    "connection-flood": _Flood,
    "oversized": _Oversized,
    "zero-window": _ZeroWindow,
    "half-open": _HalfOpen,
    "syn-flood": _SynFlood,
}


def run(kind: type[Connection], server: tuple[str, int], count: int, counters: Counters) -> None:
    """Keep *count* connections until the standard input ends."""
    connections: list[Connection | None] = [None] * count
    generator = random.Random(1)  # noqa: S311 - not a secret
    while True:
        turn_start_s = time.monotonic()
        for number, connection in enumerate(connections):
            try:
                if connection is None:
                    connections[number] = kind(server, counters, generator)
                else:
                    connection.take_turn()
            except (OSError, EOFError) as error:
                if connection is None:
                    counters.refused += 1
                    continue
                counters.ended_by_server += isinstance(error, OSError)
                connection.close()
                connections[number] = None
            # Without this check, connecting to a dead server would take 2 s for each connection before the end.
            if _is_stdin_closed(0):
                break
        closed = sum(connection is not None and connection.is_window_closed for connection in connections)
        counters.closed_windows = max(counters.closed_windows, closed)
        if _is_stdin_closed(max(0.0, turn_start_s + _TURN_S - time.monotonic())):
            break
    for connection in connections:
        if connection is not None:
            connection.close()


def _is_stdin_closed(timeout_s: float) -> bool:
    """Return True if the standard input ends within *timeout_s*."""
    return bool(select.select([sys.stdin], [], [], timeout_s)[0])


def _raise_descriptor_limit(count: int) -> None:
    """Raise the soft limit of file descriptors, which is often 1024, for *count* connections."""
    wanted = count + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            sys.exit(f"{count} connections need {wanted} file descriptors, but the limit is {hard} (ulimit -Hn)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    """Run the program."""
    kind, host, port, count = sys.argv[1:]
    _raise_descriptor_limit(int(count))
    counters = Counters()
    run(KINDS[kind], (host, int(port)), int(count), counters)
    json.dump(vars(counters), sys.stdout)


if __name__ == "__main__":
    main()
