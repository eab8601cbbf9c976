"""A procedure's schedule to steps: tasks resolved, seven kinds of operations kept, the others named as skipped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from ingest_bench import records
from ingest_bench.documents.tracks import admin, corpora
from ingest_bench.documents.tracks.template import Templates
from ingest_bench.errors import SpecError
from ingest_bench.model.load import LoadOptions, Rate, RateUnit
from ingest_bench.model.track import Operation, Step, TrackIndex
from ingest_bench.model.workload import BulkAction
from ingest_bench.units import quoted

OPERATIONS = get_args(Operation)
# In their test mode both tools cut every time period to this.
TEST_PERIOD_S = 10
_THROUGHPUT = re.compile(r"(?P<number>[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)(?:\s+(?P<unit>\S+))?")
_RATE_UNITS: Mapping[str, RateUnit] = {"ops/s": "requests", "docs/s": "documents"}
# A day of seconds, and the largest bulk: no number of a task is larger.
_LARGEST = 1_000_000
_LEFT_OUT = ("parallel", "schedule", "operation", "tasks", "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What becomes of a schedule."""

    steps: tuple[Step, ...]
    skipped: tuple[str, ...]
    notes: tuple[str, ...]


def steps(
    table: Mapping[str, Any],
    procedure: Mapping[str, Any],
    indices: tuple[TrackIndex, ...],
    templates: Templates,
    test_mode: bool,
) -> Steps:
    """The steps of a procedure in their order; SpecError when none of them sends anything."""
    operations = {str(one.get("name")): one for one in table.get("operations", ())}
    found: list[Step] = []
    skipped: list[str] = []
    notes: list[str] = []
    for task in _tasks(procedure.get("schedule", ()), notes):
        operation = _operation(task.get("operation"), operations)
        name = str(task.get("name") or operation["name"])
        kind = operation["operation-type"]
        if kind in OPERATIONS:
            templates.complete((task, operation), name)
        if kind in admin.REQUESTS:
            requests = admin.REQUESTS[kind](operation, indices)
            found.append(Step(name=name, operation=cast("Operation", kind), requests=requests))
        elif kind == "bulk" and "param-source" not in operation:
            found.append(_bulk(name, task, operation, table, indices, templates, test_mode))
            if operation.get("recency"):
                notes.append(f'{name}: "recency" is not used: old ids are drawn evenly')
        else:
            skipped.append(name if name == kind else f"{name} ({kind})")
    if not any(step.operation == "bulk" for step in found):
        raise SpecError(
            f'{templates.folder}: the procedure "{procedure.get("name")}" has no bulk operation that can be run; '
            f"skipped: {', '.join(skipped) or 'nothing'}"
        )
    return Steps(steps=tuple(found), skipped=tuple(skipped), notes=tuple(notes))


def _tasks(schedule: Any, notes: list[str]) -> Iterator[Mapping[str, Any]]:
    for item in schedule:
        if "parallel" not in item:
            yield item
            continue
        group = item["parallel"]
        shared = {key: value for key, value in group.items() if key not in _LEFT_OUT}
        if len(group.get("tasks", ())) > 1:
            notes.append(f"{len(group['tasks'])} parallel tasks are done one after another")
        for task in group.get("tasks", ()):
            yield {**shared, **task}


