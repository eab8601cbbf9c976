"""Captures: the kept headers, their summary, and agreement with the watcher of the wire."""

from __future__ import annotations

import functools
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import classic_bpf
import pytest
from readied import ready
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.utils import PcapWriter
from test_net_exec import run_net

from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.experiment import catalog
from ingest_bench.model.results import Histogram
from ingest_bench.network.act.link import open_link
from ingest_bench.network.measure import capture, readings
from ingest_bench.network.measure.wire import read_wire, watch_wire

SECRET = b"Authorization: Basic c2VjcmV0"
CLIENT, SERVER = "198.18.1.1", "198.18.2.1"
SERVER_CODE = f"""
import socket
listener = socket.create_server(("{SERVER}", 9))
print("ready", flush=True)
connection, _ = listener.accept()
while connection.recv(1 << 20):
    pass
"""
ETHER = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")


def keep_headers(packet: Any) -> bytes:
    """Return the part of a frame that the kernel keeps."""
    return classic_bpf.keep(capture.header_filter(), bytes(packet))


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
def test_only_headers_of_a_frame_are_kept(headers: Ether) -> None:
    kept = keep_headers(headers / (SECRET * 40))
    # ICMP returns 8 bytes of a segment (RFC 792).
    assert len(kept) == (14 + 20 + 8 + 20 + 8 if ICMP in headers and headers[ICMP].type == 3 else len(bytes(headers)))
    assert SECRET[:8] not in kept


def test_returned_fragment_keeps_none_of_its_payload() -> None:
    headers = ETHER / IP() / ICMP(type=11) / IP(frag=3, proto=17)
    assert keep_headers(headers / SECRET) == bytes(headers / SECRET)[: 14 + 20 + 8 + 20]


@pytest.mark.parametrize(
    "packet",
    [
        ETHER / IP(options=[b"\x94\x04\x00\x00"]) / TCP() / SECRET,
        ETHER / IPv6() / TCP() / SECRET,
        ETHER / IP() / ICMP(type=3, code=4) / IP() / TCP() / SECRET,
        ETHER / IP(ihl=15) / TCP() / SECRET,
        ETHER / IP() / UDP() / SECRET,
        Ether(type=0x9000) / SECRET,
    ],
)
def test_truncated_frame_is_kept(packet: Ether) -> None:
    frame = bytes(packet)
    for length in range(14, len(frame)):
        kept = keep_headers(frame[:length])
        assert frame.startswith(kept)
        assert len(kept) >= 14


def summarize(folder: Path, packets: Sequence[Any], lost: int = 0) -> tuple[str, ...]:
    with PcapWriter(str(folder / "a.pcap")) as writer:
        writer.write([ETHER / packet for packet in packets])
    return capture.format_summary(capture.read_capture(folder / "a.pcap"), lost)


def test_capture_is_summarized(tmp_path: Path) -> None:
    request, reply = IP(src=CLIENT, dst=SERVER), IP(src=SERVER, dst=CLIENT)
    to: Any = {"sport": 4000, "dport": 9}
    fro: Any = {"sport": 9, "dport": 4000}
    lost = IP(src=CLIENT, dst=SERVER) / TCP(**to, seq=101)
    packets = [
        request / TCP(**to, flags="S", seq=100, options=[("MSS", 1460)]),
        reply / TCP(**fro, flags="SA", seq=2**32 - 1, ack=101, options=[("MSS", 1400)]),
        request / TCP(**to, flags="A", seq=101),
        request / TCP(**to, flags="PA", seq=101) / bytes(1000),
        request / TCP(**to, flags="PA", seq=101) / bytes(1000),
        reply / TCP(**fro, flags="A", seq=0, window=0),
        reply / TCP(**fro, flags="A", seq=0) / bytes(10),
        reply / ICMP(type=3, code=4, nexthopmtu=1000) / lost,
        reply / TCP(**fro, flags="FA", seq=10),
        request / TCP(**to, flags="R", seq=1101, window=0),
    ]
    first, *lines = summarize(tmp_path, packets, lost=3)
    assert first.startswith("10 frames in ")
    assert first.endswith(" bytes, median 58, largest 1,054")
    assert lines == [
        "1 connections: 1 SYN, 1 SYN-ACK, 1 FIN, 1 RST",
        "retransmitted or reordered: 1; zero windows: 1",
        "MSS 1,400: announced 1 times",
        "MSS 1,460: announced 1 times",
        "ICMP dest-unreach fragmentation-needed, MTU 1000: 1",
        "not captured, because they came too fast: 3 frames",
    ]


