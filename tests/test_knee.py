"""Table and plot of a search."""

from __future__ import annotations

import example_summaries as made
import pytest
from matplotlib.text import Text
from test_plots import assert_readable, figures, texts, words

from ingest_bench.analysis import search
from ingest_bench.analysis.search import JudgedStep, Knee, Outcome, SearchResult
from ingest_bench.model.results import Summary
from ingest_bench.report import plot_search, search_table

GOAL = search.parse_goal("p99 < 500ms, errors < 0.1%")


def step(per_s: float | None, p99_ms: float, outcome: Outcome) -> tuple[JudgedStep, Summary]:
    values = {"requests": 1000, "requests_failed": 5, "response_ms_p99": p99_ms, "docs_per_s_mean": 12_345.6}
    summary = made.summary({}, run=f"only/{per_s}", values=values)
    return JudgedStep(
        step="estimate" if per_s is None else "ramp",
        per_s=per_s,
        outcome=outcome,
        reason="p99 812ms",
        reached_per_s=per_s or 1000,
    ), summary


def searched(cell: str, beyond: Outcome = "missed", *, at: float = 710) -> Knee:
    steps = (step(None, 30, "met"), step(500, 40, "met"), step(1000, 812, beyond), step(at, 95, "met"))
    return Knee(
        cell=cell, goal=GOAL, steps=steps, result=SearchResult(at, steps[2][0], f"{at:g} requests/s meets the goal")
    )


def test_names_and_labels_of_many_knees_do_not_overlap() -> None:
    rates = [2, 700, 710, 720, 730, 740, 999, 1000]
    names = [f"ethernet · receive predictor {at} KiB · heap 1g" for at in rates]
    with figures() as drawn:
        plot_search.draw_knee([searched(name, at=at) for name, at in zip(names, rates, strict=True)])
    (figure,) = drawn
    assert len(figure.legends[0].get_texts()) == len(rates)
    assert_readable(figure)
    (panel,) = figure.axes
    boxes = [Text.get_window_extent(text) for text in texts(figure) if text.get_text().startswith("knee ")]
    assert len(boxes) == len(rates)
    assert all(box.y0 >= panel.bbox.y1 for box in boxes)
    # The results of the cells are below, and do not shrink the panel.
    assert all(f"{name}: {at} requests/s meets" in words(figure) for name, at in zip(names, rates, strict=True))
    assert panel.bbox.height / figure.dpi > 3


def test_steps_are_rows_in_the_order_of_decision() -> None:
    head, first, *others = search_table.step_rows([searched("ethernet")])
    assert head[2] == "requests/s"
    assert first == ["ethernet", "estimate", "closed", "1,000", "12,346", "30", "0.50%", ""]
    assert [row[2] for row in others] == ["500", "1,000", "710"]
    assert [row[-1] for row in others] == ["met", "missed", "met"]


def test_knee_table_has_steps_and_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot_search, "draw_knee", lambda _: b"drawn")
    assert search_table.search_files([]) == {}
    files = search_table.search_files([searched("ethernet"), searched("")])
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


@pytest.mark.parametrize("goal", ["errors < 1%", "service p99 < 1s"])
def test_search_without_numbers_has_a_plot(goal: str) -> None:
    empty = Knee(cell="", goal=search.parse_goal(goal), steps=(), result=SearchResult(None, None, "not finished"))
    assert search_table.search_files([empty])["report/knee.png"].startswith(b"\x89PNG")
