"""The end of a run on a terminal: 24 lines of 80 columns."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import example_summaries as made
import pytest
from rich.console import Console

from ingest_bench import system
from ingest_bench.analysis.run.summary import REFUSED
from ingest_bench.cli import report, screen
from ingest_bench.cli.options import OutputOptions
from ingest_bench.experiment import spec
from ingest_bench.model.results import Cause, Note, Summary
from ingest_bench.report import digest
from ingest_bench.results import layout

FOUR = made.experiment(replicates=1, network=["loopback", "ethernet"], receive_predictor=["32KiB", "512KiB"])
SHARED = Note(source="load", text="this machine is shared: other processes used 20% of the CPUs")


def with_stall(run: Summary, length_s: float, *causes: str, ruled_out: str = "garbage collection") -> Summary:
    stall = made.stall(0, length_s, *causes, ruled_out=(Cause(cause=ruled_out, duration_ns=0),))
    return made.changed(run, values={"stalls": 1}, stalls=(stall,))


def test_digest_has_one_column_of_factors_and_differences_to_the_first_row() -> None:
    rates = (1000.0, 1100.0, 900.0, 1000.0)
    values = [{"docs_per_s_mean": rate, "allocated_bytes": None} for rate in rates]
    runs = [made.changed(run, values=row) for run, row in zip(FOUR, values, strict=True)]
    head, *rows = digest.digest_rows(runs)
    assert head == ["network · receive predictor", "docs/s", "p50", "p99", "mean read"]
    assert [row[0] for row in rows][:2] == ["loopback · 32KiB", "loopback · 512KiB"]
    assert [" ".join(row[1].split()) for row in rows] == ["1,000", "1,100 +10%", "900 -10%", "1,000 +0%"]
    assert digest.digest_rows(FOUR)[0][-1] == "heap/GB"


def test_next_question_needs_a_run_with_a_result() -> None:
    command = "next: ingest-bench recommend results/x   (what to change, and why)"
    assert digest.suggest_next(FOUR[:1], "results/x") == command
    assert not digest.suggest_next([made.changed(FOUR[0], state="failed")], "results/x")


def test_digest_of_a_failed_cell_says_so_and_has_the_cause_once() -> None:
    failed = [dataclasses.replace(run, state="failed", reason="no  disk\nleft", values={}) for run in FOUR[1:]]
    assert [row[1] for row in digest.digest_rows([FOUR[0], *failed])][2:] == ["failed"] * 3
    assert digest.describe_endings([FOUR[0], *failed]) == ["failed in 3 runs: no disk left"]
    log = dataclasses.replace(failed[0], reason=f"/out/made/{failed[0].run}/server.log ends: no heap")
    assert digest.describe_endings([log], "/out/made/") == [f"failed: {log.run}: server.log ends: no heap"]
    assert digest.describe_endings(failed[:1]) == [f"failed: {failed[0].run}: no disk left"]


def test_stalls_are_one_sentence_with_causes_and_what_is_ruled_out() -> None:
    runs = [with_stall(FOUR[0], 0.6, "flush"), with_stall(FOUR[1], 5.2, "flush")]
    assert digest.describe_stalls(runs) == "2 stalls of 0.6 to 5.2 s, all: flush. Ruled out: GC."
    runs = [*runs, with_stall(FOUR[2], 1, ruled_out="packets lost on the network")]
    assert digest.describe_stalls(runs) == "3 stalls of 0.6 to 5.2 s, 2: flush, 1: unexplained."
    assert digest.describe_stalls([made.changed(FOUR[0], values={"stalls": 0})]) == "No stalls."
    assert digest.describe_stalls(FOUR) == ""


def test_warnings_are_kinds_of_notes_with_their_number_of_runs() -> None:
    runs = [dataclasses.replace(run, notes=(SHARED, SHARED, Note(source="stall", text="0.1-0.2 s"))) for run in FOUR]
    runs[0] = dataclasses.replace(
        runs[0], notes=(SHARED, Note(source="gc", text="no log"), Note(source="load", text="12 left"))
    )
    text = digest.describe_warnings(runs)
    assert text.startswith("Warnings: this machine is shared (4 of 4); ")
    assert "probe gc (1 of 4)" in text
    assert "other notes (1 of 4)" in text
    assert text.endswith("1 run per cell: no verdict; --replicates 3 would tell.")
    assert digest.describe_warnings(made.experiment(replicates=2, network=["loopback", "ethernet"])) == ""


def test_errors_are_counted_with_their_share() -> None:
    assert digest.describe_errors(FOUR) == ""
    runs = [made.changed(run, values={"requests_failed": 3, "requests": 300, "documents_failed": 1}) for run in FOUR]
    text = "Errors: 12 of 1,200 requests (1.00%) failed or were refused in part, 4 documents refused."
    assert digest.describe_errors(runs) == text
    note = Note(source="load", text=f"{REFUSED}1 x 400 parsing: failed to parse field [price]")
    quoted = dataclasses.replace(runs[1], notes=(note,))
    expected = " 4 documents refused. 1 x 400 parsing: failed to parse field [price]"
    assert digest.describe_errors([runs[0], quoted, quoted, runs[3]]).endswith(expected)
    assert "refused" not in digest.describe_warnings([quoted])


@pytest.mark.parametrize("is_terminal", [True, False])
def test_digest_fits_a_terminal_of_24_lines_without_broken_words(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = io.StringIO()
    width = 80 if is_terminal else 400
    monkeypatch.setattr(
        screen, "_STDOUT", Console(file=output, force_terminal=is_terminal, width=width, color_system=None)
    )
    buffers = ["4KiB", "16KiB", "32KiB", "64KiB", "512KiB"]
    runs = made.experiment(1, network=["loopback", "ethernet", "jumbo", "ethernet-100m"], receive_predictor=buffers)
    runs = [made.changed(run, values={"allocated_bytes_per_gb": 3e10 + 1e9 * at}) for at, run in enumerate(runs)]
    sentence = "A sentence with an unbreakable-word-in-its-middle that is long enough for two lines of the terminal."
    screen.print_digest(digest.digest_rows(runs), [sentence] * 3, ["report: index.html", "next: recommend"])
    lines = output.getvalue().splitlines()
    if not is_terminal:
        assert len(lines) == 1 + 20 + 1 + 3
        assert lines[-1] == sentence
        return
    assert len(lines) <= 21, "the path of the page, the next question and the prompt are three more"
    assert max(map(len, lines)) <= 80
    assert any("more rows: --wide" in line for line in lines)
    assert " ".join(lines[-6:]) == " ".join([sentence] * 3)


MANY = made.experiment(
    1, network=list(made.LINKS), receive_predictor=list(made.BUFFERS), workload=["nyc_taxis", "geonames"]
)
LONG = "java.lang.IllegalStateException: something went wrong " * 9


@pytest.mark.parametrize(
    "runs",
    [
        MANY,
        [dataclasses.replace(run, state="failed", values={}, reason=f"{at} {LONG}") for at, run in enumerate(MANY)],
        [with_stall(run, 1.5, f"cause {at} of a stall", "garbage collection") for at, run in enumerate(MANY)],
        [
            dataclasses.replace(
                made.changed(run, values={"requests_failed": 3, "requests": 300}),
                notes=tuple(Note(source="load", text=f"{name * 40}: {REFUSED}") for name in "abcdefghijklmnop"),
            )
            for run in MANY
        ],
        [made.changed(run, levels={**run.levels, "target.jvm": f"-XX:{'x' * 90}{at}"}) for at, run in enumerate(MANY)],
    ],
    ids=["cells", "reasons", "causes", "notes", "levels"],
)
def test_end_of_any_run_fits_a_terminal_of_24_lines(
    runs: list[Summary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = io.StringIO()
    monkeypatch.setattr(screen, "_STDOUT", Console(file=output, force_terminal=True, width=80, color_system=None))
    monkeypatch.chdir(tmp_path)
    plan = spec.build_plan(spec.load_experiment("es-23185-heap"))
    report.print_results(layout.create_results(Path("results"), plan, {}), runs, OutputOptions())
    text = output.getvalue()
    lines = text.splitlines()
    assert len(lines) <= 23, text
    assert max(map(len, lines)) <= 80, text
    assert "… " in text
    assert lines[-2 if runs[0].values else -1].startswith(("report: ", "next: "))


def test_large_ratio_leaves_room_for_the_name_of_its_cell() -> None:
    rates = (0.5, 4.0, 5.0, 9_999_999.0)
    rows = digest.digest_rows(
        [made.changed(run, values={"docs_per_s_mean": x}) for run, x in zip(FOUR, rates, strict=True)]
    )
    assert [row[1] for row in rows[1:]] == ["0", "4 +700%", "5 x10", "9,999,999 x20 M"]


def test_results_as_json_are_one_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(system, "run", lambda argv, **_: opened.extend(argv))
    results = layout.create_results(tmp_path, spec.build_plan(spec.load_experiment("quickstart")), {})
    assert report.print_results(results, FOUR, OutputOptions(as_json=True, open_page=True)) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["report"] == str(results.report / "index.html")
    assert table["sentences"][0].startswith("Each GB ingested makes")
    assert [run["state"] for run in table["runs"]] == ["measured"] * 4
    assert opened == ["xdg-open", (results.report / "index.html").as_uri()]
