import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import example_runs as made
import numpy as np
import pytest

from ingest_bench.analysis.run import generator
from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.analysis.run.sample_columns import Samples, Window
from ingest_bench.analysis.run.summary import summarise
from ingest_bench.inputs import urls
from ingest_bench.inputs.load_values import parse_arrivals
from ingest_bench.model.experiment import Cell, RunState
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import LinkCheck, Profile
from ingest_bench.model.results import READ_FIELDS, FaultRecord, Summary
from ingest_bench.model.samples import service_times_ns
from ingest_bench.report import headline

# CLOCK_REALTIME of the start of the load.
BEGIN = made.START + made.OFFSET
SECOND = made.SECOND
# The server ran out of memory four seconds after the load began.
OUT_OF_MEMORY: dict[str, Any] = {
    "state": "oom",
    "out_of_memory": "heap",
    "out_of_memory_realtime_ns": BEGIN + 4 * SECOND,
    "measure_start_realtime_ns": BEGIN + 2 * SECOND,
    "measure_end_realtime_ns": BEGIN + 4 * SECOND,
}
# The sink's counters of the load's connection and of another one.
SINK = {"reads": 100, "bytes_read": 3_500_000, "buffers_allocated": 101, "buffer_bytes_allocated": 101 * 65536}
OTHER_CONNECTION = {"50000": {"reads": 7, "bytes_read": 700}}


def summary(
    samples: Samples | None = None,
    *,
    record: dict[str, Any] | None = None,
    report: dict[str, Any] | None = None,
    measured: dict[str, Any] | None = None,
    cell: Cell | None = None,
    cpu: Sequence[Samples] = (),
    queries: Samples | None = None,
) -> Summary:
    return summarise(
        made.inputs(
            record=made.record(**(record or {})),
            cell=cell or made.cell(),
            samples=made.steady() if samples is None else samples,
            report=made.report(**(report or {})),
            outputs=made.measured(**(measured or {})),
            experiment="quickstart",
            cpu=cpu,
            queries=queries,
        )
    )


def complete(samples: Samples, *, missing: int = 0, report: dict[str, Any] | None = None, **record: Any) -> Summary:
    """Return the summary of a run in which all bytes and documents of *samples* but *missing* arrived."""
    sent = len(samples) * 50_000
    return summary(
        samples,
        report={"bytes_written": sent} | (report or {}),
        record={"documents_counted": len(samples) * 100 - missing} | record,
        measured={"bytes_read": sent},
    )


def with_steady(*rows: dict[str, int]) -> Samples:
    return np.concatenate([made.steady(), made.samples(list(rows))])


def fault(kind: str, start_s: float, end_s: float) -> FaultRecord:
    return FaultRecord(kind=kind, start_ns=BEGIN + int(start_s * SECOND), end_ns=BEGIN + int(end_s * SECOND))


def texts(row: Summary, word: str) -> list[str]:
    return [note.text for note in row.notes if word in note.text]


def query(scheduled_s: float, done_s: float, **changed: Any) -> dict[str, int]:
    return made.sample(scheduled_s, done_s, documents=0, bytes_sent=100, **changed) | {"documents_acked": 0}


def test_steady_run_is_measured_with_all_columns() -> None:
    row = summary(record={"counters": {"by_peer_port": {"40000": SINK} | OTHER_CONNECTION}, "link": {"qdisc_drops": 1}})
    assert (row.state, row.reason) == ("measured", "")
    expected = {
        "sink_reads": 100,
        "sink_bytes_read": 3_500_000,
        "sink_buffers": 101,
        "sink_buffer_bytes": 101 * 65536,
        "qdisc_drops": 1,
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
        "requests": 50,
        "requests_failed": 0,
        "zero_throughput_s": 0,
        "heap_after_gc_max_bytes": None,
        "retransmits": None,
        "recovery_s": None,
        "queries": None,
        "flushes": None,
    }
    assert {name: row.values[name] for name in expected} == expected
    assert set(row.values) == {column.name for column in COLUMNS}
    assert row.series["docs_per_s"].values == (1000.0,) * 7
    assert row.series["docs_per_s"].at_ns[2] == BEGIN + 2 * SECOND == row.measure_start_ns


