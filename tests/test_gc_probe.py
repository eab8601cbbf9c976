"""The probe `gc` on recordings and logs of real JVMs (tests/data/gc: Java version and collector)."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from probe_lab import DATA, causes, make_context, notes, read, read_data, readings, series, write_recording

from ingest_bench.model.results import Note
from ingest_bench.probes import gc, gc_log
from ingest_bench.probes.context import ATTACHMENT_FILE, ReadContext

RUNS = sorted(path.name.removesuffix(".log.gz") for path in (DATA / "gc").glob("*.log.gz"))
# zcat X.log.gz | grep "Pause Full" | grep -vc gc,start
FULL = {"cms": 7, "g1": 1, "parallel": 3, "serial": 3, "zgc": 0}


def log_lines(run: str) -> list[str]:
    return read_data(f"gc/{run}.log.gz").splitlines()


def recorded(run: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(read_data(f"gc/{run}.json.gz"))
    return content


def pauses(content: dict[str, Any]) -> list[gc_log.Pause]:
    return [gc_log.Pause(gc_id, end_ns, duration_ns) for gc_id, end_ns, duration_ns, _ in content["pauses"]]


def lay_out(
    raw: Path, run: str, lines: list[str] | None = None, since_ns: int | None = None, **changed: Any
) -> ReadContext:
    """Write the recording and log of a run; the measurement is from *since_ns* or the first pause to the end."""
    content = recorded(run) | changed
    (raw / "gc.log").write_text("\n".join(log_lines(run) if lines is None else lines))
    start_ns = min(pause[1] for pause in content["pauses"]) if since_ns is None else since_ns
    context = make_context(raw, start_ns, content["last_ns"] + 10**9, ports={1})
    write_recording(context, content)
    return context


@pytest.mark.parametrize("run", RUNS)
def test_recording_and_log_have_the_same_pauses_and_heap(run: str, tmp_path: Path) -> None:
    log = gc_log.parse_gc_log(log_lines(run))
    assert (log.unknown_lines, list(log.problems())) == ([], [])
    outputs = read("gc", lay_out(tmp_path, run))
    assert notes(outputs) == []
    values = readings(outputs)
    assert values["gc_pauses"] == values["gc_pauses_log"] == len(recorded(run)["pauses"]) > 0
    collector = run.partition("-")[2]
    assert (values["gc_collector"], values["full_gcs"]) == (collector, FULL[collector])
    assert values["g1_region_bytes"] == (1 << 20 if run.endswith("g1") else None)
    # ZGC's pauses do not name the heap.
    if not run.endswith("zgc"):
        largest = max(pause.after_bytes or 0 for pause in log.pauses if pause.gc and pause.collects)
        assert abs(values["heap_after_gc_max_bytes"] - largest) <= 1 << 20


@pytest.mark.parametrize("separator", [",", "\u066b"])
@pytest.mark.parametrize("run", RUNS)
def test_decimal_separator_of_another_locale_is_parsed(run: str, separator: str) -> None:
    log = gc_log.parse_gc_log(log_lines(run))
    # The moment in front has a dot in every locale.
    localized = [re.sub(r"(?<!:\d\d)\.(?=\d)", separator, line) for line in log_lines(run)]
    assert localized != log_lines(run)
    assert gc_log.parse_gc_log(localized) == log


def test_unknown_pause_of_zgc_is_reported_and_an_aborted_cycle_is_not() -> None:
    lines = [
        "[2026-11-28T19:27:04.566+0000][0.265s][info][gc,phases   ] GC(0) Pause Mark Start 6us",
        "[2026-11-28T19:27:04.566+0000][0.265s][info][gc,phases   ] GC(0) y: Pause Mark End 6us",
        "[2026-11-28T19:27:04.566+0000][0.265s][info][gc,phases   ] GC(0) Concurrent Mark 6us",
        "[2026-11-28T19:27:04.566+0000][0.265s][info][gc] GC(5) Garbage Collection (Allocation Rate) Aborted",
    ]
    assert gc_log.parse_gc_log(lines, "zgc").unknown_lines == lines[:2]


def test_pause_missing_in_the_log_invalidates_the_run(tmp_path: Path) -> None:
    lines = [line for line in log_lines("17-g1") if not line.endswith("ms") or "GC(7) Pause" not in line]
    assert len(lines) < len(log_lines("17-g1"))
    (note,) = [item for item in read("gc", lay_out(tmp_path, "17-g1", lines)) if isinstance(item, Note)]
    assert (note.text, note.invalidates) == ("1 pauses are only in the flight recording: GC(7)", True)


def test_pause_missing_in_the_recording_is_a_difference() -> None:
    content = recorded("17-g1")
    log = gc_log.parse_gc_log(log_lines("17-g1"))
    some = [pause for pause in pauses(content) if pause.gc != 8]
    missing = len(content["pauses"]) - len(some)
    assert missing > 0
    context = make_context(Path("raw"), min(pause.end_ns for pause in some), content["last_ns"] + 10**9)
    _, differences = gc.compare_pauses(some, 1, log.pauses, context)
    assert differences == [f"{missing} pauses are only in the GC log: {', '.join(['GC(8)'] * missing)}"]


@pytest.mark.parametrize("run", ["11-cms", "17-g1", "17-serial", "17-zgc", "25-parallel"])
def test_recording_and_log_of_an_attached_jvm_agree(run: str, tmp_path: Path) -> None:
    """Recording and log of a JVM that was attached to: neither names the collector, and each began on its own."""
    everything = log_lines(run)
    lines = everything[len(everything) // 2 :]
    late = sorted(pause.end_ns for pause in gc_log.parse_gc_log(lines).pauses)
    since = late[len(late) // 4]
    rows: dict[str, Any] = {
        key: [row for row in recorded(run)[key] if row[1] >= since] for key in ("pauses", "collections")
    }
    context = lay_out(tmp_path, run, lines, since, **rows)
    collector = run.partition("-")[2]
    (tmp_path / ATTACHMENT_FILE).write_text(json.dumps({"since_ns": since, "collector": collector}))
    outputs = read("gc", context)
    assert notes(outputs) == []
    values = readings(outputs)
    assert values["gc_collector"] == collector
    assert values["gc_pauses"] == values["gc_pauses_log"] == len(rows["pauses"]) > 0


def test_other_number_of_full_collections_or_sum_is_a_difference(tmp_path: Path) -> None:
    context = lay_out(tmp_path, "11-parallel")
    content, log = recorded("11-parallel"), gc_log.parse_gc_log(log_lines("11-parallel"))
    full = sum(pause.is_full for pause in log.pauses)
    longer = [dataclasses.replace(pause, duration_ns=pause.duration_ns * 3) for pause in pauses(content)]
    assert gc.compare_pauses(pauses(content), full, log.pauses, context)[1] == []
    assert "full collections" in gc.compare_pauses(pauses(content), full + 1, log.pauses, context)[1][0]
    assert "sum of" in gc.compare_pauses(longer, full, log.pauses, context)[1][0]


def test_log_of_an_unsupported_collector_gives_a_note_and_no_numbers(tmp_path: Path) -> None:
    lines = ["[2026-11-22T04:07:43.657+0000][0.016s][info][gc] Using Shenandoah"]
    lines.append("[2026-11-22T04:07:43.964+0000][0.324s][info][gc] GC(0) Pause Final Roots 1.120ms")
    (tmp_path / "gc.log").write_text("\n".join(lines))
    outputs = read("gc", make_context(tmp_path))
    assert "gc_pauses" not in readings(outputs)
    assert "unknown: Shenandoah; supported: G1, Concurrent Mark Sweep" in " ".join(notes(outputs))


def test_without_a_complete_recording_only_the_log_is_used(tmp_path: Path) -> None:
    (tmp_path / "gc.log").write_text("\n".join(log_lines("17-g1")))
    outputs = read("gc", make_context(tmp_path))
    assert readings(outputs)["gc_pauses"] == len(gc_log.parse_gc_log(log_lines("17-g1")).pauses)
    assert readings(outputs)["full_gcs"] == 1
    assert "GC log alone" in " ".join(notes(outputs))
    heap = series(outputs)["heap_bytes"]
    assert list(heap.at_ns) == sorted(heap.at_ns)


def test_young_collection_interrupted_by_a_full_one_is_one_pause() -> None:
    # Java 11, CMS: the promotion of GC(161) failed, GC(162) ran inside it. The recording has 3.766 and 11.617 ms.
    text = """
