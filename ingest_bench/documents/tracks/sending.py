"""A task that sends bulks, as a step: clients, size, times, rate, and what each bulk does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from ingest_bench.documents.tracks.corpora import Corpora
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.load import LoadOptions, Rate, RateUnit
from ingest_bench.model.track import Step
from ingest_bench.model.workload import BulkAction
from ingest_bench.units import quoted

# In their test mode both tools cut every time period to this.
TEST_PERIOD_S = 10
_THROUGHPUT = re.compile(r"(?P<number>[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)(?:\s+(?P<unit>\S+))?")
_RATE_UNITS: Mapping[str, RateUnit] = {"ops/s": "requests", "docs/s": "documents"}
# The largest bulk: no number of a task is larger.
_LARGEST = 1_000_000
_DAY_S = 86_400
# Parameters of a request that both an operation and its "request-params" may have.
_OF_ACTION = ("pipeline", "refresh")
_SCHEDULES = ("deterministic", "poisson")


def step(name: str, task: Mapping[str, Any], operation: Mapping[str, Any], corpora: Corpora, where: str) -> Step:
    """The step; SpecError names what of the task or the operation cannot be done."""
    if "bulk-size" not in operation:
        raise SpecError(f'{where}: "bulk-size" is missing')
    files = corpora.files(operation, where)
    parameters = _request_parameters(operation, where)
    clients = clients_of(task, where)
    rate, poisson, ramp_up_s = None, False, 0.0
    period_s, warm_up_s = number(task, "time-period", where), number(task, "warmup-time-period", where)
    if corpora.test_mode:
        period_s, warm_up_s = min(period_s, TEST_PERIOD_S), 0
    else:
        rate, poisson = _rate(task, where), _is_poisson(task, where)
        ramp_up_s = _ramp_up(task, warm_up_s, where)
    if poisson and ramp_up_s:
        raise SpecError(f'{where}: a "poisson" schedule and "ramp-up-time-period" together are not supported; take one')
    return Step(
        name=name,
        operation="bulk",
        clients=clients,
        warm_up_ns=int(warm_up_s * 10**9),
        time_period_ns=int(period_s * 10**9),
        rate=rate,
        is_poisson=poisson and rate is not None,
        ramp_up_ns=int(ramp_up_s * 10**9),
        looped=bool(operation.get("looped")),
        bulk_documents=records.at(
            LoadOptions, ("bulk_documents",), int(number(operation, "bulk-size", where)), f'{where}: "bulk-size"'
        ),
        action=_action({**operation, **parameters}, where),
        query=_query(operation, parameters, where),
        timeout_ns=int(number(operation, "request-timeout", where, most=_DAY_S) * 10**9),
        ignores_errors=_ignores_errors(task, where),
        files=files,
    )


def clients_of(task: Mapping[str, Any], where: str) -> int:
    """How many clients a task has."""
    found: int = records.at(LoadOptions, ("users",), int(number(task, "clients", where, 1)), f'{where}: "clients"')
    return found


def number(table: Mapping[str, Any], key: str, where: str, default: float = 0, most: int = _LARGEST) -> float:
    """A number of the track, 0 or more, and never more than anything may be."""
    value = table.get(key, default)
    try:
        found = float(default if value is None else value)
    except (TypeError, ValueError, OverflowError):
        raise SpecError(f'{where}: "{key}" is {quoted(value)}, not a number') from None
    if not 0 <= found <= most:
        raise SpecError(f'{where}: "{key}" is {quoted(value)}, not between 0 and {most:,}')
    return found


def _ignores_errors(task: Mapping[str, Any], where: str) -> bool:
    level = task.get("ignore-response-error-level")
    if level not in (None, "non-fatal"):
        raise SpecError(f'{where}: "ignore-response-error-level" is {quoted(level)}, not "non-fatal"')
    return level is not None


def _request_parameters(operation: Mapping[str, Any], where: str) -> dict[str, Any]:
    parameters = operation.get("request-params") or {}
    if not isinstance(parameters, dict):
        raise SpecError(f'{where}: "request-params" is {quoted(parameters)}, not an object of names and values')
    return parameters


def _query(operation: Mapping[str, Any], parameters: Mapping[str, Any], where: str) -> str:
    """Return the query string of each request, without the parameters that are fields of `BulkAction`."""
    timeout = {} if operation.get("timeout") is None else {"timeout": operation["timeout"]}
    query = {key: value for key, value in {**timeout, **parameters}.items() if key not in _OF_ACTION}
    for key, value in query.items():
        if not isinstance(value, str | int | float):
            raise SpecError(f'{where}: "{key}" of a request is {quoted(value)}, not a text, a number, true or false')
    return urlencode({key: str(value).lower() if isinstance(value, bool) else value for key, value in query.items()})


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
        conflict_probability_ppm=int(number(operation, "conflict-probability", where, 25, most=100) * 10**4),
        on_conflict=on_conflict,  # type: ignore[arg-type] # checked above
        pipeline=operation.get("pipeline"),
        refresh=None if refresh is None else str(refresh).lower(),  # type: ignore[arg-type] # checked below
    )
    records.check(action, where)
    return action


def _rate(task: Mapping[str, Any], where: str) -> Rate | None:
    """A target throughput: of requests, or of documents where it says docs/s. None: as fast as possible.

    As in Rally: a bare number is ops/s, and a bulk has no other units than ops and docs.
    """
    text = str(task.get("target-throughput") or "").strip()
    if task.get("target-interval"):
        if text:
            raise SpecError(f'{where}: has a "target-interval" and a "target-throughput"; take one out')
        interval_s = _positive(number(task, "target-interval", where), "target-interval", where)
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


def _is_poisson(task: Mapping[str, Any], where: str) -> bool:
    schedule = str(task.get("schedule", "deterministic"))
    if schedule not in _SCHEDULES:
        raise SpecError(
            f'{where}: "schedule" is {quoted(schedule)}, which is code of the track, and none of it is executed; '
            f"take {' or '.join(_SCHEDULES)}"
        )
    return schedule == "poisson"


def _ramp_up(task: Mapping[str, Any], warm_up_s: float, where: str) -> float:
    """As Rally: clients start one after another in this time, and before the measurement begins."""
    period_s = number(task, "ramp-up-time-period", where)
    if period_s > warm_up_s:
        raise SpecError(
            f'{where}: "ramp-up-time-period" is {period_s:g} and "warmup-time-period" is {warm_up_s:g}; the warm-up '
            "must be at least as long, for measured is with all clients"
        )
    return period_s
