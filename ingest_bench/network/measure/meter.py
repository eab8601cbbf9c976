"""The child that measures a link from inside one of its namespaces: JSON lines in, JSON lines out.

`python -m ingest_bench.network.measure.meter ADDRESS DEVICE` first says its ports; then each request is one operation
of `OPERATIONS` with its arguments, and one answer. Clocks are CLOCK_MONOTONIC, the same in both namespaces, so a
one-way delay can be told.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench.network.measure import diag
from ingest_bench.network.measure.frames import Bulks, Frames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Run, number, moment of sending. A run is one operation: what comes late is not taken for the next one's.
_PROBE = struct.Struct("=IIq")
_END = 0xFFFFFFFF
_ENDS = 3
# linux/in.h, linux/udp.h, linux/tcp.h: constants that Python's socket lacks.
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3
_UDP_SEGMENT = 103
_IP_UDP_HEADERS_BYTES = 28
_FLOOD_SOCKETS = 16
_PAUSE_S = 0.0005
_LATE_S = 0.005
_QUIET_BYTES = 1000
# More than the last words of a connection before, and less than any flood.
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
        self.bulks: Bulks | None = None

    def ports(self) -> dict[str, int]:
        """Where this end listens."""
        return {"udp": self.udp.getsockname()[1], "tcp": self.tcp.getsockname()[1]}

    def collect(self, run: int, quiet_s: float, tail_s: float, most_s: float) -> dict[str, Any]:
        """The probes of that run, until its end and `tail_s` more, or for `quiet_s` after that none comes.

        `overflowed`: datagrams that reached this socket and found no room; the link did not lose them.
        """
        delays, numbers, sizes = [], [], []
        before = _overflowed()
        _say({"ready": True})
        until = time.monotonic() + most_s
        while (left := until - time.monotonic()) > 0:
            if not select.select([self.udp], [], [], min(quiet_s, left))[0]:
                break
            datagram = self.udp.recv(1 << 17)
            of, number, sent_ns = _PROBE.unpack_from(datagram)
            if of != run:
                continue
            if number == _END:
                until = min(until, time.monotonic() + tail_s)
                continue
            delays.append(time.monotonic_ns() - sent_ns)
            numbers.append(number)
            sizes.append(len(datagram) + _IP_UDP_HEADERS_BYTES)
        overflowed = _overflowed() - before
        return {"numbers": numbers, "delays_ns": delays, "packets_bytes": sizes, "overflowed": overflowed}

    def echo(self, run: int, quiet_s: float, most_s: float) -> dict[str, Any]:
        """The number of probes that were sent back, until the run's end."""
        _say({"ready": True})
        count, until = 0, time.monotonic() + most_s
        while (left := until - time.monotonic()) > 0:
            if not select.select([self.udp], [], [], min(quiet_s, left))[0]:
                break
            datagram, sender = self.udp.recvfrom(1 << 17)
            of, number, _ = _PROBE.unpack_from(datagram)
            if of != run:
                continue
            if number == _END:
                break
            self.udp.sendto(datagram, sender)
            count += 1
        return {"count": count}

    def ping(self, run: int, to: list[Any], count: int, every_s: float, wait_s: float) -> dict[str, Any]:
        """Round-trip times of probes that are sent without waiting for each other's answer."""
        rtts: list[int] = []
        sent, next_s = 0, time.monotonic()
        until = next_s + count * every_s + wait_s
        while len(rtts) < count and (now := time.monotonic()) < until:
            if sent < count and now >= next_s:
                self.udp.sendto(_PROBE.pack(run, sent, time.monotonic_ns()), tuple(to))
                sent, next_s = sent + 1, now + every_s
            limit = next_s if sent < count else until
            if select.select([self.udp], [], [], max(0, limit - time.monotonic()))[0]:
                of, _, sent_ns = _PROBE.unpack_from(self.udp.recv(1 << 17))
                if of == run:
                    rtts.append(time.monotonic_ns() - sent_ns)
        self._end(run, to)
        return {"rtts_ns": rtts, "sent": sent}

    def sizes(self, run: int, to: list[Any], packets_bytes: list[int]) -> dict[str, Any]:
        """The sizes of IP packets, with don't-fragment set, that this end's own stack refused to send."""
        refused = []
        for number, size_bytes in enumerate(packets_bytes):
            probe = _PROBE.pack(run, number, time.monotonic_ns())
            try:
                self.udp.sendto(probe.ljust(size_bytes - _IP_UDP_HEADERS_BYTES, b"\0"), tuple(to))
            except OSError:
                refused.append(size_bytes)
        self._end(run, to)
        return {"refused": refused}

    def burst(self, run: int, to: list[Any], count: int, per_s: int, packet_bytes: int) -> dict[str, Any]:
        """So many numbered packets, evenly over their time."""
        padding = bytes(packet_bytes - _IP_UDP_HEADERS_BYTES - _PROBE.size)
        began = time.monotonic()
        for number in range(count):
            early_s = began + number / per_s - time.monotonic()
            if early_s > 0.0002:
                time.sleep(early_s)
            elif early_s < -_LATE_S:
                # What was missed in a pause is not sent at once: it would fill a queue.
                began -= early_s
            self.udp.sendto(_PROBE.pack(run, number, time.monotonic_ns()) + padding, tuple(to))
        self._end(run, to)
        return {"seconds": time.monotonic() - began}

    def bulk(self, to: list[Any], packets: int, mtu_bytes: int) -> dict[str, Any]:
        """So many full packets at once."""
        packet = mtu_bytes - _IP_UDP_HEADERS_BYTES
        # As few calls as can be: a busy machine may pause us between two.
        at_once = max(1, min(44, 65000 // packet))
        with ExitStack() as stack:
            for first in range(0, packets, at_once):
                count = min(at_once, packets - first)
                # What a socket has in the queue is limited, and it would wait.
                out = stack.enter_context(_flooding(packet if count > 1 else None))
                out.sendto(bytes(packet * count), tuple(to))
        return {"packets": packets}

    def arrivals(
        self, frames: int, frame_bytes: int, quiet_s: float, most_s: float, pause_s: float, last: bool
    ) -> dict[str, Any]:
        """The moments in which the frames of a bulk came, sent after a pause; several end with the `last`."""
        self.bulks = self.bulks or Bulks(self.device, self.address)
        self.bulks.rest(pause_s)
        _say({"ready": True})
        moments_ns = self.bulks.frames.arrivals(frame_bytes, frames, quiet_s, most_s)
        if last:
            self.bulks.frames.close()
            self.bulks = None
        self._forget()
        return {"moments_ns": moments_ns}

    def flood(self, to: list[Any], seconds: float, mtu_bytes: int, per_s: int, pieces: int) -> dict[str, Any]:
        """Full packets at about that rate, to a socket that may overflow. The kernel cuts them from large pieces.

        The kernel lets one socket have 3 ms of 1 Gbit/s in a queue; a busy machine does not run us that often. Many
        sockets fill the queue, and the link then works on without us.
        """
        packet = mtu_bytes - _IP_UDP_HEADERS_BYTES
        block = bytes(packet * pieces)
        with ExitStack() as stack:
            outs = [stack.enter_context(_flooding(packet if pieces > 1 else None)) for _ in range(_FLOOD_SOCKETS)]
            began, sent = time.monotonic(), 0
            while (now := time.monotonic()) < began + seconds:
                if sent / per_s > now - began:
                    time.sleep(sent / per_s - (now - began))
                _, ready, _ = select.select([], outs, [], 0.01)
                for out in ready:
                    if sent > per_s * (now - began):
                        break
                    try:
                        out.sendto(block, tuple(to))
                        sent += pieces
                    except BlockingIOError:
                        continue
        return {"packets": sent}

    def wire(self, seconds: float, quiet_s: float) -> dict[str, Any]:
        """Bytes that the device received, over time, until it has been quiet for so long."""
        points: list[tuple[float, int]] = []
        _say({"ready": True})
        until = time.monotonic() + seconds
        while (before_s := time.monotonic()) < until:
            count = _received_bytes(self.device)
            now = time.monotonic()
            # A pause between the clock and the counter would falsify a rate.
            if now - before_s < _PAUSE_S:
                points.append((now, count))
                earlier = [bytes_then for at, bytes_then in points if at <= now - quiet_s]
                if earlier and count - points[0][1] > _FLOOD_BYTES and count - earlier[-1] < _QUIET_BYTES:
                    break
            time.sleep(0.005)
        self._forget()
        return {"points": points}

    def sink(self, most_s: float, sampled: int) -> dict[str, Any]:
        """Everything of one TCP connection, and the sizes of the frames that brought it."""
        frames = Frames(self.device, self.address, sampled)
        _say({"ready": True})
        self.tcp.settimeout(most_s)
        connection, _ = self.tcp.accept()
        with connection:
            connection.settimeout(0.02)
            received, until = 0, time.monotonic() + most_s
            while time.monotonic() < until:
                frames.drain()
                try:
                    block = connection.recv(1 << 18)
                except TimeoutError:
                    continue
                received += len(block)
                if not block:
                    break
        frames.drain()
        frames.close()
        return {"received_bytes": received, "frames": dict(frames.counts)}

    def pour(self, to: list[Any], seconds: float, most_bytes: int, connect_s: float) -> dict[str, Any]:
        """One TCP connection that sends for that time; what the kernel then knew of it."""
        with socket.create_connection(tuple(to), timeout=connect_s) as connection:
            until, sent, block = time.monotonic() + seconds, 0, bytes(min(1 << 16, most_bytes))
            while time.monotonic() < until and sent < most_bytes:
                connection.sendall(block)
                sent += len(block)
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, diag.INFO_BYTES)
            congestion = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            known = diag.parse(0, 0, info)
            connection.shutdown(socket.SHUT_WR)
        return {
            "sent_bytes": sent,
            "mss_bytes": known.send_mss_bytes,
            "announced_mss_bytes": known.announced_mss_bytes,
            "congestion_control": congestion.rstrip(b"\0").decode(),
        }

    def _end(self, run: int, to: list[Any]) -> None:
        """The end of a run, more than once: it may be lost, too."""
        for _ in range(_ENDS):
            self.udp.sendto(_PROBE.pack(run, _END, 0), tuple(to))

    def _forget(self) -> None:
        """The flood's datagrams that wait in the socket are not the next measurement's."""
        self.udp.setblocking(False)
        try:
            while True:
                self.udp.recv(1)
        except BlockingIOError:
            self.udp.setblocking(True)


def _flooding(segment_bytes: int | None) -> socket.socket:
    """A socket that never waits, and whose datagrams are cut into segments of that size."""
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.setblocking(False)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    if segment_bytes is not None:
        out.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, segment_bytes)
    return out


def _received_bytes(device: str) -> int:
    for line in Path("/proc/net/dev").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == device:
            return int(numbers.split()[0])
    raise LookupError(device)


def _overflowed() -> int:
    """Datagrams for which sockets of this namespace had no room. A socket's own count has corrupt ones in it, too."""
    lines = Path("/proc/net/snmp").read_text(encoding="ascii").splitlines()
    names, numbers = (line.split() for line in lines if line.startswith("Udp:"))
    return int(numbers[names.index("RcvbufErrors")])


def main() -> None:
    """The child: one answer a request, until standard input ends."""
    meter = Meter(*sys.argv[1:])
    receiving = (meter.collect, meter.echo, meter.wire, meter.sink, meter.arrivals)
    sending = (meter.ping, meter.sizes, meter.burst, meter.flood, meter.pour, meter.bulk)
    operations: Mapping[str, Callable[..., dict[str, Any]]] = {
        operation.__name__: operation for operation in (*receiving, *sending)
    }
    _say(meter.ports())
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _say(operations[request.pop("operation")](**request))
        except OSError as error:
            _say({"error": str(error)})


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
