"""Compare a link with its profile: measure both directions before the load, and read back its qdiscs during faults."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from ingest_bench.errors import RunFailed
from ingest_bench.model.network import Impairment, LinkCheck, Profile
from ingest_bench.network.act.link import Link
from ingest_bench.network.measure import expected, qdiscs
from ingest_bench.network.measure.direction_check import (
    PATIENCE_S,
    DirectionCheck,
    MeterPair,
    measure_repeatedly,
    start_meters,
)
from ingest_bench.network.measure.readings import start_counting
from ingest_bench.network.plan import netem
from ingest_bench.network.plan.link_plan import DIRECTIONS, UNUSED_MAC, Direction, impairment_of

# A probe of `meter`, with its headers.
_PING_BYTES = 16 + 28 + netem.ETHERNET_HEADER_BYTES


def check_link(link: Link) -> tuple[LinkCheck, ...]:
    """Check each property of the link's profile. The counters of `readings` start afterwards.

    A property that is not as expected is measured again, with more probes; `measured` tells at which attempt it was.
    """
    profile = link.profile
    # Both directions at once if one would mostly wait; on a short link they would compete for the CPU. The threads only
    # write to the meters' pipes and read from them.
    concurrency = 2 if expected.is_long(profile) else 1
    rtt_s = sum(map(expected.longest_delay_s, (profile.to_server, profile.to_client)))
    with start_meters(link, pairs=concurrency) as pairs:
        (client, server), (other_client, other_server) = pairs[0], pairs[-1]
        run_numbers = itertools.count(1)
        to_server = MeterPair(client, server, run_numbers, rtt_s)
        to_client = MeterPair(other_server, other_client, run_numbers, rtt_s)
        directions = (
            DirectionCheck(to_server, "to-server", profile, profile.to_server),
            DirectionCheck(to_client, "to-client", profile, profile.to_client),
        )
        with ThreadPoolExecutor(concurrency) as pool:
            checks = list(itertools.chain.from_iterable(pool.map(DirectionCheck.check_all, directions)))
        checks += _check_rtt(to_server, link)
    checks += [_check_qdiscs(link, direction) for direction in DIRECTIONS]
    start_counting(link)
    return tuple(dataclasses.replace(check, link=link.name) for check in checks)


def describe_state(link: Link) -> str:
    """Describe the qdiscs of both directions and the MTU; RunFailed if they are not those of the link's profile."""
    words = []
    with link.lock:
        expected_mtu = link.profile.mtu_bytes
        for direction in DIRECTIONS:
            differences, description = _compare_queues(link, direction)
            if differences:
                raise RunFailed(
                    f"{direction}: {'; '.join(differences)}. Another program has changed the link's queues."
                )
            words.append(f"{direction} {description}")
        for end in link.ends:
            (shown,) = json.loads(end.namespace.run(("ip", "-j", "link", "show", "dev", end.device)))
            if shown["mtu"] != expected_mtu:
                raise RunFailed(f"the MTU of {end.device} is {shown['mtu']}, not {expected_mtu}")
    return f"{', '.join(words)}, MTU {expected_mtu}"


def is_cut(link: Link, direction: Direction) -> bool:
    """Return True if the frames of that direction go to an unused MAC address."""
    end = link.ends[0 if direction == "to-server" else 1]
    neighbours = json.loads(end.namespace.run(("ip", "-j", "neigh", "show", "dev", end.device)))
    return any(entry["dst"] == (end.gateway or end.peer) and entry.get("lladdr") == UNUSED_MAC for entry in neighbours)