[2026-11-22T04:08:46.000+0000][0.100s][info][gc             ] Using Concurrent Mark Sweep
[2026-11-22T04:08:47.287+0000][1.844s][info][gc,start       ] GC(161) Pause Young (Allocation Failure)
[2026-11-22T04:08:47.291+0000][1.848s][info][gc,promotion   ] Promotion failed
[2026-11-22T04:08:47.291+0000][1.848s][info][gc,start       ] GC(162) Pause Full (Allocation Failure)
[2026-11-22T04:08:47.302+0000][1.860s][info][gc             ] GC(162) Pause Full (Allocation Failure) 61M->52M(61M) 11.645ms
[2026-11-22T04:08:47.302+0000][1.860s][info][gc,heap        ] GC(161) ParNew: 19578K->10240K(19648K)
[2026-11-22T04:08:47.302+0000][1.860s][info][gc             ] GC(161) Pause Young (Allocation Failure) 58M->52M(61M) 15.489ms
[2026-11-22T04:08:47.400+0000][1.958s][info][gc,start       ] GC(163) Pause Young (Allocation Failure)
[2026-11-22T04:08:47.400+0000][1.958s][info][gc,start       ] GC(164) Pause Full (Allocation Failure)
[2026-11-22T04:08:47.412+0000][1.970s][info][gc             ] GC(164) Pause Full (Allocation Failure) 57M->22M(61M) 11.752ms
[2026-11-22T04:08:47.412+0000][1.970s][info][gc             ] GC(163) Pause Young (Allocation Failure) 57M->22M(61M) 11.820ms
"""  # noqa: E501 - lines of a log
    parsed_pauses = gc_log.parse_gc_log(text.splitlines()).pauses
    sure = [(pause.gc, pause.duration_ns) for pause in parsed_pauses if pause.is_certain]
    assert sure == [(162, 11_645_000), (161, 3_844_000), (164, 11_752_000)]
    # Of GC(163) the log does not say whether it collected; it is a pause where the recording has it.
    assert [(pause.gc, pause.duration_ns) for pause in parsed_pauses if not pause.is_certain] == [(163, 68_000)]


def test_full_collection_that_waited_for_cms_includes_the_wait(tmp_path: Path) -> None:
    # Java 11, CMS: GC(6) collected, and GC(7) within it waited 61 ms for the marking of GC(5). The recording has not
    # that wait.
    text = """
