"""What the link and TCP counted while the load ran."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from typing import TYPE_CHECKING

from ingest_bench.nearest_rank import percentile
from ingest_bench.network.act.link import Counted
from ingest_bench.network.measure import qdiscs
from ingest_bench.network.measure.wire import seen as wire_seen
from ingest_bench.network.plan.places import DIRECTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ingest_bench.model.results import Value
    from ingest_bench.network.act.link import Link

_MILLION = 10**6
# What TCP made of what the link did (include/uapi/linux/snmp.h): the counts of each column are added up.
_OF_TCP = {
    "retransmits": ("RetransSegs",),
    "out_of_order": ("TCPOFOQueue",),
    # It says so for each of them: of data that was taken, and of data that waits for what is missing (RFC 2883).
    "duplicates": ("TCPDSACKOldSent", "TCPDSACKOfoSent"),
    "overtaken": ("TCPSACKReorder", "TCPTSReorder", "TCPRenoReorder"),
    "ecn_marks": ("InCEPkts",),
}
_ZERO_WINDOWS = "TCPToZeroWindowAdv"


def start(*links: Link) -> None:
    """From now on: what `readings` counts begins here."""
    for link in links:
        link.counted_before = counters(link)


def readings(*links: Link, wires: Sequence[Path] = (), clients: bool = True) -> dict[str, Value]:
    """The numbers of these links together since `start`, while they still stand; `wires` are what `watch_wire` left.

    - `wire_packets`: packets that the queues of both directions sent on; None on a loopback link, which has none.
    - `qdisc_drops`: packets that they dropped, netem's losses among them; `loss_ppm` is their share to the server. What
      netem marked in place of dropping it counts here too (net/sched/sch_netem.c, netem_enqueue).
    - `retransmits`: TCP segments that either end sent again, on whatever link; without `clients` those of the servers.
    - `out_of_order`: segments that came before one that was sent earlier, at either end.
    - `duplicates`: segments that came twice, because the link made two of one or because TCP sent it again needlessly.
    - `overtaken`: how often a sender found that a segment was late, and not lost.
    - `zero_windows`: how often a server told a sender to stop.
    - `ecn_marks`: packets that came with the mark of congestion (CE), at either end, on whatever link.
    - `wire_bytes_p50`: the median frame to a server, Ethernet header included, of `wire_frames` that were looked at.
    - `idle_rtt_ms`: the median of the `idle_rtts` round trips that `check` measured before the load; None: nothing was
      promised about it. Of several links the median of theirs.
    - `mss`, `rtt_ms`: medians of what the clients' TCP knew of its connections, four times a second, `rtts` in all.
    """
    queues: Counter[str] = Counter()
    tcp: dict[int, dict[str, int]] = {}
    for link in links:
        now, before = counters(link), link.counted_before
        queues.update({name: count - before.queues.get(name, 0) for name, count in now.queues.items()})
        # Of a namespace once, however many links it has.
        for pid, counts in now.tcp.items():
            tcp.setdefault(pid, {name: count - before.tcp.get(pid, {}).get(name, 0) for name, count in counts.items()})
    servers = {link.server.pid for link in links}
    shaped = any(name.startswith("packets ") for name in queues)
    packets, drops = queues["packets to-server"], queues["drops to-server"]
    idle = [link.idle_rtt_ms for link in links if link.idle_rtt_ms is not None]
    return {
        "wire_packets": sum(queues[f"packets {direction}"] for direction in DIRECTIONS) if shaped else None,
        "qdisc_drops": sum(queues[f"drops {direction}"] for direction in DIRECTIONS) if shaped else None,
        "loss_ppm": round(drops * _MILLION / (packets + drops)) if packets + drops else None,
        "zero_windows": sum(counts[_ZERO_WINDOWS] for pid, counts in tcp.items() if pid in servers),
        **{
            column: sum(counts[name] for pid, counts in tcp.items() if clients or pid in servers for name in names)
            for column, names in _OF_TCP.items()
        },
        "idle_rtt_ms": statistics.median(idle) if idle else None,
        "idle_rtts": sum(link.idle_rtts for link in links) if idle else None,
        **(_seen(wires) if wires else {}),
    }


def counters(link: Link) -> Counted:
    """The counts of a link's queues, and of TCP at its ends."""
    queues: dict[str, int] = {}
    if link.profile.medium == "veth":
        for direction in DIRECTIONS:
            place, device = link.shaper(direction)
            counted = qdiscs.counters(place.run(qdiscs.show(device)))
            queues[f"packets {direction}"] = counted.packets
            queues[f"drops {direction}"] = counted.drops
    found = {}
    for place in (link.client, link.server):
        told = parse(place.run(("cat", "/proc/net/snmp", "/proc/net/netstat")))
        found[place.pid] = {name: told[name] for name in (_ZERO_WINDOWS, *itertools.chain(*_OF_TCP.values()))}
    return Counted(queues, found)


def parse(text: str) -> dict[str, int]:
    """Name to count of /proc/net/snmp and /proc/net/netstat: a line of names, then a line of numbers."""
    found: dict[str, int] = {}
    lines = text.splitlines()
    for names, numbers in zip(lines[::2], lines[1::2], strict=True):
        found |= dict(zip(names.split()[1:], map(int, numbers.split()[1:]), strict=True))
    return found


def _seen(wires: Sequence[Path]) -> dict[str, Value]:
    """What the watchers of the wire saw; None for what they did not."""
    seen = [wire_seen(path) for path in wires]
    to_server = [found for one in seen if (found := one.get("to-server"))]
    clients = [found for one in seen if (found := one.get("to-client"))]
    sizes: Counter[int] = Counter()
    for one in to_server:
        sizes.update(one.frames)
    rtts_us = [value for one in clients for value in one.of_connections("rtt_us")]
    rtt_us = _median(rtts_us)
    return {
        "wire_bytes_p50": percentile(sizes, 50),
        "wire_frames": sum(one.looked_at for one in to_server) if to_server else None,
        "mss": _median([value for one in clients for value in one.of_connections("send_mss_bytes")]),
        "rtt_ms": None if rtt_us is None else rtt_us / 1000,
        "rtts": len(rtts_us) if clients else None,
    }


def _median(values: list[int]) -> int | None:
    return statistics.median_low(values) if values else None
