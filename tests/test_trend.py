"""A history of results: when something changed, by how much, and which facts changed with it."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import example_runs
import example_summaries as made
import numpy as np
import pytest
from test_page import Tags
from test_plots import figures, texts

from ingest_bench.analysis.compare import comparison, trend
from ingest_bench.analysis.compare.changes import Results
from ingest_bench.analysis.compare.trend import DatedResult, Trend
from ingest_bench.cli import app
from ingest_bench.inputs.escaping import escape_line
from ingest_bench.model.results import SCHEMAS, Summary
from ingest_bench.report import change_tables, page, plot_history, summary_files

FACTS = {"cpu": "A", "kernel": "6.1", "ingest_bench": "1"}
HOSTILE = '<script>alert(1)</script>"\x1b[31m$x$'
FIRST = datetime(2026, 9, 1, 2, tzinfo=UTC)


def day(number: int, hour: int = 0) -> str:
    return (FIRST + timedelta(days=number, hours=hour)).strftime("%Y-%m-%dT%H-%M-%SZ")


def runs(docs: float, cell: str = "only", count: int = 3, **values: Any) -> list[Summary]:
    """Return runs of one cell whose rates differ by 1 document/s."""
    return made.replicates("docs_per_s_mean", [docs + number + 1 for number in range(count)], cell=cell, values=values)


def dated(start: str, summaries: Sequence[Summary], experiment: str = "made", **facts: Any) -> DatedResult:
    return DatedResult(start=start, experiment=experiment, results=(Results(summaries=summaries, facts=FACTS | facts),))


def levels(before: int, after: int, step: float = 0.8) -> list[float]:
    random = np.random.default_rng(before)
    return [
        float(20_000 * random.normal(1, 0.02) * (step if place >= before else 1)) for place in range(before + after)
    ]


def trend_of(results: Sequence[DatedResult], *columns: str) -> Trend:
    return trend.find_trend(iter(results), columns or ("docs_per_s_mean",))


def test_change_has_date_size_and_changed_facts() -> None:
    results = [
        dated(day(place), runs(docs), kernel="6.1" if place < 30 else "6.2", load_average=[place])
        for place, docs in enumerate(levels(30, 30))
    ]
    (history,) = trend_of(results).histories
    (change,) = history.changes
    assert history.dates[change.place] == day(30)
    low, high = change.compared.relative_interval or (0, 0)
    assert -0.25 < low < -0.2 < high < -0.15
    assert change.facts == ("kernel was 6.1, is 6.2",)
    assert re.fullmatch(
        rf"1 of 1 histories changed, the newest change: docs_per_s_mean [0-9.]+% slower since {day(30)} \(only\),"
        r" with it: kernel was 6.1, is 6.2",
        change_tables.summarise_trend(trend_of(results)),
    )


def test_facts_that_changed_one_result_earlier_or_later_are_named() -> None:
    targets = ["opensearch 2"] * 31 + ["opensearch 3"] * 29
    results = [
        dated(day(place), runs(docs, target=targets[place]), cpu="A" if place < 29 else "B")
        for place, docs in enumerate(levels(30, 30))
    ]
    (history,) = trend_of(results).histories
    assert history.changes[0].facts == (
        "one result earlier: another machine: cpu was A, is B",
        "one result later: target was opensearch 2, is opensearch 3",
    )


def test_step_in_one_of_many_histories_may_be_chance() -> None:
    random = np.random.default_rng(189)
    # Its p value is 0.015: below 5% of one history, above that of four.
    docs = [20_000 * random.normal(1, 0.02) * (0.96 if place >= 15 else 1) for place in range(30)]

    def changed(cells: int) -> int:
        results = [
            dated(day(place), [run for cell in range(cells) for run in runs(rate, f"cell-{cell}", 1)])
            for place, rate in enumerate(docs)
        ]
        return sum(len(history.changes) for history in trend_of(results).histories)

    assert [changed(cells) for cells in (1, 3, 4)] == [1, 3, 0]


def test_rows_numbers_and_drawing_agree_with_the_history() -> None:
    compared = comparison.Comparison(
        column="reads", first="before", second="after", first_runs=4, second_runs=3, first_mean=10, second_mean=12,
        error=0.1, freedom=5, step_interval=(0.1743, 0.2257),
    )  # fmt: skip
    change = trend.Change(place=4, compared=compared, facts=("kernel was 6.1, is 6.2",))
    history = trend.History(
        experiment="made", cell="only", column="reads", dates=tuple(day(place) for place in range(8)),
        values=(10, 10, 9, 11, 12, 12, 30, 12), line=(10,) * 4 + (12,) * 4, outliers=(6,), changes=(change,),
    )  # fmt: skip
    flat = dataclasses.replace(history, experiment="other", changes=(), values=(5,) * 8, line=(5,) * 8, outliers=())
    of_two = Trend(histories=(flat, history), notes=())
    assert change_tables.trend_rows(of_two)[1:] == [
        ["reads", "made: only", day(4), "10", "12", "+20.0%", "1.17 to 1.23 times", "4, 3", "kernel was 6.1, is 6.2"]
    ]
    later = dataclasses.replace(history, cell="x", changes=(dataclasses.replace(change, place=6, facts=()),))
    assert change_tables.summarise_trend(Trend(histories=(history, flat, later), notes=())) == (
        f"2 of 3 histories changed, the newest change: reads +20.0% since {day(6)} (made: x), "
        "and no fact changed with it"
    )
    assert change_tables.format_history(history, Trend(histories=(history,), notes=())) == "only"
    head, *numbers = change_tables.trend_numbers(of_two)
    assert [row[:6] for row in numbers[8:]] == [
        ["made", "only", "reads", day(place), history.values[place], history.line[place]] for place in range(8)
    ]
    assert [row[6] for row in numbers[8:]] == ["no"] * 6 + ["yes", "no"]
    assert numbers[12][7:] == [0.2, *(pytest.approx(end, abs=1e-4) for end in (0.1743, 0.2257)), change.facts[0]]
    assert all(row[7:] == [""] * 4 for place, row in enumerate(numbers) if place != 12)
    assert len(head) == 11
    assert change_tables.order_histories(of_two) == [history, flat]


def test_results_of_one_day_with_equal_facts_are_merged() -> None:
    results = [dated(day(place), runs(docs)) for place, docs in enumerate(levels(6, 0))]
    again = [dated(day(place, 2), runs(1.0, count=1)) for place in range(6)]
    (history,) = trend_of([*again, *results]).histories
    assert history.dates == tuple(day(place) for place in range(6))
    # The median of three runs and one far below them.
    assert history.values[0] == pytest.approx(levels(6, 0)[0] + 1.5)
    other = [dated(day(place, 2), runs(1.0, count=1), kernel="6.2") for place in range(6)]
    (history,) = trend_of([*other, *results]).histories
    assert len(history.dates) == 12


def test_gaps_late_cells_and_other_experiments_are_kept_apart() -> None:
    docs = levels(20, 0)
    results = []
    for place, rate in enumerate(docs):
        rows = runs(rate)
        if place == 7:
            rows = [made.changed(row, state="invalid", reason="the generator was the limit") for row in rows]
        if place >= 15:
            rows += runs(rate, "late")
        results += [dated(day(place), rows), dated(day(place, 1), runs(place + 1.0), "other")]
    over_time = trend_of(results)
    invalid = "only/1 is invalid: the generator was the limit"
    assert [(item.experiment, item.cell, len(item.values)) for item in over_time.histories] == [
        ("made", "only", 19),
        ("other", "only", 20),
    ]
    assert over_time.notes == (
        "late: docs_per_s_mean: 5 results; at least 6 are required",
        f"only: no number in 1 of 20 results, the last of them {day(7)}: {invalid}",
    )
    gone = trend_of([dated(day(place), runs(1.0, cell)) for place, cell in enumerate(["only"] * 6 + ["x"])])
    assert gone.notes[-1] == f"only: no number in 1 of 7 results, the last of them {day(6)}: it has no such cell"
    # Another workload of the same name is another history.
    results = [dated(day(place), runs(1.0 + place % 2, workload="a" if place < 6 else "b")) for place in range(12)]
    over_time = trend_of(results)
    assert [len(item.values) for item in over_time.histories] == [6, 6]
    assert over_time.notes[0].endswith("was not measured, or workload or network differ")


def counted(counts: Sequence[Sequence[int]]) -> list[DatedResult]:
    """Return results whose runs have these numbers of pauses, each of one GB."""
    results = []
    for place, of_runs in enumerate(counts):
        rows = runs(1.0, count=len(of_runs))
        named = [{"gc_pauses": count, "gc_pauses_per_gb": float(count)} for count in of_runs]
        made_rows = [made.changed(row, values=values) for row, values in zip(rows, named, strict=True)]
        results.append(dated(day(place), made_rows))
    return results


def test_10_and_11_pauses_are_not_a_step() -> None:
    # 10 and 11 are the most usual counts of one rate.
    for replicates in (1, 3):
        (history,) = trend_of(counted([[10 + (place >= 5)] * replicates for place in range(10)]), "gc_pauses").histories
        assert history.column == "gc_pauses_per_gb"
        assert history.changes == ()
    (history,) = trend_of(counted([[10 + 40 * (place >= 5)] for place in range(10)]), "gc_pauses").histories
    assert [change.place for change in history.changes] == [5]


def test_page_and_picture_show_every_history_and_escape_names() -> None:
    results = [
        dated(
            day(place),
            [*runs(docs, escape_line(HOSTILE)), *runs(levels(40, 0)[place], "calm")],
            kernel=f"{HOSTILE}{place // 20}",
        )
        for place, docs in enumerate(levels(20, 20))
    ]
    over_time = trend_of(results, "docs_per_s_mean", "gc_pauses")
    pictures = plot_history.draw_all(over_time)
    text = page.render_trend(HOSTILE, over_time, [HOSTILE], pictures)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert "<script" not in text
    assert text.count("<img") == len(pictures) == 1
    assert pictures[0].startswith(b"<?xml")
    many = dataclasses.replace(over_time, histories=over_time.histories * 4)
    assert len(plot_history.draw_all(many)) == 2
    assert "\\x1b" in over_time.histories[0].changes[0].facts[0]
    assert plot_history.draw_trend(over_time).startswith(b"\x89PNG")
    assert plot_history.draw_trend(Trend(histories=(), notes=())).startswith(b"\x89PNG")


@pytest.mark.parametrize("size", [1.2e-4, 4.2e8, 3e13])
def test_numbers_of_any_size_fit_next_to_their_axis(size: float) -> None:
    column = "heap_after_gc_max_bytes"
    results = [
        dated(day(place), [made.changed(run, values={column: docs / 20_000 * size}) for run in runs(docs)])
        for place, docs in enumerate(levels(20, 20))
    ]
    over_time = trend_of(results, column)
    with figures() as drawn:
        plot_history.draw_trend(over_time)
    assert [text.get_text() for text in texts(drawn[0]) if text.get_window_extent().x0 < 0] == []


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., None]:
    """Return a function that writes a results folder."""

    def write(name: str, docs: float, java: str = "17.0.9") -> None:
        results = example_runs.write_results(
            tmp_path, "replicates = 2\n", server={"java": java}, started_utc="2026-09-01T02:00:00+00:00"
        )
        rows = made.replicates("docs_per_s_mean", [docs, docs], cell="only", levels={}, experiment="x")
        results.write_files({"summary.csv": summary_files.format_summary_csv(rows).encode()})
        place = tmp_path / "nights" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        results.path.rename(place)

    return write


def test_command_reads_folders_and_exits_like_compare(
    tmp_path: Path, written: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "nights"
    for place, docs in enumerate(levels(6, 6)[:5]):
        written(f"{day(place)}/x/{day(place)}", docs)
    assert app.run(["trend", str(results), "--column", "docs_per_s_mean"]) == 3
    assert "5 results; at least 6 are required" in capsys.readouterr().out
    for place, docs in list(enumerate(levels(6, 6)))[5:]:
        written(f"{day(place)}/x/{day(place)}", docs, java="17.0.9" if place < 6 else "25.0.2")
    table, shown, picture = (tmp_path / "new" / f"t.{end}" for end in ("csv", "html", "png"))
    files = ["--csv", str(table), "--html", str(shown), "--png", str(picture)]
    assert app.run(["trend", str(results), "--column", "docs_per_s_mean", *files]) == 0
    output = capsys.readouterr().out
    assert re.search(
        rf"1 of 1 histories changed, the newest change: docs_per_s_mean [0-9.]+% slower since {day(6)}", output
    )
    assert "with it: java was 17.0.9, is 25.0.2" in output
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["result"] for row in rows if row["change"]] == [day(6)]
    assert len(rows) == 12
    assert day(6) in shown.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert app.run(["trend", str(results), "--column", "docs_per_s"]) == 2
    assert 'unknown column "docs_per_s"; did you mean' in capsys.readouterr().err


def test_unreadable_results_are_left_out_with_their_reasons(
    tmp_path: Path, written: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "nights"
    (results / "notes").mkdir(parents=True)
    assert app.run(["trend", str(results)]) == 2
    assert "no folder with a plan.json is in it" in capsys.readouterr().err
    assert app.run(["trend", str(results / "gone")]) == 2
    assert "gone: does not exist" in capsys.readouterr().err
    for place, docs in enumerate(levels(8, 0)):
        written(day(place), docs)
    (results / "latest").symlink_to(results / day(7))
    newer, damaged, unfinished = (results / day(place) for place in (0, 1, 2))
    record = next(newer.rglob("run.json"))
    record.write_text(json.dumps(json.loads(record.read_text()) | {"schema": SCHEMAS["run.json"] + 1}))
    (damaged / "plan.json").write_text("{")
    (unfinished / "summary.csv").unlink()
    # A folder renamed by the user: its first run has the date.
    (results / day(3)).rename(results / "renamed")
    assert app.run(["trend", str(results), "--column", "docs_per_s_mean"]) == 3
    output = capsys.readouterr().out
    assert (
        f"a newer ingest-bench wrote it (schema {SCHEMAS['run.json'] + 1}, this one reads {SCHEMAS['run.json']})"
        in output
    )
    assert "this file is damaged" in output
    assert "no results found (no summary.csv)" in output
    assert "5 results; at least 6 are required" in output
