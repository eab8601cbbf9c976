from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Sequence
from typing import Any

import example_summaries as made
import numpy as np
import pytest
from test_compare import compared

from ingest_bench.analysis.compare import comparison
from ingest_bench.analysis.compare.changes import Results
from ingest_bench.errors import SpecError
from ingest_bench.model.results import Summary
from ingest_bench.report import gate
from ingest_bench.report.gate import Verdict

THRESHOLDS = """
[[threshold]]
column = "docs_per_s_mean"
may_fall = "5%"
[[threshold]]
column = "gc_pause_ms_total"
may_rise = "20%"
"""


def runs(factor: float = 1.0, *, seed: int = 1, replicates: int = 5) -> list[Summary]:
    """Return replicates of one cell with 1% noise between runs."""
    return with_docs(*(20_000 * factor * np.random.default_rng(seed).normal(1, 0.01, replicates)).tolist())


def with_docs(*values: float) -> list[Summary]:
    return made.replicates("docs_per_s_mean", values)


def judged(
    now: Sequence[Summary],
    text: str = THRESHOLDS,
    baseline: Sequence[Summary] | None = None,
    facts: tuple[dict[str, Any], dict[str, Any]] = ({}, {}),
) -> Verdict:
    """Return the verdict; the baseline's facts come first."""
    before = None if baseline is None else Results(summaries=baseline, facts=facts[0])
    return gate.judge(
        Results(summaries=now, facts=facts[1]), gate.parse_thresholds(tomllib.loads(text), "gate.toml"), before
    )


def test_only_an_injected_difference_fails() -> None:
    for seed in range(1, 20):
        same, slower, faster = (
            judged(runs(factor, seed=seed), baseline=runs(seed=100 + seed)) for factor in (1, 0.85, 1.3)
        )
        assert (same.exit_code, slower.exit_code, faster.exit_code) == (0, 1, 0)
        assert [check.column for check in slower.checks if check.outcome == "fail"] == ["docs_per_s_mean"]


@pytest.mark.parametrize("now", [(60, 112, 101), (101, 112, 60)])
def test_interval_across_the_limit_is_no_verdict_and_suggests_replicates(now: tuple[float, ...]) -> None:
    """A mean of -9%, and an interval of -77% to +59%: it passed `may_fall = "10%"`."""
    text = '[[threshold]]\ncolumn = "docs_per_s_mean"\nmay_fall = "10%"\n'
    verdict = judged(with_docs(*now), text, with_docs(100, 100, 100))
    assert verdict.exit_code == 3
    # The mean is 1% from the limit, and the runs differ by 27%.
    pattern = (
        r"measured 91, allowed may fall 10%, baseline 100, change -9\.0% \(0\.2\d+ to 1\.5\d times\): it is too close"
    )
    assert re.match(pattern, verdict.checks[0].sentence)
    unsure = judged(with_docs(95, 112, 101), text, with_docs(100, 100, 100)).checks[0].reason
    match = re.search("about ([0-9]+) replicates a side would decide", unsure)
    assert match is not None
    assert 4 <= int(match[1]) <= 12


@pytest.mark.parametrize("limits", [(-0.1,), (-0.1, 0.1), (0.01,)])
@pytest.mark.parametrize("runs", [3, 5])
def test_suggested_replicates_decide_with_80_percent_probability(runs: int, limits: tuple[float, ...]) -> None:
    from scipy import stats  # noqa: PLC0415

    # Standard deviations of 6 and of 9, and a change of -4%.
    noise = np.linspace(-1, 1, runs) / np.linspace(-1, 1, runs).std(ddof=1)
    change = compared(*((mean + spread * noise).tolist() for mean, spread in ((100, 6), (96, 9))))
    enough = comparison.replicates_for_verdict(change, limits)
    assert enough is not None
    assert enough > runs
    random = np.random.default_rng(enough)
    before, now = random.normal(100, 6, (4000, enough)), random.normal(96, 9, (4000, enough))
    # A limit is outside the interval if Welch distinguishes the runs from the baseline's times the limit.
    p_values = [stats.ttest_ind(before * (1 + limit), now, axis=1, equal_var=False).pvalue for limit in limits]
    power = (np.array(p_values) < 0.05).all(axis=0).mean()
    print(f"{runs} runs, limits {limits}: {enough} replicates, {power:.1%}")  # noqa: T201 - pytest -s
    # The noise of few runs may be larger than estimated: more than 80% if it is not.
    assert 0.79 <= power <= 0.97


