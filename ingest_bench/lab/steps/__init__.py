"""What a run does with a server that is ready, in order: requests to it, and loads.

A workload is the procedure of one load into its indices; a track says its own steps. Both become the same few parts,
so that the runner knows one path only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from ingest_bench import targets
from ingest_bench.documents import corpus, tracks
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.lab.steps import marks, track_steps
from ingest_bench.lab.steps.parts import Ask, Procedure, Send, Together, place_of, sends
from ingest_bench.load import reports
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import LoadOptions, WorkerReport
from ingest_bench.model.target import Endpoint, Place
from ingest_bench.model.track import AdminRequest
from ingest_bench.model.workload import Workload
from ingest_bench.targets import Target
from ingest_bench.targets.requests import UNTIL_LIMIT_S


def of(
    cell: Cell, place: Place, out: Path, *, may_delete: bool, mark: str = "", target: Target | None = None
) -> Procedure:
    """What a run of this cell does; SpecError for what cannot work. Reads files, asks nobody.

    `may_delete`: whether a track may delete the indices that it declares, on our server or by the user's word.
    `mark` is written into the mapping of each index that is made, so that it can be told from everybody else's.
    `target` is the server where it is another one than the table's, such as one with more modules.
    """
    target = target or targets.of(cell.target)
    if cell.load.track is None:
        return _of_workload(cell, target, place, out, mark)
    return track_steps.of(cell, target, cell.load.track, place, out, may_delete=may_delete, mark=mark)


def check(cell: Cell, *, may_delete: bool = True) -> Procedure:
    """The procedure, when everything that it sends can be read to its end; SpecError otherwise. Starts nothing."""
    if cell.load.track is not None:
        if cell.faults:
            raise SpecError("a track and faults: their moments are counted in a measurement of known length; take one")
        tracks.check(track_steps.read(cell.load.track))
    else:
        _check_users(cell.load)
        if cell.load.warm_up_ns == "auto":
            _check_warm_up(cell)
    _check_files(cell)
    found = of(cell, Place(endpoint=Endpoint("server", 0)), Path(), may_delete=may_delete)
    for part in found.parts:
        for one in sends(part):
            one.plan.checked()
    return found


def _check_files(cell: Cell) -> None:
    """SpecError where what was asked for needs a server that keeps its documents in files."""
    if not cell.target.earlier_documents:
        return
    if targets.of(cell.target).flush is None:
        raise SpecError(f"target.earlier_documents: {cell.target.name} cannot be told to write them to files")
    if cell.load.track is not None:
        raise SpecError("target.earlier_documents: a track says itself what is there at its start; take one of them")


def _check_users(options: LoadOptions) -> None:
    """SpecError where users do not start or rest as it is asked for."""
    for key, given_ns in (("ramp_up", options.ramp_up_ns), ("think_time", options.think_time_ns)):
        if given_ns and options.arrivals.is_open:
            instead = ': a rate that grows is arrivals = "ramp 100/s..2000/s 30s"' if key == "ramp_up" else ""
            raise SpecError(f"load.{key}: in an open loop a clock says when requests are due, not the users{instead}")
    if options.ramp_up_ns and not isinstance(options.warm_up_ns, int):
        raise SpecError('load.ramp_up: the warm-up must last until all users are there; give warm_up as "30s"')
    if options.ramp_up_ns > options.longest_warm_up_ns:
        raise SpecError(
            f"load.ramp_up: {options.ramp_up_ns / 1e9:g} s is longer than the warm-up, "
            f"{options.longest_warm_up_ns / 1e9:g} s; measured is with all users, so make warm_up at least as long"
        )


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
    plans = [one.plan for part in procedure.parts for one in sends(part)]
    loads_ns = sum(plan.options.longest_warm_up_ns + plan.measure_ns for plan in plans)
    return loads_ns // 10**9 + int(UNTIL_LIMIT_S) * (len(procedure.parts) + 1)


def carry_out(
    procedure: Procedure,
    ask: Callable[[AdminRequest], None],
    send: Callable[[Sequence[LoadPlan], Sequence[bool]], Sequence[WorkerReport]],
    stage: Callable[[str], AbstractContextManager[None]],
    out: Path,
) -> WorkerReport:
    """The report of all its loads together, also left in `out`; each part is a stage of the run.

    `ask` carries out a request to the server. `send` sends loads at the same time, and is told for each whether it ends
    the others.
    """
    told: list[WorkerReport] = []
    for part in procedure.parts:
        with stage(part.name):
            if isinstance(part, Ask):
                for request in part.requests:
                    ask(request)
            else:
                ends_all = part.ends_all if isinstance(part, Together) else (False,)
                told += send([one.plan for one in sends(part)], ends_all)
    report = reports.joined(told)
    reports.write(report, out)
    return report


def _of_workload(cell: Cell, target: Target, place: Place, out: Path, mark: str) -> Procedure:
    options = cell.load
    workload = catalog.workload(options.workload)
    indices = options.action.index_names(workload.index)
    notes: tuple[str, ...] = ()
    indices_known = True
    pipelines = {options.action.pipeline} if options.action.pipeline else set()
    if options.documents is not None:
        found = corpus.check(Path(options.documents))
        if found.bulk:
            indices = (*found.indices, *((workload.index,) if found.unnamed else ()))
            pipelines |= set(found.pipelines)
        indices_known = not found.bulk or found.documents is not None
        if not indices_known:
            notes = (f"{found.path.name}: too large to be read before the start; indices named later are not counted",)
    prepared = target.prepare(cell.target, indices, marks.marked(workload.mapping, mark))
    _check_queries(cell, workload, prepared.search_path)
    plan = LoadPlan(
        **place_of(place),
        wire=target.wire(cell.target, workload),
        search_path=prepared.search_path,
        workload=workload,
        options=options,
        out=out,
    )
    requests = prepared.requests_again if cell.target.earlier_documents else prepared.requests
    asked = (Ask(name="index", requests=requests),) if requests else ()
    return Procedure(
        parts=(*asked, Send(name="load", plan=plan)),
        indices=prepared.indices,
        notes=notes,
        indices_known=indices_known,
        pipelines=tuple(pipelines),
    )


def _check_queries(cell: Cell, workload: Workload, search_path: str) -> None:
    options, arrivals = cell.load, cell.load.query_arrivals
    # As a level, nobody is the baseline of those who ask at this rate.
    is_level = any(key.rpartition(".")[2] == "query_users" for key in cell.levels)
    if options.query_users and not workload.queries:
        raise SpecError(f"load.query_users: workload {workload.name} has no queries; give it some as [[queries]]")
    if options.query_users and not search_path:
        raise SpecError(f"load.query_users: {cell.target.name} answers no queries; take it out")
    if not options.query_users and arrivals.is_open and not is_level:
        raise SpecError("load.query_arrivals: nobody sends queries; say how many users do, such as query_users = 2")
    if arrivals.shape == "recorded" or arrivals.unit != "requests":
        raise SpecError('load.query_arrivals: queries have a rate of requests, such as "10/s" or "poisson 10/s"')
