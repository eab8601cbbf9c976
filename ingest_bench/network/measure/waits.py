"""What connections waited for: a node that gave no answer, or packets that TCP had to send again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest_bench.model.results import Interval, Watched
from ingest_bench.network.measure.wire import WIRE, Seen, seen

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from ingest_bench.model.network import LinkName
    from ingest_bench.model.results import Value

# The least of links._NODES_PORTS: whoever has such a port of its own has opened the connection, and awaits an answer to
# what it sends on it. Its peer only awaits the next question.
_OPENED_FROM = 61000
_KNOWN = {"local_port", "remote_port", "sent_ms_ago", "received_ms_ago", "rtt_us"}
LOST = "packets lost on the network"
# By direction of the watcher: to-client has the load's own sockets, to-server those of the server.
_HELD_BACK = {
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
# What TCP sends again without a timeout costs about a round trip. For a short one nobody waits, and a busy machine that
# is late with its acknowledgements makes TCP send again what was never lost (a tail loss probe).
_LONG_US = 50_000
# The least time after which TCP sends again what nobody acknowledged (TCP_RTO_MIN of Linux): the loss is older.
_TIMEOUT_NS = 200_000_000
_TCP_LOOK_NS = 250_000_000


def waited(
    links: Mapping[LinkName, Mapping[str, Seen | None]], nodes: int, start_ns: int, end_ns: int
) -> tuple[dict[str, Value], ...]:
    """For each node, `waited_for_ms_mean` and `waited_for_ms_max`: how long a peer of it waited for an answer.

    Four times a second each peer's connections to it are looked at, and the longest wait among them counts; the mean is
    that of the peer that waited longest. A wait is at least so long: TCP knows when something was sent last, not when
    the first byte without an answer was, and what a round trip takes. What was sent before the measurement counts
    nowhere: a node that gave up a question, such as one to join, never asks for its answer again.
    """
    found: list[list[list[float]]] = [[] for _ in range(nodes)]
    for name, ends in links.items():
        first, second = name.nodes
        # The watcher of packets to the server's side, which is the second node, has that node's own sockets.
        for waiting, node in (("to-server", first), ("to-client", second)):
            if (one := ends.get(waiting)) is not None:
                found[node - 1].append([wait for at_ns, wait in longest(one, start_ns) if start_ns <= at_ns < end_ns])
    return tuple(
        {
            "waited_for_ms_mean": max((sum(waits) / len(waits) for waits in each if waits), default=None),
            "waited_for_ms_max": max((max(waits) for waits in each if waits), default=None),
        }
        for each in found
    )


def longest(seen: Seen, since_ns: int) -> Iterator[tuple[int, float]]:
    """At each moment the longest wait of one of these connections for an answer to what was sent since then, in ms."""
    before_ns = 0
    waits: dict[tuple[int, int], float] = {}
    for asked in seen.tcp:
        passed_ms = (asked.at_ns - before_ns) / 1e6
        since_ms = (asked.at_ns - since_ns) / 1e6
        asking = [one for one in _opened(asked.connections) if one["sent_ms_ago"] <= since_ms]
        now = {_ports(one): _wait_ms(one, waits.get(_ports(one), 0.0), passed_ms) for one in asking}
        yield asked.at_ns, max(now.values(), default=0.0)
        before_ns, waits = asked.at_ns, now


def _wait_ms(one: Mapping[str, int], before_ms: float, passed_ms: float) -> float:
    if one["sent_ms_ago"] >= one["received_ms_ago"]:
        return 0.0
    silent = one["received_ms_ago"] >= passed_ms
    waited_ms = before_ms + passed_ms if silent and before_ms else one["sent_ms_ago"]
    return max(waited_ms, one["rtt_us"] / 1000)


def _opened(connections: Sequence[Mapping[str, int]]) -> list[Mapping[str, int]]:
    # A file that is damaged may have less of a connection.
    return [one for one in connections if one.keys() >= _KNOWN and one["local_port"] >= _OPENED_FROM]


def _ports(one: Mapping[str, int]) -> tuple[int, int]:
    return one["local_port"], one["remote_port"]


def losses(raw: Path, ports: Collection[int]) -> tuple[Watched, ...]:
    """The spans in which one of these connections sent something again, at either end.

    Nothing where nobody watched both ends. TCP is asked four times a second: a span of a timeout that nothing
    acknowledged yet begins the least timeout before the last look without one, and ends at the first look without one.
    What was sent again without a timeout was sent since the look before.
    """
    found = seen(raw / WIRE)
    ends = [one for one in (found.get("to-server"), found.get("to-client")) if one is not None]
    if len(ends) < 2 or not any("timeouts" in row for one in ends for asked in one.tcp for row in asked.connections):
        return ()
    again = [span for one in ends for span in _grown(one, frozenset(ports), "retransmits", LOST, 1, _LONG_US)]
    late = [span for one in ends for port in ports for span in _spans(one, port)]
    return (Watched(LOST, (*late, *again), error_ns=_TCP_LOOK_NS),)


def held_back(raw: Path, ports: Collection[int]) -> tuple[Watched, ...]:
    """The spans in which one of these connections had data that the other end, or its own buffer, had no room for.

    From look to look of TCP, where it was so for half of that time. Nothing of an end that
    nobody watched.
    """
    found = seen(raw / WIRE)
    return tuple(
        Watched(cause, tuple(_grown(one, frozenset(ports), counter, cause, _HALF)), error_ns=_TCP_LOOK_NS)
        for direction, causes in _HELD_BACK.items()
        for counter, cause in causes.items()
        if (one := found.get(direction)) is not None and one.of_connections(counter)
    )


def _grown(
    one: Seen, ports: frozenset[int], counter: str, cause: str, least: float, least_rtt_us: int = 0
) -> Iterator[Interval]:
    """Where a counter of a connection grew by so much since the look before; below 1: by that share of its time.

    Of connections of a round trip that is not shorter than the least.
    """
    before: dict[tuple[int, int], int] = {}
    before_ns = 0
    for asked in one.tcp:
        now = {
            _ports(row): row[counter]
            for row in asked.connections
            if counter in row
            and row["rtt_us"] >= least_rtt_us
            and not ports.isdisjoint((row["local_port"], row["remote_port"]))
        }
        enough = least if least >= 1 else least * (asked.at_ns - before_ns) / 1e3
        for connection, count in now.items():
            if count - before.get(connection, count) >= enough:
                (port,) = ports.intersection(connection)
                yield Interval(cause, before_ns, asked.at_ns, port=port)
        before, before_ns = now, asked.at_ns


def _spans(one: Seen, port: int) -> Iterator[Interval]:
    before_ns = begun_ns = None
    for asked in one.tcp:
        rows = [row for row in asked.connections if port in (row["local_port"], row["remote_port"])]
        if any(row.get("timeouts") for row in rows):
            if begun_ns is None:
                begun_ns = (before_ns or asked.at_ns) - _TIMEOUT_NS
        elif begun_ns is not None:
            yield Interval(LOST, begun_ns, asked.at_ns, port=port)
            begun_ns = None
        before_ns = asked.at_ns
    if begun_ns is not None and before_ns is not None:
        yield Interval(LOST, begun_ns, before_ns, port=port)
