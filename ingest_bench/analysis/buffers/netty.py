"""Size of Netty's receive buffer for the next read, given the reads so far.

From the sources of netty-transport: AdaptiveRecvByteBufAllocator, DefaultMaxMessagesRecvByteBufAllocator,
DefaultChannelConfig and AbstractNioByteChannel of 4.1.13 to 4.2 (AdaptiveCalculator there).

An allocator set by ChannelOption.RCVBUF_ALLOCATOR, as in Elasticsearch, OpenSearch and our sink, reads once per
selector event: 16 reads in a row (ChannelMetadata) apply only to Netty's default. So another read follows a filled
buffer only if data is left, and an adaptive allocator records a filled buffer twice: it grows by four steps, and then
sees that the same read would have fitted a smaller one.
Replayed against the sink's own count (4.1.94, loopback and ethernet, 64..65536 and 4096..524288): equal to the byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ingest_bench.units import format_bytes

# 16, 32 … 496 in steps of 16, then 512 doubled up to 1 GiB.
_SIZES: tuple[int, ...] = (*range(16, 512, 16), *(512 << power for power in range(22)))
_INCREMENT, _DECREMENT = 4, 1


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
    """Allocator state of one connection: the size of its next buffer."""

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
