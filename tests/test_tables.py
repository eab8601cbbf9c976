from __future__ import annotations

import csv
import io
import json
import math

import example_summaries as made
import pytest

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.model.experiment import Factor
from ingest_bench.model.results import Note
from ingest_bench.report import cell_tables, summary_files

FOUR = made.experiment(replicates=2, network=["loopback", "ethernet"], receive_predictor=["32KiB", "512KiB"])


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_summary_csv_has_a_row_per_run_and_empty_cells_for_unknown_numbers() -> None:
    text = summary_files.format_summary_csv(FOUR)
    head = text.splitlines()[0].split(",")
    assert head[:6] == ["experiment", "run", "replicate", "state", "reason", "receive_predictor"]
    assert head[6:] == [*(column.name for column in COLUMNS), "instrumented"]
    first, *others = rows(text)
    assert len(others) == 7
    assert (first["retransmits"], first["full_gcs"], first["response_ms_p50"]) == ("", "0", "120.5")


def test_histograms_csv_counts_every_read_of_the_valid_runs_once() -> None:
    bad = made.changed(FOUR[1], state="invalid")
    rows_read = rows(summary_files.format_histograms_csv([FOUR[0], bad]))
    assert {row["run"] for row in rows_read} == {FOUR[0].run}
    assert sum(int(row["reads"]) for row in rows_read) == sum(FOUR[0].histograms["read_bytes"].values())


def test_summary_json_keeps_the_exact_counts() -> None:
    first = json.loads(summary_files.format_summary_json([made.changed(FOUR[0], stacks={"a;b": 1})]))[0]
    assert "stacks" not in first, "they have files of their own"
    assert {int(size): count for size, count in first["histograms"]["read_bytes"].items()} == FOUR[0].histograms[
        "read_bytes"
    ]


def test_terminal_table_has_medians_with_ranges_of_valid_runs_only() -> None:
    runs = made.experiment(replicates=4, network=["loopback"])
    rates = (900.0, 1000.0, 1400.0, 1e9)
    runs = [made.changed(run, values={"docs_per_s_mean": rate}) for run, rate in zip(runs, rates, strict=True)]
    runs[3] = made.changed(runs[3], state="invalid", reason="bytes differ")
    head, row = cell_tables.cell_rows(runs)
    assert head[:2] == ["cell", "runs"]
    assert row[head.index("runs")] == "3 of 4: invalid"
    assert row[head.index("docs/s")] == "1,000 (900..1,400)"
    assert cell_tables.describe_left_out(runs) == [f"{runs[3].run}: invalid: bytes differ"]


def test_run_out_of_memory_has_the_numbers_until_then() -> None:
    oom = made.changed(FOUR[0], state="oom", values={"out_of_memory": "direct", "out_of_memory_after_s": 7.25})
    head, row = cell_tables.cell_rows([oom])
    assert row[head.index("runs")] == "0 of 1: OOM (direct), numbers until then (7.25 s)"
    assert row[head.index("GC pauses")] == cell_tables.cell_rows([FOUR[0]])[1][head.index("GC pauses")]
    head, row = cell_tables.cell_rows([oom, made.changed(FOUR[0], replicate=2)])
    assert row[head.index("runs")] == "1 of 2: OOM (direct)"
    assert cell_tables.describe_left_out([oom]) == []


def test_terminal_table_has_only_varying_factors_and_measured_columns() -> None:
    head, *body = cell_tables.cell_rows(FOUR)
    assert head[:3] == ["network", "receive_predictor", "runs"]
    assert "frame, median" not in head
    assert "failed requests" not in head
    assert [row[:2] for row in body] == [
        ["loopback", "32KiB"],
        ["loopback", "512KiB"],
        ["ethernet", "32KiB"],
        ["ethernet", "512KiB"],
    ]


def test_failed_requests_add_columns_of_acknowledged_times() -> None:
    times = {"response_ms_p99": 3000.0, "response_ok_ms_p99": 41.0}
    head, row = cell_tables.cell_rows([made.changed(FOUR[0], values={**times, "requests_failed": 48})])
    at = head.index("response p99, ms")
    assert head[at + 1] == "p99 of acknowledged, ms"
    assert row[at : at + 2] == ["3,000", "41"]
    assert row[head.index("failed requests")] == "48"
    head, row = cell_tables.cell_rows([made.changed(FOUR[0], values={**times, "requests_failed": 0})])
    assert "p99 of acknowledged, ms" not in head


