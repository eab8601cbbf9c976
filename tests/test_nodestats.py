"""What the stats API says of a JVM that is only a URL."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest

from ingest_bench.errors import RunFailed
from ingest_bench.model.results import Measured, Reading, Remark, Series
from ingest_bench.probes import nodestats

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


def read(raw: Path, *lines: tuple[int, dict[str, Any]], rest: str = "") -> list[Measured]:
    text = "".join(json.dumps({"at_ns": at_ns, "nodes": nodes}) + "\n" for at_ns, nodes in lines)
    (raw / nodestats.FILE).write_text(text + rest)
    return list(nodestats.read(raw, 10 * S, 12 * S))


def values(found: list[Measured]) -> dict[str, Any]:
    return {item.name: item.value for item in found if isinstance(item, Reading)}


def said(found: list[Measured]) -> str:
    return "; ".join(item.text for item in found if isinstance(item, Remark))


def test_collections_are_those_between_the_answers_nearest_to_the_measurements_ends(tmp_path: Path) -> None:
    lines = [(at * S + S // 10, {"a": jvm(at, ms=at * 10), "b": jvm(2 * at)}) for at in range(8, 15)]
    found = read(tmp_path, *lines)
    assert values(found) == {
        "gc_young_collections": 6,
        "gc_old_collections": 0,
        "gc_collection_ms": 20,
        "direct_buffers_max": 4,
        "direct_buffer_used_max_bytes": 14,
        "direct_buffer_capacity_max_bytes": 14,
    }
    assert "young: 6, old: 0; pauses are unknown" in said(found)
    assert "+0.1 s to +0.1 s" in said(found)
    heap = next(item for item in found if isinstance(item, Series) and item.name == "heap_bytes")
    assert heap.values == (200.0,) * 7


@pytest.mark.parametrize(
    "after", [{"b": jvm(9)}, {"a": jvm(9), "b": jvm(9)}, {"a": jvm(0, uptime_s=1)}], ids=["gone", "more", "restarted"]
)
def test_nodes_that_are_not_the_same_have_no_counts(tmp_path: Path, after: dict[str, Any]) -> None:
    found = read(tmp_path, (10 * S, {"a": jvm(1)}), (12 * S, after))
    assert "gc_young_collections" not in values(found)
    assert "unavailable" in said(found)


def test_answers_that_cannot_be_kept_end_the_run_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / nodestats.FILE).symlink_to("/dev/full")
    with (
        pytest.raises(RunFailed, match=r"node-stats.jsonl: .* could not be kept: .*No space left on device"),
        nodestats.watch(lambda: {"nodes": {"a": {"jvm": jvm(1)}}}, tmp_path),
    ):
        pass


def test_an_answer_that_nobody_can_write_down_is_none(tmp_path: Path) -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"jvm": deep}
    with nodestats.watch(lambda: {"nodes": {"a": deep}}, tmp_path):
        pass
    assert (tmp_path / nodestats.FILE).read_text() == ""


@pytest.mark.parametrize("up_s", [1000, 20], ids=["long up", "not long up"])
def test_a_jvm_that_started_anew_just_after_the_first_answer_has_no_counts(tmp_path: Path, up_s: int) -> None:
    # Of 40 s the second JVM was up for 39, and counted more than the first one.
    lines = [(100 * S, {"a": jvm(50, uptime_s=up_s)}), (140 * S, {"a": jvm(70, uptime_s=39)})]
    (tmp_path / nodestats.FILE).write_text(
        "".join(json.dumps({"at_ns": at_ns, "nodes": nodes}) + "\n" for at_ns, nodes in lines)
    )
    found = list(nodestats.read(tmp_path, 100 * S, 140 * S))
    assert "gc_young_collections" not in values(found)
    assert "started anew" in said(found)


def test_a_jvm_that_had_just_started_at_the_first_answer_is_counted(tmp_path: Path) -> None:
    found = read(tmp_path, (10 * S, {"a": jvm(1, uptime_s=4)}), (12 * S, {"a": jvm(5, uptime_s=5)}))
    assert values(found)["gc_young_collections"] == 4


@pytest.mark.parametrize("now", [jvm(7, ms=600), jvm(50, ms=200)], ids=["collections", "time"])
def test_counts_that_fall_are_those_of_another_jvm(tmp_path: Path, now: dict[str, Any]) -> None:
    found = read(tmp_path, (10 * S, {"a": jvm(50, ms=600)}), (12 * S, {"a": now}))
    assert "gc_young_collections" not in values(found)
    assert "started anew" in said(found)


def test_one_answer_is_no_count_and_a_line_that_was_cut_off_is_none(tmp_path: Path) -> None:
    found = read(tmp_path, (10 * S, {"a": jvm(1)}), rest='{"at_ns": 12')
    assert "gc_young_collections" not in values(found)
    assert "unavailable" in said(found)


def test_a_server_that_tells_nothing_is_a_remark(tmp_path: Path) -> None:
    assert "the server told nothing of its JVM" in said(read(tmp_path))


def test_names_of_collectors_are_bounded(tmp_path: Path) -> None:
    many = {f"{number}{'x' * 10_000}": {"collection_count": 1, "collection_time_in_millis": 1} for number in range(99)}
    readings = read(tmp_path, *((at * S, {"a": {**jvm(1), "gc": {"collectors": many}}}) for at in (10, 12)))
    assert len(said(readings)) < 5000


@pytest.mark.parametrize(
    "told",
    [
        *({}, {"gc": 1, "mem": {}}, {**jvm(1), "mem": {"heap_used_in_bytes": "much"}}),
        *({**jvm(1), "mem": {"heap_used_in_bytes": heap}} for heap in (math.inf, math.nan, 10**400)),
    ],
)
def test_a_server_that_tells_it_in_another_way_is_a_remark(tmp_path: Path, told: dict[str, Any]) -> None:
    found = read(tmp_path, *((at * S, {"a": told}) for at in (10, 11, 12)))
    assert values(found) == {}
    assert "in its own way" in said(found)


def test_a_question_that_fails_leaves_no_line_and_the_last_one_is_asked_at_the_end(tmp_path: Path) -> None:
    asked = threading.Event()
    answers = iter([None, {"nodes": {"a": {"jvm": jvm(5)}}}])

    def ask() -> Any:
        asked.set()
        return next(answers)

    with nodestats.watch(ask, tmp_path):
        assert asked.wait(60)
    (line,) = (tmp_path / nodestats.FILE).read_text().splitlines()
    assert json.loads(line)["nodes"] == {"a": jvm(5)}
