"""Many nights: results folders in, the night, the size and the facts of what changed out."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import made_summaries as made
import numpy as np
import pytest
from test_page import Tags
from test_plots import figures, texts

from ingest_bench.analysis.compare import comparison, trend
from ingest_bench.analysis.compare.comparable import Results
from ingest_bench.analysis.compare.trend import Night, Trend
from ingest_bench.cli import app
from ingest_bench.experiment import order, spec
from ingest_bench.inputs.visible import one_line
from ingest_bench.model.results import Summary
from ingest_bench.model.schemas import SCHEMAS
from ingest_bench.report.page import page
from ingest_bench.report.plots import plots_trend
from ingest_bench.report.tables import trend_table as told

FACTS = {"cpu": "A", "kernel": "6.1", "ingest_bench": "1"}
HOSTILE = '<script>alert(1)</script>"\x1b[31m$x$'
FIRST = datetime(2026, 9, 1, 2, tzinfo=UTC)


def day(number: int, hour: int = 0) -> str:
    return (FIRST + timedelta(days=number, hours=hour)).strftime("%Y-%m-%dT%H-%M-%SZ")


ONE = made.summary({"network": "ethernet"}, 1)


def runs(docs: float, cell: str = "only", count: int = 3, **values: Any) -> list[Summary]:
    """Runs of one cell, a document a second apart."""
    return [
        dataclasses.replace(
            made.changed(ONE, values={"docs_per_s_mean": docs + number, **values}),
            run=f"{cell}/{number}",
            cell=cell,
            replicate=number,
        )
        for number in range(1, count + 1)
    ]


def night(start: str, found: Sequence[Summary], experiment: str = "made", **facts: Any) -> Night:
    return Night(start=start, experiment=experiment, results=(Results(summaries=found, facts=FACTS | facts),))


def levels(before: int, after: int, step: float = 0.8) -> list[float]:
    random = np.random.default_rng(before)
    return [
        float(20_000 * random.normal(1, 0.02) * (step if place >= before else 1)) for place in range(before + after)
    ]


def seen(nights: Sequence[Night], *columns: str) -> Trend:
    return trend.trend(iter(nights), columns or ("docs_per_s_mean",))


def test_a_change_has_its_night_its_size_and_what_changed_with_it() -> None:
    nights = [
        night(day(place), runs(docs), kernel="6.1" if place < 30 else "6.2", load_average=[place])
        for place, docs in enumerate(levels(30, 30))
    ]
    (history,) = seen(nights).histories
    (change,) = history.changes
    assert history.nights[change.place] == day(30)
    low, high = change.compared.relative_interval or (0, 0)
    assert -0.25 < low < -0.2 < high < -0.15
    assert change.facts == ("kernel was 6.1, is 6.2",)
    assert re.fullmatch(
        rf"1 of 1 histories changed, the last time: docs_per_s_mean -[0-9.]+% since {day(30)} \(only\),"
        r" with it: kernel was 6.1, is 6.2",
        told.summed_up(seen(nights)),
    )


def test_what_changed_a_night_before_or_after_is_said_to_be_so_and_the_server_is_a_fact() -> None:
    targets = ["opensearch 2"] * 31 + ["opensearch 3"] * 29
    nights = [
        night(day(place), runs(docs, target=targets[place]), cpu="A" if place < 29 else "B")
        for place, docs in enumerate(levels(30, 30))
    ]
    (history,) = seen(nights).histories
    assert history.changes[0].facts == (
        "one night earlier: another machine: cpu was A, is B",
        "one night later: target was opensearch 2, is opensearch 3",
    )


def test_a_step_that_is_clear_in_one_history_may_be_chance_in_one_of_many() -> None:
    random = np.random.default_rng(189)
    # Its p value is 0.015: below 5% of one history, above that of four.
    docs = [20_000 * random.normal(1, 0.02) * (0.96 if place >= 15 else 1) for place in range(30)]

    def changed(cells: int) -> int:
        nights = [
            night(day(place), [run for cell in range(cells) for run in runs(rate, f"cell-{cell}", 1)])
            for place, rate in enumerate(docs)
        ]
        return sum(len(history.changes) for history in seen(nights).histories)

    assert [changed(cells) for cells in (1, 3, 4)] == [1, 3, 0]


def test_rows_numbers_and_lengths_of_a_drawing_are_those_of_the_nights() -> None:
    compared = comparison.Comparison(
        column="reads", first="before", second="after", first_runs=4, second_runs=3, first_mean=10, second_mean=12,
        paired=False, error=0.1, freedom=5, relative_interval=(0.1743, 0.2257),
    )  # fmt: skip
    change = trend.Change(place=4, compared=compared, facts=("kernel was 6.1, is 6.2",))
    history = trend.History(
        experiment="made", cell="only", column="reads", nights=tuple(day(place) for place in range(8)),
        values=(10, 10, 9, 11, 12, 12, 30, 12), line=(10,) * 4 + (12,) * 4, odd=(6,), changes=(change,),
    )  # fmt: skip
    flat = dataclasses.replace(history, experiment="other", changes=(), values=(5,) * 8, line=(5,) * 8, odd=())
    of_two = Trend(histories=(flat, history), notes=())
    assert told.rows(of_two)[1:] == [
        ["reads", "made: only", day(4), "10", "12", "+20.0%", "+17.4% to +22.6%", "4, 3", "kernel was 6.1, is 6.2"]
    ]
    later = dataclasses.replace(history, cell="x", changes=(dataclasses.replace(change, place=6, facts=()),))
    assert told.summed_up(Trend(histories=(history, flat, later), notes=())) == (
        f"2 of 3 histories changed, the last time: reads +20.0% since {day(6)} (made: x), and no fact changed with it"
    )
    assert told.name(history, Trend(histories=(history,), notes=())) == "only"
    head, *nights = told.values(of_two)
    assert [row[:6] for row in nights[8:]] == [
        ["made", "only", "reads", day(place), history.values[place], history.line[place]] for place in range(8)
    ]
    assert [row[6] for row in nights[8:]] == ["no"] * 6 + ["yes", "no"]
    assert nights[12][7:] == [0.2, *(pytest.approx(end, abs=1e-4) for end in (0.1743, 0.2257)), change.facts[0]]
    assert all(row[7:] == [""] * 4 for place, row in enumerate(nights) if place != 12)
    assert len(head) == 11
    assert told.in_order(of_two) == [history, flat]
    assert told.segments(history) == [(0, 4), (4, 8)]
    assert told.ends(history) == pytest.approx((9 - 1.05, 30 + 1.05))
    assert told.ends(flat) == pytest.approx((4.75, 5.25))
    assert told.ends(dataclasses.replace(flat, values=(0,), line=(0,))) == (-1, 1)
    drawn = told.drawn(of_two)
    places = [float(x) for x in re.findall(r'<circle class="[a-z]+" cx="([0-9.]+)"', drawn)]
    assert places[:8] == places[8:] == pytest.approx(np.linspace(72, 450, 8), abs=0.05)
    heights = [float(y) for y in re.findall(r'<circle [^>]* cy="([0-9.]+)"', drawn)]
    assert heights == pytest.approx(
        [142 - (value - 7.95) / 23.1 * 130 for value in history.values] + [77] * 8, abs=0.06
    )
    assert re.findall(r'"end">([0-9.]+)</text>', drawn) == ["7.95", "19.5", "31.1", "4.75", "5", "5.25"]
    (at,) = re.findall(r'<line class="zero" x1="([0-9.]+)" x2="\1" y1="12" y2="142"/>', drawn)
    assert float(at) == (places[3] + places[4]) / 2
    assert [line.count(",") for line in re.findall(r'<polyline [^>]*points="([^"]*)"', drawn)] == [4, 4, 8]
    assert re.findall('"faint">([^<]*)<', drawn) == [
        f"+20.0% (+17.4% to +22.6%) since {day(4)}; with it: kernel was 6.1, is 6.2",
        "no step",
    ]


def test_results_of_one_day_are_one_night_where_their_facts_agree() -> None:
    nights = [night(day(place), runs(docs)) for place, docs in enumerate(levels(6, 0))]
    again = [night(day(place, 2), runs(1.0, count=1)) for place in range(6)]
    (history,) = seen([*again, *nights]).histories
    assert history.nights == tuple(day(place) for place in range(6))
    # The median of three runs and the one that is far below them.
    assert history.values[0] == pytest.approx(levels(6, 0)[0] + 1.5)
    other = [night(day(place, 2), runs(1.0, count=1), kernel="6.2") for place in range(6)]
    (history,) = seen([*other, *nights]).histories
    assert len(history.nights) == 12


def test_nights_without_a_number_and_cells_that_come_late_are_named_and_experiments_kept_apart() -> None:
    docs = levels(20, 0)
    nights = []
    for place, rate in enumerate(docs):
        rows = runs(rate)
        if place == 7:
            rows = [made.changed(row, state="invalid", reason="the generator was the limit") for row in rows]
        if place >= 15:
            rows += runs(rate, "late")
        nights += [night(day(place), rows), night(day(place, 1), runs(place + 1.0), "other")]
    found = seen(nights)
    assert [(each.experiment, each.cell, len(each.values)) for each in found.histories] == [
        ("made", "only", 19),
        ("other", "only", 20),
    ]
    assert found.notes == (
        "late: docs_per_s_mean: 5 nights; it takes 6",
        f"only: no number in 1 of 20 nights, the last of them {day(7)}: only/1 is invalid: the generator was the limit",
    )
    gone = seen([night(day(place), runs(1.0, cell)) for place, cell in enumerate(["only"] * 6 + ["x"])])
    assert gone.notes[-1] == f"only: no number in 1 of 7 nights, the last of them {day(6)}: it has no such cell"
    # Another workload under the same name is another history.
    nights = [night(day(place), runs(1.0 + place % 2, workload="a" if place < 6 else "b")) for place in range(12)]
    found = seen(nights)
    assert [len(each.values) for each in found.histories] == [6, 6]
    assert found.notes[0].endswith(": it was not measured, or of another workload or network")


def counted(counts: Sequence[Sequence[int]]) -> list[Night]:
    """Return nights whose runs have these numbers of pauses, each of one GB."""
    nights = []
    for place, of_runs in enumerate(counts):
        rows = runs(1.0, count=len(of_runs))
        named = [{"gc_pauses": count, "gc_pauses_per_gb": float(count)} for count in of_runs]
        made_rows = [made.changed(row, values=values) for row, values in zip(rows, named, strict=True)]
        nights.append(night(day(place), made_rows))
    return nights


def test_nights_of_10_and_of_11_pauses_are_no_step() -> None:
    # 10 and 11 are the most usual counts of one rate.
    for replicates in (1, 3):
        (history,) = seen(counted([[10 + (place >= 5)] * replicates for place in range(10)]), "gc_pauses").histories
        assert history.column == "gc_pauses_per_gb"
        assert history.changes == ()
    (history,) = seen(counted([[10 + 40 * (place >= 5)] for place in range(10)]), "gc_pauses").histories
    assert [change.place for change in history.changes] == [5]


@pytest.mark.parametrize("mean", [1, 10, 50])
def test_random_counts_have_a_step_at_most_5_times_of_100(mean: int) -> None:
    random, alarms = np.random.default_rng(mean), 0
    for length in [8, 11, 20] * 30:
        nights = counted(random.poisson(mean, (length, 3)).tolist())
        alarms += bool(seen(nights, "gc_pauses").histories[0].changes)
    print(f"{alarms} of 90")  # noqa: T201 - pytest -s
    assert alarms <= 4


def test_of_tables_in_which_nothing_changed_few_say_that_something_did() -> None:
    random, columns = np.random.default_rng(8), ("docs_per_s_mean", "response_ms_p99", "gc_pauses")
    said = 0
    for _ in range(40):
        nights = [
            night(
                day(place),
                [
                    row
                    for cell in ("a", "b", "c")
                    for row in runs(
                        random.normal(20_000, 900),
                        cell,
                        1,
                        response_ms_p99=random.normal(400, 40),
                        gc_pauses=int(random.poisson(20)),
                    )
                ],
            )
            for place in range(20)
        ]
        found = seen(nights, *columns)
        assert len(found.histories) == 9
        said += bool(told.newest(found))
    assert said <= 4


def test_page_and_picture_show_every_history_and_others_text_as_text() -> None:
    nights = [
        night(
            day(place),
            [*runs(docs, one_line(HOSTILE)), *runs(levels(40, 0)[place], "calm")],
            kernel=f"{HOSTILE}{place // 20}",
        )
        for place, docs in enumerate(levels(20, 20))
    ]
    found = seen(nights, "docs_per_s_mean", "gc_pauses")
    text = page.trended(HOSTILE, found, [HOSTILE])
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert "<script" not in text
    assert text.count("<svg") == 4
    places = [float(x) for x in re.findall(r' (?:x1|x2|cx)="([-0-9.]+)"', text)]
    assert len(places) > 4 * 40
    assert all(0 <= place <= 460 for place in places)
    assert "\\x1b" in found.histories[0].changes[0].facts[0]
    assert plots_trend.trend(found).startswith(b"\x89PNG")
    assert plots_trend.trend(Trend(histories=(), notes=())).startswith(b"\x89PNG")


@pytest.mark.parametrize("size", [1.2e-4, 21_000.0, 4.2e8, 1.6e10, 3e13])
def test_the_numbers_beside_an_axis_of_any_size_have_room(size: float) -> None:
    column = "heap_after_gc_max_bytes"
    nights = [
        night(day(place), [made.changed(run, values={column: docs / 20_000 * size}) for run in runs(docs)])
        for place, docs in enumerate(levels(20, 20))
    ]
    found = seen(nights, column)
    with figures() as drawn:
        plots_trend.trend(found)
    assert [text.get_text() for text in texts(drawn[0]) if text.get_window_extent().x0 < 0] == []
    beside = re.findall(r'<text x="([0-9]+)"[^>]*text-anchor="end">([^<]+)</text>', told.drawn(found))[:3]
    # A letter of 12 pixels is 8 wide or less.
    assert all(8 * len(text) <= float(right) for right, text in beside)
    assert len({text for _, text in beside}) == 3


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A function that writes one night's results folder."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import nights  # noqa: PLC0415 - as the benchmark makes them

    experiment = tmp_path / "x.toml"
    experiment.write_text("replicates = 2\n")
    ordered = order.order(spec.load(str(experiment)))

    def write(name: str, docs: float, facts: Mapping[str, Any] = FACTS, java: str = "17.0.9") -> Path:
        place = tmp_path / "nights" / name
        nights.left(place, ordered, facts, {"java": java}, lambda _: {**ONE.values, "docs_per_s_mean": docs})
        return place

    return write


def test_the_command_reads_folders_and_ends_as_compare_does(
    tmp_path: Path, written: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    nights = tmp_path / "nights"
    for place, docs in enumerate(levels(5, 0)):
        written(f"{day(place)}/x/{day(place)}", docs)
    assert app.run(["trend", str(nights), "--column", "docs_per_s_mean"]) == 3
    assert "5 nights; it takes 6" in capsys.readouterr().out
    for place, docs in list(enumerate(levels(10, 10)))[5:]:
        written(f"{day(place)}/x/{day(place)}", docs, java="17.0.9" if place < 10 else "25.0.2")
    table, shown, picture = (tmp_path / "new" / f"t.{end}" for end in ("csv", "html", "png"))
    files = ["--csv", str(table), "--html", str(shown), "--png", str(picture)]
    assert app.run(["trend", str(nights), "--column", "docs_per_s_mean", *files]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"1 of 1 histories changed, the last time: docs_per_s_mean -[0-9.]+% since {day(10)}", said)
    assert "with it: java was 17.0.9, is 25.0.2" in said
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["night"] for row in rows if row["change"]] == [day(10)]
    assert len(rows) == 20
    assert day(10) in shown.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert app.run(["trend", str(nights), "--column", "docs_per_s"]) == 2
    assert 'unknown column "docs_per_s"; did you mean' in capsys.readouterr().err


def test_what_is_no_result_or_cannot_be_read_is_left_out_with_its_reason(
    tmp_path: Path, written: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    nights = tmp_path / "nights"
    (nights / "notes").mkdir(parents=True)
    assert app.run(["trend", str(nights)]) == 2
    assert "no folder with a plan.json is in it" in capsys.readouterr().err
    assert app.run(["trend", str(nights / "gone")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    for place, docs in enumerate(levels(8, 0)):
        written(day(place), docs)
    (nights / "latest").symlink_to(nights / day(7))
    newer, damaged, unfinished = (nights / day(place) for place in (0, 1, 2))
    record = next(newer.rglob("run.json"))
    record.write_text(json.dumps(json.loads(record.read_text()) | {"schema": SCHEMAS["run.json"] + 1}))
    (damaged / "plan.json").write_text("{")
    (unfinished / "summary.csv").unlink()
    # A name of somebody's own: its first run says when it was.
    (nights / day(3)).rename(nights / "renamed")
    assert app.run(["trend", str(nights), "--column", "docs_per_s_mean"]) == 3
    said = capsys.readouterr().out
    assert (
        f"a newer ingest-bench wrote it (schema {SCHEMAS['run.json'] + 1}, this one reads {SCHEMAS['run.json']})"
        in said
    )
    assert "this file is damaged" in said
    assert "cannot be read (No such file or directory)" in said
    assert "5 nights; it takes 6" in said
