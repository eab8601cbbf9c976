"""Bisection of releases: the search over simulated measurements, its plan, and the whole command without a server."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import example_summaries as made
import numpy as np
import pytest

from ingest_bench.analysis.compare import bisection
from ingest_bench.analysis.compare.bisection import Progress
from ingest_bench.cli import app
from ingest_bench.errors import SpecError
from ingest_bench.lab import bisection as lab_bisection
from ingest_bench.lab import campaign, evaluation
from ingest_bench.model.experiment import Bisection, Plan, Run
from ingest_bench.model.results import RunRecord, Summary
from ingest_bench.model.target import TargetOptions
from ingest_bench.report import bisection_table
from ingest_bench.results.layout import Results
from ingest_bench.targets.builtin.sink import Sink
from ingest_bench.targets.kafka import Kafka

MB = 10**6
COLUMN = "direct_buffer_used_max_bytes"
Measure = Callable[[str], float | str | None]
BASE = made.summary({"network": "ethernet"})


def releases(number: int) -> tuple[str, ...]:
    return tuple(f"4.2.{minor}" for minor in range(number))


def build_rules(number: int = 17, *, is_good_last: bool = False) -> Bisection:
    return Bisection(column=COLUMN, key="version", releases=releases(number), is_good_last=is_good_last, replicates=3)


def build_run(release: str, replicate: int, value: float | str | None) -> Summary:
    """Return a run with that value; with a text, one that failed for that reason."""
    run = dataclasses.replace(BASE, run=f"version={release}/{replicate}", cell=f"version={release}")
    run = dataclasses.replace(run, replicate=replicate, levels={"version": release})
    if isinstance(value, str):
        return dataclasses.replace(run, state="failed", reason=value, values={})
    return made.changed(run, values={COLUMN: value})


def simulate(rules: Bisection, measure: Measure) -> tuple[Progress, list[str]]:
    """Return the end of a bisection, and the release of each of its runs."""
    runs: list[Summary] = []
    while following := (progress := bisection.judge_releases(rules, runs)).next_release:
        order = [run.levels["version"] for run in runs]
        runs.append(build_run(following, 1 + order.count(following), measure(following)))
        assert len(runs) < 200, "it does not end"
    return progress, [run.levels["version"] for run in runs]


def step_at(first_bad: int, *, noise: float = 0.03, seed: int = 1, values: tuple[float, float] = (8, 1009)) -> Measure:
    random = np.random.default_rng([seed, first_bad])

    def measure(release: str) -> float:
        is_bad = int(release.rpartition(".")[2]) >= first_bad
        return float(values[is_bad] * MB * random.normal(1, noise))

    return measure


def from_table(values: Mapping[int, float | str | None], default: float = 8 * MB) -> Measure:
    """Return a measurement of these values by the last number of the release, with a noise of 1%."""
    random = np.random.default_rng(1)

    def measure(release: str) -> float | str | None:
        value = values.get(int(release.rpartition(".")[2]), default)
        return value * float(random.normal(1, 0.01)) if isinstance(value, (int, float)) else value

    return measure


@pytest.mark.parametrize(("number", "places"), [(2, [1]), (3, [1, 2]), (17, [1, 8, 11, 16]), (100, [64])])
@pytest.mark.parametrize(
    ("values", "is_good_last", "noise"), [((8, 1009), False, 0.05), ((1009, 8), True, 0.05), ((1000, 900), False, 0.01)]
)
def test_change_is_found_wherever_it_is_in_a_logarithm_of_steps(
    number: int, places: list[int], values: tuple[float, float], is_good_last: bool, noise: float
) -> None:
    rules = build_rules(number, is_good_last=is_good_last)
    for first_bad in places:
        progress, order = simulate(rules, step_at(first_bad, values=values, noise=noise))
        assert progress.is_solved, progress.problem
        assert {progress.last_good, progress.first_bad} == {f"4.2.{first_bad - 1}", f"4.2.{first_bad}"}
        assert len(order) <= lab_bisection.max_runs(rules)


def test_equal_ends_stop_after_their_runs_with_values_and_interval() -> None:
    verdicts = [simulate(build_rules(), step_at(99, seed=seed)) for seed in range(20)]
    stopped = [progress for progress, order in verdicts if len(order) == 6]
    # The ends are distinct in 1 of 20 of such pairs.
    assert len(stopped) >= 17
    assert {progress.problem for progress in stopped} == {"the ends do not differ"}
    problem, values = bisection_table.describe_result(stopped[0])
    assert problem == "no verdict: the ends do not differ"
    assert values.startswith(f"4.2.0 → 4.2.16: {COLUMN} 7.")
    assert values.endswith(" times)")


def test_a_release_that_does_not_start_is_skipped() -> None:
    progress, order = simulate(build_rules(), from_table(dict.fromkeys(range(11, 17), 1009 * MB) | {8: "no such jar"}))
    assert (progress.last_good, progress.first_bad) == ("4.2.10", "4.2.11")
    # One failure may be chance.
    assert order.count("4.2.8") == 2
    skipped = next(item for item in progress.judged if item.version == "4.2.8")
    assert (skipped.verdict, skipped.reason) == ("skipped", "failed: no such jar")
    assert "skipped: 4.2.8: failed: no such jar" in bisection_table.describe_result(progress)


def test_skipped_releases_next_to_the_change_remain_as_candidates() -> None:
    progress, _ = simulate(
        build_rules(9), from_table(dict.fromkeys(range(5, 9), 1009 * MB) | dict.fromkeys((4, 5), None))
    )
    assert not progress.is_solved
    assert (progress.last_good, progress.between, progress.first_bad) == ("4.2.3", ("4.2.4", "4.2.5"), "4.2.6")
    lines = bisection_table.describe_result(progress)
    assert lines[0] == "no verdict: all releases between were skipped"
    assert lines[2:] == [
        "first bad release: one of 4.2.4, 4.2.5, 4.2.6",
        f"skipped: 4.2.4: no run measured {COLUMN}",
        f"skipped: 4.2.5: no run measured {COLUMN}",
    ]


def test_skipped_releases_are_limited() -> None:
    progress, order = simulate(build_rules(100), from_table(dict.fromkeys(range(1, 99), "no jar") | {99: 1009 * MB}))
    assert progress.problem == "10 releases were tried, the most that a bisection takes"
    assert len(order) == 2 * 3 + 10 * 2


def test_an_end_that_cannot_be_measured_stops_the_bisection() -> None:
    progress, order = simulate(build_rules(), from_table({0: "no such jar"}))
    assert progress.problem == "4.2.0 could not be measured, and it is an end: failed: no such jar"
    assert order == ["4.2.0"] * 2
    assert bisection_table.describe_result(progress)[1] == f"4.2.0 → 4.2.16: {COLUMN} unknown → unknown"


def test_an_undecided_release_gets_more_runs_and_so_does_the_good_end() -> None:
    noisy = iter([900, 400, 1000, 950, 1000, 980])
    steps = from_table({2: 1009 * MB})
    progress, order = simulate(build_rules(3), lambda name: next(noisy) * MB if name == "4.2.1" else steps(name))
    assert (progress.is_solved, progress.first_bad) == (True, "4.2.1")
    assert [order.count(name) for name in releases(3)] == [6, 6, 3]


def test_a_release_halfway_between_the_ends_stops_with_the_range_that_is_left() -> None:
    progress, order = simulate(build_rules(), from_table({8: 508 * MB, 16: 1009 * MB}))
    assert progress.problem == "4.2.8 is undecided after 9 runs"
    assert (progress.last_good, progress.first_bad, len(progress.between)) == ("4.2.0", "4.2.16", 15)
    assert len(order) == 9 + 9 + 3
    assert bisection_table.describe_result(progress)[2] == ("first bad release: one of 4.2.1, 4.2.2, 4.2.3, …, 4.2.16")
    assert not progress.is_solved


def test_a_second_change_in_the_range_is_reported() -> None:
    # Retained memory of Netty: it jumped, and a fix did not bring back all of it.
    progress, _ = simulate(
        build_rules(), from_table(dict.fromkeys(range(6, 12), 1009 * MB) | dict.fromkeys(range(12, 17), 23 * MB))
    )
    assert (progress.last_good, progress.first_bad) == ("4.2.5", "4.2.6")
    # A longer verdict has no room in 80 columns.
    assert {row[-1] for row in bisection_table.release_rows(progress)[1:]} == {"good end", "good", "bad", "bad end"}
    sentence = "more than one change: 4.2.6, 4.2.8 is like neither end. Bisect again up to it."
    assert sentence in bisection_table.describe_result(progress)
    unfinished = dataclasses.replace(progress, next_release="4.2.5")
    assert bisection_table.describe_result(unfinished) == ["not finished: continue with --resume", sentence]


def test_a_good_end_of_zero_has_an_interval_of_the_difference() -> None:
    progress, _ = simulate(build_rules(), from_table(dict.fromkeys(range(9, 17), 200.0), default=0.0))
    assert (progress.last_good, progress.first_bad) == ("4.2.8", "4.2.9")
    rows = bisection_table.release_rows(progress)
    assert rows[-1][:3] == ["4.2.16", "3", "200 B"]
    assert " to " in rows[-1][3]


# From here on with the plan, and the command.


TOML = f"""
headline = "{COLUMN}"
probes = ["gc"]
costly_probes = ["allocations"]
[target]
name = "kafka"
heap = "256m"
[load]
measure = "5s"
warm_up = "5s"
[factors]
users = [1, 2]
"""
PUBLISHED = ["4.2.10.Final", "4.2.9.Final", "4.2.0.RC1", "4.2.0.Final", "4.2.11.Final", "4.3.0.Alpha1", "4.1.130.Final"]


def test_releases_are_in_the_order_of_maven_without_pre_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kafka, "list_releases", lambda _: PUBLISHED)
    options = TargetOptions(name="kafka")
    chosen = lab_bisection.select_releases(options, "4.1.130", "4.2.11.Final")
    assert chosen == ["4.1.130.Final", "4.2.0.Final", "4.2.9.Final", "4.2.10.Final", "4.2.11.Final"]
    assert "4.2.0.RC1" in lab_bisection.select_releases(options, "4.2.0.RC1", "4.2.10")
    with pytest.raises(
        SpecError,
        match=r'--set version: kafka has no release "4\.2\.12"; it has those from 4\.1\.130\.Final to 4\.3\.0\.Alpha1',
    ):
        lab_bisection.select_releases(options, "4.2.0", "4.2.12")
    with pytest.raises(SpecError, match=r"4\.2\.0 is earlier than 4\.2\.9\. Write it first, and add --good 4\.2\.9"):
        lab_bisection.select_releases(options, "4.2.9", "4.2.0")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), r"4\.2\.0 to 4\.2\.1000: 1,001 releases; at most 1,000 are allowed"),
        (("--good", "4.2.7", "--bad", "4.2.7"), r"good and bad release: both are 4\.2\.7\. Name two releases"),
    ],
)
def test_impossible_range_of_releases_is_refused(
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "many.toml").write_text(TOML.replace("kafka", "sink"))
    monkeypatch.setattr(Sink, "list_releases", lambda _: releases(1001))
    command = ["bisect", "many.toml", "--set", "users=1", "--set", "version=4.2.0..4.2.1000"]
    assert app.run([*command, *options, "--dry-run"]) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ids of the runs; a run of 4.2.12 or later has 1,009 MB, and one of 4.2.9 does not start."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "retained.toml").write_text(TOML)
    order: list[str] = []
    kept: dict[str, Summary] = {}

    def run_once(results: Results, planned: Run, *_: object) -> Summary:
        assert planned.cell.target.version == planned.cell.levels["version"]
        order.append(planned.id)
        if order.count(planned.id) == 1 and len(order) == interrupted_at:
            raise KeyboardInterrupt
        minor = int(planned.cell.levels["version"].split(".")[2])
        value = "no jar" if minor == 9 else (1009 if minor >= 12 else 8) * MB * (1 + planned.replicate / 100)
        summary = build_run(planned.cell.levels["version"], planned.replicate, value)
        kept[planned.id] = dataclasses.replace(summary, run=planned.id, instrumented=planned.instrumented)
        folder = results.run_folder(planned)
        folder.path.mkdir(parents=True, exist_ok=True)
        record = RunRecord(
            run=planned.id,
            replicate=planned.replicate,
            cell=planned.cell.name,
            levels=planned.cell.levels,
            instrumented=planned.instrumented,
            state=summary.state,
            started_utc="",
        )
        folder.write_record(record)
        return kept[planned.id]

    def summarise(results: Results, _java: object, states: frozenset[str]) -> list[Summary]:
        return [kept[run] for run, record in results.read_records().items() if record.state in states]

    interrupted_at = 8
    monkeypatch.setattr(Kafka, "list_releases", lambda _: [f"4.2.{minor}.Final" for minor in range(18)])
    monkeypatch.setattr(campaign, "check_machine", lambda *_: ())
    monkeypatch.setattr(campaign, "fetch_servers", lambda *_: None)
    monkeypatch.setattr(campaign, "run_once", run_once)
    monkeypatch.setattr(evaluation, "summarise_runs", summarise)
    for name in ("write_tables", "write_report"):
        monkeypatch.setattr(evaluation, name, lambda *_: ())
    return order


def test_interrupted_bisection_resumes_and_finds_the_release(
    measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bisect", "retained.toml", "--set", "version=4.2.1..4.2.17", "--set", "users=2"]
    assert app.run(command) == 130
    message = capsys.readouterr()
    assert "4.2.1.Final (good) and 4.2.17.Final (bad), then 4 between them. 3 runs each: 18 runs" in message.out
    folder = message.err.split("run --resume ")[1].split()[0]
    assert folder.startswith("results/retained-bisect/")
    assert app.run(["run", "--resume", folder]) == 0
    text = capsys.readouterr().out.split("\n\n")
    table, sentences = text[0].splitlines()[-8:], text[1].splitlines()
    names = [f"4.2.{minor}.Final" for minor in (1, 8, 9, 10, 11, 12, 17)]
    assert [line.split()[0] for line in table] == ["version", *names]
    assert sentences[0] == f"first bad release: 4.2.12.Final (after 4.2.11.Final): {COLUMN} 7.78 MiB → 982 MiB"
    assert max(map(len, table)) <= 80
    assert len(table) + len(sentences) <= 22
    # Only the interrupted run and the failed one before are repeated.
    repeated = {name for name in measured if measured.count(name) > 1}
    assert repeated == {f"users=2+version=4.2.9.Final/{number}-instrumented" for number in (1, 2)}
    # Costly probes watch all runs of a column that may be theirs.
    assert all(name.startswith("users=2+version=4.2.") and name.endswith("-instrumented") for name in measured)
    plan: Plan = Results(Path(folder)).plan
    assert plan.factors[-1].levels == tuple(names)
