from __future__ import annotations

import dataclasses
from typing import Any

import made_runs as made
import numpy as np
import pytest

from ingest_bench.analysis import samples as load
from ingest_bench.analysis.columns import COLUMNS
from ingest_bench.analysis.samples import Samples
from ingest_bench.analysis.summary import summarise
from ingest_bench.model.experiment import Cell, RunState
from ingest_bench.model.network import Profile, Promise
from ingest_bench.model.results import Happened, Summary


def summary(
    samples: Samples | None = None,
    *,
    record: dict[str, Any] | None = None,
    report: dict[str, Any] | None = None,
    measured: dict[str, Any] | None = None,
    cell: Cell | None = None,
) -> Summary:
    return summarise(
        made.record(**(record or {})),
        cell or made.cell(),
        made.steady() if samples is None else samples,
        made.report(**(report or {})),
        made.measured(**(measured or {})),
        experiment="quickstart",
    )


def test_a_whole_run_is_measured_and_has_its_numbers() -> None:
    row = summary()
    assert (row.state, row.reason) == ("measured", "")
    expected = {
        "network": "ethernet",
        "target": "opensearch 2.19.6",
        "workload": "nyc_taxis",
        "receive_predictor_bytes": 524288,
        "documents_acked": 7000,
        "docs_per_s_median": 1000,
        "docs_per_s_mean": 1000,
        "bytes_sent": 3_500_000,
        "bytes_measured": 2_500_000,
        "reads": 100,
        "read_bytes_p50": 1448,
        "read_bytes_p99": 65536,
        "read_bytes_mean": 0.6 * 1448 + 0.4 * 65536,
        "response_ms_p50": pytest.approx(10),
        "gc_pauses": 3,
        "requests": 50,
        "requests_failed": 0,
        "stalled_s": 0,
    }
    assert {name: row.values[name] for name in expected} == expected


def test_every_column_is_there_and_what_nobody_measured_is_none() -> None:
    row = summary()
    assert set(row.values) == {column.name for column in COLUMNS}
    assert row.values["heap_after_gc_max_bytes"] is None
    assert row.values["retransmits"] is None
    assert row.values["recovery_s"] is None


def test_the_series_start_with_the_warm_up_and_stand_on_the_real_clock() -> None:
    row = summary()
    assert row.series["docs_per_s"].values == (1000.0,) * 7
    assert row.series["docs_per_s"].at_ns[2] == made.START + made.OFFSET + 2 * made.SECOND == row.measure_start_ns


def test_bytes_that_the_jvm_did_not_read_make_a_run_invalid() -> None:
    row = summary(measured={"bytes_read": 3_499_999})
    assert row.state == "invalid"
    assert row.reason == "bytes: the load wrote 3,500,000, the JVM read 3,499,999, -1"


def test_more_bytes_read_than_written_make_a_run_invalid() -> None:
    assert summary(measured={"bytes_read": 3_500_001}).state == "invalid"


def test_only_requests_without_an_answer_may_miss_bytes_and_add_documents() -> None:
    reset = made.samples([made.sample(3, 3.5, outcome="connection-error", status=0)])
    rows = np.concatenate([made.steady(), reset])
    written = {"bytes_written": 3_550_000}
    arrived = summary(rows, report=written, measured={"bytes_read": 3_550_000}, record={"documents_counted": 7100})
    lost = summary(rows, report=written, measured={"bytes_read": 3_510_000}, record={"documents_counted": 7000})
    too_few = summary(rows, report=written, measured={"bytes_read": 3_499_999})
    too_many = summary(rows, report=written, measured={"bytes_read": 3_550_000}, record={"documents_counted": 7101})
    assert [row.state for row in (arrived, lost, too_few, too_many)] == ["measured", "measured", "invalid", "invalid"]
    assert arrived.values["requests_failed"] == 1


def test_an_acknowledged_document_that_is_not_in_the_index_makes_a_run_invalid() -> None:
    row = summary(record={"documents_counted": 6999})
    assert row.state == "invalid"
    assert row.reason == "documents: 7,000 acknowledged, 6,999 counted, -1"


def test_a_broken_promise_makes_a_run_invalid_and_is_named() -> None:
    promise = Promise(name="rate", promised="1gbit", measured="412mbit", tolerance="5%", kept=False)
    row = summary(record={"promises": (promise,)})
    assert row.state == "invalid"
    assert "rate was promised as 1gbit (5%), measured 412mbit" in row.reason


def test_all_reasons_are_given_not_only_the_first() -> None:
    row = summary(measured={"bytes_read": 1}, record={"documents_counted": 1})
    assert "bytes:" in row.reason
    assert "documents:" in row.reason


def test_a_probe_that_saw_no_byte_is_blind_and_its_numbers_are_unavailable() -> None:
    row = summary(measured={"bytes_read": 0})
    assert row.state == "measured"
    assert row.values["bytes_read"] is None
    assert row.values["reads"] is None
    assert "read_bytes" not in row.histograms


