"""What a node says about itself, and whether that is what was asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import InvalidRun
from ingest_bench.jvm import options
from ingest_bench.targets.elastic import node_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingest_bench.model.target import TargetOptions
    from ingest_bench.targets.elastic.node_options import Version
    from ingest_bench.targets.http import Http

_OWN_ALLOCATOR = re.compile(r"NettyAllocator with the following configs: \[name=(\w+)")
_NETTYS_ALLOCATOR = re.compile(r"-Dio\.netty\.allocator\.type: (\w+)")


def logged_allocator(log: str) -> str | None:
    """The allocator that the node's log names: unpooled, opensearch_configured; or Netty's own: pooled, unpooled."""
    own = _OWN_ALLOCATOR.search(log)
    if own is not None and own[1] != "netty_default":
        return own[1]
    nettys = _NETTYS_ALLOCATOR.search(log)
    return None if nettys is None else nettys[1]


def told_receive_predictor(told: Mapping[str, Any]) -> str:
    """The receive buffer in the node's settings: "32768b", "65536b..524288b", or "default"."""
    found = told.get("http", {}).get("netty", {})
    if "receive_predictor_min" in found:
        return f"{found['receive_predictor_min']}..{found['receive_predictor_max']}"
    return str(found.get("receive_predictor_size", "default"))


def missing(http: Http, node: int, nodes: int) -> list[str]:
    """Which of so many nodes are not in the cluster that the one of this place has joined."""
    if nodes == 1:
        return []
    # As it knows it itself: a master would be asked in vain where there is none.
    answer = http.request("GET", "/_cluster/state/nodes?local=true", timeout_s=5)
    others = [node_options.name(place) for place in range(nodes) if place != node]
    try:
        found = {one["name"] for one in answer.json()["nodes"].values()} if answer.status == 200 else set()
    except (ValueError, KeyError, TypeError, AttributeError):
        found = set()
    return [name for name in others if name not in found]


def check(version: Version, asked: TargetOptions, told: Mapping[str, Any], allocator: str | None) -> None:
    """InvalidRun when the node that answered is not the one that was asked for."""
    gc = version.gc if asked.gc == "default" else asked.gc
    beans = tuple(told["jvm"]["gc_collectors"])
    heap_bytes = told["jvm"]["mem"]["heap_max_in_bytes"]
    wrong = []
    if told["version"] != version.archive.version:
        wrong.append(f"version {version.archive.version} was asked for, it is {told['version']}")
    if not options.obeyed(gc, beans):
        wrong.append(f"gc {gc} was asked for, it has {', '.join(beans)}")
    # Collectors with survivor spaces count one of them less than the heap that was asked for.
    if not 0.85 * asked.heap_bytes <= heap_bytes <= asked.heap_bytes:
        wrong.append(f"a heap of {asked.heap_bytes} bytes was asked for, it has {heap_bytes}")
    if asked.allocator != "default" and (allocator == "unpooled") != (asked.allocator == "unpooled"):
        wrong.append(f"allocator {asked.allocator} was asked for, its log says {allocator or 'nothing'}")
    wanted = "..".join(f"{size}b" for size in asked.receive_predictor_bytes) or "default"
    has = told_receive_predictor(told["settings"])
    by_setting = any(key.startswith("http.netty.receive_predictor") for key in asked.setting)
    if has != wanted and not by_setting:
        wrong.append(f"receive predictor {wanted} was asked for, it has {has}")
    if wrong:
        raise InvalidRun(f"server: it does not run as asked: {'; '.join(wrong)}")