def test_every_value_has_one_column() -> None:
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)
    with pytest.raises(LookupError, match="without a column: zero_windowz"):
        summary(record={"link": {"zero_windowz": 429}})


def test_every_percentile_names_the_column_with_its_number_of_values() -> None:
    columns = {column.name: column for column in COLUMNS}
    percentiles = [name for name, item in columns.items() if re.search(r"_p\d+$|^median ", f"{item.meaning} {name}")]
    assert {"idle_rtt_ms", "mss", "gc_pause_ms_p50", "docs_per_s_p90"} <= set(percentiles)
    assert len(percentiles) > 25
    assert not [name for name in percentiles if not columns[name].count_column]
    counts = {column.count_column for column in columns.values()} - {""}
    assert counts <= columns.keys()
    assert {name for name in counts if not columns[name].is_count} <= {"measured_seconds"}


def test_refused_documents_are_a_note_with_number_and_reason() -> None:
    failures = {"400 parsing": 1200, "429 full": 3}
    row = summary(report={"item_failures": failures, "item_reasons": {"400 parsing": "failed to parse field [price]"}})
    assert texts(row, "refused documents: ") == [
        "refused documents: 1,200 x 400 parsing: failed to parse field [price]",
        "refused documents: 3 x 429 full",
    ]


def test_server_that_cannot_be_counted_is_measured_with_a_note() -> None:
    row = summary(record={"documents_counted": None})
    assert (row.state, row.values["documents_counted"]) == ("measured", None)
    assert row.values["documents_check"] == "cannot be counted"
    assert texts(row, "cannot be counted")
    assert summary(record={"documents_counted": 7000}).values["documents_check"] == "counted"
    failed = summary(record={"documents_counted": None, "state": "failed", "reason": "x"})
    assert failed.values["documents_check"] is None


@pytest.mark.parametrize(
    ("counted", "has_full_disk", "state"),
    [
        (6900, False, "measured"),
        (6999, False, "invalid"),
        (6999, True, "measured"),
        (7001, True, "invalid"),
        (6899, True, "invalid"),
    ],
)
def test_server_with_full_disk_may_have_failed_documents(counted: int, has_full_disk: bool, state: str) -> None:
    failed = made.sample(1, 1.01, documents_acked=0, documents_failed=100)
    samples = made.samples([failed, *(made.sample(n / 10, n / 10 + 0.01) for n in range(69))])
    faults = (FaultRecord(kind="full-disk", start_ns=1, end_ns=2),) if has_full_disk else ()
    assert summary(samples, record={"documents_counted": counted, "faults": faults}).state == state


@pytest.mark.parametrize(
    ("record", "measured", "reason"),
    [
        ({}, {"bytes_read": 3_499_999}, "bytes: the load wrote 3,500,000, the JVM read 3,499,999, -1"),
        (
            {},
            {"bytes_read": 1, "other_recordings": "x"},
            "bytes: the load wrote 3,500,000, the JVM read 1, -3,499,999; other flight recordings ran in this JVM (x)",
        ),
        ({}, {"bytes_read": 3_500_001}, "bytes: the load wrote 3,500,000, the JVM read 3,500,001, +1"),
        ({"documents_counted": 6999}, {}, "documents: 7,000 acknowledged, 6,999 counted, -1"),
        (
            {"documents_counted": 1},
            {"bytes_read": 1},
            (
                "bytes: the load wrote 3,500,000, the JVM read 1, -3,499,999;"
                " documents: 7,000 acknowledged, 1 counted, -6,999"
            ),
        ),
        ({}, {"kernel_bytes_read": 3_500_000}, ""),
        ({}, {"kernel_bytes_read": 3_400_000}, "bytes: the load wrote 3,500,000, the kernel gave 3,400,000, -100,000"),
        ({"counters": {"by_peer_port": {"40000": SINK} | OTHER_CONNECTION}}, {"reads_recorded": 100}, ""),
        (
            {"counters": {"by_peer_port": {"40000": SINK} | OTHER_CONNECTION}},
            {"reads_recorded": 99},
            "reads: the sink made 100 of 3,500,000 bytes, 99 of 3,500,000 were recorded",
        ),
        (
            {"counters": {"by_peer_port": {"40000": SINK | {"bytes_read": 3_499_000}}}},
            {"reads_recorded": 100},
            "bytes: the load wrote 3,500,000, the sink counted 3,499,000, -1,000",
        ),
        (
            {
                "link_checks": (
                    LinkCheck(name="rate", expected="1gbit", measured="412mbit", tolerance="5%", passed=False),
                )
            },
            {},
            "link check failed: rate: expected 1gbit (5%), measured 412mbit",
        ),
    ],
)
def test_mismatched_counts_and_failed_link_checks_make_a_run_invalid(
    record: dict[str, Any], measured: dict[str, Any], reason: str
) -> None:
    row = summary(record=record, measured=measured)
    assert (row.state, row.reason) == ("invalid" if reason else "measured", reason)