@pytest.mark.parametrize("state", ["failed", "invalid", "oom", "started"])
def test_a_run_that_did_not_end_well_keeps_its_state_and_reason(state: RunState) -> None:
    row = summarise(made.record(state=state, reason="the server died"), made.cell(), made.samples([]), None, [])
    assert (row.state, row.reason) == (state, "the server died")
    assert row.values["documents_acked"] is None
    assert row.values["docs_per_s_median"] is None


def test_a_run_that_ended_out_of_memory_has_what_was_measured_until_then() -> None:
    start = made.START + made.OFFSET
    record = {
        "state": "oom",
        "out_of_memory": "heap",
        "out_of_memory_realtime_ns": start + 4 * made.SECOND,
        "measure_start_realtime_ns": start + 2 * made.SECOND,
        "measure_end_realtime_ns": start + 4 * made.SECOND,
    }
    rows = made.steady()
    rows = rows[rows["done_ns"] < made.START + 4 * made.SECOND]
    refused = made.samples([made.sample(5, 5.001, outcome="connection-error") for _ in range(9)])
    row = summary(np.concatenate([rows, refused]), record=record)
    assert (row.state, row.values["out_of_memory"], row.values["out_of_memory_after_s"]) == ("oom", "heap", 4)
    assert (row.values["docs_per_s_median"], row.values["docs_per_s_mean"]) == (1000, 1000)
    assert (row.values["requests"], row.values["requests_failed"], row.values["stalled_s"]) == (20, 0, 0)
    assert row.measure_end_ns == start + 4 * made.SECOND


def test_a_run_without_requests_is_invalid() -> None:
    assert summary(made.samples([])).reason == "no request was sent"


def test_a_stalled_server_shows_in_response_time_but_not_in_service_time() -> None:
    rows = made.steady()
    late = rows["planned_ns"] >= made.START + 6 * made.SECOND
    rows["sent_ns"][late] += made.SECOND
    rows["done_ns"][late] += made.SECOND
    row = summary(rows)
    assert row.values["response_ms_p99"] == pytest.approx(1010)
    assert row.values["service_ms_p99"] == pytest.approx(10)


def test_documents_of_huge_bulks_count_while_they_are_worked_on() -> None:
    # Two users, 10,000 documents in 2.5 s each, out of step: 8,000 documents/s, though no second has two answers.
    rows = [
        made.sample(start, start + 2.5, documents=10_000, documents_acked=10_000)
        for first in (0.0, 1.25)
        for start in (first - 2.5, first, first + 2.5, first + 5, first + 7.5)
    ]
    row = summary(made.samples(rows))
    assert row.values["docs_per_s_median"] == pytest.approx(8000)
    assert row.series["docs_per_s"].values == pytest.approx((8000,) * 7)
    assert row.values["stalled_s"] == 1


@pytest.mark.parametrize("seed", range(5))
def test_spreading_loses_and_invents_no_document(seed: int) -> None:
    random = np.random.default_rng(seed)
    begin, took = random.uniform(0, 50, 200), random.exponential(3, 200)
    rows = made.samples([made.sample(at, at + long) for at, long in zip(begin, took, strict=True)])
    last = int(np.ceil((begin + took).max()))
    found = load.acked_per_second(rows, made.START, last)
    assert found.sum() == pytest.approx(200 * 100)
    middle = [
        np.clip(min(end, 21) - max(at, 20), 0, 1) / (end - at) for at, end in zip(begin, begin + took, strict=True)
    ]
    assert found[20] == pytest.approx(100 * sum(middle))
    at_once = made.samples([made.sample(3.5, 3.5)])
    assert load.acked_per_second(at_once, made.START, 5).tolist() == [0, 0, 0, 100, 0]


def test_a_second_in_which_the_server_stalls_is_a_hole_in_the_throughput() -> None:
    rows = made.steady()
    late = (rows["sent_ns"] >= made.START + 4 * made.SECOND) & (rows["sent_ns"] < made.START + 5 * made.SECOND)
    kept = rows[~late]
    held = made.samples([made.sample(4.0, 5.01)])
    found = load.acked_per_second(np.concatenate([kept, held]), made.START, 7)
    assert found[4] == pytest.approx(99, abs=1)
    assert load.stalled_seconds(np.concatenate([kept, held]), made.START, 7) == 1


def test_a_refused_connection_does_not_improve_the_response_time() -> None:
    refused = made.samples([made.sample(3, 3.000001, outcome="connection-error", bytes_sent=0) for _ in range(100)])
    row = summary(np.concatenate([made.steady(), refused]))
    assert row.values["response_ms_p50"] == pytest.approx(10)


def test_the_seconds_of_a_partition_are_stalled_and_recovery_is_timed() -> None:
    rows = made.steady()
    rows = rows[(rows["done_ns"] < made.START + 4 * made.SECOND) | (rows["done_ns"] >= made.START + 6 * made.SECOND)]
    at = made.START + made.OFFSET
    fault = Happened(kind="partition", started=at + 4 * made.SECOND, ended=at + int(5.5 * made.SECOND))
    report = {"bytes_written": len(rows) * 50_000}
    record = {"faults": (fault,), "documents_counted": len(rows) * 100}
    row = summary(rows, report=report, record=record, measured={"bytes_read": len(rows) * 50_000})
    assert row.state == "measured"
    assert row.values["stalled_s"] == 2
    assert row.values["recovery_s"] == 1.5


