"""Prediction of the cost of other receive buffers from recorded reads alone, and the agreement of recordings.

Netty allocates a buffer for every socket read, and a read that does not fill its buffer has emptied the socket. So the
sum of the reads up to and including a short one is what was in the socket, whatever the buffer was: any other buffer
would have found the same bytes.

The prediction is exact for the recorded size. For a smaller one it is a few percent low: more reads take a little
longer, and more arrives meanwhile. For a larger one than a recorded buffer that was filled it is too high
(`Cost.is_extrapolated`): that buffer hid the bytes behind it. So record with a large buffer. Compared with the sink on
loopback, bulks of 1.2 MB: recorded at 256 KiB to 1 MiB, predicted for 4 KiB up to the recorded size, 0.95 to 1.06 of
the allocated bytes; recorded at 64 KiB, predicted for 1 MiB, 2.1.
Rejected: modelling the reader's speed. It would need costs of the machine that no recording contains.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingest_bench.model.target import TargetOptions
from ingest_bench.units import format_bytes

Bytes = np.ndarray[Any, np.dtype[np.int64]]
KIB = 1024
# 16, 32 … 496 in steps of 16, then 512 doubled up to 1 GiB.
_SIZES: tuple[int, ...] = (*range(16, 512, 16), *(512 << power for power in range(22)))
_INCREMENT, _DECREMENT = 4, 1
# A recommended buffer allocates at most this many bytes for each ingested byte.
MAX_SHARE = 1.25
# Array header before the bytes (HotSpot with compressed class pointers).
_HEADER_BYTES = 16
# Two runs of one cell of the sink on loopback agree within a tenth.
ALIKE = 1.10


@dataclass(frozen=True, slots=True)
class Buffers:
    """AdaptiveRecvByteBufAllocator; with equal sizes FixedRecvByteBufAllocator.

    Netty's own default is 64, 2048, 65536; Elasticsearch 5 starts at its minimum.
    `is_old`: before 4.1.43, as in Elasticsearch 5 and 6: it shrinks only if a read fits a buffer two steps smaller.
    `grows_within`: since 4.1.18, later than Elasticsearch 5: a filled buffer is recorded at once and again at the end.
    """

    minimum_bytes: int
    initial_bytes: int
    maximum_bytes: int
    is_old: bool = False
    grows_within: bool = True

    @property
    def is_fixed(self) -> bool:
        """Return whether all buffers have the same size."""
        return self.minimum_bytes == self.maximum_bytes

    def __str__(self) -> str:
        sizes = (self.minimum_bytes,) if self.is_fixed else (self.minimum_bytes, self.maximum_bytes)
        return "..".join(map(format_bytes, sizes))


def fixed(size_bytes: int) -> Buffers:
    """Return buffers that all have this size."""
    return Buffers(size_bytes, size_bytes, size_bytes)


class Predictor:
    """Allocator state of one connection: the size of its next buffer.

    From netty-transport 4.1.13 to 4.2: AdaptiveRecvByteBufAllocator (AdaptiveCalculator), DefaultChannelConfig,
    DefaultMaxMessagesRecvByteBufAllocator and AbstractNioByteChannel. Replayed against the sink's own count (4.1.94,
    loopback and ethernet, 64..65536 and 4096..524288): equal to the byte.

    An allocator set by ChannelOption.RCVBUF_ALLOCATOR, as in Elasticsearch, OpenSearch and our sink, reads once per
    selector event: 16 reads in a row (ChannelMetadata) apply only to Netty's default. So another read follows a filled
    buffer only if data is left, and an adaptive allocator records a filled buffer twice: it grows by four steps, and
    then sees that the same read would have fitted a smaller one.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._lowest = next(at for at, size in enumerate(_SIZES) if size >= buffers.minimum_bytes)
        self._highest = max(at for at, size in enumerate(_SIZES) if size <= buffers.maximum_bytes)
        self._at = max(at for at, size in enumerate(_SIZES) if size <= buffers.initial_bytes)
        self._shrink = _DECREMENT + (1 if buffers.is_old else 0)
        self._shrinks_now = False
        self.next_bytes = max(_SIZES[self._at], buffers.minimum_bytes)

    def read(self, got_bytes: int) -> bool:
        """Record the bytes of the next read (-1: end of stream), and return whether it did not fill its buffer."""
        is_short = got_bytes < self.next_bytes
        if not is_short and self._buffers.grows_within:
            self._record(got_bytes)
        self._record(got_bytes)
        return is_short

    def sizes(self, available_bytes: int) -> Iterator[int]:
        """Yield the sizes of the buffers that are allocated to read *available_bytes*; one buffer without data."""
        left = available_bytes
        while True:
            size = self.next_bytes
            yield size
            got = min(size, left)
            self.read(got)
            left -= got
            if left == 0:
                return

    def _record(self, got_bytes: int) -> None:
        if self._buffers.is_fixed:
            return
        if got_bytes <= _SIZES[max(0, self._at - self._shrink)]:
            if self._shrinks_now:
                self._at = max(self._at - _DECREMENT, self._lowest)
                self.next_bytes = max(_SIZES[self._at], self._buffers.minimum_bytes)
            self._shrinks_now = not self._shrinks_now
        elif got_bytes >= self.next_bytes:
            self._at = min(self._at + _INCREMENT, self._highest)
            self.next_bytes = min(_SIZES[self._at], self._buffers.maximum_bytes)
            self._shrinks_now = False


