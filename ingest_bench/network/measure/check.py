"""Promised against measured: what a profile says about a link, found out in both directions before the load.

And what the kernel has of a link at some moment, while faults change it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ingest_bench.errors import RunFailed
from ingest_bench.model.network import Promise
from ingest_bench.network.measure import expected, qdiscs
from ingest_bench.network.measure.lanes import PATIENCE_S, Lane, tried
from ingest_bench.network.measure.probing import Way, meters
from ingest_bench.network.measure.readings import start
from ingest_bench.network.plan import netem, queues
from ingest_bench.network.plan.link_plan import impairment_of
from ingest_bench.network.plan.places import DIRECTIONS, NOBODY_MAC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest_bench.model.network import Impairment
    from ingest_bench.network.act.link import Link
    from ingest_bench.network.plan.places import Direction

_RTT_SHARE = 0.05
_RTT_NS = 10**6
# Of a probe of `meter`, with its headers.
_PING_BYTES = 16 + 28 + netem.ETHERNET_HEADER_BYTES


def check(link: Link) -> tuple[Promise, ...]:
    """Each promise of the link's profile with what was measured. The counters of `readings` start after it.

    A promise that is not kept is measured again, with more probes; `measured` says at which try it was kept.
    """
    profile = link.profile
    # Both directions at once where one would mostly wait; on a short link they would take the processor from each
    # other. The threads do nothing but write to the meters' pipes and read from them.
    at_once = 2 if expected.is_long(profile) else 1
    with meters(link, pairs=at_once) as pairs:
        (client, server), (other_client, other_server) = pairs[0], pairs[-1]
        runs, rtt_s = itertools.count(1), sum(map(expected.longest_delay_s, (profile.to_server, profile.to_client)))
        lanes = (
            Lane(Way(client, server, runs, rtt_s), "to-server", profile, profile.to_server),
            Lane(Way(other_server, other_client, runs, rtt_s), "to-client", profile, profile.to_client),
        )
        with ThreadPoolExecutor(at_once) as pool:
            promises = list(itertools.chain.from_iterable(pool.map(Lane.promises, lanes)))
        promises += _rtt(lanes[0].way, link)
    promises += [_qdisc(link, lane.direction, lane.impairment) for lane in lanes]
    start(link)
    return tuple(dataclasses.replace(promise, link=link.name) for promise in promises)


def state(link: Link) -> str:
    """The queues of both directions and the MTU, in words; RunFailed where they are not those of the link's profile."""
    with link.changing:
        words = [f"{direction} {_queues(link, direction)}" for direction in DIRECTIONS]
        mtus = {end.device: _mtu_bytes(link, number) for number, end in enumerate(link.ends)}
        told = link.profile.mtu_bytes
    for device, mtu_bytes in mtus.items():
        if mtu_bytes != told:
            raise RunFailed(f"the MTU of {device} is {mtu_bytes}, not {told}")
    return f"{', '.join(words)}, MTU {told}"


def is_cut(link: Link, direction: Direction) -> bool:
    """Whether the frames of that direction go to nobody."""
    end = link.ends[0 if direction == "to-server" else 1]
    shown = json.loads(end.namespace.run(("ip", "-j", "neigh", "show", "dev", end.device)))
    return any(entry["dst"] == (end.gateway or end.peer) and entry.get("lladdr") == NOBODY_MAC for entry in shown)