def test_overrides_of_the_profile_stand_beside_its_name() -> None:
    levels = {"network": "ethernet", "network.mtu": "1400", "gso_max_segs": "1", "heap": "2g", "name": "x"}
    row = summary(cell=made.cell(levels=levels, network=Profile(name="ethernet", mtu_bytes=1400)))
    assert row.values["network"] == "ethernet mtu=1400 gso_max_segs=1"


def test_a_run_that_the_generator_limited_is_invalid_except_against_the_sink() -> None:
    row = summary(report={"cpu_share_ppm": 990_000})
    assert row.state == "invalid"
    assert "generator-bound" in row.reason
    sink = dataclasses.replace(made.cell(), target=dataclasses.replace(made.cell().target, name="sink"))
    assert summary(report={"cpu_share_ppm": 990_000}, cell=sink).state == "measured"


def test_documents_that_replaced_others_are_not_expected_in_the_index_again() -> None:
    assert summary(record={"documents_counted": 6000}, report={"documents_repeated": 1000}).state == "measured"
    assert "1,000 of them again" in summary(report={"documents_repeated": 1000}).reason


OWN = {"reads": 100, "bytes_read": 3_500_000, "buffers_allocated": 101, "buffer_bytes_allocated": 101 * 65536}


def counted(recorded: int = 100, **own: int) -> Summary:
    """A run whose server counted itself: the load's port beside that of a question."""
    ports = {"40000": OWN | own, "50000": {"reads": 7, "bytes_read": 700}}
    return summary(record={"counters": {"by_peer_port": ports}}, measured={"reads_recorded": recorded})


def test_what_the_sink_counted_on_the_load_s_connections_is_in_the_row() -> None:
    row = counted()
    assert (row.state, row.reason) == ("measured", "")
    assert [row.values[name] for name in ("sink_reads", "sink_bytes_read", "sink_buffers")] == [100, 3_500_000, 101]
    assert row.values["sink_buffer_bytes"] == 101 * 65536


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (counted(recorded=99), "reads: the sink made 100 of 3,500,000 bytes, 99 of 3,500,000 were recorded"),
        (counted(bytes_read=3_499_000), "bytes: the load wrote 3,500,000, the sink counted 3,499,000, -1,000"),
        (
            summary(measured={"kernel_bytes_read": 3_400_000}),
            "bytes: the load wrote 3,500,000, the kernel gave 3,400,000, -100,000",
        ),
    ],
)
def test_counts_of_the_sink_and_of_the_kernel_that_differ_make_a_run_invalid(row: Summary, reason: str) -> None:
    assert (row.state, row.reason) == ("invalid", reason)


def test_what_the_kernel_gave_may_be_all_that_was_sent() -> None:
    assert summary(measured={"kernel_bytes_read": 3_500_000}).state == "measured"


def with_queries(queries: Samples) -> Summary:
    sent = 70 * 50_000 + int(queries["bytes_sent"].sum())
    report = made.report(bytes_written=sent)
    measured = made.measured(bytes_read=sent)
    return summarise(made.record(), made.cell(), made.steady(), report, measured, queries=queries)


def query(planned_s: float, done_s: float, **changed: Any) -> dict[str, int]:
    return made.sample(planned_s, done_s, documents=0, bytes_sent=100, **changed) | {"documents_acked": 0}


def test_queries_are_counted_apart_from_the_requests() -> None:
    alone = summary()
    row = with_queries(made.samples([query(n / 4, n / 4 + 0.1) for n in range(28)]))
    assert row.state == "measured"
    assert (row.values["queries"], row.values["queries_per_s_median"], row.values["queries_failed"]) == (20, 4, 0)
    assert row.values["query_ms_p50"] == pytest.approx(100)
    for name in ("requests", "response_ms_p99", "docs_per_s_median", "documents_acked"):
        assert row.values[name] == alone.values[name]
    assert alone.values["queries"] is None


def test_a_query_without_an_answer_may_miss_its_bytes_and_is_a_failed_one() -> None:
    rows = [query(3, 3.1), query(4, 4.5, outcome="timeout")]
    sent = 70 * 50_000 + 200
    measured = made.measured(bytes_read=sent - 100)
    report = made.report(bytes_written=sent)
    row = summarise(made.record(), made.cell(), made.steady(), report, measured, queries=made.samples(rows))
    assert (row.state, row.values["queries_failed"], row.values["queries"]) == ("measured", 1, 2)
    assert row.values["query_ms_p99"] == pytest.approx(500)


def test_a_run_whose_queries_were_never_answered_is_invalid() -> None:
    row = with_queries(made.samples([query(n, n + 0.1, outcome="http-error", status=404) for n in range(7)]))
    assert row.state == "invalid"
    assert row.reason == "no query was answered within the measurement"
