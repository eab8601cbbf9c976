"""Tables about one subject: published rows beneath ours, settings of the machine, acknowledged documents."""

from __future__ import annotations

import csv
from typing import Any

import example_summaries as made
import numpy as np
import pytest
from test_plots import assert_readable, figures, words

from ingest_bench.analysis.compare import cells
from ingest_bench.analysis.run import integrity, summary
from ingest_bench.model.results import Series, Summary
from ingest_bench.report import cell_tables, published
from ingest_bench.report.reports import REPORTS

TRIP = "peers.to_server.delay"
TRIPS = ("1ms", "50ms")


def table(topic: str, runs: list[Summary]) -> list[list[str]]:
    rows = cell_tables.topic_rows(cell_tables.TOPICS[topic], runs)
    assert {len(row) for row in rows} == {len(rows[0])}
    return rows


def cell(rows: list[list[str]], row: int, head: str) -> str:
    return rows[row][rows[0].index(head)]


def direct(threads: str = "1", limit: str = "128m", **values: object) -> Summary:
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


def forwarder(delivered: float = 2000.0, cap: float = 100.0, **levels: str) -> Summary:
    values = {
        "accepted_per_s": delivered,
        "delivered_per_s": delivered,
        "forwards_per_s": 100.0,
        "forwards_cap_per_s": cap,
        "delivery_ms_p50": 120.0,
        "delivery_ms_p99": 240.0,
        "lost_documents": 0,
        "delivered_twice": 0,
    }
    keys = {TRIP if key == "trip" else f"setting.{key}": level for key, level in levels.items()}
    return made.changed(made.summary(keys), values=values, nodes=({}, {}))


def forwarders_by_trip() -> list[Summary]:
    rates = {"blocking": (9000.0, 2000.0), "asynchronous": (18_000.0, 16_000.0)}
    return [
        forwarder(rate, waiting=waiting, trip=trip)
        for waiting, both in rates.items()
        for trip, rate in zip(TRIPS, both, strict=True)
    ]


def elasticsearch(**values: object) -> list[Summary]:
    """A cell with the issue's conditions: one run for rates, one for allocations."""
    levels = {"network": "ethernet", "receive_predictor": "512KiB"}
    measured = {"outside_tlab_count": 8_000, "outside_tlab_network_bytes": 35_000_000_000, "bytes_measured": 10**9}
    conditions = {"workload": "nyc_taxis", "receive_predictor_bytes": 512 << 10, "heap_bytes": 2 << 30}
    plain = made.changed(made.summary(levels, 1), values=conditions | {"outside_tlab_network_bytes": None})
    costly = made.changed(made.summary(levels, 2), instrumented=True, values=conditions | measured | values)
    return [plain, costly]


def thp(level: str, replicate: int, **values: object) -> Summary:
    run = made.summary({"host.transparent_hugepages": level}, replicate)
    return made.changed(run, values={"docs_per_s_mean": 1700.0, **values})


def acknowledged(fault: str, target: str, replicate: int = 1, **values: Any) -> Summary:
    counts = {"documents_acked": 1000, "documents_counted": 1000, "documents_check": "counted", **values}
    return made.changed(made.summary({"fault": fault, "target": target}, replicate), values=counts)


PLAIN = [made.summary({"network": name}) for name in ("loopback", "ethernet")]


def test_experiment_without_a_topic_has_no_table_and_no_picture() -> None:
    with figures():
        pictures = REPORTS["pictures"](PLAIN)
    for report in ("direct-memory", "forwarding", "machine", "acknowledged"):
        assert REPORTS[report](PLAIN) == {}
        assert f"report/{report}.png" not in pictures