def test_ipv6_is_summarized_and_tunnel_contents_are_not(tmp_path: Path) -> None:
    request, reply = IPv6(src="fd00::1", dst="fd00::2"), IPv6(src="fd00::2", dst="fd00::1")
    packets = [
        request / TCP(sport=4000, dport=9, flags="S", seq=100, options=[("MSS", 1440)]),
        reply / TCP(sport=9, dport=4000, flags="SA", seq=7, ack=101),
        request / TCP(sport=4000, dport=9, flags="PA", seq=101) / bytes(1000),
        request / TCP(sport=4000, dport=9, flags="PA", seq=101) / bytes(1000),
        IP(src=CLIENT, dst=SERVER) / IP(src="10.0.0.1", dst="10.0.0.2") / TCP(flags="S"),
    ]
    _, *lines = summarize(tmp_path, packets)
    assert lines == [
        "1 connections: 1 SYN, 1 SYN-ACK, 0 FIN, 0 RST",
        "retransmitted or reordered: 1; zero windows: 0",
        "MSS 1,440: announced 1 times",
    ]


def test_damaged_frames_are_read(tmp_path: Path) -> None:
    path, generator = tmp_path / "a.pcap", random.Random(8)  # noqa: S311 - not a secret
    packets = [
        ETHER / IP(options=[b"\x94\x04\x00\x00"]) / TCP(options=[("MSS", 1460), ("Timestamp", (1, 2))]) / SECRET,
        ETHER / IPv6() / TCP(options=[("MSS", 1460)]) / SECRET,
        ETHER / IP() / ICMP(type=3, code=4, nexthopmtu=1000) / IP() / TCP(),
        ETHER / Dot1Q(vlan=7) / IP() / TCP(),
    ]
    frames = []
    for packet in packets * 25:
        damaged = bytearray(bytes(packet)[: generator.randrange(14, len(bytes(packet)) + 1)])
        for _ in range(generator.randrange(4)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        frames.append(bytes(damaged))
    with PcapWriter(str(path), linktype=1) as writer:
        writer.write_header(None)
        for frame in frames:
            writer.write_packet(frame)
    assert len(capture.read_capture(path).frames) == len(frames)


def test_capture_requires_a_new_file_in_an_existing_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for path, message in (
        (tmp_path / "a", "File exists"),
        (tmp_path / "link", "File exists"),
        (tmp_path / "b" / "a", "No such file or directory"),
        (tmp_path / ("a" * 256), "File name too long"),
        # Root cannot create one there either.
        (Path("/proc/a"), "No such file or directory"),
    ):
        with pytest.raises(SpecError, match=message), capture.start_capture(tuple, "lo", path, 1000):
            pass
    assert (tmp_path / "a").read_text() == "mine"


@pytest.mark.measures
@pytest.mark.netns
def test_capture_and_wire_agree_and_no_payload_is_kept(tmp_path: Path) -> None:
    client_code = f"import socket; c = socket.create_connection(('{SERVER}', 9)); c.sendall({SECRET!r} * 100_000)\n"
    client_code += "c.shutdown(1); c.recv(1)\n"
    path = tmp_path / "a.pcap"
    with open_link(catalog.load_profile("ethernet-100m")) as link:
        end = link.ends[0]
        start = functools.partial(capture.start_capture, link.client.command)
        with pytest.raises(MissingCapability, match="frames of gone0 cannot be read: OSError"), start("gone0", path, 9):
            pass
        with (
            ready(link.server.command((sys.executable, "-c", SERVER_CODE))),
            start(end.device, path, 10**8) as complete,
            start(end.device, tmp_path / "last", 10**4, keeps_last=True) as last,
            start(end.device, tmp_path / "first", 10**4) as first,
            watch_wire(link, tmp_path / "wire.json"),
        ):
            before = count_frames(link.client.run(("cat", "/proc/net/dev")))
            subprocess.run(link.client.command((sys.executable, "-c", client_code)), check=True, timeout=60)
            after = count_frames(link.client.run(("cat", "/proc/net/dev")))
            first.wait(60)
            assert [each_capture.keep() for each_capture in (complete, last, first)] == [0, 0, 0]
    summary = capture.read_capture(path)
    assert len(summary.frames) == after[0] - before[0]
    assert sum(summary.frames) == after[1] - before[1]
    assert (summary.flags["begin"], summary.flags["answer"], summary.flags["reset"], summary.resent) == (1, 1, 0, 0)
    sampled, *_ = readings.wire_outputs(read_wire(tmp_path / "wire.json"), [])
    assert isinstance(sampled, Histogram)
    assert set(sampled.counts) <= set(summary.frames)
    # 2.9 MB are 2003 full segments; of one of eight frames the scaled sum is within 40%.
    assert sum(sampled.counts.values()) == pytest.approx(2003, rel=0.4)
    assert path.stat().st_mode & 0o777 == 0o600
    for name in ("a.pcap", "last", "first"):
        assert b"Basic" not in (tmp_path / name).read_bytes()
    assert capture.read_capture(tmp_path / "last").flags["end"] == 2
    assert capture.read_capture(tmp_path / "last").flags["begin"] == 0
    assert capture.read_capture(tmp_path / "first").flags["begin"] == 1
    assert capture.read_capture(tmp_path / "first").flags["end"] == 0


@pytest.mark.netns
def test_tunnel_and_full_disk_are_reported(tmp_path: Path) -> None:
    send = "import socket, sys; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind((sys.argv[1], 0))\n"
    send += "[s.send(bytes.fromhex(frame)) for frame in sys.argv[2:]]"
    short = bytes(ETHER / IP(len=20, proto=6)), bytes(ETHER / IP(len=24, proto=1) / bytes(4))
    path = tmp_path / "a.pcap"
    with open_link(catalog.load_profile("ethernet")) as link:
        end = link.ends[0]
        enter = end.namespace.command
        end.namespace.run(("ip", "tuntap", "add", "mode", "tun", "tun9"))
        with (
            pytest.raises(MissingCapability, match="tun9 has no Ethernet frames"),
            capture.start_capture(enter, "tun9", path, 1000),
        ):
            pass
        with capture.start_capture(enter, end.device, path, 10**6) as running:
            argv = enter((sys.executable, "-c", send, end.device, *(frame.hex() for frame in short)))
            subprocess.run(argv, check=True, timeout=60)
            assert running.keep() == 0
        assert {34, 38} <= set(capture.read_capture(path).frames)
        path.unlink()

        def enter_with_file_limit(argv: Sequence[str]) -> tuple[str, ...]:
            # A file may have at most 512 bytes; Python gets an error then, not a signal.
            return enter(("sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *argv))

        with capture.start_capture(enter_with_file_limit, end.device, path, 10**6) as running:
            argv = enter((sys.executable, "-c", send, end.device, *[short[0].hex()] * 100))
            subprocess.run(argv, check=True, timeout=60)
            with pytest.raises(RunFailed, match=r"a\.pcap could not be written: File too large$"):
                running.keep()
        assert not path.exists()


def count_frames(text: str) -> tuple[int, int]:
    """Return the frames and bytes of the client's device, in and out, as the kernel counts them."""
    (row,) = (line.split(":")[1].split() for line in text.splitlines() if "client0" in line)
    return int(row[1]) + int(row[9]), int(row[0]) + int(row[8])


@pytest.mark.netns
def test_exec_captures_and_summarizes_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # scapy neither writes to a home folder nor reads pickles there.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    path = tmp_path / "a.pcap"
    client_code = f"import socket; socket.create_connection(('{SERVER}', 9)).recv(1)"
    server_code = f"import socket; l = socket.create_server(('{SERVER}', 9)); l.accept()[0].close()"
    done = run_net(
        "exec", "ethernet", "--capture", str(path), "--server", f'{sys.executable} -c "{server_code}"',
        "--server-port", "9", "--", sys.executable, "-c", client_code,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"1 connections: 1 SYN, 1 SYN-ACK, [12] FIN, 0 RST", done.stderr), done.stderr
    assert "MSS 1,460: announced 2 times" in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.glob(".*/scapy"))


@pytest.mark.nightly
@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="an interface of this machine requires root")
def test_capture_command_ends_at_its_time_limit(tmp_path: Path) -> None:
    done = run_net("capture", str(tmp_path / "a"), "--interface", "lo", "--for", "1s")
    assert done.returncode == 0, done.stderr
    assert re.match(r"no frames|[\d,]+ frames in ", done.stdout)
    assert run_net("capture", str(tmp_path / "b"), "--interface", "gone0", "--for", "1s").returncode == 4
    none = run_net("capture", str(tmp_path / "b"), "--interface", "lo", "--for", "1s", "--bytes", "0B")
    assert none.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
