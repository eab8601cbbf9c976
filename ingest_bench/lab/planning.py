"""The steps of a run on a ready server: requests and loads, in order. They are built, checked and executed here.

A workload is one load into its indices; a track has its own steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest_bench import system, targets
from ingest_bench.documents import corpus, corpus_download
from ingest_bench.documents.corpus import Corpus
from ingest_bench.documents.tracks import reader
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.experiment import catalog
from ingest_bench.inputs import files, records
from ingest_bench.load import supervisor
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import (
    AdminRequest,
    Arrivals,
    LoadOptions,
    ProtocolOptions,
    Step,
    Track,
    TrackOptions,
    Workload,
)
from ingest_bench.model.samples import WorkerReport
from ingest_bench.model.target import Endpoint, ServerAddress
from ingest_bench.targets.base import Target
from ingest_bench.targets.http import CONDITION_LIMIT_S
from ingest_bench.units import format_bytes, format_time

# The slowest published track (elastic/security) takes 1 s. Wall time is longer on a busy machine.
READING_CPU_S = 10
_READING_LIMIT_S = 120.0
# Variables that Python needs to find its modules and its encoding. The child that renders a track gets no others:
# passwords, keys and tokens are in the environment, and templates are code of the track's author.
_CHILD_VARIABLES = frozenset(
    ["PATH", "HOME", "PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE"]
)
# Load options that can be combined with a track.
_ALLOWED_WITH_TRACK = ("track", "seed", "processes", "gzip", "retries", "on_error", "timeout_ns", "workload")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests to the server, one after the other."""

    name: str
    requests: tuple[AdminRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """A load, or several at the same time."""

    name: str
    plans: tuple[LoadPlan, ...]
    ends_all: tuple[bool, ...] = (False,)
    """For each, True if its end also ends the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """The steps in order, and the indices whose documents are counted at the end."""

    steps: tuple[Requests | Loads, ...]
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
    def plans(self) -> tuple[LoadPlan, ...]:
        """The plans of all loads."""
        return tuple(plan for step in self.steps if isinstance(step, Loads) for plan in step.plans)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """Parameters common to all steps of one run."""

    cell: Cell
    target: Target
    address: ServerAddress
    folder: Path
    mark: str


def build_procedure(
    cell: Cell, address: ServerAddress, folder: Path, *, may_delete: bool, mark: str = "", target: Target | None = None
) -> Procedure:
    """Return the procedure of a run of this cell; SpecError if it cannot work. Reads files, sends nothing.

    *may_delete*: a track may delete the indices that it declares. *mark* is written into each created object, to tell
    it from those of others. *target* overrides the table's, such as one with more modules.
    """
    target = target or targets.resolve(cell.target)
    context = _Context(cell=cell, target=target, address=address, folder=folder, mark=mark)
    if cell.load.track is None:
        return _workload_procedure(context)
    return _track_procedure(context, cell.load.track, may_delete=may_delete)


def check_procedure(cell: Cell, *, may_delete: bool = True) -> Procedure:
    """Return the procedure after reading all files that it sends; SpecError if it cannot work. Starts nothing."""
    if cell.target.preloaded_documents:
        if targets.resolve(cell.target).flush is None:
            raise SpecError(f"target.preloaded_documents: {cell.target.name} has no command that flushes them to files")
        if cell.load.track is not None:
            raise SpecError("target.preloaded_documents conflicts with a track, which has its own initial documents")
    if cell.load.track is not None:
        if cell.faults:
            raise SpecError("a track conflicts with faults: their times are relative to a measurement of known length")
        reader.check_files(read_track(cell.load.track))
    else:
        _check_users(cell.load)
        if cell.load.warm_up_ns == "auto":
            _check_warm_up(cell)
    procedure = build_procedure(cell, ServerAddress(endpoint=Endpoint("server", 0)), Path(), may_delete=may_delete)
    for plan in procedure.plans:
        plan.with_checked_files()
    return procedure


def _check_users(options: LoadOptions) -> None:
    for key, time_ns in (("ramp_up", options.ramp_up_ns), ("think_time", options.think_time_ns)):
        if time_ns and options.arrivals.is_open_loop:
            hint = ' Increase the rate instead: arrivals = "ramp 100/s..2000/s 30s".' if key == "ramp_up" else ""
            raise SpecError(f"load.{key}: in an open loop the schedule sends requests, not the users.{hint}")
    if options.ramp_up_ns and not isinstance(options.warm_up_ns, int):
        raise SpecError('load.ramp_up: the warm-up must last until all users have started. Set warm_up, such as "30s".')
    if options.ramp_up_ns > options.max_warm_up_ns:
        raise SpecError(
            f"load.ramp_up: {options.ramp_up_ns / 1e9:g} s is longer than the warm-up, "
            f"{options.max_warm_up_ns / 1e9:g} s. All users must run during the measurement: increase warm_up."
        )


def _check_warm_up(cell: Cell) -> None:
    shape = cell.load.arrivals.shape
    if cell.faults:
        raise SpecError('warm_up "auto" conflicts with faults: their times are relative to a known start. Set "5s".')
    if cell.load.measure_documents is not None:
        raise SpecError('warm_up "auto" conflicts with a number of documents, counted from a known start. Set "5s".')
    if shape not in ("closed", "constant", "poisson"):
        raise SpecError(f'warm_up "auto": "{shape}" arrivals are never steady. Set it, such as "5s".')


def time_limit_s(procedure: Procedure) -> int:
    """Return a time that the procedure exceeds only if something is wrong."""
    loads_ns = sum(plan.options.max_warm_up_ns + plan.measure_ns for plan in procedure.plans)
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
                worker_reports += send(step.plans, step.ends_all)
    report = supervisor.combine_sequential(worker_reports)
    supervisor.write_report(report, folder)
    return report


# --- Workloads


def _workload_procedure(context: _Context) -> Procedure:
    cell, options = context.cell, context.cell.load
    workload = catalog.load_workload(options.workload)
    indices = options.action.index_names(workload.index)
    notes: tuple[str, ...] = ()
    indices_known = True
    pipelines = {options.action.pipeline} if options.action.pipeline else set()
    if options.documents is not None:
        file = corpus.check_corpus(Path(options.documents), is_text=options.text_lines)
        workload = _workload_of_file(workload, file, options)
        indices = options.action.index_names(workload.index)
        if file.has_action_lines:
            indices = (*file.indices, *((workload.index,) if file.has_unnamed_index else ()))
            pipelines |= set(file.pipelines)
        indices_known = not file.has_action_lines or file.documents is not None
        if not indices_known:
            notes = (f"{file.path.name}: too large to read before the start; indices named later are not counted",)
        notes += _note_large_bulk(workload, options)
    elif options.mapping or options.index_settings or options.text_lines:
        raise SpecError(
            "load.mapping, load.index_settings and load.text_lines require a file of documents: --documents FILE"
        )
    prepared = context.target.prepare(cell.target, indices, mark_body("create-index", workload.mapping, context.mark))
    # Kafka and Cassandra have indices without mappings, and do not search.
    if (options.mapping or options.index_settings) and not prepared.search_path:
        raise SpecError(f"load.mapping and load.index_settings: {cell.target.name} has no mappings. Remove them.")
    server = context.target.load_address(cell.target, context.address)
    # Queries go over the connections of an upstream as documents do.
    _check_queries(cell, workload, prepared.search_path if server == context.address else "")
    _check_bursts(options, options.users or workload.users)
    plan = LoadPlan(
        server=server,
        wire=context.target.wire(cell.target, workload),
        search_path=prepared.search_path,
        workload=workload,
        options=options,
        folder=context.folder,
    )
    requests = prepared.requests_if_preloaded if cell.target.preloaded_documents else prepared.requests
    preparation = (Requests(name="index", requests=requests),) if requests else ()
    return Procedure(
        steps=(*preparation, Loads(name="load", plans=(plan,))),
        indices=prepared.indices,
        notes=notes,
        indices_known=indices_known,
        pipelines=tuple(pipelines),
    )


def _workload_of_file(workload: Workload, file: Corpus, options: LoadOptions) -> Workload:
    """Return the workload for the documents of a file: its users, bulks and queries, but another index."""
    where = " and ".join(filter(None, (options.mapping, options.index_settings)))
    body = corpus.read_index_body(options.mapping, options.index_settings)
    return dataclasses.replace(
        workload,
        name=file.path.name,
        index=corpus.index_name(file.path),
        mapping=records.read_key(Workload, ("mapping",), body, where),
        published_documents=1,
        published_bytes=math.ceil(file.mean_bytes),
    )


def _note_large_bulk(workload: Workload, options: LoadOptions) -> tuple[str, ...]:
    """Return a note if a bulk of a file's documents is larger than servers accept."""
    documents = options.bulk_documents or workload.bulk_documents
    bulk_bytes = documents * workload.mean_document_bytes
    if options.bulk_bytes is not None or bulk_bytes <= corpus.MAX_REQUEST_BYTES:
        return ()
    limit = format_bytes(corpus.MAX_REQUEST_BYTES)
    text = f"large bulks: {documents:,} documents of {workload.name} have about {format_bytes(bulk_bytes)}"
    return (f"{text}, and servers accept requests of {limit} by default. Send smaller ones: --set bulk=10MB",)


def _check_queries(cell: Cell, workload: Workload, search_path: str) -> None:
    options, arrivals = cell.load, cell.load.query_arrivals
    # `query_users = 0` is a valid baseline level even when `query_arrivals` is set.
    is_level = any(key.rpartition(".")[2] == "query_users" for key in cell.levels)
    if options.query_users and not workload.queries:
        raise SpecError(f"load.query_users: workload {workload.name} has no queries. Add some as [[queries]].")
    if options.query_users and not search_path:
        server = cell.target.protocol or cell.target.name
        raise SpecError(f"load.query_users: {server} does not support queries. Remove it.")
    if not options.query_users and arrivals.is_open_loop and not is_level:
        raise SpecError("load.query_arrivals requires query users, such as query_users = 2")
    if arrivals.shape in ("burst", "recorded") or arrivals.unit != "requests":
        raise SpecError('load.query_arrivals: queries have a rate of requests, such as "10/s" or "poisson 10/s"')


def _check_bursts(options: LoadOptions, users: int) -> None:
    """Raise SpecError if the measurement is not whole bursts with their idle spans."""
    burst, period_ns = options.arrivals.requests, options.arrivals.period_ns
    if not burst:
        return
    if burst > users:
        raise SpecError(
            f"load.arrivals: {burst} requests at once need {burst} users, and there are {users}: a user sends one "
            f"request at a time. Set users = {burst}."
        )
    if options.measure_documents is not None:
        raise SpecError("load.measure_documents conflicts with bursts: it ends without an idle span. Use measure.")
    for key, time_ns in (("warm_up", options.max_warm_up_ns), ("measure", options.measure_ns)):
        if time_ns % period_ns:
            periods_ns = -(-time_ns // period_ns) * period_ns
            raise SpecError(
                f"load.{key}: {format_time(time_ns)} are not whole periods of {format_time(period_ns)}. A measurement "
                f'begins with a burst and ends with an idle span: set {key} = "{format_time(periods_ns)}".'
            )


# --- Tracks


def _track_procedure(context: _Context, options: TrackOptions, *, may_delete: bool) -> Procedure:
    """Return each step of a track as a step; those of a parallel element together."""
    cell = context.cell
    defaults = LoadOptions()
    for field in dataclasses.fields(LoadOptions):
        if field.name not in _ALLOWED_WITH_TRACK and getattr(cell.load, field.name) != getattr(defaults, field.name):
            raise SpecError(
                f"load.{records.toml_key(field.name)} conflicts with a track, which sets it. Remove it, or give no "
                "experiment: ingest-bench run --track DIR"
            )
    track = read_track(options)
    deletions = [step.name for step in track.steps for request in step.requests if request.method == "DELETE"]
    if deletions and not may_delete:
        raise SpecError(
            f"{options.path}: the track deletes what it declares ({', '.join(dict.fromkeys(deletions))}), on a server "
            "that is not ours. Allow it with --allow-delete."
        )
    if not cell.target.is_already_running:
        _refuse_processors(track, cell.target.name)
    files_with_actions = {Path(file.path) for step in track.steps for file in step.files if file.has_action_lines}
    corpora = [corpus.check_corpus(path, has_action_lines=True) for path in files_with_actions]
    steps: list[Requests | Loads] = []
    for group, numbered in itertools.groupby(enumerate(track.steps, 1), key=lambda item: item[1].group or -item[0]):
        members = [_track_step(context, track, step, number) for number, step in numbered]
        loads = [member for member in members if isinstance(member, Loads)]
        if len(loads) > 1:
            name, plans = " + ".join(load.name for load in loads), tuple(plan for load in loads for plan in load.plans)
            ends_all = tuple(step.completes_group for step in track.steps if step.group == group)
            steps.append(Loads(name=name, plans=plans, ends_all=ends_all))
        else:
            steps += members
    return Procedure(
        steps=tuple(steps),
        indices=tuple(_track_indices(track)),
        skipped=track.skipped,
        notes=track.notes,
        indices_known=all(file.documents is not None for file in corpora),
        pipelines=(
            *(step.action.pipeline for step in track.steps if step.action.pipeline),
            *(name for file in corpora for name in file.pipelines),
        ),
    )


def _refuse_processors(track: Track, server: str) -> None:
    """Raise SpecError for a pipeline with processors: the archives of launched servers contain no such module."""
    for step in track.steps:
        for request in step.requests:
            if step.operation == "put-pipeline" and (request.body or {}).get("processors") and server != "sink":
                raise SpecError(
                    f"{track.name}: {step.name}: the {server} that is launched here has no processors for ingest "
                    "pipelines: its archive leaves them out. Measure a server of yours: --url URL."
                )


def _track_step(context: _Context, track: Track, step: Step, number: int) -> Requests | Loads:
    """Return a step in the server's form, with our mark in the objects that it creates."""
    if step.operation == "bulk":
        folder = context.folder / f"{number:02d}-{re.sub(r'[^A-Za-z0-9._-]+', '_', step.name)[:100]}"
        return Loads(name=step.name, plans=(_track_load(context, track, step, folder),))
    requests = []
    for request in step.requests:
        body = (request.body or {}) if step.operation == "create-index" else request.body
        marked = None if body is None else mark_body(step.operation, body, context.mark)
        adapted = dataclasses.replace(request, body=marked)
        requests.append(context.target.adapt_track_request(context.cell.target, step.operation, adapted))
    return Requests(name=step.name, requests=tuple(requests))


def _track_load(context: _Context, track: Track, step: Step, folder: Path) -> LoadPlan:
    cell = context.cell
    first_index = track.indices[0].name if track.indices else "_all"
    # A track does not give the size of its documents; nothing here uses the mean.
    workload = Workload(
        name=track.name,
        description=track.description,
        source=str(cell.load.track),
        index=next((file.index for file in step.files if file.index), first_index),
        published_documents=1,
        published_bytes=1,
        bulk_documents=step.bulk_documents,
        users=step.clients,
        mapping={},
        fields=(),
    )
    options = dataclasses.replace(
        cell.load,
        users=step.clients,
        bulk_documents=step.bulk_documents,
        action=step.action,
        on_error="continue" if step.ignores_errors else cell.load.on_error,
        arrivals=_step_arrivals(step),
        ramp_up_ns=step.ramp_up_ns,
        warm_up_ns=step.warm_up_ns,
        measure_ns=step.time_period_ns,
        timeout_ns=step.timeout_ns or cell.load.timeout_ns,
    )
    return LoadPlan(
        server=context.target.load_address(cell.target, context.address),
        wire=_add_query(context.target.wire(cell.target, workload), step),
        workload=workload,
        options=options,
        folder=folder,
        files=step.files,
        step=step,
    )


def _add_query(wire: ProtocolOptions, step: Step) -> ProtocolOptions:
    if not step.query:
        return wire
    if "path" not in wire.keys:
        raise SpecError(f'{step.name}: "request-params" and "timeout" require a bulk API over HTTP. Remove them.')
    path = str(wire.keys["path"])
    return dataclasses.replace(wire, keys={**wire.keys, "path": f"{path}{'&' if '?' in path else '?'}{step.query}"})


def _step_arrivals(step: Step) -> Arrivals:
    """Return the arrivals of a step. Each client of Rally has its part of the rate, so the rate ramps up with them."""
    if step.rate is None:
        return Arrivals()
    if step.ramp_up_ns:
        zero = dataclasses.replace(step.rate, per_s=0.0)
        return Arrivals(shape="ramp", rate=zero, end_rate=step.rate, period_ns=step.ramp_up_ns)
    return Arrivals(shape="poisson" if step.is_poisson else "constant", rate=step.rate)


def _track_indices(track: Track) -> Iterator[str]:
    """Yield the indices that the track declares and writes to, and those that its files name, without duplicates."""
    names = dict.fromkeys(index.name for index in track.indices)
    names |= dict.fromkeys(name for name in track.streams if "*" not in name)
    for file in (file for step in track.steps for file in step.files):
        if file.has_action_lines:
            names |= dict.fromkeys(corpus.check_corpus(Path(file.path), has_action_lines=True).indices)
        else:
            names[file.index] = None
    yield from names


def read_track(options: TrackOptions) -> Track:
    """Return the track, read by a child process because its templates may loop. Finds downloaded files in the cache.

    Each cell reads it several times: it is rendered once while no file of the folder changes.
    """
    arguments = {
        "parameters": dict(options.parameters),
        "procedure": options.challenge,
        "test_mode": options.test_mode,
        "downloads": str(corpus_download.corpora_folder()),
        "tool_caches": _tool_caches(),
        "include_tasks": options.include_tasks,
        "exclude_tasks": options.exclude_tasks,
    }
    request = json.dumps({"folder": options.path, "arguments": arguments, "cpu_s": READING_CPU_S})
    return _render_track(options.path, request, tuple(_file_states(Path(options.path))))


def _tool_caches() -> list[str]:
    """Return the folders in which Rally and OpenSearch Benchmark keep corpora by default."""
    home = os.path.expanduser("~")  # noqa: PTH111 - raises nothing
    rally, osb = os.environ.get("RALLY_HOME", home), os.environ.get("BENCHMARK_HOME", home)
    folders = (f"{rally}/.rally", f"{osb}/.osb", f"{osb}/.benchmark")
    return [os.path.abspath(f"{folder}/benchmarks/data") for folder in folders]  # noqa: PTH100 - without links


def _file_states(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, time and size of each file of the track, and of the folder that neighbouring workloads share."""
    if not path.is_file() and not any((path / name).is_file() for name in reader.FILES):
        return
    for file in itertools.chain(files.find_track_files(path), path.parent.glob("common_operations/**/*")):
        with contextlib.suppress(OSError):
            status = file.lstat()
            yield str(file), status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=100)
def _render_track(folder: str, request: str, _states: tuple[tuple[str, int, int], ...]) -> Track:
    argv = system.build_module_argv("ingest_bench.documents.tracks.reader")
    env = {name: value for name, value in system.build_environment().items() if name in _CHILD_VARIABLES}
    try:
        response = json.loads(system.run(argv, stdin=request, timeout_s=_READING_LIMIT_S, env=env))
    except (RunFailed, ValueError) as error:
        reason = str(error).strip().splitlines()[-1][-300:]
        raise SpecError(f"{folder}: reading the track failed, usually because a template loops: {reason}") from None
    if "refused" in response:
        raise SpecError(response["refused"])
    return records.from_json(Track, response["track"])


def mark_body(operation: str, body: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """Return the body of a request, with the run's mark if it creates an object that can carry one; "" is no mark.

    The mark tells objects that a run creates on a server that is not ours from those of others.
    """
    meta = {"_meta": {"made_by": "ingest-bench", "run": mark}}
    marks: Mapping[str, dict[str, Any]] = {
        "create-component-template": meta,
        "create-composable-template": meta,
        "create-index": {"mappings": meta},
        "create-index-template": {"mappings": meta},
        "put-pipeline": {"description": f"made by ingest-bench, run {mark}"},
    }
    return catalog.merge_tables(dict(body), marks.get(operation, {}) if mark else {})
