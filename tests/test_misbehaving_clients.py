"""The program of misbehaving clients, with a server of the test."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from fault_lab import TIMEOUT_S, wait_until

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.faults import misbehaving, misbehaving_clients

pytestmark = pytest.mark.processes


@contextmanager
def start_clients(
    kind: str, count: int, backlog: int, prefix: Sequence[str] = ()
) -> Iterator[tuple[socket.socket, system.Child]]:
    """Yield the server's listener and the clients."""
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as listener:
        listener.settimeout(TIMEOUT_S)
        arguments = (kind, "127.0.0.1", str(listener.getsockname()[1]), str(count))
        argv = (*prefix, *system.build_script_argv(misbehaving_clients.__file__, *arguments))
        with system.Child(argv, name="the clients") as child:
            yield listener, child


def test_clients_exit_in_time_if_the_server_does_not_answer() -> None:
    # Connections that are not accepted fill the backlog; later ones wait, as in a partition.
    with start_clients("connection-flood", 40, 0) as (_, child):
        assert '"opened": ' in child.read_until_exit(misbehaving._END_TIMEOUT_S / 2)


def test_all_requested_connections_are_open_at_the_same_time() -> None:
    with start_clients("slow-bodies", 100, 128, ("prlimit", "--nofile=40:1000")) as (listener, child):
        accepted = [listener.accept()[0] for _ in range(100)]
        assert misbehaving._read_result("slow-bodies", child).startswith("100 connections")
        for connection in accepted:
            connection.close()


def test_more_connections_than_descriptors_are_an_error() -> None:
    with (
        start_clients("slow-bodies", 100, 128, ("prlimit", "--nofile=40:60")) as (_, child),
        pytest.raises(RunFailed, match="100 connections need 116 file descriptors, but the limit is 60"),
    ):
        misbehaving._read_result("slow-bodies", child)


def test_window_is_closed_by_unread_responses_but_not_by_a_silent_server() -> None:
    with start_clients("zero-window", 2, 8) as (listener, child):
        silent, sending = (listener.accept()[0] for _ in range(2))
        with silent, sending:
            silent.sendall(b"HTTP/1.1 2")
            sending.settimeout(1)
            with pytest.raises(TimeoutError):
                sending.sendall(bytes(100_000_000))
            effect = misbehaving._read_result("zero-window", child)
    assert effect == "2 connections, 1 closed windows at a time"


def skip_without_filters() -> None:
    """The clients run in a namespace of their own, whose creator may attach a filter to a socket."""
    with socket.socket() as probe:
        try:
            misbehaving_clients.drop_incoming(probe)
        except PermissionError:
            pytest.skip("needs root, to attach a filter to a socket outside of a namespace")


def test_vanished_client_answers_nothing_until_the_fault_ends() -> None:
    skip_without_filters()

    def has_retransmitted(connection: socket.socket) -> bool:
        # tcpi_retransmits of struct tcp_info.
        connection.sendall(b"x")
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 3)[2] > 0

    with start_clients("half-open", 2, 8) as (listener, child):
        accepted = [listener.accept() for _ in range(2)]
        assert all(port in misbehaving_clients.OWN_PORTS for _, (_, port) in accepted)
        wait_until(lambda: all(tuple(has_retransmitted(connection) for connection, _ in accepted)))
        assert misbehaving._read_result("half-open", child) == "2 connections"
        for connection, _ in accepted:
            with connection, pytest.raises(ConnectionResetError):
                connection.recv(1)


def test_pending_handshakes_stay_at_the_server_until_the_fault_ends() -> None:
    skip_without_filters()

    def count_pending(port: int) -> int:
        # The kernel's own table: state 03 is SYN_RECV.
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(f":{port:04X}") and row[3] == "03" for row in rows)

    with start_clients("syn-flood", 20, 64) as (listener, child):
        port = listener.getsockname()[1]
        wait_until(lambda: count_pending(port) == 20)
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.accept()
        assert misbehaving._read_result("syn-flood", child) == "20 connections"
        # The server's next answer gets a reset.
        wait_until(lambda: count_pending(port) == 0)
