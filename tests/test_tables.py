from __future__ import annotations

import csv
import io
import json
import math

import made_summaries as made
import pytest

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.model.experiment import Factor
from ingest_bench.model.results import Remark
from ingest_bench.report.tables import text_tables

FOUR = made.experiment(replicates=2, network=["loopback", "ethernet"], receive_predictor=["32KiB", "512KiB"])


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_summary_csv_has_one_row_a_run_and_the_columns_in_their_order() -> None:
    text = text_tables.summary_csv(FOUR)
    head = text.splitlines()[0].split(",")
    assert head[:6] == ["experiment", "run", "replicate", "state", "reason", "receive_predictor"]
    assert head[6:] == [*(column.name for column in COLUMNS), "instrumented"]
    assert len(rows(text)) == 8


def test_an_unavailable_number_is_an_empty_cell_and_a_zero_is_a_zero() -> None:
    row = rows(text_tables.summary_csv(FOUR))[0]
    assert row["retransmits"] == ""
    assert row["full_gcs"] == "0"
    assert row["response_ms_p50"] == "120.5"


def test_a_reason_with_commas_and_quotes_survives_the_csv() -> None:
    bad = made.changed(FOUR[0], state="invalid", reason='bytes: 1,000 "lost"\nand more')
    assert next(csv.DictReader(text_tables.summary_csv([bad]).splitlines(keepends=True)))["reason"] == bad.reason


def test_histograms_csv_counts_every_read_of_the_valid_runs_once() -> None:
    bad = made.changed(FOUR[1], state="invalid")
    found = rows(text_tables.histograms_csv([FOUR[0], bad]))
    assert {row["run"] for row in found} == {FOUR[0].run}
    assert sum(int(row["reads"]) for row in found) == sum(FOUR[0].histograms["read_bytes"].values())


def test_summary_json_keeps_the_exact_counts() -> None:
    first = json.loads(text_tables.summary_json(FOUR))[0]
    assert {int(size): count for size, count in first["histograms"]["read_bytes"].items()} == FOUR[0].histograms[
        "read_bytes"
    ]


def test_the_terminal_table_has_a_row_a_cell_with_the_median_and_the_ends() -> None:
    runs = made.experiment(replicates=3, network=["loopback"])
    rates = (900.0, 1000.0, 1400.0)
    runs = [made.changed(run, values={"docs_per_s_mean": rate}) for run, rate in zip(runs, rates, strict=True)]
    head, row = text_tables.terminal(runs)
    assert head[:2] == ["cell", "runs"]
    assert row[head.index("docs/s")] == "1,000 (900..1,400)"


def test_the_terminal_table_names_only_the_factors_that_vary_and_leaves_out_what_nobody_measured() -> None:
    head, *body = text_tables.terminal(FOUR)
    assert head[:3] == ["network", "receive_predictor", "runs"]
    assert "frame, median" not in head
    assert "failed requests" not in head
    assert [row[:2] for row in body] == [
        ["loopback", "32KiB"],
        ["loopback", "512KiB"],
        ["ethernet", "32KiB"],
        ["ethernet", "512KiB"],
    ]


def test_where_requests_failed_the_times_of_the_acknowledged_ones_stand_beside_those_of_all() -> None:
    times = {"response_ms_p99": 3000.0, "response_ok_ms_p99": 41.0}
    head, row = text_tables.terminal([made.changed(FOUR[0], values={**times, "requests_failed": 48})])
    at = head.index("response p99, ms")
    assert head[at + 1] == "p99 of acknowledged, ms"
    assert row[at : at + 2] == ["3,000", "41"]
    assert row[head.index("failed requests")] == "48"
    head, row = text_tables.terminal([made.changed(FOUR[0], values={**times, "requests_failed": 0})])
    assert "p99 of acknowledged, ms" not in head


def test_the_longest_response_time_stands_beside_the_percentile_that_hides_it() -> None:
    times = {"response_ms_p99": 9.3, "response_ms_max": 5005.6}
    head, row = text_tables.terminal([made.changed(FOUR[0], values=times)])
    at = head.index("response p99, ms")
    assert head[at + 1] == "response max, ms"
    assert row[at : at + 2] == ["9.3", "5,006"]


def test_an_invalid_run_has_no_number_in_the_table_and_is_named_beside_it() -> None:
    bad = made.changed(FOUR[0], state="invalid", reason="bytes differ", values={"docs_per_s_mean": 1e9})
    head, *body = text_tables.terminal([bad, *FOUR[1:]])
    assert body[0][head.index("runs")] == "1 of 2: invalid"
    assert "1,000,000,000" not in str(body)
    assert text_tables.not_shown([bad, *FOUR[1:]]) == [f"{bad.run}: invalid: bytes differ"]


