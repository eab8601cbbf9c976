"""Rules that say what limits a run: each names its evidence and the setting that tests it.

A rule says nothing about a run that lacks its columns. The table `RULES` says what records them. To add a rule, write
its function and a line there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import GRPC
from ingest_bench.model.results import ColumnValue
from ingest_bench.units import format_bytes, parse_bytes

_MIB, _GIB = 1 << 20, 1 << 30
# Below this share of the time, or of what a window allows, a larger window saves little.
_LEAST_SHARE = 0.25
# Shorter round trips limit nothing: 64 KiB in 1 ms are 524 Mbit/s.
_LEAST_RTT_MS = 1.0
# A link that is used by more has no use for a larger window.
_FULL_LINK = 0.8
_BUSY_THREAD = 0.8
_RTTS = ("idle_rtt_ms", "rtt_ms")
# NettyAllocator of OpenSearch and Elasticsearch: unpooled up to 1 GiB. The JVM rounds the heap up to whole regions.
_POOLED_HEAP = "1026m"
_ELASTIC = frozenset({"opensearch", "elasticsearch"})
_FIXED_BUFFER = (*_ELASTIC, "sink")
# Kafka's default of socket.receive.buffer.bytes; with -1 Linux chooses and grows the buffer.
_KAFKA_BUFFER = "102400"
_WORKER_KEYS = ("transport.netty.worker_count", "http.netty.worker_count")
_DIRECT_OPTION, _REGION_OPTION = "-XX:MaxDirectMemorySize=", "-XX:G1HeapRegionSize="
# Array header before the bytes of a body.
_HEADER_BYTES = 16
# JDK-8275056 raised the largest region from 32 to 512 MiB.
_LARGE_REGIONS_JAVA = 18
# Servers have humongous objects that are no bodies, such as the 128 MiB of Kafka's log cleaner, and keep them. Bodies
# are humongous if each second request allocates such an object, or if collections freed the regions of several bodies.
_HUMONGOUS_PER_REQUEST, _FREED_BODIES = 0.5, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """One run: its columns, and what else is known about it."""

    run: str
    cell: Cell
    values: Mapping[str, ColumnValue]
    """Columns of summary.csv, and `users`, `allocator` (by the server's own log) and `measured_s`."""

    def number(self, name: str) -> float:
        """Return the number of a column; 0 if it is unknown."""
        value = self.values.get(name)
        return value if isinstance(value, (int, float)) else 0.0

    @property
    def server(self) -> str:
        """Return the kind of server; empty for a custom target, whatever its name.

        Empty also over gRPC: OpenSearch serves it by another Netty, which no option of the node configures.
        """
        if self.cell.target.custom is not None or self.cell.target.protocol == GRPC:
            return ""
        return str(self.values.get("target") or "").partition(" ")[0]

    @property
    def bytes_per_s(self) -> float:
        """Return the rate of ingestion; 0 if it is unknown."""
        measured_s = self.number("measured_s")
        return self.number("bytes_measured") / measured_s if measured_s else 0.0

    @property
    def rtt_s(self) -> float:
        """Return the link's round trip; 0 if it is unknown.

        Under load TCP measures a longer one when the receiver lacks CPU: 5 ms over loopback.
        """
        return min((self.number(name) for name in self.cite(*_RTTS)), default=0.0) / 1e3

    @property
    def room_bytes_per_s(self) -> float | None:
        """Return the link's rate if the load left room on it, infinity if it has no limit; None if it is full."""
        rate_bps = self.cell.network.to_server.rate_bps if self.cell.network else None
        if rate_bps is None:
            return inf
        return rate_bps / 8 if self.bytes_per_s < _FULL_LINK * rate_bps / 8 else None

    def cite(self, *names: str) -> dict[str, ColumnValue]:
        """Return the columns that have a value, as evidence."""
        return {name: value for name in names if (value := self.values.get(name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A limit of a run with its evidence, and the setting whose levels test it: the run's own level first."""

    text: str
    evidence: Mapping[str, ColumnValue]
    key: str
    levels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One advice, the runs that it holds for, and the command that tests it in the first of them."""

    rule: str
    advice: Advice
    runs: tuple[str, ...]
    of_runs: int
    """Number of runs with a result."""
    test: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule, the columns that it needs (any of them), and what records these; "": it is only for runs with them."""

    name: str
    columns: tuple[str, ...]
    recorder: str
    advise: Callable[[ObservedRun], Advice | None]
    servers: frozenset[str] = frozenset()
    """The kinds of servers that it applies to; empty: all."""

    def applies_to(self, run: ObservedRun) -> bool:
        """Return True if the rule knows this kind of server."""
        return not self.servers or run.server in self.servers

    def has_evidence(self, run: ObservedRun) -> bool:
        """Return True if the run recorded what the rule needs."""
        return not self.columns or any(run.values.get(column) is not None for column in self.columns)


def advise_socket_buffer(run: ObservedRun) -> Advice | None:
    """Advise a larger socket buffer if a full one stops the connections, and their rate is a window per round trip.

    A server that reads slowly fills its window too, but its connections are slower than a window per round trip.
    """
    shares = {name: run.number(f"{name}_full_share") for name in ("receive_window", "send_buffer")}
    buffer = max(shares, key=lambda name: shares[name])
    window, users = run.number("receive_window_max_bytes"), run.number("users")
    rtt_s, room = run.rtt_s, run.room_bytes_per_s
    if shares[buffer] < _LEAST_SHARE or rtt_s * 1e3 < _LEAST_RTT_MS or not (window and users) or room is None:
        return None
    if run.bytes_per_s / users * rtt_s < _LEAST_SHARE * window:
        return None
    needed = _next_power_of_two(min(room * rtt_s / users, 16 * window))
    if needed <= window:
        return None
    options = run.cell.target
    fixed = options.socket_receive_buffer_bytes
    of_kafka = options.setting.get("socket.receive.buffer.bytes", str(fixed or _KAFKA_BUFFER))
    if buffer == "receive_window" and run.server == "kafka" and of_kafka != "-1":
        key, levels = "setting.socket.receive.buffer.bytes", (of_kafka, "-1")
    elif buffer == "receive_window" and run.server in _FIXED_BUFFER and fixed:
        # A larger one that gave no such window was cut by net.core.rmem_max.
        if fixed >= needed:
            return None
        key, levels = "socket_receive_buffer", (format_bytes(fixed), format_bytes(needed))
    else:
        name = "tcp_rmem" if buffer == "receive_window" else "tcp_wmem"
        # Linux gives half of the buffer as the window (tcp_adv_win_scale).
        default = (4096, 131072, round(2 * window)) if name == "tcp_rmem" else (4096, 16384, round(window))
        least, initial, most = getattr(run.cell.network, f"{name}_bytes", None) or default
        if most >= 2 * needed:
            return None
        key, levels = f"network.{name}", (f"{least} {initial} {most}", f"{least} {initial} {2 * needed}")
    rate = f"{run.bytes_per_s / 1e6:.3g} MB/s" + (f" of {room / 1e6:.3g} MB/s" if room < inf else "")
    side = "receive window of the server" if buffer == "receive_window" else "send buffer of the load"
    return Advice(
        text=f"the {side} is too small for this round trip: the load reached {rate}; {format_bytes(needed)} "
        "for each connection would fill the link",
        evidence=run.cite(f"{buffer}_full_share", "receive_window_max_bytes", *_RTTS, "users"),
        key=key,
        levels=levels,
    )


def advise_http2_window(run: ObservedRun) -> Advice | None:
    """Advise a larger window of the server's HTTP/2 if senders wait for it, each time for about a round trip.

    A server that reads slowly lets them wait for longer.
    """
    rtt_ms, stalled_ms = run.rtt_s * 1e3, run.number("window_stalled_ms_mean")
    room, users, load = run.room_bytes_per_s, run.number("users"), run.cell.load
    # gRPC has no other version, and HTTP/1.1 conflicts with windows of the load.
    if load.http_version != "2" or load.http2_stream_window_bytes or load.http2_connection_window_bytes:
        return None
    if run.number("window_stalled_percent") < 100 * _LEAST_SHARE or rtt_ms < _LEAST_RTT_MS or room is None:
        return None
    if not rtt_ms / 2 <= stalled_ms <= 3 * rtt_ms:
        return None
    needed = _next_power_of_two(min(room * rtt_ms / 1e3 / users, _GIB)) if users else 0
    fitting = f", to {format_bytes(needed)}" if run.number("server_stream_window_bytes") < needed < _GIB else ""
    return Advice(
        text=f"the server's HTTP/2 window is too small for this round trip: raise its initial window of streams and "
        f"connections{fitting}; HTTP/1.1 has no such window",
        evidence=run.cite("window_stalled_percent", "window_stalled_ms_mean", "server_stream_window_bytes", *_RTTS),
        key="http_version",
        levels=("2", "1.1"),
    )


def advise_connections(run: ObservedRun) -> Advice | None:
    """Advise more connections if a single one is the limit: its window per round trip, or the thread that serves it."""
    if run.number("users") != 1:
        return None
    window = min(run.number("receive_window_max_bytes"), run.number("congestion_window_bytes"))
    rtt_s = run.rtt_s
    has_full_window = (
        rtt_s * 1e3 >= _LEAST_RTT_MS
        and run.room_bytes_per_s is not None
        and run.bytes_per_s * rtt_s >= 2 * _LEAST_SHARE * window > 0
    )
    if run.number("server_thread_cpu_share") >= _BUSY_THREAD:
        text = f"one connection keeps one thread of the server busy: {run.values['server_thread_busiest']}"
        evidence = run.cite("users", "server_thread_busiest", "server_thread_cpu_share")
    elif has_full_window:
        text = f"one connection carries a window per round trip, {window / rtt_s / 1e6:.3g} MB/s at most"
        evidence = run.cite("users", "receive_window_max_bytes", "congestion_window_bytes", *_RTTS)
    else:
        return None
    return Advice(text=f"{text}; more connections share the work", evidence=evidence, key="users", levels=("1", "4"))


def advise_heap(run: ObservedRun) -> Advice | None:
    """Advise a heap above 1 GiB, below which OpenSearch and Elasticsearch do not pool Netty's buffers."""
    heap, options = run.number("heap_bytes"), run.cell.target
    if run.values.get("allocator") != "unpooled" or options.allocator != "default" or not 0 < heap <= _GIB:
        return None
    # With a much larger heap two things would differ.
    is_near = heap > _GIB - 64 * _MIB
    return Advice(
        text="up to 1 GiB of heap the server allocates each network buffer anew; above it pools them (1,026 MiB "
        "instead of 1 GiB: OpenSearch's network threads allocated 1.5 times less over Ethernet, 12 times over 50 ms)",
        evidence=run.cite("heap_bytes", "allocator", "allocated_network_bytes_per_gb"),
        key="heap" if is_near else "allocator",
        levels=(_format_mib(heap), _POOLED_HEAP) if is_near else ("default", "pooled"),
    )


def advise_direct_memory(run: ObservedRun) -> Advice | None:
    """Advise fewer I/O threads if their buffers of 1 MiB exceed the limit of direct memory (OpenSearch#23064)."""
    options = run.cell.target
    counts = {key: int(text) for key in _WORKER_KEYS if (text := options.setting.get(key, "")).isdecimal()}
    limit = options.heap_bytes // 2
    for option in options.jvm:
        # A size that the JVM takes and we cannot read, such as 1t, is no limit.
        with suppress(ValueError):
            if option.startswith(_DIRECT_OPTION):
                # 0 leaves the limit to the server.
                limit = parse_bytes(option.removeprefix(_DIRECT_OPTION)) or limit
    if sum(counts.values()) * _MIB < limit:
        return None
    key = max(counts, key=lambda name: counts[name])
    evidence: dict[str, ColumnValue] = {f"setting.{name}": count for name, count in counts.items()}
    return Advice(
        text="each I/O thread takes 1 MiB of direct memory when it has a connection: all of them exceed the limit",
        evidence=evidence
        | {"direct_memory_limit_bytes": limit}
        | run.cite("direct_buffer_capacity_max_bytes", "out_of_memory"),
        key=f"setting.{key}",
        levels=(str(counts[key]), str(max(1, limit // _MIB // 4))),
    )


def advise_region(run: ObservedRun) -> Advice | None:
    """Advise larger regions of G1, or smaller bodies, if a body is a humongous object: more than half a region."""
    region, requests = int(run.number("g1_region_bytes")), run.number("requests_answered")
    if not (region and requests):
        return None
    body, largest = run.number("bytes_measured") / requests, run.number("largest_allocation_bytes")
    # A body in a buffer that grows takes more than its size; other large objects say nothing about it.
    size = largest if body <= largest <= 4 * body else body
    is_each = run.number("allocations_humongous") >= _HUMONGOUS_PER_REQUEST * requests
    are_freed = run.number("humongous_regions_freed") * region >= _FREED_BODIES * body
    if size + _HEADER_BYTES <= region / 2 or not (is_each or are_freed):
        return None
    evidence: dict[str, ColumnValue] = {"g1_region_bytes": region, "mean_body_bytes": round(body)}
    evidence |= run.cite("largest_allocation_bytes", "allocations_humongous", "humongous_regions_freed")
    # Not all bodies have the mean size.
    needed = _next_power_of_two(2.5 * size)
    java = str(run.values.get("java") or "").split(".")[0]
    most = 512 * _MIB if java.isdecimal() and int(java) >= _LARGE_REGIONS_JAVA else 32 * _MIB
    # Fewer than 16 regions leave none for the young generation.
    if needed > min(most, run.number("heap_bytes") / 16 or most):
        remedy, documents = "no region of this heap is large enough: send smaller ones", run.cell.load.bulk_documents
        # No setting divides a document, or the bodies of a track.
        if documents == 1 or run.cell.load.track is not None:
            return None
        key = "bulk_documents" if documents else "bulk"
        sizes = (
            (documents, max(1, int(documents * region / 4 / size))) if documents else (body, body * region / 4 / size)
        )
        levels: tuple[str, ...] = tuple(f"{round(part)}{'' if documents else 'B'}" for part in sizes)
    else:
        remedy, key = f"{format_bytes(needed)} would hold them", "jvm"
        # A level cannot have an option with a blank or a comma.
        others = [
            option
            for option in run.cell.target.jvm
            if not option.startswith(_REGION_OPTION) and set(option).isdisjoint(" ,")
        ]
        levels = tuple(" ".join((*others, f"{_REGION_OPTION}{_format_mib(size)}")) for size in (region, needed))
    return Advice(
        text=f"bodies are humongous objects, larger than half a region of G1: {remedy}",
        evidence=evidence,
        key=key,
        levels=levels,
    )


RULES: Sequence[Rule] = (
    Rule(
        name="socket buffer",
        columns=("receive_window_full_share",),
        recorder="a link that the run makes",
        advise=advise_socket_buffer,
    ),
    Rule(name="HTTP/2 window", columns=("window_stalled_percent",), recorder="", advise=advise_http2_window),
    Rule(
        name="single connection",
        columns=("receive_window_max_bytes", "server_cpu_s"),
        recorder="probe host, or a link that the run makes",
        advise=advise_connections,
    ),
    Rule(
        name="heap and allocator",
        columns=("allocator",),
        recorder="the log of a server that the run starts",
        advise=advise_heap,
        servers=_ELASTIC,
    ),
    Rule(name="direct memory", columns=(), recorder="", advise=advise_direct_memory, servers=_ELASTIC),
    Rule(name="G1 regions", columns=("gc_collector",), recorder="probe gc", advise=advise_region),
)


def _next_power_of_two(size: float) -> int:
    return 1 << max(0, round(size) - 1).bit_length()


def _format_mib(size: float) -> str:
    return f"{round(size) // _MIB}m"
