"""Byte counts of a library's connections, compared with the bytes that the peer read."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingest_bench.protocols.kafka import LibraryConnections, _LibraryConnection
from ingest_bench.protocols.upstream import Traffic

DATA = bytes(100)


@dataclass
class Server:
    """A server, and the traffic counters of the connections to it."""

    sock: socket.socket
    traffic: Traffic

    def connection(self) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a new connection."""
        client = socket.create_connection(self.sock.getsockname(), timeout=10)
        accepted, _ = self.sock.accept()
        accepted.settimeout(10)
        return client, accepted

    def connections(self) -> LibraryConnections:
        return LibraryConnections([self.sock.getsockname()], self.traffic)


@pytest.fixture
def server() -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.settimeout(10)
        yield Server(sock, Traffic())


def read_until_eof(accepted: socket.socket) -> int:
    """Return how many bytes are read until the peer closes."""
    with accepted:
        return sum(map(len, iter(lambda: accepted.recv(2**20), b"")))


def fill_connection(server: Server, connections: LibraryConnections) -> tuple[socket.socket, socket.socket, int, int]:
    """Return both ends of a full connection, the written bytes and those passed to the network."""
    sock, accepted = server.connection()
    connections.discover()
    sock.setblocking(False)
    written = sock.send(bytes(2**24))
    return sock, accepted, written, connections.count_sent_bytes()


def test_unsent_bytes_of_a_closed_connection_may_be_unread(server: Server) -> None:
    connections, traffic = server.connections(), server.traffic
    sock, accepted, written, sent_before = fill_connection(server, connections)
    assert sent_before < written
    sock.close()
    connections.close()
    assert (traffic.bytes_written, traffic.bytes_unread) == (written, written - sent_before)
    assert read_until_eof(accepted) == written


def test_bytes_sent_after_the_library_closed_may_be_unread(server: Server) -> None:
    connections, traffic = server.connections(), server.traffic
    sock, accepted, written, sent_before = fill_connection(server, connections)
    sock.close()
    # The library replaces its connection: the first one must end for the server, too.
    connections.count_sent_bytes()
    assert read_until_eof(accepted) == written
    connections.count_sent_bytes()
    assert (traffic.bytes_written, traffic.bytes_unread) == (written, written - sent_before)
    connections.close()
    assert (traffic.bytes_written, traffic.bytes_unread) == (written, written - sent_before)


def test_connection_that_its_library_closed_is_not_open(server: Server) -> None:
    connections = server.connections()
    first, first_accepted = server.connection()
    connections.discover()
    assert connections.reaches_all
    first.close()
    assert not connections.reaches_all
    second, second_accepted = server.connection()
    second.sendall(DATA)
    with first_accepted, second_accepted, second:
        assert connections.count_sent_bytes() == len(DATA)
        assert connections.local_port == second.getsockname()[1]
    connections.close()


def test_connection_taken_by_another_client_is_counted_once(server: Server) -> None:
    taker, owner = server.connections(), server.connections()
    sock, accepted = server.connection()
    other, other_accepted = server.connection()
    taker.discover()
    for client in (sock, other):
        client.sendall(DATA)
    assert taker.count_sent_bytes() == 2 * len(DATA)
    sock.close()
    taker.close()
    other.sendall(DATA)
    assert owner.count_sent_bytes() == len(DATA)
    other.sendall(DATA)
    other.close()
    owner.close()
    assert read_until_eof(accepted) + read_until_eof(other_accepted) == 4 * len(DATA) == server.traffic.bytes_written


def test_broken_connections_leak_no_descriptors(server: Server) -> None:
    connections = server.connections()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        sock, accepted = server.connection()
        connections.discover()
        port = sock.getsockname()[1]
        sock.sendall(DATA)
        accepted.recv(len(DATA))
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
        sock.close()
        assert connections.count_sent_bytes() == len(DATA)
        assert connections.local_port == port
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert server.traffic.bytes_written == 5 * len(DATA)
    connections.close()
    assert server.traffic.bytes_written == 5 * len(DATA)


def test_reused_descriptor_is_not_taken_under_its_old_name(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    connections, real = server.connections(), os.dup
    sock, accepted = server.connection()
    newer, newer_accepted = server.connection()

    def dup(descriptor: int) -> int:
        # The library's thread closes a connection and opens the next one meanwhile.
        if descriptor == sock.fileno() != -1:
            os.dup2(newer.fileno(), descriptor)
        return real(descriptor)

    monkeypatch.setattr(os, "dup", dup)
    connections.discover()
    newer.sendall(DATA)
    assert connections.count_sent_bytes() == len(DATA)
    newer.sendall(DATA)
    sock.close()
    newer.close()
    connections.close()
    assert (server.traffic.connects, server.traffic.bytes_written) == (1, 2 * len(DATA))
    assert (read_until_eof(accepted), read_until_eof(newer_accepted)) == (0, 2 * len(DATA))


def test_bytes_written_while_the_state_is_read_do_not_count_as_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections, real = server.connections(), _LibraryConnection._read_queue
    sock, accepted = server.connection()
    connections.discover()
    sock.setblocking(False)
    sock.send(bytes(2**20))

    def queued(connection: _LibraryConnection, request: int) -> int:
        size = real(connection, request)
        # The peer reads nothing, so it remains unsent.
        assert sock.send(DATA) == len(DATA)
        return size

    with monkeypatch.context() as patch:
        patch.setattr(_LibraryConnection, "_read_queue", queued)
        connections.count_sent_bytes()
    (connection,) = connections._connections.values()
    assert 0 < server.traffic.bytes_written <= connection.read_state().sent_bytes
    sock.close()
    connections.close()
    accepted.close()
