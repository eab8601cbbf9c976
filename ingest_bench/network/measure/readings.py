"""Turn what links and TCP recorded during the load into columns, and into intervals that may explain stalls."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from ingest_bench.model.network import LinkName
from ingest_bench.model.results import (
    CauseIntervals,
    ColumnValue,
    Histogram,
    Interval,
    ProbeOutput,
    Reading,
    percentile,
)
from ingest_bench.network.act.link import FIRST_NODE_PORT, Link, LinkCounters
from ingest_bench.network.measure import qdiscs
from ingest_bench.network.measure.tcp_info import Connection
from ingest_bench.network.measure.wire import WireRecord, read_wire
from ingest_bench.network.plan.link_plan import DIRECTIONS

# By direction; None: its watcher died.
WireRecords = Mapping[str, WireRecord | None]

_MILLION = 10**6
# Counters of TCP (include/uapi/linux/snmp.h): each column is the sum of its counters.
_TCP_COLUMNS = {
    "retransmits": ("RetransSegs",),
    "out_of_order": ("TCPOFOQueue",),
    # Reported for each duplicate: of data that was taken, and of data that waits for missing data (RFC 2883).
    "duplicates": ("TCPDSACKOldSent", "TCPDSACKOfoSent"),
    "reorder_events": ("TCPSACKReorder", "TCPTSReorder", "TCPRenoReorder"),
    "ecn_marks": ("InCEPkts",),
}
_ZERO_WINDOWS = "TCPToZeroWindowAdv"

LOST = "packets lost on the network"
# By direction of the watcher: that of to-client has the load's sockets, that of to-server those of the server.
_FULL_BUFFER_CAUSES = {
    "to-client": {
        "receiver_full_us": "the server's receive window was full",
        "send_buffer_full_us": "the load's send buffer was full",
    },
    "to-server": {
        "receiver_full_us": "the load's receive window was full",
        "send_buffer_full_us": "the server's send buffer was full",
    },
}
_HALF = 0.5
# A retransmission without timeout costs about a round trip. A short one delays no request, and a busy machine that is
# late with its acknowledgements makes TCP resend data that was never lost (a tail loss probe).
_MIN_LOSS_RTT_US = 50_000
# The shortest time after which TCP resends unacknowledged data (TCP_RTO_MIN of Linux): the loss is older.
_MIN_TIMEOUT_NS = 200_000_000
_TCP_INTERVAL_NS = 250_000_000


def start_counting(*links: Link) -> None:
    """Set the origin of `link_columns` to the present counters."""
    for link in links:
        link.counters_at_start = read_counters(link)


def link_columns(*links: Link, wires: Sequence[Path] = (), clients: bool = True) -> dict[str, ColumnValue]:
    """Return the columns of these links together since `start_counting`; `analysis.run.columns` describes each.

    *wires* are the files of `watch_wire`. Without *clients*, counters of TCP are those of the servers. Packets that
    netem marked instead of dropping count as drops too (net/sched/sch_netem.c, netem_enqueue). The idle round trip of
    several links is the median of their medians.
    """
    queues: Counter[str] = Counter()
    tcp: dict[int, dict[str, int]] = {}
    for link in links:
        now, before = read_counters(link), link.counters_at_start
        queues.update({name: count - before.queues.get(name, 0) for name, count in now.queues.items()})
        # A namespace counts once, however many links it has.
        for pid, counts in now.tcp.items():
            tcp.setdefault(pid, {name: count - before.tcp.get(pid, {}).get(name, 0) for name, count in counts.items()})
    servers = {link.server.pid for link in links}
    has_queues = any(name.startswith("packets ") for name in queues)
    packets, drops = queues["packets to-server"], queues["drops to-server"]
    idle_rtts_ms = [link.idle_rtt_ms for link in links if link.idle_rtt_ms is not None]
    return {
        "wire_packets": sum(queues[f"packets {direction}"] for direction in DIRECTIONS) if has_queues else None,
        "qdisc_drops": sum(queues[f"drops {direction}"] for direction in DIRECTIONS) if has_queues else None,
        "loss_ppm": round(drops * _MILLION / (packets + drops)) if packets + drops else None,
        "zero_windows": sum(counts[_ZERO_WINDOWS] for pid, counts in tcp.items() if pid in servers),
        **{
            column: sum(counts[name] for pid, counts in tcp.items() if clients or pid in servers for name in names)
            for column, names in _TCP_COLUMNS.items()
        },
        "idle_rtt_ms": statistics.median(idle_rtts_ms) if idle_rtts_ms else None,
        "idle_rtt_samples": sum(link.idle_rtt_count for link in links) if idle_rtts_ms else None,
        **(_wire_columns(wires) if wires else {}),
    }


def read_counters(link: Link) -> LinkCounters:
    """Read the counters of a link's qdiscs, and of TCP at its ends."""
    queues: dict[str, int] = {}
    if link.profile.medium == "veth":
        for direction in DIRECTIONS:
            place, device = link.shaping_device(direction)
            counters = qdiscs.parse_counters(place.run(qdiscs.show_argv(device)))
            queues[f"packets {direction}"] = counters.packets
            queues[f"drops {direction}"] = counters.drops
    tcp = {}
    for namespace in (link.client, link.server):
        counts = parse_proc_net(namespace.run(("cat", "/proc/net/snmp", "/proc/net/netstat")))
        tcp[namespace.pid] = {name: counts[name] for name in (_ZERO_WINDOWS, *itertools.chain(*_TCP_COLUMNS.values()))}
    return LinkCounters(queues, tcp)


