"""Start a meter at each end of a link, and make measurements that take two of them."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import RunFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.network.act.link import End, Link

_REPLY_LIMIT_S = 60.0


@dataclass(slots=True)
class RemoteMeter:
    """Our end of a `meter` child."""

    child: system.Child
    address: str
    ports: dict[str, int]

    def start(self, operation: str, **arguments: Any) -> None:
        """Start an operation; `read_reply` returns its reply."""
        self.child.write_line(json.dumps({"operation": operation, **arguments}))

    def read_reply(self, limit_s: float = _REPLY_LIMIT_S) -> dict[str, Any]:
        """Return the meter's next line."""
        reply: dict[str, Any] = json.loads(self.child.read_line(limit_s))
        if "error" in reply:
            raise RunFailed(f"{self.child.name}: {reply['error']}")
        return reply

    def socket_address(self, kind: str) -> list[Any]:
        """Return the address of its "udp" or "tcp" socket."""
        return [self.address, self.ports[kind]]


@dataclass(slots=True)
class MeterPair:
    """The meters of one direction: sender and receiver."""

    sender: RemoteMeter
    receiver: RemoteMeter
    run_numbers: Iterator[int]
    longest_rtt_s: float = 0.0
    """The shortest TCP transfer takes some round trips, so long ones extend the limits."""

    @property
    def _max_s(self) -> float:
        """The limit of an operation, in addition to its sending time."""
        return _REPLY_LIMIT_S / 2 + 3 * self.longest_rtt_s

    def send_probes(
        self, operation: str, *, quiet_s: float, tail_s: float = 0.0, seconds: float = 0.0, **sending: Any
    ) -> tuple[Any, Any]:
        """Send probes, which takes `seconds`; return the replies of sender and receiver."""
        run = next(self.run_numbers)
        return self._run_both(
            operation,
            {"run": run, "to": self.receiver.socket_address("udp"), **sending},
            "collect",
            {"run": run, "quiet_s": quiet_s, "tail_s": tail_s, "max_s": self._max_s + seconds},
            seconds,
        )

    def measure_rtts_ns(self, count: int, every_s: float, wait_s: float) -> list[int]:
        """Return round-trip times, shortest first."""
        run = next(self.run_numbers)
        to = self.receiver.socket_address("udp")
        sending = {"run": run, "to": to, "count": count, "every_s": every_s, "wait_s": wait_s}
        seconds = count * every_s
        receiving = {"run": run, "quiet_s": wait_s + 1, "max_s": self._max_s + seconds}
        reply, _ = self._run_both("ping", sending, "echo", receiving, seconds)
        rtts: list[int] = sorted(reply["rtts_ns"])
        return rtts

    def send_bursts(
        self, times: int, *, packets: int, mtu_bytes: int, frame_bytes: int, quiet_s: float, pause_s: float
    ) -> list[list[int]]:
        """Send bursts, each after a pause; return for each when its frames arrived, in ns."""
        sending = {"to": self.receiver.socket_address("udp"), "packets": packets, "mtu_bytes": mtu_bytes}
        receiving = {"frames": packets, "frame_bytes": frame_bytes, "quiet_s": quiet_s, "max_s": quiet_s + 1}
        bursts: list[list[int]] = []
        for left in reversed(range(times)):
            options = {"pause_s": pause_s, "last": left == 0}
            bursts.append(self._run_both("burst", sending, "arrivals", receiving | options)[1]["moments_ns"])
        return bursts

    def send_flood(
        self, seconds: float, mtu_bytes: int, per_s: int, packets_per_send: int, max_s: float
    ) -> list[tuple[float, int]]:
        """Send more than the link carries; return times and the bytes received until then."""
        to = self.receiver.socket_address("udp")
        sending = {"to": to, "seconds": seconds, "mtu_bytes": mtu_bytes, "per_s": per_s}
        sending["packets_per_send"] = packets_per_send
        # With busy processes User-Mode Linux paused for 50 ms in the middle of a flood, and then made up for it.
        _, reply = self._run_both("flood", sending, "wire", {"seconds": max_s, "quiet_s": 0.2})
        return [(at, count) for at, count in reply["points"]]

    def run_transfer(self, seconds: float, max_bytes: int, sampling: int) -> tuple[Any, Any]:
        """Make a short TCP transfer; return the sender's TCP data about it, and the receiver's frame sizes."""
        sending = {"to": self.receiver.socket_address("tcp"), "seconds": seconds, "max_bytes": max_bytes}
        sending["connect_s"] = self._max_s
        return self._run_both("pour", sending, "sink", {"max_s": self._max_s, "sampling": sampling})

    def _run_both(
        self, send: str, sending: dict[str, Any], receive: str, receiving: dict[str, Any], seconds: float = 0.0
    ) -> tuple[Any, Any]:
        self.receiver.start(receive, **receiving)
        self.receiver.read_reply()
        self.sender.start(send, **sending)
        # Each ends earlier by itself: its own limit is half of this.
        limit_s = 2 * self._max_s + seconds
        return self.sender.read_reply(limit_s), self.receiver.read_reply(limit_s)


@contextmanager
def start_meters(link: Link, *, pairs: int) -> Iterator[list[tuple[RemoteMeter, RemoteMeter]]]:
    """Yield pairs of a meter in the client's and one in the server's namespace."""
    with ExitStack() as stack:
        started = [(end, stack.enter_context(_start_meter(end))) for _ in range(pairs) for end in link.ends]
        ready = [RemoteMeter(child, end.address, json.loads(child.read_line())) for end, child in started]
        yield list(zip(ready[::2], ready[1::2], strict=True))


def _start_meter(end: End) -> system.Child:
    argv = system.build_module_argv("ingest_bench.network.measure.meter", end.address, end.device)
    return system.Child(end.namespace.command(argv), name=f"link check: the meter at {end.address}")