def test_published_direct_allocations_are_converted_to_our_columns() -> None:
    first, two, large, small = (row.values for row in published.load_allocations())
    assert first["direct_allocations_per_system_gc"] == pytest.approx(484_851 / 2_373)
    # The two times that were published.
    assert [values["direct_allocation_ms_mean"] for values in (first, two)] == pytest.approx([0.12, 0.16], abs=0.005)
    assert "direct_allocations_per_system_gc" not in two
    assert (large.get("direct_sleeps"), small["direct_sleeps"]) == (None, "1 ms: 35, 2 ms: 1")


@pytest.mark.parametrize(
    ("threads", "limit", "mode", "allocations"),
    [
        ("128", "512m", "alone", 909_960),
        ("128", "128MiB", "alone", 579_943),
        ("16", "128m", "alone", None),
        ("128", "512m", "fed", None),
    ],
)
def test_published_allocations_match_threads_limit_and_mode(
    threads: str, limit: str, mode: str, allocations: int | None
) -> None:
    run = direct(threads, limit)
    (row,) = cells.group_by_cell([made.changed(run, levels={**run.levels, "setting.mode": mode})])
    matches = [theirs.values["direct_allocations_per_s"] for theirs in published.allocation_rows(row)]
    assert matches == ([allocations / 60] if allocations else [])


@pytest.mark.parametrize("unknown", [("p99",), ("p50", "p99")])
def test_picture_of_direct_memory_has_rows_for_few_buffers_and_for_oom(unknown: tuple[str, ...]) -> None:
    few = made.changed(direct(), values=dict.fromkeys(f"direct_allocation_ms_{name}" for name in unknown))
    nothing = dict.fromkeys((name for name in direct().values if name.startswith("direct")), None)
    oom = made.changed(direct("2"), values=nothing, state="oom", reason="direct: no more")
    with figures() as drawn:
        assert next(iter(REPORTS["pictures"]([few, oom]))) == "report/direct-memory.png"
    points = [np.array(collection.get_offsets())[:, 0].tolist() for collection in drawn[0].axes[0].collections]
    # Waits, our mean, and the published one.
    assert points == [[20.0, 3500.0], [0.12], [pytest.approx(0.1237, abs=1e-4)]]
    assert "OOM" in words(drawn[0])
    assert_readable(drawn[0])


def test_direct_buffer_missing_from_the_recording_invalidates_a_run() -> None:
    assert summary.server_count_columns({"direct_allocations": 7}, ()) == {"server_direct_allocations": 7}
    values = {"server_direct_allocations": 1007, "direct_allocations_recorded": 1006}
    text = integrity.describe_allocation_mismatch(values)
    assert text == "direct buffers: the server allocated 1,007, and 1,006 were recorded"
    assert integrity.describe_allocation_mismatch(values | {"direct_allocations_recorded": None}) == ""


def test_asynchronous_cell_is_compared_with_its_blocking_one() -> None:
    assert published.load_forwarding() == {("rounds_per_s", "100"): "50", ("asynchronous_by_blocking", ""): "5 to 10"}
    rows = table("forwarding", forwarders_by_trip())
    assert [(row[0], row[-1]) for row in rows[1:]] == [
        *(("ours", ""), ("ours", "")),
        *(("ours", "2"), ("published", "5 to 10"), ("ours", "8"), ("published", "5 to 10")),
    ]


@pytest.mark.parametrize(
    ("delay", "cap", "theirs"), [("100ms", 100.0, ["50"]), ("20ms", 100.0, []), ("100ms", 20.0, [])]
)
def test_published_rounds_match_batch_delay_and_cap(delay: str, cap: float, theirs: list[str]) -> None:
    rows = table("forwarding", [forwarder(cap=cap, batch_delay=delay)])
    # 100 forwards/s of two nodes with one peer each.
    assert [row[rows[0].index("forwards/s, node to peer")] for row in rows[1:]] == ["50", *theirs]