def test_only_requests_without_response_may_miss_bytes_and_add_documents() -> None:
    rows = with_steady(made.sample(3, 3.5, outcome="connection-error", status=0))
    for bytes_read, counted, state in (
        (3_550_000, 7100, "measured"),
        (3_510_000, 7000, "measured"),
        (3_499_999, 7000, "invalid"),
        (3_550_000, 7101, "invalid"),
    ):
        record = {"documents_counted": counted}
        row = summary(rows, report={"bytes_written": 3_550_000}, measured={"bytes_read": bytes_read}, record=record)
        assert (row.state, row.values["requests_failed"]) == (state, 1)


@pytest.mark.parametrize(("more_bytes", "state"), [(0, "measured"), (10_638, "measured"), (-1, "invalid")])
def test_over_tls_the_jvm_may_read_more_than_was_sent(more_bytes: int, state: str) -> None:
    plain = made.cell()
    cell = dataclasses.replace(plain, target=dataclasses.replace(plain.target, url=urls.parse_url("https://h:9200")))
    measured = {"bytes_read": made.report().bytes_written + more_bytes}
    assert summary(cell=cell, measured=measured).state == state
    assert summary(measured=measured).state == ("invalid" if more_bytes else "measured")


@pytest.mark.parametrize(
    ("counted", "state"), [(7079, "invalid"), (7080, "measured"), (7100, "measured"), (7101, "invalid")]
)
def test_retried_request_without_response_may_add_only_undecided_documents(counted: int, state: str) -> None:
    retried = made.sample(3, 3.5, outcome="connection-error", status=0, attempts=2, bytes_sent=60_000)
    rows = with_steady(retried | {"documents_acked": 80})
    sent = 3_560_000
    row = summary(
        rows, report={"bytes_written": sent}, measured={"bytes_read": sent}, record={"documents_counted": counted}
    )
    assert row.state == state


def test_repeated_documents_are_not_expected_in_the_index_again() -> None:
    assert summary(record={"documents_counted": 6000}, report={"documents_repeated": 1000}).state == "measured"
    assert "1,000 of them again" in summary(report={"documents_repeated": 1000}).reason


def test_probe_without_any_byte_has_unknown_read_columns() -> None:
    row = summary(measured={"bytes_read": 0})
    assert (row.state, row.values["bytes_read"], row.values["reads"]) == ("measured", None, None)
    assert "read_bytes" not in row.histograms


@pytest.mark.parametrize("state", ["failed", "invalid", "oom", "aborted", "started"])
def test_unsuccessful_run_keeps_state_and_reason_and_has_no_numbers(state: RunState) -> None:
    record = made.record(state=state, reason="the server died")
    row = summarise(made.inputs(record=record, report=None, outputs=[]))
    assert (row.state, row.reason) == (state, "the server died")
    conditions = {"network", "target", "workload", "receive_predictor_bytes", "heap_bytes", "documents_counted"}
    assert {name for name, value in row.values.items() if value is not None} <= conditions