[2026-11-23T03:02:50.000+0000][0.100s][info][gc             ] Using Concurrent Mark Sweep
[2026-11-23T03:02:59.310+0000][12.112s][info][gc             ] GC(5) Concurrent Mark
[2026-11-23T03:02:59.340+0000][12.142s][info][gc,start       ] GC(6) Pause Young (Allocation Failure)
[2026-11-23T03:02:59.412+0000][12.213s][info][gc,start       ] GC(7) Pause Full (Allocation Failure)
[2026-11-23T03:02:59.473+0000][12.274s][info][gc             ] GC(5) Concurrent Mark 162.588ms
[2026-11-23T03:02:59.615+0000][12.416s][info][gc             ] GC(7) Pause Full (Allocation Failure) 1664M->48M(2028M) 203.409ms
[2026-11-23T03:02:59.616+0000][12.417s][info][gc             ] GC(6) Pause Young (Allocation Failure) 1740M->48M(2028M) 275.090ms
"""  # noqa: E501 - lines of a log
    parsed = gc_log.parse_gc_log(text.splitlines())
    log = parsed.pauses
    values = [
        gc_log.Pause(6, 1795402979411905849, 71304896),
        gc_log.Pause(7, 1795402979615311022, 142050030),
    ]
    completed = gc.complete_pauses(values, parsed, values[-1].end_ns)
    assert [pause.duration_ns for pause in completed] == [71304896, 203_409_000]
    assert gc.compare_pauses(completed, 1, log, make_context(tmp_path)) == (2, [])
    assert gc.compare_pauses(values, 1, log, make_context(tmp_path))[1] != []


@pytest.mark.parametrize(
    ("run", "last"),
    [
        ("11-cms", "Concurrent Reset"),
        ("11-g1", "Concurrent Cycle"),
        ("17-zgc", "Garbage"),
        ("25-g1", "Mark Cycle"),
        ("25-zgc", "Collection ("),
    ],
)
def test_pauses_of_an_unended_cycle_are_taken_from_the_log(run: str, last: str, tmp_path: Path) -> None:
    """The JVM writes them into the recording when the cycle ends: both end in the middle of one."""
    everything = log_lines(run)
    log = gc_log.parse_gc_log(everything)
    cycles = {pause.gc for pause in log.pauses if pause.is_concurrent}
    cut = max(cycles & set(log.cycle_ends) & {pause[0] for pause in recorded(run)["pauses"]})
    paused = [pause for pause in log.pauses if pause.gc == cut]
    end = max(number for number, line in enumerate(everything) if f"GC({cut})" in line and last in line)
    until = max(number for number, line in enumerate(everything[:end]) if f"GC({cut})" in line and "Pause" in line)
    lines = everything[: until + 1]
    # The log cuts moments to milliseconds.
    ended_ns = max(pause.end_ns for pause in gc_log.parse_gc_log(lines).pauses) + 10**6
    rows: dict[str, Any] = {
        key: [row for row in recorded(run)[key] if row[0] != cut and row[1] <= ended_ns]
        for key in ("pauses", "collections")
    }
    outputs = read("gc", lay_out(tmp_path, run, lines, **rows, last_ns=max(row[1] for row in rows["pauses"])))
    assert notes(outputs) == []
    values = readings(outputs)
    assert values["gc_pauses"] == values["gc_pauses_log"] == len(rows["pauses"]) + len(paused)
    assert "cycle not ended" in values["gc_causes"]


def test_pause_of_an_ended_cycle_is_not_taken_from_the_log() -> None:
    log, content = gc_log.parse_gc_log(log_lines("17-g1")), recorded("17-g1")
    both = {row[0] for row in content["pauses"]} & {pause.gc for pause in log.pauses if pause.is_concurrent}
    some = [pause for pause in pauses(content) if pause.gc != min(both)]
    assert gc.complete_pauses(some, log, content["last_ns"]) == some


def test_pause_without_cpu_is_a_separate_cause(tmp_path: Path) -> None:
    # OpenSearch, Java 21: beside 24 processes that took the CPUs GC(39) stood still for 311 ms and ran for 10.
    text = """
