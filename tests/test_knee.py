"""The table and the picture of a search."""

from __future__ import annotations

import pytest
from test_plots import assert_readable, figures, texts, words

from ingest_bench.analysis.search import goals
from ingest_bench.analysis.search.knees import Knee
from ingest_bench.analysis.search.next_step import Found, Outcome, Tried
from ingest_bench.model.results import Summary
from ingest_bench.report.plots import plots_knee
from ingest_bench.report.tables import knee_table

GOAL = goals.parse("p99 < 500ms, errors < 0.1%")


def step(per_s: float | None, p99_ms: float, outcome: Outcome) -> tuple[Tried, Summary]:
    summary = Summary(
        run=f"only/{per_s}",
        cell="only",
        replicate=1,
        levels={},
        state="measured",
        reason="",
        values={"requests": 1000, "requests_failed": 5, "response_ms_p99": p99_ms, "docs_per_s_mean": 12_345.6},
    )
    return Tried(
        step="estimate" if per_s is None else "ramp",
        per_s=per_s,
        outcome=outcome,
        why="p99 812ms",
        reached_per_s=per_s or 1000,
    ), summary


def searched(cell: str, beyond: Outcome = "missed", *, at: float = 710) -> Knee:
    steps = (step(None, 30, "met"), step(500, 40, "met"), step(1000, 812, beyond), step(at, 95, "met"))
    return Knee(cell=cell, goal=GOAL, steps=steps, found=Found(at, steps[2][0], f"{at:g} requests/s meets the goal"))


def test_the_names_of_eight_cells_stay_on_the_page_of_the_picture() -> None:
    with figures() as drawn:
        plots_knee.knee([searched(f"ethernet · receive predictor {cell} KiB · heap {cell}g") for cell in range(8)])
    assert words(drawn[0]).count("— ethernet") == 8
    assert_readable(drawn[0])


def test_the_numbers_of_many_knees_lie_neither_on_the_line_of_the_goal_nor_on_one_another() -> None:
    rates = [2, 700, 710, 720, 730, 740, 999, 1000]
    with figures() as drawn:
        plots_knee.knee([searched(f"cell {at}", at=at) for at in rates])
    (figure,) = drawn
    assert_readable(figure)
    (panel,) = figure.axes
    boxes = [text.get_window_extent() for text in texts(figure) if text.get_text().startswith("knee ")]
    assert len(boxes) == len(rates)
    assert all(box.y0 >= panel.bbox.y1 for box in boxes)
    # What became of each cell stands beneath, and the panel is no lower for it.
    assert all(f"cell {at}: {at} requests/s meets the goal" in words(figure) for at in rates)
    assert panel.bbox.height / figure.dpi > 3


def test_every_step_is_a_row_in_the_order_in_which_it_was_decided() -> None:
    head, first, *rest = knee_table.rows([searched("ethernet")])
    assert head[2] == "requests/s"
    assert first == ["ethernet", "estimate", "closed", "1,000", "12,346", "30", "0.50%", ""]
    assert [row[2] for row in rest] == ["500", "1,000", "710"]
    assert [row[-1] for row in rest] == ["met", "missed", "met"]


def test_the_steps_as_numbers_and_the_result_of_each_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots_knee, "knee", lambda _: b"drawn")
    files = knee_table.files([searched("ethernet"), searched("")])
    assert files["report/knee.png"] == b"drawn"
    assert files["report/steps.csv"].decode().splitlines()[:4] == [
        "cell,run,step,requests_per_s,outcome,why,reached_per_s,response_ms_p99",
        "ethernet,only/None,estimate,,met,p99 812ms,1000,30",
        "ethernet,only/500,ramp,500,met,p99 812ms,500,40",
        "ethernet,only/1000,ramp,1000,missed,p99 812ms,1000,812",
    ]
    *table, _, first, _, second = files["report/knee.md"].decode().splitlines()
    assert len(table) == 2 + 8
    assert table[1].count("---:") == table[1].count("---") - 2
    assert (first, second) == ("ethernet: 710 requests/s meets the goal", "710 requests/s meets the goal")


def test_a_search_leaves_a_table_and_a_picture_of_every_cell() -> None:
    files = knee_table.files([searched("ethernet"), searched("wan-50ms", "generator")])
    assert set(files) == {"report/knee.png", "report/knee.md", "report/steps.csv"}
    assert files["report/knee.png"].startswith(b"\x89PNG")
    assert b"wan-50ms: 710 requests/s meets the goal" in files["report/knee.md"]
    assert len(files["report/steps.csv"].splitlines()) == 9


def test_where_nothing_was_searched_there_is_no_file() -> None:
    assert knee_table.files([]) == {}


@pytest.mark.parametrize("goal", ["errors < 1%", "service p99 < 1s"])
def test_a_search_without_a_number_still_has_its_picture(goal: str) -> None:
    empty = Knee(cell="", goal=goals.parse(goal), steps=(), found=Found(None, None, "not finished"))
    assert knee_table.files([empty])["report/knee.png"].startswith(b"\x89PNG")
