"""Faults of a link with real connections."""

from __future__ import annotations

import json
import re
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import classic_bpf
import pytest
from fault_lab import make_fault, make_links_stage
from scapy.layers.inet import ICMP, IP, TCP

from ingest_bench import system
from ingest_bench.experiment import catalog
from ingest_bench.faults import blackhole as holes
from ingest_bench.faults import forged_packets, timeline
from ingest_bench.faults.apply import override_profile
from ingest_bench.faults.blackhole import drop_packets, partition
from ingest_bench.faults.forging import reset_link
from ingest_bench.model.experiment import Fault
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act import uml
from ingest_bench.network.act.link import Link, open_link
from ingest_bench.network.classic_bpf import parse_tc_format
from ingest_bench.network.plan import link_plan

# Echoes, and prints how each connection ended.
ECHO = """
import socket, sys, threading
def serve(connection):
    try:
        while block := connection.recv(65536):
            connection.sendall(block)
        result = "closed"
    except OSError as error:
        result = type(error).__name__
    # One write: all threads write to one pipe.
    sys.stdout.write(result + chr(10))
    sys.stdout.flush()
listener = socket.create_server((sys.argv[1], 9))
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
# Carries out each JSON line, and prints the result.
CLIENT = """
import json, socket, sys, threading
connections, threads, results = {}, {}, {}
def receive(name, count):
    while count:
        block = connections[name].recv(count)
        if not block:
            raise EOFError
        count -= len(block)
def exchange(name):
    try:
        while True:
            connections[name].sendall(bytes(1 << 16))
            receive(name, 1 << 16)
    except (OSError, EOFError) as error:
        results[name] = type(error).__name__
for line in sys.stdin:
    operation, name, *arguments = json.loads(line)
    result = "ok"
    try:
        if operation == "open":
            connections[name] = socket.create_connection((sys.argv[1], 9), timeout=arguments[0])
        elif operation == "send":
            connections[name].sendall(b"x" * arguments[0])
        elif operation == "receive":
            connections[name].settimeout(arguments[1])
            receive(name, arguments[0])
        elif operation == "exchange":
            threads[name] = threading.Thread(target=exchange, args=(name,), daemon=True)
            threads[name].start()
        elif operation == "join":
            threads[name].join(arguments[0])
            result = results.get(name, "alive")
    except (OSError, EOFError) as error:
        result = type(error).__name__
    print(result, flush=True)
