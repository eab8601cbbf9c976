from __future__ import annotations

import csv

import made_summaries as made
import pytest

from ingest_bench.analysis.buffers import published
from ingest_bench.inputs import data
from ingest_bench.model.results import Summary
from ingest_bench.report import REPORTS
from ingest_bench.report.tables import es23185_table

FOLDER = data.folder("results/reference/published")
PMC = published.rows((FOLDER / "es-23185-pmc.csv").read_text(), "pmc")
NYC = published.rows((FOLDER / "es-23185-nyc_taxis.csv").read_text(), "nyc_taxis")
NETWORK = published.rows((FOLDER / "es-23185-network.csv").read_text())
ALL = [*PMC, *NYC, *NETWORK]


def ours(**values: object) -> list[Summary]:
    """A cell of the issue's conditions: one run for rates, one for allocations."""
    levels = {"network": "ethernet", "receive_predictor": "512KiB"}
    measured = {"outside_tlab_count": 8_000, "outside_tlab_network_bytes": 35_000_000_000, "bytes_measured": 10**9}
    conditions = {"workload": "nyc_taxis", "receive_predictor_bytes": 512 << 10, "heap_bytes": 2 << 30}
    plain = made.changed(made.summary(levels, 1), values=conditions | {"outside_tlab_network_bytes": None})
    costly = made.changed(made.summary(levels, 2), instrumented=True, values=conditions | measured | values)
    return [plain, costly]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("56 bytes", 56), ("13.76 kB", 13.76 * 1024), ("1.39 GB/s", 1.39 * 2**30), ("42890", 42890), ("OOMEd", None)],
)
def test_the_numbers_of_mission_control_are_powers_of_1024(text: str, expected: float | None) -> None:
    assert published.number(text) == expected


def test_every_published_row_is_read_and_its_totals_agree_with_count_times_mean() -> None:
    assert (len(PMC), len(NYC), len(NETWORK)) == (12, 12, 2)
    for row in PMC:
        for kind in ("outside_tlab", "tlab"):
            product = row.values[f"{kind}_count"] * row.values[f"{kind}_mean_bytes"]
            assert product == pytest.approx(row.values[f"{kind}_total_bytes"], rel=0.01)


def test_the_row_that_ran_out_of_memory_has_no_value_for_each_gb() -> None:
    (row,) = [row for row in ALL if row.ran_out_of_memory]
    assert (row.workload, row.heap_bytes, row.receive_predictor_bytes) == ("pmc", 2 << 30, 32 << 10)
    assert row.values["outside_tlab_total_bytes"] > 0
    assert "outside_tlab_total_bytes_per_gb" not in row.values
    assert "docs_per_s_mean" not in row.values


def test_a_row_matches_only_its_own_heap_buffer_and_network() -> None:
    found = published.matching(NYC, "nyc_taxis", 64 << 10, 4 << 30, "loopback")
    assert found is not None
    assert found.values["docs_per_s_mean"] == 56280
    assert published.matching(NYC, "nyc_taxis", 64 << 10, 3 << 30, "loopback") is None
    assert published.matching(NYC, "pmc", 64 << 10, 4 << 30, "loopback") is None
    ethernet = published.matching(NETWORK, "nyc_taxis", 512 << 10, 2 << 30, "ethernet")
    assert ethernet is not None
    assert ethernet.values["outside_tlab_network_bytes_per_gb"] == pytest.approx(2.13 * 2**40 / 79.802445255)
    assert published.matching(NETWORK, "nyc_taxis", 512 << 10, 2 << 30, "jumbo") is None


def test_the_published_row_stands_beneath_ours_for_each_gb_ingested() -> None:
    head, mine, theirs = es23185_table.table(ours(), ALL)
    place = head.index("network layer/GB")
    assert (mine[0], mine[place]) == ("ours", "35 GB")
    assert (theirs[0], theirs[place]) == ("published", "29.3 GB")
    assert mine[head.index("outside TLABs: objects/GB")] == "8,000"


def test_a_published_row_claims_only_the_levels_that_the_issue_says() -> None:
    runs = [
        made.changed(run, levels={"receive_predictor": "64KiB", "allocator": allocator}, cell=allocator)
        for allocator in ("pooled", "unpooled")
        for run in ours(receive_predictor_bytes=64 << 10)
    ]
    runs = [made.changed(run, values={"receive_predictor_bytes": 64 << 10}) for run in runs]
    rows = [row[:2] for row in es23185_table.table(runs, ALL)]
    assert rows == [["", "allocator"], ["ours", "pooled"], ["published", ""], ["ours", "unpooled"], ["published", ""]]


def test_rates_come_from_the_run_without_costly_probes() -> None:
    head, mine, _ = es23185_table.table(ours(docs_per_s_mean=1.0), ALL)
    assert int(mine[head.index("docs/s (theirs: median)")].replace(",", "")) > 1000


def test_a_cell_that_the_issue_does_not_have_stands_alone() -> None:
    runs = [made.changed(run, values={"heap_bytes": 3 << 30, "network": "jumbo"}) for run in ours()]
    assert [row[0] for row in es23185_table.table(runs, ALL)[1:]] == ["ours"]


def test_our_own_run_out_of_memory_is_named_in_its_row() -> None:
    runs = [made.changed(run, state="oom") for run in ours()]
    assert es23185_table.table(runs, ALL)[1][3] == "OOM"


def test_a_published_row_that_ran_out_of_memory_has_no_rate_and_keeps_what_it_allocated() -> None:
    conditions = {"workload": "pmc", "receive_predictor_bytes": 32 << 10, "heap_bytes": 2 << 30}
    runs = [made.changed(run, levels={"receive_predictor": "32KiB"}, values=conditions) for run in ours()]
    head, _, theirs = es23185_table.table(runs, ALL)
    shown = dict(zip(head, theirs, strict=True))
    assert shown["docs/s (theirs: median)"] == "OOM"
    assert "OOM" not in {text for name, text in shown.items() if name != "docs/s (theirs: median)"}


def test_the_files_are_there_only_when_allocations_were_measured() -> None:
    files = REPORTS["es-23185"](ours())
    rows = list(csv.DictReader(files["report/es-23185.csv"].decode().splitlines()))
    assert [row["source"] for row in rows] == ["ours", "published"]
    assert float(rows[0]["outside_tlab_network_bytes_per_gb"]) == 35e9
    plain = [made.changed(run, values={"outside_tlab_count": None}) for run in ours()]
    assert REPORTS["es-23185"](plain) == {}
