"""Schedule of a procedure to steps: bulk and administrative tasks are kept, other operations reported as skipped."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ingest_bench.documents.tracks.corpora import BULK_KEYS, TASK_KEYS, Corpora
from ingest_bench.documents.tracks.declarations import OPERATIONS, encode_query, object_list, parse_number
from ingest_bench.documents.tracks.templates import without_marks
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.inputs.names import check_name
from ingest_bench.model.load import BulkAction, LoadOptions, Operation, Rate, RateUnit, Step
from ingest_bench.units import quote_value

# Keys of a "parallel" object that its tasks do not inherit.
_NOT_INHERITED = ("parallel", "schedule", "operation", "tasks", "name", "clients", "completed-by")
_RAMP_UP = "ramp-up-time-period"
# The test mode of both tools cuts every time period to this.
TEST_PERIOD_S = 10
_THROUGHPUT = re.compile(r"(?P<number>[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)(?:\s+(?P<unit>\S+))?")
_RATE_UNITS: Mapping[str, RateUnit] = {"ops/s": "requests", "docs/s": "documents"}
_DAY_S = 86_400
# Parameters of a request that both an operation and its "request-params" may have.
_ACTION_KEYS = ("pipeline", "refresh")
_SCHEDULES = ("deterministic", "poisson")


class TaskFilter:
    """Tasks to run, as in Rally: those that match a filter, or those that match none."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str]) -> None:
        """Parse --include-tasks or --exclude-tasks: names, "type:bulk" or "tag:setup"."""
        if include and exclude:
            raise SpecError("--include-tasks cannot be combined with --exclude-tasks")
        for text in (*include, *exclude):
            kind, colon, value = text.partition(":")
            if colon and (kind not in ("type", "tag") or not value or ":" in value):
                raise SpecError(
                    f'{quote_value(text)} does not match tasks. Give a name, "type:OPERATION-TYPE" or "tag:TAG".'
                )
        self._filters, self._excludes = include or exclude, not include
        self._task_keys: set[str] = set()
        """Names, types and tags of the tasks in the schedule."""

    def keeps(self, name: str, operation: str, tags: object) -> bool:
        """Return True if a task of that name, operation type and tags is run."""
        tag_list = tags if isinstance(tags, list) else [tags]
        keys = {name, f"type:{operation}", *(f"tag:{tag}" for tag in tag_list if tag)}
        self._task_keys.update(keys)
        return keys.isdisjoint(self._filters) == self._excludes

    def check_matched(self, where: str) -> None:
        """Raise SpecError for a filter that matched no task."""
        for text in self._filters:
            check_name(text, self._task_keys, f"{where}: no task matches {quote_value(text)}")