def typical_rtt(rtts: list[int], expected_ns: float, impairments: tuple[Impairment, ...]) -> tuple[str, float, float]:
    """Return the statistic that represents sorted round-trip times: its name, value, and uncertainty due to jitter.

    Pauses of a busy machine only add to the link's time, so without jitter a low quantile is the link's own. Reordered
    packets took less than the link does, and are left out.
    """
    if any(impairment.reorder_ppm for impairment in impairments):
        rtts = [rtt for rtt in rtts if rtt >= 0.75 * expected_ns] or rtts
    jitter_ns = sum(impairment.jitter_ns for impairment in impairments)
    if not jitter_ns:
        return "10% quantile", rtts[len(rtts) // 10], 0.0
    uncertainty_ns = 3 * jitter_ns / len(rtts) ** 0.5
    if any(impairment.distribution.startswith("pareto") for impairment in impairments):
        return "mean", statistics.mean(rtts), uncertainty_ns
    return "median", statistics.median(rtts), uncertainty_ns


def _check_rtt(meters: MeterPair, link: Link) -> Iterator[LinkCheck]:
    """Check the round trip of an idle link. Its median is a column and no check: a busy machine affects it."""
    impairments = (link.profile.to_server, link.profile.to_client)
    round_trip_ns = expected.round_trip_ns(impairments, _PING_BYTES)
    if round_trip_ns is None:
        return
    expected_ns, tolerance_ns = round_trip_ns
    wait_s = sum(map(expected.longest_delay_s, impairments)) + 0.3

    def measure(attempt: int) -> tuple[str, bool]:
        plan = expected.plan_pings(impairments, attempt)
        rtts = meters.measure_rtts_ns(plan.count, 1 / plan.per_s, wait_s)
        if not rtts:
            return f"no reply to {plan.count} probes", False
        name, rtt_ns, uncertainty_ns = typical_rtt(rtts, expected_ns, impairments)
        low, middle, high = (rtts[len(rtts) * part // 20] for part in (1, 10, 19))
        link.idle_rtt_ms, link.idle_rtt_count = middle / 1e6, len(rtts)
        text = f"{_ms(rtt_ns)} ({name} of {len(rtts)}; 5%, 50%, 95%: {_ms(low)}, {_ms(middle)}, {_ms(high)})"
        return text, abs(rtt_ns - expected_ns) <= tolerance_ns + uncertainty_ns

    tolerance = f"{_ms(tolerance_ns)}: the larger of 5% and 1 ms, and a probe's time on the wire"
    yield measure_repeatedly("rtt", _ms(expected_ns), tolerance, measure, patience_s=PATIENCE_S)


def _check_qdiscs(link: Link, direction: Direction) -> LinkCheck:
    """Check the kernel's qdiscs, read back."""
    differences, _ = _compare_queues(link, direction)
    return report_qdiscs(link.profile, direction, differences, rate_by_netem=link.layout.has_uml_router)


def report_qdiscs(
    profile: Profile, direction: Direction, differences: list[str], *, rate_by_netem: bool = False
) -> LinkCheck:
    """Return the check of a direction's qdiscs, which differ from the profile in this way."""
    impairment = impairment_of(profile, direction)
    lines = netem.qdisc_lines("", impairment, profile.mtu_bytes, rate_by_netem=rate_by_netem)
    options = [re.split(" handle | classid ", line)[1].partition(" ")[2] for line in lines]
    return LinkCheck(
        name=f"qdisc {direction}",
        expected="; ".join(options) or "none",
        measured="; ".join(differences) or "as expected",
        tolerance="2%, for tc's rounding",
        passed=not differences,
    )


def _compare_queues(link: Link, direction: Direction) -> tuple[list[str], str]:
    """Return how a direction's qdiscs differ from the link's profile, and a description of them."""
    impairment = impairment_of(link.profile, direction)
    place, device = link.shaping_device(direction)
    output = place.run(qdiscs.show_argv(device))
    classes = place.run(qdiscs.show_classes_argv(device)) if netem.has_hfsc_class(impairment) else ""
    by_netem = link.layout.has_uml_router
    differences = qdiscs.find_differences(output, impairment, link.profile.mtu_bytes, rate_by_netem=by_netem)
    differences += qdiscs.find_class_differences(classes, impairment)
    return differences, qdiscs.describe_qdiscs(output, classes)


def _ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:.2f} ms"
