from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import made_summaries as made
import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from ingest_bench.model.results import Cause, Happened, Series, Stall, Summary
from ingest_bench.report.plots import plots, plots_large, plots_layers, plots_style, plots_time
from ingest_bench.report.tables import headline
from ingest_bench.report.tables.words import separated

FOUR = made.experiment(replicates=2, network=["loopback", "ethernet"], receive_predictor=["32KiB", "512KiB"])
MANY = made.experiment(
    replicates=1,
    network=["loopback", "jumbo", "ethernet", "ethernet-100m"],
    receive_predictor=["16KiB", "64KiB", "512KiB"],
    heap=["1g", "2g"],
)
EXPERIMENTS = {
    "one cell": made.experiment(replicates=1, network=["ethernet"]),
    "four cells": FOUR,
    "with the wire": [made.with_wire(run) for run in FOUR],
    "five workloads": made.experiment(workload=["geonames", "geopoint", "nyc_taxis", "percolator", "pmc"]),
    "24 cells": MANY,
    "no valid run": [made.changed(run, state="failed", reason="the server died") for run in FOUR],
    "some out of memory": [made.changed(FOUR[0], state="oom"), *FOUR[1:]],
    "without reads": [made.changed(run, histograms={}, values={"read_bytes_mean": None}) for run in FOUR],
}


@contextmanager
def figures() -> Iterator[list[Figure]]:
    """The figures that were saved within, as they were drawn."""
    saved: list[Figure] = []
    save = Figure.savefig

    def keep(self: Figure, *args: object, **kwargs: object) -> None:
        saved.append(self)
        save(self, *args, **kwargs)  # type: ignore[arg-type]

    with patch.object(Figure, "savefig", keep):
        yield saved


def texts(figure: Figure) -> list[Text]:
    """Every text that was drawn. Matplotlib keeps labels of ticks beyond the ends of an axis, without drawing them."""
    beyond = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            beyond |= {id(tick.label1) for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
    found = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    return [text for text in found if text.get_text() and text.get_visible() and id(text) not in beyond]


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in texts(figure))


FAULTS = tuple(
    Happened(kind=kind, started=made.START_NS + left * 10**9, ended=made.START_NS + (left + 1) * 10**9)
    for kind, left in (("partition", 20), ("compact_memory", 21), ("memory_pressure", 59))
)
LONG = [
    made.with_series(made.changed(run, levels={**run.levels, "heap": "W" * 200, "gc": "x" * 100, "fault": "none"}))
    for run in FOUR
]
LONG_LEVELS = dict.fromkeys(("users", "bulk", "processes", "arrivals", "seed"), "x" * 80)
PICTURES: dict[str, Callable[[], bytes | None]] = {
    **{name: partial(plots.overview, runs) for name, runs in EXPERIMENTS.items()},
    "layers": partial(plots_layers.layers, FOUR),
    "a minute": partial(plots_time.timeline, made.with_series(FOUR[0])),
    "a minute with a fault": partial(plots_time.timeline, made.with_series(FOUR[0], fault=True)),
    "faults at once and at the end": partial(
        plots_time.timeline, made.changed(made.with_series(FOUR[0]), faults=FAULTS)
    ),
    "long levels in common": partial(plots.overview, LONG),
    "a minute with long levels": partial(plots_time.timeline, LONG[0]),
}


@pytest.mark.parametrize("name", PICTURES)
def test_no_text_of_a_picture_lies_on_another_or_leaves_the_page(name: str) -> None:
    with figures() as saved:
        content = PICTURES[name]()
    assert content is not None
    assert content.startswith(b"\x89PNG")
    (figure,) = saved
    assert_readable(figure)


def assert_readable(figure: Figure) -> None:
    """No text leaves the page or lies on another."""
    page = figure.bbox
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    for text, box in boxes:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= page.x1, text
        assert box.y1 <= page.y1, text
    for (first, one), (second, other) in itertools.combinations(boxes, 2):
        # A pixel: fonts are hinted, and the 0 of both axes meet in a corner.
        width = min(one.x1, other.x1) - max(one.x0, other.x0)
        height = min(one.y1, other.y1) - max(one.y0, other.y0)
        assert width < 1 or height < 1, (first, second)