def test_aborted_run_has_the_numbers_measured_before() -> None:
    row = summary(record={"state": "aborted", "reason": "aborted by errors > 5% for 10s"})
    assert (row.state, row.reason) == ("aborted", "aborted by errors > 5% for 10s")
    assert (row.values["docs_per_s_mean"], row.values["requests"]) == (1000, 50)


def test_out_of_memory_run_has_the_numbers_measured_before() -> None:
    refused = [made.sample(5, 5.001, outcome="connection-error", bytes_sent=0) for _ in range(9)]
    before = made.steady()[: 4 * 10]
    row = summary(np.concatenate([before, made.samples(refused)]), record=OUT_OF_MEMORY)
    assert (row.state, row.values["out_of_memory"], row.values["out_of_memory_after_s"]) == ("oom", "heap", 4)
    assert (row.values["docs_per_s_mean"], row.values["docs_per_s_p10"]) == (1000, 1000)
    assert (row.values["requests"], row.values["requests_failed"], row.values["zero_throughput_s"]) == (20, 0, 0)
    assert row.measure_end_ns == OUT_OF_MEMORY["out_of_memory_realtime_ns"]
    # A request in flight at that time counts once.
    in_flight = made.sample(3.9, 6.9, outcome="timeout", status=0)
    row = summary(np.concatenate([before, made.samples([in_flight, *refused])]), record=OUT_OF_MEMORY)
    assert (row.values["requests"], row.values["requests_failed"]) == (21, 1)
    assert row.values["response_ms_max"] == pytest.approx(3000)
    assert row.values["response_ok_ms_max"] == pytest.approx(10)


def test_run_without_requests_is_invalid() -> None:
    assert summary(made.samples([])).reason == "no request was sent"


def test_percentiles_of_seconds_are_nearest_ranks() -> None:
    # 100, 200, … documents in 20 seconds.
    rows = [
        made.sample(made.WARM_UP_S + second + at / 25, made.WARM_UP_S + second + at / 25 + 0.01)
        for second in range(20)
        for at in range(second + 1)
    ]
    row = summary(made.samples(rows), report={"measure_end_ns": made.START + (made.WARM_UP_S + 20) * SECOND})
    assert row.values["docs_per_s_mean"] == pytest.approx(1050)
    assert row.values["docs_per_s_p10"] == pytest.approx(200)
    assert row.values["docs_per_s_p90"] == pytest.approx(1800)


def test_stalled_server_shows_in_response_time_and_not_in_service_time() -> None:
    rows = made.steady()
    late = rows["scheduled_ns"] >= made.START + 6 * SECOND
    rows["sent_ns"][late] += SECOND
    rows["done_ns"][late] += SECOND
    row = summary(rows)
    assert row.values["response_ms_max"] == pytest.approx(1010)
    assert row.values["service_ms_p50"] == pytest.approx(10)


def test_hidden_waiting_of_a_closed_loop_is_a_note_with_an_open_loop_rate() -> None:
    """One of two users waits for 3 of 5 s: 98% of the responses take 10 ms, and unsent requests are missing."""
    hung = with_steady(made.sample(3, 6, user=1))
    row = summary(hung)
    assert row.values["idle_while_waiting_s"] == 1.5
    (text,) = texts(row, "closed loop")
    assert text.startswith("closed loop: each user sent nothing for 1.5 of 5.0 s on average, ")
    assert text.endswith(": --set arrivals=10/s, or less if the users kept the server busy")
    assert summary(hung, report={"is_open_loop": True}).values["idle_while_waiting_s"] is None
    # Only the part within the measurement counts.
    outside = with_steady(made.sample(1, 2.5, user=1), made.sample(6.5, 9, user=1))
    assert summary(outside).values["idle_while_waiting_s"] == 0.5
    # Ten medians are not slow.
    nearly = with_steady(made.sample(3, 3.1, user=1), made.sample(4, 4.101, user=1))
    assert summary(nearly).values["idle_while_waiting_s"] == 0.101 / 2
    alone = summary()
    assert (alone.values["idle_while_waiting_s"], texts(alone, "closed loop")) == (0, [])