def _operation(given: Any, operations: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The operation with `name` and `operation-type`: given in place, by name, or only by its type."""
    if isinstance(given, Mapping):
        kind = str(given.get("operation-type", ""))
        return {"name": kind, **given, "operation-type": kind}
    if given in operations:
        return {**operations[str(given)], "operation-type": str(operations[str(given)].get("operation-type", ""))}
    return {"name": str(given), "operation-type": str(given)}


def _bulk(
    name: str,
    task: Mapping[str, Any],
    operation: Mapping[str, Any],
    table: Mapping[str, Any],
    indices: tuple[TrackIndex, ...],
    templates: Templates,
    test_mode: bool,
) -> Step:
    where = f"{templates.folder}: {name}"
    if "bulk-size" not in operation:
        raise SpecError(f'{where}: "bulk-size" is missing')
    if not test_mode:
        _refuse_ramp_up(task, where)
    period_s = _number(task, "time-period", where)
    return Step(
        name=name,
        operation="bulk",
        clients=records.at(LoadOptions, ("users",), int(_number(task, "clients", where, 1)), f'{where}: "clients"'),
        warm_up_ns=0 if test_mode else int(_number(task, "warmup-time-period", where) * 10**9),
        time_period_ns=int((min(period_s, TEST_PERIOD_S) if test_mode else period_s) * 10**9),
        rate=None if test_mode else _rate(task, where),
        bulk_documents=records.at(
            LoadOptions, ("bulk_documents",), int(_number(operation, "bulk-size", where)), f'{where}: "bulk-size"'
        ),
        action=_action(operation, where),
        files=corpora.files(operation, table.get("corpora", ()), indices, templates, test_mode),
    )


def _action(operation: Mapping[str, Any], where: str) -> BulkAction:
    conflicts = str(operation.get("conflicts", "none"))
    on_conflict = str(operation.get("on-conflict", "index"))
    if conflicts not in ("none", "sequential", "random"):
        raise SpecError(f'{where}: conflicts is "{conflicts}", not sequential or random')
    if on_conflict not in ("index", "update"):
        raise SpecError(f'{where}: on-conflict is "{on_conflict}", not index or update')
    refresh = operation.get("refresh")
    action = BulkAction(
        conflicts=conflicts,  # type: ignore[arg-type] # checked above
        conflict_probability_ppm=int(_number(operation, "conflict-probability", where, 25) * 10**4),
        on_conflict=on_conflict,  # type: ignore[arg-type] # checked above
        pipeline=operation.get("pipeline"),
        refresh=None if refresh is None else str(refresh).lower(),  # type: ignore[arg-type] # checked below
    )
    records.check(action, where)
    return action


def _number(table: Mapping[str, Any], key: str, where: str, default: float = 0) -> float:
    """A number of the track, 0 or more, and never more than anything may be."""
    value = table.get(key, default)
    try:
        number = float(default if value is None else value)
    except (TypeError, ValueError, OverflowError):
        raise SpecError(f'{where}: "{key}" is {quoted(value)}, not a number') from None
    if not 0 <= number <= _LARGEST:
        raise SpecError(f'{where}: "{key}" is {quoted(value)}, not between 0 and {_LARGEST:,}')
    return number


def _rate(task: Mapping[str, Any], where: str) -> Rate | None:
    """A target throughput: of requests, or of documents where it says docs/s. None: as fast as possible.

    As in Rally: a bare number is ops/s, and a bulk has no other units than ops and docs.
    """
    text = str(task.get("target-throughput") or "").strip()
    if task.get("target-interval"):
        if text:
            raise SpecError(f'{where}: has a "target-interval" and a "target-throughput"; take one out')
        interval_s = _positive(_number(task, "target-interval", where), "target-interval", where)
        return _checked(Rate(1 / interval_s), where)
    if not text:
        return None
    found = _THROUGHPUT.fullmatch(text)
    unit = found and _RATE_UNITS.get(found["unit"] or "ops/s")
    if not found or not unit:
        raise SpecError(
            f'{where}: "target-throughput" is "{text}", but the throughput of a bulk is counted in ops/s (requests) or '
            'docs/s; write it like 10, "10 ops/s" or "5000 docs/s"'
        )
    return _checked(Rate(_positive(float(found["number"]), "target-throughput", where), unit), where)


def _checked(rate: Rate, where: str) -> Rate:
    records.check(rate, f"{where}: target rate")
    return rate


def _positive(value: float, key: str, where: str) -> float:
    if not value > 0:
        raise SpecError(f'{where}: "{key}" is {value:g}; take it out to send as fast as possible')
    return value


def _refuse_ramp_up(task: Mapping[str, Any], where: str) -> None:
    period_s = _number(task, "ramp-up-time-period", where)
    if period_s:
        raise SpecError(
            f'{where}: "ramp-up-time-period" is {period_s:g}, but clients that start one after another are not '
            "supported; set it to 0, and all start at once, or take a procedure without it"
        )
