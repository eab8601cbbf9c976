"""The sizes of frames on a link: a packet socket that sees one of so many, chosen by the kernel at random."""

from __future__ import annotations

import ctypes
import select
import socket
import struct
import time
from collections import Counter

_ETH_P_ALL = 0x0003
_SOL_PACKET = 263
_SO_ATTACH_FILTER = 26
_PACKET_OUTGOING = 4
# Ancillary data of classic BPF (linux/filter.h): the kind of packet and a random number.
_PACKET_TYPE, _RANDOM = 0xFFFFF000 + 4, 0xFFFFF000 + 56
_LOAD_WORD, _LOAD_HALF, _AND, _JUMP_EQUAL, _RETURN = 0x20, 0x28, 0x54, 0x15, 0x06
_IPV4 = 0x0800
_ETHER_TYPE_AT, _DESTINATION_AT = 12, 30
# A filter that kept less of a frame would also hide its size.
_KEEP_BYTES = 1 << 18
_PACKET_STATISTICS = 6
# asm-generic/socket.h. The kernel notes the moment in which a frame arrived, however late the program looks.
_SO_TIMESTAMPNS = 35
_SECONDS_AND_NS = struct.Struct("@ll")
# Soon after it was asked for: until then the moment is that of looking (net/core/dev.c, net_enable_timestamp).
_STAMPS_AFTER_S = 0.02


def one_of(rate_bps: int | None) -> int:
    """How many frames there are to one that is looked at: a power of two; cheap at any rate, and dense at a low one."""
    if rate_bps is None or rate_bps > 200 * 10**6:
        return 64
    return 8 if rate_bps > 20 * 10**6 else 1


def program(destination: str, sampled: int) -> bytes:
    """Classic BPF: one of `sampled` IPv4 frames that arrive here for that address."""
    address = int.from_bytes(socket.inet_aton(destination), "big")
    drop = 8  # steps from the first jump to the last line
    steps = (
        (_LOAD_WORD, 0, 0, _PACKET_TYPE),
        (_JUMP_EQUAL, drop, 0, _PACKET_OUTGOING),
        (_LOAD_HALF, 0, 0, _ETHER_TYPE_AT),
        (_JUMP_EQUAL, 0, drop - 2, _IPV4),
        (_LOAD_WORD, 0, 0, _DESTINATION_AT),
        (_JUMP_EQUAL, 0, drop - 4, address),
        (_LOAD_WORD, 0, 0, _RANDOM),
        (_AND, 0, 0, sampled - 1),
        (_JUMP_EQUAL, 0, 1, 0),
        (_RETURN, 0, 0, _KEEP_BYTES),
        (_RETURN, 0, 0, 0),
    )
    return b"".join(struct.pack("HBBI", *step) for step in steps)


class Frames:
    """A histogram of frame sizes, Ethernet header included: `counts[size_bytes]` of those looked at."""

    def __init__(self, device: str, destination: str, sampled: int) -> None:
        self.counts: Counter[int] = Counter()
        self._destination = destination
        # Without a protocol nothing arrives before the filter is there.
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.sample(sampled)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._socket.bind((device, _ETH_P_ALL))
        self._socket.setblocking(False)

    def sample(self, sampled: int) -> None:
        """From here on one of so many is looked at."""
        self.sampled = sampled
        code = program(self._destination, sampled)
        steps = ctypes.create_string_buffer(code, len(code))
        self._socket.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(code) // 8, ctypes.addressof(steps))
        )

    def arrivals(self, smallest_bytes: int, most: int, quiet_s: float, most_s: float) -> list[int]:
        """The moments in which frames of at least that size came, in ns, until there are so many or none for a while.

        `most_s` is how long the first may take.
        """
        scrap, found, wait_s = bytearray(1), list[int](), most_s
        while len(found) < most and select.select([self._socket], [], [], wait_s)[0]:
            size, said, _, _ = self._socket.recvmsg_into([scrap], 64, socket.MSG_TRUNC)
            if size >= smallest_bytes:
                seconds, nanoseconds = _SECONDS_AND_NS.unpack_from(said[0][2])
                found.append(seconds * 10**9 + nanoseconds)
                wait_s = quiet_s
        return found

    def stamp(self) -> None:
        """From here on each frame has the moment of its arrival."""
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        time.sleep(_STAMPS_AFTER_S)

    def drain(self) -> None:
        """Everything that waits, counted."""
        scrap = bytearray(1)
        while True:
            try:
                self.counts[self._socket.recv_into(scrap, 0, socket.MSG_TRUNC)] += 1
            except BlockingIOError:
                return

    def lost(self) -> int:
        """Frames that the filter chose and the socket had no room for, since the last question."""
        _, drops = struct.unpack("II", self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
        return int(drops)

    def close(self) -> None:
        """The end of the packet socket."""
        self._socket.close()


class Bulks:
    """What sees several bulks, one after the other, with the moments of their frames.

    One packet socket for all: the kernel takes 10 ms to close one (net/core/dev.c, synchronize_net), and a new one has
    moments only after a while.
    """

    def __init__(self, device: str, destination: str) -> None:
        self.frames = Frames(device, destination, 1)
        self._is_new = True

    def rest(self, pause_s: float) -> None:
        """After it nothing was sent for that time, and nothing of the bulk before waits here."""
        if self._is_new:
            self.frames.stamp()
            self._is_new = False
        else:
            time.sleep(pause_s)
            self.frames.drain()