def test_attempt_without_sent_bytes_has_no_service_time() -> None:
    """Kafka attempts begin without a reachable broker, too: no response was slow."""
    unsent = made.samples([made.sample(3, 6, user=1)])
    unsent["bytes_sent"] = 0
    assert service_times_ns(unsent).tolist() == [0]
    assert summary(np.concatenate([made.steady(), unsent])).values["idle_while_waiting_s"] == 0


@pytest.mark.parametrize(
    ("requests", "length_s", "rate"),
    [
        (60_059, 60, "1000/s"),
        (630, 60, "10/s"),
        (598, 60, "9.96/s"),
        (154, 60, "2.56/s"),
        (150, 60, "2.5/s"),
        (17, 60, "0.283/s"),
        (12, 60, "0.2/s"),
        (1, 60, "0.0166/s"),
        (2, 7200, "1/h"),
    ],
)
def test_suggested_open_loop_rate_is_rounded_down(requests: int, length_s: int, rate: str) -> None:
    values = {"idle_while_waiting_s": 0.9 * length_s, "requests_answered": requests}
    assert f" arrivals={rate}, or less" in generator.describe_hidden_waiting(values, length_s)
    parsed = parse_arrivals(rate).rate
    assert parsed is not None
    assert parsed.per_s <= requests / length_s * (1 + 1e-12)


@pytest.mark.parametrize(
    ("length_ms", "documents", "state", "expected"),
    [
        (3.25, 1000, "measured", ["the measurement lasted 3.25ms; less than 100ms is not meaningful"]),
        (100, 1000, "measured", []),
        (3.25, None, "measured", []),
        (3.25, 1000, "oom", []),
    ],
)
def test_measurement_ended_too_early_by_documents_has_a_note(
    length_ms: float, documents: int | None, state: RunState, expected: list[str]
) -> None:
    row = summary(
        record=OUT_OF_MEMORY if state == "oom" else {"state": state},
        report={"measure_end_ns": made.START + made.WARM_UP_S * SECOND + round(length_ms * 10**6)},
        cell=made.cell(load=LoadOptions(measure_documents=documents)),
    )
    assert [text.partition(":")[0] for text in texts(row, "not meaningful")] == expected


def test_measurement_just_below_one_second_is_measured() -> None:
    report = {"warm_up_end_ns": made.START + 2 * SECOND, "measure_end_ns": made.START + 3 * SECOND - 100_000}
    row = summary(with_steady(made.sample(2, 6, user=1)), report=report)
    assert row.values["docs_per_s_mean"] == pytest.approx(1000, rel=1e-3)
    assert texts(row, "closed loop: each user sent nothing for 0.5 of 1.0 s on average, ")


def test_seconds_between_responses_of_large_bulks_have_no_documents() -> None:
    # Two users, 10,000 documents in 2.5 s each, out of step: 8,000 documents/s, though no second has two responses.
    rows = [
        made.sample(start, start + 2.5, documents=10_000, documents_acked=10_000)
        for first in (0.0, 1.25)
        for start in (first - 2.5, first, first + 2.5, first + 5, first + 7.5)
    ]
    row = summary(made.samples(rows))
    assert row.values["docs_per_s_mean"] == pytest.approx(8000)
    assert row.series["docs_per_s"].values == (10_000, 10_000, 10_000, 10_000, 0, 10_000, 10_000)
    assert (row.values["docs_per_s_p10"], row.values["zero_throughput_s"]) == (0, 1)
    # Stall detection does not take them for a drop in throughput.
    assert row.values["stalls"] == 0


def test_idle_spans_of_bursts_are_neither_stalls_nor_outages() -> None:
    samples = made.samples([made.sample(at, at + 0.9) for at in range(0, 10, 2) for _ in range(4)])
    report = {"measure_end_ns": made.START + 10 * SECOND, "is_open_loop": True}
    rows = {
        text: summary(samples, report=report, cell=made.cell(load=LoadOptions(arrivals=parse_arrivals(text))))
        for text in ("2/s", "burst 4 2s")
    }
    assert [(row.values["stalls"], row.values["zero_throughput_s"]) for row in rows.values()] == [(4, 4), (0, None)]
    assert {row.values["docs_per_s_mean"] for row in rows.values()} == {200}


