"""The code of docs/adding-a-fault.md, piece by piece, on a real process; no piece is in the table of faults."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_lab import CELL, NodeProcess, make_cell, make_fault, make_stage, start_processes

from ingest_bench.errors import RunFailed
from ingest_bench.faults import FAULTS
from ingest_bench.faults.kind import FaultKind, Stage
from ingest_bench.model.experiment import Fault

PAGE = (Path(__file__).parent.parent / "docs" / "adding-a-fault.md").read_text(encoding="utf-8")
OLD_CPUS = os.sched_getaffinity(0)

pytestmark = pytest.mark.skipif(len(OLD_CPUS) < 2, reason="needs two CPUs")


def run_piece(number: int, text: str) -> FaultKind:
    module: dict[str, Any] = {"__name__": f"piece_{number}"}
    exec(compile(text, f"docs/adding-a-fault.md, piece {number}", "exec"), module)  # noqa: S102 - that is the test
    kind: FaultKind = module["FEW_CPUS"]
    return kind


PIECES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
EFFECT, END, OVERLAPPING, MEASURED, KEY = (run_piece(number, text) for number, text in enumerate(PIECES, 1))


@pytest.fixture
def process() -> Iterator[NodeProcess]:
    with start_processes(1) as (started,):
        yield started


@pytest.fixture
def stage(process: NodeProcess) -> Stage:
    return make_stage([process])


def few(**keys: Any) -> Fault:
    """Return a fault of a kind that is in the table; no piece uses its name."""
    return make_fault("cpu", **keys)


def cpus(process: NodeProcess) -> set[int]:
    return os.sched_getaffinity(process.jvm_pid)


def test_page_registers_no_fault() -> None:
    assert not {EFFECT, END, OVERLAPPING, MEASURED, KEY} & set(FAULTS.values())


def test_first_piece_has_an_effect_and_no_end(process: NodeProcess, stage: Stage) -> None:
    assert not EFFECT.has_duration
    assert EFFECT.begin(few(), stage).effect == "node 1: 1 threads on one CPU"
    assert cpus(process) == {min(OLD_CPUS)}


def test_second_piece_ends_but_not_with_overlapping_faults(process: NodeProcess, stage: Stage) -> None:
    active = END.begin(few(), stage)
    assert (active.effect, cpus(process)) == ("node 1: 1 threads on one CPU", {min(OLD_CPUS)})
    active.end()
    assert cpus(process) == OLD_CPUS
    first, second = END.begin(few(), stage), END.begin(few(), stage)
    first.end()
    second.end()
    assert cpus(process) != OLD_CPUS


@pytest.mark.parametrize("kind", [OVERLAPPING, MEASURED, KEY])
def test_later_pieces_survive_a_restart_and_end_with_the_last_fault(
    kind: FaultKind, process: NodeProcess, stage: Stage
) -> None:
    first, second = kind.begin(few(cores=1), stage), kind.begin(few(cores=1), stage)
    assert cpus(process) == {min(OLD_CPUS)}
    FAULTS["kill"].begin(make_fault("kill"), stage).end()
    assert cpus(process) == {min(OLD_CPUS)}
    first.end()
    assert cpus(process) == {min(OLD_CPUS)}
    second.end()
    assert cpus(process) == OLD_CPUS


def test_fourth_piece_measures_its_effect_and_fails_without_one(process: NodeProcess, stage: Stage) -> None:
    assert MEASURED.begin(few(), stage).end() == f"node 1: all its threads on CPU {min(OLD_CPUS)}"
    active = MEASURED.begin(few(), stage)
    os.sched_setaffinity(process.jvm_pid, OLD_CPUS)
    with pytest.raises(RunFailed, match="few-cpus: threads of node 1 may run on"):
        active.end()
    assert cpus(process) == OLD_CPUS


def test_fifth_piece_refuses_a_wrong_key(process: NodeProcess, stage: Stage) -> None:
    for wrong in (few(), few(cores=0.5)):
        assert KEY.find_error(make_cell(wrong), wrong)
    assert not KEY.find_error(CELL, few(cores=2))
    active = KEY.begin(few(cores=2), stage)
    assert cpus(process) == set(sorted(OLD_CPUS)[:2])
    active.end()


def test_page_mentions_every_field_of_a_kind() -> None:
    assert {field.name for field in dataclasses.fields(FaultKind)} <= set(re.findall(r"\w+", PAGE))
