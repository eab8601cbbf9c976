"""What the kernel has of a link of ours at this moment: its queues, its MTU, and to whom its frames go."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ingest_bench.errors import RunFailed
from ingest_bench.network.measure import qdiscs
from ingest_bench.network.plan.places import DIRECTIONS, NOBODY_MAC

if TYPE_CHECKING:
    from ingest_bench.network.act.link import Link
    from ingest_bench.network.plan.places import Direction


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


def wrong_queues(link: Link, direction: Direction) -> tuple[list[str], str]:
    """What the queues of a direction have otherwise than the link's profile says, and what they are, in words."""
    impairment = link.profile.to_server if direction == "to-server" else link.profile.to_client
    place, device = link.shaper(direction)
    shown = place.run(qdiscs.show(device))
    classes = place.run(qdiscs.show_classes(device)) if qdiscs.needs_classes(impairment) else ""
    by_netem = link.layout.rate_by_netem
    wrong = qdiscs.differences(shown, impairment, link.profile.mtu_bytes, rate_by_netem=by_netem)
    return wrong + qdiscs.class_differences(classes, impairment), qdiscs.words(shown, classes)


def _queues(link: Link, direction: Direction) -> str:
    wrong, words = wrong_queues(link, direction)
    if wrong:
        raise RunFailed(f"{direction}: {'; '.join(wrong)}; somebody else has changed the link's queues")
    return words


def _mtu_bytes(link: Link, number: int) -> int:
    end = link.ends[number]
    (shown,) = json.loads(end.namespace.run(("ip", "-j", "link", "show", "dev", end.device)))
    return int(shown["mtu"])