def test_a_run_out_of_memory_is_a_result_and_no_number() -> None:
    oom = made.changed(FOUR[0], state="oom", reason="Java heap space")
    head, row = text_tables.terminal([oom])
    assert row[head.index("runs")] == "0 of 1: OOM"
    late = {"out_of_memory": "direct", "out_of_memory_after_s": 7.25}
    head, row = text_tables.terminal([made.changed(oom, values=late)])
    assert row[head.index("runs")] == "0 of 1: OOM (direct), numbers until then (7.25 s)"
    assert row[head.index("GC pauses")] == text_tables.terminal([FOUR[0]])[1][head.index("GC pauses")]
    both = [made.changed(oom, values=late), made.changed(FOUR[0], replicate=2)]
    head, row = text_tables.terminal(both)
    assert row[head.index("runs")] == "1 of 2: OOM (direct)"
    assert text_tables.not_shown([oom]) == []


def test_markdown_aligns_numbers_and_keeps_a_bar_inside_its_cell() -> None:
    assert text_tables.markdown([["a", "b"], ["x|y", "1"]]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n"


def test_cells_come_in_the_order_of_the_experiment_not_of_the_shuffle() -> None:
    factors = [
        Factor(key="network", levels=("loopback", "ethernet")),
        Factor(key="receive_predictor", levels=("32KiB", "512KiB")),
    ]
    assert cells.in_order(reversed(FOUR), factors) == FOUR


def test_a_run_under_costly_probes_gives_allocations_but_never_a_rate() -> None:
    plain, costly = FOUR[0], made.changed(FOUR[1], instrumented=True, values={"docs_per_s_mean": 9e9})
    plain = made.changed(plain, values={"outside_tlab_network_bytes": None})
    costly = made.changed(costly, values={"outside_tlab_network_bytes": 7 * 10**9, "gc_pauses": 10**9})
    head, row = text_tables.terminal([plain, costly])
    assert row[head.index("outside TLABs by network, GB")] == "7"
    assert str(10**9) not in str(row).replace(",", "")
    head, row = text_tables.terminal([costly])
    assert "docs/s" not in head
    assert row[head.index("GC pauses")] == "1,000,000,000"


def test_a_summary_csv_is_read_again_with_the_same_numbers_and_states() -> None:
    runs = [made.changed(FOUR[0], state="invalid", reason='a "reason", long'), *FOUR[1:]]
    again = text_tables.read_summary_csv(text_tables.summary_csv(runs))
    assert [(run.run, run.cell, run.replicate, run.state, run.reason) for run in again] == [
        (run.run, run.cell, run.replicate, run.state, run.reason) for run in runs
    ]
    assert text_tables.terminal(again)[1][1:] == text_tables.terminal(runs)[1][2:]
    assert again[1].values["retransmits"] is None


def test_a_file_that_is_no_summary_is_refused_with_its_reason() -> None:
    with pytest.raises(ValueError, match=r"no summary.csv: the column experiment is missing"):
        text_tables.read_summary_csv("a,b\n1,2\n")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("measured", "great", 'line 2: "great" is no state'),
        (",1,measured", ",x,measured", 'line 2: replicate: "x" is no whole number'),
    ],
)
def test_a_row_that_cannot_be_one_is_refused_with_its_line(old: str, new: str, said: str) -> None:
    text = text_tables.summary_csv(FOUR[:1])
    assert old in text
    with pytest.raises(ValueError, match=said):
        text_tables.read_summary_csv(text.replace(old, new))


def test_a_run_that_is_there_twice_is_refused_for_the_last_one_would_hide_the_others() -> None:
    head, row = text_tables.summary_csv(FOUR[:1]).splitlines()
    with pytest.raises(ValueError, match=f'line 3: the run "{FOUR[0].run}" is there twice'):
        text_tables.read_summary_csv(f"{head}\n{row}\n{row}\n")


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
def test_a_number_is_read_as_a_spreadsheet_writes_it(written: str, value: float | str) -> None:
    head, row = csv.reader(io.StringIO(text_tables.summary_csv(FOUR[:1])))
    row[head.index("docs_per_s_mean")] = written
    (run,) = text_tables.read_summary_csv(text_tables.csv_text([head, row]))
    assert run.values["docs_per_s_mean"] == value
    is_number = isinstance(value, (int, float)) and math.isfinite(value)
    assert cells.group([run])[0].numbers("docs_per_s_mean") == ([value] if is_number else [])


def test_what_a_probe_remarks_is_shown_and_what_makes_a_run_invalid_is_its_reason_alone() -> None:
    remarks = (
        Remark(probe="load", text="slow"),
        Remark(probe="gc", text="there is no GC log"),
        Remark(probe="gc", text="pauses differ", invalidates=True),
    )
    run = made.changed(FOUR[0], remarks=remarks)
    assert text_tables.notes([run]) == [f"{run.run}: slow", f"{run.run}: probe gc: there is no GC log"]


def test_a_change_between_single_runs_is_called_neither_distinct_nor_not() -> None:
    head, *rows = text_tables.comparisons(made.experiment(replicates=1, network=["loopback", "ethernet"]))
    assert rows
    assert {row[head.index("distinct")] for row in rows} == {"one run a side"}
