"""Who allocated: whole stacks as files, and an icicle for the page that is never too large."""

from __future__ import annotations

import dataclasses
import json
import re

import made_summaries as made
import pytest

from ingest_bench.report import REPORTS
from ingest_bench.report.page import flames, page
from ingest_bench.report.tables import text_tables

STACKS = {
    "outside TLABs;a.Main.run;io.netty.Buffers.take;byte[]": 6000,
    "outside TLABs;a.Main.run;io.netty.Buffers.take;int[]": 1000,
    "new TLABs;a.Main.run;java.util.List.of;byte[]": 2996,
    "new TLABs;a.Main.run;a.Rare.one;byte[]": 3,
    "new TLABs;a.Main.run;a.Rare.two;byte[]": 1,
}
RUN = made.changed(made.summary({"network": "ethernet"}), stacks=STACKS)


def test_the_stacks_of_a_run_are_a_file_that_flamegraph_and_speedscope_read() -> None:
    files = REPORTS["allocations"]([RUN, made.summary({"network": "loopback"})])
    assert list(files) == ["report/allocations-network=ethernet-1.folded"]
    lines = files["report/allocations-network=ethernet-1.folded"].decode().splitlines()
    assert lines[0] == "new TLABs;a.Main.run;a.Rare.one;byte[] 3"
    assert {frames: int(size) for frames, _, size in (line.rpartition(" ") for line in lines)} == STACKS
    # summary.json would only repeat them.
    assert "Buffers.take" not in text_tables.summary_json([RUN])
    assert "stacks" not in json.loads(text_tables.summary_json([RUN]))[0]


def test_narrow_frames_are_drawn_as_one_and_it_is_said_how_much_that_is() -> None:
    drawn = flames.flames([RUN])
    (graph,) = drawn.graphs
    shown = [(depth, drawn.names[name], size) for depth, name, size in graph["nodes"]]
    assert shown == [
        (0, "all", 10000),
        (1, "outside TLABs", 7000),
        (2, "a.Main.run", 7000),
        (3, "io.netty.Buffers.take", 7000),
        (4, "byte[]", 6000),
        (4, "int[]", 1000),
        (1, "new TLABs", 3000),
        (2, "a.Main.run", 3000),
        (3, "java.util.List.of", 2996),
        (4, "byte[]", 2996),
        (3, "(smaller)", 4),
    ]
    assert graph["merged"] == 4
    few = made.changed(RUN, stacks={**STACKS, "new TLABs;a.Main.run;a.Rare.one;byte[]": 19})
    text = flames.figure(few, flames.flames([few]), is_open=True)
    assert "0.2% are of frames below 0.2% each, which are drawn as one." in text
    assert '<a href="allocations-network%3Dethernet-1.folded">' in text


def test_a_run_with_too_many_frames_has_the_widest_of_them() -> None:
    many = {f"new TLABs;{';'.join(f'p.C{way}.m{depth}' for depth in range(100))};byte[]": 1 for way in range(300)}
    (graph,) = flames.flames([made.changed(RUN, stacks=many)]).graphs
    assert len(graph["nodes"]) <= 4001
    assert graph["merged"] == 300
    assert graph["least"] > 0.002


def test_the_page_has_no_more_of_it_than_a_browser_opens_and_says_where_the_rest_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [made.changed(run, stacks=STACKS) for run in made.experiment(replicates=2, network=["loopback", "ethernet"])]
    one = len(json.dumps(flames.flames(runs[:1]).data))
    assert one < 1000
    monkeypatch.setattr(flames, "MOST_BYTES", 2 * one)
    drawn = flames.flames(runs)
    # The first run of each cell comes before the second of any.
    assert list(drawn.places)[:2] == ["network=loopback/1", "network=ethernet/1"]
    assert "network=ethernet/2" not in drawn.places
    assert len(json.dumps(drawn.data)) <= flames.MOST_BYTES
    long = made.changed(RUN, stacks={f"new TLABs;{'x' * 5 * one};byte[]": 1})
    assert flames.flames([long]).data == {"names": [], "graphs": []}
    text = page.index(runs, {})
    assert re.search(
        r"network=ethernet/2: who allocated is not drawn here.*allocations-network=ethernet-2.folded", text
    )
    assert len(re.findall("<details open>", text)) == 2


def test_a_run_that_nobody_asked_for_its_allocations_says_nothing_of_them() -> None:
    text = page.index([made.summary({"network": "ethernet"})], {})
    assert "who allocated" not in text


def test_a_stack_as_deep_as_any_flight_recorder_keeps_is_drawn() -> None:
    deep = {f"new TLABs;{';'.join(f'p.C.m{depth}' for depth in range(2048))};byte[]": 10}
    (graph,) = flames.flames([made.changed(RUN, stacks=deep)]).graphs
    assert [depth for depth, _, _ in graph["nodes"]] == list(range(2051))
    assert graph["merged"] == 0


def test_the_most_frames_are_drawn_that_have_room() -> None:
    ways = {f"new TLABs;{';'.join(f'p.C{way}.m{depth}' for depth in range(98))};byte[]": 100 for way in range(40)}
    narrow = {f"new TLABs;p.Narrow{way}.run;byte[]": 30 for way in range(60)}
    (graph,) = flames.flames([made.changed(RUN, stacks={**ways, **narrow})]).graphs
    # All, the kind, 99 frames of each way, and what was merged.
    assert len(graph["nodes"]) == 2 + 40 * 99 + 1
    assert graph["merged"] == 60 * 30


def test_no_two_runs_share_the_file_of_their_stacks_and_each_name_fits_a_folder() -> None:
    long = f"predictor={'x' * 220}"
    names = ["buffer=a_b/1", "buffer=a-b/1", "buffer=a+b=1/1", f"{long}y/1-instrumented", f"{long}z/1-instrumented"]
    runs = [dataclasses.replace(RUN, run=name) for name in names]
    files = REPORTS["allocations"](runs)
    assert len(files) == len(names)
    assert {len(name.removeprefix("report/")) <= 235 for name in files} == {True}
    assert list(files)[:2] == ["report/allocations-buffer=a_b-1.folded", "report/allocations-buffer=a-b-1.folded"]