def test_mean_rate_includes_the_partial_second_at_the_end() -> None:
    end_ns = made.START + (made.WARM_UP_S + made.MEASURE_S) * SECOND + SECOND // 2
    row = summary(with_steady(made.sample(7.1, 7.4)), report={"measure_end_ns": end_ns})
    assert row.values["docs_per_s_mean"] == pytest.approx(5100 / 5.5)
    assert row.values["measured_seconds"] == 5
    # A bulk of a million documents that takes hours has a rate, too.
    slow = made.samples([made.sample(0, 10_000, documents=10**6, documents_acked=10**6)])
    values = load.load_columns(slow, Window(made.START, made.START + 20_000 * SECOND))
    assert values["docs_per_s_mean"] == pytest.approx(50)


def test_response_times_are_of_all_requests_and_of_acknowledged_ones() -> None:
    hung = [made.sample(3, 6, outcome="connection-error", status=0) for _ in range(2)]
    late = [made.sample(3, 5, outcome="timeout", status=0), made.sample(4, 4.5, outcome="http-error", status=503)]
    invalid = [made.sample(4, 5.5, outcome="invalid-response"), made.sample(5, 5.7, outcome="partial")]
    row = summary(with_steady(*hung, *late, *invalid))
    assert (row.values["requests"], row.values["requests_failed"]) == (56, 6)
    times = [row.values[f"response_ms_{name}"] for name in ("p50", "p99", "p999", "max")]
    # 56 requests have no 99th percentile: it would be the longest by another name.
    assert times == [pytest.approx(10), None, None, pytest.approx(3000)]
    assert [row.values[f"response_ok_ms_{name}"] for name in ("p50", "max")] == pytest.approx([10, 10])


@pytest.mark.parametrize(("after_s", "recovery_s", "text"), [(3, 1, "throughput back 1 s"), (6, None, "not back")])
def test_recovery_is_timed_for_bulks_longer_than_a_second(after_s: int, recovery_s: float | None, text: str) -> None:
    """Two of three seconds have no response, and with half the speed five of six."""
    before = [made.sample(begin, begin + 2.999) for begin in range(0, 12, 3)]
    after = [made.sample(begin, begin + after_s - 0.001) for begin in range(14, 26, after_s)]
    row = complete(
        made.samples([*before, *after]),
        report={"measure_end_ns": made.START + 26 * SECOND},
        faults=(fault("pause", 12, 14),),
        measure_start_realtime_ns=BEGIN + 2 * SECOND,
        measure_end_realtime_ns=BEGIN + 26 * SECOND,
    )
    assert row.values["recovery_s"] == recovery_s
    assert text in headline.describe_run(row)


@pytest.mark.parametrize(("missing", "state"), [(0, "measured"), (7, "measured"), (-7, "invalid")])
def test_documents_lost_by_a_killed_server_are_a_result(missing: int, state: str) -> None:
    row = complete(made.steady(), missing=missing, faults=(fault("kill", 0, 1),))
    assert (row.state, row.values["lost_documents"]) == (state, max(0, missing))


def test_reads_without_data_split_no_request() -> None:
    reads = np.array([(BEGIN + 3 * SECOND, -1, 40000)], dtype=list(READ_FIELDS))
    row = summarise(made.inputs(reads=reads))
    assert (row.state, row.values["slowest_wire_ms"]) == ("measured", None)


def test_network_column_has_the_profile_with_overrides() -> None:
    levels = {"network": "ethernet", "network.mtu": "1400", "gso_max_segs": "1", "heap": "2g", "name": "x"}
    row = summary(cell=made.cell(levels=levels, network=Profile(name="ethernet", mtu_bytes=1400)))
    assert row.values["network"] == "ethernet mtu=1400 gso_max_segs=1"


def test_generator_limit_makes_a_run_invalid_except_against_the_sink() -> None:
    row = summary(cpu=[made.cpu(*[0.99] * 7)])
    assert row.state == "invalid"
    assert "generator-bound" in row.reason
    sink = dataclasses.replace(made.cell(), target=dataclasses.replace(made.cell().target, name="sink"))
    assert summary(cpu=[made.cpu(*[0.99] * 7)], cell=sink).state == "measured"