def test_bars_are_as_high_beneath_many_long_levels_and_each_is_beside_its_name() -> None:
    with figures() as saved:
        plots_layers.layers(FOUR)
        plots_layers.layers([made.changed(run, levels={**run.levels, "gc": "x" * 100, **LONG_LEVELS}) for run in FOUR])
    heights = []
    for figure in saved:
        assert_readable(figure)
        (panel,) = figure.axes
        bars = [patch.get_window_extent() for patch in panel.patches]
        heights.append(bars[0].height)
        middles = {round((bar.y0 + bar.y1) / 2) for bar in bars}
        names = [text.get_window_extent() for text in texts(figure) if "KiB" in text.get_text()]
        named = {round((box.y0 + box.y1) / 2) for box in names if box.x1 < panel.bbox.x0}
        assert len(named) == 4
        assert all(min(abs(one - other) for other in middles) <= 3 for one in named)
    assert heights[1] == pytest.approx(heights[0], rel=0.01)


def test_the_same_summaries_give_the_same_bytes() -> None:
    assert plots.overview(FOUR) == plots.overview(FOUR)


def test_an_invalid_run_is_not_in_the_picture_and_the_picture_says_so() -> None:
    bad = made.changed(FOUR[0], state="invalid", reason="bytes differ", values={"docs_per_s_mean": 9e8})
    with figures() as saved:
        plots.overview([bad, *FOUR[1:]])
    assert "Left out: 1 of 8 runs. invalid: bytes differ" in words(saved[0])
    assert "450,0" not in words(saved[0])


def test_the_wire_has_a_panel_only_when_it_was_captured() -> None:
    with figures() as saved:
        plots.overview(FOUR)
        plots.overview([made.with_wire(run) for run in FOUR])
    assert "Wire frames" not in words(saved[0])
    assert "Wire frames" in words(saved[1])


def test_a_picture_over_time_says_what_its_closed_loop_hides() -> None:
    run = made.with_series(FOUR[0])
    # Of 60 s: one is no news, eight are.
    values = {"requests_answered": 6000, "idle_while_waiting_s": 8.0}
    with figures() as saved:
        plots_time.timeline(made.changed(run, values=values))
        plots_time.timeline(made.changed(run, values={**values, "idle_while_waiting_s": 1.0}))
    said = "closed loop: each user sent nothing for 8.0 of 60.0 s on average, which no percentile has"
    assert said in words(saved[0])
    assert "an open loop has it: arrivals=100/s or less" in words(saved[0])
    assert "closed loop" not in words(saved[1])


def test_a_cell_out_of_memory_says_so_in_its_row() -> None:
    oom = [made.changed(run, state="oom", values={"out_of_memory": "direct"}) for run in FOUR]
    runs = [gone if run.cell == FOUR[0].cell else run for run, gone in zip(FOUR, oom, strict=True)]
    with figures() as saved:
        plots.overview(runs)
    assert "OOM (direct)" in words(saved[0])
    assert headline.reads(oom) == "Every run ended out of memory"


def test_the_headline_compares_the_cells_that_differ_most_in_the_first_factor_that_matters() -> None:
    assert headline.reads(FOUR) == (
        "A socket read carries 37.6 KiB on ethernet, 497 KiB on loopback: 13x (receive predictor 512KiB)"
    )


def test_the_headline_claims_no_difference_where_there_is_hardly_one() -> None:
    runs = made.experiment(network=["loopback", "ethernet"], receive_predictor=["4KiB"])
    assert headline.reads(runs) == "A socket read carries 4 KiB on average"


def test_the_headline_says_when_nothing_can_be_said() -> None:
    assert headline.reads(EXPERIMENTS["no valid run"]) == "No valid run"
    assert headline.reads(EXPERIMENTS["without reads"]).startswith(
        "Documents/s taken: 18,860 on ethernet, 21,200 on loopback"
    )


def test_the_headline_of_a_fault_is_what_it_cost() -> None:
    run = made.changed(made.with_series(FOUR[0], fault=True), values={"silent_s": 11, "recovery_s": 1.5})
    assert headline.timeline(run) == "Partition: 11 s without progress, throughput back 1.5 s after it"
    lost = made.changed(run, values={"recovery_s": None})
    assert headline.timeline(lost).endswith("throughput not back in time")