"""
# Time limits of transfers that must fail, and of those that must succeed.
SHORT_S, LONG_S = 0.4, 60


class Talk:
    """The client program at the other end of a link."""

    def __init__(self, client: system.Child, server: system.Child) -> None:
        self.client = client
        self.server = server

    def __call__(self, *operation: Any) -> str:
        return self.client.request(json.dumps(operation))

    def echo(self, name: str, count_bytes: int = 20_000, limit_s: float = LONG_S) -> str:
        """Send bytes and receive their echo; return the result."""
        result = self("send", name, count_bytes)
        return self("receive", name, count_bytes, limit_s) if result == "ok" else result


@contextmanager
def start_talk(link: Link) -> Iterator[Talk]:
    server_argv = link.server.command((sys.executable, "-c", ECHO, link.server_address))
    client_argv = link.client.command((sys.executable, "-c", CLIENT, link.server_address))
    with system.Child(server_argv, name="server") as server, system.Child(client_argv, name="client") as client:
        assert server.read_line() == "ready"
        yield Talk(client, server)


def read_filters(link: Link) -> str:
    outputs = [end.namespace.run(("tc", "qdisc", "show", "dev", end.device)) for end in link.ends]
    return "".join(line for text in outputs for line in text.splitlines(keepends=True) if "clsact" in line)


def make_profile(impairment: Impairment) -> Profile:
    return Profile(name="x", to_server=impairment, to_client=impairment)


@pytest.fixture(
    params=[
        pytest.param("loopback", marks=pytest.mark.netns),
        pytest.param("ethernet", marks=pytest.mark.netns),
        pytest.param("uml", marks=pytest.mark.netem),
    ]
)
def link(request: pytest.FixtureRequest) -> Iterator[Link]:
    """Yield a link of each kind."""
    if request.param == "uml":
        if uml.find_uml_problem():
            pytest.skip(uml.find_uml_problem())
        with open_link(make_profile(Impairment(delay_ns=10**6)), netem="uml") as opened:
            yield opened
    else:
        with open_link(catalog.load_profile(request.param)) as opened:
            yield opened


def directions(direction: Any) -> tuple[Any, ...]:
    return link_plan.DIRECTIONS if direction == "both" else (direction,)


@pytest.mark.parametrize("direction", ["both", "to-server", "to-client"])
@pytest.mark.parametrize("fault", ["partition", "blackhole", "mtu-blackhole"])
def test_data_are_delayed_until_the_end(link: Link, fault: str, direction: Any) -> None:
    with start_talk(link) as talk:
        assert talk("open", "old", LONG_S) == "ok"
        assert talk.echo("old") == "ok"
        with ExitStack() as stack:
            if fault == "partition":
                partition(stack, link, directions(direction))
                assert talk("open", "new", SHORT_S) == "TimeoutError"
            else:
                drop_packets(stack, link, directions(direction), 1000 if fault == "mtu-blackhole" else "data")
                # Handshakes and small packets pass.
                assert talk("open", "new", LONG_S) == "ok"
                if fault == "mtu-blackhole":
                    assert talk.echo("new", 900) == "ok"
                assert talk.echo("new", limit_s=SHORT_S) == "TimeoutError"
            assert talk.echo("old", limit_s=SHORT_S) == "TimeoutError"
        for name in ("old",) if fault == "partition" else ("old", "new"):
            assert talk("receive", name, 20_000, LONG_S) == "ok"
            assert talk.echo(name) == "ok"
        assert talk("open", "newer", LONG_S) == "ok"
    assert read_filters(link) == ""


def test_reset_ends_every_connection_except_new_ones(link: Link) -> None:
    waiting = ("idle", "used", "unused")
    with start_talk(link) as talk:
        for name in (*waiting, "busy"):
            assert talk("open", name, LONG_S) == "ok"
        assert talk.echo("used") == "ok"
        assert talk("exchange", "busy") == "ok"
        assert reset_link(link, {}) == 4
        assert [talk("receive", name, 1, LONG_S) for name in waiting] == ["ConnectionResetError"] * 3
        assert talk("join", "busy", LONG_S) == "ConnectionResetError"
        assert [talk.server.read_line() for _ in range(4)] == ["ConnectionResetError"] * 4
        assert talk("open", "new", LONG_S) == "ok"
        assert talk.echo("new") == "ok"


def test_overlapping_faults_leave_no_filters(link: Link) -> None:
    with start_talk(link) as talk:
        assert talk("open", "old", LONG_S) == "ok"
        with ExitStack() as outer:
            drop_packets(outer, link, ("to-server",), "data")
            with ExitStack() as inner:
                drop_packets(inner, link, ("to-client",), "data")
                partition(inner, link, ("to-server",))
                assert talk.echo("old", limit_s=SHORT_S) == "TimeoutError"
            assert talk("receive", "old", 20_000, SHORT_S) == "TimeoutError"
            assert "clsact" in read_filters(link)
        assert talk("receive", "old", 20_000, LONG_S) == "ok"
    assert read_filters(link) == ""


@pytest.mark.netem
def test_netem_profile_is_overridden_and_restored() -> None:
    if uml.find_uml_problem():
        pytest.skip(uml.find_uml_problem())
    plain, delayed = Profile(name="plain"), make_profile(Impairment(delay_ns=300 * 10**6))
    with open_link(plain, netem="uml", later_profiles=(delayed,)) as link, start_talk(link) as talk:
        assert talk("open", "a", LONG_S) == "ok"
        with override_profile(link, lambda _: delayed):
            assert talk.echo("a", limit_s=SHORT_S) == "TimeoutError"
        assert talk("receive", "a", 20_000, LONG_S) == "ok"


def frame(
    *, to: str = "198.18.2.1", data: bytes = b"", flags: int = 0x10, options: bytes = b"", ip_options: bytes = b""
) -> bytes:
    segment = struct.pack(">HHIIBBHHH", 4000, 9, 7, 1234, (20 + len(options)) // 4 << 4, flags, 0, 0, 0)
    segment += options + data
    addresses = socket.inet_aton("198.18.1.1") + socket.inet_aton(to)
    first = 0x40 | (20 + len(ip_options)) // 4
    length = 20 + len(ip_options) + len(segment)
    packet = struct.pack(">BBHHHBBH", first, 0, length, 0, 0, 64, 6, 0) + addresses + ip_options + segment
    return (bytes(12) + b"\x08\x00" + packet).ljust(60, b"\0")


ARP = bytes(12) + b"\x08\x06" + bytes(46)


@pytest.mark.parametrize("options", [b"", bytes(12)])
@pytest.mark.parametrize("ip_options", [b"", bytes(8)])
def test_blackhole_filter_drops_only_data_for_its_address(options: bytes, ip_options: bytes) -> None:
    headers: dict[str, Any] = {"options": options, "ip_options": ip_options}
    check_filter(
        "data",
        dropped=(frame(data=b"x", **headers), frame(data=bytes(1400), **headers)),
        passed=(frame(**headers), frame(flags=0x02, **headers), frame(to="198.18.1.1", data=b"x", **headers), ARP),
    )


def test_other_filters_drop_all_or_only_larger_packets_for_their_address() -> None:
    other = frame(to="198.18.1.1", data=bytes(1400))
    check_filter("all", dropped=(frame(), frame(data=b"x")), passed=(other, ARP))
    check_filter(1000, dropped=(frame(data=bytes(961)),), passed=(frame(data=bytes(960)), other, ARP))


def check_filter(dropped_packets: holes.Dropped, dropped: Sequence[bytes], passed: Sequence[bytes]) -> None:
    """Run the filter as the kernel does: TC_ACT_SHOT (2) keeps two bytes, TC_ACT_UNSPEC (-1) the whole frame."""
    program = parse_tc_format(holes.build_filter("198.18.2.1", dropped_packets))
    assert [classic_bpf.keep(program, packet) for packet in dropped] == [packet[:2] for packet in dropped]
    assert [classic_bpf.keep(program, packet) for packet in passed] == list(passed)


@pytest.mark.netns
def test_overlapping_mtu_blackholes_with_icmp_leave_nothing() -> None:
    faults = [Fault(kind="mtu-blackhole", at_ns=0, for_ns=1, icmp="sent", mtu_bytes=size) for size in (1200, 900)]
    with open_link(catalog.load_profile("ethernet")) as link, start_talk(link) as talk:
        stage = make_links_stage(link)
        assert talk("open", "a", LONG_S) == "ok"
        first, second = (timeline.begin_fault(fault, stage) for fault in faults)
        assert talk.echo("a", 200_000) == "ok"
        assert "pmtu:900" in link.client.run(("ss", "-Htin"))
        message = first.end()
        assert re.search(r"to-server: \d+ ICMP messages, 1 connections have a path MTU of at most 1200", message), (
            message
        )
        assert talk.echo("a", 200_000) == "ok"
        assert re.search(r"to-client: [1-9]\d* ICMP messages, 1 connections .* at most 900", second.end())
        assert talk.echo("a", 200_000) == "ok"
        assert "pmtu:1500" in link.client.run(("ss", "-Htin"))
        assert read_filters(link) == ""


@pytest.mark.netns
def test_without_ports_new_connections_fail_and_open_ones_stay() -> None:
    with open_link(catalog.load_profile("ethernet")) as link, start_talk(link) as talk:
        stage = make_links_stage(link)
        assert talk("open", "old", LONG_S) == "ok"
        first, second = (timeline.begin_fault(make_fault("exhausted-ports"), stage) for _ in range(2))
        first.end()
        assert talk("open", "new", LONG_S) == "OSError"
        assert talk.echo("old") == "ok"
        second.end()
        assert talk("open", "newer", LONG_S) == "ok"


def test_forged_packets_equal_those_of_scapy() -> None:
    packet = frame(data=bytes(1100), ip_options=bytes(4))[14:]
    message = forged_packets.forge_fragmentation_needed(packet, 1000)
    assert message == bytes(ICMP(type=3, code=4, nexthopmtu=1000) / packet[:32])
    for flags, number in ((forged_packets.SYN, 0), (forged_packets.RST, 0xFFFFFFFE)):
        segment = forged_packets.forge_segment("198.18.2.1", "198.18.1.1", (9, 4000), flags, number)
        expected = IP(src="198.18.2.1", dst="198.18.1.1") / TCP(sport=9, dport=4000, flags=flags, seq=number)
        # The kernel adds the checksum of the IP header.
        assert segment == bytes(expected)[:10] + bytes(2) + bytes(expected)[12:]


@pytest.mark.parametrize(
    ("segment", "number"),
    [
        (frame(), ((4000, 9), 1234)),
        (frame(data=b"x", options=bytes(12), ip_options=bytes(4)), ((4000, 9), 1234)),
        (frame(flags=0x14), None),
        (frame(flags=0x02), None),
        (frame()[:30], None),
        (b"", None),
        (bytes(60), None),
    ],
)
def test_expected_number_is_parsed(segment: bytes, number: object) -> None:
    assert forged_packets.parse_expected_number(segment, "198.18.1.1") == number
    # Segments of the other end have no such number.
    assert forged_packets.parse_expected_number(frame(), "198.18.2.1") is None
