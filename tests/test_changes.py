"""Comparison of two results: equal cells, cells that differ in one level, and results that are not comparable."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import example_summaries as made
import pytest
from test_page import Tags

from ingest_bench.analysis.compare import changes
from ingest_bench.analysis.compare.changes import Results, compare_facts
from ingest_bench.cli import app
from ingest_bench.host import settings
from ingest_bench.model.results import Summary
from ingest_bench.report import change_tables, page, summary_files
from ingest_bench.results.facts import collect_facts

MACHINE = {"cpu": "A", "kernel": "6.1"}


def runs(docs: Sequence[float], cell: str = "heap=1g", **levels: str) -> list[Summary]:
    """Return runs of one cell with these rates."""
    return made.replicates("docs_per_s_mean", docs, cell=cell, levels=levels or {"heap": "1g"})


def between(before: list[Summary], now: list[Summary], **facts: str) -> changes.Changes:
    sides = Results(summaries=before, facts=MACHINE), Results(summaries=now, facts=MACHINE | facts)
    return changes.compare_results(*sides, ["docs_per_s_mean"])


BEFORE = runs([20_000, 20_200, 19_900])
AFTER = runs([15_000, 15_100, 14_900])


def test_change_has_an_interval_and_one_run_per_side_has_no_verdict() -> None:
    compared = between(BEFORE, AFTER, kernel="6.2")
    (docs,) = compared.comparisons
    assert change_tables.format_cells(docs) == "heap=1g"
    # scipy.stats.ttest_ind([15000, 15100, 14900], [20000, 20200, 19900], equal_var=False).confidence_interval()
    assert docs.interval == pytest.approx((-5345.422, -4721.245), abs=0.01)
    assert docs.is_distinct
    assert compared.has_interval
    assert compared.notes == ("kernel was 6.1, is 6.2",)
    single = between(BEFORE[:1], runs([15_000]))
    assert [change.is_distinct for change in single.comparisons] == [None]
    assert not single.has_interval


def test_level_that_differs_in_all_runs_of_a_side_is_compared() -> None:
    sides = [
        runs([20_000, 20_100], f"{java},{heap}", java=java, heap=heap) for java in ("17", "25") for heap in ("1g", "2g")
    ]
    compared = between([*sides[0], *sides[1]], [*sides[3], *sides[2]])
    cells = [change_tables.format_cells(change) for change in compared.comparisons]
    assert cells == ["17,1g → 25,1g", "17,2g → 25,2g"]
    assert compared.changed_settings == ("java was 17, is 25",)
    # Two levels differ, so cells cannot be paired.
    other = runs([1.0, 2.0], "x", java="21", heap="4g")
    assert between([*sides[0], *sides[1]], other).refusals == ("no cell is in both: 17,1g, 17,2g; and x",)


def test_facts_of_the_machine_decide_whether_results_are_comparable() -> None:
    here, machine = collect_facts(), settings.read_machine_facts()
    names = {key for key in settings.SETTINGS if key.startswith(("transparent", "numa", "swap", "dirty"))}
    assert names <= here.keys()
    assert here["numad_runs"] is machine.is_numad_running
    assert here["max_map_count"] == str(machine.max_map_count)
    for name in (*names, "numad_runs", "max_map_count"):
        conflicts, _ = compare_facts(here, here | {name: "other"})
        assert conflicts == [f"another machine: {name} was {here[name]}, is other"]


@pytest.mark.parametrize(
    ("name", "before", "now", "differs"),
    [
        # The kernel reserves slightly different amounts of memory at each boot.
        ("memory_bytes", 8_000_000_000, 7_850_000_000, False),
        ("memory_bytes", 8_000_000_000, 7_830_000_000, True),
        ("cores", 64, 65, True),
        ("dirty_bytes", 400_000_000, 399_000_000, True),
    ],
)
def test_only_memory_may_differ_slightly(name: str, before: int, now: int, differs: bool) -> None:
    conflicts, _ = compare_facts({name: before}, {name: now})
    assert conflicts == ([f"another machine: {name} was {before}, is {now}"] if differs else [])


@pytest.mark.parametrize(
    ("before", "now", "texts"),
    [
        ({"/a/docs": "1 byte, x"}, {"/b/docs": "1 byte, x"}, ""),
        ({"/a/docs": "1 byte, x"}, None, ""),
        ({"/a/docs": "1 byte, x"}, {"/b/docs": "1 byte, y"}, "1 byte, x, now 1 byte, y"),
        # One of two files of that name is unchanged.
        ({"/a/docs": "2", "/b/docs": "1"}, {"/a/docs": "3", "/b/docs": "1"}, "1 and 2, now 1 and 3"),
    ],
)
def test_file_of_equal_name_with_other_content_is_a_conflict(before: Any, now: Any, texts: str) -> None:
    conflicts, _ = compare_facts({"files": before}, {"files": now})
    assert conflicts == ([f"the content of docs differs: {texts}"] if texts else [])


def test_facts_of_another_folder_have_no_invisible_characters() -> None:
    before, now = ({"cpu": f"A{mark}", "kernel": [mark], "files": {f"x{mark}": mark}} for mark in ("\x1b", "\u202e"))
    conflicts, notes = compare_facts({**before, "files": {"x": "\x1b"}}, {**now, "files": {"x": "\u202e"}})
    assert (len(conflicts), len(notes)) == (2, 1)
    assert all(text.isprintable() for text in (*conflicts, *notes))


def test_changed_settings_are_those_of_the_plan_and_of_the_server() -> None:
    keys = {"load.users": "8", "gzip": "true"}, {"load.users": "16", "gzip": "true", "setting.threads": "4"}
    sides = [
        Results(
            summaries=[made.changed(run, values={"heap_bytes": size}) for run in side],
            settings={"heap=1g": settings},
        )
        for side, settings, size in zip((BEFORE, AFTER), keys, (1 << 30, 1 << 29), strict=True)
    ]
    assert changes.compare_results(sides[0], sides[1], ["docs_per_s_mean"]).changed_settings == (
        "load.users was 8, is 16",
        "setting.threads was not set, is 4",
        "heap was 1 GiB, is 512 MiB",
    )


def test_other_machine_or_workload_is_refused_and_missing_runs_are_named() -> None:
    assert between(BEFORE, BEFORE, cpu="B").refusals == ("another machine: cpu was A, is B",)
    other = [made.changed(run, values={"workload": "pmc"}) for run in BEFORE]
    assert between(BEFORE, other).refusals == ("the baseline's workload is nyc_taxis, this one's pmc",)
    broken = made.changed(BEFORE[2], state="invalid", reason="the generator was the limit")
    assert between([*BEFORE, *runs([1.0], "gone", heap="2g")], [*BEFORE[:2], broken]).notes == (
        "only the first has the cell gone",
        "heap=1g/3 of the second is invalid: the generator was the limit",
    )


def test_page_draws_intervals_within_their_frame_and_escapes_names() -> None:
    hostile = '<script>alert(1)</script>"'
    sides = [runs(docs, hostile) for docs in ([20_000.0, 20_200, 19_900], [10.0, 60_000, 20_000])]
    text = page.render_comparison(hostile, "now", between(*sides))
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert "<script" not in text
    assert hostile not in text
    places = [float(x) for x in re.findall(r' (?:x1|x2|cx)="([-0-9.]+)"', text)]
    assert len(places) > 3
    assert all(0 <= place <= 400 for place in places)


def test_compare_command_writes_files_and_exits_0_or_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, summaries in {
        "a": BEFORE,
        "b": AFTER,
        "single": BEFORE[:1],
        "other": runs([1.0], "x", heap="9g"),
        "more": [*BEFORE, *runs([1.0], "heap=2g", heap="2g")],
    }.items():
        (tmp_path / f"{name}.csv").write_text(summary_files.format_summary_csv(summaries))

    def compare(first: str, second: str, *options: str) -> tuple[int, str]:
        code = app.run(["compare", str(tmp_path / f"{first}.csv"), str(tmp_path / f"{second}.csv"), *options])
        output = capsys.readouterr()
        return code, output.out + output.err

    csv_file, html_file = tmp_path / "new" / "c.csv", tmp_path / "c.html"
    options = ("--column", "docs_per_s_mean", "--csv", str(csv_file), "--html", str(html_file))
    code, text = compare("a", "b", *options)
    assert code == 0
    assert "1 of 1 changed: docs_per_s_mean -25.1% (heap=1g)" in text
    (row,) = csv.DictReader(csv_file.read_text().splitlines())
    assert float(row["change"]) == pytest.approx(15_000 / 20_033.333 - 1, abs=1e-6)
    assert float(row["change_low"]) < float(row["change"]) < float(row["change_high"])
    assert "-25.1%" in html_file.read_text()
    for code, message, arguments in (
        (3, "No verdict: one run a side", ("single", "single")),
        (3, "not comparable: no cell is in both", ("more", "other")),
        (2, 'unknown column "docs_per_s"; did you mean', ("a", "b", "--column", "docs_per_s")),
    ):
        assert compare(*arguments)[0] == code
        assert message in compare(*arguments)[1]


def test_totals_are_compared_for_each_gb_and_other_servers_are_named() -> None:
    def side(java: str, target: str, total: int) -> Results:
        values = {"java": java, "target": target, "gc_pauses": total, "bytes_measured": total * 10**8}
        summaries = [made.summary({"network": "ethernet"}, replicate) for replicate in (1, 2, 3)]
        return Results(
            summaries=[made.changed(run, values={**run.values, **values}) for run in summaries], facts={"cores": 2}
        )

    sides = side("17.0.15", "OpenSearch 2.19.6", 10), side("25.0.1", "OpenSearch 3.0.0", 20)
    compared = changes.compare_results(*sides, ("gc_pauses",))
    assert compared.changed_settings == (
        "target was OpenSearch 2.19.6, is OpenSearch 3.0.0",
        "java was 17.0.15, is 25.0.1",
    )
    (change,) = compared.comparisons
    assert (change.column, change.difference) == ("gc_pauses_per_gb", 0)
