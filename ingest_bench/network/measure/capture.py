"""A capture of a device: the headers of its frames as a pcap file, and what scapy reads in such a file.

The file has no credential and no document in it: see `ring`. The kernel ends the capture with us.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.network.act import ring
from ingest_bench.units import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_KEEP_LIMIT_S, _LOOK_S = 60.0, 0.05
_SEQUENCES = 1 << 32


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture that lasts."""

    path: Path
    child: system.Child

    def wait(self, limit_s: float) -> None:
        """Until it is full, at most so long."""
        until = time.monotonic() + limit_s
        while self.child.runs() and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(_LOOK_S, left_s))

    def keep(self) -> int:
        """Write the file; how many frames are not in it, because nobody looked in time."""
        try:
            return int(self.child.ask("keep", _KEEP_LIMIT_S))
        except (RunFailed, ValueError):
            raise RunFailed(f"capture: {self.path} could not be written: {self.child.said()}") from None


@contextmanager
def capturing(
    enter: Callable[[Sequence[str]], Sequence[str]],
    device: str,
    path: Path,
    most_bytes: int,
    *,
    keeps_last: bool = False,
) -> Iterator[Capture]:
    """The frames of a device while the block lasts: the first ones that fit, or the last ones. `keep` writes them.

    `enter` makes the argv that runs an argv where the device is.
    """
    try:
        # Now, and not when all was captured, it is said that it cannot be.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        path.unlink()
    except OSError as error:
        raise SpecError(f"{path}: no new file can be made here ({error.strerror}); name another one") from None
    which = "last" if keeps_last else "first"
    argv = enter(system.script(ring.__file__, device, str(path.absolute()), str(most_bytes), which))
    with system.Child(argv, name="capture") as child:
        try:
            child.line()
        except RunFailed:
            raise MissingCapability(
                f"capture: no frames of {device} can be had: {child.said().splitlines()[-1]}\n"
                "An interface of this machine needs root; a link of ours does not."
            ) from None
        yield Capture(path, child)


@dataclass(slots=True)
class Seen:
    """What is in a capture."""

    frames: list[int] = field(default_factory=list)
    """Their lengths on the wire."""
    began_s: float = 0.0
    ended_s: float = 0.0
    connections: set[frozenset[tuple[str, int]]] = field(default_factory=set)
    flags: Counter[str] = field(default_factory=Counter)
    """Segments that begin, answer, end or reset a connection."""
    mss: Counter[int] = field(default_factory=Counter)
    again: int = 0
    """Segments of what was sent before, or of what was overtaken."""
    zero_windows: int = 0
    icmp: Counter[str] = field(default_factory=Counter)
    ends: dict[tuple[str, int, str, int], int] = field(default_factory=dict)
    """The highest number that each sender has sent."""


def read(path: Path) -> Seen:
    """What scapy finds in a capture."""
    # Its import takes 0.5 s and more.
    with without_folders():
        from scapy.layers.inet import ICMP, IP, TCP  # noqa: PLC0415
        from scapy.layers.inet6 import IPv6  # noqa: PLC0415
        from scapy.layers.l2 import Ether  # noqa: PLC0415
        from scapy.utils import RawPcapReader  # noqa: PLC0415

    seen = Seen()
    with RawPcapReader(str(path)) as records:
        for data, about in records:
            at_s = about.sec + about.usec / 1e9
            seen.began_s, seen.ended_s = seen.began_s or at_s, at_s
            seen.frames.append(about.wirelen)
            frame = Ether(data)
            # Not what a tunnel carries.
            packet = frame.getlayer(IP) or frame.getlayer(IPv6)
            if packet is None:
                continue
            if isinstance(packet.payload, ICMP):
                seen.icmp[_named(packet.payload)] += 1
            elif isinstance(packet.payload, TCP):
                carried = packet.plen if isinstance(packet, IPv6) else packet.len - 4 * packet.ihl
                _segment(seen, packet, packet.payload, carried)
    return seen


@contextmanager
def without_folders() -> Iterator[None]:
    """Where scapy keeps and reads no pickles in a home: we may be root, and it somebody else's."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(("XDG_CACHE_HOME", "XDG_CONFIG_HOME"), "/proc/none"))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _named(message: Any) -> str:
    words = message.sprintf("%ICMP.type% %ICMP.code%")
    return f"{words}, MTU {message.nexthopmtu}" if (message.type, message.code) == (3, 4) else words


def _segment(seen: Seen, packet: Any, segment: Any, carried: int) -> None:
    """Of a packet that carries so many bytes."""
    ports = (packet.src, segment.sport, packet.dst, segment.dport)
    seen.connections.add(frozenset({ports[:2], ports[2:]}))
    flags = segment.flags
    kind = "reset" if flags.R else "answer" if flags.S and flags.A else "begin" if flags.S else "end" if flags.F else ""
    seen.flags[kind] += 1
    if flags.S:
        seen.mss.update(size for name, size in segment.options if name == "MSS")
    seen.zero_windows += segment.window == 0 and not flags.R
    count = carried - 4 * segment.dataofs + bool(flags.S) + bool(flags.F)
    if count <= 0 or flags.R:
        return
    end = (segment.seq + count) % _SEQUENCES
    highest = seen.ends.get(ports)
    if highest is not None and not 0 < (end - highest) % _SEQUENCES < _SEQUENCES // 2:
        seen.again += 1
    else:
        seen.ends[ports] = end


def words(seen: Seen, lost: int = 0) -> tuple[str, ...]:
    """What a capture saw, a line for each thing that there was."""
    if not seen.frames:
        return ("no frame",)
    flags = seen.flags
    lines = [
        (
            f"{len(seen.frames):,} frames in {seen.ended_s - seen.began_s:.3f} s: {sum(seen.frames):,} bytes, "
            f"median {median_low(seen.frames):,}, largest {max(seen.frames):,}"
        ),
        (
            f"{len(seen.connections):,} connections: {flags['begin']:,} SYN, {flags['answer']:,} answered, "
            f"{flags['end']:,} FIN, {flags['reset']:,} resets"
        ),
        f"sent again or overtaken: {seen.again:,}; zero windows: {seen.zero_windows:,}",
    ]
    lines += [f"MSS {size:,}: announced {count:,} times" for size, count in sorted(seen.mss.items())]
    lines += [f"ICMP {name}: {count:,}" for name, count in sorted(seen.icmp.items())]
    return (*lines, *([f"too fast to be kept: {count_of(lost, 'frame')}"] if lost else []))
