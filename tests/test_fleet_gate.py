"""The port of a fleet while too many connections are there that show no key."""

from __future__ import annotations

import resource
import socket

import pytest
import unpatched_locust  # noqa: F401 - before Locust
from running import free_port

from ingest_bench.load.fleet.curve import ConnectionGate


def connects(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(0.02)
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_full_gate_takes_no_connection_until_half_of_them_are_settled() -> None:
    port = free_port()
    gate = ConnectionGate("127.0.0.1", port)
    most = min(500, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
    assert [gate.count_new(number) for number in range(most)] == [False] * (most - 1) + [True]
    assert not gate.count_new(most)
    assert not connects(port)
    for number in range(most // 2):
        gate.discard(number)
    assert not connects(port)
    gate.discard(most)
    assert connects(port)
    gate.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this kernel has no IPv6")
def test_gate_at_all_addresses_of_ipv6_takes_ipv4_too() -> None:
    port = free_port()
    gate = ConnectionGate("::", port)
    assert connects(port)
    gate.close()


def test_gate_without_ipv6_in_the_kernel_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with pytest.raises(OSError, match="Address family not supported"):
        ConnectionGate("::", free_port())


def test_connections_that_stand_are_heard_while_the_gate_is_shut() -> None:
    port = free_port()
    gate = ConnectionGate("127.0.0.1", port)
    with (
        socket.socket(fileno=gate.descriptor()) as listener,
        socket.create_connection(("127.0.0.1", port)) as client,
        listener.accept()[0] as served,
    ):
        assert any(gate.count_new(number) for number in range(500))
        client.sendall(b"x")
        assert served.recv(1) == b"x"
    gate.close()
