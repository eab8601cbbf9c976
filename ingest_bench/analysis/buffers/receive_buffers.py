"""What other receive buffers would have cost, from the recorded reads alone.

Netty allocates a buffer for every socket read, and a read that does not fill its buffer has emptied the socket. So the
reads up to and including a short one, added up, are what lay in the socket, whatever the buffer was: that much would
have met another buffer too.

It is exact for the recorded size. For a smaller one it is a few percent low: more reads take a little longer, and more
arrives meanwhile. For a larger one than a recorded buffer that was filled it is too high (`Cost.is_extrapolated`): that
buffer hid what lay behind it, and a slower reader finds more. So record with a large buffer.
Against the sink on loopback, bulks of 1.2 MB: recorded at 256 KiB to 1 MiB, predicted for 4 KiB up to the recorded
size, 0.95 to 1.06 of the bytes that were really allocated; recorded at 64 KiB, predicted for 1 MiB, 2.1. On a shaped
link on a busy machine two runs of the same cell differed by more than that, so predict from several runs.
Rejected: to model the reader's speed too. It would need costs of the machine that no recording holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingest_bench.analysis.buffers.netty import Adaptive, Buffers, Fixed, Predictor
from ingest_bench.model.target import TargetOptions

Bytes = np.ndarray[Any, np.dtype[np.int64]]
KIB = 1024
CANDIDATES: tuple[Buffers, ...] = (
    *(Fixed(size * KIB) for size in (4, 8, 16, 32, 64, 128, 256, 512, 1024)),
    Adaptive(64, 2048, 64 * KIB),
    Adaptive(64 * KIB, 64 * KIB, 512 * KIB),
)
# A recommended buffer allocates at most this for each byte ingested.
FRUGAL = 1.25
# Of an array in the heap, in front of its bytes (HotSpot with compressed class pointers).
_HEADER_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one kind of receive buffer costs for the recorded bytes."""

    buffers: Buffers
    ingested_bytes: int
    allocations: int
    allocated_bytes: int
    over_tlab_bytes: int | None
    """Of these, in buffers that are larger than a TLAB; None when nobody knows how large those are."""
    humongous_bytes: int | None
    """Of these, in humongous objects of G1; None when nobody knows its regions."""
    is_extrapolated: bool
    """Larger than a recorded buffer that was filled: what is said here is probably too high."""

    @property
    def wasted_bytes(self) -> int:
        """Allocated and never filled."""
        return self.allocated_bytes - self.ingested_bytes

    @property
    def share(self) -> float:
        """Bytes allocated for each byte ingested: 1 wastes nothing."""
        return self.allocated_bytes / self.ingested_bytes if self.ingested_bytes else 0.0

    def per_gb(self, value: float) -> float:
        """A value of this cost for each GB (10^9 bytes) ingested."""
        return value * 1e9 / self.ingested_bytes if self.ingested_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a buffer of the heap must be smaller than; None: nobody knows."""

    tlab_bytes: float | None = None
    """The mean TLAB of the threads that read: another thread's says nothing of theirs."""
    region_bytes: int | None = None
    """Of G1."""

    def over_tlab(self, size_bytes: int) -> bool:
        """Whether a buffer of that size is allocated outside of TLABs."""
        return self.tlab_bytes is not None and size_bytes > self.tlab_bytes

    def is_humongous(self, size_bytes: int) -> bool:
        """Whether G1 gives a buffer of that size regions of its own: an array with its header is above half of one."""
        return self.region_bytes is not None and size_bytes + _HEADER_BYTES > self.region_bytes // 2


NO_LIMITS = Limits()


def sequences(reads: np.ndarray[Any, np.dtype[Any]]) -> list[Bytes]:
    """The bytes of each read in order, for each connection, from records of `model.results.READ_FIELDS`."""
    ordered = reads[np.argsort(reads["end_ns"], kind="stable")]
    found = []
    for port in np.unique(ordered["port"]):
        sequence = ordered["bytes"][ordered["port"] == port].astype(np.int64)
        # A port may serve one connection after another: the end of a stream (-1) keeps them apart.
        found += np.split(sequence, np.flatnonzero(sequence < 0) + 1)
    return [sequence for sequence in found if len(sequence)]


def recorded_size(reads: Iterable[Bytes]) -> int:
    """The fixed buffer that these reads were made with, as far as the reads tell.

    Buffers are whole KiB: a largest read of that kind filled one. Another largest read never did, and the buffer was
    larger: every read emptied the socket then. (The largest read alone does not tell: all requests may be of one size.)
    """
    largest = max((int(sequence.max()) for sequence in reads if len(sequence)), default=0)
    return largest if largest % KIB == 0 else largest + 1


def available(sequence: Bytes, recorded: Buffers) -> Bytes:
    """What lay in the socket of one connection each time until it was empty, added up from its reads."""
    if isinstance(recorded, Fixed):
        short = sequence < recorded.size_bytes
    else:
        short = _short_reads(sequence, recorded.predictor())
    # A read that found nothing has a buffer of its own, whatever was left to find before it.
    short[:-1] |= sequence[1:] <= 0
    if len(short):
        short[-1] = True
    ends = np.flatnonzero(short)
    added = np.concatenate([[0], np.cumsum(np.maximum(sequence, 0))])[ends + 1]
    found: Bytes = np.diff(added, prepend=0)
    return found


