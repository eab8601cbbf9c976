from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import made_runs as made
import numpy as np
import pytest

from ingest_bench.analysis.run import closed_loop, recovery
from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.column import Column, once
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.analysis.run.sample_columns import Samples, Window
from ingest_bench.analysis.run.summary import summarise
from ingest_bench.inputs.rates import parse_arrivals
from ingest_bench.model.experiment import Cell, RunState
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Profile, Promise
from ingest_bench.model.results import READ_FIELDS, Happened, Series, Summary
from ingest_bench.model.samples import service_times_ns
from ingest_bench.report.tables import headline

# A server that ended four seconds after the load began.
OUT_OF_MEMORY: dict[str, Any] = {
    "state": "oom",
    "out_of_memory": "heap",
    "out_of_memory_realtime_ns": made.START + made.OFFSET + 4 * made.SECOND,
    "measure_start_realtime_ns": made.START + made.OFFSET + 2 * made.SECOND,
    "measure_end_realtime_ns": made.START + made.OFFSET + 4 * made.SECOND,
}


def until_four_seconds() -> Samples:
    rows = made.steady()
    found: Samples = rows[rows["done_ns"] < made.START + 4 * made.SECOND]
    return found


def summary(
    samples: Samples | None = None,
    *,
    record: dict[str, Any] | None = None,
    report: dict[str, Any] | None = None,
    measured: dict[str, Any] | None = None,
    cell: Cell | None = None,
    cpu: Sequence[Samples] = (),
) -> Summary:
    return summarise(
        made.record(**(record or {})),
        cell or made.cell(),
        made.steady() if samples is None else samples,
        made.report(**(report or {})),
        made.measured(**(measured or {})),
        experiment="quickstart",
        cpu=cpu,
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
        "docs_per_s_mean": 1000,
        "docs_per_s_p10": 1000,
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
        "silent_s": 0,
    }
    assert {name: row.values[name] for name in expected} == expected


def test_a_value_without_a_column_is_an_error_and_never_vanishes() -> None:
    with pytest.raises(LookupError, match="without a column: zero_windowz"):
        summary(record={"link": {"zero_windowz": 429}})


def test_a_column_that_two_parts_have_is_an_error() -> None:
    mss, rtt = Column("mss", "of one"), Column("rtt_ms", "of one")
    assert once([mss, rtt]) == (mss, rtt)
    with pytest.raises(LookupError, match=r"two parts have: mss$"):
        once([mss, rtt, Column("mss", "of another")])


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


def test_a_server_that_cannot_be_counted_is_measured_and_says_so() -> None:
    row = summary(record={"documents_counted": None})
    assert (row.state, row.values["documents_counted"]) == ("measured", None)
    assert row.values["documents_check"] == "cannot be counted"
    assert [remark.text for remark in row.remarks if "cannot be counted" in remark.text]
    assert summary(record={"documents_counted": 7000}).values["documents_check"] == "counted"
    # Whether one that never got there could be counted nobody knows.
    failed = summary(record={"documents_counted": None, "state": "failed", "reason": "x"})
    assert failed.values["documents_check"] is None


def test_a_server_whose_disk_was_full_may_have_what_it_refused_and_must_have_what_it_took() -> None:
    failed = {"documents_acked": 0, "documents_failed": 100}
    samples = made.samples([made.sample(1, 1.01, **failed), *(made.sample(n / 10, n / 10 + 0.01) for n in range(69))])
    full = {"faults": (Happened(kind="full-disk", started=1, ended=2),)}
    for counted, record, state in (
        (6900, {}, "measured"),
        (6999, {}, "invalid"),
        (6999, full, "measured"),
        (7001, full, "invalid"),
        (6899, full, "invalid"),
    ):
        row = summary(samples, record={"documents_counted": counted, **record})
        assert row.state == state, (counted, row.reason)


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


