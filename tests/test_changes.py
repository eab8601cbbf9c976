"""What changed between two results: by name, by what differs in all, and not at all."""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import made_summaries as made
import pytest
from test_page import Tags

from ingest_bench.analysis.compare import changes
from ingest_bench.analysis.compare.comparable import Results, machines
from ingest_bench.cli import app
from ingest_bench.host import machine
from ingest_bench.host.settings import SETTINGS
from ingest_bench.model.results import Summary
from ingest_bench.report.page import page
from ingest_bench.report.tables import changes_table, text_tables
from ingest_bench.results.facts import facts

MACHINE = {"cpu": "A", "kernel": "6.1"}


def runs(docs: Sequence[float], cell: str = "heap=1g", **levels: str) -> list[Summary]:
    """Runs of one cell with these rates."""
    named: dict[str, Any] = {"cell": cell, "levels": levels or {"heap": "1g"}}
    of_one = [made.summary({"network": "ethernet"}, number) for number, _ in enumerate(docs, 1)]
    return [
        dataclasses.replace(made.changed(run, values={"docs_per_s_mean": rate}), run=f"{cell}/{run.replicate}", **named)
        for run, rate in zip(of_one, docs, strict=True)
    ]


def between(before: list[Summary], now: list[Summary], **facts: str) -> changes.Changes:
    sides = Results(summaries=before, facts=MACHINE), Results(summaries=now, facts=MACHINE | facts)
    return changes.between(*sides, ["docs_per_s_mean"])


BEFORE = runs([20_000, 20_200, 19_900])


def test_a_change_has_its_interval_and_one_run_a_side_is_no_verdict() -> None:
    found = between(BEFORE, runs([15_000, 15_100, 14_900]), kernel="6.2")
    (docs,) = found.found
    assert changes_table.cell(docs) == "heap=1g"
    # scipy.stats.ttest_ind([15000, 15100, 14900], [20000, 20200, 19900], equal_var=False).confidence_interval()
    assert docs.interval == pytest.approx((-5345.422, -4721.245), abs=0.01)
    assert docs.is_distinct
    assert found.is_verdict
    assert found.notes == ("kernel was 6.1, is 6.2",)
    alone = between(BEFORE[:1], runs([15_000]))
    assert [each.is_distinct for each in alone.found] == [None]
    assert not alone.is_verdict


def test_what_differs_in_all_runs_of_a_side_is_what_is_compared() -> None:
    sides = [
        runs(
            [20_000, 20_100],
            f"{java},{heap}",
            java=java,
            heap=heap,
        )
        for java in ("17", "25")
        for heap in ("1g", "2g")
    ]
    found = between([*sides[0], *sides[1]], [*sides[3], *sides[2]])
    assert [(each.first, each.second) for each in found.found] == [("17,1g", "25,1g"), ("17,2g", "25,2g")]
    assert [changes_table.cell(each) for each in found.found] == ["17,1g → 25,1g", "17,2g → 25,2g"]
    assert found.notes == ("compared: java, 17 to 25",)
    # Two settings with two levels each: nobody knows which belong together.
    other = runs([1.0, 2.0], "x", java="21", heap="4g")
    refused = between([*sides[0], *sides[1]], other).refused
    assert refused == ("no cell is in both: 17,1g, 17,2g; and x",)


def test_what_an_experiment_or_doctor_has_of_the_machine_decides_whether_results_are_of_the_same_one() -> None:
    here = facts()
    of_the_machine = {
        key for key, setting in SETTINGS.items() if key.startswith(("transparent", "numa", "swap", "dirty"))
    }
    assert of_the_machine <= here.keys()
    assert here["numad_runs"] is machine.facts().numad_runs
    assert here["max_map_count"] == str(machine.facts().max_map_count)
    for name in (*of_the_machine, "numad_runs", "max_map_count"):
        forbidden, _ = machines(here, here | {name: "other"})
        assert forbidden == [f"another machine: {name} was {here[name]}, is other"]


@pytest.mark.parametrize(
    ("name", "before", "now", "differs"),
    [
        # A kernel keeps some of the memory for itself, another time a little more.
        ("memory_bytes", 8_000_000_000, 7_850_000_000, False),
        ("memory_bytes", 8_000_000_000, 7_830_000_000, True),
        ("cores", 64, 65, True),
        ("dirty_bytes", 400_000_000, 399_000_000, True),
    ],
)
def test_only_memory_may_differ_a_little(name: str, before: int, now: int, differs: bool) -> None:
    forbidden, _ = machines({name: before}, {name: now})
    assert forbidden == ([f"another machine: {name} was {before}, is {now}"] if differs else [])


