"""Faults of a link with real connections; the last test repeats them as an ordinary user."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import classic_bpf
import ordinary_user
import pytest
from readied import ready
from scapy.layers.inet import ICMP

from ingest_bench.experiment import catalog
from ingest_bench.faults import blackhole as holes
from ingest_bench.faults import forged_packets, forgers, timeline
from ingest_bench.faults.apply import override_profile
from ingest_bench.faults.blackhole import drop_packets, partition
from ingest_bench.faults.forgers import Forgers
from ingest_bench.faults.kind import Stage
from ingest_bench.faults.mtu_blackhole import answer_by_icmp
from ingest_bench.faults.reset import reset_link
from ingest_bench.model.experiment import Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Impairment, LinkName, Profile
from ingest_bench.network.act import uml
from ingest_bench.network.act.link import Link, Links, open_link
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
import json, socket, sys
connections = {}
for line in sys.stdin:
    operation, name, *arguments = json.loads(line)
    try:
        if operation == "open":
            connections[name] = socket.create_connection((sys.argv[1], 9), timeout=arguments[0])
        elif operation == "send":
            connections[name].sendall(b"x" * arguments[0])
        elif operation == "receive":
            count, limit_s = arguments
            connections[name].settimeout(limit_s)
            while count:
                block = connections[name].recv(count)
                if not block:
                    raise EOFError
                count -= len(block)
        result = "ok"
    except (OSError, EOFError) as error:
        result = type(error).__name__
    print(result, flush=True)
"""
# Time limits of transfers that must fail, and of those that must succeed.
SHORT_S, LONG_S = 0.4, 60


class Talk:
    """The client program at the other end of a link."""

    def __init__(self, client: subprocess.Popen[str], server: subprocess.Popen[str]) -> None:
        self.client = client
        self.server = server

    def __call__(self, *operation: Any) -> str:
        assert self.client.stdin is not None
        assert self.client.stdout is not None
        self.client.stdin.write(json.dumps(operation) + "\n")
        self.client.stdin.flush()
        return self.client.stdout.readline().strip()

    def echo(self, name: str, count_bytes: int = 20_000, limit_s: float = LONG_S) -> str:
        """Send bytes and receive their echo; return the result."""
        result = self("send", name, count_bytes)
        return self("receive", name, count_bytes, limit_s) if result == "ok" else result

    def read_server_line(self) -> str:
        assert self.server.stdout is not None
        return self.server.stdout.readline().strip()


@contextmanager
def start_talk(link: Link) -> Iterator[Talk]:
    pipe = subprocess.PIPE
    server_argv = link.server.command((sys.executable, "-c", ECHO, link.server_address))
    client_argv = link.client.command((sys.executable, "-c", CLIENT, link.server_address))
    with ready(server_argv) as server, subprocess.Popen(client_argv, stdin=pipe, stdout=pipe, text=True) as client:
        try:
            yield Talk(client, server)
        finally:
            client.kill()


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
def test_partition_delays_data_until_its_end(link: Link, direction: Any) -> None:
    with start_talk(link) as talk:
        assert talk("open", "old", LONG_S) == "ok"
        assert talk.echo("old") == "ok"
        with partition(link, directions(direction)):
            assert talk.echo("old", limit_s=SHORT_S) == "TimeoutError"
            assert talk("open", "new", SHORT_S) == "TimeoutError"
        assert talk("receive", "old", 20_000, LONG_S) == "ok"
        assert talk.echo("old") == "ok"
        assert talk("open", "newer", LONG_S) == "ok"
    assert read_filters(link) == ""


@pytest.mark.parametrize("direction", ["both", "to-server", "to-client"])
def test_blackhole_accepts_connections_and_drops_data(link: Link, direction: Any) -> None:
    with start_talk(link) as talk:
        assert talk("open", "old", LONG_S) == "ok"
        assert talk.echo("old") == "ok"
        with drop_packets(link, directions(direction), "data"):
            assert talk("open", "new", LONG_S) == "ok"
            assert talk.echo("new", limit_s=SHORT_S) == "TimeoutError"
            assert talk.echo("old", limit_s=SHORT_S) == "TimeoutError"
        for name in ("old", "new"):
            assert talk("receive", name, 20_000, LONG_S) == "ok"
            assert talk.echo(name) == "ok"
    assert read_filters(link) == ""


