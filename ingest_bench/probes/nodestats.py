"""What the stats API of Elasticsearch and OpenSearch says of collections, heap and direct buffers, each second.

It is all that can be had of a JVM that is only a URL. It counts collections and the time in them; how long single
pauses were, and why, it does not know.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import IngestBenchError, RunFailed, SpecError
from ingest_bench.inputs import decoding, files
from ingest_bench.model.results import Measured, Reading, Remark, Series
from ingest_bench.units import spelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FILE = "node-stats.jsonl"
_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What all nodes said at one moment."""

    at_ns: int
    """CLOCK_REALTIME: the middle between question and answer."""
    nodes: dict[str, dict[str, Any]]
    """Its `jvm`, by node."""


@contextmanager
def watch(ask: Callable[[], Any], raw: Path) -> Iterator[None]:
    """Asks each second, and once more at the end. A question without an answer leaves no line.

    RunFailed at the end of the block where answers could not be kept.
    """
    over = threading.Event()
    failed: list[Exception] = []

    def ask_on() -> None:
        with (raw / FILE).open("w", encoding="utf-8") as file:
            while True:
                last = over.wait(0)
                file.write(_asked(ask))
                file.flush()
                if last:
                    return
                over.wait(_EVERY_S)

    def follow() -> None:
        try:
            ask_on()
        except Exception as error:  # noqa: BLE001 - nobody would see it in this thread
            failed.append(error)

    thread = threading.Thread(target=follow, name="node-stats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    for error in failed:
        raise RunFailed(f"{raw / FILE}: what the server tells of its JVM could not be kept: {error!r}") from error


def read(raw: Path, start_ns: int, end_ns: int) -> Iterator[Measured]:
    """Collections between the two answers that are nearest to the measurement's ends, and what was seen within."""
    if not (raw / FILE).exists():
        yield Remark(probe="gc", text="unavailable: the server was not asked, for it has no API that tells of its JVM")
        return
    samples = _samples(raw / FILE)
    try:
        yield from list(_measured(samples, start_ns, end_ns))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        yield Remark(probe="gc", text="unavailable: the server tells of its JVM (GET /_nodes/stats/jvm) in its own way")


def _measured(samples: list[Sample], start_ns: int, end_ns: int) -> Iterator[Measured]:
    if not samples:
        yield Remark(probe="gc", text="unavailable: the server told nothing of its JVM (GET /_nodes/stats/jvm)")
        return
    first = min(samples, key=lambda sample: abs(sample.at_ns - start_ns))
    last = min(samples, key=lambda sample: abs(sample.at_ns - end_ns))
    if first.at_ns >= last.at_ns or first.nodes.keys() != last.nodes.keys() or _restarted(first, last):
        yield Remark(probe="gc", text="unavailable: nodes came, went or started anew, or answered less than twice")
    else:
        yield from _collections(first, last)
        near = f"{(first.at_ns - start_ns) / 1e9:+.1f} s to {(last.at_ns - end_ns) / 1e9:+.1f} s"
        yield Remark(probe="gc", text=f"they are counted from the measurement's start {near} from its end")
    within = [sample for sample in samples if start_ns <= sample.at_ns < end_ns]
    yield from _direct(within)
    yield _series("heap_bytes", [(one.at_ns, _total(one, "mem", "heap_used_in_bytes")) for one in samples])
    yield _series("direct_buffer_bytes", [(one.at_ns, _pool(one, "used_in_bytes")) for one in samples])


def _asked(ask: Callable[[], Any]) -> str:
    asked_ns = time.time_ns()
    try:
        answer = ask()
        nodes = {name: node["jvm"] for name, node in answer["nodes"].items()} if answer else {}
        line = json.dumps({"at_ns": (asked_ns + time.time_ns()) // 2, "nodes": nodes})
    except (IngestBenchError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # RecursionError: objects in objects, a thousand deep.
        return ""
    return f"{line}\n" if nodes else ""


def _samples(path: Path) -> list[Sample]:
    if not path.is_file():
        return []
    lines = files.text(path).splitlines(keepends=True)
    try:
        return [decoding.decoded(Sample, json.loads(line)) for line in lines if line.endswith("\n")]
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: this file is damaged: {error}") from None


def _restarted(first: Sample, last: Sample) -> bool:
    """Whether the counts of a JVM began anew: one fell, or it started after the first answer.

    Both answers say how long it had been up at the first one. Moments of answers are not exact: where the last one
    says less than half of it, that is another JVM.
    """
    elapsed_ms = (last.at_ns - first.at_ns) / 1e6
    for name, now in last.nodes.items():
        then, counts = first.nodes[name], _counts(now)
        before_ms = now.get("uptime_in_millis", elapsed_ms) - elapsed_ms
        if before_ms < then.get("uptime_in_millis", 0) / 2:
            return True
        if any(counts.get(counter, 0) < count for counter, count in _counts(then).items()):
            return True
    return False


def _counts(node: dict[str, Any]) -> dict[tuple[str, str], int]:
    keys = ("collection_count", "collection_time_in_millis")
    return {(name, key): told[key] for name, told in node["gc"]["collectors"].items() for key in keys}


def _collections(first: Sample, last: Sample) -> Iterator[Measured]:
    counts: dict[str, int] = {}
    spent_ms = 0
    for name, node in last.nodes.items():
        before = first.nodes[name]["gc"]["collectors"]
        for collector, now in node["gc"]["collectors"].items():
            then = before.get(collector, {"collection_count": 0, "collection_time_in_millis": 0})
            counts[collector] = counts.get(collector, 0) + now["collection_count"] - then["collection_count"]
            spent_ms += now["collection_time_in_millis"] - then["collection_time_in_millis"]
    yield Reading("gc_young_collections", counts.get("young"))
    yield Reading("gc_old_collections", counts.get("old"))
    yield Reading("gc_collection_ms", spent_ms)
    summary = ", ".join(f"{spelled(collector)}: {count}" for collector, count in itertools.islice(counts.items(), 20))
    yield Remark(probe="gc", text=f"collections by the server's stats API: {summary}; pauses are unknown")


def _direct(samples: list[Sample]) -> Iterator[Reading]:
    keys = {
        "direct_buffers_max": "count",
        "direct_buffer_used_max_bytes": "used_in_bytes",
        "direct_buffer_capacity_max_bytes": "total_capacity_in_bytes",
    }
    for column, key in keys.items():
        yield Reading(column, max((_pool(sample, key) for sample in samples), default=None))


def _pool(sample: Sample, key: str) -> int:
    return sum(int(node.get("buffer_pools", {}).get("direct", {}).get(key, 0)) for node in sample.nodes.values())


def _total(sample: Sample, group: str, key: str) -> int:
    return sum(int(node[group][key]) for node in sample.nodes.values())


def _series(name: str, points: list[tuple[int, int]]) -> Series:
    return Series(name, tuple(at for at, _ in points), tuple(float(value) for _, value in points))
