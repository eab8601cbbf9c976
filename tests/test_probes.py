"""Probes without a JVM: options, settings, which files of a recording count, and what is unavailable."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from probe_lab import make_context, notes, read, readings, write_recording

from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.model.results import Histogram, Note, Reading, Stacks
from ingest_bench.probes import PROBES, jvm_options, oom, recording
from ingest_bench.probes.context import ReadContext


def sizes(count: int, total: int) -> dict[str, int]:
    size = total // max(count, 1)
    return {"count": count, "total": total, "min": size, "max": size}


def content(**changed: Any) -> dict[str, Any]:
    reads = {"all": sizes(5, 900), "window": sizes(4, 800), "other_ports": sizes(2, 50), "empty": 3, "ends": 1}
    written: dict[str, Any] = {"events": 9, "last_ns": 99, "lost_bytes": 0, "files": []}
    written["stacks"] = {"names": [], "nodes": [], "is_full": False}
    return written | {"reads": reads | {"histogram": {"100": 1, "200": 2, "300": 1}}} | changed


def lay_out(raw: Path, read_content: dict[str, Any], *names: str) -> ReadContext:
    context = make_context(raw, 10, 20, {4000, 4001})
    write_recording(context, read_content, names or ("recording.jfr",))
    return context


def test_probes_share_a_recording_and_heap_and_out_of_memory_are_always_watched(tmp_path: Path) -> None:
    options = jvm_options(["reads", "gc"], tmp_path, 17)
    where = f"settings={tmp_path}/recording.jfc,filename={tmp_path}/recording.jfr"
    assert options == (
        f"-XX:StartFlightRecording=name=ingest-bench,{where},dumponexit=true,disk=true,maxsize=0",
        f"-XX:FlightRecorderOptions=repository={tmp_path}/jfr,stackdepth=128",
        f"-Xlog:gc*=info:file={tmp_path}/gc.log:time,uptime,level,tags:filecount=0",
        *oom.jvm_options(tmp_path),
    )
    assert jvm_options([], tmp_path, 17) == options
    assert "jdk.ThreadAllocationStatistics" in (tmp_path / "recording.jfc").read_text()


def list_events(folder: Path) -> dict[str, dict[str, str | None]]:
    """Return the settings of each event in the settings file of a recording."""
    root = ElementTree.parse(folder / "recording.jfc").getroot()  # noqa: S314 - we wrote it
    names = [event.attrib["name"] for event in root]
    assert len(set(names)) == len(names)
    return {event.attrib["name"]: {setting.attrib["name"]: setting.text for setting in event} for event in root}


def test_settings_enable_the_events_of_the_probes_without_throttle(tmp_path: Path) -> None:
    jvm_options(["reads", "gc"], tmp_path, 25)
    events = list_events(tmp_path)
    read = {"enabled": "true", "threshold": "0 ns", "stackTrace": "false", "throttle": "1000000/ms"}
    assert events["jdk.SocketRead"] == read
    assert {event["throttle"] for event in events.values()} == {read["throttle"]}
    assert {"jdk.GCPhasePause", "jdk.GarbageCollection", "jdk.DataLoss"} <= events.keys()


def test_lowest_threshold_of_probes_applies_and_other_conflicts_are_refused() -> None:
    low, high = ({"jdk.ThreadSleep": {"threshold": event, "stackTrace": "true"}} for event in ("0 ns", "20 ms"))
    assert recording.merge_events([low, high]) == recording.merge_events([high, low]) == low
    with pytest.raises(ValueError, match="two probes require"):
        recording.merge_events([low, {"jdk.ThreadSleep": {"threshold": "0 ns"}}])


def test_java_before_11_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingCapability, match="Java 11"):
        jvm_options(["reads"], tmp_path, 8)


def test_path_that_jvm_options_cannot_contain_is_refused(tmp_path: Path) -> None:
    for name in ("a,b", "a b", "a:b", 'a"b'):
        with pytest.raises(SpecError, match="Rename it"):
            jvm_options(["reads"], tmp_path / name, 17)


def test_chunks_of_a_killed_jvm_are_read_instead_of_its_recording(tmp_path: Path) -> None:
    (tmp_path / "recording.jfr").touch()
    chunks = tmp_path / "jfr" / "2026_11_22_04_14_55_16892"
    chunks.mkdir(parents=True)
    names = ["2026_11_22_04_14_55.jfr", "2026_11_22_04_14_57.part", "2026_11_22_04_14_56.jfr"]
    for name in names:
        (chunks / name).write_bytes(b"x")
    (chunks / "2026_11_22_04_14_57.jfr").touch()
    result, ended_well = recording.recording_files(tmp_path)
    assert [path.name for path in result] == sorted(names)
    assert not ended_well


def test_recording_ended_by_the_jvm_is_complete(tmp_path: Path) -> None:
    (tmp_path / "recording.jfr").write_bytes(b"x")
    (tmp_path / "jfr").mkdir()
    assert recording.recording_files(tmp_path) == ([tmp_path / "recording.jfr"], True)


def test_read_sizes_are_of_the_measurement_and_bytes_of_the_recording(tmp_path: Path) -> None:
    outputs = read("reads", lay_out(tmp_path, content()))
    assert outputs == [
        Reading("bytes_read", 900),
        Reading("reads_recorded", 5),
        Reading("reads_empty", 3),
        Histogram("read_bytes", {100: 1, 200: 2, 300: 1}),
    ]


def test_reads_that_the_recorder_cannot_see_are_unavailable(tmp_path: Path) -> None:
    outputs = read("reads", make_context(tmp_path))
    assert readings(outputs) == {"bytes_read": None, "reads_recorded": None, "reads_empty": None}
    assert "no flight recording" in " ".join(notes(outputs))
    unseen = content()
    unseen["reads"] |= {"all": sizes(0, 0), "window": sizes(0, 0), "histogram": {}}
    outputs = read("reads", lay_out(tmp_path, unseen))
    assert readings(outputs) == {"bytes_read": None, "reads_recorded": None, "reads_empty": None}
    assert not any(isinstance(item, Histogram) for item in outputs)
    assert "2 of others" in " ".join(notes(outputs))


IN_FORCE = {"enabled": "true", "threshold": "0 ns", "throttle": "1000000/ms", "stackTrace": "true"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("enabled", "false"), ("threshold", "20 ms"), ("throttle", "100/s"), ("throttle", "1 / s\n"), ("throttle", "off")],
)
def test_settings_of_another_recording_that_lose_reads_invalidate_the_run(
    name: str, value: str, tmp_path: Path
) -> None:
    settings = [["jdk.SocketRead", *setting] for setting in (IN_FORCE | {name: value}).items()]
    # It does not matter to this probe.
    settings.append(["jdk.FileRead", "throttle", "100/s"])
    recordings = ["ingest-bench-1f", "cryostat"]
    outputs = read("reads", lay_out(tmp_path, content(recordings=recordings, settings=settings)))
    assert readings(outputs)["other_recordings"] == "cryostat"
    is_weaker = value != "off"
    expected = IN_FORCE | {"stackTrace": "false"}
    text = f"jdk.SocketRead with {name} {value} instead of {expected[name]}, as another flight recording (cryostat)"
    assert [text in note.text for note in outputs if isinstance(note, Note) and note.invalidates] == [True] * is_weaker
    cost = "other flight recordings ran in this JVM (cryostat): their cost is part of the results"
    assert cost in notes(outputs)


CUT = {"file": "x/a.jfr", "bytes": 9, "events": 0, "error": "java.io.IOException: cut"}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"lost_bytes": 4096}, "dropped 4096 bytes"),
        ({"files": [CUT]}, "a.jfr (9 bytes): nothing could be read (java.io.IOException: cut)"),
    ],
)
def test_bytes_of_a_recording_with_a_gap_are_unavailable(changed: dict[str, Any], text: str, tmp_path: Path) -> None:
    outputs = read("reads", lay_out(tmp_path, content(**changed)))
    assert readings(outputs)["bytes_read"] is None
    assert text in " ".join(notes(outputs))
    assert any(isinstance(item, Histogram) for item in outputs)
    if changed.get("lost_bytes"):
        # Allocations are a sum, so that a gap leaves none.
        assert readings(read("allocations", lay_out(tmp_path, allocated(**changed)))) == {}


def allocated(**changed: Any) -> dict[str, Any]:
    kinds = {"outside network": sizes(4, 4000), "outside lucene": sizes(1, 10), "tlab other": sizes(2, 1000)}
    site = {"kind": "outside", "layer": "network", "site": "io.netty.A.b", "count": 4, "bytes": 4000}
    # Parent, name, bytes and events of each node.
    nodes = [[-1, 0, 0, 0], [0, 1, 0, 0], [1, 2, 30, 3], [1, 3, 4, 1], [-1, 4, 0, 0], [4, 1, 7, 1]]
    names = ["outside TLABs", "a.B.run", "byte[]", "int[]", "new TLABs"]
    return content(
        **{"allocations": kinds, "sites": [site], "stacks": {"names": names, "nodes": nodes, "is_full": False}}
        | changed
    )


def test_allocations_are_split_by_kind_and_layer(tmp_path: Path) -> None:
    values = readings(read("allocations", lay_out(tmp_path, allocated())))
    total = [values[f"outside_tlab_{name}"] for name in ("count", "total_bytes", "mean_bytes")]
    assert total == [5, 4010, 802]
    assert (values["outside_tlab_min_bytes"], values["outside_tlab_max_bytes"]) == (10, 1000)
    assert values["outside_tlab_bytes_per_s"] == pytest.approx(4010 / 10e-9)
    layers = [values[f"outside_tlab_{layer}_bytes"] for layer in ("network", "lucene", "other")]
    assert layers == [4000, 10, 0]
    assert (values["tlab_count"], values["tlab_total_bytes"], values["tlab_other_count"]) == (2, 1000, 2)
    assert values["outside_tlab_sites"] == "io.netty.A.b: 4000"


@pytest.mark.parametrize(
    ("frame", "count"),
    [("io.netty.channel.nio.NioEventLoop.run", 0), ("x.shaded.io.netty.A.run", 0), ("org.nettys.Pooled.run", None)],
)
def test_network_layer_without_a_known_package_is_unavailable(tmp_path: Path, frame: str, count: int | None) -> None:
    recording = allocated(allocations={"outside other": sizes(4, 4000)})
    recording["stacks"]["names"][1] = frame
    numbers = readings(read("allocations", lay_out(tmp_path, recording)))
    assert numbers["outside_tlab_other_bytes"] == 4000
    network = [f"{kind}_network_{unit}" for kind in ("outside_tlab", "tlab") for unit in ("bytes", "count")]
    assert [numbers[name] for name in network] == [count] * 4
    assert numbers["outside_tlab_lucene_count"] == 0


def test_stacks_are_complete_and_a_full_tree_is_noted(tmp_path: Path) -> None:
    outputs = read("allocations", lay_out(tmp_path, allocated()))
    folded = {"outside TLABs;a.B.run;byte[]": 30, "outside TLABs;a.B.run;int[]": 4, "new TLABs;a.B.run": 7}
    assert [item for item in outputs if isinstance(item, Stacks)] == [Stacks(folded)]
    assert notes(outputs) == []
    full = allocated()
    full["stacks"]["is_full"] = True
    outputs = read("allocations", lay_out(tmp_path, full))
    (text,) = notes(outputs)
    assert text.startswith("the stack tree is full at 6 frames")


def test_allocation_rate_of_a_killed_server_uses_the_recorded_time(tmp_path: Path) -> None:
    (tmp_path / "jfr" / "1").mkdir(parents=True)
    (tmp_path / "jfr" / "1" / "1.jfr").write_bytes(b"read already")
    complete = lay_out(tmp_path, allocated(last_ns=14), "1.jfr")
    outputs = read("allocations", complete)
    assert readings(outputs)["outside_tlab_bytes_per_s"] == pytest.approx(4010 / 4e-9)
    assert "was killed" in " ".join(notes(outputs))


G1_LOG = (
    "[2026-11-22T04:07:43.657+0000][0.016s][info][gc] Using G1\n"
    "[2026-11-22T04:07:43.657+0000][0.016s][info][gc,init] Heap Region Size: 4M\n"
)


def large(**changed: Any) -> dict[str, Any]:
    """Two of 1 MiB and one of 300 MiB."""
    size = 1 << 20
    result: dict[str, Any] = {
        "window": sizes(3, 302 * size),
        "very_large": 1,
        "larger_than": [3] * 20 + [1] * 9 + [0] * 35,
        "sites": [["a.B.c", 2, 301 * size], ["g.H.i", 1, size]],
        "moments": [[19, 300 * size], [5, size], [11, size]],
        "lost": 0,
        "largest_bytes": 300 * size,
        "largest": "[B: a.B.c:1 < d.E.f:2",
    }
    return content(large=result | changed)


def test_large_allocations_are_those_within_the_measurement(tmp_path: Path) -> None:
    (tmp_path / "gc.log").write_text(G1_LOG)
    outputs = read("large-allocations", lay_out(tmp_path, large()))
    values, size = readings(outputs), 1 << 20
    assert (values["allocations_1mib"], values["allocations_100mib"], values["allocations_humongous"]) == (3, 1, 1)
    assert values["allocations_1mib_bytes"] == 302 * size
    assert values["largest_allocation_bytes"] == 300 * size
    assert values["largest_allocation_stack"] == "[B: a.B.c:1 < d.E.f:2"
    assert values["large_allocation_sites"] == f"a.B.c: 2 of {301 * size}, g.H.i: 1 of {size}"


def test_large_allocations_without_g1_or_beyond_the_plotted_ones(tmp_path: Path) -> None:
    (tmp_path / "gc.log").write_text(G1_LOG.replace("Using G1", "Using Shenandoah"))
    outputs = read("large-allocations", lay_out(tmp_path, large(lost=7)))
    values = readings(outputs)
    assert (values["allocations_humongous"], values["allocations_1mib"]) == (None, 3)
    assert "shows 3 objects" in " ".join(notes(outputs))


def test_profiling_settings_do_not_change_events_of_the_probes(tmp_path: Path) -> None:
    profile = tmp_path / "profile.jfc"
    profile.write_text(
        '<?xml version="1.0" encoding="UTF-8"?><configuration version="2.0" label="Profiling">'
        '<event name="jdk.ExecutionSample"><setting name="enabled">true</setting><setting name="period">10 ms</setting>'
        '</event><event name="jdk.SocketRead"><setting name="enabled" control="io">false</setting>'
        '<setting name="threshold" control="socket-threshold">10 ms</setting><setting name="throttle">300/s</setting>'
        "</event></configuration>"
    )
    options = jvm_options(["reads"], tmp_path, 17, profile)
    assert options[0].startswith(f"-XX:StartFlightRecording=name=ingest-bench,settings={tmp_path}/recording.jfc,")
    result = list_events(tmp_path)
    assert result["jdk.ExecutionSample"] == {"enabled": "true", "period": "10 ms"}
    ours = {"enabled": "true", "throttle": "1000000/ms"}
    assert result["jdk.SocketRead"] == ours | PROBES["reads"].events["jdk.SocketRead"]
    assert result["jdk.DataLoss"] == ours
    # Also without probes.
    assert jvm_options([], tmp_path, 17, profile)[0] == options[0]
    with pytest.raises(
        MissingCapability, match=r"--jfr profile: cannot read the profiling settings of this Java .*nowhere"
    ):
        jvm_options([], tmp_path, 17, tmp_path / "nowhere" / "profile.jfc")


def test_allocation_probes_share_their_events(tmp_path: Path) -> None:
    jvm_options(["gc", "allocations", "large-allocations"], tmp_path, 17)
    assert {"jdk.ObjectAllocationOutsideTLAB", "jdk.GCHeapSummary"} <= list_events(tmp_path).keys()
