"""Capture the headers of a device's frames as a pcap file, and summarize such a file.

    python -m ingest_bench.network.measure.capture DEVICE FILE BYTES first|last

The program runs in the device's namespace. It prints "ready", and on "keep" in its standard input it writes FILE (pcap,
readable by its owner only), prints how many frames it lost, and exits. With "first" it stops by itself once it is full;
if its standard input ends it writes nothing, so a capture ends with us.

The file contains no credential and no document: a filter in the kernel cuts each frame after its headers. The kernel
fills blocks of memory (TPACKET_V3), so the program wakes for hundreds of frames, not for each.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import Any

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.network import classic_bpf as bpf
from ingest_bench.units import format_count

_KEEP_LIMIT_S, _POLL_S = 60.0, 0.05
_SEQUENCE_NUMBERS = 1 << 32

# linux/if_packet.h and linux/if_ether.h; Python has no names for them.
_SOL_PACKET, _RX_RING, _STATISTICS, _VERSION, _V3, _IGNORE_OUTGOING = 263, 5, 6, 10, 2, 23
_ETH_P_ALL = 0x0003
_BLOCK_BYTES, _BLOCKS, _FRAME_BYTES, _RETIRE_MS = 1 << 17, 32, 1 << 11, 100
# A block's header: status, number of frames, offset of the first frame, and bytes used.
_BLOCK = struct.Struct("=IIII")
_BLOCK_HEADER_AT = 8
_OF_USER = 1
# A frame's header: offset of the next frame, time, captured length, length, status, offset of its data.
_FRAME = struct.Struct("=IIIIIIH")
# libpcap's file format: times in nanoseconds, Ethernet. The longest headers are 14 + 60 + 60 bytes.
_PCAP_HEADER = struct.pack("=IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 256, 1)
# linux/sockios.h, SIOCGIFHWADDR; linux/if_arp.h: Ethernet, and lo, whose frames look like it.
_GET_HARDWARE, _ETHERNET = 0x8927, (1, 772)
# ICMP types that return headers (RFC 792): unreachable, quench, redirect, time exceeded, parameter problem.
_RETURNING_ICMP_TYPES = (3, 4, 5, 11, 12)


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture in progress."""

    path: Path
    child: system.Child

    def wait(self, limit_s: float) -> None:
        """Wait until it is full, at most `limit_s`."""
        deadline = time.monotonic() + limit_s
        while self.child.is_running() and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(_POLL_S, left_s))

    def keep(self) -> int:
        """Write the file; return how many frames are missing because they were not read in time."""
        try:
            return int(self.child.request("keep", _KEEP_LIMIT_S))
        except (RunFailed, ValueError):
            raise RunFailed(f"capture: {self.path} could not be written: {self.child.read_stderr_tail()}") from None


@contextmanager
def start_capture(
    enter: Callable[[Sequence[str]], Sequence[str]],
    device: str,
    path: Path,
    max_bytes: int,
    *,
    keeps_last: bool = False,
) -> Iterator[Capture]:
    """Capture a device's frames during the block: the first ones that fit, or the last ones. `keep` writes them.

    `enter` returns the argv that runs an argv in the device's namespace.
    """
    try:
        # Fail now instead of after the capture.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        path.unlink()
    except OSError as error:
        raise SpecError(f"{path}: no new file can be created ({error.strerror}). Name another file.") from None
    arguments = (device, str(path.absolute()), str(max_bytes), "last" if keeps_last else "first")
    argv = enter(system.build_module_argv("ingest_bench.network.measure.capture", *arguments))
    with system.Child(argv, name="capture") as child:
        try:
            child.read_line()
        except RunFailed:
            reason = child.read_stderr_tail().splitlines()[-1]
            raise MissingCapability(
                f"capture: frames of {device} cannot be read: {reason}\n"
                "An interface of this machine requires root; a virtual link does not."
            ) from None
        yield Capture(path, child)