def parse_proc_net(text: str) -> dict[str, int]:
    """Parse /proc/net/snmp and /proc/net/netstat: a line of names, then a line of numbers."""
    counts: dict[str, int] = {}
    lines = text.splitlines()
    for names, numbers in zip(lines[::2], lines[1::2], strict=True):
        counts |= dict(zip(names.split()[1:], map(int, numbers.split()[1:]), strict=True))
    return counts


def _wire_columns(wires: Sequence[Path]) -> dict[str, ColumnValue]:
    """Return the columns of the wire's watchers; None for what they did not observe."""
    records = [read_wire(path) for path in wires]
    to_server = [record for by_direction in records if (record := by_direction.get("to-server"))]
    to_client = [record for by_direction in records if (record := by_direction.get("to-client"))]
    sizes: Counter[int] = Counter()
    for record in to_server:
        sizes.update(record.frames)
    connections = [connection for record in to_client for connection in record.connections]
    rtts_us = [connection.rtt_us for connection in connections]
    mss = [connection.send_mss_bytes for connection in connections]
    return {
        "wire_bytes_p50": percentile(sizes, 50),
        "wire_frames": sum(record.sampled_frames for record in to_server) if to_server else None,
        "mss": statistics.median_low(mss) if mss else None,
        "rtt_ms": statistics.median_low(rtts_us) / 1000 if rtts_us else None,
        "rtt_samples": len(rtts_us) if to_client else None,
    }


# Waits of connections.


def node_wait_columns(
    links: Mapping[LinkName, WireRecords], nodes: int, start_ns: int, end_ns: int
) -> tuple[dict[str, ColumnValue], ...]:
    """Return for each node `peer_wait_ms_mean` and `peer_wait_ms_max`: how long a peer waited for its replies.

    Four times a second the longest wait of each peer's connections to it counts; the mean is that of the peer that
    waited longest. A wait is a lower bound: TCP knows when data was last sent, not when the first unanswered byte was,
    and a round trip. Data sent before the measurement does not count: a node that abandoned a request, such as one to
    join, never reads its reply.
    """
    waits_by_node: list[list[list[float]]] = [[] for _ in range(nodes)]
    for name, records in links.items():
        first, second = name.nodes
        # The watcher of packets to the server's end, which is the second node, has that node's own sockets.
        for direction, node in (("to-server", first), ("to-client", second)):
            if (record := records.get(direction)) is not None:
                waits = [wait for at_ns, wait in longest_waits(record, start_ns) if start_ns <= at_ns < end_ns]
                waits_by_node[node - 1].append(waits)
    return tuple(
        {
            "peer_wait_ms_mean": max((sum(waits) / len(waits) for waits in peers if waits), default=None),
            "peer_wait_ms_max": max((max(waits) for waits in peers if waits), default=None),
        }
        for peers in waits_by_node
    )


