"""Collections, heap and direct buffers from the stats API of Elasticsearch and OpenSearch, polled every second.

The only source for an external server. It counts collections and the time in them, not single pauses or causes.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest_bench.errors import IngestBenchError, RunFailed, SpecError
from ingest_bench.inputs import files, records
from ingest_bench.model.results import Note, ProbeOutput, Reading, Series
from ingest_bench.units import quote_name

FILE = "node-stats.jsonl"
_PERIOD_S = 1.0
_UNAVAILABLE = "unavailable: GET /_nodes/stats/jvm: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One response for all nodes."""

    at_ns: int
    """CLOCK_REALTIME: halfway between request and response."""
    nodes: dict[str, dict[str, Any]]
    """The `jvm` object of each node."""


@contextmanager
def watch(request_stats: Callable[[], Any], raw: Path) -> Iterator[None]:
    """Poll every second, and once more at the end. A failed request writes no line.

    RunFailed at the end of the block if responses could not be written.
    """
    stop = threading.Event()

    def poll() -> None:
        with (raw / FILE).open("w", encoding="utf-8") as file:
            is_last = False
            while not is_last:
                is_last = stop.is_set()
                file.write(_sample_line(request_stats))
                file.flush()
                stop.wait(_PERIOD_S)

    with ThreadPoolExecutor(1) as executor:
        polling = executor.submit(poll)
        try:
            yield
        finally:
            stop.set()
    if error := polling.exception():
        raise RunFailed(f"{raw / FILE}: the server's JVM stats could not be written: {error!r}") from error


def read(raw: Path, start_ns: int, end_ns: int) -> Iterator[ProbeOutput]:
    """Yield collections between the two responses nearest to the measurement's ends, and the samples within it."""
    if not (raw / FILE).exists():
        yield Note(source="gc", text="unavailable: the server has no API for JVM stats")
        return
    samples = _load_samples(raw / FILE)
    try:
        yield from list(_read_samples(samples, start_ns, end_ns))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        yield Note(source="gc", text=f"{_UNAVAILABLE}the format of the responses is unknown")


def _read_samples(samples: list[Sample], start_ns: int, end_ns: int) -> Iterator[ProbeOutput]:
    if not samples:
        yield Note(source="gc", text=f"{_UNAVAILABLE}the server sent no stats")
        return
    first = min(samples, key=lambda sample: abs(sample.at_ns - start_ns))
    last = min(samples, key=lambda sample: abs(sample.at_ns - end_ns))
    if first.at_ns >= last.at_ns or first.nodes.keys() != last.nodes.keys() or _restarted(first, last):
        yield Note(source="gc", text="unavailable: nodes joined, left or restarted, or responded less than twice")
    else:
        yield from _collections(first, last)
        bounds = f"{(first.at_ns - start_ns) / 1e9:+.1f} s to {(last.at_ns - end_ns) / 1e9:+.1f} s"
        yield Note(source="gc", text=f"collections are counted from the measurement's start {bounds} from its end")
    within = [sample for sample in samples if start_ns <= sample.at_ns < end_ns]
    for column, key in _DIRECT_COLUMNS.items():
        yield Reading(column, max((_direct_pool(sample, key) for sample in within), default=None))
    heap = [sum(int(node["mem"]["heap_used_in_bytes"]) for node in sample.nodes.values()) for sample in samples]
    direct = [_direct_pool(sample, "used_in_bytes") for sample in samples]
    moments = tuple(sample.at_ns for sample in samples)
    yield Series("heap_bytes", moments, tuple(map(float, heap)))
    yield Series("direct_buffer_bytes", moments, tuple(map(float, direct)))


def _sample_line(request_stats: Callable[[], Any]) -> str:
    sent_ns = time.time_ns()
    try:
        response = request_stats()
        nodes = {name: node["jvm"] for name, node in response["nodes"].items()} if response else {}
        line = json.dumps({"at_ns": (sent_ns + time.time_ns()) // 2, "nodes": nodes})
    except (IngestBenchError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # RecursionError: objects nested a thousand levels deep.
        return ""
    return f"{line}\n" if nodes else ""


def _load_samples(path: Path) -> list[Sample]:
    if not path.is_file():
        return []
    lines = files.read_text(path).splitlines(keepends=True)
    try:
        return [records.decode(Sample, json.loads(line)) for line in lines if line.endswith("\n")]
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: this file is damaged: {error}") from None


def _restarted(first: Sample, last: Sample) -> bool:
    """Return True if the counters of a JVM restarted: one fell, or the JVM started after the first response.

    Both responses give the uptime at the first one. Times of responses are not exact: if the last one gives less than
    half of it, it is from another JVM.
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
    return {(name, key): collector[key] for name, collector in node["gc"]["collectors"].items() for key in keys}


def _collections(first: Sample, last: Sample) -> Iterator[ProbeOutput]:
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
    summary = ", ".join(
        f"{quote_name(collector)}: {count}" for collector, count in itertools.islice(counts.items(), 20)
    )
    yield Note(source="gc", text=f"collections by the server's stats API: {summary}; pauses are unknown")


_DIRECT_COLUMNS = {
    "direct_buffers_max": "count",
    "direct_buffer_used_max_bytes": "used_in_bytes",
    "direct_buffer_capacity_max_bytes": "total_capacity_in_bytes",
}


def _direct_pool(sample: Sample, key: str) -> int:
    return sum(int(node.get("buffer_pools", {}).get("direct", {}).get(key, 0)) for node in sample.nodes.values())
