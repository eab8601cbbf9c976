from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Sequence

import made_summaries as made
import numpy as np
import pytest

from ingest_bench import gate
from ingest_bench.errors import SpecError
from ingest_bench.gate import Verdict
from ingest_bench.model.results import Summary

THRESHOLDS = """
[[threshold]]
column = "docs_per_s_median"
may_fall = "5%"
[[threshold]]
column = "gc_pause_ms_total"
may_rise = "20%"
"""


def runs(factor: float = 1.0, *, seed: int = 1, replicates: int = 3) -> list[Summary]:
    """Replicates of one cell with 1% noise between runs."""
    random = np.random.default_rng(seed)
    made_runs = [made.summary({"network": "ethernet"}, replicate) for replicate in range(1, replicates + 1)]
    return [
        made.changed(
            run, values={"docs_per_s_median": 20_000 * factor * random.normal(1, 0.01), "gc_pause_ms_total": 100}
        )
        for run in made_runs
    ]


def judged(now: Sequence[Summary], text: str = THRESHOLDS, baseline: Sequence[Summary] = ()) -> Verdict:
    return gate.judge(now, gate.thresholds(tomllib.loads(text), "gate.toml"), baseline)


@pytest.mark.parametrize("replicates", [1, 3])
def test_two_runs_of_the_same_cell_pass(replicates: int) -> None:
    for seed in range(1, 20):
        now, before = runs(seed=seed, replicates=replicates), runs(seed=100 + seed, replicates=replicates)
        assert judged(now, baseline=before).exit_code == 0


@pytest.mark.parametrize("replicates", [1, 3])
def test_an_injected_difference_is_caught(replicates: int) -> None:
    for seed in range(1, 20):
        now, before = runs(0.85, seed=seed, replicates=replicates), runs(seed=100 + seed, replicates=replicates)
        verdict = judged(now, baseline=before)
        assert verdict.exit_code == 1
        assert [check.column for check in verdict.checks if check.outcome == "fail"] == ["docs_per_s_median"]


def test_an_improvement_does_not_fail() -> None:
    assert judged(runs(1.3), baseline=runs(seed=2)).outcome == "pass"


def test_a_change_that_noise_could_be_is_no_verdict_and_asks_for_replicates() -> None:
    noisy = [
        made.changed(run, values={"docs_per_s_median": value})
        for run, value in zip(runs(), (9e3, 2e4, 2.2e4), strict=True)
    ]
    verdict = judged(noisy, baseline=runs(seed=2))
    assert verdict.exit_code == 3
    assert "more replicates" in verdict.checks[0].text


def test_an_invalid_run_is_never_a_pass() -> None:
    now = runs()
    now[0] = made.changed(now[0], state="invalid", reason="bytes differ")
    verdict = judged(now, baseline=runs(seed=2))
    assert verdict.exit_code == 3
    assert "bytes differ" in verdict.checks[0].text


def test_a_failure_is_a_failure_even_beside_an_invalid_run() -> None:
    now = runs(0.5)
    now[0] = made.changed(now[0], state="invalid")
    assert judged(now, baseline=runs(seed=2)).exit_code == 1


def test_a_run_out_of_memory_fails() -> None:
    now = runs()
    now[0] = made.changed(now[0], state="oom")
    assert judged(now, baseline=runs(seed=2)).exit_code == 1


def test_a_run_that_was_aborted_is_no_verdict_and_never_a_pass() -> None:
    now = runs()
    now[0] = made.changed(now[0], state="aborted", reason="aborted by errors > 5% for 10s")
    assert judged(now, baseline=runs(seed=2)).exit_code == 3


def test_absolute_limits_are_checked_without_a_baseline() -> None:
    text = '[[threshold]]\ncolumn = "docs_per_s_median"\nat_least = {}\nat_most = 30000\n'
    assert judged(runs(), text.format(15000)).exit_code == 0
    verdict = judged(runs(), text.format(25000))
    assert verdict.exit_code == 1
    assert "wanted at least 25,000" in verdict.checks[0].text


def test_what_was_not_measured_or_has_no_baseline_is_no_verdict() -> None:
    unmeasured = '[[threshold]]\ncolumn = "retransmits"\nat_most = 5\n'
    assert judged(runs(), unmeasured).exit_code == 3
    assert judged(runs()).exit_code == 3
    assert judged([], THRESHOLDS).exit_code == 3


@pytest.mark.parametrize("unknown", [None, float("nan"), float("inf"), "never"])
def test_a_number_that_one_of_the_runs_has_not_is_no_pass(unknown: float | str | None) -> None:
    first, second, third = (made.changed(run, values={"recovery_s": 2.0}) for run in runs())
    without = made.changed(second, values={"recovery_s": unknown})
    text = '[[threshold]]\ncolumn = "recovery_s"\n{}\n'
    for limit, broken in (("at_most = 5", "at_most = 1"), ('may_rise = "10%"', 'may_rise = "0%"')):
        before = [made.changed(run, values={"recovery_s": 1.95}) for run in runs()]
        verdict = judged([first, without, third], text.format(limit), before)
        assert verdict.outcome == "no verdict", verdict
        assert f"but {second.run} did not measure it" in verdict.checks[0].text
        assert judged([first, second, third], text.format(limit), before).outcome == "pass"
        # What breaks the limit breaks it, whatever the others were.
        assert judged([first, without, third], text.format(broken), before).outcome == "fail"
    costly = made.changed(made.summary({"network": "ethernet"}, 4), values={"recovery_s": None})
    more = [first, second, third, dataclasses.replace(costly, instrumented=True)]
    assert judged(more, text.format("at_most = 5")).outcome == "pass"


def test_a_threshold_for_cells_that_do_not_exist_is_no_verdict() -> None:
    text = '[[threshold]]\ncolumn = "docs_per_s_median"\nat_least = 1\ncells = "network=jumbo*"\n'
    verdict = judged(runs(), text)
    assert verdict.exit_code == 3
    assert 'no cell matches "network=jumbo*"' in verdict.checks[0].text


def test_full_collections_where_there_were_none_fail() -> None:
    text = '[[threshold]]\ncolumn = "full_gcs"\nmay_rise = "10%"\n'
    now = [made.changed(run, values={"full_gcs": 2}) for run in runs()]
    assert judged(now, text, runs(seed=2)).exit_code == 1
    assert judged(runs(), text, runs(seed=2)).exit_code == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[[threshold]]\ncolumn = "docs_per_s"\nat_least = 1\n', 'unknown column "docs_per_s"; did you mean'),
        ('[[threshold]]\ncolumn = "reads"\n', "give at_least, at_most, may_fall or may_rise"),
        ('[[threshold]]\ncolumn = "reads"\nmay_fall = 5\n', "may_fall: '5' is not a share"),
        ('[[limit]]\ncolumn = "reads"\n', 'unknown key "limit"'),
        ("", "without one nothing could fail"),
    ],
)
def test_a_wrong_gate_names_file_key_and_remedy(text: str, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint) as caught:
        gate.thresholds(tomllib.loads(text), "gate.toml")
    assert str(caught.value).startswith("gate.toml")