def longest_waits(record: WireRecord, since_ns: int) -> Iterator[tuple[int, float]]:
    """Yield for each snapshot the longest wait (in ms) of a connection for a reply to data sent since `since_ns`."""
    before_ns = 0
    waits: dict[tuple[int, int], float] = {}
    for snapshot in record.tcp:
        passed_ms = (snapshot.at_ns - before_ns) / 1e6
        since_ms = (snapshot.at_ns - since_ns) / 1e6
        # The local end opened it, by its port: it waits for replies, and its peer for requests.
        now = {
            connection.ports: _wait_ms(connection, waits.get(connection.ports, 0.0), passed_ms)
            for connection in snapshot.connections
            if connection.local_port >= FIRST_NODE_PORT and connection.sent_ms_ago <= since_ms
        }
        yield snapshot.at_ns, max(now.values(), default=0.0)
        before_ns, waits = snapshot.at_ns, now


def wire_outputs(by_direction: WireRecords, ports: Collection[int]) -> tuple[ProbeOutput, ...]:
    """Return what the watchers of the clients' link observed: frame sizes, windows, and causes of stalls."""
    to_server, to_client = by_direction.get("to-server"), by_direction.get("to-client")
    sizes = (Histogram("wire_bytes", to_server.frames),) if to_server and to_server.frames else ()
    windows = measure_windows(to_client, frozenset(ports)) if to_client else ()
    return (*sizes, *windows, *find_losses(by_direction, ports), *find_full_buffers(by_direction, ports))


def measure_windows(record: WireRecord, ports: Collection[int]) -> Iterator[Reading]:
    """Yield the windows of the load's connections, and the share of the time in which a full buffer stopped them.

    A connection counts as much as it was busy: a client of Kafka has one that is hardly used. The last snapshot in
    which it was open has its totals.
    """
    first: dict[tuple[int, int], tuple[int, Connection]] = {}
    last: dict[tuple[int, int], tuple[int, Connection]] = {}
    congestion_windows, peer_windows = [], [0]
    for snapshot in record.tcp:
        for connection in snapshot.connections:
            key = connection.ports
            if connection.local_port not in ports:
                continue
            if key in last and connection.busy_us > last[key][1].busy_us:
                congestion_windows.append(connection.congestion_window_segments * connection.send_mss_bytes)
                peer_windows.append(connection.peer_window_bytes)
            first.setdefault(key, (snapshot.at_ns, connection))
            last[key] = (snapshot.at_ns, connection)
    weighted_us, full_us = 0.0, dict.fromkeys(("receiver_full_us", "send_buffer_full_us"), 0.0)
    for key, (begin_ns, before) in first.items():
        end_ns, after = last[key]
        busy_us = after.busy_us - before.busy_us
        weighted_us += busy_us * (end_ns - begin_ns) / 1e3
        for name in full_us:
            full_us[name] += busy_us * (getattr(after, name) - getattr(before, name))
    if congestion_windows and weighted_us > 0:
        yield Reading("receive_window_full_share", full_us["receiver_full_us"] / weighted_us)
        yield Reading("send_buffer_full_share", full_us["send_buffer_full_us"] / weighted_us)
        yield Reading("receive_window_max_bytes", max(peer_windows) or None)
        yield Reading("congestion_window_bytes", round(statistics.fmean(congestion_windows)))