def test_queries_are_counted_separately_from_requests() -> None:
    alone = summary()
    queries = made.samples([query(n / 4, n / 4 + 0.1) for n in range(28)])
    sent = 3_500_000 + 28 * 100
    row = summary(report={"bytes_written": sent}, measured={"bytes_read": sent}, queries=queries)
    assert row.state == "measured"
    assert (row.values["queries"], row.values["queries_per_s_mean"], row.values["queries_failed"]) == (20, 4, 0)
    assert row.values["query_ms_p50"] == pytest.approx(100)
    for name in ("requests", "response_ms_p99", "docs_per_s_mean", "documents_acked"):
        assert row.values[name] == alone.values[name]


def test_query_without_response_has_failed_and_may_miss_its_bytes() -> None:
    queries = made.samples([query(3, 3.1), query(4, 4.5, outcome="timeout")])
    row = summary(report={"bytes_written": 3_500_200}, measured={"bytes_read": 3_500_100}, queries=queries)
    assert (row.state, row.values["queries_failed"], row.values["queries"]) == ("measured", 1, 2)
    assert (row.values["queries_ok"], row.values["queries_per_s_mean"]) == (1, 0.2)
    assert row.values["query_ms_p50"] == pytest.approx(100)
    assert row.values["query_ok_ms_p50"] is None


def test_run_without_any_answered_query_is_invalid() -> None:
    queries = made.samples([query(n, n + 0.1, outcome="http-error", status=404) for n in range(7)])
    row = summary(report={"bytes_written": 3_500_700}, measured={"bytes_read": 3_500_700}, queries=queries)
    assert (row.state, row.reason) == ("invalid", "no query was answered within the measurement")
    assert row.values["query_ms_p50"] == pytest.approx(100)
    assert row.values["query_ok_ms_p50"] is None


def test_note_on_addresses_only_if_they_differ() -> None:
    rows = made.steady()
    rows["address"] = np.arange(len(rows)) % 2
    names = ("a.example:9200", "b.example:9200", "c.example:9200")

    def note(samples: Samples, count: int) -> str:
        return load.describe_differing_addresses(samples, made.report(addresses=names[:count]))

    assert note(rows, 0) == note(rows, 1) == note(rows, 2) == ""
    text = note(rows, 3)
    assert "a.example:9200: 2,500 documents in 25 requests, service time p50 10.0 ms; b.example" in text
    assert text.endswith("c.example:9200: 0 documents in 0 requests")
    # Too few requests for medians: addresses were used in turn.
    few = rows[30:33].copy()
    assert note(few, 2) == ""
    few["address"] = 0
    text = note(few, 2)
    assert text.endswith("b.example:9200: 0 documents in 0 requests")
    # An unsent arrival has no address.
    unsent = made.samples([made.sample(5.0, 6.0, outcome="cut-off", address=-1, attempts=0, bytes_sent=0)])
    rows = np.concatenate([rows, unsent])
    assert note(rows, 2) == ""
    rows["done_ns"][rows["address"] == 1] += 80_000_000
    text = note(rows, 2)
    assert text.endswith("b.example:9200: 2,500 documents in 25 requests, service time p50 90.0 ms")
    assert texts(summary(rows, report={"addresses": names[:2]}), "addresses")


def test_flushes_and_compactions_within_the_measurement_are_columns() -> None:
    flushes = {str(second): {"at_ns": BEGIN + second * SECOND, "bytes": 100 * second} for second in (0, 3, 5)}
    counters = {"flushes": flushes, "compactions": {"0": {"at_ns": BEGIN + 4 * SECOND}}}
    values = summary(record={"counters": counters}).values
    assert (values["flushes"], values["flush_bytes_mean"], values["compactions"]) == (2, 400, 1)
    empty = summary(record={"counters": {"flushes": {}, "compactions": {}}}).values
    assert (empty["flushes"], empty["flush_bytes_mean"], empty["compactions"]) == (0, None, 0)
