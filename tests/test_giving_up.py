"""When a load is given up while it runs: the conditions, their text, and figures second by second."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import example_runs as made
import numpy as np
import pytest
from test_load_process import plan_for

from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.inputs import load_values, records
from ingest_bench.load import supervisor
from ingest_bench.load.figures import (
    EDGES_NS,
    AbortMonitor,
    LoadFigures,
    RequestFigures,
    compute_figures,
    figures_from_json,
)
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.supervisor import LoadWorker, Workers
from ingest_bench.model.load import AbortCondition, LoadOptions
from ingest_bench.model.samples import SAMPLE, WorkerReport
from ingest_bench.model.target import Endpoint

S = 10**9
MS = 10**6


def ended(ok: int = 0, failed: int = 0, response_ms: float = 10) -> RequestFigures:
    step = int(np.searchsorted(EDGES_NS, round(response_ms * MS)))
    return RequestFigures(outcomes=+Counter({"ok": ok, "http-error": failed}), steps=+Counter({step: ok + failed}))


def given_up(text: str, seconds: list[RequestFigures | None], oldest_s: float = 0) -> tuple[int, str] | None:
    """After how many seconds, and why; each with what ended in it."""
    patience, total = AbortMonitor([load_values.parse_abort(text)]), RequestFigures()
    assert patience.find_violation(0, LoadFigures()) == ""
    for second, new in enumerate(seconds, 1):
        total += new or RequestFigures()
        why = patience.find_violation(second * S, LoadFigures(bulks=total, oldest_ns=round(oldest_s * S)))
        if why:
            return second, why
    return None


def test_a_violation_for_its_time_aborts_with_the_value() -> None:
    violation = given_up("errors > 5% for 3s", [ended(90, 10)] * 5)
    assert violation == (3, "aborted by errors > 5% for 3s: errors 10% in the last second")


def test_one_good_second_restarts_the_time() -> None:
    bad, good = ended(90, 10), ended(100)
    assert given_up("errors > 5% for 3s", [bad, bad, good, bad, bad, good] * 3) is None
    assert given_up("errors > 5% for 3s", [bad, bad, good, bad, bad, bad]) == (
        6,
        "aborted by errors > 5% for 3s: errors 10% in the last second",
    )


def test_exactly_the_limit_is_not_above_it() -> None:
    assert given_up("errors > 50% for 2s", [ended(50, 50)] * 9) is None


def test_a_second_without_finished_requests_is_ignored() -> None:
    # One request a minute: a single failure is 100% of its second.
    assert given_up("errors > 5% for 10s", [ended(0, 1), *[None] * 59, ended(1), *[None] * 59]) is None
    violation = given_up("errors > 5% for 10s", [ended(0, 1), *[None] * 59, ended(0, 1)])
    assert violation is not None
    assert violation[0] == 61


def test_a_percentile_is_never_reported_too_high() -> None:
    assert given_up("p99 > 500ms for 2s", [ended(100, response_ms=500)] * 5) is None
    assert given_up("p99 > 500ms for 2s", [ended(98, response_ms=1) + ended(2, response_ms=700)] * 5) is not None
    assert given_up("p50 > 500ms for 2s", [ended(98, response_ms=1) + ended(2, response_ms=700)] * 5) is None


@pytest.mark.parametrize(("name", "slow", "kept"), [("p50", 51, 50), ("p99", 2, 1), ("max", 1, 0)])
def test_a_percentile_is_violated_by_the_first_request_beyond_it(name: str, slow: int, kept: int) -> None:
    def broken(count: int) -> bool:
        second = ended(100 - count, response_ms=1) + ended(count, response_ms=700)
        return given_up(f"{name} > 500ms for 2s", [second] * 3) is not None

    assert broken(slow)
    assert not broken(kept)


def test_a_waiting_request_violates_max_before_its_timeout() -> None:
    assert given_up("max > 5s for 2s", [None] * 9, oldest_s=4) is None
    assert given_up("max > 5s for 2s", [None] * 9, oldest_s=6) == (
        2,
        "aborted by max > 5s for 2s: max 6s in the last second",
    )


def test_requests_before_the_measurement_do_not_count() -> None:
    patience = AbortMonitor([load_values.parse_abort("errors > 5% for 1s")])
    warm_up = ended(0, 1000)
    assert patience.find_violation(5 * S, LoadFigures(bulks=warm_up)) == ""
    assert [patience.find_violation(5 * S + n * S, LoadFigures(bulks=warm_up + ended(100 * n))) for n in (1, 2, 3)] == [
        ""
    ] * 3


class ScriptedWorkers(Workers[LoadWorker]):
    """One worker whose statuses are these, one per second."""

    def __init__(self, plan: LoadPlan, *statuses: dict[str, Any]) -> None:
        super().__init__()
        self.workers = [LoadWorker(plan)]
        self.workers[0].status["phase"] = "ready"
        self._statuses = iter(statuses)

    def process_messages(self, timeout_s: float) -> None:
        del timeout_s
        self.workers[0].status.update(next(self._statuses))

    def command(self, line: Mapping[str, Any]) -> None:
        """Ignore commands."""

    def begin(self) -> int:
        return 0

    def collect(self) -> list[WorkerReport | None]:
        return [None]

    def stop(self) -> None:
        """Nothing was started."""


@pytest.mark.parametrize(
    ("phase", "message"),
    [("warm-up", "left no report"), ("measure", "^aborted by errors > 5% for 1s: errors 100%"), ("drain", "no report")],
)
def test_only_errors_of_the_measurement_abort_a_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, message: str
) -> None:
    now_ns = itertools.count(0, S)
    clock = SimpleNamespace(monotonic=lambda: 0, monotonic_ns=lambda: next(now_ns))
    monkeypatch.setattr(supervisor, "time", clock)
    plan = plan_for(Endpoint("127.0.0.1", 1), tmp_path, abort=(load_values.parse_abort("errors > 5% for 1s"),))
    figures = [records.to_json(LoadFigures(bulks=ended(0, number))) for number in range(4)]
    statuses = [{"phase": phase, "figures": json.loads(json.dumps(values))} for values in figures]
    workers = ScriptedWorkers(plan, *statuses, {"phase": "done"})
    load = supervisor.RunningLoad([plan], workers, None, [False])
    with pytest.raises(RunFailed, match=message):
        load.wait(lambda _: None)


def test_any_of_several_conditions_is_enough() -> None:
    texts = ("errors > 50% for 10s", "p99 > 1s for 2s")
    patience = AbortMonitor([load_values.parse_abort(text) for text in texts])
    assert patience.find_violation(0, LoadFigures()) == ""
    slow = [LoadFigures(bulks=ended(n * 10, response_ms=2000)) for n in range(1, 4)]
    assert [bool(patience.find_violation((n + 1) * S, load)) for n, load in enumerate(slow)] == [False, True, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("errors > 5%", "has no duration"),
        ("errors < 5% for 10s", "is not a condition"),
        ("errors >= 5% for 10s", "is not a condition"),
        ("errors > nan% for 10s", "is not a fraction"),
        ("p99 > nan for 10s", "is not a time"),
        ("p98 > 1s for 10s", "'p98' is not a metric that can be limited: .*p99.9"),
        ("service p99 > 1s for 10s", "is not a metric that can be limited"),
        ("errors > 100% for 10s", "a share is at most 100%"),
        ("errors > 5% for ever", "is not a time"),
        ("errors > 5% for 10ms", "is not between 1s and 24h"),
        ("errors > 5% for 25h", "is not between 1s and 24h"),
        ("", "has no duration"),
        (" for 10s", "is not a condition"),
    ],
)
def test_an_impossible_condition_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        records.from_toml(LoadOptions, {"abort": [text]}, "load")


def test_conditions_survive_text_and_json() -> None:
    made_of = records.from_toml(LoadOptions, {"abort": "errors > 5% for 10s, p99 > 2s for 1min"}, "load")
    assert made_of.abort == (
        AbortCondition(metric="errors", above=0.05, for_ns=10 * S),
        AbortCondition(metric="p99", above=2000, for_ns=60 * S),
    )
    assert [load_values.format_abort(condition) for condition in made_of.abort] == [
        "errors > 5% for 10s",
        "p99 > 2s for 1min",
    ]
    assert records.from_json(LoadOptions, records.to_json(made_of)) == made_of


def test_figures_of_samples_survive_json() -> None:
    rows = made.samples([made.sample(n / 10, n / 10 + 0.1 * (n + 1)) for n in range(30)])
    rows["outcome"][3], rows["documents_acked"][3], rows["documents_failed"][3] = 3, 0, 100
    rows["outcome"][4], rows["documents_acked"][4] = 4, 0
    bulks = compute_figures(rows)
    assert compute_figures(rows[:10]) + compute_figures(rows[10:]) == bulks
    assert bulks.outcomes == {"ok": 28, "http-error": 1, "connection-error": 1}
    assert bulks.documents == {"acknowledged": 2800, "failed": 100, "unknown": 100}
    assert bulks.bytes_sent == 30 * 50_000
    load = LoadFigures(bulks=bulks, in_flight=1, oldest_ns=2, cpu_ns={"7 user": 3})
    values = json.loads(json.dumps(records.to_json(load)))
    assert figures_from_json(values) == records.from_json(LoadFigures, values) == load
    both = load + load
    assert (both.in_flight, both.oldest_ns, both.cpu_ns) == (2, 2, {"7 user": 6})
    assert both.bulks.outcomes == {"ok": 56, "http-error": 2, "connection-error": 2}
    assert both.bulks - bulks == bulks


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 1.0])
def test_a_live_percentile_is_at_most_four_percent_low(share: float) -> None:
    draw = np.random.default_rng(1)
    rows = np.zeros(10_000, dtype=SAMPLE)
    rows["done_ns"] = np.exp(draw.normal(17, 2, len(rows))).astype(np.int64)
    exact = float(np.quantile(rows["done_ns"], share, method="inverted_cdf"))
    assert exact * 0.96 <= compute_figures(rows).quantile_ns(share) <= exact
