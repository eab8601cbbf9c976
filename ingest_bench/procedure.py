"""What a run does with a server that is ready, in order: requests to it, and loads.

A workload is the procedure of one load into its indices; a track says its own steps. Both become the same few parts,
so that the runner knows one path only.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest_bench import catalog, records, targets, urls
from ingest_bench.documents import bulk, corpus, tracks
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.load import LoadPlan, reports
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import Arrivals, LoadOptions, TrackChoice, WorkerReport
from ingest_bench.model.target import Endpoint, Place
from ingest_bench.model.track import AdminRequest, Step, Track
from ingest_bench.model.workload import Workload
from ingest_bench.targets import Target
from ingest_bench.targets.http import Http

# How long a condition is waited for, such as the end of all merges. Rally waits for ever.
_UNTIL_LIMIT_S = 3600.0
_AGAIN_S = 0.5
# What still can be chosen when a track says how to send.
_BESIDE_A_TRACK = ("track", "seed", "processes", "gzip", "retries", "timeout_ns", "workload")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Requests to the server, one after the other."""

    name: str
    requests: tuple[AdminRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """A load."""

    name: str
    plan: LoadPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """The parts in their order, and the indices whose documents are counted at the end."""

    parts: tuple[Ask | Send, ...]
    indices: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    """Operations of a track that are not done."""
    notes: tuple[str, ...] = ()
    """What is done in another way than it is written."""
    indices_known: bool = True
    """False: the documents name indices that nobody has read yet."""


def of(
    cell: Cell, place: Place, out: Path, *, may_delete: bool, mark: str = "", target: Target | None = None
) -> Procedure:
    """What a run of this cell does; SpecError for what cannot work. Reads files, asks nobody.

    `may_delete`: whether a track may delete the indices that it declares, on our server or by the user's word.
    `mark` is written into the mapping of each index that is made, so that it can be told from everybody else's.
    `target` is the server where it is another one than the table's, such as one with more modules.
    """
    target = target or targets.named(cell.target.name)
    if cell.load.track is None:
        return _of_workload(cell, target, place, out, mark)
    return _of_track(cell, target, cell.load.track, place, out, may_delete=may_delete, mark=mark)


def check(cell: Cell, *, may_delete: bool = True) -> Procedure:
    """The procedure, when everything that it sends can be read to its end; SpecError otherwise. Starts nothing."""
    if cell.load.track is not None:
        if cell.faults:
            raise SpecError("a track and faults: their moments are counted in a measurement of known length; take one")
        tracks.check(_read(cell.load.track))
    elif cell.load.warm_up_ns == "auto":
        _check_warm_up(cell)
    return of(cell, Place(endpoint=Endpoint("server", 0)), Path(), may_delete=may_delete)


def _check_warm_up(cell: Cell) -> None:
    """SpecError where a warm-up cannot be found from the data."""
    shape = cell.load.arrivals.shape
    if cell.faults:
        raise SpecError('warm_up "auto" and faults: their moments are counted from a known start; give it as "5s"')
    if cell.load.measure_documents is not None:
        raise SpecError('warm_up "auto" and a number of documents: these are counted from a known start; take "5s"')
    if shape not in ("closed", "constant", "poisson"):
        raise SpecError(f'warm_up "auto": "{shape}" arrivals are never steady, so none can be found; give it as "5s"')


def longest_s(procedure: Procedure) -> int:
    """A time that it cannot take longer than, unless something is wrong."""
    sends = [part.plan for part in procedure.parts if isinstance(part, Send)]
    loads_ns = sum(plan.options.longest_warm_up_ns + plan.measure_ns for plan in sends)
    return loads_ns // 10**9 + int(_UNTIL_LIMIT_S) * (len(procedure.parts) + 1)


def carry_out(
    procedure: Procedure,
    http: Http,
    send: Callable[[LoadPlan], WorkerReport],
    stage: Callable[[str], AbstractContextManager[None]],
    out: Path,
) -> WorkerReport:
    """The report of all its loads together, also left in `out`; each part is a stage of the run."""
    told = []
    for part in procedure.parts:
        with stage(part.name):
            if isinstance(part, Send):
                told.append(send(part.plan))
            else:
                for request in part.requests:
                    ask(http, request)
    report = reports.joined(told)
    reports.write(report, out)
    return report


def ask(http: Http, request: AdminRequest, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """One request, again until what it waits for is there; RunFailed when the server refuses or it takes too long."""
    body = None if request.body is None else json.dumps(request.body).encode()
    what = f"{request.method} {http.origin}{request.path}"
    limit = time.monotonic() + _UNTIL_LIMIT_S
    while True:
        answer = http.request(request.method, request.path, body, timeout_s=request.timeout_ns / 1e9)
        if answer.status not in request.accept:
            said = answer.body[:1000].decode(errors="replace")
            raise RunFailed(f"server: {what} was answered {answer.status}: {said}")
        if not request.until_path or _at(answer.body, request.until_path) == request.until_value:
            return
        if time.monotonic() > limit:
            raise RunFailed(f"server: {what}: {request.until_path} was not {request.until_value!r} within an hour")
        sleep(_AGAIN_S)


def _at(body: bytes, path: str) -> Any:
    """What stands at a dotted path of a JSON answer; None where there is nothing."""
    try:
        found: Any = json.loads(body)
        for key in path.split("."):
            found = found[key]
    except (ValueError, KeyError, TypeError):
        return None
    return found


def marked(mapping: Mapping[str, Any], mark: str) -> Mapping[str, Any]:
    """The body of an index's creation, with our mark in it."""
    if not mark:
        return mapping
    return catalog.merged(dict(mapping), {"mappings": {"_meta": {"made_by": "ingest-bench", "run": mark}}})


def _of_workload(cell: Cell, target: Target, place: Place, out: Path, mark: str) -> Procedure:
    options = cell.load
    workload = catalog.workload(options.workload)
    indices = bulk.index_names(workload, options.action)
    notes: tuple[str, ...] = ()
    indices_known = True
    if options.documents is not None:
        found = corpus.check(Path(options.documents))
        if found.bulk:
            indices = (*found.indices, *((workload.index,) if found.unnamed else ()))
        indices_known = not found.bulk or found.documents is not None
        if not indices_known:
            notes = (f"{found.path.name}: too large to be read before the start; indices named later are not counted",)
    body = target.index_body(cell.target, marked(workload.mapping, mark))
    create = tuple(AdminRequest(method="PUT", path=urls.path(name), body=body) for name in indices)
    _check_queries(cell, workload)
    plan = LoadPlan(
        **_way(place),
        bulk_path=target.bulk_path(cell.target, workload),
        search_path=urls.path(indices, "_search"),
        workload=workload,
        options=options,
        out=out,
    )
    return Procedure(
        parts=(Ask(name="index", requests=create), Send(name="load", plan=plan)),
        indices=indices,
        notes=notes,
        indices_known=indices_known,
    )


def _way(place: Place) -> dict[str, Any]:
    """How a load gets to its server."""
    return {
        "address": place.endpoint,
        "host_header": place.host_header,
        "tls": place.tls,
        "credentials": place.credentials,
    }


def _check_queries(cell: Cell, workload: Workload) -> None:
    options, arrivals = cell.load, cell.load.query_arrivals
    # As a level, nobody is the baseline of those who ask at this rate.
    is_level = any(key.rpartition(".")[2] == "query_users" for key in cell.levels)
    if options.query_users and not workload.queries:
        raise SpecError(f"load.query_users: workload {workload.name} has no queries; give it some as [[queries]]")
    if not options.query_users and arrivals.is_open and not is_level:
        raise SpecError("load.query_arrivals: nobody sends queries; say how many users do, such as query_users = 2")
    if arrivals.shape == "recorded" or arrivals.unit != "requests":
        raise SpecError('load.query_arrivals: queries have a rate of requests, such as "10/s" or "poisson 10/s"')


def _of_track(
    cell: Cell, target: Target, choice: TrackChoice, place: Place, out: Path, *, may_delete: bool, mark: str
) -> Procedure:
    _refuse_what_the_track_says(cell.load)
    found = _read(choice)
    if not may_delete and any(step.operation == "delete-index" for step in found.steps):
        raise SpecError(f"{choice.path}: the track deletes indices, on a server that is not ours; say --allow-delete")
    parts: list[Ask | Send] = []
    for number, step in enumerate(found.steps, 1):
        if step.operation == "bulk":
            folder = out / f"{number:02d}-{re.sub(r'[^A-Za-z0-9._-]+', '_', step.name)[:100]}"
            parts.append(Send(name=step.name, plan=_sending(cell, target, found, step, place, folder)))
        else:
            requests = tuple(_adapted(cell, target, step, request, mark) for request in step.requests)
            parts.append(Ask(name=step.name, requests=requests))
    return Procedure(
        parts=tuple(parts),
        indices=tuple(_indices(found)),
        skipped=found.skipped,
        notes=found.notes,
        indices_known=all(corpus.check(path, bulk=True).documents is not None for path in _ready_bulks(found)),
    )


def _read(choice: TrackChoice) -> Track:
    return tracks.read(
        Path(choice.path), parameters=choice.parameters, procedure=choice.challenge, test_mode=choice.test_mode
    )


def _refuse_what_the_track_says(options: LoadOptions) -> None:
    usual = LoadOptions()
    for field in dataclasses.fields(LoadOptions):
        if field.name not in _BESIDE_A_TRACK and getattr(options, field.name) != getattr(usual, field.name):
            raise SpecError(f"load.{records.key_of(field.name)}: the track says it; take it out, or take no track")


def _sending(cell: Cell, target: Target, found: Track, step: Step, place: Place, out: Path) -> LoadPlan:
    named = next((file.index for file in step.files if file.index), found.indices[0].name if found.indices else "_all")
    # A track does not say how large its documents are: nothing here asks for their mean.
    workload = Workload(
        name=found.name,
        description=found.description,
        source=str(cell.load.track),
        index=named,
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
        arrivals=Arrivals() if step.rate is None else Arrivals(shape="constant", rate=step.rate),
        warm_up_ns=step.warm_up_ns,
        measure_ns=step.time_period_ns,
    )
    path = target.bulk_path(cell.target, workload)
    return LoadPlan(**_way(place), bulk_path=path, workload=workload, options=options, out=out, step=step)


def _adapted(cell: Cell, target: Target, step: Step, request: AdminRequest, mark: str) -> AdminRequest:
    """The request as this server takes it; only the creation of an index has something to adapt."""
    if step.operation != "create-index":
        return request
    return dataclasses.replace(request, body=target.index_body(cell.target, marked(request.body or {}, mark)))


def _ready_bulks(found: Track) -> set[Path]:
    """The files whose own lines name their indices."""
    return {Path(file.path) for step in found.steps for file in step.files if file.bulk}


def _indices(found: Track) -> Iterator[str]:
    """The indices that the track declares, and those that its files name beside them, each once."""
    names = dict.fromkeys(index.name for index in found.indices)
    for file in (file for step in found.steps for file in step.files):
        named = corpus.check(Path(file.path), bulk=True).indices if file.bulk else (file.index,)
        names |= dict.fromkeys(named)
    yield from names