def find_losses(by_direction: WireRecords, ports: Collection[int]) -> tuple[CauseIntervals, ...]:
    """Return the spans in which one of these connections resent data, at either end.

    Empty unless both ends were watched. With snapshots four times a second, the span of a timeout begins the shortest
    timeout before the last snapshot without one, and ends at the first snapshot without one. Data that was resent
    without a timeout was resent since the snapshot before.
    """
    ends = [record for direction in DIRECTIONS if (record := by_direction.get(direction)) is not None]
    if len(ends) < 2 or not any(record.connections for record in ends):
        return ()
    fast = [
        span
        for record in ends
        for span in _find_growth(record, frozenset(ports), "retransmits", LOST, 1, _MIN_LOSS_RTT_US)
    ]
    timeouts = [span for record in ends for port in ports for span in _find_timeouts(record, port)]
    return (CauseIntervals(LOST, (*timeouts, *fast), timing_error_ns=_TCP_INTERVAL_NS),)


def find_full_buffers(by_direction: WireRecords, ports: Collection[int]) -> tuple[CauseIntervals, ...]:
    """Return the spans in which one of these connections was limited by a full receive window or send buffer.

    A span is the time between two snapshots, if the limit applied for half of it. Ends that were not watched are left
    out.
    """
    return tuple(
        CauseIntervals(
            cause,
            tuple(_find_growth(record, frozenset(ports), counter, cause, _HALF)),
            timing_error_ns=_TCP_INTERVAL_NS,
        )
        for direction, causes in _FULL_BUFFER_CAUSES.items()
        for counter, cause in causes.items()
        if (record := by_direction.get(direction)) is not None and record.connections
    )


def _find_growth(
    record: WireRecord, ports: frozenset[int], counter: str, cause: str, minimum: float, min_rtt_us: int = 0
) -> Iterator[Interval]:
    """Yield where a connection's counter grew by `minimum` since the last snapshot; below 1: by that share of time.

    Connections with a round trip below `min_rtt_us` are left out.
    """
    before: dict[tuple[int, int], int] = {}
    before_ns = 0
    for snapshot in record.tcp:
        now: dict[tuple[int, int], int] = {
            connection.ports: getattr(connection, counter)
            for connection in snapshot.connections
            if connection.rtt_us >= min_rtt_us and not ports.isdisjoint(connection.ports)
        }
        threshold = minimum if minimum >= 1 else minimum * (snapshot.at_ns - before_ns) / 1e3
        for connection, count in now.items():
            if count - before.get(connection, count) >= threshold:
                (port,) = ports.intersection(connection)
                yield Interval(cause, before_ns, snapshot.at_ns, port=port)
        before, before_ns = now, snapshot.at_ns


def _find_timeouts(record: WireRecord, port: int) -> Iterator[Interval]:
    before_ns = begun_ns = None
    for snapshot in record.tcp:
        if any(connection.timeouts for connection in snapshot.connections if port in connection.ports):
            if begun_ns is None:
                begun_ns = (before_ns or snapshot.at_ns) - _MIN_TIMEOUT_NS
        elif begun_ns is not None:
            yield Interval(LOST, begun_ns, snapshot.at_ns, port=port)
            begun_ns = None
        before_ns = snapshot.at_ns
    if begun_ns is not None and before_ns is not None:
        yield Interval(LOST, begun_ns, before_ns, port=port)


def _wait_ms(connection: Connection, before_ms: float, passed_ms: float) -> float:
    if connection.sent_ms_ago >= connection.received_ms_ago:
        return 0.0
    is_silent = connection.received_ms_ago >= passed_ms
    wait_ms = before_ms + passed_ms if is_silent and before_ms else connection.sent_ms_ago
    return max(wait_ms, connection.rtt_us / 1000)