def test_the_headline_of_a_fault_from_the_start_on_does_not_say_that_throughput_was_not_back() -> None:
    run = made.with_series(FOUR[0])
    start_ns = made.START_NS + 10**9 // 5
    early = Happened(kind="partition", started=start_ns, ended=start_ns + 10**9)
    run = made.changed(run, faults=(early,), values={"silent_s": 0, "recovery_s": None})
    said = "Partition: 0 s without progress, no throughput before it to compare with"
    assert headline.timeline(run) == said
    assert headline.timeline(made.changed(run, series={})) == said


def test_the_headline_of_one_run_says_what_is_known_of_it() -> None:
    known = {"docs_per_s_mean": 20_000.4, "response_ms_p99": 412.0, "response_ms_max": 900.0, "requests_failed": 0}
    run = made.changed(FOUR[0], values={**known, "gc_pauses": 20, "gc_pause_ms_total": 151.6})
    assert headline.timeline(run) == (
        "20,000 documents/s, 99% answered within 412 ms, the slowest in 900 ms, 20 GC pauses, 152 ms in all"
    )
    failed = made.changed(run, values={"requests_failed": 48, "docs_per_s_mean": None, "gc_pauses": None})
    assert headline.timeline(failed) == "99% over within 412 ms, the slowest in 900 ms, 48 requests failed"
    assert headline.timeline(made.changed(run, values=dict.fromkeys([*known, "gc_pauses"]))) == "One run over time"


@pytest.mark.parametrize(("ratio", "said"), [(1.0999, False), (1.1, True), (9.94, "9.9x"), (10, "10x")])
def test_the_headline_compares_what_differs_by_a_tenth(ratio: float, said: str | bool) -> None:
    sizes = {"ethernet": 1000.0, "loopback": 1000.0 * ratio}
    runs = [made.changed(made.summary({"network": name}), values={"read_bytes_mean": sizes[name]}) for name in sizes]
    found = headline.reads(runs)
    assert (" on ethernet, " in found and " on loopback: " in found) is bool(said)
    if isinstance(said, str):
        assert found.endswith(said)


def test_a_run_with_failed_requests_shows_the_acknowledged_ones_too_and_says_how_many_failed() -> None:
    whole = made.changed(made.with_series(FOUR[0]), values={"response_ms_p99": 412.0, "response_ms_max": 900.0})
    some = made.changed(whole, values={"requests_failed": 48})
    with figures() as saved:
        plots_time.timeline(whole)
        plots_time.timeline(some)
    assert "99% answered within 412 ms, the slowest in 900 ms" in headline.timeline(whole)
    assert "99% over within 412 ms, the slowest in 900 ms, 48 requests failed" in headline.timeline(some)
    assert "max of ok" not in words(saved[0])
    assert "max of ok" in words(saved[1])


def test_the_headline_of_allocations_is_for_each_gb_taken() -> None:
    assert headline.allocation(FOUR).startswith("Allocated outside TLABs by the network, for each GB taken: 1.0")
    assert "on loopback" in headline.allocation(FOUR)


def test_the_headline_of_what_is_0_in_every_cell_says_so() -> None:
    none = [made.changed(run, values={"outside_tlab_network_bytes": 0}) for run in FOUR]
    assert headline.allocation(none) == "Allocated outside TLABs by the network, for each GB taken: 0 GB"
    one = [*none[:2], made.changed(FOUR[2], values={"outside_tlab_network_bytes": 7e9}), *none[3:]]
    assert headline.allocation(one).endswith("for each GB taken: 0 GB to 1 GB")
    still = [made.changed(run, values={"docs_per_s_p10": 0.0}) for run in FOUR]
    assert headline.machine(still) == "Documents/s in all but the worst tenth of seconds: 0"


def test_a_run_without_series_has_no_picture_over_time() -> None:
    assert plots_time.timeline(FOUR[0]) is None


def test_conditions_break_between_their_parts_without_a_dot_at_either_end() -> None:
    lines = separated([f"part {number}" for number in range(30)], 100).splitlines()
    assert len(lines) > 1
    assert all(line.startswith("part") and line[-1].isdigit() and len(line) <= 100 for line in lines)
    assert separated([]) == ""