@pytest.mark.parametrize("others", [0.0, 9e9])
def test_picture_of_forwarding_is_first_and_readable_with_nothing_or_much_delivered(others: float) -> None:
    rates = {"blocking": (others, 0.0), "asynchronous": (0.0, others), "x" * 100: (others, others)}
    runs = [
        forwarder(rate, waiting=waiting, trip=trip)
        for waiting, both in rates.items()
        for trip, rate in zip(TRIPS, both, strict=True)
    ]
    with figures() as drawn:
        for shown in (runs, [forwarder(batch_delay="20ms"), forwarder(batch_delay="100ms")]):
            assert next(iter(REPORTS["pictures"](shown))) == "report/forwarding.png"
    assert "blocking  0" in words(drawn[0])
    assert_readable(drawn[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("56 bytes", 56), ("13.76 kB", 13.76 * 1024), ("1.39 GB/s", 1.39 * 2**30), ("42890", 42890), ("OOMEd", None)],
)
def test_mission_control_units_are_powers_of_1024(text: str, expected: float | None) -> None:
    assert published.parse_es23185_number(text) == expected


def test_published_totals_are_count_times_mean_and_oom_has_none_per_gb() -> None:
    rows = published.load_es23185()
    assert len(rows) == 12 + 12 + 2
    for row in rows:
        for kind in ("outside_tlab", "tlab"):
            values = [float(row.values.get(f"{kind}_{name}", 0)) for name in ("count", "mean_bytes", "total_bytes")]
            assert values[0] * values[1] == pytest.approx(values[2], rel=0.01)
    (oom,) = [row for row in rows if row.values.get("docs_per_s_mean") == "OOM"]
    assert oom.conditions == {"workload": "pmc", "receive predictor": 32 << 10, "heap": 2 << 30}
    assert "outside_tlab_total_bytes_per_gb" not in oom.values


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (("nyc_taxis", 64 << 10, 4 << 30, "loopback"), {"docs_per_s_mean": 56280}),
        (("nyc_taxis", 512 << 10, 3 << 30, "ethernet"), {"outside_tlab_network_bytes": 2.13 * 2**40}),
        (("nyc_taxis", 64 << 10, 3 << 30, "loopback"), {}),
        (("http_logs", 64 << 10, 4 << 30, "loopback"), {}),
        (("nyc_taxis", 512 << 10, 3 << 30, "jumbo"), {}),
    ],
)
def test_es_23185_row_matches_only_its_conditions(
    conditions: tuple[str, int, int, str], expected: dict[str, float]
) -> None:
    names = ("workload", "receive_predictor_bytes", "heap_bytes", "network")
    run = made.changed(made.summary({"network": "ethernet"}), values=dict(zip(names, conditions, strict=True)))
    rows = list(published.es23185_rows(cells.group_by_cell([run])[0], ()))
    assert [{name: row.values[name] for name in expected} for row in rows] == ([expected] if expected else [])


def test_es_23185_rows_stand_beneath_ours_for_each_gb() -> None:
    rows = table("es-23185", elasticsearch(docs_per_s_mean=1.0))
    assert [row[0] for row in rows] == ["", "ours", "published"]
    assert [cell(rows, row, "network layer/GB") for row in (1, 2)] == ["35 GB", "29.3 GB"]
    assert cell(rows, 1, "outside TLABs: objects/GB") == "8,000"
    # Rates are of the run without costly probes.
    assert int(cell(rows, 1, "docs/s (theirs: median)").replace(",", "")) > 1000