@pytest.mark.parametrize(
    ("now", "before", "text", "reason"),
    [
        (runs(), runs(), '[[threshold]]\ncolumn = "retransmits"\nat_most = 5\n', "no valid run measured it"),
        (runs(), runs(), THRESHOLDS.replace("may_fall", 'cells = "jumbo*"\nmay_fall'), 'no cell matches "jumbo*"'),
        ([], runs(), THRESHOLDS, 'no cell matches "*"'),
        (runs(), [*runs(), made.summary({"network": "jumbo"})], THRESHOLDS, "the baseline has this cell, and these"),
        (runs()[:1], runs()[:1], THRESHOLDS, "1 and 1 runs: one run a side has no interval; take 3 replicates or more"),
    ],
)
def test_unknown_number_is_no_verdict(now: list[Summary], before: list[Summary], text: str, reason: str) -> None:
    verdict = judged(now, text, before)
    assert verdict.exit_code == 3
    assert next(check for check in verdict.checks if check.outcome == "no verdict").reason.startswith(reason)


def test_baseline_of_another_experiment_or_machine_is_no_verdict() -> None:
    here = {"cpu": "A", "kernel": "6.1"}
    for name in ("experiment", "workload", "network", "netem_backend"):
        before = [
            dataclasses.replace(run, experiment="other")
            if name == "experiment"
            else made.changed(run, values={name: "other"})
            for run in runs()
        ]
        verdict = judged(runs(), baseline=before)
        assert verdict.exit_code == 3
        assert f"baseline's {name} is other" in verdict.checks[0].reason
    verdict = judged(runs(), baseline=runs(seed=2), facts=(here, here | {"cpu": "B"}))
    assert verdict.exit_code == 3
    assert verdict.checks[0].reason == "another machine: cpu was A, is B"
    verdict = judged(runs(), baseline=runs(seed=2), facts=(here, here | {"kernel": "6.2"}))
    assert (verdict.outcome, verdict.notes) == ("pass", ("kernel was 6.1, is 6.2",))
    assert "unknown whether" in judged(runs(), baseline=runs(seed=2), facts=({}, here)).notes[0]


@pytest.mark.parametrize("state", ["invalid", "aborted", "failed"])
def test_run_without_a_result_never_passes_and_hides_no_failure(state: str) -> None:
    for factor, code in ((1.0, 3), (0.5, 1)):
        now = runs(factor)
        now[0] = made.changed(now[0], state=state, reason="bytes differ")
        verdict = judged(now, baseline=runs(seed=2))
        assert verdict.exit_code == code
        assert "bytes differ" in verdict.checks[0].reason


def test_run_out_of_memory_fails() -> None:
    now = runs()
    now[0] = made.changed(now[0], state="oom")
    assert judged(now).exit_code == 1
    assert judged(now, baseline=runs(seed=2)).exit_code == 1
    before = runs(seed=2)
    before[3] = made.changed(before[3], state="oom")
    # Unchanged, with a note.
    verdict = judged(now, baseline=before)
    assert verdict.exit_code == 0
    assert verdict.checks[0].reason == "1 of 5 runs ended out of memory, in the baseline 1 of 5"
    now[1] = made.changed(now[1], state="oom")
    assert judged(now, baseline=before).exit_code == 1


@pytest.mark.parametrize(
    ("limit", "at_it", "beyond"),
    [
        ("at_least = 100", 100, 99.999),
        ("at_most = 100", 100, 100.001),
        ('may_fall = "10%"', 90, 89.999),
        ('may_rise = "10%"', 110, 110.001),
        ('may_fall = "100%"', 0, -0.001),
        ('may_rise = "0%"', 100, 100.001),
    ],
)
def test_value_exactly_at_its_limit_passes(limit: str, at_it: float, beyond: float) -> None:
    text = f'[[threshold]]\ncolumn = "response_ms_p99"\n{limit}\n'
    before, kept, broken = (made.replicates("response_ms_p99", [value] * 5) for value in (100, at_it, beyond))
    assert judged(kept, text, before).outcome == "pass"
    assert judged(broken, text, before).outcome == "fail"


def test_relative_limit_without_a_baseline_is_skipped_and_named() -> None:
    verdict = judged(runs())
    assert verdict.exit_code == 0
    assert verdict.counts == "2 skipped"
    assert verdict.checks[0].sentence.endswith(", allowed may fall 5%: requires --baseline")
    text = '[[threshold]]\ncolumn = "docs_per_s_mean"\nat_least = {}\nat_most = 30000\nmay_fall = "5%"\n'
    for limit, outcome in ((15_000, (0, "1 skipped, 2 pass")), (25_000, (1, "1 fail, 1 skipped, 1 pass"))):
        verdict = judged(runs(), text.format(limit))
        assert (verdict.exit_code, verdict.counts) == outcome
    assert verdict.checks[0].sentence.endswith(", allowed at least 25,000")