def test_markdown_aligns_numbers_and_keeps_a_bar_inside_its_cell() -> None:
    assert summary_files.to_markdown([["a", "b"], ["x|y", "1"]]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n"


def test_cells_are_in_the_order_of_the_experiment() -> None:
    factors = [
        Factor(key="network", levels=("loopback", "ethernet")),
        Factor(key="receive_predictor", levels=("32KiB", "512KiB")),
    ]
    assert cells.in_factor_order(reversed(FOUR), factors) == FOUR


def test_instrumented_run_gives_allocations_and_no_rate() -> None:
    plain, costly = FOUR[0], made.changed(FOUR[1], instrumented=True, values={"docs_per_s_mean": 9e9})
    plain = made.changed(plain, values={"outside_tlab_network_bytes": None})
    costly = made.changed(costly, values={"outside_tlab_network_bytes": 7 * 10**9, "gc_pauses": 10**9})
    head, row = cell_tables.cell_rows([plain, costly])
    assert row[head.index("outside TLABs by network, GB")] == "7"
    assert str(10**9) not in str(row).replace(",", "")
    head, row = cell_tables.cell_rows([costly])
    assert "docs/s" not in head
    assert row[head.index("GC pauses")] == "1,000,000,000"


def test_summary_csv_round_trip_keeps_numbers_and_states() -> None:
    first, *others = made.experiment(2, network=["loopback", "ethernet"])
    runs = [made.changed(first, state="invalid", reason='a "reason", long'), *others]
    again = summary_files.parse_summary_csv(summary_files.format_summary_csv(runs))
    assert [(run.run, run.cell, run.replicate, run.state, run.reason) for run in again] == [
        (run.run, run.cell, run.replicate, run.state, run.reason) for run in runs
    ]
    assert cell_tables.cell_rows(again) == cell_tables.cell_rows(runs), "also the factor whose name is a column"
    assert again[1].values["retransmits"] is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("measured", "great", 'line 2: "great" is not a state'),
        (",1,measured", ",x,measured", 'line 2: replicate: "x" is not a whole number'),
        ("experiment,", "a,", "not a summary.csv: the column experiment is missing"),
        (
            "loopback,receive_predictor=512KiB/1",
            "loopback,receive_predictor=32KiB/1",
            "line 3: the run .* is listed twice",
        ),
    ],
)
def test_malformed_summary_is_refused_with_its_line(old: str, new: str, message: str) -> None:
    text = summary_files.format_summary_csv(FOUR[::2])
    assert old in text
    with pytest.raises(ValueError, match=message):
        summary_files.parse_summary_csv(text.replace(old, new))


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("7", 7),
        ("-7", -7),
        ("7.5", 7.5),
        ("5e3", 5000.0),
        ("1.5E-3", 0.0015),
        ("9" * 4000, float("inf")),
        ("1_000", "1_000"),
        ("nan", "nan"),
        ("\u0667", "\u0667"),
    ],
)
def test_numbers_are_read_as_spreadsheets_write_them(written: str, value: float | str) -> None:
    head, row = csv.reader(io.StringIO(summary_files.format_summary_csv(FOUR[:1])))
    row[head.index("docs_per_s_mean")] = written
    (run,) = summary_files.parse_summary_csv(summary_files.to_csv([head, row]))
    assert run.values["docs_per_s_mean"] == value
    is_number = isinstance(value, (int, float)) and math.isfinite(value)
    assert cells.group_by_cell([run])[0].numbers("docs_per_s_mean") == ([value] if is_number else [])


def test_probe_notes_are_shown_unless_they_are_the_invalid_reason() -> None:
    remarks = (
        Note(source="load", text="slow"),
        Note(source="gc", text="there is no GC log"),
        Note(source="gc", text="pauses differ", invalidates=True),
    )
    run = made.changed(FOUR[0], notes=remarks)
    assert cell_tables.list_notes([run]) == [f"{run.run}: slow", f"{run.run}: probe gc: there is no GC log"]