CANDIDATES: tuple[Buffers, ...] = (
    *(fixed(size * KIB) for size in (4, 8, 16, 32, 64, 128, 256, 512, 1024)),
    Buffers(64, 2048, 64 * KIB),
    Buffers(64 * KIB, 64 * KIB, 512 * KIB),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one kind of receive buffer for the recorded bytes."""

    buffers: Buffers
    ingested_bytes: int
    allocations: int
    allocated_bytes: int
    over_tlab_bytes: int | None
    """Bytes allocated in buffers larger than a TLAB; None if the size of TLABs is unknown."""
    humongous_bytes: int | None
    """Bytes allocated in humongous objects of G1; None if the region size is unknown."""
    is_extrapolated: bool
    """Larger than a recorded buffer that was filled: the predicted cost is probably too high."""

    @property
    def wasted_bytes(self) -> int:
        """Return the bytes that were allocated and never filled."""
        return self.allocated_bytes - self.ingested_bytes

    @property
    def share(self) -> float:
        """Return the allocated bytes per ingested byte; 1 wastes nothing."""
        return self.allocated_bytes / self.ingested_bytes if self.ingested_bytes else 0.0

    def per_gb(self, value: float) -> float:
        """Return *value* per GB (10^9 bytes) ingested."""
        return value * 1e9 / self.ingested_bytes if self.ingested_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted cost of one cell from the reads of the cell `source`, and the share that its server counted."""

    cell: str
    source: str
    cost: Cost
    measured_share: float
    """Allocated bytes per ingested byte."""

    @property
    def error(self) -> float:
        """Return predicted / measured - 1: 0.05 is 5% too much."""
        return self.cost.share / self.measured_share - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes that a heap buffer must stay below; None: unknown."""

    tlab_bytes: float | None = None
    """Mean TLAB size of the reading threads; other threads have other sizes."""
    region_bytes: int | None = None
    """Region size of G1."""


NO_LIMITS = Limits()


def reads_by_connection(reads: np.ndarray[Any, np.dtype[Any]]) -> list[Bytes]:
    """Return the bytes of each read in order, for each connection, from records of `model.results.READ_FIELDS`."""
    ordered = reads[np.argsort(reads["end_ns"], kind="stable")]
    connections = []
    for port in np.unique(ordered["port"]):
        sizes = ordered["bytes"][ordered["port"] == port].astype(np.int64)
        # A port may serve several connections in succession, separated by an end of stream (-1).
        connections += np.split(sizes, np.flatnonzero(sizes < 0) + 1)
    return [sizes for sizes in connections if len(sizes)]


def infer_buffer_size(reads: Iterable[Bytes]) -> int:
    """Return the fixed buffer size that these reads were made with, as far as the reads show it.

    Buffers are whole KiB: a largest read of whole KiB filled one. Any other largest read filled none: the buffer was
    larger, and every read emptied the socket. (The largest read alone does not show it: all requests may be equal.)
    """
    largest = max((int(sizes.max()) for sizes in reads if len(sizes)), default=0)
    return largest if largest % KIB == 0 else largest + 1


def available_bytes(sizes: Bytes, recorded: Buffers) -> Bytes:
    """Return what was in the socket of one connection each time until it was empty: the sums of its reads."""
    if recorded.is_fixed:
        is_short = sizes < recorded.maximum_bytes
    else:
        predictor = Predictor(recorded)
        is_short = np.array([predictor.read(size) for size in sizes.tolist()], dtype=bool)
    # A read without data has its own buffer, so the read before it emptied the socket.
    is_short[:-1] |= sizes[1:] <= 0
    if len(is_short):
        is_short[-1] = True
    ends = np.flatnonzero(is_short)
    sums = np.concatenate([[0], np.cumsum(np.maximum(sizes, 0))])[ends + 1]
    available: Bytes = np.diff(sums, prepend=0)
    return available


def compute_cost(
    available: Sequence[Bytes], buffers: Buffers, *, limits: Limits = NO_LIMITS, is_extrapolated: bool = False
) -> Cost:
    """Return the cost of *buffers* for what was in the sockets (`available_bytes` of each connection)."""
    counts: Counter[int] = Counter()
    for socket in available:
        if buffers.is_fixed:
            # An end of stream takes a buffer, too.
            counts[buffers.maximum_bytes] += int(np.maximum(-(-socket // buffers.maximum_bytes), 1).sum())
        else:
            predictor = Predictor(buffers)
            for number in socket.tolist():
                counts.update(predictor.sizes(number))
    region_bytes = limits.region_bytes
    return Cost(
        buffers=buffers,
        ingested_bytes=sum(int(socket.sum()) for socket in available),
        allocations=counts.total(),
        allocated_bytes=sum(size * number for size, number in counts.items()),
        over_tlab_bytes=_bytes_above(counts, limits.tlab_bytes),
        humongous_bytes=_bytes_above(counts, region_bytes and region_bytes // 2 - _HEADER_BYTES),
        is_extrapolated=is_extrapolated,
    )


def _bytes_above(counts: Mapping[int, int], limit_bytes: float | None) -> int | None:
    """Return the bytes of the buffers larger than the limit; None if it is unknown."""
    return None if limit_bytes is None else sum(size * number for size, number in counts.items() if size > limit_bytes)


def configured_buffers(target: TargetOptions) -> Buffers | None:
    """Return the receive buffers that a server was configured with; None for its default, to be inferred from reads.

    Every default is a fixed buffer of 64 KiB, also in Elasticsearch 5.6.16 (_cluster/settings?include_defaults: its
    http.netty.receive_predictor_min and _max are both 64kb). A custom target may have any other.
    """
    sizes = target.receive_predictor_bytes
    if len(sizes) == 1:
        return fixed(sizes[0])
    if not sizes:
        return None
    # Elasticsearch 5 has Netty 4.1.13, and 6 up to 4.1.32; both start at the minimum.
    version = int((target.version or "99").split(".")[0]) if target.name == "elasticsearch" else 99
    return Buffers(sizes[0], sizes[0], sizes[1], is_old=version <= 6, grows_within=version > 5)


def sum_costs(runs: Iterable[Sequence[Cost]]) -> list[Cost]:
    """Return the summed costs of several runs by candidate; all runs have the same candidates."""
    names = ("ingested_bytes", "allocations", "allocated_bytes", "over_tlab_bytes", "humongous_bytes")
    summed = []
    for costs in zip(*runs, strict=True):
        totals: dict[str, Any] = {"is_extrapolated": any(item.is_extrapolated for item in costs)}
        for name in names:
            values = [getattr(item, name) for item in costs]
            totals[name] = None if None in values else sum(values)
        summed.append(Cost(buffers=costs[0].buffers, **totals))
    return summed


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The reads of one run, and the predicted cost of each candidate."""

    run: str
    costs: Sequence[Cost]
    available_bytes: Bytes
    """What was in a socket each time that the server read it until it was empty, over all connections."""
    largest_bytes: int
    """The largest buffer of the recording."""
    filled: int
    """Number of reads that filled it."""
    reads: int
    length_s: float
    """From the first read to the last one."""

    @property
    def mean_available_bytes(self) -> float:
        """Return the mean of `available_bytes`; 0 without reads."""
        return float(self.available_bytes.mean()) if len(self.available_bytes) else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Return the rate at which the server read."""
        return float(self.available_bytes.sum()) / self.length_s if self.length_s else 0.0


def analyse_reads(
    reads: np.ndarray[Any, np.dtype[Any]],
    recorded: Buffers | None = None,
    *,
    run: str = "",
    candidates: Sequence[Buffers] = CANDIDATES,
    limits: Limits = NO_LIMITS,
) -> Recording:
    """Return the reads of a run with the cost of each candidate.

    *recorded*: the buffers of the recording; None: fixed, inferred from the reads.
    """
    connections = reads_by_connection(reads)
    buffers = recorded or fixed(infer_buffer_size(connections))
    available = [available_bytes(sizes, buffers) for sizes in connections]
    largest = buffers.maximum_bytes
    filled = sum(int((sizes >= largest).sum()) for sizes in connections)
    return Recording(
        run=run,
        costs=[
            compute_cost(available, item, limits=limits, is_extrapolated=filled > 0 and item.maximum_bytes > largest)
            for item in candidates
        ],
        available_bytes=np.concatenate([np.empty(0, dtype=np.int64), *available]),
        largest_bytes=largest,
        filled=filled,
        reads=len(reads),
        length_s=int(np.ptp(reads["end_ns"])) / 1e9 if len(reads) else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The recommended buffers and the reason."""

    best: Cost
    reason: str


def recommend(costs: Sequence[Cost], *, max_share: float = MAX_SHARE) -> Recommendation | None:
    """Return the fixed buffers with the fewest reads that waste little, fit a TLAB and are not humongous.

    A smaller buffer always wastes less and costs more reads: the least waste would always be the smallest buffer. None
    without reads.
    """
    measured = [item for item in costs if item.buffers.is_fixed and item.ingested_bytes and not item.is_extrapolated]
    if not measured:
        return None
    fitting = [item for item in measured if not item.over_tlab_bytes and not item.humongous_bytes] or measured
    economical = [item for item in fitting if item.share <= max_share]
    if economical:
        best = min(economical, key=lambda item: (item.allocations, item.allocated_bytes))
    else:
        best = min(fitting, key=lambda item: item.allocated_bytes)
    reason = f"{_describe_cost(best)}, in {best.per_gb(best.allocations):,.0f} reads a GB"
    larger = [item for item in measured if item.buffers.maximum_bytes > best.buffers.maximum_bytes]
    if larger:
        reason += f"; {_describe_cost(min(larger, key=lambda item: item.buffers.maximum_bytes))}"
    if not economical:
        reason += f"; no size stays within {max_share:.3g}, this one wastes least"
    return Recommendation(best=best, reason=reason)


def _describe_cost(item: Cost) -> str:
    flaws = " and is larger than a TLAB" if item.over_tlab_bytes else ""
    flaws += " and is a humongous object" if item.humongous_bytes else ""
    return f"{item.buffers} allocates {item.share:.2f} bytes for each byte ingested{flaws}"


def find_disagreement(recordings: Sequence[Recording]) -> str:
    """Return which two recordings differ most on a fixed buffer up to their own size, and why; "" if all agree.

    For a larger buffer than a recorded one that was filled the cost is a guess.
    """
    worst, text = ALIKE, ""
    for first, second in itertools.combinations(recordings, 2):
        for cost, other in zip(first.costs, second.costs, strict=True):
            smaller = min(first.largest_bytes, second.largest_bytes)
            if not cost.buffers.is_fixed or cost.buffers.maximum_bytes > smaller:
                continue
            if not (cost.ingested_bytes and other.ingested_bytes):
                continue
            ratio = max(cost.share, other.share) / min(cost.share, other.share)
            if ratio > worst:
                worst = ratio
                text = (
                    f"{first.run} and {second.run} disagree: {cost.buffers} allocate {cost.share:.2f} bytes for each"
                    f" byte ingested by the first, {other.share:.2f} by the second;"
                    f" {_explain_difference(first, second)}"
                )
    return text


def _explain_difference(first: Recording, second: Recording) -> str:
    means = [format_bytes(round(item.mean_available_bytes)) for item in (first, second)]
    text = f"a socket held {means[0]} on average, and {means[1]}"
    causes = []
    rates = [item.bytes_per_s for item in (first, second)]
    if min(rates) > 0 and max(rates) > ALIKE * min(rates):
        causes.append(f"the server read {rates[0] / 1e6:,.1f} and {rates[1] / 1e6:,.1f} MB/s")
    for item in (first, second):
        if item.filled > (ALIKE - 1) * item.reads:
            filled, size = f"{item.filled / item.reads:.0%}", format_bytes(item.largest_bytes)
            causes.append(f"{filled} of the reads of {item.run} filled their {size}, which hid the bytes behind")
    if causes:
        return f"{text}: {'; '.join(causes)}"
    if means[0] == means[1]:
        spread = [float(np.std(item.available_bytes)) / (item.mean_available_bytes or 1) for item in (first, second)]
        return f"{text}, but with different spread ({spread[0]:.1f} and {spread[1]:.1f} times the mean)"
    return f"{text}: the requests that arrived together differed; record more runs"
