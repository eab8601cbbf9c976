"""Pictures: texts neither overlap nor leave the page, and headlines say what the numbers say."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import example_summaries as made
import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation, Text

from ingest_bench.analysis.compare import cells, comparison
from ingest_bench.model.results import FaultRecord, Series, Summary
from ingest_bench.report import headline, plot_cells, plot_grid, plot_over_time

SECOND = 10**9
FOUR = made.experiment(replicates=2, network=["loopback", "ethernet"], receive_predictor=["32KiB", "512KiB"])
MANY = made.experiment(
    replicates=1,
    network=["loopback", "jumbo", "ethernet", "ethernet-100m"],
    receive_predictor=["16KiB", "64KiB", "512KiB"],
)
EXPERIMENTS = {
    "one cell": made.experiment(replicates=1, network=["ethernet"]),
    "four cells": FOUR,
    "with the wire": [made.with_wire(run) for run in FOUR],
    "12 cells": MANY,
    "no valid run": [made.changed(run, state="failed", reason="the server died") for run in FOUR],
    "without reads": [made.changed(run, histograms={}, values={"read_bytes_mean": None}) for run in FOUR],
}
READS = "read_bytes_mean"
draw_reads = partial(plot_cells.draw_picture, "reads")
draw_layers = partial(plot_cells.draw_picture, "layers")


@contextmanager
def figures() -> Iterator[list[Figure]]:
    """Collect the figures that are saved within the block. They are laid out, but not written."""
    saved: list[Figure] = []

    def keep(self: Figure, *_: object, **__: object) -> None:
        self.draw_without_rendering()
        saved.append(self)

    with patch.object(Figure, "savefig", keep):
        yield saved


def texts(figure: Figure) -> list[Text]:
    """Return every drawn text. Matplotlib keeps labels of ticks beyond the ends of an axis without drawing them."""
    beyond = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            beyond |= {id(tick.label1) for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
    every = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    return [text for text in every if text.get_text() and text.get_visible() and id(text) not in beyond]


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in texts(figure))


def assert_readable(figure: Figure) -> None:
    """Assert that no text overlaps another. The page is as large as its texts, but never much wider than planned."""
    assert figure.get_tightbbox().width < 1.4 * figure.get_figwidth()
    # Of an annotation without its arrow.
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in texts(figure)]
    for (first, a), (second, b) in itertools.combinations(boxes, 2):
        # One pixel: fonts are hinted, and the 0 of both axes meet in a corner.
        width = min(a.x1, b.x1) - max(a.x0, b.x0)
        height = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert width < 1 or height < 1, (first, second)


def with_large(run: Summary, largest: int, faults: int) -> Summary:
    """Return the run with large allocations in each second, and flushes."""
    run = made.with_series(run)
    moments = [made.START_NS + second * SECOND for second in range(1, 50, 3)]
    sizes = [float(largest if number % 2 else 2 << 20) for number in range(len(moments))]
    line = Series("large_allocation_bytes", tuple(moments), tuple(sizes))
    flushes = tuple(made.fault_record("flush", 10 * number, 10 * number + 0.1) for number in range(faults))
    values = {"largest_allocation_bytes": largest, "heap_bytes": 2 << 30}
    return made.changed(run, series={**run.series, line.name: line}, faults=flushes, values=values)


def host_series(name: str, value: Callable[[float], float], per_s: int = 10) -> Series:
    moments = [made.START_NS + number * SECOND // per_s for number in range(-2 * per_s, 60 * per_s)]
    return Series(name, tuple(moments), tuple(value((at - made.START_NS) / 1e9) for at in moments))


def host_run(level: str, fault: str) -> Summary:
    """Return a minute in which fragmented memory makes a valley at 30 s."""
    in_valley = fault == "fragmented" and level == "always"
    lines = [
        host_series("docs_per_s", lambda at: 400.0 if in_valley and 30 <= at < 33 else 1000 + 33 * at, per_s=1),
        host_series("server_cpu_system_cores", lambda at: 1.4 if in_valley and 30 <= at < 33 else 0.1),
        host_series("server_context_switches_per_s", lambda at: 4000 + 50 * at),
        host_series("server_page_faults_per_s", lambda _: 300.0),
        host_series("compact_stall_per_s", lambda at: 20.0 if in_valley and at > 30 else 0.0),
        host_series("numa_pages_migrated_per_s", lambda _: 0.0),
    ]
    levels = {"host.transparent_hugepages": level, "fault": fault}
    run = made.summary(levels, 1, series={line.name: line for line in lines})
    return made.changed(run, values={"docs_per_s_p10": 500.0 if in_valley else 1100.0})


FAULTS = tuple(
    made.fault_record(kind, at, at + 1) for kind, at in (("partition", 20), ("compact_memory", 21), ("pressure", 59))
)
LONG = [
    made.with_series(made.changed(run, levels={**run.levels, "heap": "W" * 200, "gc": "x" * 100, "fault": "none"}))
    for run in FOUR
]
LONG_LEVELS = dict.fromkeys(("users", "bulk", "processes", "arrivals", "seed"), "x" * 80)
SIZES = [dataclasses.replace(run, headline=READS) for run in MANY]
# Seven panels in two lines for each group, long levels, and cells that failed.
PANELS = [
    made.changed(run, state="failed" if run.levels["users"] == "64" else "measured")
    for run in made.experiment(
        replicates=1,
        heap=["1g", "W" * 50],
        users=["1", "4", "16", "64", "256", "x" * 100, "y" * 50],
        gc=["g1", "zgc"],
    )
]
HOST = [host_run(*levels) for levels in itertools.product(("always", "madvise", "never"), ("none", "fragmented"))]
HOST_FAULTS = ("none", "fragmented", "W" * 200, "x" * 100, "d", "e", "f", "g")
HOST_LEVELS = ("always", "W" * 100, "x" * 100, "never")
PICTURES: dict[str, Callable[[], bytes | None]] = {
    **{name: partial(draw_reads, runs) for name, runs in EXPERIMENTS.items()},
    "layers": partial(draw_layers, FOUR),
    "matrix": partial(plot_grid.draw_matrix, FOUR),
    "matrix of sizes": partial(plot_grid.draw_matrix, SIZES),
    "matrix of many panels": partial(plot_grid.draw_matrix, PANELS),
    "a minute": partial(plot_over_time.draw_timeline, made.with_series(FOUR[0])),
    "a minute with a fault": partial(plot_over_time.draw_timeline, made.with_series(FOUR[0], fault=True)),
    "simultaneous faults": partial(
        plot_over_time.draw_timeline, made.changed(made.with_series(FOUR[0]), faults=FAULTS)
    ),
    "long common levels": partial(draw_reads, LONG),
    "a minute with long levels": partial(plot_over_time.draw_timeline, LONG[0]),
    "settings of the machine": partial(plot_over_time.draw_machine, HOST),
    "long settings": partial(
        plot_over_time.draw_machine, [host_run(*levels) for levels in itertools.product(HOST_LEVELS, HOST_FAULTS)]
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_texts_of_a_picture_do_not_overlap(name: str) -> None:
    with figures() as saved:
        PICTURES[name]()
    (figure,) = saved
    assert_readable(figure)


def test_many_long_levels_do_not_shrink_the_panel() -> None:
    with figures() as saved:
        draw_layers(FOUR)
        draw_layers([made.changed(run, levels={**run.levels, "gc": "x" * 100, **LONG_LEVELS}) for run in FOUR])
    heights = [figure.axes[0].bbox.height for figure in saved]
    assert heights[1] == pytest.approx(heights[0], rel=0.01)


def test_equal_summaries_give_equal_bytes_whatever_matplotlibrc_says() -> None:
    one_run = EXPERIMENTS["one cell"]
    plain = draw_reads(one_run)
    assert plain is not None
    assert plain.startswith(b"\x89PNG")
    assert draw_reads(one_run) == plain
    with rc_context({"text.usetex": True, "savefig.facecolor": "red", "font.size": 40}):
        assert draw_reads(one_run) == plain


def test_invalid_run_is_left_out_and_named() -> None:
    bad = made.changed(FOUR[0], state="invalid", reason="bytes differ", values={"docs_per_s_mean": 9e8})
    with figures() as saved:
        draw_reads([bad, *FOUR[1:]])
    assert f"Left out: 1 of 8 runs. {bad.run}: invalid: bytes differ" in words(saved[0])
    assert "450,0" not in words(saved[0])


def test_panel_of_frames_is_drawn_only_with_a_capture() -> None:
    with figures() as saved:
        draw_reads(FOUR[:1])
        draw_reads(EXPERIMENTS["with the wire"][:1])
    assert ["Wire frames" in words(figure) for figure in saved] == [False, True]


def test_timeline_says_what_its_closed_loop_hides_and_shows_acknowledged_requests() -> None:
    run = made.with_series(FOUR[0])
    # Of 60 s, 1 s is not worth a remark.
    values = {"requests_answered": 6000, "requests_failed": 48, "idle_while_waiting_s": 8.0}
    with figures() as saved:
        for changed in (values, {"idle_while_waiting_s": 1.0}):
            plot_over_time.draw_timeline(made.changed(run, values={"requests_answered": 6000, **changed}))
    first, second = (words(figure).replace("\n", " ") for figure in saved)
    assert "closed loop: each user sent nothing for 8.0 of 60.0 s on average" in first
    assert "arrivals=100/s, or less" in first
    assert ("max of ok" in first, "max of ok" in second, "closed loop" in second) == (True, False, False)
    assert plot_over_time.draw_timeline(FOUR[0]) is None


def test_finding_of_many_cells_takes_one_relative_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    # One takes milliseconds, and 200 cells have 19,900 pairs.
    sides: list[comparison.Sides] = []

    def record(of: comparison.Sides) -> tuple[float, float] | None:
        sides.append(of)
        return of.relative_interval()

    monkeypatch.setattr(comparison, "_relative_interval", record)
    assert " times (" in headline.describe_finding(FOUR, READS)
    headline.build_tiles(FOUR)
    assert len(set(sides)) <= 3


def test_cell_out_of_memory_says_so_in_its_row() -> None:
    oom = [made.changed(run, state="oom", values={"out_of_memory": "direct"}) for run in FOUR]
    runs = [gone if run.cell == FOUR[0].cell else run for run, gone in zip(FOUR, oom, strict=True)]
    with figures() as saved:
        draw_reads(runs)
    assert "OOM (direct)" in words(saved[0])
    assert headline.describe_finding(oom) == "Every run ended out of memory"
    assert headline.describe_finding(runs).endswith(". 1 of 4 cells ended out of memory")
    left_out = [made.changed(run, state="inapplicable") if run.cell == FOUR[-1].cell else run for run in runs]
    assert headline.describe_finding(left_out).endswith(". 1 of 3 cells ended out of memory")
    # A run of the cell that failed otherwise, and a cell that never began.
    failed = [*runs, made.changed(oom[0], run=f"{oom[0].cell}/2", state="failed")]
    assert headline.describe_finding(failed).endswith(". 1 of 4 cells ended out of memory")
    assert headline.describe_finding([*oom[1:], left_out[-1]]) == "Every run ended out of memory"


def test_heap_of_threads_without_a_role_has_no_dark_part() -> None:
    unknown = [made.changed(run, values={"allocated_network_bytes": None}) for run in FOUR]
    with figures() as saved:
        draw_reads(FOUR)
        draw_reads([*FOUR[:6], *unknown[6:]])
        draw_reads(unknown)
    assert ["dark: network" in words(figure) for figure in saved] == [True, True, False]
    assert ["hatched: unknown" in words(figure) for figure in saved] == [False, True, False]
    panels = [next(axes for axes in figure.axes if "Heap" in axes.get_title(loc="left")) for figure in saved]
    bars = [[bar for bar in panel.patches if isinstance(bar, Rectangle)] for panel in panels]
    assert [sum(bar.get_alpha() is None for bar in drawn) for drawn in bars] == [4, 3, 0]
    assert [sum(bool(bar.get_hatch()) for bar in drawn) for drawn in bars] == [0, 1, 0]


def test_finding_says_when_no_change_is_seen() -> None:
    spread = [
        made.changed(run, run=f"{run.cell}/{number}", replicate=number, values={"response_ms_p99": value})
        for run, values in ((FOUR[0], (1.0, 9.0, 2.0)), (FOUR[2], (3.0, 1.0, 8.0)))
        for number, value in enumerate(values, 1)
    ]
    assert ", no change seen" in headline.describe_finding(spread, "response_ms_p99")
    assert "no change seen" not in headline.describe_finding(FOUR, READS)


def test_finding_of_many_cells_says_of_how_many_comparisons_it_is_one() -> None:
    runs = made.experiment(replicates=3, workload=[f"w{number}" for number in range(12)])
    random = np.random.default_rng(7)
    equal = [made.changed(run, values={"response_ms_max": random.lognormal(5, 0.5)}) for run in runs]
    # Its own interval excludes "no change".
    assert headline.describe_finding(equal, "response_ms_max").endswith(
        "3.0 times (1.05 to 3.79, one of 66 comparisons)"
    )


def test_cells_with_other_factors_are_no_pair() -> None:
    runs = made.experiment(replicates=2, network=["loopback", "ethernet"])
    other = [dataclasses.replace(run, levels={**run.levels, "heap": "1g"}) for run in runs[2:]]
    assert headline.describe_finding([*runs[:2], *other], READS) == "A socket read carries 35.8 KiB to 64 KiB"
    assert [tile.title for tile in headline.build_tiles([*runs[:2], *other])] == ["Heap", "Stalls", "Throughput"]
    # A cell without the factor that two others vary.
    cells_of_heap = [
        dataclasses.replace(run, cell=f"{run.cell}+{heap}", levels={**run.levels, **({"heap": heap} if heap else {})})
        for heap in ("", "1g", "2g")
        for run in runs[:2]
    ]
    for ordered in (cells_of_heap, cells_of_heap[::-1]):
        spread = [
            made.changed(run, values={READS: 1000.0 * (2 + len(run.levels) + ("2g" in run.cell))}) for run in ordered
        ]
        assert "at heap 1g" in headline.describe_finding(spread, READS)
        headline.build_tiles(spread)


def test_headline_compares_the_cells_that_differ_most() -> None:
    assert headline.describe_finding(FOUR, READS) == (
        "A socket read carries 37.6 KiB over ethernet and 497 KiB over loopback: 13 times "
        "(13.2 to 13.2, receive predictor 512KiB)"
    )
    same = made.experiment(network=["loopback", "ethernet"], receive_predictor=["4KiB"])
    assert headline.describe_finding(same, READS) == "A socket read carries 4 KiB"
    assert headline.describe_finding(EXPERIMENTS["no valid run"]) == "No valid run"
    none = [made.changed(run, values={"outside_tlab_network_bytes": 0}) for run in FOUR]
    sentence = "Outside TLABs the network layer allocates, for each GB accepted, 0 GB"
    assert headline.describe_finding(none, headline.NETWORK_COLUMN) == sentence
    assert headline.describe_finding(FOUR, "docs_per_s_mean").startswith(
        "Documents/s accepted: 18,860 over ethernet and 21,200 over loopback"
    )


def test_headline_is_of_the_column_that_the_experiment_names() -> None:
    runs = [dataclasses.replace(run, headline="response_ms_p99") for run in FOUR]
    slow = [made.changed(run, values={"response_ms_p99": 900.0 if "512KiB" in run.cell else 100.0}) for run in runs]
    assert headline.describe_finding(slow).startswith(
        "99% of requests take at most 100 ms at receive predictor 32KiB and 900 ms at receive predictor 512KiB: 9.0"
    )
    unmeasured = [dataclasses.replace(run, headline="lost_documents") for run in FOUR]
    assert headline.describe_finding(unmeasured) == "Each GB ingested makes the server allocate 30 GB"


def test_tiles_compare_the_cells_of_the_finding_and_say_when_there_is_no_verdict() -> None:
    single = made.experiment(replicates=1, network=["loopback", "ethernet"])
    heap, stalls, throughput = headline.build_tiles(single)
    assert (heap.title, stalls.title, throughput.title) == ("Heap", "Stalls", "Throughput")
    assert re.fullmatch(r"-1\d%, no verdict", throughput.answer)
    assert throughput.text.startswith("documents/s: 20,626 over loopback → 18,650 over ethernet")
    assert throughput.verdict == "1 run per cell: no verdict; --replicates 3"
    assert (stalls.answer, stalls.text) == ("Not measured", "")
    *_, throughput = headline.build_tiles(made.experiment(network=["loopback", "ethernet"]))
    assert re.fullmatch(r"-\d+%", throughput.answer)
    assert re.fullmatch(r"0\.\d+ to 0\.\d+ times", throughput.verdict)
    assert headline.build_tiles([])[0].answer == "Not measured"


@pytest.mark.parametrize(
    ("ratio", "times"), [(1.0999, None), (1.1, "1.1 times"), (9.94, "9.9 times"), (10, "10 times")]
)
def test_headline_compares_from_a_difference_of_a_tenth_on(ratio: float, times: str | None) -> None:
    sizes = {"ethernet": 1000.0, "loopback": 1000.0 * ratio}
    runs = [made.changed(made.summary({"network": name}), values={"read_bytes_mean": sizes[name]}) for name in sizes]
    text = headline.describe_finding(runs, READS)
    assert (" over ethernet and " in text and " over loopback: " in text) is (times is not None)
    assert text.endswith(f"{times} (1 run per cell)" if times else "KiB")


def test_headline_of_a_fault_is_its_cost() -> None:
    run = made.changed(made.with_series(FOUR[0], fault=True), values={"zero_throughput_s": 11, "recovery_s": 1.5})
    assert headline.describe_run(run) == "Partition: 11 s without progress, throughput back 1.5 s after it"
    lost = made.changed(run, values={"recovery_s": None})
    assert headline.describe_run(lost).endswith("throughput not back in time")
    early = (made.fault_record("partition", 0.2, 1.2),)
    run = made.changed(made.with_series(FOUR[0]), faults=early, values={"zero_throughput_s": 0, "recovery_s": None})
    for unknown in (run, made.changed(run, series={})):
        assert headline.describe_run(unknown) == (
            "Partition: 0 s without progress, no throughput before it to compare with"
        )


def test_headline_of_one_run_names_its_known_numbers() -> None:
    measured = {"docs_per_s_mean": 20_000.4, "response_ms_p99": 412.0, "response_ms_max": 900.0, "requests_failed": 0}
    run = made.changed(FOUR[0], values={**measured, "gc_pauses": 20, "gc_pause_ms_total": 151.6})
    assert headline.describe_run(run) == (
        "20,000 documents/s, 99% answered within 412 ms, the slowest in 900 ms, 20 GC pauses, 152 ms in all"
    )
    failed = made.changed(run, values={"requests_failed": 48, "docs_per_s_mean": None, "gc_pauses": None})
    assert headline.describe_run(failed) == "99% over within 412 ms, the slowest in 900 ms, 48 requests failed"
    none = made.changed(run, values=dict.fromkeys([*measured, "gc_pauses"]))
    assert headline.describe_run(none) == "One run over time"


@pytest.mark.parametrize("start", [-(2**62), 2**62])
def test_fault_far_outside_the_load_does_not_prevent_a_picture(start: int) -> None:
    run = made.with_series(made.experiment(replicates=1, network=["ethernet"])[0])
    ends = (None, 0, 2**62, made.START_NS + SECOND)
    faults = tuple(FaultRecord(kind="pause", start_ns=start, end_ns=end) for end in ends)
    with figures() as drawn:
        plot_over_time.draw_timeline(made.changed(run, faults=faults))
    assert_readable(drawn[0])


def test_stalls_are_hatched_and_labelled_where_there_is_room() -> None:
    run = made.with_series(made.experiment(replicates=1, network=["ethernet"])[0])
    end_s = ((run.measure_end_ns or 0) - made.START_NS) / SECOND
    stalls = (
        made.stall(5, 6, "Lucene flushed a segment"),
        made.stall(7, 9, "garbage collection"),
        made.stall(20, 24, "Lucene flushed a segment"),
        made.stall(end_s - 0.5, end_s),
    )
    with figures() as drawn:
        plot_over_time.draw_timeline(made.changed(run, stalls=stalls))
    first, *others = (axes for axes in drawn[0].axes if axes.get_xlim()[1] > 1)
    for axes in (first, *others):
        hatched = [patch for patch in axes.patches if patch.get_hatch()]
        assert [round(patch.get_extents().width) for patch in hatched].count(0) == 0
        assert len(hatched) == len(stalls)
    labels = {text.get_text(): text for text in first.texts if isinstance(text, Annotation)}
    # The longest stall of each cause; the last stall is too near to the end.
    assert labels["Lucene flushed a segment"].xy[0] == 20
    assert labels["garbage collection"].xy[0] == 7
    assert "unexplained" not in labels
    assert all(text.get_window_extent().x1 <= first.bbox.x1 for text in first.texts)


def machine_figure(runs: list[Summary]) -> Figure:
    with figures() as saved:
        assert plot_over_time.draw_machine(runs) is not None
    (figure,) = saved
    return figure


def test_each_setting_is_a_column_and_each_fault_a_line_on_one_scale() -> None:
    figure = machine_figure(HOST)
    assert len(figure.axes) == 3 * 5
    first = figure.axes[:3]
    assert [len(axes.lines) for axes in first] == [2, 2, 2]
    assert len({axes.get_ylim() for axes in first}) == 1
    # The valley of three seconds is there, at its place and depth.
    at, rates = np.array(first[0].lines[1].get_data())
    assert at[rates < 500].tolist() == [30.5, 31.5, 32.5]
    every = [text.get_text() for text in texts(figure)]
    for expected in ("transparent hugepages always", "fault none", "fault fragmented", "Its context switches/s"):
        assert expected in every
    # A counter that stayed at 0 has no panel and is named.
    assert "0 at all times: Pages moved between NUMA nodes/s" in every
    blind = [
        dataclasses.replace(run, series={key: line for key, line in run.series.items() if "numa" not in key})
        for run in HOST
    ]
    others = words(machine_figure([*blind[:-1], made.changed(blind[-1], state="failed", reason="no memory.")]))
    assert "NUMA" not in others
    assert f"Left out: 1 of 6 runs. {HOST[-1].run}: failed: no memory" in others.splitlines()


def test_picture_of_settings_requires_valid_watched_runs() -> None:
    for runs in (
        [made.with_series(made.summary({"network": "ethernet"}))],
        [made.changed(run, series={}) for run in HOST],
        [made.changed(run, state="invalid", reason="a check failed") for run in HOST],
    ):
        assert plot_over_time.draw_machine(runs) is None


def test_peak_far_above_the_others_is_cut_off_and_marked() -> None:
    first, *others = HOST
    counter = "server_page_faults_per_s"
    high = host_series(counter, lambda at: 30_000.0 if 20 <= at < 21 else 300.0)
    figure = machine_figure([made.changed(first, series={**first.series, counter: high}), *others])
    assert_readable(figure)
    # Waits for compaction are not marked: their only peak is the usual one.
    assert re.findall("▲ up to [0-9.,]+", words(figure)) == ["▲ up to 1.4", "▲ up to 30,000"]
    assert max(axes.get_ylim()[1] for axes in figure.axes[9:12]) < 500


@pytest.mark.parametrize(
    ("rates", "waits", "title"),
    [
        (
            (500.0, 300.0),
            (5.0, 400.0),
            "The others waited 400 ms on average for node 2, 300 of 500 documents/s (fault slow)",
        ),
        ((500.0, 499.0), (5.0, 60.0), "The others waited 60 ms on average for node 2 (fault slow)"),
        ((500.0, 499.0), (5.0, 5.0), "99% of requests take at most"),
    ],
)
def test_title_of_nodes_names_the_node_that_was_waited_for(
    rates: tuple[float, ...], waits: tuple[float, ...], title: str
) -> None:
    runs = [
        made.changed(
            made.summary({"fault": fault}),
            nodes=({"peer_wait_ms_mean": 4.0}, {"peer_wait_ms_mean": wait}),
            values={"docs_per_s_mean": rate, "response_ms_p99": 50.0},
        )
        for fault, rate, wait in zip(("none", "slow"), rates, waits, strict=True)
    ]
    with figures() as saved:
        plot_cells.draw_picture("nodes", runs)
    assert saved[0].texts[0].get_text().replace("\n", " ").replace("\u00a0", " ").startswith(title)


def test_large_allocations_are_next_to_the_heap_of_the_same_run() -> None:
    runs = made.experiment(replicates=1, network=["loopback", "ethernet"])
    assert plot_over_time.draw_large_allocations(runs) is None
    other = made.changed(with_large(runs[1], 256 << 20, 0), faults=(made.fault_record("partition", 10, None),))
    with figures() as drawn:
        plot_over_time.draw_large_allocations([with_large(runs[0], 8 << 20, 5), other])
    every = [text.get_text() for text in texts(drawn[0])]
    assert any(text.startswith("The largest object has 8") for text in every)
    # Faults of any cell, each once.
    assert (every.count("flush"), every.count("partition"), every.count("256 MiB")) == (1, 1, 2)
    assert_readable(drawn[0])


def test_values_before_the_load_do_not_scale_a_panel() -> None:
    run, name = with_large(FOUR[0], 8 << 20, 0), "large_allocation_bytes"
    line = run.series[name]
    early = Series(name, (made.START_NS - 20 * SECOND, *line.at_ns), (float(64 << 30), *line.values))
    before, none = (made.changed(run, series={**run.series, name: line}) for line in (early, Series(name, (), ())))
    with figures() as drawn:
        plot_over_time.draw_timeline(before)
        plot_over_time.draw_large_allocations([before])
        plot_over_time.draw_large_allocations([none])
    assert drawn[0].axes[-1].get_ylim()[1] < 10 << 20
    assert drawn[1].axes[1].get_ylim()[1] < 1 << 30
    assert "none of 1 MiB or more" in words(drawn[2])


def test_labels_differ_if_only_a_level_in_the_middle_does() -> None:
    runs = made.experiment(1, network=["ethernet-100m"], receive_predictor=list(made.BUFFERS), workload=["nyc_taxis"])
    keys = ["network", "receive_predictor", "workload"]
    labels = plot_cells.row_labels(cells.group_by_cell(runs), keys)
    assert len(set(labels)) == len(made.BUFFERS)
    assert labels[0] == "ethernet-100m · 4KiB · nyc_taxis"
    assert labels[-1] == "ethernet-100m · 512KiB ·\nnyc_taxis"
