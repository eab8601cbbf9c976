"""Faults of a standing link, on real connections; the last test repeats them as an ordinary user."""

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
from ingest_bench.faults import timeline
from ingest_bench.faults.links import forged_packets, forgers, holes
from ingest_bench.faults.links.blackhole import blackhole
from ingest_bench.faults.links.forgers import Forgers
from ingest_bench.faults.links.layers import other_state
from ingest_bench.faults.links.mtu_blackhole import answering_hop, mtu_blackhole
from ingest_bench.faults.links.partition import partition
from ingest_bench.faults.links.reset import reset
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Impairment, LinkName, Profile
from ingest_bench.network.act import uml
from ingest_bench.network.act.link import Link, link
from ingest_bench.network.act.links import Links
from ingest_bench.network.plan import places

# Sends back what comes, and says how each connection ended.
ECHO = """
import socket, sys, threading
def serve(connection):
    try:
        while block := connection.recv(65536):
            connection.sendall(block)
        said = "closed"
    except OSError as error:
        said = type(error).__name__
    # One write: threads that print share one pipe.
    sys.stdout.write(said + chr(10))
    sys.stdout.flush()
listener = socket.create_server((sys.argv[1], 9))
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
# Does what each line of JSON says, and says what came of it.
TALK = """
import json, socket, sys
connections = {}
for line in sys.stdin:
    what, name, *more = json.loads(line)
    try:
        if what == "open":
            connections[name] = socket.create_connection((sys.argv[1], 9), timeout=more[0])
        elif what == "send":
            connections[name].sendall(b"x" * more[0])
        elif what == "hear":
            count, limit_s = more
            connections[name].settimeout(limit_s)
            while count:
                block = connections[name].recv(count)
                if not block:
                    raise EOFError
                count -= len(block)
        said = "ok"
    except (OSError, EOFError) as error:
        said = type(error).__name__
    print(said, flush=True)
