"""The probe `heap`: allocated bytes by role of thread, and growth of the heap by the GC log."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from probe_lab import make_context, notes, read, read_data, readings, write_recording

from ingest_bench.model.results import Series
from ingest_bench.model.target import ThreadRoles
from ingest_bench.probes import gc_log, heap
from ingest_bench.probes.heap import Growth
from ingest_bench.probes.recording import Recording

S = 10**9
NO_HEAP: dict[str, Any] = {"heap": [], "collections": []}
MIB = 1 << 20
ROLES = ThreadRoles(network=("EventLoop",), indexing=("write",), flush_merge=("Merge", "write-flush"))


def pause(gc: int, at_s: float, before: int | None, after: int | None) -> gc_log.Pause:
    """Return a pause of 10 ms that ends at that second, with the heap in MiB."""
    sizes = (before and before * MIB, after and after * MIB)
    return gc_log.Pause(gc, int(at_s * S), S // 100, "Pause Young", *sizes)


def growth(start_s: int, end_s: int, mib: int) -> Growth:
    return Growth("a", start_s * S, end_s * S, mib * MIB)


def ratio(log: gc_log.GcLog, growths: list[Growth], start_s: float, end_s: float, raw: Path) -> float | None:
    return heap.measure_growth(log, growths, make_context(raw, int(start_s * S), int(end_s * S)))


def test_totals_of_threads_become_growths_between_samples() -> None:
    rows: list[list[str | int]] = [
        ["from before", 4 * S, 1700, 1 * S, 1000, 2 * S, 1600],
        ["also from before", 1 * S + 90_000, 500, 2 * S + 90_000, 700],
        ["started later", 3 * S, 50],
        ["restarted", 1 * S, 900, 2 * S, 40],
    ]
    assert heap.parse_threads(rows) == [
        Growth("from before", 1 * S, 2 * S, 600),
        Growth("from before", 3 * S, 4 * S, 100),
        Growth("also from before", 1 * S, 2 * S + 90_000, 200),
        Growth("started later", 2 * S, 3 * S, 50),
        Growth("restarted", 1 * S, 2 * S, 40),
    ]


def test_growth_within_a_part_of_a_second_is_its_share() -> None:
    part = Growth("a", 10, 20, 1000)
    assert [part.between(*span) for span in ((0, 15), (12, 14), (18, 99), (0, 10), (20, 30))] == [500, 200, 200, 0, 0]


def test_growth_of_the_heap_is_that_between_collections_per_allocated_byte(tmp_path: Path) -> None:
    pauses = [pause(0, 0.5, 90, 10), pause(1, 2, 100, 20), pause(2, 4, 120, 25), pause(3, 9, 100, 30)]
    log = gc_log.GcLog(collector="g1", pauses=pauses)
    # 100 MiB between the two collections of the measurement, in which threads allocated 40 MiB/s for 1.99 s.
    assert ratio(log, [growth(0, 10, 400)], 1, 5, tmp_path) == pytest.approx(100 / (40 * 1.99))
    assert ratio(log, [growth(0, 10, 400)], 1, 3, tmp_path) is None


@pytest.mark.parametrize("collector", ["cms", "zgc", "unknown: Shenandoah"])
def test_growth_of_a_heap_that_is_freed_concurrently_is_unknown(collector: str, tmp_path: Path) -> None:
    log = gc_log.GcLog(collector=collector, pauses=[pause(1, 2, 100, 20), pause(2, 4, 120, 25)])
    assert ratio(log, [growth(0, 10, 500)], 1, 5, tmp_path) is None


def test_interrupted_collection_and_restart_are_no_growth(tmp_path: Path) -> None:
    # A full collection interrupted a young one, whose line is the second; then the JVM is restarted.
    pauses = [pause(8, 2, 100, 30), pause(7, 2, 100, None), pause(9, 3, 130, 40), pause(0, 5, 60, 20)]
    log = gc_log.GcLog(collector="serial", pauses=pauses)
    assert ratio(log, [growth(0, 10, 1000)], 1, 6, tmp_path) == pytest.approx(100 / 99)


@pytest.mark.parametrize("run", ["11-g1", "11-parallel", "11-serial", "17-g1", "17-parallel", "17-serial", "25-g1"])
def test_log_alone_and_with_the_sizes_of_the_recording_agree(run: str, tmp_path: Path) -> None:
    log = gc_log.parse_gc_log(read_data(f"gc/{run}.log.gz").splitlines())
    content = json.loads(read_data(f"gc/{run}.json.gz"))
    context = make_context(tmp_path, log.pauses[0].start_ns, content["last_ns"] + S)
    growths = [Growth("all", context.start_ns, context.end_ns, context.end_ns - context.start_ns)]
    alone = heap.measure_growth(log, growths, context)
    pauses = heap.with_exact_heap(log.pauses, content)
    exact = heap.measure_growth(dataclasses.replace(log, pauses=pauses), growths, context)
    # The log gives whole MiB.
    assert alone != exact == pytest.approx(alone, rel=0.15)
    # Collections of the recording with the sizes in bytes, and no other size.
    recorded = {row[3] for row in content["heap"]}
    assert len(recorded & {pause.before_bytes for pause in pauses}) > len(pauses) / 2


def test_threads_are_counted_by_the_first_role_of_their_name(tmp_path: Path) -> None:
    names = ("nioEventLoop-1", "node][write][T#1]", "Lucene Merge Thread #0", "write-flush", "main")
    rows: list[Any] = [[name, S, 0, 2 * S, 8 ** (number + 1)] for number, name in enumerate(names)]
    context = dataclasses.replace(make_context(tmp_path, 3 * S // 2, 2 * S), thread_roles=ROLES)
    content = {"events": 9, "last_ns": 2 * S, "lost_bytes": 0, "files": [], **NO_HEAP, "threads": rows, "netty": []}
    write_recording(context, content)
    assert readings(read("heap", context)) == {
        "allocated_bytes": (8 + 64 + 512 + 4096 + 32768) // 2,
        "heap_growth_bytes": None,
        "allocated_network_bytes": 4,
        "allocated_indexing_bytes": (64 + 4096) // 2,
        "allocated_flush_merge_bytes": 256,
        "allocated_other_bytes": 16384,
    }
    # A target that names no threads of a role.
    unknown = readings(read("heap", dataclasses.replace(context, thread_roles=ThreadRoles(indexing=("write",)))))
    assert [unknown[f"allocated_{role}_bytes"] for role in ("network", "flush_merge", "other")] == [
        None, None, (8 + 512 + 32768) // 2,
    ]  # fmt: skip
    # A server that answers has threads of the network: here they have other names.
    roles = dataclasses.replace(ROLES, network=("epollEventLoop",))
    outputs = list(read("heap", dataclasses.replace(context, thread_roles=roles)))
    assert readings(outputs)["allocated_network_bytes"] is None
    assert notes(outputs) == ["no thread is named as the target says of its network threads: epollEventLoop"]


def test_memory_of_netty_is_that_in_buffers_the_rest_of_its_chunks_and_the_remainder(tmp_path: Path) -> None:
    changes = [(0, 100, 60), (2 * S, 100, 20), (4 * S, -50, -80), (9 * S, -30, 0)]
    numbers = readings(heap.measure_netty(changes, make_context(tmp_path, S, 5 * S)))
    chunks = heap.sample_chunks(changes, 5 * S)
    assert [chunks.values[chunks.at_ns.index(at * S)] for at in range(5)] == [100, 100, 200, 200, 150]
    # 60 of 100 bytes for one second, 80 of 200 for two, 0 of 150 for one.
    assert numbers == {
        "netty_live_bytes": (60 + 2 * 80) // 4,
        "netty_wasted_bytes": round((40 + 2 * 120 + 150) / 4),
        "netty_retained_bytes": 120,
    }
    assert readings(heap.measure_netty(changes[:1], make_context(tmp_path, S, 5 * S)))["netty_live_bytes"] == 60
    # Samples of an allocator that does not count its buffers.
    samples = [(0, 100, -1), (2 * S, 50, 0)]
    assert readings(heap.measure_netty(samples, make_context(tmp_path, S, 5 * S))) == {"netty_retained_bytes": 150}
    assert list(heap.measure_netty([], make_context(tmp_path, S, 5 * S))) == []


def test_live_heap_is_that_after_the_collections_that_jcmd_requested() -> None:
    collections = [[gc_id, 0, 0, "G1Full", cause] for gc_id, cause in enumerate(["Diagnostic Command", "System.gc()"])]
    rows = [
        [gc_id, at_ns, when, at_ns * 10, 0] for gc_id in (0, 1) for at_ns, when in ((1, "Before GC"), (2, "After GC"))
    ]
    content = {"collections": collections, "heap": rows}
    assert list(heap.live_heap(content)) == [Series("live_heap_bytes", (2,), (20,))]
    assert list(heap.live_heap(content | {"collections": collections[1:]})) == []


def test_recording_without_counters_of_threads_gives_no_number(tmp_path: Path) -> None:
    context = make_context(tmp_path, 0, S)
    write_recording(context, {"events": 9, "last_ns": 2 * S, "lost_bytes": 0, "files": [], "threads": []})
    outputs = read("heap", context)
    assert readings(outputs) == {}
    assert notes(outputs) == ["the recording has no counters of threads: allocated bytes are unknown"]


def test_complete_recording_covers_measurements_of_any_length(tmp_path: Path) -> None:
    # In seconds as floating-point numbers one length in 30 is shorter than itself.
    complete = Recording(content={"events": 9, "last_ns": 0}, is_complete=True)
    lengths = [6 * S + number * 10_000_019 for number in range(1000)]
    assert sum(length / 1e9 * 1e9 < length for length in lengths) > 10
    assert all(complete.covers(make_context(tmp_path, 7, 7 + length)) for length in lengths)
    killed = Recording(content={"events": 9, "last_ns": 10 * S}, is_complete=False)
    assert [killed.covers(make_context(tmp_path, S, end)) for end in (10 * S, 10 * S + 1)] == [True, False]


def test_numbers_of_a_recording_that_ends_within_the_measurement_are_unknown(tmp_path: Path) -> None:
    context = make_context(tmp_path, 0, 5 * S)
    content = {"events": 9, "last_ns": 3 * S, "lost_bytes": 0, "files": [], "threads": [["main", 0, 0, S, 9]]}
    (tmp_path / "jfr" / "x").mkdir(parents=True)
    (tmp_path / "jfr" / "x" / "1.jfr").write_bytes(b"left by a killed JVM")
    write_recording(context, content, ["1.jfr"])
    assert readings(read("heap", context)) == {}