@dataclass(slots=True)
class Schedule:
    """The steps of a schedule under construction."""

    corpora: Corpora
    operations: Mapping[str, Mapping[str, Any]]
    tasks: TaskFilter
    steps: list[Step] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    groups: int = 0

    def add(self, item: Mapping[str, Any], where: str) -> None:
        """Add one item of the schedule, a task or several parallel ones."""
        if "parallel" not in item:
            if self._is_selected(item):
                self.steps += self._build_steps(item, {})
            return
        group = item["parallel"]
        if not isinstance(group, dict):
            raise SpecError(f'{where}: "parallel" is {quote_value(group)}, not an object with "tasks"')
        tasks = object_list(group, "tasks", f"{where}: parallel")
        self._add_parallel(group, [task for task in tasks if self._is_selected(task)], where)

    def _is_selected(self, task: Mapping[str, Any]) -> bool:
        return self.tasks.keeps(self._name(task), self._operation(task)["operation-type"], task.get("tags"))

    def _add_parallel(self, group: Mapping[str, Any], tasks: list[Mapping[str, Any]], where: str) -> None:
        inherited = {key: value for key, value in group.items() if key not in _NOT_INHERITED}
        steps: list[tuple[int, Step]] = []
        clients_before = 0
        for task in tasks:
            if _RAMP_UP in task and task[_RAMP_UP] != inherited.get(_RAMP_UP):
                raise SpecError(
                    f'{where}: move "{_RAMP_UP}" of parallel tasks next to "tasks": it applies to all of them'
                )
            steps += [(clients_before, step) for step in self._build_steps(task, inherited, parallel=tasks)]
            clients_before += _parse_clients(task, where)
        bulks = [step for _, step in steps if step.operation == "bulk"]
        self.steps += [step for _, step in steps if step.operation != "bulk"]
        completing = self._completing_step(group, bulks)
        waves = _split_waves(steps, int(parse_number(group, "clients", where)))
        if len(waves) > 1:
            self.notes.append(
                f'{", ".join(step.name for step in bulks)}: because of "clients" {group["clients"]} for all of them '
                f"they run in {len(waves)} waves, one after another"
            )
        for wave in waves:
            self.groups += 1
            is_group = len(wave) > 1
            self.steps += (
                dataclasses.replace(
                    step,
                    group=self.groups if is_group else 0,
                    completes_group=is_group and completing in ("any", step.name),
                    ramp_clients_before=before if step.ramp_up_ns else 0,
                    ramp_clients_total=clients_before if step.ramp_up_ns else 0,
                )
                for before, step in wave
            )

    def _completing_step(self, group: Mapping[str, Any], bulks: list[Step]) -> str:
        """Return the name of the step that ends the others, or "any"; empty if each ends by itself."""
        folder = self.corpora.templates.folder
        name = str(group.get("completed-by") or "")
        if name and name != "any" and name not in [self._name(task) for task in group["tasks"]]:
            raise SpecError(f'{folder}: "completed-by" is "{name}", which is not one of its tasks')
        if name and bulks and name not in ("any", *(step.name for step in bulks)):
            self.notes.append(f'{name}: is skipped, so the parallel tasks that it would end ("completed-by") end last')
            name = ""
        for step in bulks:
            is_endless = step.looped and not step.time_period_ns
            if is_endless and (len(bulks) == 1 or name in ("", step.name)):
                raise SpecError(
                    f'{folder}: {step.name}: is "looped" and no step ends it. Give the task a "time-period".'
                )
        return name

    def _build_steps(
        self, task: Mapping[str, Any], inherited: Mapping[str, Any], parallel: Sequence[Mapping[str, Any]] = ()
    ) -> Iterator[Step]:
        """Yield the step of a task; none if it is skipped."""
        operation, name, templates = self._operation(task), self._name(task), self.corpora.templates
        kind, where = operation["operation-type"], f"{templates.folder}: {name}"
        if kind in OPERATIONS:
            if any(self._sends_bulks(other) for other in parallel):
                self.skipped.append(f"{name} ({kind}, parallel to a bulk)")
                return
            if kind == "cluster-health" and not without_marks(str(operation.get("index", ""))):
                # Both tools print nothing for it, and then request the health of all.
                operation.pop("index", None)
            templates.require_complete({**operation, "name": ""}, name)
            try:
                requests = OPERATIONS[kind](operation, self.corpora.declarations)
            except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
                raise SpecError(f"{where} ({kind}): invalid operation: {error}") from None
            yield Step(name=name, operation=cast("Operation", kind), requests=requests)
        elif self._sends_bulks(task):
            merged = {**inherited, **task}
            self.notes += (*BULK_KEYS.notes(operation, name), *TASK_KEYS.notes(merged, name))
            used = TASK_KEYS.select(merged), BULK_KEYS.select(operation)
            step = _build_bulk_step(name, *templates.require_complete(used, name), self.corpora, where)
            if step.looped and not parallel and not step.time_period_ns:
                raise SpecError(f'{where}: is "looped" and nothing ends it. Give the task a "time-period".')
            self._note_missing_pipeline(step)
            yield step
        elif kind == "bulk":
            self.skipped.append(
                f'{name} (bulk; its documents are generated by code of the track, "{operation["param-source"]}")'
            )
        else:
            self.skipped.append(name if name == kind else f"{name} ({kind})")

    def _note_missing_pipeline(self, step: Step) -> None:
        pipeline = step.action.pipeline
        paths = [done.requests[0].path for done in self.steps if done.operation == "put-pipeline"]
        if pipeline and not any(path.partition("?")[0].endswith(f"/{pipeline}") for path in paths):
            self.notes.append(f'{step.name}: no step creates its pipeline "{pipeline}"; the server must have it')

    def _sends_bulks(self, task: Mapping[str, Any]) -> bool:
        operation = self._operation(task)
        return operation["operation-type"] == "bulk" and "param-source" not in operation

    def _name(self, task: Mapping[str, Any]) -> str:
        # A parameter without a value is empty in both tools, which is harmless in a name.
        return without_marks(str(task.get("name") or self._operation(task)["name"]))

    def _operation(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return the operation with `name` and `operation-type`: an inline object, a name, or only a type."""
        folder, value = self.corpora.templates.folder, task.get("operation")
        if value is None:
            raise SpecError(f'{folder}: a task of the schedule has no "operation": {quote_value(dict(task))}')
        operation = value if isinstance(value, Mapping) else self.operations.get(str(value), {"operation-type": value})
        kind = self.corpora.templates.require_complete(
            str(operation.get("operation-type", "")), "the operation of a task"
        )
        return {"name": kind, **operation, "operation-type": kind}


def build_schedule(
    table: Mapping[str, Any], procedure: Mapping[str, Any], corpora: Corpora, tasks: TaskFilter
) -> Schedule:
    """Return the steps of a procedure in order; SpecError if none of them sends bulks."""
    folder = str(corpora.templates.folder)
    where = f'{folder}: the procedure "{procedure.get("name", "default")}"'
    operations = {str(operation.get("name")): operation for operation in object_list(table, "operations", folder)}
    schedule = Schedule(corpora=corpora, operations=operations, tasks=tasks)
    for item in object_list(procedure, "schedule", where):
        schedule.add(item, where)
    tasks.check_matched(where)
    if any(step.operation == "bulk" for step in schedule.steps):
        return schedule
    if bulks := [name for name in schedule.skipped if "bulk" in name]:
        raise SpecError(
            f"{where} only sends what code of the track or another protocol generates ({', '.join(bulks)}). Code of a "
            "track is never executed. Choose a procedure that indexes a corpus with plain bulks."
        )
    skipped = ", ".join(schedule.skipped) or "nothing"
    raise SpecError(f"{where} has no bulk operation, and only indexing is supported; skipped: {skipped}")


def _split_waves(steps: list[tuple[int, Step]], clients: int) -> list[list[tuple[int, Step]]]:
    """Split bulk steps into waves that run together, as Rally assigns tasks to a limited number of clients."""
    waves: list[list[tuple[int, Step]]] = []
    used = clients
    for before, step in steps:
        if step.operation != "bulk":
            continue
        if not waves or (clients and used + step.clients > clients):
            waves.append([])
            used = 0
        waves[-1].append((before, step))
        used += step.clients
    return waves


def _build_bulk_step(
    name: str, task: Mapping[str, Any], operation: Mapping[str, Any], corpora: Corpora, where: str
) -> Step:
    """Return the step of a bulk task; SpecError names what of the task or the operation is invalid."""
    if "bulk-size" not in operation:
        raise SpecError(f'{where}: "bulk-size" is missing')
    files = corpora.files(operation, where)
    parameters = operation.get("request-params") or {}
    if not isinstance(parameters, dict):
        raise SpecError(f'{where}: "request-params" is {quote_value(parameters)}, not an object of names and values')
    level = task.get("ignore-response-error-level")
    if level not in (None, "non-fatal"):
        raise SpecError(f'{where}: "ignore-response-error-level" is {quote_value(level)}, not "non-fatal"')
    rate, is_poisson, ramp_up_s = None, False, 0.0
    period_s, warm_up_s = parse_number(task, "time-period", where), parse_number(task, "warmup-time-period", where)
    if corpora.test_mode:
        period_s, warm_up_s = min(period_s, TEST_PERIOD_S), 0
    else:
        rate, is_poisson = _parse_rate(task, where), _parse_is_poisson(task, where)
        ramp_up_s = _parse_ramp_up_s(task, warm_up_s, where)
    if is_poisson and ramp_up_s:
        raise SpecError(f'{where}: a "poisson" schedule cannot be combined with "ramp-up-time-period"')
    bulk_size = int(parse_number(operation, "bulk-size", where))
    return Step(
        name=name,
        operation="bulk",
        clients=_parse_clients(task, where),
        warm_up_ns=int(warm_up_s * 10**9),
        time_period_ns=int(period_s * 10**9),
        rate=rate,
        is_poisson=is_poisson and rate is not None,
        ramp_up_ns=int(ramp_up_s * 10**9),
        looped=bool(operation.get("looped")),
        bulk_documents=records.read_key(LoadOptions, ("bulk_documents",), bulk_size, f'{where}: "bulk-size"'),
        action=_parse_action({**operation, **parameters}, where),
        query=_build_query(operation, parameters, where),
        timeout_ns=int(parse_number(operation, "request-timeout", where, maximum=_DAY_S) * 10**9),
        ignores_errors=level is not None,
        files=files,
    )


def _parse_clients(task: Mapping[str, Any], where: str) -> int:
    number = int(parse_number(task, "clients", where, 1))
    clients: int = records.read_key(LoadOptions, ("users",), number, f'{where}: "clients"')
    return clients


def _build_query(operation: Mapping[str, Any], parameters: Mapping[str, Any], where: str) -> str:
    """Return the query string of each request, without the parameters that are fields of `BulkAction`."""
    timeout = {} if operation.get("timeout") is None else {"timeout": operation["timeout"]}
    query = {key: value for key, value in {**timeout, **parameters}.items() if key not in _ACTION_KEYS}
    for key, value in query.items():
        if not isinstance(value, str | int | float):
            raise SpecError(
                f'{where}: "{key}" of a request is {quote_value(value)}, not a text, a number, true or false'
            )
    return encode_query(query)


def _parse_action(operation: Mapping[str, Any], where: str) -> BulkAction:
    refresh = operation.get("refresh")
    action = BulkAction(
        # Any values: they are checked below.
        conflicts=operation.get("conflicts", "none"),
        conflict_probability_ppm=int(parse_number(operation, "conflict-probability", where, 25, maximum=100) * 10**4),
        on_conflict=operation.get("on-conflict", "index"),
        pipeline=operation.get("pipeline"),
        refresh=None if refresh is None else str(refresh).lower(),  # type: ignore[arg-type]
    )
    records.check(action, where)
    return action


def _parse_rate(task: Mapping[str, Any], where: str) -> Rate | None:
    """Return the target throughput, of requests or (docs/s) of documents; None: as fast as possible.

    As in Rally, a bare number is ops/s, and the units of a bulk are ops and docs.
    """
    text = str(task.get("target-throughput") or "").strip()
    if task.get("target-interval"):
        if text:
            raise SpecError(f'{where}: "target-interval" cannot be combined with "target-throughput"')
        interval_s = parse_number(task, "target-interval", where)
        if not interval_s > 0:
            raise SpecError(f'{where}: "target-interval" is 0. Remove it to send as fast as possible.')
        rate = Rate(1 / interval_s)
    elif text:
        match = _THROUGHPUT.fullmatch(text)
        unit = match and _RATE_UNITS.get(match["unit"] or "ops/s")
        if not match or not unit:
            raise SpecError(
                f'{where}: "target-throughput" is "{text}". The throughput of a bulk is in ops/s (requests) or docs/s: '
                '10, "10 ops/s" or "5000 docs/s".'
            )
        if not float(match["number"]) > 0:
            raise SpecError(f'{where}: "target-throughput" is 0. Remove it to send as fast as possible.')
        rate = Rate(float(match["number"]), unit)
    else:
        return None
    records.check(rate, f"{where}: target rate")
    return rate


def _parse_is_poisson(task: Mapping[str, Any], where: str) -> bool:
    schedule = str(task.get("schedule", "deterministic"))
    if schedule not in _SCHEDULES:
        raise SpecError(
            f'{where}: "schedule" is {quote_value(schedule)}, code of the track, which is never executed. '
            f"Use {' or '.join(_SCHEDULES)}."
        )
    return schedule == "poisson"


def _parse_ramp_up_s(task: Mapping[str, Any], warm_up_s: float, where: str) -> float:
    """Return the ramp-up time. As in Rally, clients start one after another in this time, before the measurement."""
    ramp_up_s = parse_number(task, _RAMP_UP, where)
    if ramp_up_s > warm_up_s:
        raise SpecError(
            f'{where}: "{_RAMP_UP}" is {ramp_up_s:g} and "warmup-time-period" is {warm_up_s:g}. The warm-up must be at '
            "least as long, because the measurement needs all clients."
        )
    return ramp_up_s
