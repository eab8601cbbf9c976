"""Compare the output of `tc -j -s qdisc show` with an impairment. Pure.

pyroute2 (0.9.7) was rejected: it does not read netem's loss models, slots, ECN mark and rates above 32 bits. In another
namespace it has to be a process, which takes 286 ms of CPU per request; `tc` takes 5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingest_bench import units
from ingest_bench.model.network import Impairment
from ingest_bench.network.plan import link_plan, netem

# tc stores times and bursts as ticks of a coarse clock, and shares as 32-bit fractions: 62500 bytes are read back as
# 62375, and 1250 as 1237.
_RELATIVE_TOLERANCE = 0.02
_MILLION = 10**6
# Kinds of qdiscs that we create; the kernel's own have handle 0.
_OUR_KINDS = ("netem", "tbf", "hfsc", *netem.AQM_QUEUES)
_CLASS_RATE = re.compile(r" m2 (\d+)([KMGT]?)bit")

Path = tuple[str, ...]
# Where each kind has its rate, in bytes a second.
_RATE_PATHS: Mapping[str, Path] = {"netem": ("rate", "rate"), "tbf": ("rate",), "cake": ("bandwidth",)}


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of all qdiscs of a device together."""

    packets: int = 0
    drops: int = 0


def show_argv(device: str) -> tuple[str, ...]:
    """Return the argv that reads a device's qdiscs."""
    return ("tc", "-j", "-s", "qdisc", "show", "dev", device)


def show_classes_argv(device: str) -> tuple[str, ...]:
    """Return the argv that reads a device's classes: hfsc prints its rate there, and only as text."""
    return ("tc", "class", "show", "dev", device)


def describe_qdiscs(output: str, classes: str) -> str:
    """Describe our qdiscs for a person: "netem 25ms with tbf 100mbit"."""
    descriptions = []
    for qdisc in _parse_qdiscs(output):
        kind, options = qdisc["kind"], qdisc["options"]
        if kind not in _OUR_KINDS or qdisc["handle"] == "0:":
            continue
        delay_s = _get_option(options, ("delay", "delay"))
        loss = _get_option(options, ("loss-random", "loss"))
        rate = _get_option(options, _RATE_PATHS[kind]) if kind in _RATE_PATHS else None
        rate_bps = _parse_class_rate(_find_class(classes)) if kind == "hfsc" else rate and rate * 8
        words = [kind]
        if delay_s:
            words.append(units.format_time(delay_s * 1e9))
        if loss:
            words.append(f"loss {units.format_ppm(loss * _MILLION)}")
        if rate_bps:
            words.append(units.format_bps(rate_bps))
        descriptions.append(" ".join(words))
    return " with ".join(descriptions) or "no qdisc"


def find_class_differences(output: str, impairment: Impairment) -> list[str]:
    """Return how the class above an AQM queue differs from the impairment; empty if it does not."""
    if not netem.has_hfsc_class(impairment):
        return []
    line, expected_bps = _find_class(output), impairment.rate_bps or 0
    rate_bps = _parse_class_rate(line)
    matches = rate_bps is not None and math.isclose(rate_bps, expected_bps, rel_tol=_RELATIVE_TOLERANCE)
    if " sc " in line or " ls " in line or not matches:
        return [f"hfsc has {line.strip() or 'no class'}, not a real-time curve of {units.format_bps(expected_bps)}"]
    return []


def find_differences(output: str, impairment: Impairment, mtu_bytes: int, *, rate_by_netem: bool = False) -> list[str]:
    """Return how the kernel's qdiscs differ from the impairment; empty if they do not."""
    qdiscs = {(qdisc["kind"], qdisc["handle"]): qdisc for qdisc in _parse_qdiscs(output)}
    expected = _expected_qdiscs(impairment, mtu_bytes, rate_by_netem=rate_by_netem)
    differences = [
        f"{kind} is unexpected"
        for kind, handle in qdiscs
        if kind in _OUR_KINDS and handle != "0:" and (kind, handle) not in expected
    ]
    for (kind, handle), options in expected.items():
        if (kind, handle) not in qdiscs:
            differences.append(f"{kind} is missing")
            continue
        for path, value in options.items():
            actual = _get_option(qdiscs[kind, handle]["options"], path)
            if actual is None and path == ("ecn",):  # tc does not print what is off
                actual = 0.0
            if actual is None or not math.isclose(actual, value, rel_tol=_RELATIVE_TOLERANCE, abs_tol=1e-9):
                differences.append(f"{kind} {'.'.join(path)} is {actual}, not {value:g}")
    return differences


def parse_counters(output: str) -> Counters:
    """Return the root's counters: a classful root includes its child's."""
    for qdisc in _parse_qdiscs(output):
        if qdisc.get("root"):
            return Counters(qdisc["packets"], qdisc["drops"])
    return Counters()


