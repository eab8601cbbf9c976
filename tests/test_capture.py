"""Captures: what is kept of a frame, what is said of it, and whether the wire's own numbers agree."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import classic_bpf
import ordinary_user
import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.utils import PcapWriter
from test_net_exec import net

from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.experiment import catalog
from ingest_bench.network.act import ring
from ingest_bench.network.act.link import link
from ingest_bench.network.measure import capture
from ingest_bench.network.measure.wire import frame_sizes, watch_wire

SECRET = b"Authorization: Basic c2VjcmV0"
CLIENT, SERVER = "198.18.1.1", "198.18.2.1"
ETHER = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")


def kept(packet: Any) -> bytes:
    """What the kernel keeps of a frame."""
    frame = bytes(packet)
    return frame[: classic_bpf.returned(ring.program(), frame)]


@pytest.mark.parametrize(
    "headers",
    [
        ETHER / IP() / TCP(options=[("MSS", 1460), ("Timestamp", (1, 2))]),
        ETHER / IP(options=[b"\x94\x04\x00\x00"]) / TCP(),
        ETHER / IP() / UDP(),
        ETHER / IP(proto=47),
        ETHER / IP(frag=3, proto=6),
        ETHER / IPv6() / TCP(options=[("Timestamp", (1, 2))]),
        ETHER / IP() / ICMP(type=3, code=4, nexthopmtu=1000) / IP() / TCP(),
        ETHER / IP() / ICMP(type=8),
        ETHER / IP(options=[b"\x94\x04\x00\x00"]) / ICMP(type=0),
        ETHER / ARP(),
        Ether(type=0x9000),
    ],
)
def test_the_headers_of_a_frame_are_kept_and_nothing_behind_them(headers: Ether) -> None:
    found = kept(headers / (SECRET * 40))
    # ICMP gives back 8 bytes of a segment (RFC 792).
    assert len(found) == (14 + 20 + 8 + 20 + 8 if ICMP in headers and headers[ICMP].type == 3 else len(bytes(headers)))
    assert SECRET[:8] not in found


def test_of_a_fragment_that_is_given_back_no_byte_that_it_carries_is_kept() -> None:
    headers = ETHER / IP() / ICMP(type=11) / IP(frag=3, proto=17)
    assert kept(headers / SECRET) == bytes(headers / SECRET)[: 14 + 20 + 8 + 20]


@pytest.mark.parametrize(
    "whole",
    [
        ETHER / IP(options=[b"\x94\x04\x00\x00"]) / TCP() / SECRET,
        ETHER / IPv6() / TCP() / SECRET,
        ETHER / IP() / ICMP(type=3, code=4) / IP() / TCP() / SECRET,
        ETHER / IP(ihl=15) / TCP() / SECRET,
        ETHER / IP() / UDP() / SECRET,
        Ether(type=0x9000) / SECRET,
    ],
)
def test_a_frame_that_ends_too_early_is_kept_too(whole: Ether) -> None:
    frame = bytes(whole)
    for length in range(14, len(frame)):
        found = kept(frame[:length])
        assert frame.startswith(found)
        assert len(found) >= 14


def test_scapy_names_what_is_in_a_capture(tmp_path: Path) -> None:
    there, back = IP(src=CLIENT, dst=SERVER), IP(src=SERVER, dst=CLIENT)
    to: Any = {"sport": 4000, "dport": 9}
    fro: Any = {"sport": 9, "dport": 4000}
    lost = IP(src=CLIENT, dst=SERVER) / TCP(**to, seq=101)
    packets = [
        there / TCP(**to, flags="S", seq=100, options=[("MSS", 1460)]),
        back / TCP(**fro, flags="SA", seq=2**32 - 1, ack=101, options=[("MSS", 1400)]),
        there / TCP(**to, flags="A", seq=101),
        there / TCP(**to, flags="PA", seq=101) / bytes(1000),
        there / TCP(**to, flags="PA", seq=101) / bytes(1000),
        back / TCP(**fro, flags="A", seq=0, window=0),
        back / TCP(**fro, flags="A", seq=0) / bytes(10),
        back / ICMP(type=3, code=4, nexthopmtu=1000) / lost,
        back / TCP(**fro, flags="FA", seq=10),
        there / TCP(**to, flags="R", seq=1101, window=0),
    ]
    path = tmp_path / "a.pcap"
    with PcapWriter(str(path)) as writer:
        writer.write([ETHER / packet for packet in packets])
    first, *lines = capture.words(capture.read(path), lost=3)
    assert first.startswith("10 frames in ")
    assert first.endswith(" bytes, median 58, largest 1,054")
    assert lines == [
        "1 connections: 1 SYN, 1 answered, 1 FIN, 1 resets",
        "sent again or overtaken: 1; zero windows: 1",
        "MSS 1,400: announced 1 times",
        "MSS 1,460: announced 1 times",
        "ICMP dest-unreach fragmentation-needed, MTU 1000: 1",
        "too fast to be kept: 3 frames",
    ]


def test_what_ipv6_carries_is_named_too_and_not_what_a_tunnel_does(tmp_path: Path) -> None:
    there, back = IPv6(src="fd00::1", dst="fd00::2"), IPv6(src="fd00::2", dst="fd00::1")
    packets = [
        there / TCP(sport=4000, dport=9, flags="S", seq=100, options=[("MSS", 1440)]),
        back / TCP(sport=9, dport=4000, flags="SA", seq=7, ack=101),
        there / TCP(sport=4000, dport=9, flags="PA", seq=101) / bytes(1000),
        there / TCP(sport=4000, dport=9, flags="PA", seq=101) / bytes(1000),
        IP(src=CLIENT, dst=SERVER) / IP(src="10.0.0.1", dst="10.0.0.2") / TCP(flags="S"),
    ]
    path = tmp_path / "a.pcap"
    with PcapWriter(str(path)) as writer:
        writer.write([ETHER / packet for packet in packets])
    _, *lines = capture.words(capture.read(path))
    assert lines == [
        "1 connections: 1 SYN, 1 answered, 0 FIN, 0 resets",
        "sent again or overtaken: 1; zero windows: 0",
        "MSS 1,440: announced 1 times",
    ]


def test_no_frame_is_too_broken_to_be_read(tmp_path: Path) -> None:
    path, draw = tmp_path / "a.pcap", random.Random(8)  # noqa: S311 - it is no secret
    whole = [
        ETHER / IP(options=[b"\x94\x04\x00\x00"]) / TCP(options=[("MSS", 1460), ("Timestamp", (1, 2))]) / SECRET,
        ETHER / IPv6() / TCP(options=[("MSS", 1460)]) / SECRET,
        ETHER / IP() / ICMP(type=3, code=4, nexthopmtu=1000) / IP() / TCP(),
        ETHER / Dot1Q(vlan=7) / IP() / TCP(),
    ]
    frames = []
    for each in whole * 300:
        broken = bytearray(bytes(each)[: draw.randrange(14, len(bytes(each)) + 1)])
        for _ in range(draw.randrange(4)):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        frames.append(bytes(broken))
    with PcapWriter(str(path), linktype=1) as writer:
        writer.write_header(None)
        for frame in frames:
            writer.write_packet(frame)
    assert len(capture.read(path).frames) == len(frames)


def test_a_capture_writes_over_no_file_and_makes_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for path, said in (
        (tmp_path / "a", "File exists"),
        (tmp_path / "link", "File exists"),
        (tmp_path / "b" / "a", "No such file or directory"),
        (tmp_path / ("a" * 256), "File name too long"),
        # Root can make none there either.
        (Path("/proc/a"), "No such file or directory"),
    ):
        with pytest.raises(SpecError, match=said), capture.capturing(tuple, "lo", path, 1000):
            pass
    assert (tmp_path / "a").read_text() == "mine"


@pytest.mark.measures
@pytest.mark.netns
def test_a_capture_and_the_wire_agree_on_frames_and_nothing_that_was_sent_is_in_it(tmp_path: Path) -> None:
    serve = f"import socket; l = socket.create_server(('{SERVER}', 9)); print(1, flush=True); c, _ = l.accept()\n"
    serve += "while c.recv(1 << 20): pass\n"
    pour = f"import socket; c = socket.create_connection(('{SERVER}', 9)); c.sendall({SECRET!r} * 100_000)\n"
    pour += "c.shutdown(1); c.recv(1)\n"
    path = tmp_path / "a.pcap"
    with link(catalog.profile("ethernet-100m")) as made:
        with pytest.raises(MissingCapability, match="no frames of gone0 can be had: OSError"):  # noqa: SIM117
            with capture.capturing(made.client.command, "gone0", path, 1000):
                pass
        end = made.ends[0]
        argv = made.server.command((sys.executable, "-c", serve))
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                server.stdout.readline()
                with (
                    capture.capturing(end.namespace.command, end.device, path, 10**8) as all_of_it,
                    capture.capturing(
                        end.namespace.command, end.device, tmp_path / "last", 10**4, keeps_last=True
                    ) as last,
                    capture.capturing(end.namespace.command, end.device, tmp_path / "first", 10**4) as first,
                    watch_wire(made, tmp_path / "wire.json"),
                ):
                    before = counted(made.client.run(("cat", "/proc/net/dev")))
                    subprocess.run(made.client.command((sys.executable, "-c", pour)), check=True, timeout=60)
                    after = counted(made.client.run(("cat", "/proc/net/dev")))
                    first.wait(60)
                    assert [each.keep() for each in (all_of_it, last, first)] == [0, 0, 0]
            finally:
                server.kill()
    seen = capture.read(path)
    assert len(seen.frames) == after[0] - before[0]
    assert sum(seen.frames) == after[1] - before[1]
    assert (seen.flags["begin"], seen.flags["answer"], seen.flags["reset"], seen.again) == (1, 1, 0, 0)
    (sampled,) = frame_sizes(tmp_path)
    assert set(sampled.counts) <= set(seen.frames)
    assert path.stat().st_mode & 0o777 == 0o600
    for name in ("a.pcap", "last", "first"):
        assert b"Basic" not in (tmp_path / name).read_bytes()
    assert capture.read(tmp_path / "last").flags["end"] == 2
    assert capture.read(tmp_path / "last").flags["begin"] == 0
    assert capture.read(tmp_path / "first").flags["begin"] == 1
    assert capture.read(tmp_path / "first").flags["end"] == 0


@pytest.mark.netns
def test_a_tunnel_and_a_full_disk_are_said_and_a_frame_that_ends_too_early_is_kept(tmp_path: Path) -> None:
    send = "import socket, sys; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind((sys.argv[1], 0))\n"
    send += "[s.send(bytes.fromhex(frame)) for frame in sys.argv[2:]]"
    short = bytes(ETHER / IP(len=20, proto=6)), bytes(ETHER / IP(len=24, proto=1) / bytes(4))
    path = tmp_path / "a.pcap"
    with link(catalog.profile("ethernet")) as made:
        end = made.ends[0]
        enter = end.namespace.command
        end.namespace.run(("ip", "tuntap", "add", "mode", "tun", "tun9"))
        with (
            pytest.raises(MissingCapability, match="tun9 has no Ethernet frames"),
            capture.capturing(enter, "tun9", path, 1000),
        ):
            pass
        with capture.capturing(enter, end.device, path, 10**6) as lasting:
            argv = enter((sys.executable, "-c", send, end.device, *(frame.hex() for frame in short)))
            subprocess.run(argv, check=True, timeout=60)
            assert lasting.keep() == 0
        assert {34, 38} <= set(capture.read(path).frames)
        path.unlink()

        def with_little_room(argv: Sequence[str]) -> tuple[str, ...]:
            # A file may have no more than 512 bytes; Python gets an error of the disk then, and no signal.
            return enter(("sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *argv))

        with capture.capturing(with_little_room, end.device, path, 10**6) as lasting:
            argv = enter((sys.executable, "-c", send, end.device, *[short[0].hex()] * 100))
            subprocess.run(argv, check=True, timeout=60)
            with pytest.raises(RunFailed, match=r"a\.pcap could not be written: File too large$"):
                lasting.keep()
        assert not path.exists()


def counted(text: str) -> tuple[int, int]:
    """Frames and bytes that went over the client's device, in and out, as the kernel counts them."""
    (row,) = (line.split(":")[1].split() for line in text.splitlines() if "client0" in line)
    return int(row[1]) + int(row[9]), int(row[0]) + int(row[8])


