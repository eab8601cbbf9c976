"""Response times second by second: right, and of a whole day too."""

from __future__ import annotations

import time

import made_runs
import numpy as np

from ingest_bench.analysis.run.over_time import series
from ingest_bench.analysis.run.sample_columns import Samples, measured, window_of

SECOND = made_runs.SECOND
DAY_S = 24 * 3600


def ended(done_s: np.ndarray[tuple[int], np.dtype[np.float64]], response_ms: int) -> Samples:
    """Requests that were all acknowledged, at these seconds of the load."""
    made = made_runs.samples([made_runs.sample(0, 1)]).repeat(len(done_s))
    made["done_ns"] = made_runs.START + (done_s * SECOND).astype(np.int64)
    made["sent_ns"] = made["planned_ns"] = made["done_ns"] - np.arange(1, len(made) + 1) % response_ms * 10**6
    return made


def test_each_second_has_the_median_of_what_ended_in_it_and_the_longest_of_what_waited_in_it() -> None:
    done_s = np.random.default_rng(1).uniform(-1, 9, 400)
    done_s = done_s[(done_s < 2) | (done_s >= 3)]
    samples = ended(done_s, 70)
    found = series(samples, made_runs.report())
    due_in_time = samples["planned_ns"] < made_runs.START + 7 * SECOND
    second = np.where(due_in_time, np.minimum(np.floor(done_s), 6), 99).astype(int)
    response_ms = (samples["done_ns"] - samples["planned_ns"]) / 1e6
    present = [0, 1, 3, 4, 5, 6]
    medians = [np.percentile(response_ms[second == at], 50, method="inverted_cdf") for at in present]
    assert found["response_ms_p50"].values == tuple(medians)
    assert found["response_ms_p50"].at_ns == tuple(made_runs.START + made_runs.OFFSET + at * SECOND for at in present)
    waited = (samples["planned_ns"] < made_runs.START + 7 * SECOND) & (done_s >= 0)
    began_s = np.maximum((samples["planned_ns"] - made_runs.START) // SECOND, 0)
    of_each = [response_ms[waited & (began_s <= at) & (second >= at)] for at in range(7)]
    assert found["response_ms_max"].values == tuple(times.max() for times in of_each if len(times))


def test_a_request_that_was_answered_after_the_end_is_in_the_last_second() -> None:
    # Of the longest response time in the table, the line of the picture showed nothing.
    samples = ended(np.array([1.5, 6.5, 11.0]), 2)
    samples["planned_ns"][2] = made_runs.START + 6 * SECOND
    found = series(samples, made_runs.report())["response_ms_max"]
    assert found.values[-1] == 5000
    assert found.at_ns[-1] == made_runs.START + made_runs.OFFSET + 6 * SECOND


def test_a_second_in_which_nobody_waited_has_no_longest_response_time() -> None:
    found = series(ended(np.array([0.5, 6.5]), 2), made_runs.report())["response_ms_max"]
    assert found.at_ns == tuple(made_runs.START + made_runs.OFFSET + at * SECOND for at in (0, 6))
    assert found.values == (1, 0)


def test_who_waited_three_seconds_is_in_each_of_them_and_no_total_changes() -> None:
    # Drawn at the moment of its answer, a stall began where it was over.
    samples = ended(np.array([0.5, 1.5, 2.5, 3.5, 4.7, 5.5, 6.5]), 2)
    samples["planned_ns"][4] = made_runs.START + round(1.3 * SECOND)
    found = series(samples, made_runs.report())
    assert [round(value) for value in found["response_ms_max"].values] == [1, 3400, 3400, 3400, 3400, 0, 1]
    assert found["response_ok_ms_max"].values == found["response_ms_max"].values
    assert max(found["response_ms_max"].values) == measured(samples, window_of(made_runs.report()))["response_ms_max"]


def test_a_day_of_samples_takes_seconds() -> None:
    samples = ended(np.linspace(0, DAY_S, 5 * DAY_S, endpoint=False), 900)
    end_ns = made_runs.START + DAY_S * SECOND
    began = time.process_time()
    found = series(samples, made_runs.report(measure_end_ns=end_ns))
    # A choice among all samples for each second took minutes.
    assert time.process_time() - began < 10
    assert len(found["response_ms_p50"].values) == DAY_S
