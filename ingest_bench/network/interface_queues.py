"""The queues that shape one flow of a real interface. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.model.network import Impairment

NETEM, TBF = "5be8:", "5be9:"


def queues(
    device: str, parent: tuple[str, ...], impairment: Impairment, mtu_bytes: int
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The kind and the argv of each queue below `parent`: netem, and the token bucket below it."""
    if impairment.needs_netem:
        words = (
            "delay",
            f"{impairment.delay_ns}ns",
            f"{impairment.jitter_ns}ns",
            "loss",
            f"{impairment.loss_ppm / 1e4}%",
        )
        yield "netem", ("tc", "qdisc", "add", "dev", device, *parent, "handle", NETEM, "netem", *words)
        parent = ("parent", f"{NETEM}1")
    if impairment.rate_bps is not None:
        burst_bytes = impairment.burst_bytes or 2 * mtu_bytes
        bucket = ("rate", f"{impairment.rate_bps}bit", "burst", f"{burst_bytes}b", "latency", "50ms")
        yield "tbf", ("tc", "qdisc", "add", "dev", device, *parent, "handle", TBF, "tbf", *bucket)