def test_reset_ends_every_connection_except_new_ones(link: Link) -> None:
    with start_talk(link) as talk:
        for name in ("idle", "used", "waiting"):
            assert talk("open", name, LONG_S) == "ok"
        assert talk.echo("used") == "ok"
        assert reset_link(link, Forgers()) == 3
        assert [talk("receive", name, 1, LONG_S) for name in ("idle", "used", "waiting")] == [
            "ConnectionResetError"
        ] * 3
        assert [talk.read_server_line() for _ in range(3)] == ["ConnectionResetError"] * 3
        assert talk("open", "new", LONG_S) == "ok"
        assert talk.echo("new") == "ok"


def test_reset_ends_a_busy_connection(link: Link) -> None:
    sender = f"""
import socket
connection = socket.create_connection(("{link.server_address}", 9), timeout=60)
print("open", flush=True)
try:
    while True:
        connection.sendall(bytes(1 << 16))
except OSError as error:
    print(type(error).__name__, flush=True)
"""
    receiver = f"""
import socket
listener = socket.create_server(("{link.server_address}", 9))
print("ready", flush=True)
connection, _ = listener.accept()
try:
    while connection.recv(1 << 16):
        pass
except OSError as error:
    print(type(error).__name__, flush=True)
"""
    pipe = subprocess.PIPE
    with subprocess.Popen(link.server.command((sys.executable, "-c", receiver)), stdout=pipe, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        with subprocess.Popen(link.client.command((sys.executable, "-c", sender)), stdout=pipe, text=True) as client:
            try:
                assert client.stdout is not None
                assert client.stdout.readline() == "open\n"
                assert reset_link(link, Forgers()) == 1
                assert client.stdout.readline() == "ConnectionResetError\n"
                assert server.stdout.readline() == "ConnectionResetError\n"
            finally:
                client.kill()
                server.kill()


def test_overlapping_faults_leave_no_filters(link: Link) -> None:
    with start_talk(link) as talk:
        assert talk("open", "old", LONG_S) == "ok"
        with drop_packets(link, ("to-server",), "data"):
            with drop_packets(link, ("to-client",), "data"), partition(link, ("to-server",)):
                assert talk.echo("old", limit_s=SHORT_S) == "TimeoutError"
            assert talk("receive", "old", 20_000, SHORT_S) == "TimeoutError"
            assert "clsact" in read_filters(link)
        assert talk("receive", "old", 20_000, LONG_S) == "ok"
    assert read_filters(link) == ""


# Sends timestamps until its input ends, then an empty datagram; prints the timestamps.
SENDER = """
import select, socket, sys, time
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect((sys.argv[1], 9))
sent = []
while not select.select([sys.stdin], [], [], 0.005)[0]:
    sent.append(str(time.time_ns()))
    client.send(sent[-1].encode())
client.send(b"")
print(*sent)
"""
# Prints received timestamps, until an empty datagram.
RECEIVER = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
server.bind((sys.argv[1], 9))
print("ready", flush=True)
received = []
while moment := server.recv(64):
    received.append(moment.decode())
print(*received)
"""


@pytest.mark.netns
def test_repeated_partition_is_a_flapping_link() -> None:
    ms = 10**6
    fault = Fault(kind="partition", at_ns=200 * ms, for_ns=200 * ms, every_ns=500 * ms, direction="to-server")
    with open_link(catalog.load_profile("ethernet")) as link:
        receiver_argv = link.server.command((sys.executable, "-c", RECEIVER, link.server_address))
        sender_argv = link.client.command((sys.executable, "-c", SENDER, link.server_address))
        stage, pipe = Stage(links=Links(by_name={LinkName((1,)): link})), subprocess.PIPE
        with (
            ready(receiver_argv) as server,
            subprocess.Popen(sender_argv, stdin=pipe, stdout=pipe, text=True) as client,
        ):
            began_ns = time.monotonic_ns()
            with timeline.run_faults(
                (fault,), stage, lambda: began_ns, LoadOptions(measure_ns=2 * 10**9)
            ) as timeline_run:
                time.sleep(2)
            sent = client.communicate("end\n", timeout=LONG_S)[0].split()
            assert server.stdout is not None
            received = set(server.stdout.readline().split())
        # Each turn loses packets, and only those sent during it.
        spans = [(record.start_ns, record.end_ns) for record in timeline_run.records]
        assert 3 <= len(spans) <= 4
        lost = [int(moment) for moment in sent if moment not in received]
        turns = [sum(1 for moment in lost if began <= moment <= ended) for began, ended in spans if ended]
        assert all(turns)
        assert sum(turns) == len(lost) < len(sent)


@pytest.mark.netns
def test_profile_is_overridden_and_restored() -> None:
    def rates(link: Link) -> list[int]:
        qdiscs = json.loads(link.client.run(("tc", "-j", "qdisc", "show", "dev", link.ends[0].device)))
        return [qdisc["options"]["rate"] * 8 for qdisc in qdiscs]

    with open_link(catalog.load_profile("ethernet"), later_profiles=(catalog.load_profile("ethernet-100m"),)) as link:
        with override_profile(link, lambda _: catalog.load_profile("ethernet-100m")):
            assert rates(link) == [10**8]
            assert link.profile.name == "ethernet-100m"
        assert rates(link) == [10**9]
        assert link.profile.name == "ethernet"


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


@pytest.mark.netns
def test_fault_ends_if_its_block_fails() -> None:
    with open_link(catalog.load_profile("ethernet")) as link, start_talk(link) as talk:
        assert talk("open", "a", LONG_S) == "ok"
        with pytest.raises(ZeroDivisionError), partition(link, ("to-server",)):
            raise ZeroDivisionError
        assert talk.echo("a") == "ok"


def test_partition_filter() -> None:
    # ldh [12]; jne #ip, pass; ld [30]; jne #198.18.2.1, pass; ret #TC_ACT_SHOT; pass: ret #TC_ACT_UNSPEC
    assert holes.build_filter("198.18.2.1", "all") == (
        "6,40 0 0 12,21 0 3 2048,32 0 0 30,21 0 1 3323068929,6 0 0 2,6 0 0 4294967295"
    )


def run_program(code: str, frame: bytes) -> int:
    steps = [tuple(int(word) for word in step.split()) for step in code.split(",")[1:]]
    return classic_bpf.returned(steps, frame)


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


@pytest.mark.parametrize("options", [b"", bytes(12)])
@pytest.mark.parametrize("ip_options", [b"", bytes(8)])
def test_blackhole_filter_drops_only_data_for_its_address(options: bytes, ip_options: bytes) -> None:
    code = holes.build_filter("198.18.2.1", "data")

    def is_dropped(packet: bytes) -> bool:
        return run_program(code, packet) == 2

    assert is_dropped(frame(data=b"x", options=options, ip_options=ip_options))
    assert is_dropped(frame(data=bytes(1400), options=options, ip_options=ip_options))
    assert not is_dropped(frame(options=options, ip_options=ip_options))
    assert not is_dropped(frame(flags=0x02, options=options, ip_options=ip_options))
    assert not is_dropped(frame(to="198.18.1.1", data=b"x", options=options, ip_options=ip_options))
    assert not is_dropped(bytes(12) + b"\x08\x06" + bytes(46))


def test_mtu_blackhole_filter_drops_only_larger_packets() -> None:
    code = holes.build_filter("198.18.2.1", 1000)
    assert run_program(code, frame(data=bytes(961))) == 2
    assert run_program(code, frame(data=bytes(960))) != 2
    assert run_program(code, frame(to="198.18.1.1", data=bytes(1400))) != 2


@pytest.mark.netns
def test_mtu_blackhole_passes_small_packets() -> None:
    with open_link(catalog.load_profile("ethernet")) as link, start_talk(link) as talk:
        with drop_packets(link, ("to-server",), 1000), drop_packets(link, ("to-server",), 1400):
            assert talk("open", "a", LONG_S) == "ok"
            assert talk.echo("a", 900) == "ok"
            assert talk.echo("a", 2000, limit_s=SHORT_S) == "TimeoutError"
        assert talk("receive", "a", 2000, LONG_S) == "ok"
        assert read_filters(link) == ""


@pytest.mark.netns
def test_icmp_reduces_the_path_mtu_until_the_fault_ends() -> None:
    messages: list[str] = []
    with open_link(catalog.load_profile("ethernet")) as link, start_talk(link) as talk:
        with answer_by_icmp(link, ("to-server",), 1000, messages, Forgers()), drop_packets(link, ("to-server",), 1000):
            assert talk("open", "a", LONG_S) == "ok"
            assert talk.echo("a", 200_000) == "ok"
            assert "pmtu:1000" in link.client.run(("ss", "-Htin"))
        assert re.fullmatch(
            r"to-server: \d+ ICMP messages, 1 connections have a path MTU of at most 1000", messages[0]
        ), messages
        assert int(messages[0].split()[1]) >= 1
        assert talk.echo("a", 200_000) == "ok"
        assert "pmtu:1500" in link.client.run(("ss", "-Htin"))
        assert read_filters(link) == ""


@pytest.mark.netns
def test_overlapping_mtu_blackholes_with_icmp_leave_nothing() -> None:
    faults = [Fault(kind="mtu-blackhole", at_ns=0, for_ns=1, icmp="sent", mtu_bytes=size) for size in (1200, 900)]
    with open_link(catalog.load_profile("ethernet")) as link, start_talk(link) as talk:
        stage = Stage(links=Links(by_name={LinkName((1,)): link}))
        assert talk("open", "a", LONG_S) == "ok"
        first, second = (timeline.begin_fault(fault, stage) for fault in faults)
        assert talk.echo("a", 200_000) == "ok"
        message = first.end()
        assert re.search(r"to-server: \d+ ICMP messages, 1 connections have a path MTU of at most 1200", message), (
            message
        )
        assert talk.echo("a", 200_000) == "ok"
        assert re.search(r"to-client: [1-9]\d* ICMP messages, 1 connections .* at most 900", second.end())
        assert talk.echo("a", 200_000) == "ok"
        assert read_filters(link) == ""


def test_forged_icmp_is_valid() -> None:
    message = ICMP(forged_packets.forge_fragmentation_needed(frame(data=bytes(1100))[14:], 1000))
    assert (message.type, message.code, message.nexthopmtu) == (3, 4, 1000)
    assert (message.payload.dst, message.payload.dport, message.payload.seq) == ("198.18.2.1", 9, 7)
    checksum = message.chksum
    del message.chksum
    assert ICMP(bytes(message)).chksum == checksum


def ones_complement(data: bytes) -> int:
    """Return the Internet checksum of an even number of bytes (RFC 1071)."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def test_forged_segment_is_valid() -> None:
    packet = forged_packets.forge_segment("198.18.2.1", "198.18.1.1", (9, 4000), "R", 0x01020304)
    pseudo = packet[12:20] + struct.pack(">HH", 6, 20)
    assert len(packet) == 40
    assert ones_complement(pseudo + packet[20:]) == 0
    assert packet[33] == 0x04
    assert struct.unpack_from(">HHI", packet, 20) == (9, 4000, 0x01020304)


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


def cpu_ticks(pid: int) -> int:
    """Return the user and system CPU ticks (man 5 proc)."""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:13]))