"""
# Where nothing comes, this long is waited for it; where something must come, LONG_S.
SHORT_S, LONG_S = 0.4, 60


class Talk:
    """A client of the echo, at the other end of a link."""

    def __init__(self, client: subprocess.Popen[str], server: subprocess.Popen[str]) -> None:
        self.client = client
        self.server = server

    def __call__(self, *what: Any) -> str:
        assert self.client.stdin is not None
        assert self.client.stdout is not None
        self.client.stdin.write(json.dumps(what) + "\n")
        self.client.stdin.flush()
        return self.client.stdout.readline().strip()

    def echo(self, name: str, count_bytes: int = 20_000, limit_s: float = LONG_S) -> str:
        """What came of sending so much and hearing it again."""
        said = self("send", name, count_bytes)
        return self("hear", name, count_bytes, limit_s) if said == "ok" else said

    def server_says(self) -> str:
        assert self.server.stdout is not None
        return self.server.stdout.readline().strip()


@contextmanager
def talking(made: Link) -> Iterator[Talk]:
    pipe = subprocess.PIPE
    serving = made.server.command((sys.executable, "-c", ECHO, made.server_address))
    asking = made.client.command((sys.executable, "-c", TALK, made.server_address))
    with ready(serving) as server, subprocess.Popen(asking, stdin=pipe, stdout=pipe, text=True) as client:
        try:
            yield Talk(client, server)
        finally:
            client.kill()


def filters(made: Link) -> str:
    shown = [end.namespace.run(("tc", "qdisc", "show", "dev", end.device)) for end in made.ends]
    return "".join(line for text in shown for line in text.splitlines(keepends=True) if "clsact" in line)


def both(impairment: Impairment) -> Profile:
    return Profile(name="x", to_server=impairment, to_client=impairment)


@pytest.fixture(
    params=[
        pytest.param("loopback", marks=pytest.mark.netns),
        pytest.param("ethernet", marks=pytest.mark.netns),
        pytest.param("uml", marks=pytest.mark.netem),
    ]
)
def made(request: pytest.FixtureRequest) -> Iterator[Link]:
    """A link of each kind."""
    if request.param == "uml":
        if uml.complaint():
            pytest.skip(uml.complaint())
        with link(both(Impairment(delay_ns=10**6)), netem="uml") as opened:
            yield opened
    else:
        with link(catalog.profile(request.param)) as opened:
            yield opened


def directions(direction: Any) -> tuple[Any, ...]:
    return places.DIRECTIONS if direction == "both" else (direction,)


@pytest.mark.parametrize("direction", ["both", "to-server", "to-client"])
def test_nothing_passes_a_partition_and_what_was_sent_arrives_after_it(made: Link, direction: Any) -> None:
    with talking(made) as talk:
        assert talk("open", "old", LONG_S) == "ok"
        assert talk.echo("old") == "ok"
        with partition(made, directions(direction)):
            assert talk.echo("old", limit_s=SHORT_S) == "TimeoutError"
            assert talk("open", "new", SHORT_S) == "TimeoutError"
        assert talk("hear", "old", 20_000, LONG_S) == "ok"
        assert talk.echo("old") == "ok"
        assert talk("open", "newer", LONG_S) == "ok"
    assert filters(made) == ""


@pytest.mark.parametrize("direction", ["both", "to-server", "to-client"])
def test_a_black_hole_takes_connections_and_swallows_what_is_sent(made: Link, direction: Any) -> None:
    with talking(made) as talk:
        assert talk("open", "old", LONG_S) == "ok"
        assert talk.echo("old") == "ok"
        with blackhole(made, directions(direction)):
            assert talk("open", "new", LONG_S) == "ok"
            assert talk.echo("new", limit_s=SHORT_S) == "TimeoutError"
            assert talk.echo("old", limit_s=SHORT_S) == "TimeoutError"
        for name in ("old", "new"):
            assert talk("hear", name, 20_000, LONG_S) == "ok"
            assert talk.echo(name) == "ok"
    assert filters(made) == ""


def test_a_reset_ends_every_connection_at_both_ends_and_spares_new_ones(made: Link) -> None:
    with talking(made) as talk:
        for name in ("idle", "used", "waiting"):
            assert talk("open", name, LONG_S) == "ok"
        assert talk.echo("used") == "ok"
        assert reset(made, Forgers()) == 3
        assert [talk("hear", name, 1, LONG_S) for name in ("idle", "used", "waiting")] == ["ConnectionResetError"] * 3
        assert [talk.server_says() for _ in range(3)] == ["ConnectionResetError"] * 3
        assert talk("open", "new", LONG_S) == "ok"
        assert talk.echo("new") == "ok"


def test_a_reset_counts_the_connections(made: Link) -> None:
    assert reset(made, Forgers()) == 0
    with talking(made) as talk:
        for number in range(20):
            assert talk("open", str(number), LONG_S) == "ok"
        assert reset(made, Forgers()) == 20


def test_a_reset_ends_a_connection_that_is_full_of_data(made: Link) -> None:
    flood = f"""
import socket
connection = socket.create_connection(("{made.server_address}", 9), timeout=60)
print("open", flush=True)
try:
    while True:
        connection.sendall(bytes(1 << 16))
except OSError as error:
    print(type(error).__name__, flush=True)
"""
    swallow = f"""
import socket
listener = socket.create_server(("{made.server_address}", 9))
print("ready", flush=True)
connection, _ = listener.accept()
try:
    while connection.recv(1 << 16):
        pass
except OSError as error:
    print(type(error).__name__, flush=True)
