"""Forwarding as a table and a picture: our rows, and what Data Prepper's pull request 6394 published beneath them."""

from __future__ import annotations

import made_summaries as made
import pytest
from test_plots import assert_readable, figures, words

from ingest_bench.analysis.compare import cells
from ingest_bench.inputs import data
from ingest_bench.model.results import Summary
from ingest_bench.report import REPORTS, published_rows
from ingest_bench.report.plots import plots_forwarding
from ingest_bench.report.tables import forwarding_table

PUBLISHED = forwarding_table.read((data.folder("results/reference/published") / "data-prepper-6394.csv").read_text())
TRIP = "peers.to_server.delay"
TRIPS = ("1ms", "50ms")


def ours(delivered: float = 2000.0, forwards: float = 100.0, cap: float = 100.0, **levels: str) -> Summary:
    values = {
        "accepted_per_s": delivered,
        "delivered_per_s": delivered,
        "forwards_per_s": forwards,
        "forwards_cap_per_s": cap,
        "delivery_ms_p50": 120.0,
        "delivery_ms_p99": 240.0,
        "lost_documents": 0,
        "delivered_twice": 0,
    }
    keys = {TRIP if key == "trip" else f"setting.{key}": level for key, level in levels.items()}
    return made.changed(made.summary(keys), values=values, nodes=({}, {}))


def by_trip() -> list[Summary]:
    rates = {
        ("blocking", "1ms"): 9000.0,
        ("blocking", "50ms"): 2000.0,
        ("asynchronous", "1ms"): 18_000.0,
        ("asynchronous", "50ms"): 16_000.0,
    }
    return [ours(rate, waiting=waiting, trip=trip) for (waiting, trip), rate in rates.items()]


def test_what_was_published_is_read() -> None:
    assert [(one.figure, one.batch_delay_ns, one.text) for one in PUBLISHED] == [
        ("rounds_per_s", 100_000_000, "50"),
        ("asynchronous_by_blocking", None, "5 to 10"),
    ]


def test_a_cell_that_does_not_wait_stands_beside_the_one_that_does() -> None:
    rows = cells.group(by_trip())
    times = [forwarding_table.times_faster(row, rows) for row in rows]
    assert times == [None, None, 2, 8]
    table = forwarding_table.table(by_trip(), PUBLISHED)
    assert {len(row) for row in table} == {len(table[0])}
    assert [(row[0], row[-1]) for row in table[1:]] == [
        ("ours", ""),
        ("ours", ""),
        ("ours", "2"),
        ("published", "5 to 10"),
        ("ours", "8"),
        ("published", "5 to 10"),
    ]


@pytest.mark.parametrize(
    ("delay", "cap", "published"), [("100ms", 100.0, "50"), ("20ms", 100.0, None), ("100ms", 20.0, None)]
)
def test_the_published_cap_stands_beneath_the_same_delay_and_cap_of_each_node(
    delay: str, cap: float, published: str | None
) -> None:
    head, row, *beneath = forwarding_table.table([ours(cap=cap, batch_delay=delay)], PUBLISHED)
    place = head.index("forwards/s, node to peer")
    # A hundred forwards of two nodes, of which each has one peer.
    assert row[place] == "50"
    assert [one[place] for one in beneath] == ([] if published is None else [published])


@pytest.mark.parametrize("others", [0.0, 9000.0, 1_234_567.0, 9e9])
def test_a_cell_that_delivers_nothing_and_one_that_delivers_much_are_named_on_the_page(others: float) -> None:
    rates = {"blocking": (others, 0.0), "asynchronous": (0.0, others), "x" * 100: (others, others)}
    found = [
        ours(rate, waiting=waiting, trip=trip)
        for waiting, both in rates.items()
        for trip, rate in zip(TRIPS, both, strict=True)
    ]
    with figures() as drawn:
        assert plots_forwarding.forwarding(found) is not None
    assert "blocking  0" in words(drawn[0])
    assert_readable(drawn[0])


def test_the_names_of_many_cells_that_deliver_as_much_stand_below_one_another_on_the_page() -> None:
    rates = {f"w{number}": 9000.0 if number else 90.0 for number in range(14)}
    with figures() as drawn:
        plots_forwarding.forwarding([ours(rates[name], waiting=name, trip=trip) for name in rates for trip in TRIPS])
    assert_readable(drawn[0])


def test_there_is_no_table_and_no_picture_where_nobody_forwards_anything() -> None:
    plain = [made.summary({"network": "ethernet"})]
    assert REPORTS["forwarding"](plain) == {}
    assert "report/forwarding.png" not in REPORTS["pictures"](plain)
    assert published_rows(plain) == {}


@pytest.mark.parametrize(
    "found",
    [by_trip(), [ours(batch_delay="20ms"), ours(batch_delay="100ms")], [ours()]],
    ids=["by round trip", "by cell", "one cell"],
)
def test_the_picture_is_the_first_one(found: list[Summary]) -> None:
    files = REPORTS["pictures"](found)
    assert next(iter(files)) == "report/forwarding.png"
    assert files["report/forwarding.png"].startswith(b"\x89PNG")
    assert "report/forwarding.md" in REPORTS["forwarding"](found)
