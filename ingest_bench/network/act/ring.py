"""Headers of frames of a device, the last ones that fit: a program that runs in the device's namespace.

    python ring.py DEVICE FILE BYTES first|last

It says "ready", and when its standard input says "keep" it writes FILE (pcap, readable by its owner alone), says how
many frames it lost, and ends. With "first" it ends by itself once it is full; when its standard input ends it writes
nothing. It imports nothing of ours.

No credential and no document is in it: a filter in the kernel cuts each frame behind its headers. The kernel fills
blocks of memory (TPACKET_V3), so that a program wakes for hundreds of frames, not for each.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import mmap
import os
import select
import socket
import struct
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# linux/if_packet.h, linux/if_ether.h and asm-generic/socket.h; Python names none of them.
_SOL_PACKET, _RX_RING, _STATISTICS, _VERSION, _V3 = 263, 5, 6, 10, 2
_IGNORE_OUTGOING, _ETH_P_ALL, _ATTACH_FILTER = 23, 0x0003, 26
_BLOCK_BYTES, _BLOCKS, _FRAME_BYTES, _RETIRE_MS = 1 << 17, 32, 1 << 11, 100
# Those of ICMP that give headers back (RFC 792): unreachable, quench, redirect, too late, a wrong parameter.
_GIVES_BACK = (3, 4, 5, 11, 12)
# In a block: its status, how many frames it has, where the first one is, and how many bytes are used.
_BLOCK = struct.Struct("=IIII")
_BLOCK_AT = 8
# Before each frame: where the next one is, when it came, how much of it is here, how long it was, where it is.
_FRAME = struct.Struct("=IIIIIIH")
_OF_USER = 1
# libpcap's file format: times in nanoseconds, Ethernet. The longest headers are 14 + 60 + 60 bytes.
_PCAP = struct.pack("=IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 256, 1)

# linux/sockios.h, SIOCGIFHWADDR; linux/if_arp.h: Ethernet, and lo, whose frames look like it.
_GET_HARDWARE, _ETHERNET = 0x8927, (1, 772)

_LOAD_HALF, _LOAD_BYTE, _LOAD_HALF_X, _LOAD_BYTE_X, _LOAD_X_HEADER, _LOAD_LENGTH = 0x28, 0x30, 0x48, 0x50, 0xB1, 0x80
_AND, _SHIFT_RIGHT, _ADD, _ADD_X, _SUBTRACT_X = 0x54, 0x74, 0x04, 0x0C, 0x1C
_JUMP_EQUAL, _JUMP_SET, _JUMP_LEAST, _JUMP_MORE_X = 0x15, 0x45, 0x35, 0x2D
_RETURN, _RETURN_A, _COPY_FROM_X, _LOAD_X = 0x06, 0x16, 0x87, 0x01


def program() -> list[tuple[int, int, int, int]]:
    """Classic BPF: so much of a frame is kept as its headers are long.

    Of ICMP also the headers that it gives back. Of a later fragment and of what is not known only the first header. The
    kernel leaves out a frame that ends before what is loaded of it, so each is asked for its length first.
    """
    parts: dict[str, list[tuple[int, int | str, int | str, int]]] = {
        "": [
            (_LOAD_LENGTH, 0, 0, 0),
            (_JUMP_LEAST, 0, "short", 14 + 20),
            (_LOAD_HALF, 0, 0, 12),
            (_JUMP_EQUAL, 0, "not IPv4", 0x0800),
            (_LOAD_X_HEADER, 0, 0, 14),
            (_LOAD_HALF, 0, 0, 20),
            (_JUMP_SET, "IP alone", 0, 0x1FFF),
            (_LOAD_BYTE, 0, 0, 23),
            (_JUMP_EQUAL, "TCP", 0, socket.IPPROTO_TCP),
            (_JUMP_EQUAL, "UDP", 0, socket.IPPROTO_UDP),
            (_JUMP_EQUAL, "ICMP", "IP alone", socket.IPPROTO_ICMP),
        ],
        "not IPv4": [
            (_JUMP_EQUAL, 0, "other", 0x86DD),
            (_LOAD_BYTE, 0, 0, 20),
            (_LOAD_X, 0, 0, 40),
            (_JUMP_EQUAL, "TCP", "IP alone", socket.IPPROTO_TCP),
        ],
        "TCP": [
            *_if_long(14 + 13),
            (_LOAD_BYTE_X, 0, 0, 14 + 12),
            (_AND, 0, 0, 0xF0),
            (_SHIFT_RIGHT, 0, 0, 2),
            (_ADD_X, 0, 0, 0),
            (_ADD, 0, 0, 14),
            (_RETURN_A, 0, 0, 0),
        ],
        "UDP": _with_more(14 + 8),
        "ICMP": [
            *_if_long(14 + 8 + 8),
            (_LOAD_BYTE_X, 0, 0, 14),
            *((_JUMP_EQUAL, "given back", 0, kind) for kind in _GIVES_BACK),
            *_with_more(14 + 8),
        ],
        "given back": [
            (_LOAD_HALF_X, 0, 0, 14 + 8 + 6),
            (_JUMP_SET, 0, 3, 0x1FFF),
            *_with_more(14 + 8 + 20),
            *_with_more(14 + 8 + 28),
        ],
        "IP alone": _with_more(14),
        "other": [(_JUMP_EQUAL, 0, "short", 0x0806), (_RETURN, 0, 0, 14 + 28)],
        "short": [(_RETURN, 0, 0, 14)],
    }
    steps = [step for part in parts.values() for step in part]
    labels = dict(zip(parts, itertools.accumulate(map(len, parts.values()), initial=0), strict=False))

    def jump(where: int | str, at: int) -> int:
        return labels[where] - at - 1 if isinstance(where, str) else where

    return [(code, jump(yes, at), jump(no, at), value) for at, (code, yes, no, value) in enumerate(steps)]


def _if_long(count: int) -> list[tuple[int, int | str, int | str, int]]:
    """The beginning of a part: a frame that has not so many bytes behind X is cut behind the IP header."""
    return [
        (_LOAD_LENGTH, 0, 0, 0),
        (_JUMP_MORE_X, 0, "IP alone", 0),
        (_SUBTRACT_X, 0, 0, 0),
        (_JUMP_LEAST, 0, "IP alone", count),
    ]


def _with_more(count: int) -> list[tuple[int, int | str, int | str, int]]:
    """The end of a part: X and so many bytes are kept."""
    return [(_COPY_FROM_X, 0, 0, 0), (_ADD, 0, 0, count), (_RETURN_A, 0, 0, 0)]


class Ring:
    """What a device sent and took; `blocks` are the kernel's, as it filled them."""

    def __init__(self, device: str, most_bytes: int, *, keeps_last: bool) -> None:
        self.blocks: deque[bytes] = deque()
        self.lost = 0
        self.is_full = False
        self._held_bytes = 0
        self._most_bytes = most_bytes
        self._keeps_last = keeps_last
        self._next = 0
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        asked = fcntl.ioctl(self._socket, _GET_HARDWARE, struct.pack("=16s24x", device.encode()))
        if struct.unpack_from("=H", asked, 16)[0] not in _ETHERNET:
            raise OSError(f"{device} has no Ethernet frames, it is a tunnel or the like")
        steps = program()
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
        self._socket.setsockopt(
            socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", len(steps), ctypes.addressof(code))
        )
        # On lo each frame that goes out comes in.
        self._socket.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, int(device == "lo"))
        self._socket.setsockopt(_SOL_PACKET, _VERSION, _V3)
        size, frames = _BLOCK_BYTES * _BLOCKS, _BLOCK_BYTES * _BLOCKS // _FRAME_BYTES
        ring = struct.pack("=7I", _BLOCK_BYTES, _BLOCKS, _FRAME_BYTES, frames, _RETIRE_MS, 0, 0)
        self._socket.setsockopt(_SOL_PACKET, _RX_RING, ring)
        self._memory = mmap.mmap(self._socket.fileno(), size)
        self._socket.bind((device, _ETH_P_ALL))

    def fileno(self) -> int:
        """For `select`: it is readable when a block is filled."""
        return self._socket.fileno()

    def take(self) -> None:
        """The blocks that the kernel has filled, and theirs back to it."""
        while not self.is_full:
            at = self._next * _BLOCK_BYTES
            status, _, _, used = _BLOCK.unpack_from(self._memory, at + _BLOCK_AT)
            if not status & _OF_USER:
                break
            self.blocks.append(self._memory[at : at + used])
            self._memory[at + _BLOCK_AT : at + _BLOCK_AT + 4] = bytes(4)
            self._next = (self._next + 1) % _BLOCKS
            self._held_bytes += used
            while self._held_bytes > self._most_bytes and self._keeps_last and len(self.blocks) > 1:
                self._held_bytes -= len(self.blocks.popleft())
            self.is_full = self._held_bytes >= self._most_bytes and not self._keeps_last

    def close(self) -> None:
        """What is in the last block comes after its time; then the loss is known."""
        if not self.is_full and select.select([self], [], [], 2 * _RETIRE_MS / 1000)[0]:
            self.take()
        _, self.lost, _ = struct.unpack("=3I", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 12))
        self._socket.close()


def frames(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Each frame as a record of a pcap file."""
    for block in blocks:
        _, count, at, _ = _BLOCK.unpack_from(block, _BLOCK_AT)
        for _ in range(count):
            following, seconds, nanoseconds, kept, length, _, header = _FRAME.unpack_from(block, at)
            yield struct.pack("=IIII", seconds, nanoseconds, kept, length) + block[at + header : at + header + kept]
            at += following


def main() -> None:
    """The program."""
    device, path, most_bytes, which = sys.argv[1:]
    ring = Ring(device, int(most_bytes), keeps_last=which == "last")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not ring.is_full:
        readable, _, _ = select.select([sys.stdin, ring], [], [])
        if sys.stdin in readable:
            if not sys.stdin.readline():
                return
            break
        ring.take()
    ring.close()
    # Never another one's, and nobody else's to read.
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    try:
        with file:
            file.write(_PCAP)
            file.writelines(frames(ring.blocks))
    except OSError as error:
        # The disk is full: half of it would be taken for all.
        Path(path).unlink()
        sys.exit(error.strerror)
    sys.stdout.write(f"{ring.lost}\n")


if __name__ == "__main__":
    main()