"""
    pipe = subprocess.PIPE
    with subprocess.Popen(made.server.command((sys.executable, "-c", swallow)), stdout=pipe, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        with subprocess.Popen(made.client.command((sys.executable, "-c", flood)), stdout=pipe, text=True) as client:
            try:
                assert client.stdout is not None
                assert client.stdout.readline() == "open\n"
                assert reset(made, Forgers()) == 1
                assert client.stdout.readline() == "ConnectionResetError\n"
                assert server.stdout.readline() == "ConnectionResetError\n"
            finally:
                client.kill()
                server.kill()


def test_faults_may_overlap_and_leave_nothing(made: Link) -> None:
    with talking(made) as talk:
        assert talk("open", "old", LONG_S) == "ok"
        with blackhole(made, ("to-server",)):
            with blackhole(made, ("to-client",)), partition(made, ("to-server",)):
                assert talk.echo("old", limit_s=SHORT_S) == "TimeoutError"
            assert talk("hear", "old", 20_000, SHORT_S) == "TimeoutError"
            assert "clsact" in filters(made)
        assert talk("hear", "old", 20_000, LONG_S) == "ok"
    assert filters(made) == ""


# Sends the moment, again and again until its input ends, and at last nothing at all; says what it sent.
SENT = """
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
# Says what was sent to it: the moment at which each datagram was, until one is empty.
HEARD = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
server.bind((sys.argv[1], 9))
print("ready", flush=True)
heard = []
while moment := server.recv(64):
    heard.append(moment.decode())