def test_sizes_have_all_their_digits() -> None:
    text = '[[threshold]]\ncolumn = "largest_allocation_bytes"\nat_most = 104857600\nmay_rise = "1%"\n'
    sizes = made.replicates("largest_allocation_bytes", [104_857_601.0] * 3)
    absolute, relative = judged(sizes, text, sizes).checks
    assert (absolute.measured, absolute.allowed) == ("104,857,601", "at most 104,857,600")
    assert relative.baseline == "104,857,601"


def test_cells_are_matched_by_factors_and_changed_settings_are_named() -> None:
    """`--set` with one value gives cells another level; before, it gave them other names, and nothing was compared."""
    old = [dataclasses.replace(run, cell="a", levels={"network": "ethernet", "heap": "1g"}) for run in runs(seed=2)]
    now = [dataclasses.replace(run, cell="b", levels={"heap": "512m", "network": "ethernet"}) for run in runs(0.5)]
    verdict = judged(now, baseline=old)
    assert (verdict.exit_code, verdict.changed_settings) == (1, ("heap was 1g, is 512m",))


@pytest.mark.parametrize("unknown", [None, float("nan"), float("inf"), "never"])
@pytest.mark.parametrize(("limit", "broken"), [("at_most = 5", "at_most = 1"), ('may_rise = "10%"', 'may_rise = "0%"')])
def test_number_missing_in_one_run_does_not_pass(unknown: float | str | None, limit: str, broken: str) -> None:
    text = '[[threshold]]\ncolumn = "recovery_s"\n{}\n'
    before = made.replicates("recovery_s", [1.95] * 5)
    complete, incomplete = (made.replicates("recovery_s", values) for values in ([2.0, 2.0, 2.0], [2.0, unknown, 2.0]))
    verdict = judged(incomplete, text.format(limit), before)
    assert verdict.outcome == "no verdict", verdict
    assert f"{incomplete[1].run} did not measure it" in verdict.checks[0].reason
    assert judged(complete, text.format(limit), before).outcome == "pass"
    # A violation stays a violation, whatever the other runs are.
    assert judged(incomplete, text.format(broken), before).outcome == "fail"
    costly = made.changed(complete[0], replicate=4, instrumented=True, values={"recovery_s": None})
    assert judged([*complete, costly], text.format(limit), before).outcome == "pass"


@pytest.mark.parametrize(("now", "outcome"), [((1.0, 1, 1), "fail"), ((1e-14, 1, 1), "no verdict")])
def test_baseline_near_zero_is_judged_by_its_runs(now: tuple[float, ...], outcome: str) -> None:
    text = '[[threshold]]\ncolumn = "docs_per_s_mean"\nmay_rise = "10%"'
    (check,) = judged(with_docs(*now), text, with_docs(*[1e-13] * 3)).checks
    assert check.outcome == outcome
    assert check.reason.endswith("in all runs" if outcome == "fail" else "in some runs")


def test_first_full_collections_fail() -> None:
    text = '[[threshold]]\ncolumn = "full_gcs"\nmay_rise = "10%"\n'
    for counts, exit_code in (([2] * 5, 1), ([0] * 5, 0), ([0, 2, 2, 2, 2], 3)):
        assert judged(made.replicates("full_gcs", counts), text, runs(seed=2)).exit_code == exit_code


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[[threshold]]\ncolumn = "docs_per_s"\nat_least = 1\n', 'unknown column "docs_per_s"; did you mean'),
        ('[[threshold]]\ncolumn = "reads"\n', "give at_least, at_most, may_fall or may_rise"),
        ('[[threshold]]\ncolumn = "reads"\nmay_fall = 5\n', "may_fall: '5' is not a fraction"),
        ('[[limit]]\ncolumn = "reads"\n', 'unknown key "limit"'),
        ("", "so nothing could fail"),
    ],
)
def test_wrong_gate_names_file_key_and_remedy(text: str, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint) as caught:
        gate.parse_thresholds(tomllib.loads(text), "gate.toml")
    assert str(caught.value).startswith("gate.toml")


def test_longer_measurement_is_not_a_regression() -> None:
    """Twice the time has twice the pauses and twice the bytes."""
    text = '[[threshold]]\ncolumn = "gc_pause_ms_total"\nmay_rise = "10%"\n'

    def of(total_ms: float, gigabytes: int) -> list[Summary]:
        rows = made.replicates("gc_pause_ms_total", [total_ms * noise for noise in (0.99, 1.0, 1.01)])
        return [made.changed(row, values={"bytes_measured": gigabytes * 10**9}) for row in rows]

    verdict = judged(of(160, 2), text, of(80, 1))
    assert verdict.outcome == "pass", verdict
    assert verdict.checks[0].column == "gc_pause_ms_total_per_gb"
    assert judged(of(120, 1), text, of(80, 1)).outcome == "fail"