[2026-11-25T17:39:50.000+0000][0.100s][info][gc             ] Using G1
[2026-11-25T17:40:01.734+0000][39.1s][info][gc,start       ] GC(39) Pause Young (Normal) (G1 Evacuation Pause)
[2026-11-25T17:40:02.045+0000][39.4s][info][gc             ] GC(39) Pause Young (Normal) (G1 Evacuation Pause) 770M->2M(1024M) 311.118ms
[2026-11-25T17:40:02.045+0000][39.4s][info][gc,cpu         ] GC(39) User=0.01s Sys=0.00s Real=0.31s
[2026-11-25T17:46:11.470+0000][72.1s][info][gc             ] GC(40) Pause Full (Diagnostic Command) 366M->98M(989M) 106.007ms
[2026-11-25T17:46:11.470+0000][72.1s][info][gc,cpu         ] GC(40) User=0.09s Sys=0.01s Real=0.10s
[2026-11-25T17:46:12.600+0000][73.2s][info][gc             ] GC(41) Pause Young (Normal) (G1 Evacuation Pause) 366M->98M(989M) 9.007ms
[2026-11-25T17:46:12.600+0000][73.2s][info][gc,cpu         ] GC(41) User=0.00s Sys=0.00s Real=0.01s
[2026-11-25T17:46:13.600+0000][73.2s][info][gc             ] GC(42) Pause Young (Normal) (G1 Evacuation Pause) 366M->98M(989M) 90.007ms
"""  # noqa: E501 - lines of a log
    log = gc_log.parse_gc_log(text.splitlines())
    assert [pause.is_starved for pause in log.pauses] == [True, False, False, False]
    (tmp_path / "gc.log").write_text(text)
    watched = causes(read("gc", make_context(tmp_path)))
    assert {cause: len(spans) for cause, spans in watched.items()} == {
        "garbage collection": 3,
        "garbage collection waiting for a CPU": 1,
    }
    (span,) = watched["garbage collection waiting for a CPU"]
    assert span.end_ns - span.start_ns == 311_118_000


def test_cpu_time_of_a_cms_phase_is_not_added_to_the_previous_pause() -> None:
    # A young collection ended between the remark and its phases, and between a phase and its CPU time.
    text = """
