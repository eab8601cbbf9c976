"""A track's steps as the parts of a procedure, and its files where they are or where they come from."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ingest_bench import system
from ingest_bench.documents import corpus, tracks
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.inputs import records, track_files
from ingest_bench.lab.steps import downloads, marks
from ingest_bench.lab.steps.parts import Ask, Procedure, Send, Together, place_of
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import Arrivals, LoadOptions, TrackChoice, Wire
from ingest_bench.model.target import Place
from ingest_bench.model.track import AdminRequest, Step, Track
from ingest_bench.model.workload import Workload
from ingest_bench.targets import Target

# The published track that takes most (elastic/security) takes 1 s. On a busy machine the clock's time is longer.
READING_CPU_S = 10
_READING_LIMIT_S = 120.0
# Variables that Python needs to find its modules and its encoding. The child that renders a track gets no others:
# passwords, keys and tokens are in the environment, and templates are code of the track's author.
_CHILD_VARIABLES = frozenset(
    (
        *("PATH", "HOME", "PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE", "LD_LIBRARY_PATH"),
        *("LANG", "LC_ALL", "LC_CTYPE"),
    )
)
# What still can be chosen when a track says how to send.
_BESIDE_A_TRACK = ("track", "seed", "processes", "gzip", "retries", "on_error", "timeout_ns", "workload")


def of(
    cell: Cell, target: Target, choice: TrackChoice, place: Place, out: Path, *, may_delete: bool, mark: str
) -> Procedure:
    """What a run of a track does: each step a part, those of a parallel element together."""
    _refuse_what_the_track_says(cell.load)
    found = read(choice)
    deletions = [step.name for step in found.steps for request in step.requests if request.method == "DELETE"]
    if deletions and not may_delete:
        raise SpecError(
            f"{choice.path}: the track deletes what it declares ({', '.join(dict.fromkeys(deletions))}), on a server "
            "that is not ours; say --allow-delete"
        )
    if not cell.target.runs_already:
        _refuse_processors(found, cell.target.name)
    bulks = [corpus.check(path, bulk=True) for path in _ready_bulks(found)]
    parts: list[Ask | Send | Together] = []
    for group, steps in itertools.groupby(enumerate(found.steps, 1), key=lambda step: step[1].group or -step[0]):
        made = [_part(cell, target, found, step, place, out / _folder(number, step), mark) for number, step in steps]
        ends_all = tuple(step.completes_group for step in found.steps if step.group == group)
        sends = tuple(part for part in made if isinstance(part, Send))
        if len(sends) > 1:
            parts.append(Together(name=" + ".join(step.name for step in sends), sends=sends, ends_all=ends_all))
        else:
            parts += made
    return Procedure(
        parts=tuple(parts),
        indices=tuple(_indices(found)),
        skipped=found.skipped,
        notes=found.notes,
        indices_known=all(step.documents is not None for step in bulks),
        pipelines=(
            *(step.action.pipeline for step in found.steps if step.action.pipeline),
            *(name for step in bulks for name in step.pipelines),
        ),
    )


def _refuse_processors(found: Track, server: str) -> None:
    """SpecError for a pipeline that works on documents: the archives of our servers have no module with processors."""
    for step in found.steps:
        for request in step.requests:
            if step.operation == "put-pipeline" and (request.body or {}).get("processors") and server != "sink":
                raise SpecError(
                    f"{found.name}: {step.name}: the {server} that is started here has no processors for an ingest "
                    "pipeline, its archive leaves them out; measure a server of yours: --url URL"
                )


def _part(cell: Cell, target: Target, found: Track, step: Step, place: Place, folder: Path, mark: str) -> Ask | Send:
    if step.operation == "bulk":
        return Send(name=step.name, plan=_sending(cell, target, found, step, place, folder))
    requests = tuple(_adapted(cell, target, step, request, mark) for request in step.requests)
    return Ask(name=step.name, requests=requests)


def _folder(number: int, step: Step) -> str:
    """The folder of a step's own samples."""
    return f"{number:02d}-{re.sub(r'[^A-Za-z0-9._-]+', '_', step.name)[:100]}"


def read(choice: TrackChoice) -> Track:
    """The track, read by a process of its own: its templates may loop. Downloaded files are looked for in the cache.

    Each cell of an experiment asks for it several times: while no file of the folder changes it is read once.
    """
    wanted = {
        "folder": choice.path,
        "parameters": dict(choice.parameters),
        "procedure": choice.challenge,
        "test_mode": choice.test_mode,
        "downloads": str(downloads.folder()),
        "tool_caches": _tool_caches(),
        "include_tasks": choice.include_tasks,
        "exclude_tasks": choice.exclude_tasks,
        "cpu_s": READING_CPU_S,
    }
    return _read(choice.path, json.dumps(wanted), tuple(_state(Path(choice.path))))