def test_published_row_is_beneath_its_cell_with_the_levels_of_the_issue() -> None:
    runs = [
        made.changed(run, levels={"receive_predictor": "64KiB", "allocator": allocator}, cell=allocator)
        for allocator in ("pooled", "unpooled")
        for run in elasticsearch()
    ]
    runs = [made.changed(run, values={"receive_predictor_bytes": 64 << 10}) for run in runs]
    rows = [row[:2] for row in table("es-23185", runs)]
    assert rows == [["", "allocator"], ["ours", "pooled"], ["published", ""], ["ours", "unpooled"], ["published", ""]]
    other = [made.changed(run, values={"heap_bytes": 3 << 30, "network": "jumbo"}, state="oom") for run in runs]
    assert [row[:3] for row in table("es-23185", other)[1:]] == [
        ["ours", name, "OOM"] for name in ("pooled", "unpooled")
    ]
    rows = table("direct-memory", [direct(), direct("16")])
    assert [row[0] for row in rows] == ["", "ours", "published", "ours"]
    assert cell(rows, 2, "allocations/s") == "8,081"


def test_es_23185_csv_has_plain_numbers_and_requires_allocations() -> None:
    files = REPORTS["es-23185"](elasticsearch())
    rows = list(csv.DictReader(files["report/es-23185.csv"].decode().splitlines()))
    assert [row["source"] for row in rows] == ["ours", "published"]
    assert float(rows[0]["outside_tlab_network_bytes_per_gb"]) == 35e9
    plain = [made.changed(run, values={"outside_tlab_count": None}) for run in elasticsearch()]
    assert REPORTS["es-23185"](plain) == {}


def test_machine_table_leaves_out_columns_without_numbers() -> None:
    counted = {
        "docs_per_s_p10": 900.0,
        "server_context_switches_voluntary": 12_000,
        "thp_fault_alloc": None,
        "pgmajfault": 3,
        "numa_pages_migrated": None,
    }
    runs = [
        thp("always", 1, **counted | {"thp_fault_alloc": 60}),
        thp("always", 2, **counted | {"thp_fault_alloc": 80}),
        thp("never", 1, **counted | {"thp_fault_alloc": 0}),
    ]
    head, *rows = csv.reader(REPORTS["machine"](runs)["report/machine.csv"].decode().splitlines())
    assert head[:3] == ["transparent hugepages", "runs", "docs/s"]
    assert {"huge pages by faults", "its seconds, p10", "its context switches, voluntary"} <= set(head)
    assert not {"in the kernel, s", "pages moved between nodes"} & set(head)
    place = head.index("huge pages by faults")
    assert [row[place] for row in rows] == ["70 (60..80)", "0"]


def test_acknowledged_table_has_a_row_per_fault_and_a_column_per_target() -> None:
    lost = acknowledged("reset", "kafka", documents_counted=995)
    runs = [
        acknowledged("none", "kafka"),
        acknowledged("none", "sink", documents_acked=1200, documents_repeated=200),
        made.changed(lost, state="invalid", reason="documents: 1,000 acknowledged, 995 counted, -5"),
        # Numbered documents can show more losses than the difference of the counts.
        acknowledged("reset", "sink", documents_counted=1000, lost_documents=7),
        made.changed(acknowledged("kill", "kafka"), state="inapplicable", reason="kill: no files"),
        acknowledged("kill", "sink", documents_counted=990, lost_documents=10),
        made.changed(acknowledged("pause", "kafka"), state="failed", reason="fault: it could not be\nlog: more"),
        made.changed(acknowledged("pause", "sink"), state="invalid", reason="a check failed"),
        acknowledged("gc", "kafka", documents_counted=None),
        # Equal replicates are listed once.
        *(acknowledged("flush", "kafka", replicate) for replicate in (1, 2)),
        acknowledged("flush", "kafka", 3, documents_counted=990),
    ]
    assert cell_tables.acknowledged_rows(runs) == [
        ["fault", "kafka", "sink"],
        ["none", "all 1,000 there", "all 1,000 there"],
        ["reset", "5 of 1,000 lost", "7 of 1,000 lost"],
        ["kill", "does not apply: kill: no files", "10 of 1,000 lost"],
        ["pause", "failed: fault: it could not be", "invalid: a check failed"],
        ["gc", "cannot be counted", ""],
        ["flush", "all 1,000 there; 10 of 1,000 lost", ""],
    ]