def test_of_a_request_that_was_sent_again_and_got_no_answer_only_what_is_open_may_be_in_the_index_too() -> None:
    again = made.sample(3, 3.5, outcome="connection-error", status=0, attempts=2, bytes_sent=60_000)
    rows = np.concatenate([made.steady(), made.samples([again | {"documents_acked": 80}])])
    written = {"bytes_written": 3_560_000}
    for counted, state in ((7079, "invalid"), (7080, "measured"), (7100, "measured"), (7101, "invalid")):
        row = summary(rows, report=written, measured={"bytes_read": 3_560_000}, record={"documents_counted": counted})
        assert row.state == state


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


@pytest.mark.parametrize("state", ["failed", "invalid", "oom", "aborted", "started"])
def test_a_run_that_did_not_end_well_keeps_its_state_and_reason(state: RunState) -> None:
    row = summarise(made.record(state=state, reason="the server died"), made.cell(), made.samples([]), None, [])
    assert (row.state, row.reason) == (state, "the server died")
    assert row.values["documents_acked"] is None
    assert row.values["docs_per_s_mean"] is None


def test_a_run_that_ended_out_of_memory_has_what_was_measured_until_then() -> None:
    refused = made.samples([made.sample(5, 5.001, outcome="connection-error") for _ in range(9)])
    row = summary(np.concatenate([until_four_seconds(), refused]), record=OUT_OF_MEMORY)
    assert (row.state, row.values["out_of_memory"], row.values["out_of_memory_after_s"]) == ("oom", "heap", 4)
    assert (row.values["docs_per_s_mean"], row.values["docs_per_s_p10"]) == (1000, 1000)
    assert (row.values["requests"], row.values["requests_failed"], row.values["silent_s"]) == (20, 0, 0)
    assert row.measure_end_ns == OUT_OF_MEMORY["out_of_memory_realtime_ns"]


def test_the_spread_of_seconds_is_what_a_tenth_and_nine_tenths_of_them_do_not_exceed() -> None:
    # 100, 200, ... documents in 20 seconds.
    rows = [
        made.sample(made.WARM_UP_S + second + at / 25, made.WARM_UP_S + second + at / 25 + 0.01)
        for second in range(20)
        for at in range(second + 1)
    ]
    row = summary(made.samples(rows), report={"measure_end_ns": made.START + (made.WARM_UP_S + 20) * made.SECOND})
    assert row.values["docs_per_s_mean"] == pytest.approx(1050)
    assert row.values["docs_per_s_p10"] == pytest.approx(200)
    assert row.values["docs_per_s_p90"] == pytest.approx(1800)


def test_a_run_that_was_aborted_has_what_was_measured_until_then() -> None:
    row = summary(record={"state": "aborted", "reason": "aborted by errors > 5% for 10s"})
    assert (row.state, row.reason) == ("aborted", "aborted by errors > 5% for 10s")
    assert (row.values["docs_per_s_mean"], row.values["requests"]) == (1000, 50)


def test_a_run_without_requests_is_invalid() -> None:
    assert summary(made.samples([])).reason == "no request was sent"


def test_a_stalled_server_shows_in_response_time_but_not_in_service_time() -> None:
    rows = made.steady()
    late = rows["planned_ns"] >= made.START + 6 * made.SECOND
    rows["sent_ns"][late] += made.SECOND
    rows["done_ns"][late] += made.SECOND
    row = summary(rows)
    assert row.values["response_ms_max"] == pytest.approx(1010)
    assert row.values["service_ms_p50"] == pytest.approx(10)


def test_what_a_closed_loop_did_not_send_is_said_with_the_open_loop_that_would_show_it() -> None:
    """One of two users waits for 3 of 5 s: 98% are answered within 10 ms, and what it would have sent is missing."""
    hung, quick = made.samples([made.sample(3, 6, user=1)]), made.steady()
    row = summary(np.concatenate([quick, hung]))
    assert row.values["idle_while_waiting_s"] == 1.5
    (said,) = [remark.text for remark in row.remarks if "closed loop" in remark.text]
    assert said.startswith("closed loop: each user sent nothing for 1.5 of 5.0 s on average, ")
    assert said.endswith("at a lower rate than this where the users kept the server busy: --set arrivals=10/s")
    # From the warm-up on, and beyond the end: the measurement's part counts.
    outside = made.samples([made.sample(1, 2.5, user=1), made.sample(6.5, 9, user=1)])
    assert summary(np.concatenate([quick, outside])).values["idle_while_waiting_s"] == 0.5
    # Ten medians are not slow yet.
    rows = made.samples([made.sample(3, 3.1, user=1), made.sample(4, 4.101, user=1)])
    assert summary(np.concatenate([quick, rows])).values["idle_while_waiting_s"] == 0.101 / 2
    alone = summary()
    assert alone.values["idle_while_waiting_s"] == 0
    assert not [remark for remark in alone.remarks if "closed loop" in remark.text]
    assert summary(np.concatenate([quick, hung]), report={"is_open": True}).values["idle_while_waiting_s"] is None


