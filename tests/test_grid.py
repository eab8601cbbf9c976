"""The matrix: when there is one, what its cells say, which are marked, and its place on the page."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import example_summaries as made
import pytest
from scipy import stats

from ingest_bench.model.results import Summary
from ingest_bench.report import grid, page, page_charts, reports
from ingest_bench.report.grid import Grid, GridCell

NETWORKS = ("loopback", "ethernet")
FOUR = made.experiment(replicates=3, receive_predictor=["32KiB", "512KiB"], network=NETWORKS)


def with_values(values: Mapping[tuple[str, str], Sequence[float]], column: str = "response_ms_p99") -> list[Summary]:
    """Return runs with these values of the headline, by heap and network; one run for each value."""
    return [
        dataclasses.replace(
            made.changed(made.summary({"heap": heap, "network": network}, number), values={column: value}),
            headline=column,
        )
        for (heap, network), numbers in values.items()
        for number, value in enumerate(numbers, 1)
    ]


def build(runs: Sequence[Summary]) -> Grid:
    built = grid.build_grid(runs)
    assert built is not None
    return built


def cell(built: Grid, panel: int, row: int) -> GridCell:
    return built.groups[0][1][panel].cells[row]


def all_cells(built: Grid) -> list[GridCell]:
    return [cell for _, panels in built.groups for panel in panels for cell in panel.cells]


def test_network_divides_panels_and_a_third_factor_divides_groups() -> None:
    runs = made.experiment(replicates=1, users=["4", "64"], network=NETWORKS, heap=["1g", "2g", "4g"])
    built = build(runs)
    assert built.labels == ("4", "64")
    assert [title for title, _ in built.groups] == ["heap 1g", "heap 2g", "heap 4g"]
    assert [panel.title for panel in built.groups[2][1]] == ["network loopback", "network ethernet"]
    # Each cell is at its place.
    for (title, panels), heap in zip(built.groups, ("1g", "2g", "4g"), strict=True):
        for panel, network in zip(panels, NETWORKS, strict=True):
            levels = [shown.runs.levels for shown in panel.cells if shown.runs]
            assert levels == [{"users": users, "network": network, "heap": heap} for users in ("4", "64")], title


def of_networks(pairs: Sequence[tuple[str, str]]) -> list[Summary]:
    return with_values({pair: [10.0] for pair in pairs})


@pytest.mark.parametrize(
    ("runs", "has_grid"),
    [
        (FOUR, True),
        (FOUR[:6], False),
        ([], False),
        (of_networks([("1g", "loopback"), ("2g", "ethernet")]), False),
        (of_networks([("1g", "loopback"), ("2g", "ethernet"), ("1g", "ethernet")]), True),
        (of_networks([(rate, network) for network in NETWORKS for rate in (f"9/{network}", f"8/{network}")]), False),
        ([made.changed(run, state="failed" if number % 9 else "measured") for number, run in enumerate(FOUR)], True),
        ([made.changed(run, state="failed") for run in FOUR], False),
        ([made.changed(run, levels={**run.levels, "side": "AB"[run.replicate % 2]}) for run in FOUR], False),
    ],
    ids=["grid", "one factor", "nothing", "diagonal", "corner missing", "search", "two results", "no result", "A/A"],
)  # fmt: skip
def test_there_is_a_matrix_only_where_two_factors_cross(runs: list[Summary], has_grid: bool) -> None:
    assert (grid.build_grid(runs) is not None) == has_grid


def test_a_grid_that_no_page_can_hold_is_left_to_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "_MAX_CELLS", 3)
    assert grid.build_grid(FOUR) is None


def test_cell_without_a_number_says_why() -> None:
    def change(run: Summary) -> Summary | None:
        state, levels = "measured", (run.levels["users"], run.levels["network"])
        if levels == ("4", "ethernet"):
            state = "failed" if run.replicate == 1 else "invalid"
        if levels == ("16", "loopback"):
            return made.changed(run, state="oom", values={"out_of_memory": "heap"})
        if levels == ("16", "ethernet"):
            return None
        if levels == ("64", "ethernet") and run.replicate != 2:
            state = "failed"
        return made.changed(run, state=state, reason="x" if state != "measured" else "")

    every = made.experiment(3, users=["4", "16", "64"], network=NETWORKS)
    built = build([run for run in map(change, every) if run is not None])
    assert [(shown.text, shown.value) for shown in built.groups[0][1][1].cells[:2]] == [
        ("failed, invalid", None),
        ("not run", None),
    ]
    assert cell(built, 0, 1).text == "OOM (heap)"
    assert re.fullmatch(r"(\S )?\w* ?[0-9.]+ GB \(1 of 3 runs\)", cell(built, 1, 2).text)
    assert cell(built, 1, 2).interval is None


def test_interval_is_students_and_one_run_has_none() -> None:
    numbers = [10.0, 11.0, 15.0]
    both = {("1g", "loopback"): numbers, ("2g", "loopback"): [40.0, 41.0, 42.0]}
    built = build(with_values(both | {("1g", "ethernet"): [30.0] * 3, ("2g", "ethernet"): [0.0, 0.0, 3.0]}))
    low, high = stats.t.interval(0.95, 2, loc=12, scale=stats.sem(numbers))
    assert cell(built, 0, 0).value == 11
    assert cell(built, 0, 0).interval == pytest.approx((low, high))
    # A time is never negative.
    assert (cell(built, 1, 1).interval or (1, 1))[0] == 0
    single = build(with_values({pair: values[:1] for pair, values in both.items()} | {("1g", "ethernet"): [30.0]}))
    assert {shown.interval for shown in all_cells(single)} == {None}
    assert single.notes[0] == "1 run per cell: no interval, no verdict."


@pytest.mark.parametrize(
    ("column", "least", "most"),
    [
        ("response_ms_p99", "★ best", "✕ worst"),
        ("docs_per_s_mean", "✕ worst", "★ best"),
        ("read_bytes_mean", "▼ lowest", "▲ highest"),
    ],
)
def test_best_and_worst_follow_the_measure(column: str, least: str, most: str) -> None:
    values = {("1g", "loopback"): [100.0], ("1g", "ethernet"): [200.0], ("2g", "ethernet"): [300.0]}
    built = build(with_values(values, column))
    texts = [shown.text for shown in all_cells(built)]
    assert [text.startswith(least) for text in texts] == [True, False, False, False]
    assert [text.startswith(most) for text in texts] == [False, False, False, True]
    assert {shown.mark for shown in all_cells(built)} == {"", *(text[2:] for text in (least, most))}


@pytest.mark.parametrize(
    ("corner", "marks", "note"),
    [
        ([300.0, 310.0, 320.0], ["best", "worst"], ""),
        ([100.0, 300.0, 500.0], [], "The intervals of the extremes overlap: none is marked."),
        ([105.0, 106.0, 107.0], [], ""),
    ],
    ids=["distinct", "noisy", "less than a tenth"],
)
def test_extremes_that_noise_may_have_chosen_are_not_marked(corner: list[float], marks: list[str], note: str) -> None:
    steady = [99.0, 100.0, 101.0]
    values = {("1g", "loopback"): [98.0, 99.0, 100.0], ("1g", "ethernet"): steady, ("2g", "loopback"): steady}
    built = build(with_values({**values, ("2g", "ethernet"): corner}))
    assert [shown.mark for shown in all_cells(built) if shown.mark] == marks
    assert (note in built.notes) == bool(note)


def test_of_equal_cells_none_is_the_best() -> None:
    values = {
        ("1g", "loopback"): [0.0],
        ("1g", "ethernet"): [0.0],
        ("2g", "loopback"): [7.0],
        ("2g", "ethernet"): [3.0],
    }
    built = build(with_values(values, "lost_documents"))
    assert [shown.mark for shown in all_cells(built)] == ["", "worst", "", ""]


def test_wide_range_is_logarithmic_and_a_long_interval_ends_in_an_arrow() -> None:
    values = {
        ("1g", "loopback"): [1.0, 1.1, 1.2],
        ("1g", "ethernet"): [5.0] * 3,
        ("2g", "loopback"): [10.0, 40.0, 400.0],
    }
    built = build(with_values({**values, ("2g", "ethernet"): [20.0] * 3}))
    assert built.is_logarithmic
    noisy = cell(built, 0, 1)
    assert noisy.value == 40
    assert [built.is_beyond(end) for end in noisy.interval or ()] == [True, True]
    assert [built.place(end) for end in noisy.interval or ()] == list(built.limits)
    assert built.limits[0] < built.place(1.1) < built.place(5) < built.place(40) < built.limits[1]
    linear = build(with_values({pair: [10.0 + len(pair[0]), 12.0, 14.0] for pair in values}))
    assert (linear.is_logarithmic, linear.limits[0], linear.place(6.0)) == (False, 0.0, 6.0)


def test_page_leads_with_the_matrix_and_draws_nothing_twice() -> None:
    files = {f"report/{name}.png": b"x" for name in ("layers", "matrix", "reads")}
    text, one_factor = (reports.build_page(runs, files, {})["report/index.html"].decode() for runs in (FOUR, FOUR[:6]))
    assert "<h2>Each GB ingested makes the server allocate …, by receive predictor and network</h2>" in text
    assert text.count('<div class="matrix">') == 1
    # It is before the first table and before all pictures, and its PNG is attached and not shown.
    places = [text.index(part) for part in ('<div class="matrix">', "<table", "<img ")]
    assert places == sorted(places)
    assert re.findall('<img [^>]*alt="([^"]*)"', text) == ["allocations outside TLABs by layer"]
    assert text.count('download="matrix.png"') == 1
    (shown,) = re.findall('aria-label="(network ethernet: [^"]*)"', text)
    assert re.fullmatch("network ethernet: 32KiB [0-9.]+ GB, 512KiB [0-9.]+ GB", shown)
    assert '<div class="matrix">' not in one_factor


def test_label_and_number_of_a_row_fit_one_line() -> None:
    long = [
        made.changed(run, levels={**run.levels, "receive_predictor": run.levels["receive_predictor"] * 9})
        for run in FOUR
    ]
    text = page_charts.draw_matrix(build([made.changed(long[0], state="failed", reason="x"), *long[1:]]))
    rows = re.findall("<text x[^>]*>([^<]*)</text>\n?<text class[^>]*>([^<]*)</text>", text)
    assert any("(2 of 3 runs)" in number for _, number in rows)
    assert {len(label) + len(number) for label, number in rows} == {38}


def test_names_in_the_matrix_of_a_page_are_escaped() -> None:
    hostile = '<b class="x">&'
    rename: Callable[[Summary], Summary] = lambda run: made.changed(  # noqa: E731
        run, levels={**run.levels, "receive_predictor": run.levels["receive_predictor"].replace("32KiB", hostile)}
    )
    text = page.render_results([rename(run) for run in FOUR], {})
    assert hostile not in text
    assert "&lt;b class=&quot;x&quot;&gt;&amp;" in text.partition('<div class="matrix">')[2]
