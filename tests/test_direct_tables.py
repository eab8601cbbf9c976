"""Direct buffers as a table and a picture: our rows, and what JDK-6857566 published beneath them."""

from __future__ import annotations

import made_summaries as made
import numpy as np
import pytest
from test_plots import figures, words

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.run import integrity, summary
from ingest_bench.inputs import data
from ingest_bench.model.results import Series, Summary
from ingest_bench.report import REPORTS, published_rows
from ingest_bench.report.plots import plots_direct
from ingest_bench.report.tables import direct_memory_table

PUBLISHED = direct_memory_table.read((data.folder("results/reference/published") / "jdk-6857566.csv").read_text())


def ours(threads: str = "1", limit: str = "128m", **values: object) -> Summary:
    measured = {
        "direct_allocations": 30_000,
        "direct_allocations_per_s": 6_000.0,
        "direct_allocation_ms_mean": 0.12,
        "direct_allocation_ms_p50": 0.03,
        "direct_allocation_ms_p99": 0.4,
        "direct_allocation_ms_max": 3500.0,
        "system_gcs": 148,
        "direct_allocations_per_system_gc": 203.0,
        "direct_sleeps": "1 ms: 9",
    }
    levels = {"setting.threads": threads, "setting.max_direct_memory": limit}
    waits = Series("direct_wait_ms", (made.START_NS, made.START_NS + 10**9), (20.0, 3500.0))
    return made.changed(made.summary(levels), values=measured | values, series={"direct_wait_ms": waits})


def test_what_was_published_is_read_in_our_columns() -> None:
    one, two, large, small = PUBLISHED
    assert one.values["direct_allocations_per_system_gc"] == pytest.approx(484_851 / 2_373)
    assert one.mean_ms == 1e3 * one.seconds / one.allocations
    assert two.mean_ms == 1e3 * two.seconds * two.threads / two.allocations
    # The two times that were published.
    assert (round(one.mean_ms, 2), round(two.mean_ms, 2)) == (0.12, 0.16)
    assert "direct_allocations_per_system_gc" not in two.values
    assert (large.sleeps, small.sleeps) == ("", "1 ms: 35, 2 ms: 1")


@pytest.mark.parametrize(
    ("threads", "limit", "allocations"), [("128", "512m", 909_960), ("128", "128MiB", 579_943), ("16", "128m", None)]
)
def test_the_published_row_of_the_same_threads_and_limit_stands_beneath_ours(
    threads: str, limit: str, allocations: int | None
) -> None:
    (row,) = cells.group([ours(threads, limit)])
    found = direct_memory_table.matching(row, PUBLISHED)
    assert (None if found is None else found.allocations) == allocations


def test_a_server_that_the_network_feeds_has_no_published_row() -> None:
    fed = made.changed(ours(), levels={**ours().levels, "setting.mode": "fed"})
    (row,) = cells.group([fed])
    assert direct_memory_table.matching(row, PUBLISHED) is None


def test_the_table_has_both_rows_and_the_screen_shows_it_only_then() -> None:
    title = "beside JDK-6857566"
    rows = published_rows([ours(), ours("16")])[title]
    assert [row[0] for row in rows] == ["", "ours", "published", "ours"]
    assert {len(row) for row in rows} == {len(rows[0])}
    assert rows[2][rows[0].index("allocations/s")] == "8,081"
    assert title not in published_rows([ours("16")])


def test_there_is_no_table_and_no_picture_where_no_server_tells_of_its_buffers() -> None:
    plain = [made.summary({"network": "ethernet"})]
    assert REPORTS["direct-memory"](plain) == {}
    assert "report/direct-memory.png" not in REPORTS["pictures"](plain)


def test_the_picture_has_a_row_for_one_that_ran_out_of_memory_too() -> None:
    nothing = dict.fromkeys((name for name in ours().values if name.startswith("direct")), None)
    gone = made.changed(ours("2"), values=nothing, state="oom", reason="direct: no more")
    files = REPORTS["pictures"]([ours(), gone])
    assert next(iter(files)) == "report/direct-memory.png"
    assert files["report/direct-memory.png"].startswith(b"\x89PNG")


@pytest.mark.parametrize("unknown", [("p99",), ("p50", "p99")])
def test_a_row_of_too_few_buffers_for_a_percentile_has_its_mean_and_its_waits(unknown: tuple[str, ...]) -> None:
    few = made.changed(ours(), values=dict.fromkeys(f"direct_allocation_ms_{name}" for name in unknown))
    with figures() as drawn:
        assert plots_direct.waits([few]) is not None
    assert "not measured" not in words(drawn[0])
    points = [np.array(collection.get_offsets())[:, 0].tolist() for collection in drawn[0].axes[0].collections]
    assert points == [[20.0, 3500.0], [0.12]]


def test_a_buffer_that_the_server_counted_and_nobody_recorded_makes_a_run_invalid() -> None:
    assert summary.own_counts({"direct_allocations": 7}, ()) == {"server_direct_allocations": 7}
    values = {"server_direct_allocations": 1007, "direct_allocations_recorded": 1006}
    assert integrity.own_allocations(values) == ["direct buffers: the server allocated 1,007, and 1,006 were recorded"]
    assert integrity.own_allocations(values | {"direct_allocations_recorded": None}) == []
