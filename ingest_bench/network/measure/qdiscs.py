"""What `tc -j -s qdisc show` says of a device, against what it was told. Pure.

pyroute2 (0.9.7) was rejected: it does not read netem's loss models, slots, ECN mark and rates above 32 bits. In another
namespace it has to be a process, which takes 286 ms of CPU for one answer; `tc` takes 5.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingest_bench import units
from ingest_bench.network.plan import commands, netem, queues

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingest_bench.model.network import Impairment

# tc keeps times and bursts as ticks of a coarse clock, and shares as 32-bit fractions: 62500 bytes come back as 62375,
# and 1250 as 1237.
_RELATIVE = 0.02
_MILLION = 10**6
# Which qdiscs are ours to say something about; a kernel's own one has handle 0.
_OURS = ("netem", "tbf", "hfsc", *queues.MANAGED)
_RATE = re.compile(r" m2 (\d+)([KMGT]?)bit")

Path = tuple[str, ...]
# Where each kind has its rate, in bytes a second.
_RATES: Mapping[str, Path] = {"netem": ("rate", "rate"), "tbf": ("rate",), "cake": ("bandwidth",)}


@dataclass(frozen=True, slots=True)
class Counters:
    """What went through a device's queues, all of them together."""

    packets: int = 0
    bytes: int = 0
    drops: int = 0


def show(device: str) -> tuple[str, ...]:
    """The argv that reads a device's qdiscs."""
    return ("tc", "-j", "-s", "qdisc", "show", "dev", device)


def show_classes(device: str) -> tuple[str, ...]:
    """The argv that reads a device's classes: where hfsc has its rate, and only as text."""
    return ("tc", "class", "show", "dev", device)


def words(shown: str, classes: str) -> str:
    """What the kernel has of our queues, for a person: "netem 25ms with tbf 100mbit"."""
    said = []
    for qdisc in commands.parse_json("tc -j -s qdisc show", shown):
        kind, options = qdisc["kind"], qdisc["options"]
        if kind not in _OURS or qdisc["handle"] == "0:":
            continue
        delay_s = _at(options, ("delay", "delay"))
        loss = _at(options, ("loss-random", "loss"))
        rate = _at(options, _RATES[kind]) if kind in _RATES else None
        rate_bps = _class_bps(_class(classes)) if kind == "hfsc" else rate and rate * 8
        said.append(
            " ".join(
                (
                    kind,
                    *([units.format_time(delay_s * 1e9)] if delay_s else ()),
                    *([f"loss {units.format_ppm(loss * _MILLION)}"] if loss else ()),
                    *([units.format_bps(rate_bps)] if rate_bps else ()),
                )
            )
        )
    return " with ".join(said) or "no queue of ours"


def class_differences(shown: str, impairment: Impairment) -> list[str]:
    """What the class above a queue that manages itself has otherwise than it was told; empty: nothing, or none."""
    if not queues.has_class(impairment):
        return []
    line, told = _class(shown), impairment.rate_bps or 0
    rate_bps = _class_bps(line)
    if " sc " in line or " ls " in line or rate_bps is None or not math.isclose(rate_bps, told, rel_tol=_RELATIVE):
        return [f"hfsc has {line.strip() or 'no class'}, not a real-time curve of {units.format_bps(told)}"]
    return []


def differences(shown: str, impairment: Impairment, mtu_bytes: int, *, rate_by_netem: bool = False) -> list[str]:
    """What the kernel has otherwise than it was told; empty: nothing."""
    qdiscs = {(qdisc["kind"], qdisc["handle"]): qdisc for qdisc in commands.parse_json("tc -j -s qdisc show", shown)}
    told: dict[tuple[str, str], dict[Path, float]] = {}
    if netem.uses_netem(impairment):
        told["netem", netem.NETEM] = told_netem(impairment, mtu_bytes)
    if netem.is_spaced_by_netem(impairment, rate_by_netem=rate_by_netem):
        told["netem", netem.BOTTLENECK] = _told_spacing(impairment, mtu_bytes)
    elif queues.is_managed(impairment):
        told |= _told_queue(impairment, mtu_bytes)
    elif impairment.rate_bps is not None:
        told["tbf", netem.BOTTLENECK] = _told_bucket(impairment, mtu_bytes)
    wrong = [f"{kind} is there" for kind, at in qdiscs if kind in _OURS and at != "0:" and (kind, at) not in told]
    for (kind, at), options in told.items():
        if (kind, at) not in qdiscs:
            wrong.append(f"{kind} is missing")
            continue
        for path, value in options.items():
            has = _at(qdiscs[kind, at]["options"], path)
            if has is None and path == ("ecn",):  # tc does not say what is off
                has = 0.0
            if has is None or not math.isclose(has, value, rel_tol=_RELATIVE, abs_tol=1e-9):
                wrong.append(f"{kind} {'.'.join(path)} is {has}, not {value:g}")
    return wrong


def counters(shown: str) -> Counters:
    """The root's counters: a classful root counts what its child sends and drops."""
    for qdisc in commands.parse_json("tc -j -s qdisc show", shown):
        if qdisc.get("root"):
            return Counters(qdisc["packets"], qdisc["bytes"], qdisc["drops"])
    return Counters()


def marks(shown: str) -> int:
    """The packets that a queue which manages itself has marked (CE) since it was made."""
    found = 0
    for qdisc in commands.parse_json("tc -j -s qdisc show", shown):
        found += qdisc.get("ecn_mark", 0) + qdisc.get("marked", 0)
        found += sum(tin["ecn_mark"] for tin in qdisc.get("tins", ()))
    return found


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
    if impairment.ecn and netem.has_losses(impairment):
        told["ecn",] = True
    return told


def _told_queue(impairment: Impairment, mtu_bytes: int) -> dict[tuple[str, str], dict[Path, float]]:
    """The shaper and the queue below it; of cake, which is both, its rate. tc shows no fixed share of RED's marks."""
    if impairment.queue == "cake":
        return {("cake", queues.SHAPER): {("bandwidth",): (impairment.rate_bps or 0) / 8, ("overhead",): 0}}
    frame_bytes = mtu_bytes + netem.ETHERNET_HEADER_BYTES
    told: dict[Path, float] = {("ecn",): impairment.ecn}
    if impairment.queue == "red":
        red = queues.red_lengths(frame_bytes=frame_bytes, frames=netem.queue_frames(impairment, mtu_bytes))
        told |= {("limit",): red.limit, ("min",): red.marks_from, ("max",): red.marks_all_from, ("adaptive",): True}
    else:
        told |= {("limit",): impairment.limit_packets or queues.CODEL_PACKETS, ("quantum",): frame_bytes}
        told |= {("target",): queues.CODEL_TARGET_NS / 1e3, ("interval",): queues.CODEL_INTERVAL_NS / 1e3}
    return {("hfsc", queues.SHAPER): {}, (impairment.queue, queues.QUEUE): told}


def _class(shown: str) -> str:
    """The line of the class that has our rate."""
    return next((line for line in shown.splitlines() if line.startswith(f"class hfsc {queues.SHAPER}1 ")), "")


def _class_bps(line: str) -> int | None:
    found = _RATE.search(line)
    return int(found[1]) * 1000 ** " KMGT".index(found[2] or " ") if found else None


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