def test_a_try_of_which_nothing_was_sent_has_no_service_time() -> None:
    """As with Kafka, whose tries begin whether its broker is there or not: no answer was slow."""
    unsent = made.samples([made.sample(3, 6, user=1)])
    unsent["bytes_sent"] = 0
    assert service_times_ns(unsent).tolist() == [0]
    assert summary(np.concatenate([made.steady(), unsent])).values["idle_while_waiting_s"] == 0


@pytest.mark.parametrize(
    ("requests", "rate"),
    [
        (60_059, "1000/s"),
        (630, "10/s"),
        (598, "9.96/s"),
        (154, "2.56/s"),
        (150, "2.5/s"),
        (17, "0.283/s"),
        (12, "0.2/s"),
        (1, "0.0166/s"),
    ],
)
def test_the_open_loop_that_is_proposed_asks_for_no_more_than_was_answered(requests: int, rate: str) -> None:
    values = {"idle_while_waiting_s": 8.0, "requests_answered": requests}
    (said,) = closed_loop.remarks(values, Window(0, 60 * made.SECOND))
    assert said.text.endswith(f"arrivals={rate}")
    asked = parse_arrivals(rate).rate
    assert asked is not None
    assert asked.per_s <= requests / 60


def test_a_request_an_hour_is_proposed_so_that_it_can_be_read_again() -> None:
    values = {"idle_while_waiting_s": 7000.0, "requests_answered": 2}
    (said,) = closed_loop.remarks(values, Window(0, 7200 * made.SECOND))
    assert said.text.endswith("arrivals=1/h")
    assert parse_arrivals("1/h").rate is not None


@pytest.mark.parametrize(
    ("length_ms", "documents", "state", "said"),
    [
        (3.25, 1000, "measured", ["the measurement lasted 3.25ms, and one of less than 100ms shows nothing"]),
        (100, 1000, "measured", []),
        (3.25, None, "measured", []),
        (3.25, 1000, "oom", []),
    ],
)
def test_a_measurement_that_documents_ended_at_once_says_that_it_shows_nothing(
    length_ms: float, documents: int | None, state: RunState, said: list[str]
) -> None:
    row = summary(
        record=OUT_OF_MEMORY if state == "oom" else {"state": state},
        report={"measure_end_ns": made.START + made.WARM_UP_S * made.SECOND + round(length_ms * 10**6)},
        cell=made.cell(load=LoadOptions(measure_documents=documents)),
    )
    assert [remark.text.partition(":")[0] for remark in row.remarks if "shows nothing" in remark.text] == said


def test_a_measurement_that_ends_a_moment_before_its_first_second_is_full_is_measured() -> None:
    short = summary(
        np.concatenate([made.steady(), made.samples([made.sample(2, 6, user=1)])]),
        report={
            "measure_end_ns": made.START + 3 * made.SECOND - 100_000,
            "warm_up_end_ns": made.START + 2 * made.SECOND,
        },
    )
    assert short.values["docs_per_s_mean"] == pytest.approx(1000, rel=1e-3)
    (said,) = [remark.text for remark in short.remarks if "closed loop" in remark.text]
    assert said.startswith("closed loop: each user sent nothing for 0.5 of 1.0 s on average, ")


