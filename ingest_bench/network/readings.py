"""What the link and TCP counted while the load ran."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

from ingest_bench.network import qdiscs
from ingest_bench.network.places import DIRECTIONS

if TYPE_CHECKING:
    from pathlib import Path

    from ingest_bench.model.results import Value
    from ingest_bench.network.link import Link

_MILLION = 10**6


def start(link: Link) -> None:
    """From now on: what `readings` counts begins here."""
    link.counted_before = counters(link)


def readings(link: Link, wire: Path | None = None) -> dict[str, Value]:
    """The link's numbers since `start`, while it still stands; `wire` is what `watch_wire` left.

    - `wire_packets`: packets that the queues of both directions sent on; None on a loopback link, which has none.
    - `qdisc_drops`: packets that they dropped, netem's losses among them; `loss_ppm` is their share to the server.
    - `retransmits`: TCP segments that either end sent again.
    - `zero_windows`: how often the server told a sender to stop.
    - `wire_bytes_p50`: the median frame to the server, Ethernet header included, of those that were sampled.
    - `idle_rtt_ms`: the median round trip that `check` measured before the load; None: nothing was promised about it.
    - `mss`, `rtt_ms`: medians of what the client's TCP knew of its connections, four times a second.
    """
    now, before = counters(link), link.counted_before
    since = {name: count - before.get(name, 0) for name, count in now.items()}
    shaped = any(name.startswith("packets ") for name in since)
    packets, drops = since.get("packets to-server", 0), since.get("drops to-server", 0)
    ends = ("server",) if link.profile.medium == "loopback" else ("client", "server")
    return {
        "wire_packets": sum(since[f"packets {direction}"] for direction in DIRECTIONS) if shaped else None,
        "qdisc_drops": sum(since[f"drops {direction}"] for direction in DIRECTIONS) if shaped else None,
        "loss_ppm": round(drops * _MILLION / (packets + drops)) if packets + drops else None,
        "retransmits": sum(since[f"{end} RetransSegs"] for end in ends),
        "zero_windows": since["server TCPToZeroWindowAdv"],
        "idle_rtt_ms": link.idle_rtt_ms,
        **(_seen(wire) if wire is not None else {}),
    }


def counters(link: Link) -> dict[str, int]:
    """The counts of the queues by direction, and of TCP by end."""
    found: dict[str, int] = {}
    if link.profile.medium == "veth":
        for direction in DIRECTIONS:
            place, device = link.shaper(direction)
            counted = qdiscs.counters(place.run(qdiscs.show(device)))
            found[f"packets {direction}"] = counted.packets
            found[f"drops {direction}"] = counted.drops
    for name, end in zip(("client", "server"), link.ends, strict=True):
        text = end.namespace.run(("cat", "/proc/net/snmp", "/proc/net/netstat"))
        tcp = parse(text)
        found |= {f"{name} {key}": tcp[key] for key in ("RetransSegs", "TCPToZeroWindowAdv") if key in tcp}
    return found


def parse(text: str) -> dict[str, int]:
    """Name to count of /proc/net/snmp and /proc/net/netstat: a line of names, then a line of numbers."""
    found: dict[str, int] = {}
    lines = text.splitlines()
    for names, numbers in zip(lines[::2], lines[1::2], strict=True):
        found |= dict(zip(names.split()[1:], map(int, numbers.split()[1:]), strict=True))
    return found


def _seen(wire: Path) -> dict[str, Value]:
    """What the watchers of the wire saw; None for what they did not."""
    try:
        seen: dict[str, Any] = json.loads(wire.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return dict.fromkeys(("wire_bytes_p50", "mss", "rtt_ms"))
    to_server, client = seen.get("to-server") or {}, seen.get("to-client") or {}
    known = [connection for asked in client.get("tcp", ()) for connection in asked["connections"]]
    rtt_us = _median([connection["rtt_us"] for connection in known])
    return {
        "wire_bytes_p50": median({int(size): count for size, count in to_server.get("frames", {}).items()}),
        "mss": _median([connection["send_mss_bytes"] for connection in known]),
        "rtt_ms": None if rtt_us is None else rtt_us / 1000,
    }


def median(counts: dict[int, int]) -> int | None:
    """The median of what a histogram counts; None when it is empty."""
    left = sum(counts.values()) / 2
    for size, count in sorted(counts.items()):
        left -= count
        if left <= 0:
            return size
    return None


def _median(values: list[int]) -> int | None:
    return statistics.median_low(values) if values else None
