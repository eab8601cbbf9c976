"""Contradicting keys: what tc accepts or ignores but makes no sense, and keys of launched servers only. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ingest_bench import units
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.network import Impairment, Profile

# The maximum of veth (drivers/net/veth.c); only lo has one byte more.
_VETH_MTU_BYTES = 65535
_ETHERNET_HEADER_BYTES = 14
# The queue of a token bucket is counted in 32 bits of bytes, its tokens in 32 bits of 64 ns (tc's ticks).
_TBF_BYTES = 2**32 - 1
_TBF_NS = 2**32 * 64
_LOSS_MODELS = ("loss", "loss_state", "loss_gemodel")
_PER_PACKET = (*_LOSS_MODELS, "duplicate", "corrupt", "reorder")
# The average that RED can keep in 32 bits of the kernel, and the frames of which its minimum share is not 0.
_RED_BYTES, _RED_FRAMES = 8 * 10**6, 32
# Keys that do nothing on their own, and the keys of which they require one.
_REQUIRED = {
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


def check_profile(profile: Profile, where: str) -> Profile:
    """Return the profile; SpecError if its keys contradict each other."""
    if profile.medium == "veth" and profile.mtu_bytes > _VETH_MTU_BYTES:
        reason = f"{profile.mtu_bytes} is possible on lo only; a veth takes at most {_VETH_MTU_BYTES}"
        raise SpecError(f"{where}: mtu: {reason}")
    for key, impairment in (("to_server", profile.to_server), ("to_client", profile.to_client)):
        for contradiction in _find_contradictions(impairment, profile):
            raise SpecError(f"{where}: {key}: {contradiction}")
    return profile


# Keys of a target that runs already; the first ones require its URL.
_URL_KEYS = ("more_urls", "watchers", "watch_jmx", "interface", "ca_file", "client_cert", "client_key")
_RUNNING_KEYS = (*_URL_KEYS, "file", "custom", "url", "attach", "attached_process_starts")
_REMEDY = "Remove it, or give no experiment: there is one for servers that run already."


def check_running_target(tables: Mapping[str, Mapping[str, object]], faults: Sequence[Fault], where: str) -> None:
    """Raise SpecError for keys of launched servers if the target runs already."""
    target = tables["target"]
    _check_url_keys(target, where)
    source = next((f"target.{key}" for key in ("url", "attach") if key in target), None)
    if source is None:
        return
    for key in target:
        if key not in _RUNNING_KEYS:
            raise SpecError(f"{where}: target.{key}: the server of {source} runs already and has its own. {_REMEDY}")
    is_shaped = target.get("interface") is not None
    if is_shaped and "profile" not in tables["network"]:
        raise SpecError(f"{where}: target.interface requires a profile: --set network=wan-50ms")
    for table in ("peers",) if is_shaped else ("network", "peers"):
        for key in tables[table]:
            raise SpecError(f"{where}: {table}.{key}: the network to the server of {source} is not shaped. {_REMEDY}")
    for key in tables["host"]:
        raise SpecError(f"{where}: host.{key}: the host of {source} is not changed. {_REMEDY}")
    for fault in faults:
        raise SpecError(f"{where}: fault {fault.kind}: requires a launched server and its link; {source} has neither")


def _check_url_keys(target: Mapping[str, object], where: str) -> None:
    for key in _URL_KEYS:
        if target.get(key) and "url" not in target:
            raise SpecError(f"{where}: target.{key} requires target.url, a server that runs already")
    watching = [f"target.{key}" for key in ("attach", "watchers", "watch_jmx") if target.get(key)]
    if len(watching) > 1:
        raise SpecError(f"{where}: {' conflicts with '.join(watching)}: a JVM is watched in one way")
    if bool(target.get("client_cert")) != bool(target.get("client_key")):
        raise SpecError(f"{where}: target.client_cert and target.client_key require each other")


def check_nodes(cell: Cell, where: str) -> None:
    """Raise SpecError for keys that contradict the number of nodes."""
    nodes = cell.target.nodes
    if cell.load.nodes != "all" and cell.load.nodes > nodes:
        raise SpecError(f"{where}: load.nodes: node {cell.load.nodes} does not exist; target.nodes is {nodes}")
    links = {"network": cell.network, "peers": cell.peers}
    for key, profile in links.items():
        if nodes > 1 and profile is not None and profile.medium == "loopback":
            raise SpecError(
                f'{where}: {key}: "{profile.name}" has one namespace, and each of {nodes} nodes requires its own. '
                'Choose "unshaped" or another veth profile.'
            )
    if cell.network is not None and cell.peers is not None:
        for name in ("tcp_rmem_bytes", "tcp_wmem_bytes"):
            if getattr(cell.peers, name) not in (None, getattr(cell.network, name)):
                raise SpecError(
                    f"{where}: peers.{name.removesuffix('_bytes')}: a namespace has one value, and the profile of "
                    "the network sets another one. Remove it."
                )
    for fault in cell.faults:
        if (fault.node or 1) > nodes:
            raise SpecError(f"{where}: fault {fault.kind}: node {fault.node} does not exist; target.nodes is {nodes}")
        if fault.link == "peers" and nodes == 1:
            raise SpecError(f"{where}: fault {fault.kind}: link peers requires target.nodes > 1")
        if fault.link == "peers" and fault.node is None and fault.direction != "both":
            raise SpecError(
                f"{where}: fault {fault.kind}: {fault.direction} on link peers requires a node, such as node = 2"
            )


def _find_contradictions(impairment: Impairment, profile: Profile) -> Iterator[str]:
    if profile.medium == "loopback" and impairment != Impairment():
        yield 'loopback has one device for both directions and shapes neither. Use medium = "veth".'
    for key in _PER_PACKET:
        if getattr(impairment, f"{key}_ppm") and profile.gso_max_segs != 1:
            yield f"{key} would affect super-packets of up to 64 KiB, not packets. Set gso_max_segs = 1."
    models = [key for key in _LOSS_MODELS if getattr(impairment, f"{key}_ppm")]
    if len(models) > 1:
        yield f"{' and '.join(models)}: netem supports one loss model at a time. Remove the others."
    p13, p31, p32, _, p14 = [*impairment.loss_state_ppm, *[0] * (5 - len(impairment.loss_state_ppm))]
    for total_ppm, states in ((p13 + p14, "p13 and p14"), (p31 + p32, "p31 and p32")):
        # A state is left with a probability of at most 1.
        if total_ppm > 10**6:
            yield f"loss_state: {states} are {units.format_ppm(total_ppm)} together; at most 100% is possible"
    names = records.fields_by_key(Impairment)
    for key, needed in _REQUIRED.items():
        if getattr(impairment, names[key]) and not any(getattr(impairment, names[need]) for need in needed):
            yield f"{key} does nothing without {' or '.join(needed)}"
    if impairment.ecn and not models and impairment.queue == "fifo":
        yield f'ecn does nothing without {" or ".join(_LOSS_MODELS)} or a queue other than "fifo"'
    yield from _find_queue_contradictions(impairment, profile)
    if impairment.distribution != "uniform" and not impairment.jitter_ns:
        yield "distribution does nothing without jitter"
    yield from _find_bucket_contradictions(impairment, profile.mtu_bytes + _ETHERNET_HEADER_BYTES)
    if impairment.slot_max_ns is not None and impairment.slot_max_ns < (impairment.slot_min_ns or 0):
        yield "slot_max is less than slot_min"


def _find_queue_contradictions(impairment: Impairment, profile: Profile) -> Iterator[str]:
    queue, limit, frame_bytes = impairment.queue, impairment.limit_packets, profile.mtu_bytes + _ETHERNET_HEADER_BYTES
    if queue == "fifo":
        return
    if profile.gso_max_segs != 1:
        yield "queue would count super-packets of up to 64 KiB, not packets. Set gso_max_segs = 1."
    if impairment.rate_bps is None:
        yield f'queue: "{queue}" requires a bottleneck. Add a rate.'
    if impairment.burst_bytes is not None:
        yield f'burst conflicts with queue "{queue}": a token bucket has a FIFO. Remove one of them.'
    if impairment.netem_rate_bps is not None:
        yield f'netem_rate conflicts with queue "{queue}": it would be a second bottleneck. Remove it.'
    if queue == "cake" and limit is not None:
        yield "limit_packets: cake has no limit in packets, and sizes its memory itself. Remove it."
    if queue == "red" and limit is not None and not _RED_FRAMES <= limit <= _RED_BYTES // frame_bytes:
        yield (
            f"limit_packets: {limit:,} frames of {frame_bytes} bytes; RED starts at a twelfth of it and "
            f"averages at most 8 MB, so it must be between {_RED_FRAMES} and {_RED_BYTES // frame_bytes:,}"
        )


def _find_bucket_contradictions(impairment: Impairment, frame_bytes: int) -> Iterator[str]:
    if impairment.rate_bps is None:
        return
    if impairment.limit_packets is not None and impairment.limit_packets * frame_bytes > _TBF_BYTES:
        yield f"limit_packets: {impairment.limit_packets:,} frames of {frame_bytes} bytes are more than 4 GiB of queue"
    if impairment.burst_bytes is None:
        return
    if impairment.burst_bytes < frame_bytes:
        yield (
            f"burst: {impairment.burst_bytes} bytes never let a frame of {frame_bytes} pass (MTU and 14 bytes of "
            f"Ethernet). Set at least {frame_bytes}B, or remove it."
        )
    if impairment.burst_bytes * 8 * 10**9 > impairment.rate_bps * _TBF_NS:
        yield "burst: more than 274 seconds of the rate, which tc cannot represent"
