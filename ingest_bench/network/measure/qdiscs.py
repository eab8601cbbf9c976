"""What `tc -j -s qdisc show` says of a device, against what it was told. Pure.

pyroute2 (0.9.7) was rejected: it does not read netem's loss models, slots, ECN mark and rates above 32 bits. In another
namespace it has to be a process, which takes 286 ms of CPU for one answer; `tc` takes 5.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingest_bench.network.plan import netem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingest_bench.model.network import Impairment

# tc keeps times and bursts as ticks of a coarse clock, and shares as 32-bit fractions: 62500 bytes come back as 62375,
# and 1250 as 1237.
_RELATIVE = 0.02
_MILLION = 10**6

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Counters:
    """What went through a device's queues, all of them together."""

    packets: int = 0
    bytes: int = 0
    drops: int = 0
    backlog_packets: int = 0


def show(device: str) -> tuple[str, ...]:
    """The argv that reads a device's qdiscs."""
    return ("tc", "-j", "-s", "qdisc", "show", "dev", device)


def differences(shown: str, impairment: Impairment, mtu_bytes: int, *, rate_by_netem: bool = False) -> list[str]:
    """What the kernel has otherwise than it was told; empty: nothing."""
    found = {(qdisc["kind"], qdisc["handle"]): qdisc for qdisc in json.loads(shown)}
    told: dict[tuple[str, str], dict[Path, float]] = {}
    if netem.uses_netem(impairment):
        told["netem", netem.NETEM] = told_netem(impairment, mtu_bytes)
    if netem.is_spaced_by_netem(impairment, rate_by_netem=rate_by_netem):
        told["netem", netem.BOTTLENECK] = _told_spacing(impairment, mtu_bytes)
    elif impairment.rate_bps is not None:
        told["tbf", netem.BOTTLENECK] = _told_bucket(impairment, mtu_bytes)
    wrong = [f"{kind} is there" for kind, at in found if kind in ("netem", "tbf") and (kind, at) not in told]
    for (kind, at), options in told.items():
        if (kind, at) not in found:
            wrong.append(f"{kind} is missing")
            continue
        for path, value in options.items():
            has = _at(found[kind, at]["options"], path)
            if has is None or not math.isclose(has, value, rel_tol=_RELATIVE, abs_tol=1e-9):
                wrong.append(f"{kind} {'.'.join(path)} is {has}, not {value:g}")
    return wrong


def counters(shown: str) -> Counters:
    """The root's counters: a classful root counts what its child sends and drops."""
    for qdisc in json.loads(shown):
        if qdisc.get("root"):
            return Counters(qdisc["packets"], qdisc["bytes"], qdisc["drops"], qdisc["qlen"])
    return Counters()


def told_netem(impairment: Impairment, mtu_bytes: int) -> dict[Path, float]:
    """Netem's options the way `tc -j` writes them: seconds, shares of one, bytes a second."""
    told: dict[Path, float] = {("limit",): netem.queue_limit_packets(impairment, mtu_bytes)}
    if impairment.delay_ns:  # tc shows no jitter of a delay that is 0
        told["delay", "delay"] = impairment.delay_ns / 1e9
        told["delay", "jitter"] = impairment.jitter_ns / 1e9
        told["delay", "correlation"] = impairment.delay_correlation_ppm / _MILLION
    told |= _shares("loss-state", ("p13", "p31", "p32", "p23", "p14"), impairment.loss_state_ppm)
    told |= _shares("loss-gemodel", ("p", "r", "1-h", "1-k"), impairment.loss_gemodel_ppm)
    pairs = (
        ("loss-random", "loss", impairment.loss_ppm, impairment.loss_correlation_ppm),
        ("duplicate", "duplicate", impairment.duplicate_ppm, impairment.duplicate_correlation_ppm),
        ("corrupt", "corrupt", impairment.corrupt_ppm, impairment.corrupt_correlation_ppm),
        ("reorder", "reorder", impairment.reorder_ppm, impairment.reorder_correlation_ppm),
    )
    for table, name, share_ppm, correlation_ppm in pairs:
        if share_ppm:
            told |= _shares(table, (name, "correlation"), (share_ppm, correlation_ppm))
    if impairment.reorder_gap:
        told["gap",] = impairment.reorder_gap
    if impairment.netem_rate_bps is not None:
        told["rate", "rate"] = impairment.netem_rate_bps / 8
        told["rate", "packetoverhead"] = impairment.packet_overhead_bytes
        told["rate", "cellsize"] = impairment.cell_bytes
        told["rate", "celloverhead"] = impairment.cell_overhead_bytes
    if impairment.slot_min_ns is not None:
        told["slot", "min-delay"] = impairment.slot_min_ns / 1e9
        told["slot", "max-delay"] = (impairment.slot_max_ns or impairment.slot_min_ns) / 1e9
        told["slot", "packets"] = impairment.slot_packets
        told["slot", "bytes"] = impairment.slot_bytes
    if impairment.ecn:
        told["ecn",] = True
    return told


def _told_bucket(impairment: Impairment, mtu_bytes: int) -> dict[Path, float]:
    rate_bytes_per_s = (impairment.rate_bps or 0) / 8
    told: dict[Path, float] = {("rate",): rate_bytes_per_s, ("burst",): netem.burst_bytes(impairment, mtu_bytes)}
    if impairment.burst_bytes is None:  # tc -j shows the peak's bucket, and not its rate (iproute2 6.1)
        told["minburst",] = netem.moment_bytes(impairment, mtu_bytes)
    return told


def _told_spacing(impairment: Impairment, mtu_bytes: int) -> dict[Path, float]:
    told: dict[Path, float] = {
        ("limit",): netem.queue_frames(impairment, mtu_bytes),
        ("rate", "rate"): (impairment.rate_bps or 0) / 8,
    }
    slot_ns = netem.slot_ns(impairment, mtu_bytes)
    return told | ({("slot", "min-delay"): slot_ns / 1e9} if slot_ns else {})


def _shares(table: str, names: Sequence[str], shares_ppm: Sequence[int]) -> dict[Path, float]:
    return {(table, name): share / _MILLION for name, share in zip(names, shares_ppm, strict=False)}


def _at(options: Mapping[str, Any], path: Path) -> float | None:
    value: Any = options
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return None if value is None else float(value)