print(*heard)
"""


@pytest.mark.netns
def test_a_partition_that_happens_again_and_again_is_a_link_that_flaps() -> None:
    ms = 10**6
    fault = Fault(kind="partition", at_ns=200 * ms, for_ns=200 * ms, every_ns=500 * ms, direction="to-server")
    with link(catalog.profile("ethernet")) as made:
        listening = made.server.command((sys.executable, "-c", HEARD, made.server_address))
        sending = made.client.command((sys.executable, "-c", SENT, made.server_address))
        stage, pipe = Stage(links=Links(by_name={LinkName((1,)): made})), subprocess.PIPE
        with ready(listening) as server, subprocess.Popen(sending, stdin=pipe, stdout=pipe, text=True) as client:
            began_ns = time.monotonic_ns()
            with timeline.happening((fault,), stage, lambda: began_ns, LoadOptions(measure_ns=2 * 10**9)) as seen:
                time.sleep(2)
            sent = client.communicate("end\n", timeout=LONG_S)[0].split()
            assert server.stdout is not None
            heard = set(server.stdout.readline().split())
        # A packet of each turn is lost, and only such as were sent while it lasted: the link is whole in between.
        spans = [(record.started, record.ended) for record in seen.records]
        assert 3 <= len(spans) <= 4
        lost = [int(moment) for moment in sent if moment not in heard]
        turns = [sum(1 for moment in lost if began <= moment <= ended) for began, ended in spans if ended]
        assert all(turns)
        assert sum(turns) == len(lost) < len(sent)


@pytest.mark.netns
def test_another_profile_is_there_for_a_while() -> None:
    def rates(made: Link) -> list[int]:
        found = json.loads(made.client.run(("tc", "-j", "qdisc", "show", "dev", made.ends[0].device)))
        return [qdisc["options"]["rate"] * 8 for qdisc in found]

    with link(catalog.profile("ethernet"), later=(catalog.profile("ethernet-100m"),)) as made:
        with other_state(made, lambda _: catalog.profile("ethernet-100m")):
            assert rates(made) == [10**8]
            assert made.profile.name == "ethernet-100m"
        assert rates(made) == [10**9]
        assert made.profile.name == "ethernet"


@pytest.mark.netem
def test_a_profile_with_netem_is_there_for_a_while_on_a_link_that_was_made_for_it() -> None:
    if uml.complaint():
        pytest.skip(uml.complaint())
    near, far = Profile(name="near"), both(Impairment(delay_ns=300 * 10**6))
    with link(near, netem="uml", later=(far,)) as made, talking(made) as talk:
        assert talk("open", "a", LONG_S) == "ok"
        with other_state(made, lambda _: far):
            assert talk.echo("a", limit_s=SHORT_S) == "TimeoutError"
        assert talk("hear", "a", 20_000, LONG_S) == "ok"


@pytest.mark.netns
def test_a_fault_ends_also_when_its_block_fails() -> None:
    with link(catalog.profile("ethernet")) as made, talking(made) as talk:
        assert talk("open", "a", LONG_S) == "ok"
        with pytest.raises(ZeroDivisionError), partition(made, ("to-server",)):
            raise ZeroDivisionError
        assert talk.echo("a") == "ok"


def test_a_partition_is_this_program() -> None:
    # ldh [12]; jne #ip, pass; ld [30]; jne #198.18.2.1, pass; ret #TC_ACT_SHOT; pass: ret #TC_ACT_UNSPEC
    assert holes.bytecode("198.18.2.1", "all") == (
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
def test_only_data_for_that_address_vanishes_in_a_black_hole(options: bytes, ip_options: bytes) -> None:
    code = holes.bytecode("198.18.2.1", "data")

    def vanishes(made: bytes) -> bool:
        return run_program(code, made) == 2

    assert vanishes(frame(data=b"x", options=options, ip_options=ip_options))
    assert vanishes(frame(data=bytes(1400), options=options, ip_options=ip_options))
    assert not vanishes(frame(options=options, ip_options=ip_options))
    assert not vanishes(frame(flags=0x02, options=options, ip_options=ip_options))
    assert not vanishes(frame(to="198.18.1.1", data=b"x", options=options, ip_options=ip_options))
    assert not vanishes(bytes(12) + b"\x08\x06" + bytes(46))


def test_of_an_mtu_black_hole_only_packets_above_its_size_vanish() -> None:
    code = holes.bytecode("198.18.2.1", 1000)
    assert run_program(code, frame(data=bytes(961))) == 2
    assert run_program(code, frame(data=bytes(960))) != 2
    assert run_program(code, frame(to="198.18.1.1", data=bytes(1400))) != 2


@pytest.mark.netns
def test_small_packets_pass_an_mtu_black_hole_and_full_ones_do_not() -> None:
    with link(catalog.profile("ethernet")) as made, talking(made) as talk:
        with mtu_blackhole(made, ("to-server",), 1000), mtu_blackhole(made, ("to-server",), 1400):
            assert talk("open", "a", LONG_S) == "ok"
            assert talk.echo("a", 900) == "ok"
            assert talk.echo("a", 2000, limit_s=SHORT_S) == "TimeoutError"
        assert talk("hear", "a", 2000, LONG_S) == "ok"
        assert filters(made) == ""


@pytest.mark.netns
def test_whoever_is_told_of_a_smaller_mtu_goes_on_with_smaller_segments_and_forgets_it_afterwards() -> None:
    said: list[str] = []
    with link(catalog.profile("ethernet")) as made, talking(made) as talk:
        with answering_hop(made, ("to-server",), 1000, said, Forgers()), mtu_blackhole(made, ("to-server",), 1000):
            assert talk("open", "a", LONG_S) == "ok"
            assert talk.echo("a", 200_000) == "ok"
            assert "pmtu:1000" in made.client.run(("ss", "-Htin"))
        assert re.fullmatch(r"to-server: told \d+ times, 1 connections have a path MTU of at most 1000", said[0]), said
        assert int(said[0].split()[2]) >= 1
        assert talk.echo("a", 200_000) == "ok"
        assert "pmtu:1500" in made.client.run(("ss", "-Htin"))
        assert filters(made) == ""


@pytest.mark.netns
def test_two_hops_that_overlap_each_say_what_they_told_and_leave_nothing() -> None:
    faults = [Fault(kind="mtu-blackhole", at_ns=0, for_ns=1, icmp="sent", mtu_bytes=size) for size in (1200, 900)]
    with link(catalog.profile("ethernet")) as made, talking(made) as talk:
        stage = Stage(links=Links(by_name={LinkName((1,)): made}))
        assert talk("open", "a", LONG_S) == "ok"
        first, second = (timeline.begin(fault, stage) for fault in faults)
        assert talk.echo("a", 200_000) == "ok"
        said = first.end()
        assert re.search(r"to-server: told \d+ times, 1 connections have a path MTU of at most 1200", said), said
        assert talk.echo("a", 200_000) == "ok"
        assert re.search(r"to-client: told [1-9]\d* times, 1 connections .* at most 900", second.end())
        assert talk.echo("a", 200_000) == "ok"
        assert filters(made) == ""


def test_a_hop_says_that_fragmentation_is_needed_as_scapy_would() -> None:
    seen = ICMP(forged_packets.fragmentation_needed(frame(data=bytes(1100))[14:], 1000))
    assert (seen.type, seen.code, seen.nexthopmtu) == (3, 4, 1000)
    assert (seen.payload.dst, seen.payload.dport, seen.payload.seq) == ("198.18.2.1", 9, 7)
    checksum = seen.chksum
    del seen.chksum
    assert ICMP(bytes(seen)).chksum == checksum


def ones_complement(data: bytes) -> int:
    """The Internet checksum of an even number of bytes (RFC 1071)."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def test_a_forged_segment_has_a_right_checksum_and_no_data() -> None:
    packet = forged_packets.segment("198.18.2.1", "198.18.1.1", (9, 4000), "R", 0x01020304)
    pseudo = packet[12:20] + struct.pack(">HH", 6, 20)
    assert len(packet) == 40
    assert ones_complement(pseudo + packet[20:]) == 0
    assert packet[33] == 0x04
    assert struct.unpack_from(">HHI", packet, 20) == (9, 4000, 0x01020304)


