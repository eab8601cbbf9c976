"""What crosses a link while the load runs: sampled sizes of frames, and what TCP knows, at a negligible cost.

A child in the receiving namespace looks at its packet socket 50 times a second: waiting for each frame would wake it
for each frame. It ends when its standard input ends, and then writes what it saw.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.network.measure import diag, frames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.model.results import Histogram
    from ingest_bench.network.act.link import End, Link

_LOOK_EVERY_S = 0.02
_ASK_TCP_EVERY_S = 0.25
# More frames at a look, and half of them are enough; fewer in a second, and twice as many are to be had.
_FIRST, _MOST_A_LOOK, _LOOKS, _LEAST, _SPARSEST = 8, 16, 50, 200, 1024
_END_S = 10.0
# Of a connection, each time that TCP is asked: files of earlier versions lack some of the others.
_ALWAYS = ("local_port", "remote_port", "rtt_us")
_KEPT = (
    *(*_ALWAYS, "send_mss_bytes"),
    *("retransmits", "timeouts", "sent_ms_ago", "received_ms_ago", "receiver_full_us", "send_buffer_full_us"),
)
WIRE = "wire.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What TCP knew at a moment."""

    at_ns: int
    connections: tuple[dict[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a watcher saw of one direction."""

    frames: dict[int, int]
    """How many had a size, by that size, Ethernet header included: each that was looked at stands for its share."""
    looked_at: int
    lost: int
    """Of those that were to be looked at."""
    seconds: float
    tcp: tuple[Asked, ...]
    """Of the receiving side: that of to-client are the client's own sockets."""

    def of_connections(self, name: str) -> list[int]:
        """That number of all connections, each time that TCP was asked."""
        return [connection[name] for asked in self.tcp for connection in asked.connections if name in connection]


@contextmanager
def watch_wire(link: Link, path: Path) -> Iterator[None]:
    """Two watchers, one for each direction; at the end the file has what they saw (`seen`)."""
    client, server = link.ends
    with ExitStack() as stack:
        ends = (("to-server", server), ("to-client", client))
        watchers = {direction: stack.enter_context(_watcher(end)) for direction, end in ends}
        for watcher in watchers.values():
            watcher.line()  # It watches.
        try:
            yield
        finally:
            left = {direction: _end(watcher) for direction, watcher in watchers.items()}
            path.write_text(json.dumps(left), encoding="utf-8")


def seen(path: Path) -> dict[str, Seen | None]:
    """By direction what `watch_wire` left; None: its watcher was gone. Empty where nobody watched."""
    from ingest_bench.inputs import records  # noqa: PLC0415 - not in the child

    try:
        found: dict[str, Seen | None] = records.from_file(dict[str, Seen | None], path)
    except FileNotFoundError:
        return {}
    for end in filter(None, found.values()):
        if any(name not in row for sample in end.tcp for row in sample.connections for name in _ALWAYS):
            raise SpecError(f"{path}: this file is damaged: a connection lacks one of {', '.join(_ALWAYS)}")
    return found


def frame_sizes(raw: Path) -> tuple[Histogram, ...]:
    """The sampled sizes of frames to the server, as `watch_wire` left them; nothing where it saw nothing."""
    from ingest_bench.model.results import Histogram  # noqa: PLC0415 - not in the child

    to_server = seen(raw / WIRE).get("to-server")
    return (Histogram("wire_bytes", to_server.frames),) if to_server and to_server.frames else ()


class Sample:
    """Sizes of frames, as dense as there are few of them: whatever the rate, some hundred a second are looked at."""

    def __init__(self, watched: frames.Frames) -> None:
        self.watched = watched
        self.frames: Counter[int] = Counter()
        self.looked_at = 0
        self._looks, self._lately = 0, 0

    def look(self) -> None:
        """What came since the last look, each for as many as one was looked at of."""
        self.watched.drain()
        new = self.watched.counts.total()
        for size_bytes, count in self.watched.counts.items():
            self.frames[size_bytes] += count * self.watched.sampled
        self.watched.counts.clear()
        self.looked_at += new
        self._looks, self._lately = self._looks + 1, self._lately + new
        if new > _MOST_A_LOOK and self.watched.sampled < _SPARSEST:
            self._begin(self.watched.sampled * 2)
        elif self._looks == _LOOKS:
            self._begin(self.watched.sampled // 2 if self._lately < _LEAST else self.watched.sampled)

    def _begin(self, sampled: int) -> None:
        self._looks = self._lately = 0
        if max(1, sampled) != self.watched.sampled:
            self.watched.sample(max(1, sampled))


def _watcher(end: End) -> system.Child:
    argv = system.python("ingest_bench.network.measure.wire", end.device, end.address, end.peer)
    return system.Child(end.namespace.command(argv), name=f"wire: the watcher on {end.device}")


def _end(watcher: system.Child) -> dict[str, Any] | None:
    """What a watcher saw; None when it is gone."""
    try:
        found: dict[str, Any] = json.loads(watcher.rest(_END_S))
    except (RunFailed, ValueError):
        return None
    return found


def main() -> None:
    """The child: DEVICE DESTINATION PEER."""
    device, destination, peer = sys.argv[1:]
    sample = Sample(frames.Frames(device, destination, _FIRST))
    sys.stdout.write("watching\n")
    sys.stdout.flush()
    os.set_blocking(0, False)
    began = time.monotonic()
    ask_at = began
    tcp = []
    while _is_open(0):
        time.sleep(_LOOK_EVERY_S)
        sample.look()
        if time.monotonic() >= ask_at:
            ask_at += _ASK_TCP_EVERY_S
            tcp.append(
                {
                    "at_ns": time.time_ns(),
                    "connections": [_row(one) for one in diag.connections() if one.remote_address == peer],
                }
            )
    result = {
        "frames": dict(sorted(sample.frames.items())),
        "looked_at": sample.looked_at,
        "lost": sample.watched.lost(),
        "seconds": time.monotonic() - began,
        "tcp": tcp,
    }
    sys.stdout.write(json.dumps(result))


def _is_open(pipe: int) -> bool:
    try:
        return os.read(pipe, 1) != b""
    except BlockingIOError:
        return True


def _row(connection: diag.Connection) -> dict[str, int]:
    return {name: getattr(connection, name) for name in _KEPT}


if __name__ == "__main__":
    main()
