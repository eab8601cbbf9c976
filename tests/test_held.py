"""What went over connections that a library holds, beside what the other end read."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingest_bench.protocols.held import LibraryConnections, _Connection
from ingest_bench.protocols.way import Traffic

PIECE = bytes(100)


@dataclass
class Listening:
    """A server, and what all connections to it did together."""

    sock: socket.socket
    traffic: Traffic

    def connection(self) -> tuple[socket.socket, socket.socket]:
        """Both ends of a new one."""
        made = socket.create_connection(self.sock.getsockname(), timeout=10)
        accepted, _ = self.sock.accept()
        accepted.settimeout(10)
        return made, accepted

    def held(self) -> LibraryConnections:
        return LibraryConnections([self.sock.getsockname()], self.traffic)


@pytest.fixture
def listening() -> Iterator[Listening]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.settimeout(10)
        yield Listening(sock, Traffic())


def rest(accepted: socket.socket) -> int:
    """So many bytes are read until the other end ends."""
    with accepted:
        return sum(map(len, iter(lambda: accepted.recv(2**20), b"")))


def stuffed(listening: Listening, held: LibraryConnections) -> tuple[socket.socket, socket.socket, int, int]:
    """Both ends of a connection that takes no more, how much it took, and how much of it was given to the network."""
    made, accepted = listening.connection()
    held.discover()
    made.setblocking(False)
    written = made.send(bytes(2**24))
    return made, accepted, written, held.count_sent_bytes()


def test_what_waits_in_this_machine_when_a_connection_closes_may_be_read_or_not(listening: Listening) -> None:
    held, traffic = listening.held(), listening.traffic
    made, accepted, written, before = stuffed(listening, held)
    assert before < written
    made.close()
    held.close()
    assert (traffic.bytes_written, traffic.bytes_unread) == (written, written - before)
    assert rest(accepted) == written


def test_what_goes_over_a_connection_after_its_library_closed_it_may_be_read_or_not(listening: Listening) -> None:
    held, traffic = listening.held(), listening.traffic
    made, accepted, written, before = stuffed(listening, held)
    made.close()
    # It gives up its connection, and goes on with another: the first one ends for the server, too.
    held.count_sent_bytes()
    assert rest(accepted) == written
    held.count_sent_bytes()
    assert (traffic.bytes_written, traffic.bytes_unread) == (written, written - before)
    held.close()
    assert (traffic.bytes_written, traffic.bytes_unread) == (written, written - before)


def test_a_connection_that_its_library_closed_is_not_taken_for_an_open_one(listening: Listening) -> None:
    held = listening.held()
    first, first_there = listening.connection()
    held.discover()
    assert held.reaches_all
    first.close()
    assert not held.reaches_all
    second, second_there = listening.connection()
    second.sendall(PIECE)
    with first_there, second_there, second:
        assert held.count_sent_bytes() == len(PIECE)
        assert held.local_port == second.getsockname()[1]
    held.close()


def test_a_connection_that_another_client_took_is_counted_once_and_to_its_end(listening: Listening) -> None:
    taker, owner = listening.held(), listening.held()
    made, accepted = listening.connection()
    others, others_there = listening.connection()
    taker.discover()
    for sock in (made, others):
        sock.sendall(PIECE)
    assert taker.count_sent_bytes() == 2 * len(PIECE)
    made.close()
    taker.close()
    others.sendall(PIECE)
    assert owner.count_sent_bytes() == len(PIECE)
    others.sendall(PIECE)
    others.close()
    owner.close()
    assert rest(accepted) + rest(others_there) == 4 * len(PIECE) == listening.traffic.bytes_written


def test_connections_that_broke_take_no_descriptors(listening: Listening) -> None:
    held = listening.held()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        made, accepted = listening.connection()
        held.discover()
        port = made.getsockname()[1]
        made.sendall(PIECE)
        accepted.recv(len(PIECE))
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
        made.close()
        assert held.count_sent_bytes() == len(PIECE)
        assert held.local_port == port
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert listening.traffic.bytes_written == 5 * len(PIECE)
    held.close()
    assert listening.traffic.bytes_written == 5 * len(PIECE)


def test_a_descriptor_that_another_connection_has_now_is_not_taken_under_its_old_name(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, real = listening.held(), os.dup
    made, made_there = listening.connection()
    newer, newer_there = listening.connection()

    def dup(theirs: int) -> int:
        # The library's own thread closes a connection and opens the next one meanwhile.
        if theirs == made.fileno() != -1:
            os.dup2(newer.fileno(), theirs)
        return real(theirs)

    monkeypatch.setattr(os, "dup", dup)
    held.discover()
    newer.sendall(PIECE)
    assert held.count_sent_bytes() == len(PIECE)
    newer.sendall(PIECE)
    made.close()
    newer.close()
    held.close()
    assert (listening.traffic.connects, listening.traffic.bytes_written) == (1, 2 * len(PIECE))
    assert (rest(made_there), rest(newer_there)) == (0, 2 * len(PIECE))


def test_what_the_library_writes_while_the_kernel_is_asked_is_not_taken_for_sent(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, real = listening.held(), _Connection._queued
    made, accepted = listening.connection()
    held.discover()
    made.setblocking(False)
    made.send(bytes(2**20))

    def queued(one: _Connection, which: int) -> int:
        found = real(one, which)
        # Its end reads nothing: it waits here.
        assert made.send(PIECE) == len(PIECE)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(_Connection, "_queued", queued)
        held.count_sent_bytes()
    (one,) = held._found.values()
    assert 0 < listening.traffic.bytes_written <= one.asked().given
    made.close()
    held.close()
    accepted.close()
