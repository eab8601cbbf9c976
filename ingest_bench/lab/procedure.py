"""The steps of a run on a ready server: requests and loads, in order. Workloads and tracks both become these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest_bench.experiment import catalog
from ingest_bench.load import supervisor
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.load import AdminRequest
from ingest_bench.model.samples import WorkerReport
from ingest_bench.model.target import ServerAddress
from ingest_bench.targets.http import CONDITION_LIMIT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests to the server, one after the other."""

    name: str
    requests: tuple[AdminRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load."""

    name: str
    plan: LoadPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLoads:
    """Loads at the same time."""

    name: str
    loads: tuple[Load, ...]
    ends_all: tuple[bool, ...]
    """For each, True if its end also ends the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """The steps in order, and the indices whose documents are counted at the end."""

    steps: tuple[Requests | Load | ParallelLoads, ...]
    indices: tuple[str, ...]
    """Includes data streams."""
    skipped: tuple[str, ...] = ()
    """Operations of a track that are not executed."""
    notes: tuple[str, ...] = ()
    """Deviations from the track or workload."""
    indices_known: bool = True
    """False: the documents name indices, and were not read before the start."""
    pipelines: tuple[str, ...] = ()
    """Ingest pipelines that its loads name."""

    @property
    def requests(self) -> tuple[AdminRequest, ...]:
        """All requests except loads."""
        return tuple(request for step in self.steps if isinstance(step, Requests) for request in step.requests)

    @property
    def loads(self) -> tuple[Load, ...]:
        """All loads."""
        return tuple(load for step in self.steps for load in loads_of(step))


def loads_of(step: Requests | Load | ParallelLoads) -> tuple[Load, ...]:
    """Return the loads of a step: none, one, or several at the same time."""
    if isinstance(step, ParallelLoads):
        return step.loads
    return (step,) if isinstance(step, Load) else ()


def time_limit_s(procedure: Procedure) -> int:
    """Return a time that the procedure exceeds only if something is wrong."""
    loads_ns = sum(load.plan.options.max_warm_up_ns + load.plan.measure_ns for load in procedure.loads)
    return loads_ns // 10**9 + int(CONDITION_LIMIT_S) * (len(procedure.steps) + 1)


def execute(
    procedure: Procedure,
    request: Callable[[AdminRequest], None],
    send: Callable[[Sequence[LoadPlan], Sequence[bool]], Sequence[WorkerReport]],
    phase: Callable[[str], AbstractContextManager[None]],
    folder: Path,
) -> WorkerReport:
    """Execute each step as a phase of the run; return the combined report of its loads, also written to *folder*.

    *request* sends a request to the server. *send* sends loads at the same time; for each it gets if its end also ends
    the others.
    """
    worker_reports: list[WorkerReport] = []
    for step in procedure.steps:
        with phase(step.name):
            if isinstance(step, Requests):
                for admin_request in step.requests:
                    request(admin_request)
            else:
                ends_all = step.ends_all if isinstance(step, ParallelLoads) else (False,)
                worker_reports += send([load.plan for load in loads_of(step)], ends_all)
    report = supervisor.combine_sequential(worker_reports)
    supervisor.write_report(report, folder)
    return report


def connection_fields(address: ServerAddress) -> dict[str, Any]:
    """Return the fields of a `LoadPlan` that give the server's address."""
    return {
        "address": address.endpoint,
        "host_header": address.host_header,
        "path_prefix": address.path_prefix,
        "tls": address.tls,
        "needs_credentials": address.has_credentials,
        "resolver": address.resolver,
        "other_addresses": address.other_addresses,
    }


# --- The run's mark in objects that it creates on a server that is not ours, to tell them from those of others.

# Key that can carry the mark, by operation.
_MARKED_KEYS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "create-component-template": lambda mark: {"_meta": _made_by(mark)},
    "create-composable-template": lambda mark: {"_meta": _made_by(mark)},
    "create-index-template": lambda mark: {"mappings": {"_meta": _made_by(mark)}},
    "put-pipeline": lambda mark: {"description": f"made by ingest-bench, run {mark}"},
}


def mark_mapping(mapping: Mapping[str, Any], mark: str) -> Mapping[str, Any]:
    """Return the body of an index's creation with the mark."""
    return catalog.merge_tables(dict(mapping), {"mappings": {"_meta": _made_by(mark)}}) if mark else mapping


def mark_body(operation: str, body: Mapping[str, Any] | None, mark: str) -> dict[str, Any] | None:
    """Return the body of another request, with the mark if it creates an object that can carry one."""
    if not mark or body is None or operation not in _MARKED_KEYS:
        return None if body is None else dict(body)
    return dict(catalog.merge_tables(dict(body), _MARKED_KEYS[operation](mark)))


def _made_by(mark: str) -> dict[str, str]:
    return {"made_by": "ingest-bench", "run": mark}