@pytest.mark.parametrize(
    ("seen", "found"),
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
def test_what_a_segment_awaits_is_read_from_it(seen: bytes, found: object) -> None:
    assert forged_packets.awaited(seen, "198.18.1.1") == found


def test_a_segment_of_the_other_end_tells_nothing() -> None:
    assert forged_packets.awaited(frame(), "198.18.2.1") is None


def cpu_ticks(pid: int) -> int:
    """Of user and system (man 5 proc)."""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:13]))


@pytest.mark.netns
def test_a_prepared_child_waits_at_no_cost_and_is_told_what_to_forge_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing of scapy's is left in a home.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with link(catalog.profile("ethernet")) as made, talking(made) as talk, forgers.prepared(made.ends) as prepared:
        waiting = {place: own[0] for place, own in prepared.waiting.items()}
        assert len(waiting) == 2
        before = {child.pid: cpu_ticks(child.pid) for child in waiting.values()}
        for name in ("a", "b"):
            assert talk("open", name, LONG_S) == "ok"
            assert talk.echo(name) == "ok"
        assert {child.pid: cpu_ticks(child.pid) for child in waiting.values()} == before
        assert reset(made, prepared) == 2
        assert talk("open", "c", LONG_S) == "ok"
        said: list[str] = []
        with answering_hop(made, ("to-server",), 1000, said, prepared), mtu_blackhole(made, ("to-server",), 1000):
            assert prepared.waiting[made.ends[1].address, made.ends[1].peer] == []
            assert talk.echo("c", 200_000) == "ok"
        assert re.search(r"told [1-9]\d* times, 1 connections", said[0])
        assert reset(made, prepared) == 1
        # Nothing else was started for it.
        assert {place: own[0] for place, own in prepared.waiting.items()} == waiting
    assert not any(child.runs() for child in waiting.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.netns
def test_a_second_fault_at_an_end_whose_child_is_busy_starts_its_own() -> None:
    with link(catalog.profile("ethernet")) as made, forgers.prepared(made.ends[:1]) as prepared:
        end = made.ends[0]
        with prepared.at(end) as first, prepared.at(end) as second:
            assert first is not second
            (waiting,) = prepared.waiting.values()
            assert waiting == []
        assert waiting == [first]
        assert not second.runs()
        # One that broke is not asked again.
        with pytest.raises(ZeroDivisionError), prepared.at(end):
            raise ZeroDivisionError
        assert waiting == []


@pytest.mark.nightly
@pytest.mark.netns
def test_an_ordinary_user_has_the_same_faults() -> None:
    # One direction is as good as the others: whoever makes it, it is another number in the same rule.
    names = "not ordinary_user and not -both] and not to-client]"
    ordinary_user.repeat(__file__, promised="netns", limit_s=600, marks="netns", names=names)
