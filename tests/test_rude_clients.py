"""Clients that misbehave, as the program that they are, with a server of the test's own."""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.faults.clients import misbehaving, rude_clients

LONG_S = 60


@contextmanager
def program(
    kind: str, count: int, backlog: int, first: Sequence[str] = ()
) -> Iterator[tuple[socket.socket, system.Child]]:
    """The server's listener, and the clients."""
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as listener:
        listener.settimeout(LONG_S)
        argv = (
            *first,
            *system.script(rude_clients.__file__, kind, "127.0.0.1", str(listener.getsockname()[1]), str(count)),
        )
        with system.Child(argv, name="the clients") as child:
            yield listener, child


def test_clients_that_nobody_answers_end_all_the_same() -> None:
    # Who is not accepted fills the backlog; whoever comes then waits, as in a partition.
    with program("connection-flood", 40, 0) as (_, child):
        assert '"opened": ' in child.rest(misbehaving._END_LIMIT_S / 2)


def test_as_many_connections_as_were_asked_for_are_open_at_a_time() -> None:
    with program("slow-bodies", 100, 128, ("prlimit", "--nofile=40:1000")) as (listener, child):
        accepted = [listener.accept()[0] for _ in range(100)]
        assert "slow-bodies" not in misbehaving._ended("slow-bodies", child)
        for one in accepted:
            one.close()


def test_more_connections_than_this_process_may_open_are_an_error() -> None:
    with (
        program("slow-bodies", 100, 128, ("prlimit", "--nofile=40:60")) as (_, child),
        pytest.raises(RunFailed, match="100 connections need 116 file descriptors, and the limit is 60"),
    ):
        misbehaving._ended("slow-bodies", child)


def test_a_window_is_closed_by_answers_that_fill_it_and_not_by_a_server_that_stands_still() -> None:
    with program("zero-window", 2, 8) as (listener, child):
        still, filling = (listener.accept()[0] for _ in range(2))
        with still, filling:
            still.sendall(b"HTTP/1.1 2")
            filling.settimeout(1)
            with pytest.raises(TimeoutError):
                filling.sendall(bytes(100_000_000))
            said = misbehaving._ended("zero-window", child)
    assert said == "2 connections, 1 closed windows at a time"


def skip_without_filters() -> None:
    """The clients run in a namespace of theirs, where whoever made it may have a filter on a socket."""
    with socket.socket() as tried:
        try:
            rude_clients.refuse_all(tried)
        except PermissionError:
            pytest.skip("needs root, to have a filter on a socket: outside a namespace this kernel refuses it")


def eventually(found: Callable[[], object], wanted: object) -> None:
    until = time.monotonic() + LONG_S
    while found() != wanted:
        assert time.monotonic() < until
        time.sleep(0.01)


def asked_again(one: socket.socket) -> bool:
    """Whether what is sent now, or was before, has to be sent again: tcpi_retransmits of struct tcp_info."""
    one.sendall(b"x")
    return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 3)[2] > 0


def test_whoever_vanished_answers_nothing_until_the_fault_ends() -> None:
    skip_without_filters()
    with program("half-open", 2, 8) as (listener, child):
        accepted = [listener.accept() for _ in range(2)]
        assert all(port in rude_clients.OWN_PORTS for _, (_, port) in accepted)
        for one, _ in accepted:
            eventually(functools.partial(asked_again, one), True)
        assert misbehaving._ended("half-open", child) == "2 connections"
        for one, _ in accepted:
            with one, pytest.raises(ConnectionResetError):
                one.recv(1)


def under_way(port: int) -> int:
    """Handshakes at a listener of this machine, as the kernel's own table has them: state 03 is SYN_RECV."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "03" for row in rows)


def test_handshakes_that_nobody_ends_stand_at_the_server_and_are_gone_afterwards() -> None:
    skip_without_filters()
    with program("syn-flood", 20, 64) as (listener, child):
        port = listener.getsockname()[1]
        eventually(lambda: under_way(port), 20)
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.accept()
        assert misbehaving._ended("syn-flood", child) == "20 connections"
        # The next answer to the SYN finds nobody, and is told so.
        eventually(lambda: under_way(port), 0)
