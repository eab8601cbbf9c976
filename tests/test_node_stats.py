"""Collections, heap and direct buffers from the stats API of an external server."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from probe_lab import notes, readings, series

from ingest_bench.errors import RunFailed
from ingest_bench.model.results import ProbeOutput
from ingest_bench.probes import node_stats

S = 10**9


def jvm(
    young: int, old: int = 0, *, ms: int = 0, heap: int = 100, direct: int = 7, uptime_s: int = 1000
) -> dict[str, Any]:
    return {
        "uptime_in_millis": uptime_s * 1000,
        "mem": {"heap_used_in_bytes": heap},
        "gc": {
            "collectors": {
                "young": {"collection_count": young, "collection_time_in_millis": ms},
                "old": {"collection_count": old, "collection_time_in_millis": 0},
            }
        },
        "buffer_pools": {"direct": {"count": 2, "used_in_bytes": direct, "total_capacity_in_bytes": direct}},
    }


def read(raw: Path, *samples: tuple[int, dict[str, Any]], tail: str = "", start_s: int = 10) -> list[ProbeOutput]:
    """Write samples (seconds, nodes) and read those between *start_s* and the last one, at least 12 s."""
    text = "".join(json.dumps({"at_ns": round(at_s * S), "nodes": nodes}) + "\n" for at_s, nodes in samples)
    (raw / node_stats.FILE).write_text(text + tail)
    end_s = 12 if start_s == 10 else samples[-1][0]
    return list(node_stats.read(raw, start_s * S, end_s * S))


def test_collections_are_counted_between_the_responses_nearest_to_the_measurement(tmp_path: Path) -> None:
    samples: Any = [(at + 0.1, {"a": jvm(at, ms=at * 10), "b": jvm(2 * at)}) for at in range(8, 15)]
    outputs = read(tmp_path, *samples)
    assert readings(outputs) == {
        "gc_young_collections": 6,
        "gc_old_collections": 0,
        "gc_collection_ms": 20,
        "direct_buffers_max": 4,
        "direct_buffer_used_max_bytes": 14,
        "direct_buffer_capacity_max_bytes": 14,
    }
    assert "young: 6, old: 0; pauses are unknown" in " ".join(notes(outputs))
    assert "+0.1 s to +0.1 s" in " ".join(notes(outputs))
    assert series(outputs)["heap_bytes"].values == (200.0,) * 7


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (jvm(1), {"b": jvm(9)}),
        (jvm(1), {"a": jvm(9), "b": jvm(9)}),
        (jvm(1), {"a": jvm(0, uptime_s=1)}),
        # Of 40 s the second JVM was up for 39 and counted more than the first one.
        (jvm(50, uptime_s=1000), {"a": jvm(70, uptime_s=39)}),
        (jvm(50, uptime_s=20), {"a": jvm(70, uptime_s=39)}),
        (jvm(50, ms=600), {"a": jvm(7, ms=600)}),
        (jvm(50, ms=600), {"a": jvm(50, ms=200)}),
    ],
    ids=["left", "joined", "restarted", "restarted, long up", "restarted, not long up", "fewer", "shorter"],
)
def test_changed_or_restarted_nodes_have_no_counts(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    outputs = read(tmp_path, (100, {"a": before}), (140, after), start_s=100)
    assert "gc_young_collections" not in readings(outputs)
    assert "nodes joined, left or restarted" in " ".join(notes(outputs))


def test_jvm_that_started_just_before_the_first_response_is_counted(tmp_path: Path) -> None:
    outputs = read(tmp_path, (10, {"a": jvm(1, uptime_s=4)}), (12, {"a": jvm(5, uptime_s=5)}))
    assert readings(outputs)["gc_young_collections"] == 4


def test_responses_that_cannot_be_written_fail_the_run(tmp_path: Path) -> None:
    (tmp_path / node_stats.FILE).symlink_to("/dev/full")
    with (
        pytest.raises(RunFailed, match=r"node-stats.jsonl: .* could not be written: .*No space left on device"),
        node_stats.watch(lambda: {"nodes": {"a": {"jvm": jvm(1)}}}, tmp_path),
    ):
        pass


def test_deeply_nested_response_is_skipped(tmp_path: Path) -> None:
    deep: dict[str, Any] = {}
    for _ in range(10_000):
        deep = {"jvm": deep}
    with node_stats.watch(lambda: {"nodes": {"a": deep}}, tmp_path):
        pass
    assert (tmp_path / node_stats.FILE).read_text() == ""


def test_single_response_has_no_counts_and_a_cut_line_is_skipped(tmp_path: Path) -> None:
    outputs = read(tmp_path, (10, {"a": jvm(1)}), tail='{"at_ns": 12')
    assert "gc_young_collections" not in readings(outputs)
    assert "responded less than twice" in " ".join(notes(outputs))
    assert "the server sent no stats" in " ".join(notes(read(tmp_path)))


def test_names_of_collectors_are_shortened(tmp_path: Path) -> None:
    many = {f"{number}{'x' * 10_000}": {"collection_count": 1, "collection_time_in_millis": 1} for number in range(99)}
    outputs = read(tmp_path, *((at, {"a": {**jvm(1), "gc": {"collectors": many}}}) for at in (10, 12)))
    assert len(" ".join(notes(outputs))) < 5000


@pytest.mark.parametrize(
    "response",
    [
        *({}, {"gc": 1, "mem": {}}, {**jvm(1), "mem": {"heap_used_in_bytes": "much"}}),
        *({**jvm(1), "mem": {"heap_used_in_bytes": heap}} for heap in (math.inf, math.nan, 10**400)),
    ],
)
def test_response_of_unknown_format_has_a_note(tmp_path: Path, response: dict[str, Any]) -> None:
    outputs = read(tmp_path, *((at, {"a": response}) for at in (10, 11, 12)))
    assert readings(outputs) == {}
    assert "format of the responses is unknown" in " ".join(notes(outputs))


def test_failed_request_writes_no_line_and_the_last_one_is_sent_at_the_end(tmp_path: Path) -> None:
    has_polled = threading.Event()
    responses = iter([None, {"nodes": {"a": {"jvm": jvm(5)}}}])

    def request_stats() -> Any:
        has_polled.set()
        return next(responses)

    with node_stats.watch(request_stats, tmp_path):
        assert has_polled.wait(60)
    (line,) = (tmp_path / node_stats.FILE).read_text().splitlines()
    assert json.loads(line)["nodes"] == {"a": jvm(5)}
