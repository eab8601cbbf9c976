"""The plan of a search, and a complete search against the sink."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest.mock import Mock

import pytest

from ingest_bench.analysis import search
from ingest_bench.analysis.search import NextStep
from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.inputs import records
from ingest_bench.lab import campaign, evaluation, find_max
from ingest_bench.lab.runner import RunOptions
from ingest_bench.model.experiment import Plan, Search
from ingest_bench.results import layout

GOAL = Search(goal="p99 < 400ms, errors < 0.1%", tolerance_ppm=200_000, max_runs=10)

# Two connections whose requests take 100 ms each: 20 requests/s on any machine.
SLOW = """
replicates = 2
costly_probes = ["allocations"]
[target]
name = "sink"
heap = "256m"
setting = {"sink.delay" = "100ms"}
[load]
users = 2
bulk_documents = 10
warm_up = "1s"
measure = "3s"
"""


def ordered(folder: Path, text: str) -> Plan:
    (folder / "x.toml").write_text(text)
    return spec.build_plan(spec.load_experiment(str(folder / "x.toml")))


def test_search_begins_with_the_estimate_of_each_cell(tmp_path: Path) -> None:
    began = find_max.plan_search(ordered(tmp_path, SLOW + '[factors]\nnetwork = ["loopback", "ethernet"]\n'), GOAL)
    assert {run.id for run in began.runs} == {
        "network=loopback+arrivals=closed/1",
        "network=ethernet+arrivals=closed/1",
    }
    assert all(run.step == "estimate" and not run.cell.load.arrivals.is_open_loop for run in began.runs)
    assert find_max.max_runs(began) == 20


def test_search_keeps_its_complete_goal(tmp_path: Path) -> None:
    began = find_max.plan_search(ordered(tmp_path, SLOW), Search(goal="p99 <  400 ms"))
    assert began.search is not None
    assert began.search.goal == "p99 < 400 ms, errors < 0.1%"


@pytest.mark.parametrize(
    ("goal", "more", "message"),
    [
        ("p98 < 1s", "", "--find-max: 'p98' is not a metric that can be limited.*p99.9"),
        ("p99 < 1s", '[factors]\narrivals = ["10/s", "20/s"]\n', "conflicts with the factor arrivals"),
        ("p99 < 1s", '[factors]\n"load.arrivals" = ["10/s"]\n', "conflicts with the factor arrivals"),
    ],
)
def test_impossible_search_is_refused_with_a_reason(goal: str, more: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        find_max.plan_search(ordered(tmp_path, SLOW + more), Search(goal=goal))


def test_search_with_too_long_confirmation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"2 times as long .* Reduce --measure from 12\.5h to 12h or less"):
        find_max.plan_search(ordered(tmp_path, SLOW.replace('measure = "3s"', 'measure = "12.5h"')), GOAL)
    longest = find_max.plan_search(ordered(tmp_path, SLOW.replace('measure = "3s"', 'measure = "12h"')), GOAL)
    # Its last run in plan.json.
    confirmed = find_max._run(search.without_rate(longest.runs[0].cell), NextStep("confirm", 10.0))
    records.check(confirmed, "plan.json")


def test_arrivals_with_several_rates_cannot_be_searched(tmp_path: Path) -> None:
    text = SLOW.replace("users = 2", 'users = 2\narrivals = "ramp 1/s..9/s 5s"')
    with pytest.raises(SpecError, match='"ramp" arrivals have no constant rate'):
        find_max.plan_search(ordered(tmp_path, text), GOAL)


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_interrupted_search_continues_and_finds_the_rate(tmp_path: Path) -> None:
    impatient = Mock(begin_run=Mock(side_effect=[None, None, KeyboardInterrupt]))
    results = layout.create_results(tmp_path, find_max.plan_search(ordered(tmp_path, SLOW), GOAL), {})
    with pytest.raises(KeyboardInterrupt):
        campaign.run_missing(results, RunOptions(), impatient)
    assert [run.step for run in results.plan.runs] == ["estimate", "ramp", results.plan.runs[2].step]
    first_two = {name: results.read_records()[name].started_utc for name in list(results.read_records())[:2]}

    summaries = campaign.run_missing(results, RunOptions(), Mock())
    assert {name: results.read_records()[name].started_utc for name in first_two} == first_two
    (knee,) = search.find_knees(results.plan, summaries)
    assert knee.result.per_s is not None, knee.result.text
    # A machine that is busy may do less than 20 requests/s, never more.
    assert 5 <= knee.result.per_s <= 21
    assert len(summaries) == len(results.plan.runs) == len(knee.steps)
    assert knee.steps[-1][0].step == "confirm"
    written = {path.name for path in evaluation.write_report(results, summaries)}
    assert "knee.png" in written
    assert knee.result.text in (results.report / "knee.md").read_text()

    # Completed steps are not repeated.
    again = campaign.run_missing(results, RunOptions(), Mock())
    assert [dataclasses.asdict(summary)["run"] for summary in again] == [summary.run for summary in summaries]
