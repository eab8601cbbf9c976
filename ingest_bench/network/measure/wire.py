"""Watch a link while the load runs: sampled frame sizes, and TCP's view of the connections, at negligible cost.

A child process in the receiving namespace reads its packet socket 50 times a second: waiting for frames would wake it
for each frame. It ends when its standard input ends, and then writes its record.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.network import classic_bpf as bpf
from ingest_bench.network.act.link import Link
from ingest_bench.network.measure import tcp_info

WIRE_FILE = "wire.json"
_READ_INTERVAL_S = 0.02
_TCP_INTERVAL_S = 0.25
# More frames per read: sample half of them. Fewer in a second (50 reads): sample twice as many.
_FIRST_SAMPLING, _MAX_FRAMES_PER_READ, _READS, _MIN_FRAMES, _SPARSEST_SAMPLING = 8, 16, 50, 200, 1024
_EXIT_LIMIT_S = 10.0

_ETH_P_ALL, _IPV4 = 0x0003, 0x0800
_PACKET_OUTGOING = 4
# Ancillary data of classic BPF (linux/filter.h): the packet type and a random number.
_PACKET_TYPE, _RANDOM = 0xFFFFF000 + 4, 0xFFFFF000 + 56
_ETHER_TYPE_AT, _DESTINATION_AT = 12, 30
# A filter that kept less of a frame would also hide its size.
_KEEP_BYTES = 1 << 18
# asm-generic/socket.h. The kernel records when a frame arrived, however late the program reads it.
_SO_TIMESTAMPNS = 35
_SECONDS_AND_NS = struct.Struct("@ll")
# Until then the kernel records when a frame is read (net/core/dev.c, net_enable_timestamp).
_TIMESTAMPS_AFTER_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSnapshot:
    """TCP's view of the connections at one moment."""

    at_ns: int
    connections: tuple[tcp_info.Connection, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRecord:
    """Record of one direction."""

    frames: dict[int, int]
    """Number of frames by size, Ethernet header included; each sampled frame counts for those that were not sampled."""
    sampled_frames: int
    """Number of sampled frames."""
    tcp: tuple[TcpSnapshot, ...]
    """Connections of the receiving side: the client's own for to-client."""

    @property
    def connections(self) -> list[tcp_info.Connection]:
        """All connections of all snapshots."""
        return [connection for snapshot in self.tcp for connection in snapshot.connections]


@contextmanager
def watch_wire(link: Link, path: Path) -> Iterator[None]:
    """Watch both directions during the block, then write the file that `read_wire` reads."""
    client, server = link.ends
    with ExitStack() as stack:
        ends = (("to-server", server), ("to-client", client))
        watchers = {}
        for direction, end in ends:
            argv = system.build_module_argv("ingest_bench.network.measure.wire", end.device, end.address, end.peer)
            child = system.Child(end.namespace.command(argv), name=f"wire: the watcher on {end.device}")
            watchers[direction] = stack.enter_context(child)
        for watcher in watchers.values():
            watcher.read_line()
        try:
            yield
        finally:
            records = {direction: _stop_watcher(watcher) for direction, watcher in watchers.items()}
            path.write_text(json.dumps(records), encoding="utf-8")


def read_wire(path: Path) -> dict[str, WireRecord | None]:
    """Return the record of each direction; None if its watcher died. Empty if the wire was not watched."""
    from ingest_bench.inputs import records  # noqa: PLC0415 - not in the child

    by_direction: dict[str, WireRecord | None] = {}
    with suppress(FileNotFoundError):
        by_direction = records.from_file(dict[str, WireRecord | None], path)
    return by_direction


def read_device_counters() -> dict[str, list[int]]:
    """Return the counters of each device: first the bytes it received, ninth those it sent (net/core/net-procfs.c).

    Not from /sys, which shows the devices of the namespace in which it was mounted.
    """
    _, _, *lines = Path("/proc/net/dev").read_text(encoding="ascii", errors="replace").splitlines()
    rows = (line.partition(":") for line in lines)
    return {name.strip(): [int(number) for number in numbers.split()] for name, _, numbers in rows}


def sampling_ratio(rate_bps: int | None) -> int:
    """Return N for sampling one of N frames, a power of two: cheap at any rate, and dense at a low one."""
    if rate_bps is None or rate_bps > 200 * 10**6:
        return 64
    return 8 if rate_bps > 20 * 10**6 else 1


def sampling_filter(destination: str, sampling: int) -> list[bpf.Instruction]:
    """Return the filter that keeps one of `sampling` IPv4 frames that arrive for that address, at random."""
    address = int.from_bytes(socket.inet_aton(destination), "big")
    return bpf.assemble(
        {
            "": [
                (bpf.LOAD_WORD, 0, 0, _PACKET_TYPE),
                (bpf.JUMP_EQUAL, "drop", 0, _PACKET_OUTGOING),
                (bpf.LOAD_HALF, 0, 0, _ETHER_TYPE_AT),
                (bpf.JUMP_EQUAL, 0, "drop", _IPV4),
                (bpf.LOAD_WORD, 0, 0, _DESTINATION_AT),
                (bpf.JUMP_EQUAL, 0, "drop", address),
                (bpf.LOAD_WORD, 0, 0, _RANDOM),
                (bpf.AND, 0, 0, sampling - 1),
                (bpf.JUMP_EQUAL, 0, "drop", 0),
                (bpf.RETURN, 0, 0, _KEEP_BYTES),
            ],
            "drop": [(bpf.RETURN, 0, 0, 0)],
        }
    )


class FrameSampler:
    """Packet socket that receives a random sample of frames; `counts[size_bytes]` includes the Ethernet header."""

    def __init__(self, device: str, destination: str, sampling: int) -> None:
        self.counts: Counter[int] = Counter()
        self._destination = destination
        # Without a protocol no frame arrives before the filter is attached.
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.set_sampling(sampling)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._socket.bind((device, _ETH_P_ALL))
        self._socket.setblocking(False)

    def set_sampling(self, sampling: int) -> None:
        """Sample one of `sampling` frames from now on."""
        self.sampling = sampling
        bpf.attach(self._socket, sampling_filter(self._destination, sampling))

    def wait_for_arrivals(self, smallest_bytes: int, max_count: int, quiet_s: float, max_wait_s: float) -> list[int]:
        """Return when frames of at least that size arrived, in ns: up to `max_count`, or until none came for `quiet_s`.

        The first may take `max_wait_s`.
        """
        byte, moments_ns, wait_s = bytearray(1), list[int](), max_wait_s
        while len(moments_ns) < max_count and select.select([self._socket], [], [], wait_s)[0]:
            size, ancillary, _, _ = self._socket.recvmsg_into([byte], 64, socket.MSG_TRUNC)
            if size >= smallest_bytes:
                seconds, nanoseconds = _SECONDS_AND_NS.unpack_from(ancillary[0][2])
                moments_ns.append(seconds * 10**9 + nanoseconds)
                wait_s = quiet_s
        return moments_ns

    def enable_timestamps(self) -> None:
        """Record the arrival time of each frame from now on."""
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        time.sleep(_TIMESTAMPS_AFTER_S)

    def drain(self) -> None:
        """Count all waiting frames."""
        byte = bytearray(1)
        while True:
            try:
                self.counts[self._socket.recv_into(byte, 0, socket.MSG_TRUNC)] += 1
            except BlockingIOError:
                return

    def close(self) -> None:
        """Close the packet socket."""
        self._socket.close()


class AdaptiveSampler:
    """Samples some hundred frame sizes a second at any rate: the fewer frames, the more of them."""

    def __init__(self, sampler: FrameSampler) -> None:
        self.sampler = sampler
        self.frames: Counter[int] = Counter()
        self.sampled = 0
        self._reads, self._recently_sampled = 0, 0

    def read(self) -> None:
        """Drain new frames, scaling each count by the sampling ratio."""
        self.sampler.drain()
        new = self.sampler.counts.total()
        for size_bytes, count in self.sampler.counts.items():
            self.frames[size_bytes] += count * self.sampler.sampling
        self.sampler.counts.clear()
        self.sampled += new
        self._reads, self._recently_sampled = self._reads + 1, self._recently_sampled + new
        sampling = self.sampler.sampling
        if new > _MAX_FRAMES_PER_READ and sampling < _SPARSEST_SAMPLING:
            self._set_sampling(sampling * 2)
        elif self._reads == _READS:
            self._set_sampling(sampling // 2 if self._recently_sampled < _MIN_FRAMES else sampling)

    def _set_sampling(self, sampling: int) -> None:
        self._reads = self._recently_sampled = 0
        if max(1, sampling) != self.sampler.sampling:
            self.sampler.set_sampling(max(1, sampling))


def _stop_watcher(watcher: system.Child) -> dict[str, Any] | None:
    """Return the watcher's record; None if it died."""
    try:
        record: dict[str, Any] = json.loads(watcher.read_until_exit(_EXIT_LIMIT_S))
    except (RunFailed, ValueError):
        return None
    return record


def main() -> None:
    """Run the child: DEVICE DESTINATION PEER."""
    device, destination, peer = sys.argv[1:]
    sampler = AdaptiveSampler(FrameSampler(device, destination, _FIRST_SAMPLING))
    sys.stdout.write("watching\n")
    sys.stdout.flush()
    os.set_blocking(0, False)
    next_snapshot, snapshots = time.monotonic(), []
    while _is_open(0):
        time.sleep(_READ_INTERVAL_S)
        sampler.read()
        if time.monotonic() >= next_snapshot:
            next_snapshot += _TCP_INTERVAL_S
            connections = [row for row in tcp_info.list_connections() if row.remote_address == peer]
            # dataclasses.asdict takes 22 us a connection instead of 2.
            rows = [{name: getattr(row, name) for name in tcp_info.Connection.__slots__} for row in connections]
            snapshots.append({"at_ns": time.time_ns(), "connections": rows})
    frames = dict(sorted(sampler.frames.items()))
    sys.stdout.write(json.dumps({"frames": frames, "sampled_frames": sampler.sampled, "tcp": snapshots}))


def _is_open(pipe: int) -> bool:
    try:
        return os.read(pipe, 1) != b""
    except BlockingIOError:
        return True


if __name__ == "__main__":
    main()
