"""One meter at each end of a link, and the measurements that two of them make together."""

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

_ANSWER_S = 60.0


@dataclass(slots=True)
class Remote:
    """The near end of a meter."""

    child: system.Child
    address: str
    ports: dict[str, int]

    def start(self, operation: str, **arguments: Any) -> None:
        """The operation begins; `answer` has what it says."""
        self.child.tell(json.dumps({"operation": operation, **arguments}))

    def answer(self, limit_s: float = _ANSWER_S) -> dict[str, Any]:
        """The next line that the meter says."""
        answer: dict[str, Any] = json.loads(self.child.line(limit_s))
        if "error" in answer:
            raise RunFailed(f"{self.child.name}: {answer['error']}")
        return answer

    def where(self, kind: str) -> list[Any]:
        """The address of one of its sockets, "udp" or "tcp"."""
        return [self.address, self.ports[kind]]


@dataclass(slots=True)
class Way:
    """One direction: who sends and who receives."""

    sender: Remote
    receiver: Remote
    runs: Iterator[int]
    longest_rtt_s: float = 0.0
    """TCP needs some of them for its shortest transfer, and longer ones have longer limits."""

    @property
    def _most_s(self) -> float:
        """How long any operation takes at most, beside the time that it sends."""
        return _ANSWER_S / 2 + 3 * self.longest_rtt_s

    def probes(
        self, operation: str, *, quiet_s: float, tail_s: float = 0.0, seconds: float = 0.0, **sending: Any
    ) -> tuple[Any, Any]:
        """What the sender said of its probes, which take it so long, and the receiver of those that came."""
        run = next(self.runs)
        return self._both(
            operation,
            {"run": run, "to": self.receiver.where("udp"), **sending},
            "collect",
            {"run": run, "quiet_s": quiet_s, "tail_s": tail_s, "most_s": self._most_s + seconds},
            seconds,
        )

    def round_trips_ns(self, count: int, every_s: float, wait_s: float) -> list[int]:
        """Round-trip times, shortest first."""
        run = next(self.runs)
        sending = {"run": run, "to": self.receiver.where("udp"), "count": count, "every_s": every_s, "wait_s": wait_s}
        seconds = count * every_s
        receiving = {"run": run, "quiet_s": wait_s + 1, "most_s": self._most_s + seconds}
        said, _ = self._both("ping", sending, "echo", receiving, seconds)
        rtts: list[int] = sorted(said["rtts_ns"])
        return rtts

    def bulks(
        self, times: int, *, packets: int, mtu_bytes: int, frame_bytes: int, quiet_s: float, pause_s: float
    ) -> list[list[int]]:
        """For each of so many bulks, which are sent at once after a pause, the moments, in ns, of its frames."""
        sending = {"to": self.receiver.where("udp"), "packets": packets, "mtu_bytes": mtu_bytes}
        receiving = {"frames": packets, "frame_bytes": frame_bytes, "quiet_s": quiet_s, "most_s": quiet_s + 1}
        found: list[list[int]] = []
        for left in reversed(range(times)):
            which = {"pause_s": pause_s, "last": left == 0}
            found.append(self._both("bulk", sending, "arrivals", receiving | which)[1]["moments_ns"])
        return found

    def flood(self, seconds: float, mtu_bytes: int, per_s: int, pieces: int, most_s: float) -> list[tuple[float, int]]:
        """Moments and bytes received until then, while more is sent than the link can carry."""
        to = self.receiver.where("udp")
        sending = {"to": to, "seconds": seconds, "mtu_bytes": mtu_bytes, "per_s": per_s, "pieces": pieces}
        # Beside busy processes the guest was silent for 50 ms in the middle of a flood, and then made up for it.
        _, said = self._both("flood", sending, "wire", {"seconds": most_s, "quiet_s": 0.2})
        return [(at, count) for at, count in said["points"]]

    def transfer(self, seconds: float, most_bytes: int, sampled: int) -> tuple[Any, Any]:
        """What the sender's TCP knew after a short transfer, and the frames that the receiver saw."""
        sending = {"to": self.receiver.where("tcp"), "seconds": seconds, "most_bytes": most_bytes}
        sending["connect_s"] = self._most_s
        return self._both("pour", sending, "sink", {"most_s": self._most_s, "sampled": sampled})

    def _both(
        self, send: str, sending: dict[str, Any], receive: str, receiving: dict[str, Any], seconds: float = 0.0
    ) -> tuple[Any, Any]:
        self.receiver.start(receive, **receiving)
        self.receiver.answer()
        self.sender.start(send, **sending)
        # Each ends by itself before: its own limit is half of that.
        limit_s = 2 * self._most_s + seconds
        return self.sender.answer(limit_s), self.receiver.answer(limit_s)


@contextmanager
def meters(link: Link, *, pairs: int) -> Iterator[list[tuple[Remote, Remote]]]:
    """Pairs of a meter in the client's and one in the server's namespace."""
    with ExitStack() as stack:
        started = [(end, stack.enter_context(_meter(end))) for _ in range(pairs) for end in link.ends]
        ready = [Remote(child, end.address, json.loads(child.line())) for end, child in started]
        yield list(zip(ready[::2], ready[1::2], strict=True))


def _meter(end: End) -> system.Child:
    argv = system.python("ingest_bench.network.measure.meter", end.address, end.device)
    name = f"the link could not be measured: the meter at {end.address}"
    return system.Child(end.namespace.command(argv), name=name)