def test_a_matplotlibrc_of_the_current_folder_changes_no_picture() -> None:
    def picture() -> bytes:
        with plots_style.style():
            made_now = plots_style.figure()
            made_now.text(0.5, 0.5, "a text")
            return plots_style.saved(made_now)

    plain = picture()
    with rc_context({"text.usetex": True, "savefig.facecolor": "red", "font.size": 40}):
        assert picture() == plain


@pytest.mark.parametrize("letter", ["x", "0", "W", "a ", "\\n"])
def test_a_level_of_200_characters_stands_in_the_pictures_without_its_middle(letter: str) -> None:
    columns = {"outside_tlab_network_bytes": 5e9, "outside_tlab_total_bytes": 5e9}
    runs = [
        made.changed(run, levels={**run.levels, "heap": letter * 200 + run.levels["network"]}, values=columns)
        for run in FOUR
    ]
    with figures() as drawn:
        plots.overview(runs)
        plots_layers.layers(runs)
    # The title, the largest text, may name a cell too.
    written = [text for text in texts(drawn[0]) if "…" in text.get_text()]
    labels = [text.get_text() for text in written if float(text.get_fontsize()) < plots_style.TITLE_SIZE]
    assert len(labels) == len({run.cell for run in runs})
    # Both ends are there: what differs at the end can be told apart.
    assert len({label[-8:] for label in labels}) > 1


def test_a_short_label_is_drawn_as_it_is() -> None:
    with plots_style.style():
        drawn = plots_style.figure()
        assert plots_style.fitted(drawn, "ethernet · 512KiB", 17, 4.0) == "ethernet · 512KiB"
        long = plots_style.fitted(drawn, "a" * 100 + "z" * 100, 17, 4.0)
        assert long[0] == "a"
        assert long[-1] == "z"
        assert plots_style.text_width_in(drawn, long, 17) <= 4.0


@pytest.mark.parametrize("started", [0, -(2**62), 2**62, made.START_NS - 10**18])
def test_a_fault_from_another_time_than_its_load_does_not_keep_a_picture_from_being_drawn(started: int) -> None:
    run = made.with_series(made.experiment(replicates=1, network=["ethernet"])[0])
    ends = (None, 0, 2**62, made.START_NS + 10**9)
    faults = tuple(Happened(kind="pause", started=started, ended=ended) for ended in ends)
    assert plots_time.timeline(made.changed(run, faults=faults))


@pytest.mark.parametrize("name", ["gc_pause_ms", "large_allocation_bytes"])
def test_what_was_before_the_load_does_not_scale_a_panel(name: str) -> None:
    run = made.with_series(FOUR[0])
    moments = (made.START_NS - 20 * 10**9, made.START_NS + 10**9, made.START_NS + 2 * 10**9)
    line = Series(name, moments, (900.0, 10.0, 40.0))
    with figures() as drawn:
        plots_time.timeline(made.changed(run, series={"docs_per_s": run.series["docs_per_s"], name: line}))
        plots_time.timeline(made.changed(run, series={"docs_per_s": run.series["docs_per_s"], name: only_first(line)}))
    assert 40 <= drawn[0].axes[1].get_ylim()[1] < 50
    assert len(drawn[1].axes) == 2


def only_first(line: Series) -> Series:
    return Series(line.name, line.at_ns[:1], line.values[:1])


def stall(begin_s: float, end_s: float, cause: str = "") -> Stall:
    begin_ns, end_ns = (made.START_NS + round(at * 10**9) for at in (begin_s, end_s))
    causes = (Cause(cause=cause, lasted_ns=end_ns - begin_ns),) if cause else ()
    unexplained_ns = 0 if cause else end_ns - begin_ns
    return Stall(
        start_ns=begin_ns,
        end_ns=end_ns,
        requests=1,
        at_once=1,
        longest_ns=end_ns - begin_ns,
        causes=causes,
        unexplained_ns=unexplained_ns,
        ruled_out=(),
    )