[2026-11-25T17:39:50.000+0000][0.100s][info][gc             ] Using Concurrent Mark Sweep
[2026-11-25T17:40:01.734+0000][39.1s][info][gc,start       ] GC(39) Pause Remark
[2026-11-25T17:40:02.045+0000][39.4s][info][gc             ] GC(39) Pause Remark 770M->770M(1024M) 311.118ms
[2026-11-25T17:40:02.045+0000][39.4s][info][gc,cpu         ] GC(39) User=0.01s Sys=0.00s Real=0.31s
[2026-11-25T17:40:02.045+0000][39.4s][info][gc             ] GC(39) Concurrent Sweep
[2026-11-25T17:40:02.345+0000][39.7s][info][gc             ] GC(39) Concurrent Sweep 300.000ms
[2026-11-25T17:40:02.345+0000][39.7s][info][gc,cpu         ] GC(39) User=0.50s Sys=0.01s Real=0.30s
[2026-11-25T17:40:02.345+0000][39.7s][info][gc             ] GC(39) Concurrent Reset
[2026-11-25T17:40:02.405+0000][39.8s][info][gc,start       ] GC(40) Pause Young (Allocation Failure)
[2026-11-25T17:40:02.505+0000][39.8s][info][gc             ] GC(40) Pause Young (Allocation Failure) 366M->98M(989M) 100.007ms
[2026-11-25T17:40:02.505+0000][39.8s][info][gc             ] GC(39) Concurrent Reset 60.000ms
[2026-11-25T17:40:02.505+0000][39.8s][info][gc,cpu         ] GC(39) User=0.50s Sys=0.01s Real=0.30s
[2026-11-25T17:40:02.505+0000][39.8s][info][gc,cpu         ] GC(40) User=0.19s Sys=0.01s Real=0.10s
[2026-11-25T17:40:03.000+0000][40.3s][info][gc             ] GC(41) Pause Initial Mark 98M->98M(989M) 60.000ms
[2026-11-25T17:40:03.000+0000][40.3s][info][gc,cpu         ] GC(41) User=0.06s Sys=0.00s Real=0.06s
[2026-11-25T17:40:03.000+0000][40.3s][info][gc             ] GC(41) Concurrent Mark
[2026-11-25T17:40:03.100+0000][40.4s][info][gc             ] GC(41) Concurrent Mark 100.000ms
[2026-11-25T17:40:03.100+0000][40.4s][info][gc,cpu         ] GC(41) User=0.10s Sys=0.00s Real=0.10s
[2026-11-25T17:40:03.200+0000][40.5s][info][gc             ] GC(41) Pause Remark 98M->98M(989M) 70.000ms
[2026-11-25T17:40:03.200+0000][40.5s][info][gc,cpu         ] GC(41) User=0.07s Sys=0.00s Real=0.07s
"""  # noqa: E501 - lines of a log
    parsed_pauses = gc_log.parse_gc_log(text.splitlines()).pauses
    assert [(pause.name, pause.cpu_ns) for pause in parsed_pauses] == [
        ("Pause Remark", 10_000_000),
        ("Pause Young (Allocation Failure)", 200_000_000),
        ("Pause Initial Mark", 60_000_000),
        ("Pause Remark", 70_000_000),
    ]
    assert [pause.is_starved for pause in parsed_pauses] == [True, False, False, False]


def test_pauses_of_the_warm_up_are_plotted_but_not_counted(tmp_path: Path) -> None:
    ends_ns = sorted(pause.end_ns for pause in pauses(recorded("17-g1")))
    half = len(ends_ns) // 2
    outputs = read("gc", lay_out(tmp_path, "17-g1", since_ns=ends_ns[half]))
    drawn = series(outputs)["gc_pause_ms"]
    assert len(drawn.at_ns) == len(ends_ns)
    assert min(drawn.at_ns) < ends_ns[half]
    assert readings(outputs)["gc_pauses"] == len(ends_ns) - half


def test_humongous_collection_is_counted_without_its_concurrent_cycle(tmp_path: Path) -> None:
    values = readings(read("gc", lay_out(tmp_path, "17-g1")))
    # zgrep -c "Pause Young (Concurrent Start) (G1 Humongous Allocation)$" 17-g1.log.gz
    lines = [line for line in log_lines("17-g1") if "Pause Young (Concurrent Start) (G1 Humongous Allocation) " in line]
    assert values["gc_humongous_collections"] == len(lines) == 2
    assert values["humongous_regions_max"] == 36
    assert values["humongous_regions_freed"] >= 1


def test_full_collections_of_shenandoah_are_unavailable(tmp_path: Path) -> None:
    lines = ["[2026-11-22T04:07:43.657+0000][0.016s][info][gc] Using Shenandoah"]
    collections = [[*row[:3], "Shenandoah", *row[4:]] for row in recorded("17-g1")["collections"]]
    values = readings(read("gc", lay_out(tmp_path, "17-g1", lines, collections=collections)))
    assert values["full_gcs"] is None
    assert values["gc_pauses"] > 0


def test_event_missing_in_this_java_is_unavailable(tmp_path: Path) -> None:
    values = readings(read("gc", lay_out(tmp_path, "11-cms")))
    assert values["gc_allocation_stalls"] is None
    assert values["direct_buffers_max"] is None
    assert values["gc_concurrent_mode_failures"] == 4  # as `jfr summary` counts them


@pytest.mark.parametrize(
    "line",
    [
        "[2026-99-99T00:00:00.000+0000][1.0s][info][gc] GC(1) Pause Full (x) 6M->1M(64M) 9.619ms",
        f"[2026-11-22T07:38:46.274+0000][1.0s][info][gc] GC({'9' * 5000}) Pause Full (x) 6M->1M(64M) 9.619ms",
        f"[2026-11-22T07:38:46.274+0000][1.0s][info][gc] GC(1) Pause Full (x) 6M->1M(64M) {'9' * 400}.0ms",
        f"[2026-11-22T07:38:46.274+0000][1.0s][info][gc,heap] GC(1) Humongous regions: {'9' * 5000}->1",
        "[2026-11-22T04:07:43.964+0000][9.324s][info][gc] GC(99) Pause Strange 1 of 2",
    ],
)
def test_unknown_line_or_impossible_number_is_reported(line: str) -> None:
    everything = log_lines("17-g1")
    log = gc_log.parse_gc_log([*everything, line])
    assert log.pauses == gc_log.parse_gc_log(everything).pauses
    assert log.unknown_lines == [line]
    assert list(log.problems()) == [f"1 lines of the GC log were not recognised: {line[:300]}"]


@pytest.mark.parametrize("run", ["17-g1", "25-g1", "17-parallel"])
def test_log_that_is_followed_has_the_pauses_and_the_heap_of_the_whole(run: str, tmp_path: Path) -> None:
    text = read_data(f"gc/{run}.log.gz")
    follower = gc.LogFollower(tmp_path)
    follower.read_on()
    assert (follower.pause_ns, follower.heap_bytes) == (0, None)
    for end in range(1_000, len(text) + 1_000, 1_000):
        (tmp_path / "gc.log").write_text(text[:end])
        follower.read_on()
    expected = gc_log.parse_gc_log(text.splitlines()).pauses
    assert follower.pause_ns == sum(pause.duration_ns for pause in expected)
    assert follower.heap_bytes == [pause.after_bytes for pause in expected if pause.after_bytes is not None][-1]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_link_or_pipe_in_the_place_of_a_log_is_not_followed(kind: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_text(read_data("gc/17-g1.log.gz"))
    if kind == "link":
        (tmp_path / "gc.log").symlink_to(tmp_path / "other")
    else:
        os.mkfifo(tmp_path / "gc.log")
    follower = gc.LogFollower(tmp_path)
    follower.read_on()
    assert follower.heap_bytes is None
