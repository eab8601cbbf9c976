"""The kernel's data about TCP connections, compared with a second instrument."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, suppress

from example_runs import wire_record
from pyroute2 import DiagSocket

from ingest_bench.network.measure import readings, tcp_info
from ingest_bench.network.measure.wire import TcpSnapshot, WireRecord

ESTABLISHED, INFO = 1 << 1, 1 << 1  # net/tcp_states.h; INET_DIAG_INFO


def list_with_pyroute2() -> dict[tuple[int, int], dict[str, int]]:
    """Return the `struct tcp_info` of each connection by its ports, with pyroute2's names."""
    with DiagSocket() as diag:
        diag.bind()
        families = (socket.AF_INET, socket.AF_INET6)
        rows = [row for family in families for row in diag.get_sock_stats(family, ESTABLISHED, extensions=INFO)]
    return {(row["idiag_sport"], row["idiag_dport"]): row.get_attr("INET_DIAG_INFO") for row in rows}


def list_by_ports() -> dict[tuple[int, int], tcp_info.Connection]:
    return {(row.local_port, row.remote_port): row for row in tcp_info.list_connections()}


def test_connections_agree_with_pyroute2() -> None:
    with ExitStack() as stack:
        # As in a JVM: an IPv6 socket with an IPv4 connection.
        listener = stack.enter_context(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True))
        client = stack.enter_context(socket.create_connection(("127.0.0.1", listener.getsockname()[1])))
        server = stack.enter_context(listener.accept()[0])
        client.sendall(b"x" * 100_000)
        while server.recv(1 << 20, socket.MSG_PEEK) == b"":
            pass
        ends = (client.getsockname()[1], server.getsockname()[1])
        ours: dict[tuple[int, int], tcp_info.Connection] = {}
        theirs: dict[tuple[int, int], dict[str, int]] = {}
        # An acknowledgement between the two reads changes the values.
        while not ours or any(ours[ports].rtt_us != list_by_ports()[ports].rtt_us for ports in (ends, ends[::-1])):
            ours, theirs = list_by_ports(), list_with_pyroute2()
    for ports in (ends, ends[::-1]):
        connection, info = ours[ports], theirs[ports]
        assert connection.remote_address == "127.0.0.1"
        assert connection.send_mss_bytes == info["tcpi_snd_mss"]
        assert connection.path_mtu_bytes == info["tcpi_pmtu"] > 1000
        assert connection.rtt_us == info["tcpi_rtt"] > 0
        assert connection.retransmits == info["tcpi_total_retrans"]
        assert connection.send_buffer_full_us == info["tcpi_sndbuf_limited"]
        assert connection.receiver_full_us == info["tcpi_rwnd_limited"]
        assert connection.busy_us == info["tcpi_busy_time"]
        assert connection.congestion_window_segments == info["tcpi_snd_cwnd"] > 0
        assert connection.peer_window_bytes > 0
        assert abs(connection.received_ms_ago - info["tcpi_last_data_recv"]) <= 1000
        assert abs(connection.sent_ms_ago - info["tcpi_last_data_sent"]) <= 1000


def test_receiver_that_does_not_read_fills_its_senders_window() -> None:
    snapshots: list[TcpSnapshot] = []
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        server, (_, port) = listener.accept()
        with server:
            client.setblocking(False)
            begin_ns = time.time_ns()
            while time.time_ns() - begin_ns < 1.2 * 10**9:
                with suppress(BlockingIOError):
                    client.send(bytes(1 << 20))
                connections = tuple(row for row in tcp_info.list_connections() if row.local_port == port)
                snapshots.append(TcpSnapshot(at_ns=time.time_ns(), connections=connections))
                time.sleep(0.1)
    records: dict[str, WireRecord | None] = {"to-client": wire_record(*snapshots), "to-server": None}
    causes = {cause.cause: cause.intervals for cause in readings.find_full_buffers(records, [port])}
    spans = causes["the server's receive window was full"]
    assert {span.port for span in spans} == {port}
    assert sum(span.end_ns - span.start_ns for span in spans) >= 0.5 * 10**9
    assert readings.find_full_buffers(records, [1])[0].intervals == ()
    assert not any("load's receive" in cause for cause in causes)
