"""Whether several recordings of one network say the same of receive buffers, and why not. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ingest_bench.analysis.buffers.netty import Fixed
from ingest_bench.analysis.buffers.receive_buffers import Bytes, Cost
from ingest_bench.units import format_bytes

# Two runs of one cell of the sink on loopback lie within a tenth of each other (`receive_buffers`).
ALIKE = 1.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The reads of one run, and what each candidate would have cost for them."""

    run: str
    costs: Sequence[Cost]
    found_bytes: Bytes
    """What lay in a socket each time that the server looked until it was empty, over all connections."""
    largest_bytes: int
    """The largest buffer that it was recorded with."""
    filled: int
    """How many reads filled that."""
    reads: int
    length_s: float
    """From the first read to the last one."""

    @property
    def mean_found_bytes(self) -> float:
        """Of what lay there; 0 without reads."""
        return float(self.found_bytes.mean()) if len(self.found_bytes) else 0.0

    @property
    def bytes_per_s(self) -> float:
        """How much the server took."""
        return float(self.found_bytes.sum()) / self.length_s if self.length_s else 0.0


def disagreement(recorded: Sequence[Recorded]) -> str:
    """The two recordings that differ most on a fixed buffer that is not larger than theirs, and why; "" if they agree.

    What a larger one costs is a guess where a recorded one was filled.
    """
    worst, text = ALIKE, ""
    for one, other in itertools.combinations(recorded, 2):
        for first, second in zip(one.costs, other.costs, strict=True):
            smaller = min(one.largest_bytes, other.largest_bytes)
            if not isinstance(first.buffers, Fixed) or first.buffers.size_bytes > smaller:
                continue
            if not (first.ingested_bytes and second.ingested_bytes):
                continue
            ratio = max(first.share, second.share) / min(first.share, second.share)
            if ratio > worst:
                worst = ratio
                text = (
                    f"{one.run} and {other.run} disagree: {first.buffers} allocate {first.share:.2f} bytes for each"
                    f" byte ingested by the first, {second.share:.2f} by the second; {_why(one, other)}"
                )
    return text


def _why(one: Recorded, other: Recorded) -> str:
    means = [format_bytes(round(each.mean_found_bytes)) for each in (one, other)]
    said = f"{means[0]} lay in a socket on average, and {means[1]}"
    causes = []
    rates = [each.bytes_per_s for each in (one, other)]
    if min(rates) > 0 and max(rates) > ALIKE * min(rates):
        causes.append(f"the server took {rates[0] / 1e6:,.1f} and {rates[1] / 1e6:,.1f} MB/s")
    for each in (one, other):
        if each.filled > (ALIKE - 1) * each.reads:
            size = format_bytes(each.largest_bytes)
            causes.append(f"{each.filled / each.reads:.0%} of the reads of {each.run} filled their {size}, which hid")
            causes[-1] += " what lay behind"
    if not causes and means[0] == means[1]:
        return f"{said}, but spread in another way ({_spread(one)} and {_spread(other)} of it)"
    return f"{said}: {'; '.join(causes)}" if causes else f"{said}: what arrived together differed; record more runs"


def _spread(each: Recorded) -> str:
    return f"{float(np.std(each.found_bytes)) / (each.mean_found_bytes or 1):.1f} times"