def cost(
    drained: Sequence[Bytes], buffers: Buffers, *, limits: Limits = NO_LIMITS, is_extrapolated: bool = False
) -> Cost:
    """What these buffers cost for what lay in the sockets (`available`), connection by connection."""
    ingested = sum(int(found.sum()) for found in drained)
    sizes = _fixed(drained, buffers.size_bytes) if isinstance(buffers, Fixed) else _replayed(drained, buffers)
    over = sum(size * number for size, number in sizes.items() if limits.over_tlab(size))
    humongous = sum(size * number for size, number in sizes.items() if limits.is_humongous(size))
    return Cost(
        buffers=buffers,
        ingested_bytes=ingested,
        allocations=sum(sizes.values()),
        allocated_bytes=sum(size * number for size, number in sizes.items()),
        over_tlab_bytes=None if limits.tlab_bytes is None else over,
        humongous_bytes=None if limits.region_bytes is None else humongous,
        is_extrapolated=is_extrapolated,
    )


def made_with(target: TargetOptions) -> Buffers | None:
    """The receive buffers that a server was told to use; None for its default, which the reads must tell.

    Every default is a fixed buffer of 64 KiB, that of Elasticsearch 5.6.16 too (_cluster/settings?include_defaults: its
    http.netty.receive_predictor_min and _max are both 64kb). A server of somebody else's may have any other.
    """
    sizes = target.receive_predictor_bytes
    if len(sizes) == 1:
        return Fixed(sizes[0])
    if not sizes:
        return None
    # Elasticsearch 5 has Netty 4.1.13, and 6 had up to 4.1.32; both start at the minimum.
    version = int((target.version or "99").split(".")[0]) if target.name == "elasticsearch" else 99
    return Adaptive(sizes[0], sizes[0], sizes[1], is_old=version <= 6, grows_within=version > 5)


def together(runs: Iterable[Sequence[Cost]]) -> list[Cost]:
    """The costs of several runs added up, candidate by candidate; all runs have the same candidates."""
    return [
        Cost(
            buffers=costs[0].buffers,
            ingested_bytes=sum(item.ingested_bytes for item in costs),
            allocations=sum(item.allocations for item in costs),
            allocated_bytes=sum(item.allocated_bytes for item in costs),
            over_tlab_bytes=_sum([item.over_tlab_bytes for item in costs]),
            humongous_bytes=_sum([item.humongous_bytes for item in costs]),
            is_extrapolated=any(item.is_extrapolated for item in costs),
        )
        for costs in zip(*runs, strict=True)
    ]


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def what_if(
    reads: np.ndarray[Any, np.dtype[Any]],
    recorded: Buffers | None = None,
    *,
    candidates: Sequence[Buffers] = CANDIDATES,
    limits: Limits = NO_LIMITS,
) -> list[Cost]:
    """The cost of each candidate. `recorded` is what the reads were made with; None: fixed, found from the reads."""
    connections = sequences(reads)
    buffers = recorded or Fixed(recorded_size(connections))
    drained = [available(sequence, buffers) for sequence in connections]
    filled = any((sequence >= buffers.largest_bytes).any() for sequence in connections)
    return [
        cost(
            drained,
            item,
            limits=limits,
            is_extrapolated=filled and item.largest_bytes > buffers.largest_bytes,
        )
        for item in candidates
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The buffers to use, and why."""

    best: Cost
    reason: str


def recommend(costs: Sequence[Cost], *, frugal: float = FRUGAL) -> Recommendation | None:
    """The fewest reads among the fixed buffers that waste little, fit a TLAB and are not humongous; None without reads.

    A smaller buffer always wastes less and always costs more reads, so "the least waste" would always be the smallest.
    """
    fixed = [
        item for item in costs if isinstance(item.buffers, Fixed) and item.ingested_bytes and not item.is_extrapolated
    ]
    if not fixed:
        return None
    fitting = [item for item in fixed if not item.over_tlab_bytes and not item.humongous_bytes] or fixed
    thrifty = [item for item in fitting if item.share <= frugal]
    if thrifty:
        best = min(thrifty, key=lambda item: (item.allocations, item.allocated_bytes))
    else:
        best = min(fitting, key=lambda item: item.allocated_bytes)
    reason = f"{_said(best)}, in {best.per_gb(best.allocations):,.0f} reads a GB"
    larger = [item for item in fixed if item.buffers.largest_bytes > best.buffers.largest_bytes]
    if larger:
        reason += f"; {_said(min(larger, key=lambda item: item.buffers.largest_bytes))}"
    if not thrifty:
        reason += f"; no size stays within {frugal:.3g}, this one wastes least"
    return Recommendation(best=best, reason=reason)


def _said(item: Cost) -> str:
    beyond = " and is larger than a TLAB" if item.over_tlab_bytes else ""
    beyond += " and is a humongous object" if item.humongous_bytes else ""
    return f"{item.buffers} allocates {item.share:.2f} bytes for each byte ingested{beyond}"


def _fixed(drained: Sequence[Bytes], size: int) -> dict[int, int]:
    """How many buffers of that one size: an end of a stream takes one too."""
    return {size: sum(int(np.maximum(-(-found // size), 1).sum()) for found in drained)}


def _replayed(drained: Sequence[Bytes], buffers: Buffers) -> dict[int, int]:
    """How many buffers of each size, by doing what Netty's allocator does; each connection has its own."""
    sizes: dict[int, int] = {}
    for found in drained:
        predictor = buffers.predictor()
        for bytes_available in found.tolist():
            for size in predictor.sizes(bytes_available):
                sizes[size] = sizes.get(size, 0) + 1
    return sizes


def _short_reads(sequence: Bytes, predictor: Predictor) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which reads did not fill the buffer that Netty must have had for them."""
    return np.array([predictor.read(read) for read in sequence.tolist()], dtype=bool)