@dataclass(slots=True)
class CaptureSummary:
    """Contents of a capture."""

    frames: list[int] = field(default_factory=list)
    """Their lengths on the wire."""
    began_s: float = 0.0
    ended_s: float = 0.0
    connections: set[frozenset[tuple[str, int]]] = field(default_factory=set)
    flags: Counter[str] = field(default_factory=Counter)
    """Number of segments by kind: "begin" (SYN), "answer" (SYN-ACK), "end" (FIN), "reset"."""
    mss: Counter[int] = field(default_factory=Counter)
    resent: int = 0
    """Segments that were retransmitted or reordered."""
    zero_windows: int = 0
    icmp: Counter[str] = field(default_factory=Counter)
    ends: dict[tuple[str, int, str, int], int] = field(default_factory=dict)
    """The highest sequence number of each sender."""


def read_capture(path: Path) -> CaptureSummary:
    """Summarize a capture with scapy."""
    # Importing it takes 0.5 s and more.
    with without_home_folders():
        from scapy.layers.inet import ICMP, IP, TCP  # noqa: PLC0415
        from scapy.layers.inet6 import IPv6  # noqa: PLC0415
        from scapy.layers.l2 import Ether  # noqa: PLC0415
        from scapy.utils import RawPcapReader  # noqa: PLC0415

    summary = CaptureSummary()
    with RawPcapReader(str(path)) as records:
        for data, metadata in records:
            at_s = metadata.sec + metadata.usec / 1e9
            summary.began_s, summary.ended_s = summary.began_s or at_s, at_s
            summary.frames.append(metadata.wirelen)
            frame = Ether(data)
            # The outer packet, not that in a tunnel.
            packet = frame.getlayer(IP) or frame.getlayer(IPv6)
            if packet is None:
                continue
            if isinstance(packet.payload, ICMP):
                message = packet.payload
                mtu = f", MTU {message.nexthopmtu}" if (message.type, message.code) == (3, 4) else ""
                summary.icmp[message.sprintf("%ICMP.type% %ICMP.code%") + mtu] += 1
            elif isinstance(packet.payload, TCP):
                payload_bytes = packet.plen if isinstance(packet, IPv6) else packet.len - 4 * packet.ihl
                _add_segment(summary, packet, packet.payload, payload_bytes)
    return summary