def _expected_netem(impairment: Impairment, mtu_bytes: int) -> dict[Path, float]:
    """Return netem's options as `tc -j` prints them: seconds, shares of one, bytes a second."""
    options: dict[Path, float] = {("limit",): netem.netem_limit_packets(impairment, mtu_bytes)}
    if impairment.delay_ns:  # tc prints no jitter of a delay that is 0
        options["delay", "delay"] = impairment.delay_ns / 1e9
        options["delay", "jitter"] = impairment.jitter_ns / 1e9
        options["delay", "correlation"] = impairment.delay_correlation_ppm / _MILLION
    options |= _shares("loss-state", ("p13", "p31", "p32", "p23", "p14"), impairment.loss_state_ppm)
    options |= _shares("loss-gemodel", ("p", "r", "1-h", "1-k"), impairment.loss_gemodel_ppm)
    pairs = (
        ("loss-random", "loss", impairment.loss_ppm, impairment.loss_correlation_ppm),
        ("duplicate", "duplicate", impairment.duplicate_ppm, impairment.duplicate_correlation_ppm),
        ("corrupt", "corrupt", impairment.corrupt_ppm, impairment.corrupt_correlation_ppm),
        ("reorder", "reorder", impairment.reorder_ppm, impairment.reorder_correlation_ppm),
    )
    for table, name, share_ppm, correlation_ppm in pairs:
        if share_ppm:
            options |= _shares(table, (name, "correlation"), (share_ppm, correlation_ppm))
    if impairment.reorder_gap:
        options["gap",] = impairment.reorder_gap
    if impairment.netem_rate_bps is not None:
        options["rate", "rate"] = impairment.netem_rate_bps / 8
        options["rate", "packetoverhead"] = impairment.packet_overhead_bytes
        options["rate", "cellsize"] = impairment.cell_bytes
        options["rate", "celloverhead"] = impairment.cell_overhead_bytes
    if impairment.slot_min_ns is not None:
        options["slot", "min-delay"] = impairment.slot_min_ns / 1e9
        options["slot", "max-delay"] = (impairment.slot_max_ns or impairment.slot_min_ns) / 1e9
        options["slot", "packets"] = impairment.slot_packets
        options["slot", "bytes"] = impairment.slot_bytes
    if impairment.ecn and netem.has_losses(impairment):
        options["ecn",] = True
    return options


def _expected_qdiscs(
    impairment: Impairment, mtu_bytes: int, *, rate_by_netem: bool
) -> dict[tuple[str, str], dict[Path, float]]:
    """Return the options of each qdisc by kind and handle. tc does not print RED's mark probability."""
    expected: dict[tuple[str, str], dict[Path, float]] = {}
    rate_bytes_per_s = (impairment.rate_bps or 0) / 8
    frame_bytes, frames = mtu_bytes + netem.ETHERNET_HEADER_BYTES, netem.queue_frames(impairment, mtu_bytes)
    if netem.has_netem(impairment):
        expected["netem", netem.NETEM_HANDLE] = _expected_netem(impairment, mtu_bytes)
    if netem.is_netem_bottleneck(impairment, rate_by_netem=rate_by_netem):
        options: dict[Path, float] = {("limit",): frames, ("rate", "rate"): rate_bytes_per_s}
        slot_ns = netem.slot_ns(impairment, mtu_bytes)
        options |= {("slot", "min-delay"): slot_ns / 1e9} if slot_ns else {}
        expected["netem", netem.BOTTLENECK_HANDLE] = options
    elif impairment.queue == "cake":
        expected["cake", netem.SHAPER_HANDLE] = {("bandwidth",): rate_bytes_per_s, ("overhead",): 0}
    elif netem.is_aqm(impairment):
        options = {("ecn",): impairment.ecn}
        if impairment.queue == "red":
            limits = netem.red_limits(frame_bytes=frame_bytes, frames=frames)
            options |= {("limit",): limits.limit_bytes, ("min",): limits.min_bytes, ("max",): limits.max_bytes}
            options["adaptive",] = True
        else:
            options |= {("limit",): impairment.limit_packets or netem.CODEL_PACKETS, ("quantum",): frame_bytes}
            options |= {("target",): netem.CODEL_TARGET_NS / 1e3, ("interval",): netem.CODEL_INTERVAL_NS / 1e3}
        expected |= {("hfsc", netem.SHAPER_HANDLE): {}, (impairment.queue, netem.QUEUE_HANDLE): options}
    elif impairment.rate_bps is not None:
        options = {("rate",): rate_bytes_per_s, ("burst",): netem.bucket_bytes(impairment, mtu_bytes)}
        if impairment.burst_bytes is None:  # tc -j prints the peak's bucket, but not its rate (iproute2 6.1)
            options["minburst",] = netem.batch_bytes(impairment, mtu_bytes)
        expected["tbf", netem.BOTTLENECK_HANDLE] = options
    return expected


def _parse_qdiscs(output: str) -> list[dict[str, Any]]:
    return link_plan.parse_json("tc -j -s qdisc show", output)


def _find_class(output: str) -> str:
    """Return the line of the class that has our rate."""
    return next((line for line in output.splitlines() if line.startswith(f"class hfsc {netem.SHAPER_HANDLE}1 ")), "")


def _parse_class_rate(line: str) -> int | None:
    match = _CLASS_RATE.search(line)
    return int(match[1]) * 1000 ** " KMGT".index(match[2] or " ") if match else None


def _shares(table: str, names: Sequence[str], shares_ppm: Sequence[int]) -> dict[Path, float]:
    return {(table, name): share / _MILLION for name, share in zip(names, shares_ppm, strict=False)}


def _get_option(options: Mapping[str, Any], path: Path) -> float | None:
    value: Any = options
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return None if value is None else float(value)
