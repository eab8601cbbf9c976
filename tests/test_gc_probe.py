"""The probe `gc` on recordings and logs of real JVMs (tests/data/gc: Java version and collector)."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ingest_bench.model.results import Measured, Reading, Remark, Series, Watched
from ingest_bench.probes import PROBES, recording
from ingest_bench.probes.context import ATTACHED, ReadContext
from ingest_bench.probes.pauses import gcagree, gclog

DATA = Path(__file__).parent / "data" / "gc"
RUNS = sorted(path.name.removesuffix(".log.gz") for path in DATA.glob("*.log.gz"))
# zcat X.log.gz | grep "Pause Full" | grep -vc gc,start
FULL = {
    "11-cms": 7,
    "11-g1": 1,
    "11-parallel": 3,
    "11-serial": 3,
    "17-g1": 1,
    "17-parallel": 3,
    "17-serial": 3,
    "17-zgc": 0,
    "25-g1": 1,
    "25-parallel": 3,
    "25-serial": 3,
    "25-zgc": 0,
}


def log_lines(run: str) -> list[str]:
    return gzip.decompress((DATA / f"{run}.log.gz").read_bytes()).decode().splitlines()


def recorded(run: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress((DATA / f"{run}.json.gz").read_bytes()))
    return content


def pauses(content: dict[str, Any]) -> list[gcagree.Pause]:
    return [gcagree.Pause(gc, end, duration) for gc, end, duration, _ in content["pauses"]]


def context(raw: Path, start_ns: int, end_ns: int) -> ReadContext:
    return ReadContext(raw=raw, start_ns=start_ns, end_ns=end_ns, ports=frozenset({1}), reader=tuple)


def lay_out(raw: Path, run: str, lines: list[str] | None = None) -> ReadContext:
    """A raw folder whose recording has been read already; the measurement is all that the recording holds."""
    content = recorded(run)
    (raw / "recording.jfr").write_bytes(b"read already")
    (raw / "gc.log").write_text("\n".join(log_lines(run) if lines is None else lines))
    whole = context(raw, content["first_ns"] - 10**9, content["last_ns"] + 10**9)
    first = min(pause[1] for pause in content["pauses"])
    whole = dataclasses.replace(whole, start_ns=first)
    key = [recording.READER_VERSION, whole.start_ns, whole.end_ns, [1], ["recording.jfr"]]
    (raw / "recording.json").write_text(json.dumps({"key": key, "content": content}))
    return whole


def readings(measured: list[Measured]) -> dict[str, Any]:
    return {item.name: item.value for item in measured if isinstance(item, Reading)}


@pytest.mark.parametrize("run", RUNS)
def test_recording_and_log_know_the_same_pauses(run: str, tmp_path: Path) -> None:
    whole = lay_out(tmp_path, run)
    measured = list(PROBES["gc"].read(whole))
    assert [item for item in measured if isinstance(item, Remark)] == []
    seen = readings(measured)
    assert seen["gc_pauses"] == seen["gc_pauses_log"] == len(recorded(run)["pauses"]) > 0
    assert seen["gc_collector"] == run.partition("-")[2]


@pytest.mark.parametrize("run", RUNS)
def test_full_collections_are_counted_once_although_the_log_names_them_twice(run: str, tmp_path: Path) -> None:
    seen = readings(list(PROBES["gc"].read(lay_out(tmp_path, run))))
    assert seen["full_gcs"] == FULL[run]


@pytest.mark.parametrize("run", RUNS)
def test_every_line_of_a_known_collector_is_understood(run: str) -> None:
    log = gclog.parse(log_lines(run))
    assert log.unrecognised == []
    assert list(log.complaints()) == []


@pytest.mark.parametrize("separator", [",", "\u066b"])
@pytest.mark.parametrize("run", RUNS)
def test_numbers_with_the_separator_of_another_locale_are_the_same(run: str, separator: str) -> None:
    log = gclog.parse(log_lines(run))
    # The moment in front has a dot in every locale.
    localized = [re.sub(r"(?<!:\d\d)\.(?=\d)", separator, line) for line in log_lines(run)]
    assert localized != log_lines(run)
    assert gclog.parse(localized) == log


def test_a_pause_of_zgc_that_is_not_understood_is_counted_and_named() -> None:
    lines = [
        "[2026-11-28T19:27:04.566+0000][0.265s][info][gc,phases   ] GC(0) Pause Mark Start 6us",
        "[2026-11-28T19:27:04.566+0000][0.265s][info][gc,phases   ] GC(0) y: Pause Mark End 6us",
        "[2026-11-28T19:27:04.566+0000][0.265s][info][gc,phases   ] GC(0) Concurrent Mark 6us",
    ]
    assert gclog.parse(lines, "zgc").unrecognised == lines[:2]


@pytest.mark.parametrize("run", RUNS)
def test_heap_after_a_collection_is_the_recordings_within_a_megabyte_of_the_logs(run: str, tmp_path: Path) -> None:
    if run.endswith("zgc"):
        pytest.skip("ZGC's pauses do not name the heap")
    whole = lay_out(tmp_path, run)
    seen = readings(list(PROBES["gc"].read(whole)))
    after = [pause.after_bytes for pause in gclog.parse(log_lines(run)).pauses if pause.gc and pause.collects]
    largest = max(used for used in after if used is not None)
    assert abs(seen["heap_after_gc_max_bytes"] - largest) <= 1 << 20


def test_a_pause_that_the_log_lacks_makes_the_run_invalid(tmp_path: Path) -> None:
    lines = [line for line in log_lines("17-g1") if not line.endswith("ms") or "GC(7) Pause" not in line]
    assert len(lines) < len(log_lines("17-g1"))
    measured = list(PROBES["gc"].read(lay_out(tmp_path, "17-g1", lines)))
    remarks = [item for item in measured if isinstance(item, Remark) and item.invalidates]
    assert [remark.text for remark in remarks] == ["1 pauses are only in the flight recording: GC(7)"]


def test_a_pause_that_the_recording_lacks_is_a_difference() -> None:
    content = recorded("17-g1")
    log = gclog.parse(log_lines("17-g1"))
    some = [pause for pause in pauses(content) if pause.gc != 8]
    missing = len(content["pauses"]) - len(some)
    assert missing > 0
    whole = context(Path("raw"), min(pause.end_ns for pause in some), content["last_ns"] + 10**9)
    agreement = gcagree.compare(some, 1, log.pauses, whole)
    assert agreement.differences == (f"{missing} pauses are only in the GC log: {', '.join(['GC(8)'] * missing)}",)


def test_collections_before_the_recording_began_are_no_difference(tmp_path: Path) -> None:
    whole = lay_out(tmp_path, "17-g1")
    log = gclog.parse(log_lines("17-g1"))
    assert len(log.pauses) > len(recorded("17-g1")["pauses"])
    agreement = gcagree.compare(pauses(recorded("17-g1")), 1, log.pauses, whole)
    assert agreement.differences == ()


@pytest.mark.parametrize("run", ["11-cms", "17-g1", "17-serial", "17-zgc", "25-parallel"])
def test_a_log_that_begins_in_the_middle_of_a_life_agrees_from_there_on(run: str, tmp_path: Path) -> None:
    """Recording and log of a JVM that was attached to: neither names the collector, and each began on its own."""
    everything = log_lines(run)
    whole = lay_out(tmp_path, run, everything[len(everything) // 2 :])
    late = [pause.end_ns for pause in gclog.parse(everything[len(everything) // 2 :]).pauses]
    since = sorted(late)[len(late) // 4]
    content = json.loads((tmp_path / "recording.json").read_text())
    content["content"]["pauses"] = [pause for pause in content["content"]["pauses"] if pause[1] >= since]
    content["content"]["collections"] = [one for one in content["content"]["collections"] if one[1] >= since]
    content["key"][1] = since
    (tmp_path / "recording.json").write_text(json.dumps(content))
    collector = run.partition("-")[2]
    (tmp_path / ATTACHED).write_text(json.dumps({"since_ns": since, "collector": collector}))
    measured = list(PROBES["gc"].read(dataclasses.replace(whole, start_ns=since)))
    seen = {item.name: item.value for item in measured if isinstance(item, Reading)}
    assert [item.text for item in measured if isinstance(item, Remark)] == []
    assert seen["gc_collector"] == collector
    assert seen["gc_pauses"] == seen["gc_pauses_log"] == len(content["content"]["pauses"]) > 0


def test_a_different_number_of_full_collections_or_another_sum_is_a_difference(tmp_path: Path) -> None:
    whole = lay_out(tmp_path, "11-parallel")
    content, log = recorded("11-parallel"), gclog.parse(log_lines("11-parallel"))
    full = sum(pause.is_full for pause in log.pauses)
    longer = [dataclasses.replace(pause, duration_ns=pause.duration_ns * 3) for pause in pauses(content)]
    assert gcagree.compare(pauses(content), full, log.pauses, whole).differences == ()
    assert "full collections" in gcagree.compare(pauses(content), full + 1, log.pauses, whole).differences[0]
    assert "sum of" in gcagree.compare(longer, full, log.pauses, whole).differences[0]


def test_a_log_of_an_unknown_collector_gives_no_numbers_but_says_so(tmp_path: Path) -> None:
    lines = ["[2026-11-22T04:07:43.657+0000][0.016s][info][gc] Using Shenandoah"]
    lines.append("[2026-11-22T04:07:43.964+0000][0.324s][info][gc] GC(0) Pause Final Roots 1.120ms")
    (tmp_path / "gc.log").write_text("\n".join(lines))
    measured = list(PROBES["gc"].read(context(tmp_path, 0, 2**63 - 1)))
    assert "gc_pauses" not in readings(measured)
    said = " ".join(item.text for item in measured if isinstance(item, Remark))
    assert "unknown: Shenandoah; known: G1, Concurrent Mark Sweep" in said


def test_lines_that_nobody_knows_are_reported_and_not_guessed() -> None:
    lines = [*log_lines("17-g1"), "[2026-11-22T04:07:43.964+0000][9.324s][info][gc] GC(99) Pause Strange 1 of 2"]
    log = gclog.parse(lines)
    assert len(log.pauses) == len(gclog.parse(log_lines("17-g1")).pauses)
    assert list(log.complaints()) == [f"1 lines of the GC log were not recognised: {lines[-1]}"]


def test_without_a_whole_recording_the_log_speaks_alone_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "gc.log").write_text("\n".join(log_lines("17-g1")))
    measured = list(PROBES["gc"].read(context(tmp_path, 0, 2**63 - 1)))
    log = gclog.parse(log_lines("17-g1"))
    assert readings(measured)["gc_pauses"] == len(log.pauses)
    assert readings(measured)["full_gcs"] == 1
    assert any(isinstance(item, Remark) and "log's alone" in item.text for item in measured)
    heap = next(item for item in measured if isinstance(item, Series) and item.name == "heap_bytes")
    assert list(heap.at_ns) == sorted(heap.at_ns)


def test_a_young_collection_that_gave_up_for_a_full_one_is_one_pause() -> None:
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
    found = gclog.parse(text.splitlines()).pauses
    sure = [(pause.gc, pause.duration_ns) for pause in found if pause.is_sure]
    assert sure == [(162, 11_645_000), (161, 3_844_000), (164, 11_752_000)]
    # Of GC(163) the log does not say whether it collected; it is a pause where the recording has it.
    assert [(pause.gc, pause.duration_ns) for pause in found if not pause.is_sure] == [(163, 68_000)]


def test_a_full_collection_that_waited_for_cms_is_as_long_as_the_program_stood_still(tmp_path: Path) -> None:
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
    parsed = gclog.parse(text.splitlines())
    log = parsed.pauses
    seen = [
        gcagree.Pause(6, 1795402979411905849, 71304896),
        gcagree.Pause(7, 1795402979615311022, 142050030),
    ]
    found = gcagree.completed(seen, parsed, seen[-1].end_ns)
    assert [pause.duration_ns for pause in found] == [71304896, 203_409_000]
    whole = context(tmp_path, 0, 2**63 - 1)
    assert gcagree.compare(found, 1, log, whole).differences == ()
    assert gcagree.compare(found, 1, log, whole).log_pauses == 2
    assert gcagree.compare(seen, 1, log, whole).differences != ()


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
def test_the_pauses_of_a_cycle_that_had_not_ended_are_those_of_the_log(run: str, last: str, tmp_path: Path) -> None:
    """The JVM writes them into the recording when the cycle ends: both end in the middle of one."""
    everything = log_lines(run)
    log = gclog.parse(everything)
    cycles = {pause.gc for pause in log.pauses if pause.is_of_a_cycle}
    cut = max(cycles & set(log.cycle_ends) & {pause[0] for pause in recorded(run)["pauses"]})
    paused = [pause for pause in log.pauses if pause.gc == cut]
    end = max(number for number, line in enumerate(everything) if f"GC({cut})" in line and last in line)
    until = max(number for number, line in enumerate(everything[:end]) if f"GC({cut})" in line and "Pause" in line)
    whole = lay_out(tmp_path, run, everything[: until + 1])
    content = json.loads((tmp_path / "recording.json").read_text())
    # The log cuts moments to milliseconds.
    ended_ns = max(pause.end_ns for pause in gclog.parse(everything[: until + 1]).pauses) + 10**6
    kept = content["content"]
    for key in ("pauses", "collections"):
        kept[key] = [one for one in kept[key] if one[0] != cut and one[1] <= ended_ns]
    kept["last_ns"] = max(one[1] for one in kept["pauses"])
    (tmp_path / "recording.json").write_text(json.dumps(content))
    measured = list(PROBES["gc"].read(whole))
    assert [item.text for item in measured if isinstance(item, Remark)] == []
    seen = readings(measured)
    assert seen["gc_pauses"] == seen["gc_pauses_log"] == len(kept["pauses"]) + len(paused)
    assert "cycle not ended" in seen["gc_causes"]


def test_a_pause_of_a_cycle_that_had_ended_is_missing_in_the_recording() -> None:
    log = gclog.parse(log_lines("17-g1"))
    cut = next(
        pause.gc
        for pause in log.pauses
        if pause.is_of_a_cycle and pause.gc in {one[0] for one in recorded("17-g1")["pauses"]}
    )
    some = [pause for pause in pauses(recorded("17-g1")) if pause.gc != cut]
    found = gcagree.completed(some, log, recorded("17-g1")["last_ns"])
    assert found == some


def test_a_pause_whose_threads_had_no_cpu_is_a_cause_of_its_own(tmp_path: Path) -> None:
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
    log = gclog.parse(text.splitlines())
    assert [pause.is_starved for pause in log.pauses] == [True, False, False, False]
    (tmp_path / "gc.log").write_text(text)
    seen = PROBES["gc"].read(context(tmp_path, 0, 2**63 - 1))
    watched = {item.cause: item.spans for item in seen if isinstance(item, Watched)}
    assert {cause: len(spans) for cause, spans in watched.items()} == {
        "garbage collection": 3,
        "garbage collection waiting for a CPU": 1,
    }
    (span,) = watched["garbage collection waiting for a CPU"]
    assert span.end_ns - span.start_ns == 311_118_000


def test_the_cpu_time_of_a_phase_of_cms_is_not_that_of_the_pause_before_it() -> None:
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
    found = gclog.parse(text.splitlines()).pauses
    assert [(pause.name, pause.cpu_ns) for pause in found] == [
        ("Pause Remark", 10_000_000),
        ("Pause Young (Allocation Failure)", 200_000_000),
        ("Pause Initial Mark", 60_000_000),
        ("Pause Remark", 70_000_000),
    ]
    assert [pause.is_starved for pause in found] == [True, False, False, False]


def test_the_pauses_of_the_warm_up_are_in_the_picture_and_in_no_number(tmp_path: Path) -> None:
    whole = lay_out(tmp_path, "17-g1")
    half = sorted(pause.end_ns for pause in pauses(recorded("17-g1")))
    late = dataclasses.replace(whole, start_ns=half[len(half) // 2])
    kept = json.loads((tmp_path / "recording.json").read_text())
    kept["key"][1] = late.start_ns
    (tmp_path / "recording.json").write_text(json.dumps(kept))
    measured = list(PROBES["gc"].read(late))
    drawn = next(item for item in measured if isinstance(item, Series) and item.name == "gc_pause_ms")
    assert len(drawn.at_ns) == len(half)
    assert min(drawn.at_ns) < late.start_ns
    assert readings(measured)["gc_pauses"] == len(half) - len(half) // 2


def test_a_collection_for_a_humongous_object_is_counted_without_the_cycle_that_it_begins(tmp_path: Path) -> None:
    seen = readings(list(PROBES["gc"].read(lay_out(tmp_path, "17-g1"))))
    # zgrep -c "Pause Young (Concurrent Start) (G1 Humongous Allocation)$" 17-g1.log.gz
    lines = [line for line in log_lines("17-g1") if "Pause Young (Concurrent Start) (G1 Humongous Allocation) " in line]
    assert seen["gc_humongous_collections"] == len(lines) == 2


def test_full_collections_of_a_collector_that_does_not_say_which_are_unavailable_and_not_zero(tmp_path: Path) -> None:
    whole = lay_out(tmp_path, "17-g1", ["[2026-11-22T04:07:43.657+0000][0.016s][info][gc] Using Shenandoah"])
    kept = json.loads((tmp_path / "recording.json").read_text())
    for collection in kept["content"]["collections"]:
        collection[3] = "Shenandoah"
    (tmp_path / "recording.json").write_text(json.dumps(kept))
    seen = readings(list(PROBES["gc"].read(whole)))
    assert seen["full_gcs"] is None
    assert seen["gc_pauses"] > 0


def test_an_event_that_this_java_does_not_have_is_unavailable_and_not_zero(tmp_path: Path) -> None:
    whole = lay_out(tmp_path, "11-cms")
    seen = readings(list(PROBES["gc"].read(whole)))
    assert seen["gc_allocation_stalls"] is None
    assert seen["direct_buffers_max"] is None
    assert seen["gc_concurrent_mode_failures"] == 4  # as `jfr summary` counts them


def test_a_cycle_that_the_end_of_the_jvm_cut_off_is_no_unknown_line() -> None:
    aborted = (
        "[2026-11-22T16:19:52.258+0000][4.739s][info][gc          ] GC(5) Garbage Collection (Allocation Rate) Aborted"
    )
    log = gclog.parse([*log_lines("17-zgc"), aborted])
    assert log.unrecognised == []


@pytest.mark.parametrize(
    "line",
    [
        "[2026-99-99T00:00:00.000+0000][1.0s][info][gc] GC(1) Pause Full (x) 6M->1M(64M) 9.619ms",
        f"[2026-11-22T07:38:46.274+0000][1.0s][info][gc] GC({'9' * 5000}) Pause Full (x) 6M->1M(64M) 9.619ms",
        f"[2026-11-22T07:38:46.274+0000][1.0s][info][gc] GC(1) Pause Full (x) 6M->1M(64M) {'9' * 400}.0ms",
        f"[2026-11-22T07:38:46.274+0000][1.0s][info][gc,heap] GC(1) Humongous regions: {'9' * 5000}->1",
    ],
)
def test_a_line_whose_numbers_cannot_be_is_one_that_nobody_knows(line: str) -> None:
    everything = log_lines("17-g1")
    log = gclog.parse([*everything, line])
    assert log.pauses == gclog.parse(everything).pauses
    assert log.unrecognised == [line]
    assert all(len(complaint) < 1000 for complaint in log.complaints())


@pytest.mark.parametrize(("run", "region_bytes"), [("11-g1", 1 << 20), ("25-g1", 1 << 20), ("17-parallel", None)])
def test_the_size_of_a_region_is_what_the_log_says(tmp_path: Path, run: str, region_bytes: int | None) -> None:
    assert readings(list(PROBES["gc"].read(lay_out(tmp_path, run))))["g1_region_bytes"] == region_bytes
