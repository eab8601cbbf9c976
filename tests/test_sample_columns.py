"""Columns, series and histograms are those of plain Python definitions, at, before and after every bound."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import example_runs as made
import numpy as np
import pytest

from ingest_bench.analysis import quantiles
from ingest_bench.analysis.run import columns, integrity
from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.sample_columns import Samples, Window
from ingest_bench.analysis.stalls import waiting
from ingest_bench.model import results
from ingest_bench.model.results import FaultRecord, Series
from ingest_bench.model.samples import OUTCOMES

SECOND = made.SECOND
WINDOW = Window(made.START + 2 * SECOND, made.START + 5 * SECOND)
# Around both ends of the measurement and of a second within it, and far from them.
MOMENTS = [
    made.START + 2 * SECOND + at * SECOND + off for at in (-1, 0, 1, 3, 4) for off in (-1, 0, 1)
]  # fmt: skip


def all_combinations() -> Samples:
    """Return a sample from each of these times to each later one, some rejected, unsent or without a user."""
    rows = []
    for number, (scheduled_ns, done_ns) in enumerate(itertools.combinations_with_replacement(MOMENTS, 2)):
        outcome = (0, 0, 0, OUTCOMES.index("http-error"), OUTCOMES.index("timeout"))[number % 5]
        sent_ns = scheduled_ns + (done_ns - scheduled_ns) * (number % 3) // 2
        rows.append(
            made.sample(0, 0) | {
                "scheduled_ns": scheduled_ns, "sent_ns": sent_ns, "first_byte_ns": done_ns, "done_ns": done_ns,
                "outcome": outcome, "status": 0 if outcome == OUTCOMES.index("timeout") else 200,
                "documents_acked": 0 if outcome else 100 + number, "user": number % 4 - 1, "attempts": 1 + number % 3,
                "bytes_sent": 0 if number % 7 == 0 else 50_000,
            }
        )  # fmt: skip
    return made.samples(rows)


def is_within(time_ns: int, start_ns: int, end_ns: int) -> bool:
    return start_ns <= time_ns < end_ns


def is_in_flight(sample: Any) -> bool:
    return bool(sample["scheduled_ns"] < WINDOW.end_ns and sample["done_ns"] >= WINDOW.start_ns)


def test_load_columns_are_sums_over_samples() -> None:
    samples = all_combinations()
    row = load.load_columns(samples, WINDOW)
    in_flight = [sample for sample in samples if is_in_flight(sample)]
    assert row["requests"] == len(in_flight)
    assert row["requests_failed"] == sum(sample["outcome"] != 0 for sample in in_flight)
    assert row["attempts"] == sum(sample["attempts"] for sample in in_flight)
    unknown = OUTCOMES.index("timeout")
    ended = [sample for sample in samples if is_within(sample["done_ns"], WINDOW.start_ns, WINDOW.end_ns)]
    answered = [sample for sample in ended if sample["outcome"] != unknown]
    assert row["bytes_measured"] == sum(sample["bytes_sent"] for sample in answered)
    assert row["requests_answered"] == len(answered)
    assert row["docs_per_s_mean"] == pytest.approx(sum(int(sample["documents_acked"]) for sample in ended) / 3)
    service_ms = sorted((sample["done_ns"] - sample["sent_ns"]) / 1e6 for sample in in_flight if sample["bytes_sent"])
    response_ms = sorted((sample["done_ns"] - sample["scheduled_ns"]) / 1e6 for sample in in_flight)
    acked_ms = sorted(
        (sample["done_ns"] - sample["scheduled_ns"]) / 1e6 for sample in in_flight if sample["outcome"] == 0
    )
    assert (row["requests_ok"], row["requests_sent"]) == (len(acked_ms), len(service_ms))
    assert [row[f"{name}_ms_max"] for name in ("response", "response_ok")] == [response_ms[-1], acked_ms[-1]]
    for name, times in (("response", response_ms), ("response_ok", acked_ms), ("service", service_ms)):
        assert row[f"{name}_ms_p50"] == times[-(-len(times) // 2) - 1]
    starts_ns = [WINDOW.start_ns + second * SECOND for second in range(3)]
    assert load.acked_per_second(samples, WINDOW.start_ns, 3).tolist() == [
        sum(int(sample["documents_acked"]) for sample in samples if is_within(sample["done_ns"], at, at + SECOND))
        for at in starts_ns
    ]
    hole = [not is_within(done_ns, starts_ns[1], starts_ns[2]) for done_ns in samples["done_ns"]]
    assert load.load_columns(samples[hole], WINDOW)["zero_throughput_s"] == 1


def test_spread_documents_are_the_parts_of_requests_in_each_slot() -> None:
    samples, slot_ns = all_combinations(), SECOND // 2
    slots = load.spread_acked(samples, WINDOW.start_ns, 6, slot_ns)
    for slot in range(6):
        low_ns, expected = WINDOW.start_ns + slot * slot_ns, 0.0
        for sample in samples:
            end_ns = int(sample["done_ns"])
            begin_ns = min(int(sample["sent_ns"]), end_ns - 1)
            inside_ns = max(0, min(end_ns, low_ns + slot_ns) - max(begin_ns, low_ns))
            expected += float(sample["documents_acked"]) * inside_ns / (end_ns - begin_ns)
        assert slots[slot] == pytest.approx(expected)


def test_waiting_steps_and_responses_are_counted_exactly() -> None:
    samples = all_combinations()
    # Slow means more than a second: ten medians of 100 ms.
    waited = waiting.find_waiting(samples, WINDOW, 100.0)
    in_flight = [sample for sample in samples if is_in_flight(sample)]
    slow = [sample for sample in in_flight if sample["done_ns"] - sample["scheduled_ns"] > waited.slow_ns]
    assert len(waited.slow) == len(slow)
    assert waited.gap_ns == 3 * SECOND / len(in_flight)
    last = len(waited.counts) - 1

    def step(at_ns: int) -> int:
        return min(max((at_ns - WINDOW.start_ns) // waited.step_ns, 0), last)

    expected = [
        sum(step(sample["scheduled_ns"]) <= at <= step(sample["done_ns"]) for sample in slow) for at in range(last + 1)
    ]
    assert waited.counts.tolist() == expected
    answered = [
        sample["first_byte_ns"]
        for sample in samples
        if is_within(sample["first_byte_ns"], WINDOW.start_ns, WINDOW.end_ns) and sample["status"] > 0
    ]
    assert waited.count_responses(WINDOW.start_ns - waited.step_ns, WINDOW.end_ns) == len(answered)
    second = WINDOW.start_ns + SECOND
    # From the step after the one in which the span begins to the one before its end.
    assert waited.count_responses(second - 1, second + waited.step_ns) == sum(
        is_within(first_byte_ns, second, second + waited.step_ns) for first_byte_ns in answered
    )
    assert waited.count_responses(second, second + waited.step_ns) == 0
    assert waited.count_responses(second, second + SECOND, address=5) == 0


@pytest.mark.parametrize("largest", [1 << 39, (1 << 40) - 1, 1 << 40, 1 << 41])
@pytest.mark.parametrize("least", [0, -1])
def test_median_of_each_second_is_exact_for_all_times(largest: int, least: int) -> None:
    second = np.array([7, 3, 7, 3, 7, 7, 9, 3, 3])
    times = np.array([5, largest, 3, least, 8, largest, largest, 2, 1])
    seconds, medians = quantiles.medians_by_second(second, times)
    assert seconds.tolist() == [3, 7, 9]
    # The lower one of an even number.
    assert medians.tolist() == [1, 5, largest]


def test_recovery_ends_with_the_first_full_second_after_the_fault() -> None:
    def back(values: list[float], began: float, ended: float | None, end_s: int = 8) -> float | None:
        series = Series("docs_per_s", tuple(at * SECOND for at in range(8)), tuple(values))
        fault = FaultRecord(
            kind="pause", start_ns=round(began * SECOND), end_ns=None if ended is None else round(ended * SECOND)
        )
        return integrity.recovery_s(series, [fault], SECOND, end_s * SECOND)

    # 90% of the median of 10, 20 and 30 before it are 18.
    values = [999.0, 10, 20, 30, 0, 17.9, 18, 99]
    assert back(values, 4, 4.5) == 2.5
    assert back(values, 4, 6) == 1
    assert back(values, 4, 6.9999) == pytest.approx(0.0001)
    assert back(values, 4, 7) == 1
    assert back(values, 4, None) == 3
    assert back(values, 4, 4.5, end_s=7) == 2.5
    assert back(values, 4, 4.5, end_s=6) is None
    # The second in which it began does not count: the median of 10 and 20 is 15.
    assert back([999.0, 10, 20, 30, 0, 13.4, 13.5, 99], 3.999, 4.5) == 2.5
    assert back(values, 1.9, 4.5) is None
    assert integrity.recovery_s(Series("docs_per_s", (), ()), [], 0, SECOND) is None


def test_size_columns_are_of_the_histograms_that_are_present() -> None:
    counts = {1: 4, 3: 1, 1024: 90, 1025: 5}
    assert quantiles.size_columns({"read_bytes": counts, "wire_bytes": {9: 3, 11: 4}}) == {
        "reads": 100,
        "read_bytes_mean": (4 + 3 + 90 * 1024 + 5 * 1025) / 100,
        "read_bytes_p50": 1024,
        "read_bytes_p99": 1025,
        "wire_bytes_p50": 11,
    }
    assert quantiles.size_columns({"wire_bytes": {}}) == {}
    assert quantiles.merge_counts([{1: 2, 3: 4}, {3: 1}]) == {1: 2, 3: 5}


def test_value_per_gb_is_unknown_without_bytes() -> None:
    assert columns.per_gb_columns({"gc_pauses": 3, "bytes_measured": 1})["gc_pauses_per_gb"] == 3e9
    assert columns.per_gb_columns({"gc_pauses": 3, "bytes_measured": 2 * 10**9})["gc_pauses_per_gb"] == 1.5
    for ingested in (0, None):
        assert columns.per_gb_columns({"gc_pauses": 3, "bytes_measured": ingested})["gc_pauses_per_gb"] is None


def test_p999_of_2000_requests_is_the_third_longest() -> None:
    samples = made.samples([made.sample(0, number / 1000) for number in range(1, 2001)])
    row = load.load_columns(samples, Window(made.START, made.START + 10 * SECOND))
    for kind in ("response", "response_ok"):
        assert row[f"{kind}_ms_p999"] == pytest.approx(1998)
        assert row[f"{kind}_ms_p99"] == pytest.approx(1980)


@pytest.mark.parametrize("percent", [10, 50, 90, 99, 99.9, 99.99])
def test_nearest_rank_is_exact(percent: float) -> None:
    share = Fraction(str(percent)) / 100
    for count in range(1, 100_001, 37):
        for exact in (count, count * 1000):
            expected = None if exact * (1 - share) < 1 else math.ceil(exact * share) - 1
            assert results.nearest_rank(percent, exact) == expected


def test_seconds_have_median_of_ended_and_longest_of_waiting_requests() -> None:
    random = np.random.default_rng(1)
    done_s = random.uniform(-1, 9, 400)
    # Responses that take up to 4 s, none in the third second, and some after the end; one in five failed.
    done_s[(done_s >= 2) & (done_s < 3)] += 1
    samples = made.timed(done_s - random.uniform(0.001, 4, 400), done_s)
    samples["outcome"][::5] = OUTCOMES.index("timeout")
    series = load.load_series(samples, made.report())
    due_in_time = samples["scheduled_ns"] < made.START + 7 * SECOND
    # A request that ended later belongs to the last second: the picture shows the longest time of the table.
    second = np.minimum(np.floor(done_s), 6).astype(int)
    began = np.maximum((samples["scheduled_ns"] - made.START) // SECOND, 0)
    response_ms = (samples["done_ns"] - samples["scheduled_ns"]) / 1e6
    for kind, counted in (("response", due_in_time), ("response_ok", due_in_time & (samples["outcome"] == 0))):
        medians, longest = series[f"{kind}_ms_p50"], series[f"{kind}_ms_max"]
        present = [0, 1, 3, 4, 5, 6]
        assert medians.at_ns == tuple(made.START + made.OFFSET + at * SECOND for at in present)
        ended = [response_ms[counted & (second == at)] for at in present]
        assert medians.values == tuple(np.percentile(times, 50, method="inverted_cdf") for times in ended)
        # A wait is in each of its seconds: drawn at the response, a stall would begin where it ended.
        waited = [response_ms[counted & (began <= at) & (second >= at)] for at in range(7)]
        assert longest.values == tuple(times.max() for times in waited)


def test_percentile_is_a_value_that_occurred() -> None:
    counts = {1448: 90, 65536: 10}
    assert results.percentile(counts, 50) == 1448
    assert results.percentile(counts, 90) == 1448
    assert results.percentile(counts, 90.1) == 65536
    assert results.percentile(counts, 99) == 65536
    assert results.percentile({}, 50) is None


def test_bins_cover_every_value_once() -> None:
    counts = dict.fromkeys(range(1, 5000), 1)
    rows = quantiles.logarithmic_bins(counts)
    assert sum(number for _, _, number in rows) == 4999
    assert all(upper + 1 == following for (_, upper, _), (following, _, _) in itertools.pairwise(rows))
    assert all(number == min(upper, 4999) - lower + 1 for lower, upper, number in rows)


@pytest.mark.parametrize("size", [2048, 65536, 524288])
def test_size_of_a_full_buffer_ends_its_bin(size: int) -> None:
    assert quantiles.logarithmic_bins({size: 5})[0][1:] == (size, 5)
    assert quantiles.logarithmic_bins({size + 1: 5})[0][0] == size + 1


def test_bin_may_be_an_octave() -> None:
    assert quantiles.logarithmic_bins({1: 2, 3: 1, 4: 1}, per_octave=1) == [(1, 1, 2), (2, 2, 0), (3, 4, 2)]


def test_size_of_0_is_refused() -> None:
    with pytest.raises(ValueError, match="size of 0"):
        quantiles.logarithmic_bins({0: 1})
