"""A procedure's schedule to steps: tasks resolved, bulks and administration kept, other operations named as skipped."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ingest_bench.documents.tracks import admin, keys, sending
from ingest_bench.documents.tracks.corpora import Corpora
from ingest_bench.documents.tracks.declared import Declared, listed
from ingest_bench.documents.tracks.task_filter import TaskFilter
from ingest_bench.documents.tracks.template import Templates, without_marks
from ingest_bench.errors import SpecError
from ingest_bench.model.track import Operation, Step
from ingest_bench.units import quoted

_LEFT_OUT = ("parallel", "schedule", "operation", "tasks", "name", "clients", "completed-by")
_ONLY_FOR_ALL = "ramp-up-time-period"


@dataclass(slots=True)
class Schedule:
    """What becomes of a schedule."""

    declared: Declared
    corpora: Corpora
    templates: Templates
    operations: Mapping[str, Mapping[str, Any]]
    tasks: TaskFilter
    steps: list[Step] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    groups: int = 0

    def add(self, item: Mapping[str, Any], where: str) -> None:
        """One item of the schedule, a task or several parallel ones."""
        if "parallel" not in item:
            if self._is_chosen(item):
                self.steps += self._task(item, {})
            return
        group = item["parallel"]
        if not isinstance(group, dict):
            raise SpecError(f'{where}: "parallel" is {quoted(group)}, not an object with "tasks"')
        tasks = listed(group, "tasks", f"{where}: parallel")
        self._parallel(group, [task for task in tasks if self._is_chosen(task)], where)

    def _is_chosen(self, task: Mapping[str, Any]) -> bool:
        return self.tasks.keeps(self._name(task), self._operation(task)["operation-type"], task.get("tags"))

    def _parallel(self, group: Mapping[str, Any], tasks: Any, where: str) -> None:
        shared = {key: value for key, value in group.items() if key not in _LEFT_OUT}
        found: list[tuple[int, Step]] = []
        clients_before = 0
        for task in tasks:
            if _ONLY_FOR_ALL in task and task[_ONLY_FOR_ALL] != shared.get(_ONLY_FOR_ALL):
                raise SpecError(f'{where}: "{_ONLY_FOR_ALL}" of parallel tasks stands beside "tasks", for all of them')
            found += [(clients_before, step) for step in self._task(task, shared, beside=tasks)]
            clients_before += sending.clients_of(task, where)
        sends = [step for _, step in found if step.operation == "bulk"]
        self.steps += [step for _, step in found if step.operation != "bulk"]
        ends = self._completed_by(group, sends)
        waves = _waves(found, int(sending.number(group, "clients", where)))
        if len(waves) > 1:
            self.notes.append(
                f'{", ".join(step.name for step in sends)}: with "clients" {group["clients"]} for all of them they are '
                f"done in {len(waves)} turns, one after another"
            )
        for wave in waves:
            self.groups += 1
            for before, step in wave:
                several = len(wave) > 1
                self.steps.append(
                    dataclasses.replace(
                        step,
                        group=self.groups if several else 0,
                        completes_group=several and ends in ("any", step.name),
                        clients_before=before if step.ramp_up_ns else 0,
                        clients_in_all=clients_before if step.ramp_up_ns else 0,
                    )
                )

    def _completed_by(self, group: Mapping[str, Any], sends: list[Step]) -> str:
        """The step that ends the others; empty: each ends by itself."""
        ends = str(group.get("completed-by") or "")
        names = [self._name(task) for task in group["tasks"]]
        if ends and ends != "any" and ends not in names:
            raise SpecError(f'{self.templates.folder}: "completed-by" is "{ends}", and no task beside it is called so')
        if ends and sends and ends not in ("any", *(step.name for step in sends)):
            self.notes.append(f'{ends}: is skipped, so the parallel tasks that it would end ("completed-by") end last')
            ends = ""
        for step in sends:
            endless = step.looped and not step.time_period_ns
            if endless and (len(sends) == 1 or ends in ("", step.name)):
                raise SpecError(
                    f'{self.templates.folder}: {step.name}: is "looped", and nothing that is done ends it; give the '
                    'task a "time-period"'
                )
        return ends

    def _task(self, task: Mapping[str, Any], shared: Mapping[str, Any], beside: Any = ()) -> Iterator[Step]:
        operation, name, templates = self._operation(task), self._name(task), self.templates
        kind, where = operation["operation-type"], f"{templates.folder}: {name}"
        if kind in admin.REQUESTS:
            if any(self._sends(other) for other in beside):
                self.skipped.append(f"{name} ({kind}, beside a bulk)")
                return
            if kind == "cluster-health" and not without_marks(str(operation.get("index", ""))):
                # Both tools print nothing for it, and then ask for the health of all.
                operation.pop("index", None)
            templates.complete({**operation, "name": ""}, name)
            try:
                requests = admin.REQUESTS[kind](operation, self.declared)
            except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
                raise SpecError(f"{where} ({kind}): cannot be done as it is written: {error}") from None
            yield Step(name=name, operation=cast("Operation", kind), requests=requests)
        elif self._sends(task):
            merged = {**shared, **task}
            self.notes += (*keys.BULK.notes(operation, name), *keys.TASK.notes(merged, name))
            used = keys.TASK.select(merged), keys.BULK.select(operation)
            step = sending.step(name, *templates.complete(used, name), self.corpora, where)
            if step.looped and not beside and not step.time_period_ns:
                raise SpecError(f'{where}: is "looped" and nothing ends it; give the task a "time-period"')
            self._look_for_pipeline(step)
            yield step
        else:
            self.skipped.append(_skipped(name, kind, operation))

    def _look_for_pipeline(self, step: Step) -> None:
        pipeline = step.action.pipeline
        made = [one.requests[0].path for one in self.steps if one.operation == "put-pipeline"]
        if pipeline and not any(path.partition("?")[0].endswith(f"/{pipeline}") for path in made):
            self.notes.append(f'{step.name}: its pipeline "{pipeline}" is not made before; the server must have it')

    def _sends(self, task: Mapping[str, Any]) -> bool:
        operation = self._operation(task)
        return operation["operation-type"] == "bulk" and "param-source" not in operation

    def _name(self, task: Mapping[str, Any]) -> str:
        # A parameter without a value prints nothing in both tools, and in a name it does no harm.
        return without_marks(str(task.get("name") or self._operation(task)["name"]))

    def _operation(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """The operation with `name` and `operation-type`: given in place, by name, or only by its type."""
        given = task.get("operation")
        if given is None:
            raise SpecError(f'{self.templates.folder}: a task of the schedule has no "operation": {quoted(dict(task))}')
        operation = given if isinstance(given, Mapping) else self.operations.get(str(given), {"operation-type": given})
        kind = self.templates.complete(str(operation.get("operation-type", "")), "the operation of a task")
        return {"name": kind, **operation, "operation-type": kind}


def schedule(table: Mapping[str, Any], procedure: Mapping[str, Any], corpora: Corpora, tasks: TaskFilter) -> Schedule:
    """The steps of a procedure in their order; SpecError when none of them sends anything."""
    templates = corpora.templates
    where = f'{templates.folder}: the procedure "{procedure.get("name", "default")}"'
    operations = {str(one.get("name")): one for one in listed(table, "operations", str(templates.folder))}
    result = Schedule(
        declared=corpora.declared, corpora=corpora, templates=templates, operations=operations, tasks=tasks
    )
    for item in listed(procedure, "schedule", where):
        result.add(item, where)
    tasks.check_matched(where)
    if not any(step.operation == "bulk" for step in result.steps):
        raise SpecError(f"{where} {_nothing_sent(result.skipped)}")
    return result


def _waves(found: list[tuple[int, Step]], clients: int) -> list[list[tuple[int, Step]]]:
    """The bulk steps that run together, in turns: as Rally deals tasks out to a limited number of clients."""
    waves: list[list[tuple[int, Step]]] = []
    taken = clients
    for before, step in found:
        if step.operation != "bulk":
            continue
        if not waves or (clients and taken + step.clients > clients):
            waves.append([])
            taken = 0
        waves[-1].append((before, step))
        taken += step.clients
    return waves


def _skipped(name: str, kind: str, operation: Mapping[str, Any]) -> str:
    if kind == "bulk":
        return f'{name} (bulk; its documents are made by code of the track, "{operation["param-source"]}")'
    return name if name == kind else f"{name} ({kind})"


def _nothing_sent(skipped: list[str]) -> str:
    made = [one for one in skipped if "bulk" in one]
    if made:
        return (
            f"sends only what code of the track or another protocol makes ({', '.join(made)}); no code of a track is "
            "executed; choose a procedure that indexes a corpus by plain bulks"
        )
    return f"has no bulk operation, and only indexing is done; skipped: {', '.join(skipped) or 'nothing'}"
