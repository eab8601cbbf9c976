"""The code of docs/adding-a-fault.md, piece by piece, on a real process; no table knows of it."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_faults import CELL, Sleeper, lasting, with_nodes

from ingest_bench.errors import RunFailed
from ingest_bench.faults import FAULTS
from ingest_bench.faults.kind import FaultKind
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Fault

PAGE = (Path(__file__).parent.parent / "docs" / "adding-a-fault.md").read_text(encoding="utf-8")
PIECES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
USUAL = os.sched_getaffinity(0)

pytestmark = pytest.mark.skipif(len(USUAL) < 2, reason="needs two CPUs")


def kinds() -> list[FaultKind]:
    """What each piece makes."""
    found = []
    for number, piece in enumerate(PIECES, 1):
        module: dict[str, Any] = {"__name__": f"piece_{number}"}
        exec(compile(piece, f"docs/adding-a-fault.md, piece {number}", "exec"), module)  # noqa: S102 - that is the test
        found.append(module["FEW_CPUS"])
    return found


HAPPENS, ENDS, IS_A_LAYER, IS_WATCHED, HAS_A_KEY = kinds()


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    one = Sleeper()
    yield one
    one.kill()


@pytest.fixture
def stage(sleeper: Sleeper) -> Stage:
    return with_nodes([sleeper])


def few(**keys: Any) -> Fault:
    """The table has no such kind; none of these looks at its name."""
    return lasting("cpu", **keys)


def cpus(one: Sleeper) -> set[int]:
    return os.sched_getaffinity(one.jvm_pid)


def test_the_page_registers_nothing() -> None:
    assert not {HAPPENS, ENDS, IS_A_LAYER, IS_WATCHED, HAS_A_KEY} & set(FAULTS.values())


def test_the_first_one_happens_and_that_is_it(sleeper: Sleeper, stage: Stage) -> None:
    assert not HAPPENS.lasts
    assert HAPPENS.begin(few(), stage).seen == "node 1: 1 threads on one CPU"
    assert cpus(sleeper) == {min(USUAL)}


def test_the_second_one_ends_and_two_of_them_leave_a_wrong_state_as_the_page_says(
    sleeper: Sleeper, stage: Stage
) -> None:
    begun = ENDS.begin(few(), stage)
    assert (begun.seen, cpus(sleeper)) == ("node 1: 1 threads on one CPU", {min(USUAL)})
    begun.end()
    assert cpus(sleeper) == USUAL
    first, second = ENDS.begin(few(), stage), ENDS.begin(few(), stage)
    first.end()
    second.end()
    assert cpus(sleeper) != USUAL


@pytest.mark.parametrize("kind", [IS_A_LAYER, IS_WATCHED, HAS_A_KEY])
def test_the_later_ones_last_until_the_last_of_them_has_ended_also_on_a_node_that_is_started_again(
    kind: FaultKind, sleeper: Sleeper, stage: Stage
) -> None:
    first, second = kind.begin(few(cores=1), stage), kind.begin(few(cores=1), stage)
    assert cpus(sleeper) == {min(USUAL)}
    FAULTS["kill"].begin(lasting("kill"), stage).end()
    assert cpus(sleeper) == {min(USUAL)}
    first.end()
    assert cpus(sleeper) == {min(USUAL)}
    second.end()
    assert cpus(sleeper) == USUAL


def test_the_fourth_one_says_what_was_seen_and_fails_where_somebody_undid_it(sleeper: Sleeper, stage: Stage) -> None:
    assert IS_WATCHED.begin(few(), stage).end() == f"node 1: all its threads on CPU {min(USUAL)}"
    meddled = IS_WATCHED.begin(few(), stage)
    os.sched_setaffinity(sleeper.jvm_pid, USUAL)
    with pytest.raises(RunFailed, match="few-cpus: threads of node 1 may run on"):
        meddled.end()
    assert cpus(sleeper) == USUAL


def test_the_fifth_one_refuses_what_makes_no_sense(sleeper: Sleeper, stage: Stage) -> None:
    for wrong in (few(), few(cores=0.5)):
        assert HAS_A_KEY.complaint(dataclasses.replace(CELL, faults=(wrong,)), wrong)
    assert not HAS_A_KEY.complaint(CELL, few(cores=2))
    begun = HAS_A_KEY.begin(few(cores=2), stage)
    assert cpus(sleeper) == set(sorted(USUAL)[:2])
    begun.end()


def test_every_field_of_a_kind_is_on_the_page() -> None:
    assert {field.name for field in dataclasses.fields(FaultKind)} <= set(re.findall(r"\w+", PAGE))