def test_stalls_are_hatched_and_named_where_their_name_has_room() -> None:
    run = made.with_series(made.experiment(replicates=1, network=["ethernet"])[0])
    end_s = ((run.measure_end_ns or 0) - made.START_NS) / 10**9
    stalls = (
        stall(5, 6, "Lucene flushed a segment"),
        stall(7, 9, "garbage collection"),
        stall(20, 24, "Lucene flushed a segment"),
        stall(end_s - 0.5, end_s),
    )
    with figures() as drawn:
        plots_time.timeline(made.changed(run, stalls=stalls))
    first, *others = (axes for axes in drawn[0].axes if axes.get_xlim()[1] > 1)
    for axes in (first, *others):
        hatched = [patch for patch in axes.patches if patch.get_hatch()]
        assert [round(patch.get_extents().width) for patch in hatched].count(0) == 0
        assert len(hatched) == len(stalls)
    named = {text.get_text(): text for text in first.texts if isinstance(text, Annotation)}
    # The longest of its cause; the last one is too near to the end.
    assert named["Lucene flushed a segment"].xy[0] == 20
    assert named["garbage collection"].xy[0] == 7
    assert "unexplained" not in named
    assert all(text.get_window_extent().x1 <= first.bbox.x1 for text in first.texts)


def with_large(run: Summary, largest: int, faults: int) -> Summary:
    """The run with large allocations in each second, and flushes."""
    run = made.with_series(run)
    moments = [made.START_NS + second * 10**9 for second in range(1, 50, 3)]
    sizes = [float(largest if number % 2 else 2 << 20) for number in range(len(moments))]
    line = Series("large_allocation_bytes", tuple(moments), tuple(sizes))
    happened = tuple(
        Happened(kind="flush", started=made.START_NS + number * 10**10, ended=made.START_NS + number * 10**10 + 10**8)
        for number in range(faults)
    )
    values = {"largest_allocation_bytes": largest, "heap_bytes": 2 << 30}
    return made.changed(run, series={**run.series, line.name: line}, faults=happened, values=values)


def test_large_allocations_stand_beside_the_heap_of_the_same_run() -> None:
    runs = made.experiment(replicates=1, network=["loopback", "ethernet"])
    assert plots_large.large(runs) is None
    small, huge = with_large(runs[0], 8 << 20, 5), with_large(runs[1], 256 << 20, 5)
    with figures() as drawn:
        assert plots_large.large([small, huge]) is not None
    said = [text.get_text() for text in texts(drawn[0])]
    assert any(text.startswith("The largest object: 8") for text in said)
    assert "— flush" in said
    assert said.count("256 MiB") == 2


def test_the_lines_of_faults_beside_large_allocations_are_named_whichever_cell_has_them() -> None:
    runs = made.experiment(replicates=1, network=["loopback", "ethernet"])
    kinds = ("compact_memory", "memory_pressure", "partition", "flush")
    faults = tuple(
        Happened(kind=kind, started=made.START_NS + number * 10**10, ended=None) for number, kind in enumerate(kinds)
    )
    with figures() as drawn:
        plots_large.large(
            [with_large(runs[0], 8 << 20, 0), made.changed(with_large(runs[1], 8 << 20, 0), faults=faults)]
        )
    assert all(f"— {kind}" in words(drawn[0]) for kind in kinds)
    assert_readable(drawn[0])


def test_a_large_allocation_before_the_measurement_does_not_scale_those_within() -> None:
    run = with_large(FOUR[0], 8 << 20, 0)
    line = run.series["large_allocation_bytes"]
    line = Series(line.name, (made.START_NS - 10**9, *line.at_ns), (float(64 << 30), *line.values))
    with figures() as drawn:
        plots_large.large([made.changed(run, series={**run.series, line.name: line})])
    assert drawn[0].axes[1].get_ylim()[1] < 1 << 30


def test_a_run_without_any_large_allocation_is_drawn_and_says_so() -> None:
    (run,) = made.experiment(replicates=1, network=["loopback"])
    empty = made.changed(
        made.with_series(run), series={"large_allocation_bytes": Series("large_allocation_bytes", (), ())}
    )
    with figures() as drawn:
        assert plots_large.large([empty]) is not None
    assert "none of 1 MiB or more" in [text.get_text() for text in texts(drawn[0])]


def test_a_fault_that_happens_again_and_again_is_named_once() -> None:
    (run,) = made.experiment(replicates=1, network=["loopback"])
    with figures() as drawn:
        assert plots_time.timeline(with_large(run, 8 << 20, 5)) is not None
    assert [text.get_text() for text in texts(drawn[0])].count("flush") == 1
