"""What the kernel says of TCP connections, against a second instrument."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from pyroute2 import DiagSocket

from ingest_bench.network.measure import diag, waits, wire

ESTABLISHED, INFO = 1 << 1, 1 << 1  # net/tcp_states.h; of INET_DIAG_INFO


def by_pyroute2() -> dict[tuple[int, int], dict[str, int]]:
    """The `struct tcp_info` of each connection, by its ports, in the words of pyroute2."""
    with DiagSocket() as asked:
        asked.bind()
        families = (socket.AF_INET, socket.AF_INET6)
        found = [one for family in families for one in asked.get_sock_stats(family, ESTABLISHED, extensions=INFO)]
    return {(one["idiag_sport"], one["idiag_dport"]): one.get_attr("INET_DIAG_INFO") for one in found}


def by_diag() -> dict[tuple[int, int], diag.Connection]:
    return {(one.local_port, one.remote_port): one for one in diag.connections()}


def test_connections_are_what_pyroute2_says_of_them() -> None:
    with ExitStack() as stack:
        # As a JVM has it: a socket of IPv6 that speaks IPv4, too.
        both = stack.enter_context(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True))
        client = stack.enter_context(socket.create_connection(("127.0.0.1", both.getsockname()[1])))
        server = stack.enter_context(both.accept()[0])
        client.sendall(b"x" * 100_000)
        while server.recv(1 << 20, socket.MSG_PEEK) == b"":
            pass
        ends = (client.getsockname()[1], server.getsockname()[1])
        ours: dict[tuple[int, int], diag.Connection] = {}
        other: dict[tuple[int, int], dict[str, int]] = {}
        # An acknowledgement that comes in between changes them.
        while not ours or any(ours[ports].rtt_us != by_diag()[ports].rtt_us for ports in (ends, ends[::-1])):
            ours, other = by_diag(), by_pyroute2()
        for ports in (ends, ends[::-1]):
            one = ours[ports]
            info = other[ports]
            assert one.remote_address == "127.0.0.1"
            assert one.send_mss_bytes == info["tcpi_snd_mss"]
            assert one.announced_mss_bytes == info["tcpi_advmss"] > 1000
            assert one.path_mtu_bytes == info["tcpi_pmtu"] > 1000
            assert one.rtt_us == info["tcpi_rtt"] > 0
            assert one.retransmits == info["tcpi_total_retrans"]
            assert one.send_buffer_full_us == info["tcpi_sndbuf_limited"]
            assert one.receiver_full_us == info["tcpi_rwnd_limited"]
            assert 0 <= one.received_ms_ago - info["tcpi_last_data_recv"] + 1000 < 2000
            assert 0 <= one.sent_ms_ago - info["tcpi_last_data_sent"] + 1000 < 2000


def test_a_receiver_that_reads_nothing_is_a_full_window_of_its_sender(tmp_path: Path) -> None:
    """A real connection, whose ends are looked at as the watchers of a link do it."""
    looks: list[dict[str, object]] = []
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        server, (_, port) = listening.accept()
        with server:
            client.setblocking(False)
            begin_ns = time.time_ns()
            while time.time_ns() - begin_ns < 2 * 10**9:
                with suppress(BlockingIOError):
                    client.send(bytes(1 << 20))
                rows = [wire._row(one) for one in diag.connections() if one.local_port == port]
                looks.append({"at_ns": time.time_ns(), "connections": rows})
                time.sleep(0.25)
    end = {"frames": {}, "looked_at": 0, "lost": 0, "seconds": 2.0, "tcp": looks}
    (tmp_path / wire.WIRE).write_text(json.dumps({"to-client": end, "to-server": None}))
    causes = {one.cause: one.spans for one in waits.held_back(tmp_path, [port])}
    spans = causes["the server's receive window was full"]
    assert {span.port for span in spans} == {port}
    assert sum(span.end_ns - span.start_ns for span in spans) >= 10**9
    assert waits.held_back(tmp_path, [1])[0].spans == ()
    assert not any("load's receive" in cause for cause in causes)