def _tool_caches() -> list[str]:
    """Return the folders in which Rally and OpenSearch Benchmark keep corpora by default."""
    home = os.path.expanduser("~")  # noqa: PTH111 - raises nothing
    rally, osb = os.environ.get("RALLY_HOME", home), os.environ.get("BENCHMARK_HOME", home)
    folders = (f"{rally}/.rally", f"{osb}/.osb", f"{osb}/.benchmark")
    return [os.path.abspath(f"{folder}/benchmarks/data") for folder in folders]  # noqa: PTH100 - without links


def _state(path: Path) -> Iterator[tuple[str, int, int]]:
    """What changes when a file of the track does, or one of the folder that the workloads beside it share."""
    if not path.is_file() and not any((path / name).is_file() for name in tracks.FILES):
        return
    for file in itertools.chain(track_files.files_of(path), path.parent.glob("common_operations/**/*")):
        with contextlib.suppress(OSError):
            status = file.lstat()
            yield str(file), status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=100)
def _read(folder: str, wanted: str, _state: tuple[tuple[str, int, int], ...]) -> Track:
    argv = system.python("ingest_bench.documents.tracks")
    env = {name: value for name, value in system.environment().items() if name in _CHILD_VARIABLES}
    try:
        answer = json.loads(system.run(argv, stdin=wanted, timeout_s=_READING_LIMIT_S, env=env))
    except (RunFailed, ValueError) as error:
        last = str(error).strip().splitlines()[-1][-300:]
        raise SpecError(
            f"{folder}: reading it did not come to an end; a template of it that loops is the usual cause: {last}"
        ) from None
    if "refused" in answer:
        raise SpecError(answer["refused"])
    return records.from_json(Track, answer["track"])


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
        on_error="continue" if step.ignores_errors else cell.load.on_error,
        arrivals=_arrivals(step),
        ramp_up_ns=step.ramp_up_ns,
        warm_up_ns=step.warm_up_ns,
        measure_ns=step.time_period_ns,
        timeout_ns=step.timeout_ns or cell.load.timeout_ns,
    )
    return LoadPlan(
        **place_of(place),
        wire=_wire(target.wire(cell.target, workload), step),
        workload=workload,
        options=options,
        out=out,
        step=step,
    )


def _wire(wire: Wire, step: Step) -> Wire:
    """Return the wire whose requests have the query string of the step."""
    if not step.query:
        return wire
    if "path" not in wire.keys:
        raise SpecError(f'{step.name}: "request-params" and "timeout" are of a bulk API over HTTP; take them out')
    path = str(wire.keys["path"])
    return dataclasses.replace(wire, keys={**wire.keys, "path": f"{path}{'&' if '?' in path else '?'}{step.query}"})


def _arrivals(step: Step) -> Arrivals:
    """When a step's requests are due. Rally's clients each have their part of the rate: it grows as they start."""
    if step.rate is None:
        return Arrivals()
    if step.ramp_up_ns:
        none = dataclasses.replace(step.rate, per_s=0.0)
        return Arrivals(shape="ramp", rate=none, to=step.rate, period_ns=step.ramp_up_ns)
    return Arrivals(shape="poisson" if step.is_poisson else "constant", rate=step.rate)


def _adapted(cell: Cell, target: Target, step: Step, request: AdminRequest, mark: str) -> AdminRequest:
    """The request as this server takes it, with our mark in what it makes."""
    if step.operation == "create-index":
        body: dict[str, Any] | None = dict(marks.marked(request.body or {}, mark))
    else:
        body = marks.marked_body(step.operation, request.body, mark)
    return target.track_request(cell.target, step.operation, dataclasses.replace(request, body=body))


def _ready_bulks(found: Track) -> set[Path]:
    """The files whose own lines name their indices."""
    return {Path(file.path) for step in found.steps for file in step.files if file.bulk}


def _indices(found: Track) -> Iterator[str]:
    """What the track declares and writes to, and what its files name beside that, each once."""
    names = dict.fromkeys(index.name for index in found.indices)
    names |= dict.fromkeys(name for name in found.streams if "*" not in name)
    for file in (file for step in found.steps for file in step.files):
        named = corpus.check(Path(file.path), bulk=True).indices if file.bulk else (file.index,)
        names |= dict.fromkeys(named)
    yield from names