def _rtt(way: Way, link: Link) -> Iterator[Promise]:
    """The round trip of an idle link. Its median is a reading: a busy machine shows in it, not in the promise."""
    impairments = (link.profile.to_server, link.profile.to_client)
    delays_ns = [expected.delay_ns(impairment) for impairment in impairments]
    if None in delays_ns or any(impairment.reorder_ppm and impairment.jitter_ns for impairment in impairments):
        return
    promised_ns = sum(delay_ns for delay_ns in delays_ns if delay_ns is not None)
    wait_s = sum(map(expected.longest_delay_s, impairments)) + 0.3
    wire_ns = sum(expected.wire_ns(impairment, _PING_BYTES) for impairment in impairments)
    tolerance_ns = max(_RTT_SHARE * promised_ns, _RTT_NS) + wire_ns

    def measure(attempt: int) -> tuple[str, bool]:
        plan = expected.pings(impairments, attempt)
        rtts = way.round_trips_ns(plan.count, 1 / plan.per_s, wait_s)
        if not rtts:
            return f"no answer to {plan.count} probes", False
        name, found_ns, uncertain_ns = typical_rtt(rtts, promised_ns, impairments)
        low, middle, high = (rtts[len(rtts) * share // 20] for share in (1, 10, 19))
        link.idle_rtt_ms, link.idle_rtts = middle / 1e6, len(rtts)
        words = f"{_ms(found_ns)} ({name} of {len(rtts)}; 5%, 50%, 95%: {_ms(low)}, {_ms(middle)}, {_ms(high)})"
        return words, abs(found_ns - promised_ns) <= tolerance_ns + uncertain_ns

    tolerance = f"{_ms(tolerance_ns)}: the larger of 5% and 1 ms, and a probe's time on the wire"
    yield tried("rtt", _ms(promised_ns), tolerance, measure, patience_s=PATIENCE_S)


def typical_rtt(rtts: list[int], promised_ns: float, impairments: tuple[Impairment, ...]) -> tuple[str, float, float]:
    """What stands for round-trip times in their order: its name, itself, and how uncertain jitter leaves it.

    A busy machine's pauses only add to what the link takes, so without jitter a low quantile is the link's own.
    Packets that overtook took less than the link does, and are left out.
    """
    if any(impairment.reorder_ppm for impairment in impairments):
        rtts = [rtt for rtt in rtts if rtt >= 0.75 * promised_ns] or rtts
    scatter_ns = sum(impairment.jitter_ns for impairment in impairments)
    if not scatter_ns:
        return "10% quantile", rtts[len(rtts) // 10], 0.0
    uncertain_ns = 3 * scatter_ns / len(rtts) ** 0.5
    if any(impairment.distribution.startswith("pareto") for impairment in impairments):
        return "mean", statistics.mean(rtts), uncertain_ns
    return "median", statistics.median(rtts), uncertain_ns


def _qdisc(link: Link, direction: Direction, impairment: Impairment) -> Promise:
    """What the kernel has, read back."""
    _, device = link.shaper(direction)
    wrong, _ = _wrong_queues(link, direction)
    lines = netem.lines(device, impairment, link.profile.mtu_bytes, rate_by_netem=link.layout.rate_by_netem)
    told = [re.split(" handle | classid ", line)[1].partition(" ")[2] for line in lines]
    return Promise(
        name=f"qdisc {direction}",
        promised="; ".join(told) or "none",
        measured="; ".join(wrong) or "as promised",
        tolerance="2%, for what tc rounds",
        kept=not wrong,
    )


def _wrong_queues(link: Link, direction: Direction) -> tuple[list[str], str]:
    """What the queues of a direction have otherwise than the link's profile says, and what they are, in words."""
    impairment = impairment_of(link.profile, direction)
    place, device = link.shaper(direction)
    shown = place.run(qdiscs.show(device))
    classes = place.run(qdiscs.show_classes(device)) if queues.has_class(impairment) else ""
    by_netem = link.layout.rate_by_netem
    wrong = qdiscs.differences(shown, impairment, link.profile.mtu_bytes, rate_by_netem=by_netem)
    return wrong + qdiscs.class_differences(classes, impairment), qdiscs.words(shown, classes)


def _queues(link: Link, direction: Direction) -> str:
    wrong, words = _wrong_queues(link, direction)
    if wrong:
        raise RunFailed(f"{direction}: {'; '.join(wrong)}; somebody else has changed the link's queues")
    return words


def _mtu_bytes(link: Link, number: int) -> int:
    end = link.ends[number]
    (shown,) = json.loads(end.namespace.run(("ip", "-j", "link", "show", "dev", end.device)))
    return int(shown["mtu"])


def _ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:.2f} ms"
