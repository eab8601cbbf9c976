"""Response times second by second, also for a load of a day."""

from __future__ import annotations

import example_runs as made
import numpy as np

from ingest_bench.analysis.run.sample_columns import load_series
from ingest_bench.model.samples import OUTCOMES

SECOND = made.SECOND


def test_seconds_have_median_of_ended_and_longest_of_waiting_requests() -> None:
    random = np.random.default_rng(1)
    samples = made.samples([made.sample(0, 1)]).repeat(400)
    done_s = random.uniform(-1, 9, 400)
    # Responses that take up to 4 s, none in the third second, and some after the end; one in five failed.
    done_s[(done_s >= 2) & (done_s < 3)] += 1
    samples["done_ns"] = made.START + (done_s * SECOND).astype(np.int64)
    samples["sent_ns"] = samples["scheduled_ns"] = samples["done_ns"] - random.integers(1, 4000, 400) * 10**6
    samples["outcome"][::5] = OUTCOMES.index("timeout")
    series = load_series(samples, made.report())
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