@pytest.mark.netns
def test_the_command_keeps_what_a_command_sent_over_a_link_and_says_what_it_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing of scapy's is left in a home, and none of its pickles there is read.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    path = tmp_path / "a.pcap"
    ask = f"import socket; socket.create_connection(('{SERVER}', 9)).recv(1)"
    serve = f"import socket; l = socket.create_server(('{SERVER}', 9)); l.accept()[0].close()"
    done = net(
        "exec", "ethernet", "--capture", str(path), "--server", f'{sys.executable} -c "{serve}"',
        "--server-port", "9", "--", sys.executable, "-c", ask,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"1 connections: 1 SYN, 1 answered, [12] FIN, 0 resets", done.stderr), done.stderr
    assert "MSS 1,460: announced 2 times" in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.glob(".*/scapy"))


@pytest.mark.nightly
@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="an interface of this machine needs root")
def test_the_command_keeps_what_an_interface_sees_until_its_time_is_over(tmp_path: Path) -> None:
    done = net("capture", str(tmp_path / "a"), "--interface", "lo", "--for", "1s")
    assert done.returncode == 0, done.stderr
    assert re.match(r"no frame|[\d,]+ frames in ", done.stdout)
    assert net("capture", str(tmp_path / "b"), "--interface", "gone0", "--for", "1s").returncode == 4
    none = net("capture", str(tmp_path / "b"), "--interface", "lo", "--for", "1s", "--bytes", "0B")
    assert none.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.measures
@pytest.mark.netns
def test_an_ordinary_user_captures_a_link_of_ours() -> None:
    ordinary_user.repeat(__file__, promised="netns", limit_s=300, marks="netns", names="wire_agree or sent_over_a_link")