@contextmanager
def without_home_folders() -> Iterator[None]:
    """Keep scapy from writing and reading pickles in a home folder: we may be root, and it another user's."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(("XDG_CACHE_HOME", "XDG_CONFIG_HOME"), "/proc/none"))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def format_summary(summary: CaptureSummary, lost: int = 0) -> tuple[str, ...]:
    """Return the summary as lines of text; `lost` frames were not captured."""
    if not summary.frames:
        return ("no frames",)
    flags = summary.flags
    lines = [
        (
            f"{len(summary.frames):,} frames in {summary.ended_s - summary.began_s:.3f} s: "
            f"{sum(summary.frames):,} bytes, median {median_low(summary.frames):,}, largest {max(summary.frames):,}"
        ),
        (
            f"{len(summary.connections):,} connections: {flags['begin']:,} SYN, {flags['answer']:,} SYN-ACK, "
            f"{flags['end']:,} FIN, {flags['reset']:,} RST"
        ),
        f"retransmitted or reordered: {summary.resent:,}; zero windows: {summary.zero_windows:,}",
    ]
    lines += [f"MSS {size:,}: announced {count:,} times" for size, count in sorted(summary.mss.items())]
    lines += [f"ICMP {name}: {count:,}" for name, count in sorted(summary.icmp.items())]
    return (*lines, *([f"not captured, because they came too fast: {format_count(lost, 'frame')}"] if lost else []))


def _add_segment(summary: CaptureSummary, packet: Any, segment: Any, payload_bytes: int) -> None:
    ports = (packet.src, segment.sport, packet.dst, segment.dport)
    summary.connections.add(frozenset({ports[:2], ports[2:]}))
    flags = segment.flags
    kind = "reset" if flags.R else "answer" if flags.S and flags.A else "begin" if flags.S else "end" if flags.F else ""
    summary.flags[kind] += 1
    if flags.S:
        summary.mss.update(size for name, size in segment.options if name == "MSS")
    summary.zero_windows += segment.window == 0 and not flags.R
    count = payload_bytes - 4 * segment.dataofs + bool(flags.S) + bool(flags.F)
    if count <= 0 or flags.R:
        return
    end = (segment.seq + count) % _SEQUENCE_NUMBERS
    highest = summary.ends.get(ports)
    if highest is not None and not 0 < (end - highest) % _SEQUENCE_NUMBERS < _SEQUENCE_NUMBERS // 2:
        summary.resent += 1
    else:
        summary.ends[ports] = end


# The program.


def header_filter() -> list[bpf.Instruction]:
    """Return the filter that keeps each frame's headers.

    For ICMP it also keeps the headers that ICMP returns; for later fragments and unknown protocols only the first
    header. The kernel drops a frame that is shorter than what the filter loads, so the length is checked first.
    """
    return bpf.assemble(
        {
            "": [
                (bpf.LOAD_FRAME_LENGTH, 0, 0, 0),
                (bpf.JUMP_AT_LEAST, 0, "short", 14 + 20),
                (bpf.LOAD_HALF, 0, 0, 12),
                (bpf.JUMP_EQUAL, 0, "not IPv4", 0x0800),
                (bpf.LOAD_X_IP_HEADER_LENGTH, 0, 0, 14),
                (bpf.LOAD_HALF, 0, 0, 20),
                (bpf.JUMP_IF_BITS, "IP header only", 0, 0x1FFF),
                (bpf.LOAD_BYTE, 0, 0, 23),
                (bpf.JUMP_EQUAL, "TCP", 0, socket.IPPROTO_TCP),
                (bpf.JUMP_EQUAL, "UDP", 0, socket.IPPROTO_UDP),
                (bpf.JUMP_EQUAL, "ICMP", "IP header only", socket.IPPROTO_ICMP),
            ],
            "not IPv4": [
                (bpf.JUMP_EQUAL, 0, "other", 0x86DD),
                (bpf.LOAD_BYTE, 0, 0, 20),
                (bpf.LOAD_X_CONSTANT, 0, 0, 40),
                (bpf.JUMP_EQUAL, "TCP", "IP header only", socket.IPPROTO_TCP),
            ],
            **_transport_filters(),
            "IP header only": _keep_x_plus(14),
            "other": [(bpf.JUMP_EQUAL, 0, "short", 0x0806), (bpf.RETURN, 0, 0, 14 + 28)],
            "short": [(bpf.RETURN, 0, 0, 14)],
        }
    )


def _transport_filters() -> dict[str, list[bpf.LabelledInstruction]]:
    """Return the parts for the headers after the IP header, whose length is in X."""
    return {
        "TCP": [
            *_check_length(14 + 13),
            (bpf.LOAD_BYTE_X, 0, 0, 14 + 12),
            (bpf.AND, 0, 0, 0xF0),
            (bpf.SHIFT_RIGHT, 0, 0, 2),
            (bpf.ADD_X, 0, 0, 0),
            (bpf.ADD, 0, 0, 14),
            (bpf.RETURN_A, 0, 0, 0),
        ],
        "UDP": _keep_x_plus(14 + 8),
        "ICMP": [
            *_check_length(14 + 8 + 8),
            (bpf.LOAD_BYTE_X, 0, 0, 14),
            *((bpf.JUMP_EQUAL, "returned", 0, kind) for kind in _RETURNING_ICMP_TYPES),
            *_keep_x_plus(14 + 8),
        ],
        "returned": [
            (bpf.LOAD_HALF_X, 0, 0, 14 + 8 + 6),
            (bpf.JUMP_IF_BITS, 0, 3, 0x1FFF),
            *_keep_x_plus(14 + 8 + 20),
            *_keep_x_plus(14 + 8 + 28),
        ],
    }


def _check_length(count: int) -> list[bpf.LabelledInstruction]:
    """Return the start of a part: a frame with fewer than `count` bytes after X is cut after the IP header."""
    return [
        (bpf.LOAD_FRAME_LENGTH, 0, 0, 0),
        (bpf.JUMP_ABOVE_X, 0, "IP header only", 0),
        (bpf.SUBTRACT_X, 0, 0, 0),
        (bpf.JUMP_AT_LEAST, 0, "IP header only", count),
    ]


def _keep_x_plus(count: int) -> list[bpf.LabelledInstruction]:
    """Return the end of a part: X + `count` bytes are kept."""
    return [(bpf.COPY_FROM_X, 0, 0, 0), (bpf.ADD, 0, 0, count), (bpf.RETURN_A, 0, 0, 0)]


class Ring:
    """Frames that a device sent and received; `blocks` are copies of the kernel's filled blocks."""

    def __init__(self, device: str, max_bytes: int, *, keeps_last: bool) -> None:
        self.blocks: deque[bytes] = deque()
        self.lost = 0
        self.is_full = False
        self._used_bytes = 0
        self._max_bytes = max_bytes
        self._keeps_last = keeps_last
        self._next_block = 0
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        hardware = fcntl.ioctl(self._socket, _GET_HARDWARE, struct.pack("=16s24x", device.encode()))
        if struct.unpack_from("=H", hardware, 16)[0] not in _ETHERNET:
            raise OSError(f"{device} has no Ethernet frames; it may be a tunnel")
        bpf.attach(self._socket, header_filter())
        # On lo each outgoing frame is also an incoming one.
        self._socket.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, int(device == "lo"))
        self._socket.setsockopt(_SOL_PACKET, _VERSION, _V3)
        size, frames = _BLOCK_BYTES * _BLOCKS, _BLOCK_BYTES * _BLOCKS // _FRAME_BYTES
        ring = struct.pack("=7I", _BLOCK_BYTES, _BLOCKS, _FRAME_BYTES, frames, _RETIRE_MS, 0, 0)
        self._socket.setsockopt(_SOL_PACKET, _RX_RING, ring)
        self._memory = mmap.mmap(self._socket.fileno(), size)
        self._socket.bind((device, _ETH_P_ALL))

    def fileno(self) -> int:
        """Return the descriptor for `select`: readable when a block is filled."""
        return self._socket.fileno()

    def read_blocks(self) -> None:
        """Copy the blocks that the kernel has filled, and return them to it."""
        while not self.is_full:
            offset = self._next_block * _BLOCK_BYTES
            status, _, _, used = _BLOCK.unpack_from(self._memory, offset + _BLOCK_HEADER_AT)
            if not status & _OF_USER:
                break
            self.blocks.append(self._memory[offset : offset + used])
            self._memory[offset + _BLOCK_HEADER_AT : offset + _BLOCK_HEADER_AT + 4] = bytes(4)
            self._next_block = (self._next_block + 1) % _BLOCKS
            self._used_bytes += used
            while self._used_bytes > self._max_bytes and self._keeps_last and len(self.blocks) > 1:
                self._used_bytes -= len(self.blocks.popleft())
            self.is_full = self._used_bytes >= self._max_bytes and not self._keeps_last

    def close(self) -> None:
        """Read the last block, which the kernel releases later, and the number of lost frames; close the socket."""
        if not self.is_full and select.select([self], [], [], 2 * _RETIRE_MS / 1000)[0]:
            self.read_blocks()
        _, self.lost, _ = struct.unpack("=3I", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 12))
        self._socket.close()


def pcap_records(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each frame as a record of a pcap file."""
    for block in blocks:
        _, count, offset, _ = _BLOCK.unpack_from(block, _BLOCK_HEADER_AT)
        for _ in range(count):
            next_offset, seconds, nanoseconds, kept, length, _, header = _FRAME.unpack_from(block, offset)
            data = block[offset + header : offset + header + kept]
            yield struct.pack("=IIII", seconds, nanoseconds, kept, length) + data
            offset += next_offset


def main() -> None:
    """Run the program."""
    device, path, max_bytes, which = sys.argv[1:]
    ring = Ring(device, int(max_bytes), keeps_last=which == "last")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not ring.is_full:
        readable, _, _ = select.select([sys.stdin, ring], [], [])
        if sys.stdin in readable:
            if not sys.stdin.readline():
                return
            break
        ring.read_blocks()
    ring.close()
    # A new file that only its owner can read.
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    try:
        with file:
            file.write(_PCAP_HEADER)
            file.writelines(pcap_records(ring.blocks))
    except OSError as error:
        # The disk is full: half of a file would be taken for a complete one.
        Path(path).unlink()
        sys.exit(error.strerror)
    sys.stdout.write(f"{ring.lost}\n")


if __name__ == "__main__":
    main()
