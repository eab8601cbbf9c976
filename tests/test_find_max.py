"""The plan of a search, and a whole search against the sink."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from test_run import Silent

from ingest_bench.analysis.search import knees
from ingest_bench.analysis.search.next_step import Next
from ingest_bench.errors import SpecError
from ingest_bench.experiment import order, spec
from ingest_bench.inputs import records
from ingest_bench.lab import evaluation, find_max
from ingest_bench.lab.runner import RunOptions
from ingest_bench.model.experiment import Plan, Search
from ingest_bench.results import layout

GOAL = Search(goal="p99 < 400ms, errors < 0.1%", tolerance_ppm=200_000, most_runs=10)

# Two connections whose requests take 100 ms each: 20 requests/s, on whatever machine.
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
    return order.order(spec.load(str(folder / "x.toml")))


def test_a_search_begins_with_the_estimate_of_each_cell(tmp_path: Path) -> None:
    began = find_max.plan_of(ordered(tmp_path, SLOW + '[factors]\nnetwork = ["loopback", "ethernet"]\n'), GOAL)
    assert {run.id for run in began.runs} == {
        "network=loopback+arrivals=closed/1",
        "network=ethernet+arrivals=closed/1",
    }
    assert all(run.step == "estimate" and not run.cell.load.arrivals.is_open for run in began.runs)
    assert find_max.most_runs(began) == 20


def test_a_search_keeps_its_goal_in_full(tmp_path: Path) -> None:
    began = find_max.plan_of(ordered(tmp_path, SLOW), Search(goal="p99 <  400 ms"))
    assert began.search is not None
    assert began.search.goal == "p99 < 400 ms, errors < 0.1%"


@pytest.mark.parametrize(
    ("goal", "more", "message"),
    [
        ("p98 < 1s", "", "--find-max: 'p98' is not a number that can be limited.*p99.9"),
        ("p99 < 1s", '[factors]\narrivals = ["10/s", "20/s"]\n', "take the factor arrivals out"),
        ("p99 < 1s", '[factors]\n"load.arrivals" = ["10/s"]\n', "take the factor arrivals out"),
    ],
)
def test_a_search_that_cannot_be_says_why(goal: str, more: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        find_max.plan_of(ordered(tmp_path, SLOW + more), Search(goal=goal))


def test_a_search_whose_last_run_would_be_longer_than_any_may_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"2 times as long .* 12\.5h is too long, take --measure 12h or less"):
        find_max.plan_of(ordered(tmp_path, SLOW.replace('measure = "3s"', 'measure = "12.5h"')), GOAL)
    longest = find_max.plan_of(ordered(tmp_path, SLOW.replace('measure = "3s"', 'measure = "12h"')), GOAL)
    # The last run of it, as plan.json has it.
    confirmed = find_max._run(knees.without_rate(longest.runs[0].cell), Next("confirm", 10.0), 1)
    records.check(confirmed, "plan.json")


def test_arrivals_without_one_rate_cannot_be_searched(tmp_path: Path) -> None:
    text = SLOW.replace("users = 2", 'users = 2\narrivals = "ramp 1/s..9/s 5s"')
    with pytest.raises(SpecError, match='"ramp" arrivals have no one rate'):
        find_max.plan_of(ordered(tmp_path, text), GOAL)


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_a_search_finds_the_rate_of_a_slow_server_and_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    class Impatient(Silent):
        def begin(self, number: int, name: str, left: int) -> None:  # noqa: ARG002
            if number == 3:
                raise KeyboardInterrupt

    results = layout.create(tmp_path, find_max.plan_of(ordered(tmp_path, SLOW), GOAL), {})
    with pytest.raises(KeyboardInterrupt):
        find_max.carry_out(results, RunOptions(), Impatient())
    assert [run.step for run in results.plan.runs] == ["estimate", "ramp", results.plan.runs[2].step]
    first_two = {name: results.records()[name].started_utc for name in list(results.records())[:2]}

    found = find_max.carry_out(results, RunOptions(), Silent())
    assert {name: results.records()[name].started_utc for name in first_two} == first_two
    (knee,) = knees.knees(results.plan, found)
    assert knee.found.per_s is not None, knee.found.said
    # A machine that is busy may do less than 20 requests/s, never more.
    assert 5 <= knee.found.per_s <= 21
    assert len(found) == len(results.plan.runs) == len(knee.steps)
    assert knee.steps[-1][0].step == "confirm"
    written = {path.name for path in evaluation.write_report(results, found)}
    assert "knee.png" in written
    assert knee.found.said in (results.report / "knee.md").read_text()

    # What is done is done: nothing runs again.
    again = find_max.carry_out(results, RunOptions(), Silent())
    assert [dataclasses.asdict(each)["run"] for each in again] == [each.run for each in found]