def test_seconds_between_the_answers_of_huge_bulks_have_no_document() -> None:
    # Two users, 10,000 documents in 2.5 s each, out of step: 8,000 documents/s, though no second has two answers.
    rows = [
        made.sample(start, start + 2.5, documents=10_000, documents_acked=10_000)
        for first in (0.0, 1.25)
        for start in (first - 2.5, first, first + 2.5, first + 5, first + 7.5)
    ]
    row = summary(made.samples(rows))
    assert row.values["docs_per_s_mean"] == pytest.approx(8000)
    assert row.series["docs_per_s"].values == (10_000, 10_000, 10_000, 10_000, 0, 10_000, 10_000)
    assert (row.values["docs_per_s_p10"], row.values["silent_s"]) == (0, 1)
    # To the search for stalls they are no fall of the rate.
    assert row.values["stalls"] == 0


@pytest.mark.parametrize("due_per_s", [400, 500, 595, 1000, 5000])
@pytest.mark.parametrize("answered_per_s", [500, 450])
def test_throughput_is_what_the_server_answered_however_much_waits_there(due_per_s: int, answered_per_s: int) -> None:
    rate = min(due_per_s, answered_per_s)
    row = summary(made.queued(due_per_s, answered_per_s, made.WARM_UP_S + made.MEASURE_S))
    assert row.values["docs_per_s_mean"] == pytest.approx(rate, abs=1)
    # A second has one answer more or less than its neighbour.
    assert row.series["docs_per_s"].values == pytest.approx((rate,) * 7, abs=1.01)
    assert row.values["docs_per_s_p10"] == pytest.approx(rate, abs=1.01)
    assert row.values["requests_answered"] == pytest.approx(rate * made.MEASURE_S, abs=1)


