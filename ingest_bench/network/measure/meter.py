"""Child process that measures a link from inside one of its namespaces: JSON lines in, JSON lines out.

`python -m ingest_bench.network.measure.meter ADDRESS DEVICE` first prints the addresses of its sockets. Then each
request is an operation of `Meter` with its arguments, with one reply (two for operations that receive: the first says
that it is ready). Clocks are CLOCK_MONOTONIC, the same in both namespaces, so that one-way delays can be measured.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ingest_bench.network.measure import tcp_info
from ingest_bench.network.measure.wire import FrameSampler, read_device_counters

# Run, number, send time. A run is one operation: late packets of a run are not taken for those of the next.
_PROBE = struct.Struct("=IIq")
_END = 0xFFFFFFFF
_END_COPIES = 3
# linux/in.h, linux/udp.h, linux/tcp.h; Python's socket has no names for them.
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3
_UDP_SEGMENT = 103
_IP_UDP_HEADERS_BYTES = 28
_FLOOD_SOCKETS = 16
_MAX_CLOCK_ERROR_S = 0.0005
_LATE_S = 0.005
_QUIET_BYTES = 1000
# More than the last segments of an earlier connection, and less than any flood.
_FLOOD_BYTES = 20_000


class Meter:
    """The sockets of one end, and the operations on them."""

    def __init__(self, address: str, device: str) -> None:
        self.address, self.device = address, device
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # the kernel caps the buffer at rmem_max
        self.udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self.udp.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
        self.udp.bind((address, 0))
        self.tcp = socket.create_server((address, 0))
        # A sender keeps its segments below half of the largest window that it was offered (tcp_bound_to_half_wnd):
        # with the default buffer a loopback's MSS of 65483 would depend on how soon the window grew.
        self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        # One packet socket for all bursts: the kernel takes 10 ms to close one (net/core/dev.c, synchronize_net), and a
        # new one has timestamps only after a while.
        self.burst_frames: FrameSampler | None = None

    def collect(self, run: int, quiet_s: float, tail_s: float, max_s: float) -> dict[str, Any]:
        """Receive the probes of that run, until `tail_s` after its end, or until none arrives for `quiet_s`.

        `overflowed` counts datagrams for which this socket had no room; the link did not lose them.
        """
        delays, numbers, sizes = [], [], []
        overflowed_before = _count_overflows()
        for datagram, _ in self._receive_probes(run, quiet_s, tail_s, max_s):
            _, number, sent_ns = _PROBE.unpack_from(datagram)
            delays.append(time.monotonic_ns() - sent_ns)
            numbers.append(number)
            sizes.append(len(datagram) + _IP_UDP_HEADERS_BYTES)
        overflowed = _count_overflows() - overflowed_before
        return {"numbers": numbers, "delays_ns": delays, "packets_bytes": sizes, "overflowed": overflowed}

    def echo(self, run: int, quiet_s: float, max_s: float) -> dict[str, Any]:
        """Send probes back until the run's end, or until none arrives for `quiet_s`."""
        for datagram, sender in self._receive_probes(run, quiet_s, 0, max_s):
            self.udp.sendto(datagram, sender)
        return {}

    def _receive_probes(
        self, run: int, quiet_s: float, tail_s: float, max_s: float
    ) -> Iterator[tuple[bytes, tuple[str, int]]]:
        _reply({"ready": True})
        until = time.monotonic() + max_s
        while (left := until - time.monotonic()) > 0:
            if not select.select([self.udp], [], [], min(quiet_s, left))[0]:
                return
            datagram, sender = self.udp.recvfrom(1 << 17)
            probe_run, number, _ = _PROBE.unpack_from(datagram)
            if probe_run == run and number == _END:
                until = min(until, time.monotonic() + tail_s)
            elif probe_run == run:
                yield datagram, sender

    def ping(self, run: int, to: list[Any], count: int, every_s: float, wait_s: float) -> dict[str, Any]:
        """Return the round-trip times of probes, each sent without waiting for the reply to the one before."""
        rtts: list[int] = []
        sent, next_s = 0, time.monotonic()
        until = next_s + count * every_s + wait_s
        while len(rtts) < count and (now := time.monotonic()) < until:
            if sent < count and now >= next_s:
                self.udp.sendto(_PROBE.pack(run, sent, time.monotonic_ns()), tuple(to))
                sent, next_s = sent + 1, now + every_s
            limit = next_s if sent < count else until
            if select.select([self.udp], [], [], max(0, limit - time.monotonic()))[0]:
                probe_run, _, sent_ns = _PROBE.unpack_from(self.udp.recv(1 << 17))
                if probe_run == run:
                    rtts.append(time.monotonic_ns() - sent_ns)
        self._send_end(run, to)
        return {"rtts_ns": rtts}

    def sizes(self, run: int, to: list[Any], packets_bytes: list[int]) -> dict[str, Any]:
        """Send IP packets of these sizes with don't-fragment; return sizes that this end's own stack refused."""
        refused = []
        for number, size_bytes in enumerate(packets_bytes):
            probe = _PROBE.pack(run, number, time.monotonic_ns())
            try:
                self.udp.sendto(probe.ljust(size_bytes - _IP_UDP_HEADERS_BYTES, b"\0"), tuple(to))
            except OSError:
                refused.append(size_bytes)
        self._send_end(run, to)
        return {"refused": refused}

    def probes(self, run: int, to: list[Any], count: int, per_s: int, packet_bytes: int) -> dict[str, Any]:
        """Send numbered packets at an even rate."""
        padding = bytes(packet_bytes - _IP_UDP_HEADERS_BYTES - _PROBE.size)
        began = time.monotonic()
        for number in range(count):
            early_s = began + number / per_s - time.monotonic()
            if early_s > 0.0002:
                time.sleep(early_s)
            elif early_s < -_LATE_S:
                # After a pause the missed packets are not sent at once: they would fill a queue.
                began -= early_s
            self.udp.sendto(_PROBE.pack(run, number, time.monotonic_ns()) + padding, tuple(to))
        self._send_end(run, to)
        return {}

    def burst(self, to: list[Any], packets: int, mtu_bytes: int) -> dict[str, Any]:
        """Send full packets at once."""
        packet = mtu_bytes - _IP_UDP_HEADERS_BYTES
        # As few calls as possible: a busy machine may pause us between two.
        per_send = max(1, min(44, 65000 // packet))
        with ExitStack() as stack:
            for first in range(0, packets, per_send):
                count = min(per_send, packets - first)
                # A socket each: the kernel limits what one has in the queue, and would make it wait.
                sender = stack.enter_context(_open_flood_socket(packet if count > 1 else None))
                sender.sendto(bytes(packet * count), tuple(to))
        return {}

    def arrivals(
        self, frames: int, frame_bytes: int, quiet_s: float, max_s: float, pause_s: float, last: bool
    ) -> dict[str, Any]:
        """Return when the frames of a burst arrived, sent after a pause; `last` ends a series of bursts."""
        if self.burst_frames is None:
            self.burst_frames = FrameSampler(self.device, self.address, 1)
            self.burst_frames.enable_timestamps()
        else:
            time.sleep(pause_s)
            self.burst_frames.drain()
        _reply({"ready": True})
        moments_ns = self.burst_frames.wait_for_arrivals(frame_bytes, frames, quiet_s, max_s)
        if last:
            self.burst_frames.close()
            self.burst_frames = None
        self._discard_waiting()
        return {"moments_ns": moments_ns}

    def flood(self, to: list[Any], seconds: float, mtu_bytes: int, per_s: int, packets_per_send: int) -> dict[str, Any]:
        """Send full packets at about that rate; the receiving socket may overflow.

        The kernel lets one socket have 3 ms of 1 Gbit/s in a queue; a busy machine does not run us that often. Many
        sockets fill the queue, and the link then continues without us.
        """
        packet = mtu_bytes - _IP_UDP_HEADERS_BYTES
        block = bytes(packet * packets_per_send)
        segment_bytes = packet if packets_per_send > 1 else None
        with ExitStack() as stack:
            senders = [stack.enter_context(_open_flood_socket(segment_bytes)) for _ in range(_FLOOD_SOCKETS)]
            began, sent = time.monotonic(), 0
            while (now := time.monotonic()) < began + seconds:
                if sent / per_s > now - began:
                    time.sleep(sent / per_s - (now - began))
                _, ready, _ = select.select([], senders, [], 0.01)
                for sender in ready:
                    if sent > per_s * (now - began):
                        break
                    try:
                        sender.sendto(block, tuple(to))
                        sent += packets_per_send
                    except BlockingIOError:
                        continue
        return {}

    def wire(self, seconds: float, quiet_s: float) -> dict[str, Any]:
        """Return the bytes that the device received over time, until it has been quiet for `quiet_s`."""
        points: list[tuple[float, int]] = []
        _reply({"ready": True})
        until = time.monotonic() + seconds
        while (before_s := time.monotonic()) < until:
            count = read_device_counters()[self.device][0]
            now = time.monotonic()
            # A pause between clock and counter would falsify a rate.
            if now - before_s < _MAX_CLOCK_ERROR_S:
                points.append((now, count))
                earlier = [count_then for at, count_then in points if at <= now - quiet_s]
                if earlier and count - points[0][1] > _FLOOD_BYTES and count - earlier[-1] < _QUIET_BYTES:
                    break
            time.sleep(0.005)
        self._discard_waiting()
        return {"points": points}

    def sink(self, max_s: float, sampling: int) -> dict[str, Any]:
        """Read all data of one TCP connection, and sample the sizes of its frames."""
        frames = FrameSampler(self.device, self.address, sampling)
        _reply({"ready": True})
        self.tcp.settimeout(max_s)
        connection, _ = self.tcp.accept()
        with connection:
            connection.settimeout(0.02)
            until = time.monotonic() + max_s
            while time.monotonic() < until:
                frames.drain()
                with suppress(TimeoutError):
                    if not connection.recv(1 << 18):
                        break
        frames.drain()
        frames.close()
        return {"frames": dict(frames.counts)}

    def pour(self, to: list[Any], seconds: float, max_bytes: int, connect_s: float) -> dict[str, Any]:
        """Send over one TCP connection for that time; return the kernel's data about it."""
        with socket.create_connection(tuple(to), timeout=connect_s) as connection:
            until, sent, block = time.monotonic() + seconds, 0, bytes(min(1 << 16, max_bytes))
            while time.monotonic() < until and sent < max_bytes:
                connection.sendall(block)
                sent += len(block)
            raw_info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, tcp_info.INFO_BYTES)
            congestion = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            info = tcp_info.parse_tcp_info(0, 0, raw_info)
            connection.shutdown(socket.SHUT_WR)
        return {"mss_bytes": info.send_mss_bytes, "congestion_control": congestion.rstrip(b"\0").decode()}

    def _send_end(self, run: int, to: list[Any]) -> None:
        """Send the end of a run several times: it may be lost, too."""
        for _ in range(_END_COPIES):
            self.udp.sendto(_PROBE.pack(run, _END, 0), tuple(to))

    def _discard_waiting(self) -> None:
        """Discard waiting datagrams, which do not belong to the next measurement."""
        self.udp.setblocking(False)
        try:
            while True:
                self.udp.recv(1)
        except BlockingIOError:
            self.udp.setblocking(True)


def _open_flood_socket(segment_bytes: int | None) -> socket.socket:
    """Open a non-blocking socket whose datagrams the kernel splits into segments of that size."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setblocking(False)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    if segment_bytes is not None:
        opened.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, segment_bytes)
    return opened


def _count_overflows() -> int:
    """Return how many datagrams found no room in a socket. A socket's own count includes corrupt ones."""
    lines = Path("/proc/net/snmp").read_text(encoding="ascii").splitlines()
    names, numbers = (line.split() for line in lines if line.startswith("Udp:"))
    return int(numbers[names.index("RcvbufErrors")])


def main() -> None:
    """Run the child: one reply per request, until standard input ends."""
    meter = Meter(*sys.argv[1:])
    _reply({"udp": meter.udp.getsockname(), "tcp": meter.tcp.getsockname()})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _reply(getattr(meter, request.pop("operation"))(**request))
        except OSError as error:
            _reply({"error": str(error)})


def _reply(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