@pytest.mark.netns
def test_idle_forger_uses_no_cpu_and_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # scapy leaves nothing in a home folder.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with (
        open_link(catalog.load_profile("ethernet")) as link,
        start_talk(link) as talk,
        forgers.start_forgers(link.ends) as prepared,
    ):
        waiting = {end: children[0] for end, children in prepared.idle.items()}
        assert len(waiting) == 2
        before = {child.pid: cpu_ticks(child.pid) for child in waiting.values()}
        for name in ("a", "b"):
            assert talk("open", name, LONG_S) == "ok"
            assert talk.echo(name) == "ok"
        assert {child.pid: cpu_ticks(child.pid) for child in waiting.values()} == before
        assert reset_link(link, prepared) == 2
        assert talk("open", "c", LONG_S) == "ok"
        messages: list[str] = []
        with answer_by_icmp(link, ("to-server",), 1000, messages, prepared), drop_packets(link, ("to-server",), 1000):
            assert prepared.idle[link.ends[1].address, link.ends[1].peer] == []
            assert talk.echo("c", 200_000) == "ok"
        assert re.search(r"[1-9]\d* ICMP messages, 1 connections", messages[0])
        assert reset_link(link, prepared) == 1
        # No other child was started.
        assert {end: children[0] for end, children in prepared.idle.items()} == waiting
    assert not any(child.is_running() for child in waiting.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.netns
def test_busy_forger_is_not_shared() -> None:
    with open_link(catalog.load_profile("ethernet")) as link, forgers.start_forgers(link.ends[:1]) as prepared:
        end = link.ends[0]
        with prepared.take(end) as first, prepared.take(end) as second:
            assert first is not second
            (waiting,) = prepared.idle.values()
            assert waiting == []
        assert waiting == [first]
        assert not second.is_running()
        # A forger with an error is not reused.
        with pytest.raises(ZeroDivisionError), prepared.take(end):
            raise ZeroDivisionError
        assert waiting == []


@pytest.mark.nightly
@pytest.mark.netns
def test_ordinary_user_has_the_same_faults() -> None:
    # Directions differ only by a number in the same rule.
    names = "not ordinary_user and not -both] and not to-client]"
    ordinary_user.repeat(__file__, promised="netns", limit_s=600, marks="netns", names=names)
