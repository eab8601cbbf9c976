"""Response times second by second, also for a load of a day."""

from __future__ import annotations

import example_runs as made
import numpy as np

from ingest_bench.analysis.run.sample_columns import Samples, load_columns, load_series, measurement_window

SECOND = made.SECOND


def ended(done_s: np.ndarray[tuple[int], np.dtype[np.float64]], response_ms: int) -> Samples:
    """Return acknowledged requests that ended at these seconds of the load."""
    samples = made.samples([made.sample(0, 1)]).repeat(len(done_s))
    samples["done_ns"] = made.START + (done_s * SECOND).astype(np.int64)
    samples["sent_ns"] = samples["scheduled_ns"] = (
        samples["done_ns"] - np.arange(1, len(samples) + 1) % response_ms * 10**6
    )
    return samples


def test_seconds_have_median_of_ended_and_longest_of_waiting_requests() -> None:
    done_s = np.random.default_rng(1).uniform(-1, 9, 400)
    done_s = done_s[(done_s < 2) | (done_s >= 3)]
    samples = ended(done_s, 70)
    series = load_series(samples, made.report())
    due_in_time = samples["scheduled_ns"] < made.START + 7 * SECOND
    second = np.where(due_in_time, np.minimum(np.floor(done_s), 6), 99).astype(int)
    response_ms = (samples["done_ns"] - samples["scheduled_ns"]) / 1e6
    present = [0, 1, 3, 4, 5, 6]
    medians = [np.percentile(response_ms[second == at], 50, method="inverted_cdf") for at in present]
    assert series["response_ms_p50"].values == tuple(medians)
    assert series["response_ms_p50"].at_ns == tuple(made.START + made.OFFSET + at * SECOND for at in present)
    waited = (samples["scheduled_ns"] < made.START + 7 * SECOND) & (done_s >= 0)
    began_s = np.maximum((samples["scheduled_ns"] - made.START) // SECOND, 0)
    of_each = [response_ms[waited & (began_s <= at) & (second >= at)] for at in range(7)]
    assert series["response_ms_max"].values == tuple(times.max() for times in of_each if len(times))


def test_request_answered_after_the_end_is_in_the_last_second() -> None:
    # The plotted line must show the longest response time of the table.
    samples = ended(np.array([1.5, 6.5, 11.0]), 2)
    samples["scheduled_ns"][2] = made.START + 6 * SECOND
    series = load_series(samples, made.report())["response_ms_max"]
    assert series.values[-1] == 5000
    assert series.at_ns[-1] == made.START + made.OFFSET + 6 * SECOND


def test_wait_of_three_seconds_is_in_each_of_them() -> None:
    # Drawn at the response, a stall would begin where it ended.
    samples = ended(np.array([0.5, 1.5, 2.5, 3.5, 4.7, 5.5, 6.5]), 2)
    samples["scheduled_ns"][4] = made.START + round(1.3 * SECOND)
    series = load_series(samples, made.report())
    assert [round(value) for value in series["response_ms_max"].values] == [1, 3400, 3400, 3400, 3400, 0, 1]
    assert series["response_ok_ms_max"].values == series["response_ms_max"].values
    assert (
        max(series["response_ms_max"].values)
        == load_columns(samples, measurement_window(made.report()))["response_ms_max"]
    )