def test_the_whole_window_counts_with_the_part_of_a_second_at_its_end() -> None:
    late = made.samples([made.sample(7.1, 7.4)])
    row = summary(
        np.concatenate([made.steady(), late]),
        report={"measure_end_ns": made.START + (made.WARM_UP_S + made.MEASURE_S) * made.SECOND + made.SECOND // 2},
    )
    assert row.values["docs_per_s_mean"] == pytest.approx(5100 / 5.5)
    assert row.values["measured_seconds"] == 5


@pytest.mark.parametrize("seed", range(5))
def test_spreading_loses_and_invents_no_document(seed: int) -> None:
    random = np.random.default_rng(seed)
    begin, took = random.uniform(0, 50, 200), random.exponential(3, 200)
    rows = made.samples([made.sample(at, at + long) for at, long in zip(begin, took, strict=True)])
    last = int(np.ceil((begin + took).max()))
    per_second = load.spread_acked(rows, made.START, last, made.SECOND)
    assert per_second.sum() == pytest.approx(200 * 100)
    middle = [
        np.clip(min(end, 21) - max(at, 20), 0, 1) / (end - at) for at, end in zip(begin, begin + took, strict=True)
    ]
    assert per_second[20] == pytest.approx(100 * sum(middle))
    at_once = made.samples([made.sample(3.5, 3.5)])
    assert load.spread_acked(at_once, made.START, 5, made.SECOND).tolist() == [0, 0, 0, 100, 0]


def test_a_second_in_which_the_server_stalls_is_a_hole_in_the_throughput() -> None:
    rows = made.steady()
    late = (rows["sent_ns"] >= made.START + 4 * made.SECOND) & (rows["sent_ns"] < made.START + 5 * made.SECOND)
    held = made.samples([made.sample(4.0, 5.01)])
    row = summary(np.concatenate([rows[~late], held]))
    assert row.series["docs_per_s"].values == (1000, 1000, 1000, 1000, 0, 1100, 1000)
    assert row.values["silent_s"] == 1


def test_every_ticket_has_a_response_time_and_those_of_the_acknowledged_ones_stand_beside_it() -> None:
    hung = [made.sample(3, 6, outcome="connection-error", status=0) for _ in range(2)]
    late = [made.sample(3, 5, outcome="timeout", status=0), made.sample(4, 4.5, outcome="http-error", status=503)]
    broken = [made.sample(4, 5.5, outcome="broken-answer"), made.sample(5, 5.7, outcome="partial")]
    rows = made.samples([*hung, *late, *broken])
    alone, row = summary(), summary(np.concatenate([made.steady(), rows]))
    assert (row.values["requests"], row.values["requests_failed"]) == (56, 6)
    times = [row.values[f"response_ms_{name}"] for name in ("p50", "p99", "p999", "max")]
    # Of 56 requests nobody knows the 99th percentile: it would be the longest by another name.
    assert times == [pytest.approx(10), None, None, pytest.approx(3000)]
    for name in ("p50", "max"):
        assert row.values[f"response_ok_ms_{name}"] == alone.values[f"response_ms_{name}"] == pytest.approx(10)


def test_a_refusal_that_comes_at_once_is_told_from_an_answer() -> None:
    refused = [made.sample(3, 3.000001, outcome="connection-error", bytes_sent=0, status=0) for _ in range(100)]
    row = summary(np.concatenate([made.steady(), made.samples(refused)]))
    assert row.values["response_ms_p50"] == pytest.approx(0.001)
    assert row.values["response_ok_ms_p50"] == row.values["service_ms_p50"] == pytest.approx(10)
    assert [row.values[name] for name in ("requests", "requests_ok", "requests_sent")] == [150, 50, 50]


def test_a_ticket_that_was_never_sent_has_a_response_time_and_no_service_time() -> None:
    never = [made.sample(6, 7, outcome="cut-off", bytes_sent=0, documents=0, attempts=0) for _ in range(50)]
    row = summary(np.concatenate([made.steady(), made.samples(never)]))
    assert (row.values["requests"], row.values["requests_failed"], row.values["attempts"]) == (100, 50, 50)
    assert row.values["response_ms_p99"] == pytest.approx(1000)
    assert row.values["service_ms_p50"] == pytest.approx(10)


def test_a_bulk_that_was_sent_again_is_one_request_with_the_time_of_all_attempts() -> None:
    """1,000 bulks, each acknowledged after 252 ms on its third try."""
    rows = [made.sample(at, at + 0.252, attempts=3, bytes_sent=150_000) for at in np.arange(2, 6.7, 0.0047)][:1000]
    row = summary(
        made.samples(rows),
        report={"bytes_written": 150_000_000, "documents_resent": 200_000},
        measured={"bytes_read": 150_000_000},
        record={"documents_counted": 100_000},
    )
    assert (row.state, row.reason) == ("measured", "")
    for name in ("response_ms_p50", "response_ok_ms_p50", "service_ms_p50"):
        assert row.values[name] == pytest.approx(252)
    expected = {"requests": 1000, "requests_failed": 0, "attempts": 3000, "documents_acked": 100_000}
    expected |= {"documents_failed": 0, "documents_resent": 200_000}
    assert {name: row.values[name] for name in expected} == expected


@pytest.mark.parametrize(("began_s", "ended_s"), [(1.5, 9.0), (1.5, 2.0), (1.5, 6.9), (6.9, 9.0)])
@pytest.mark.parametrize("outcome", ["connection-error", "ok"])
def test_a_request_that_was_under_way_in_any_part_of_the_measurement_is_in_its_numbers_with_all_its_time(
    began_s: float, ended_s: float, outcome: str
) -> None:
    others = made.steady()
    row = load.measured(
        np.concatenate([others, made.samples([made.sample(began_s, ended_s, outcome=outcome)])]),
        load.window_of(made.report()),
    )
    assert row["requests"] == 51
    assert row["requests_failed"] == (outcome != "ok")
    assert row["attempts"] == 51
    assert row["response_ms_p50"] == pytest.approx(10)
    assert row["response_ms_max"] == pytest.approx((ended_s - began_s) * 1000)
    assert row["response_ok_ms_max"] == pytest.approx(10 if outcome != "ok" else (ended_s - began_s) * 1000)


@pytest.mark.parametrize(("began_s", "ended_s"), [(0.5, 1.999), (7.0, 9.0)])
def test_a_request_that_was_not_under_way_in_the_measurement_is_not_in_its_numbers(
    began_s: float, ended_s: float
) -> None:
    rows = np.concatenate([made.steady(), made.samples([made.sample(began_s, ended_s, outcome="timeout")])])
    assert load.measured(rows, load.window_of(made.report())) == load.measured(
        made.steady(), load.window_of(made.report())
    )


def test_the_series_have_what_failed_in_the_seconds_in_which_it_waited() -> None:
    hung = made.samples([made.sample(3.5, 6.2, outcome="connection-error", status=0)])
    row = summary(np.concatenate([made.steady(), hung]))
    starts = row.series["docs_per_s"].at_ns
    for name, seconds in (("response_ms_max", [10.0] * 3 + [2700.0] * 4), ("response_ok_ms_max", [10.0] * 7)):
        assert row.series[name].at_ns == starts
        assert row.series[name].values == pytest.approx(seconds)
    assert row.series["response_ms_p50"].values == pytest.approx([10.0] * 7)


def test_a_second_in_which_nothing_ended_has_no_response_time() -> None:
    rows = made.steady()
    rows = rows[(rows["done_ns"] < made.START + 3 * made.SECOND) | (rows["done_ns"] >= made.START + 5 * made.SECOND)]
    row = summary(rows)
    starts = row.series["docs_per_s"].at_ns
    assert row.series["response_ms_p50"].at_ns == (*starts[:3], *starts[5:])


def test_a_request_that_was_under_way_when_the_server_ended_is_in_its_numbers_once() -> None:
    under_way = made.samples([made.sample(3.9, 6.9, outcome="timeout", status=0)])
    refused = made.samples([made.sample(5, 5.001, outcome="connection-error", bytes_sent=0) for _ in range(9)])
    row = summary(np.concatenate([until_four_seconds(), under_way, refused]), record=OUT_OF_MEMORY)
    assert (row.values["requests"], row.values["requests_failed"]) == (21, 1)
    assert row.values["response_ms_max"] == pytest.approx(3000)
    assert row.values["response_ok_ms_max"] == pytest.approx(10)


def test_a_load_that_left_no_report_has_no_number_at_all() -> None:
    row = summarise(made.record(state="failed", reason="killed"), made.cell(), made.steady(), None, [])
    conditions = {"network", "target", "workload", "receive_predictor_bytes", "heap_bytes", "documents_counted"}
    assert {name for name, value in row.values.items() if value is not None} <= conditions


def test_the_seconds_of_a_partition_are_silent_and_recovery_is_timed() -> None:
    rows = made.steady()
    rows = rows[(rows["done_ns"] < made.START + 4 * made.SECOND) | (rows["done_ns"] >= made.START + 6 * made.SECOND)]
    at = made.START + made.OFFSET
    fault = Happened(kind="partition", started=at + 4 * made.SECOND, ended=at + int(5.5 * made.SECOND))
    report = {"bytes_written": len(rows) * 50_000}
    record = {"faults": (fault,), "documents_counted": len(rows) * 100}
    row = summary(rows, report=report, record=record, measured={"bytes_read": len(rows) * 50_000})
    assert row.state == "measured"
    assert row.values["silent_s"] == 2
    assert row.values["recovery_s"] == 1.5


@pytest.mark.parametrize(("after_s", "recovery_s", "said"), [(3, 1, "throughput back 1 s"), (6, None, "not back")])
def test_recovery_is_timed_of_bulks_that_take_longer_than_a_second(
    after_s: int, recovery_s: float | None, said: str
) -> None:
    """Two of three seconds have no answer, and those of a server that is half as fast five of six."""
    fault = Happened(
        kind="pause", started=made.START + made.OFFSET + 12 * made.SECOND, ended=made.START + made.OFFSET + 14 * 10**9
    )
    before = [made.sample(begin, begin + 2.999) for begin in range(0, 12, 3)]
    after = [made.sample(begin, begin + after_s - 0.001) for begin in range(14, 26, after_s)]
    rows = made.samples([*before, *after])
    report = {"bytes_written": len(rows) * 50_000, "measure_end_ns": made.START + 26 * made.SECOND}
    record = {
        "faults": (fault,),
        "documents_counted": len(rows) * 100,
        "measure_start_realtime_ns": made.START + made.OFFSET + 2 * made.SECOND,
        "measure_end_realtime_ns": made.START + made.OFFSET + 26 * made.SECOND,
    }
    row = summary(rows, report=report, record=record, measured={"bytes_read": len(rows) * 50_000})
    assert row.values["recovery_s"] == recovery_s
    assert said in headline.timeline(row)


@pytest.mark.parametrize(("missing", "state"), [(0, "measured"), (7, "measured"), (-7, "invalid")])
def test_what_a_killed_server_does_not_have_any_more_is_a_result(missing: int, state: str) -> None:
    rows = made.steady()
    fault = Happened(kind="kill", started=made.START + made.OFFSET, ended=made.START + made.OFFSET + made.SECOND)
    report = {"bytes_written": len(rows) * 50_000}
    record = {"faults": (fault,), "documents_counted": len(rows) * 100 - missing}
    row = summary(rows, report=report, record=record, measured={"bytes_read": len(rows) * 50_000})
    assert (row.state, row.values["lost_documents"]) == (state, max(0, missing))


def test_a_load_that_stood_still_before_a_fault_does_not_come_back_to_that() -> None:
    begin = made.START + made.OFFSET
    still = Series("docs_per_s", tuple(begin + second * made.SECOND for second in range(10)), (0.0,) * 10)
    fault = Happened(kind="partition", started=begin + 5 * made.SECOND, ended=begin + 6 * made.SECOND)
    assert recovery.recovery_s(still, [fault], begin, begin + 10 * made.SECOND) is None


def test_bulks_of_a_million_documents_that_take_hours_have_their_rate() -> None:
    slow = made.samples([made.sample(0, 10_000, documents=10**6, documents_acked=10**6)])
    values = load.measured(slow, Window(made.START, made.START + 20_000 * made.SECOND))
    assert values["docs_per_s_mean"] == pytest.approx(50)


def test_reads_that_gave_nothing_are_no_reads_of_a_request() -> None:
    nothing = np.array([(made.OFFSET + made.START + 3 * made.SECOND, -1, 40000)], dtype=list(READ_FIELDS))
    row = summarise(made.record(), made.cell(), made.steady(), made.report(), made.measured(), reads=nothing)
    assert (row.state, row.values["slowest_wire_ms"]) == ("measured", None)


def test_overrides_of_the_profile_stand_beside_its_name() -> None:
    levels = {"network": "ethernet", "network.mtu": "1400", "gso_max_segs": "1", "heap": "2g", "name": "x"}
    row = summary(cell=made.cell(levels=levels, network=Profile(name="ethernet", mtu_bytes=1400)))
    assert row.values["network"] == "ethernet mtu=1400 gso_max_segs=1"


def test_a_run_that_the_generator_limited_is_invalid_except_against_the_sink() -> None:
    row = summary(cpu=[made.cpu(*[0.99] * 7)])
    assert row.state == "invalid"
    assert "generator-bound" in row.reason
    sink = dataclasses.replace(made.cell(), target=dataclasses.replace(made.cell().target, name="sink"))
    assert summary(cpu=[made.cpu(*[0.99] * 7)], cell=sink).state == "measured"


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


def test_beside_every_percentile_stands_the_number_of_its_values() -> None:
    columns = {column.name: column for column in COLUMNS}
    percentiles = [name for name, one in columns.items() if re.search(r"_p\d+$|^median ", f"{one.meaning} {name}")]
    assert {"idle_rtt_ms", "mss", "gc_pause_ms_p50", "docs_per_s_p90"} <= set(percentiles)
    assert len(percentiles) > 25
    without = [name for name in percentiles if not columns[name].of]
    assert not without
    counts = {column.of for column in columns.values()} - {""}
    assert counts <= columns.keys()
    assert {name for name in counts if not columns[name].is_count} <= {"measured_seconds"}


def test_queries_are_counted_apart_from_the_requests() -> None:
    alone = summary()
    row = with_queries(made.samples([query(n / 4, n / 4 + 0.1) for n in range(28)]))
    assert row.state == "measured"
    assert (row.values["queries"], row.values["queries_per_s_mean"], row.values["queries_failed"]) == (20, 4, 0)
    assert row.values["query_ms_p50"] == pytest.approx(100)
    for name in ("requests", "response_ms_p99", "docs_per_s_mean", "documents_acked"):
        assert row.values[name] == alone.values[name]
    assert alone.values["queries"] is None


def test_a_query_without_an_answer_may_miss_its_bytes_and_is_a_failed_one() -> None:
    rows = [query(3, 3.1), query(4, 4.5, outcome="timeout")]
    sent = 70 * 50_000 + 200
    measured = made.measured(bytes_read=sent - 100)
    report = made.report(bytes_written=sent)
    row = summarise(made.record(), made.cell(), made.steady(), report, measured, queries=made.samples(rows))
    assert (row.state, row.values["queries_failed"], row.values["queries"]) == ("measured", 1, 2)
    assert (row.values["queries_ok"], row.values["queries_per_s_mean"]) == (1, 0.2)
    assert row.values["query_ms_p50"] == pytest.approx(100)
    assert row.values["query_ok_ms_p50"] is None


def test_a_run_whose_queries_were_never_answered_is_invalid() -> None:
    row = with_queries(made.samples([query(n, n + 0.1, outcome="http-error", status=404) for n in range(7)]))
    assert row.state == "invalid"
    assert row.values["query_ms_p50"] == pytest.approx(100)
    assert row.values["query_ok_ms_p50"] is None
    assert row.reason == "no query was answered within the measurement"


def test_addresses_that_differ_are_told_apart_and_those_that_do_alike_are_not_mentioned() -> None:
    rows = made.steady()
    rows["address"] = np.arange(len(rows)) % 2
    addresses = {"addresses": ("a.example:9200", "b.example:9200", "c.example:9200")}

    def told(**changed: Any) -> list[str]:
        return [remark.text for remark in summary(rows, report=changed).remarks if "addresses" in remark.text]

    assert told() == told(addresses=addresses["addresses"][:1]) == told(addresses=addresses["addresses"][:2]) == []
    (said,) = told(**addresses)
    assert "a.example:9200: 2,500 documents in 25 requests, service time p50 10.0 ms; b.example" in said
    assert said.endswith("c.example:9200: 0 documents in 0 requests")
    # Of a few requests, which went to the addresses in turn, no median is known.
    few, two = rows[30:33].copy(), addresses["addresses"][:2]
    assert [remark.text for remark in load.differing_addresses(few, made.report(addresses=two))] == []
    few["address"] = 0
    (remark,) = load.differing_addresses(few, made.report(addresses=two))
    assert remark.text.endswith("b.example:9200: 0 documents in 0 requests")
    # A ticket that nobody took went nowhere.
    unsent = made.samples([made.sample(5.0, 6.0, outcome="cut-off", address=-1, attempts=0, bytes_sent=0)])
    rows = np.concatenate([rows, unsent])
    assert told(addresses=addresses["addresses"][:2]) == []
    rows["done_ns"][rows["address"] == 1] += 80_000_000
    (said,) = told(addresses=addresses["addresses"][:2])
    assert said.endswith("b.example:9200: 2,500 documents in 25 requests, service time p50 90.0 ms")


def test_flushes_and_compactions_of_the_measurement_are_in_the_row() -> None:
    at = made.START + made.OFFSET
    flushes = {str(second): {"at_ns": at + second * made.SECOND, "bytes": 100 * second} for second in (0, 3, 5)}
    counters = {"flushes": flushes, "compactions": {"0": {"at_ns": at + 4 * made.SECOND}}}
    values = summary(record={"counters": counters}).values
    assert (values["flushes"], values["flush_bytes_mean"], values["compactions"]) == (2, 400, 1)
    empty = summary(record={"counters": {"flushes": {}, "compactions": {}}}).values
    assert (empty["flushes"], empty["flush_bytes_mean"], empty["compactions"]) == (0, None, 0)
    assert summary().values["flushes"] is None


def test_all_that_a_link_tells_has_a_column() -> None:
    link = dict.fromkeys(("wire_packets", "qdisc_drops", "loss_ppm", "retransmits"), 1)
    row = summarise(made.record(link=link), made.cell(), made.steady(), made.report(), made.measured())
    assert (row.values["wire_packets"], row.values["qdisc_drops"]) == (1, 1)
