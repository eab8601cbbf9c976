"""What crosses a link while the load runs: sampled sizes of frames, and what TCP knows, at a negligible cost.

A child in the receiving namespace looks at its packet socket 50 times a second: waiting for each frame would wake it
for each frame. It ends when its standard input ends, and then writes what it saw.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.model.results import Histogram
from ingest_bench.network import diag, frames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.network.link import End, Link

_LOOK_EVERY_S = 0.02
_ASK_TCP_EVERY_S = 0.25
FILE = "wire.json"


@contextmanager
def watch_wire(link: Link, raw: Path) -> Iterator[None]:
    """Two watchers, one for each direction; at the end `raw/wire.json` has what they saw.

    {"to-server": {"one_of": 64, "frames": {"1514": 1304, …}, "lost": 0, "seconds": 12.1, "tcp": [{"at_ns": …,
    "connections": [{"send_mss_bytes": …, "rtt_us": …}]}]}, "to-client": …}. `tcp` is the receiving side's: to-client
    has the client's own sockets. A frame's size counts its Ethernet header.
    """
    client, server = link.ends
    with ExitStack() as stack:
        directions = (("to-server", server, link.profile.to_server), ("to-client", client, link.profile.to_client))
        watchers = {}
        for direction, end, impairment in directions:
            sampled = frames.one_of(impairment.rate_bps or impairment.netem_rate_bps)
            watchers[direction] = _start(end, sampled, stack)
        try:
            yield
        finally:
            seen = {direction: _end(watcher) for direction, watcher in watchers.items()}
            (raw / FILE).write_text(json.dumps(seen), encoding="utf-8")


def frame_sizes(raw: Path) -> tuple[Histogram, ...]:
    """The sampled sizes of frames to the server, as `watch_wire` left them; nothing where it saw nothing."""
    try:
        seen = json.loads((raw / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    counts = {int(size): count for size, count in (seen.get("to-server") or {}).get("frames", {}).items()}
    return (Histogram("wire_bytes", counts),) if counts else ()


def _start(end: End, sampled: int, stack: ExitStack) -> subprocess.Popen[bytes]:
    argv = system.python("ingest_bench.network.wire", end.device, end.address, str(sampled))
    pipe = subprocess.PIPE
    watcher = system.start(end.namespace.command(argv), stdin=pipe, stdout=pipe, stderr=pipe)
    stack.callback(_close, watcher)
    assert watcher.stdout is not None  # noqa: S101 - for the type checker
    if watcher.stdout.readline() != b"watching\n":
        _, said = watcher.communicate()
        raise RunFailed(f"wire: no packet socket on {end.device}: {said.decode(errors='replace').strip()[-500:]}")
    return watcher


def _end(watcher: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    """What a watcher saw; None when it is gone."""
    try:
        said, _ = watcher.communicate(timeout=10)
        seen: dict[str, Any] = json.loads(said)
    except (subprocess.TimeoutExpired, ValueError):
        return None
    return seen


def _close(watcher: subprocess.Popen[bytes]) -> None:
    watcher.kill()
    watcher.wait()
    for pipe in (watcher.stdin, watcher.stdout, watcher.stderr):
        if pipe is not None:
            pipe.close()


def main() -> None:
    """The child: DEVICE DESTINATION ONE_OF."""
    device, destination, sampled = sys.argv[1:]
    seen = frames.Frames(device, destination, int(sampled))
    sys.stdout.write("watching\n")
    sys.stdout.flush()
    os.set_blocking(0, False)
    began = time.monotonic()
    ask_at = began
    tcp = []
    while _is_open(0):
        time.sleep(_LOOK_EVERY_S)
        seen.drain()
        if time.monotonic() >= ask_at:
            ask_at += _ASK_TCP_EVERY_S
            tcp.append({"at_ns": time.time_ns(), "connections": [_row(one) for one in diag.connections()]})
    result = {
        "one_of": seen.sampled,
        "frames": dict(sorted(seen.counts.items())),
        "lost": seen.lost(),
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
    names = ("local_port", "remote_port", "send_mss_bytes", "rtt_us", "retransmits")
    return {name: getattr(connection, name) for name in names}


if __name__ == "__main__":
    main()
