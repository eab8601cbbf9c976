"""Keys that contradict each other: what tc would take, or ignore, and nobody can mean; what only our servers have.

All of it is pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest_bench import units
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.network import Impairment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ingest_bench.model.experiment import Cell, Fault
    from ingest_bench.model.load import LoadOptions
    from ingest_bench.model.network import Profile

# The most that veth takes (drivers/net/veth.c); only lo has one byte more.
_VETH_MTU_BYTES = 65535
_ETHERNET_HEADER_BYTES = 14
# A token bucket's queue is counted in bytes of 32 bits, and what it has saved up in 32 bits of 64 ns (tc's ticks).
_TBF_BYTES = 2**32 - 1
_TBF_NS = 2**32 * 64
_LOSS_MODELS = ("loss", "loss_state", "loss_gemodel")
_PER_PACKET = (*_LOSS_MODELS, "duplicate", "corrupt", "reorder")
# An average that RED can keep in the kernel's 32 bits, and so many frames that its least share of them is some.
_RED_BYTES, _RED_FRAMES = 8 * 10**6, 32
# What does nothing on its own, and what it needs one of.
_NEEDS = {
    "burst": ("rate",),
    "delay_correlation": ("jitter",),
    "loss_correlation": ("loss",),
    "duplicate_correlation": ("duplicate",),
    "corrupt_correlation": ("corrupt",),
    "reorder_correlation": ("reorder",),
    "reorder": ("delay",),
    "reorder_gap": ("reorder",),
    "packet_overhead": ("netem_rate",),
    "cell": ("netem_rate",),
    "cell_overhead": ("cell",),
    "slot_max": ("slot_min",),
    "slot_packets": ("slot_min",),
}


def consistent(profile: Profile, where: str) -> Profile:
    """The profile itself; SpecError when its keys contradict each other."""
    if profile.medium == "veth" and profile.mtu_bytes > _VETH_MTU_BYTES:
        raise SpecError(f"{where}: mtu: {profile.mtu_bytes} is lo's alone; a veth takes at most {_VETH_MTU_BYTES}")
    for key, impairment in (("to_server", profile.to_server), ("to_client", profile.to_client)):
        for complaint in _complaints(impairment, profile):
            raise SpecError(f"{where}: {key}: {complaint}")
    return profile


def check_load(options: LoadOptions, where: str) -> None:
    """SpecError when keys of the load contradict each other."""
    if options.bulk_documents is not None and options.bulk_bytes is not None:
        raise SpecError(f"{where}: bulk and bulk_documents: a bulk has one size; take one of them out")


# What may be said of a server that runs already.
_OF_RUNNING = (
    "file",
    "server",
    "url",
    "more_urls",
    "attach",
    "attach_started",
    "interface",
    "ca_file",
    "client_cert",
    "client_key",
)
_TAKE_OUT = "take it out, or take no experiment: there is one for servers that run already"


def check_running(tables: Mapping[str, Mapping[str, object]], faults: Sequence[Fault], where: str) -> None:
    """SpecError for what only a server of ours can have, when the target is one that runs already."""
    target = tables["target"]
    for key in ("more_urls", "interface", "ca_file", "client_cert", "client_key"):
        if target.get(key) and "url" not in target:
            raise SpecError(f"{where}: target.{key}: it belongs to a server that runs already; there is no target.url")
    if bool(target.get("client_cert")) != bool(target.get("client_key")):
        raise SpecError(f"{where}: target.client_cert and target.client_key belong together; one of them is not given")
    which = next((f"target.{key}" for key in ("url", "attach") if key in target), None)
    if which is None:
        return
    for key in target:
        if key not in _OF_RUNNING:
            raise SpecError(f"{where}: target.{key}: the server of {which} runs already and has its own; {_TAKE_OUT}")
    shapes = target.get("interface") is not None
    if shapes and "profile" not in tables["network"]:
        raise SpecError(f"{where}: target.interface: shaped how? Choose a profile: --set network=wan-50ms")
    for table in ("peers",) if shapes else ("network", "peers"):
        for key in tables[table]:
            raise SpecError(f"{where}: {table}.{key}: the network to the server of {which} is as it is; {_TAKE_OUT}")
    for key in tables["host"]:
        raise SpecError(f"{where}: host.{key}: the machine of {which} is as it is; {_TAKE_OUT}")
    for fault in faults:
        raise SpecError(f"{where}: fault {fault.kind}: it needs a link and a server of ours; {which} has neither")


def check_nodes(cell: Cell, where: str) -> None:
    """SpecError for what several nodes cannot have, or one alone has not."""
    nodes = cell.target.nodes
    if cell.load.nodes != "all" and cell.load.nodes > nodes:
        raise SpecError(f"{where}: load.nodes: there is no node {cell.load.nodes}, there are {nodes} (target.nodes)")
    links = {"network": cell.network, "peers": cell.peers}
    for key, profile in links.items():
        if nodes > 1 and profile is not None and profile.medium == "loopback":
            raise SpecError(
                f'{where}: {key}: "{profile.name}" has one namespace, and each of {nodes} nodes has its own; '
                'take "unshaped" or another veth'
            )
    if cell.network is not None and cell.peers is not None:
        for name in ("tcp_rmem_bytes", "tcp_wmem_bytes"):
            if getattr(cell.peers, name) not in (None, getattr(cell.network, name)):
                raise SpecError(
                    f"{where}: peers.{name.removesuffix('_bytes')}: a namespace has one such size, and the network's "
                    "profile has another one; take it out"
                )
    for fault in cell.faults:
        if (fault.node or 1) > nodes:
            raise SpecError(f"{where}: fault {fault.kind}: node {fault.node}: there are {nodes} (target.nodes)")
        if fault.link == "peers" and nodes == 1:
            raise SpecError(f"{where}: fault {fault.kind}: link peers: one node has no peers (target.nodes)")
        if fault.link == "peers" and fault.node is None and fault.direction != "both":
            raise SpecError(f"{where}: fault {fault.kind}: {fault.direction} of which node? Add node = 2")


def _complaints(impairment: Impairment, profile: Profile) -> Iterator[str]:
    """What is wrong with one direction."""
    if profile.medium == "loopback" and impairment != Impairment():
        yield 'loopback has one device for both directions and shapes neither; use medium = "veth"'
    for key in _PER_PACKET:
        if getattr(impairment, f"{key}_ppm") and profile.gso_max_segs != 1:
            yield f"{key} would hit super-packets of up to 64 KiB, not packets; set gso_max_segs = 1"
    models = [key for key in _LOSS_MODELS if getattr(impairment, f"{key}_ppm")]
    if len(models) > 1:
        yield f"{' and '.join(models)}: netem knows one model of loss at a time"
    yield from _states(impairment.loss_state_ppm)
    names = records.keys(Impairment)
    for key, needed in _NEEDS.items():
        if getattr(impairment, names[key]) and not any(getattr(impairment, names[need]) for need in needed):
            yield f"{key} does nothing without {' or '.join(needed)}"
    if impairment.ecn and not models and impairment.queue == "fifo":
        yield f'ecn does nothing without {" or ".join(_LOSS_MODELS)} or another queue than "fifo"'
    yield from _queue(impairment, profile)
    if impairment.distribution != "uniform" and not impairment.jitter_ns:
        yield "distribution does nothing without jitter"
    yield from _bucket(impairment, profile.mtu_bytes + _ETHERNET_HEADER_BYTES)
    if impairment.slot_max_ns is not None and impairment.slot_max_ns < (impairment.slot_min_ns or 0):
        yield "slot_max is less than slot_min"


def _states(given_ppm: Sequence[int]) -> Iterator[str]:
    """What is wrong with the 4-state model of loss: no state is left more often than at each packet."""
    p13, p31, p32, _, p14 = [*given_ppm, *[0] * (5 - len(given_ppm))]
    for one, other, name in ((p13, p14, "p13 and p14"), (p31, p32, "p31 and p32")):
        if one + other > 10**6:
            yield f"loss_state: {name} are {units.format_ppm(one + other)} together; take at most 100%"


def _queue(impairment: Impairment, profile: Profile) -> Iterator[str]:
    """What is wrong with a queue that manages itself."""
    queue, limit, frame_bytes = impairment.queue, impairment.limit_packets, profile.mtu_bytes + _ETHERNET_HEADER_BYTES
    if queue == "fifo":
        return
    if profile.gso_max_segs != 1:
        yield "queue would count super-packets of up to 64 KiB, not packets; set gso_max_segs = 1"
    if impairment.rate_bps is None:
        yield f'queue: nothing ever waits in "{queue}" without a bottleneck; add a rate'
    if impairment.burst_bytes is not None:
        yield f'burst: a token bucket has a FIFO; "{queue}" stands behind a rate that spaces packets. Take one out'
    if impairment.netem_rate_bps is not None:
        yield f'netem_rate: it would be a second bottleneck, and "{queue}" is the queue of one; take it out'
    if queue == "cake" and limit is not None:
        yield "limit_packets: cake has no limit in packets, and finds its memory by itself; take it out"
    if queue == "red" and limit is not None and not _RED_FRAMES <= limit <= _RED_BYTES // frame_bytes:
        yield (
            f"limit_packets: {limit:,} frames of {frame_bytes} bytes; for RED, which acts from a twelfth of it on and "
            f"averages at most 8 MB, it is between {_RED_FRAMES} and {_RED_BYTES // frame_bytes:,}"
        )


def _bucket(impairment: Impairment, frame_bytes: int) -> Iterator[str]:
    """What is wrong with a token bucket for frames of that size."""
    if impairment.rate_bps is None:
        return
    if impairment.limit_packets is not None and impairment.limit_packets * frame_bytes > _TBF_BYTES:
        yield f"limit_packets: {impairment.limit_packets:,} frames of {frame_bytes} bytes are more than 4 GiB of queue"
    if impairment.burst_bytes is None:
        return
    if impairment.burst_bytes < frame_bytes:
        yield (
            f"burst: {impairment.burst_bytes} bytes never let a frame of {frame_bytes} pass (the MTU and 14 bytes of "
            f"Ethernet); give at least {frame_bytes}B, or leave it out"
        )
    if impairment.burst_bytes * 8 * 10**9 > impairment.rate_bps * _TBF_NS:
        yield "burst: it would hold more than 274 seconds of the rate, which tc cannot say"