def test_another_machine_or_another_workload_is_refused_and_what_is_missing_is_named() -> None:
    assert between(BEFORE, BEFORE, cpu="B").refused == ("another machine: cpu was A, is B",)
    other = [made.changed(run, values={"workload": "pmc"}) for run in BEFORE]
    assert between(BEFORE, other).refused == ("the baseline's workload is nyc_taxis, this one's pmc",)
    broken = made.changed(BEFORE[2], state="invalid", reason="the generator was the limit")
    gone = runs([1.0], "gone")
    found = between([*BEFORE, *gone], [*BEFORE[:2], broken])
    assert found.notes == (
        "only the first has the cell gone",
        "heap=1g/3 of the second is invalid: the generator was the limit",
    )


def test_the_page_draws_intervals_within_their_frame_and_escapes_what_others_wrote() -> None:
    hostile = '<script>alert(1)</script>"'
    sides = [runs(docs, hostile) for docs in ([20_000.0, 20_200, 19_900], [10.0, 60_000, 20_000])]
    found = between(*sides)
    text = page.compared(hostile, "now", found)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert "<script" not in text
    assert hostile not in text
    places = [float(x) for x in re.findall(r' (?:x1|x2|cx)="([-0-9.]+)"', text)]
    assert len(places) > 3
    assert all(0 <= place <= 400 for place in places)


def test_the_command_writes_table_and_page_and_ends_as_a_gate_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, found in (("a", BEFORE), ("b", runs([15_000, 15_100, 14_900])), ("one", BEFORE[:1])):
        (tmp_path / f"{name}.csv").write_text(text_tables.summary_csv(found))
    a, b, one = (str(tmp_path / f"{name}.csv") for name in ("a", "b", "one"))
    table, shown = tmp_path / "new" / "c.csv", tmp_path / "c.html"
    assert app.run(["compare", a, b, "--column", "docs_per_s_mean", "--csv", str(table), "--html", str(shown)]) == 0
    said = capsys.readouterr().out
    assert "1 of 1 changed: docs_per_s_mean -25.1% (heap=1g)" in said
    (row,) = csv.DictReader(table.read_text().splitlines())
    assert float(row["change"]) == pytest.approx(15_000 / 20_033.333 - 1, abs=1e-6)
    assert float(row["change_low"]) < float(row["change"]) < float(row["change_high"])
    assert "-25.1%" in shown.read_text()
    assert app.run(["compare", one, one]) == 3
    assert "No verdict: one run a side" in capsys.readouterr().out
    (tmp_path / "other.csv").write_text(text_tables.summary_csv(runs([1.0], "x", heap="9g")))
    (tmp_path / "more.csv").write_text(text_tables.summary_csv([*BEFORE, *runs([1.0], "heap=2g", heap="2g")]))
    assert app.run(["compare", str(tmp_path / "more.csv"), str(tmp_path / "other.csv")]) == 3
    assert "these two cannot be compared: no cell is in both" in capsys.readouterr().out
    assert app.run(["compare", a, b, "--column", "docs_per_s"]) == 2
    assert 'unknown column "docs_per_s"; did you mean' in capsys.readouterr().err


def test_another_java_or_server_is_named_and_totals_are_compared_for_each_gb() -> None:
    def side(java: str, target: str, total: int) -> Results:
        values = {"java": java, "target": target, "gc_pauses": total, "bytes_measured": total * 10**8}
        each = [made.summary({"network": "ethernet"}, replicate) for replicate in (1, 2, 3)]
        runs = [made.changed(run, values={**run.values, **values}) for run in each]
        return Results(summaries=runs, facts={"cores": 2})

    found = changes.between(
        side("17.0.15", "OpenSearch 2.19.6", 10), side("25.0.1", "OpenSearch 3.0.0", 20), ("gc_pauses",)
    )
    assert found.notes == ("target was OpenSearch 2.19.6, is OpenSearch 3.0.0", "java was 17.0.15, is 25.0.1")
    (compared,) = found.found
    assert (compared.column, compared.difference) == ("gc_pauses_per_gb", 0)
