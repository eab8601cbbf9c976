"""Rally tracks and OpenSearch Benchmark workloads, read as they are: `read(folder)` gives the steps of a procedure.

    template.py   the files' text: collected, rendered in a sandbox        declared.py  indices, data streams, templates
    filters.py    what templates can use             places.py    where a line of them comes from
    corpora.py    which files a bulk sends, and where they come from       sending.py   a task that sends bulks
    keys.py       which of their keys are used, harmless or named
    admin.py      what the other operations ask of the server              schedule.py  tasks to steps
    task_filter.py  which tasks are done

Nothing of a track is executed: code beside it (track.py, workload.py) is left alone, and what needs it is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ingest_bench.documents import corpus
from ingest_bench.documents.tracks.corpora import Corpora
from ingest_bench.documents.tracks.declared import declared, listed
from ingest_bench.documents.tracks.schedule import schedule
from ingest_bench.documents.tracks.task_filter import TaskFilter, task_filter
from ingest_bench.documents.tracks.template import Templates, explained, without_marks
from ingest_bench.errors import SpecError
from ingest_bench.inputs import track_files
from ingest_bench.inputs.records import nearest
from ingest_bench.model.track import Track, TrackFile
from ingest_bench.units import count_of, format_bytes, quoted

FILES = ("track.json", "workload.json")
PROCEDURES = ("challenges", "test_procedures")
# Parts of a track that are not used.
_UNUSED = ("dependencies",)


def read(
    path: Path,
    *,
    parameters: Mapping[str, Any] | None = None,
    procedure: str | None = None,
    test_mode: bool = False,
    downloads: Path | None = None,
    tool_caches: Sequence[Path] = (),
    include_tasks: Sequence[str] = (),
    exclude_tasks: Sequence[str] = (),
) -> Track:
    """The steps of one procedure of a track; SpecError names file, parameter or key, and the remedy.

    `path` is its folder, or a .json file of any name.
    The files of its corpora need not be there: they are looked for beside the track, in `downloads`, and where Rally
    and OpenSearch Benchmark keep theirs.
    """
    try:
        file = _file_of(path)
        templates = Templates(file.parent, parameters or {})
        table = _table(templates, file)
        track_parameters = declared(table, templates, str(file))
        corpora = Corpora(
            table=listed(table, "corpora", str(file)),
            declared=track_parameters,
            templates=templates,
            downloads=downloads,
            tool_caches=tool_caches,
            test_mode=test_mode,
        )
        name, chosen = track_files.name_of(path.resolve()), _procedure(table, procedure, str(file))
        track = _track(name, table, chosen, corpora, task_filter(include_tasks, exclude_tasks))
        _refuse_unused(parameters or {}, templates, str(file))
    except SpecError as error:
        raise explained(error, path) from None
    return track


def missing(track: Track) -> tuple[TrackFile, ...]:
    """The files that the track sends and that are not there, each once."""
    files = {file.path: file for step in track.steps for file in step.files}
    return tuple(file for path, file in files.items() if not Path(path).is_file())


def check(track: Track) -> None:
    """Nothing when every file of the track can be sent; SpecError names file and line."""
    if absent := missing(track):
        raise SpecError(_absent(track, absent))
    seen = {(file.path, file.bulk, file.origin.documents) for step in track.steps for file in step.files}
    for path, bulk, documents in sorted(seen, key=str):
        found = corpus.check(Path(path), bulk=bulk).documents
        if documents is not None and found is not None and found != documents:
            raise SpecError(
                f'{path}: has {count_of(found, "document")} where the track says {documents:,} ("document-count"); get '
                "the whole file, or correct the track"
            )


def _file_of(path: Path) -> Path:
    """Return the file that a track begins with."""
    if path.is_file():
        if path.suffix != ".json":
            raise SpecError(f"{path}: is no track: a folder or a .json file is")
        return path
    file = next((path / name for name in FILES if (path / name).is_file()), None)
    if file is None:
        raise SpecError(f"{path}: is no track: neither {' nor '.join(FILES)} is in it")
    return file


def _table(templates: Templates, file: Path) -> dict[str, Any]:
    table = templates.json(file.name)
    if not isinstance(table, dict) or table.get("version", 2) != 2:
        raise SpecError(f"{file}: only version 2 of the format can be read")
    return table


def _track(
    name: str, table: Mapping[str, Any], procedure: Mapping[str, Any], corpora: Corpora, tasks: TaskFilter
) -> Track:
    done = schedule(table, procedure, corpora, tasks)
    unused = (f'"{key}" of the track is not used' for key in _UNUSED if key in table)
    return Track(
        name=name,
        description=without_marks(str(table.get("description", ""))),
        procedure=without_marks(str(procedure.get("name", "default"))),
        indices=corpora.declared.indices,
        streams=corpora.declared.streams,
        steps=tuple(done.steps),
        skipped=tuple(map(without_marks, done.skipped)),
        notes=tuple(map(without_marks, dict.fromkeys((*unused, *done.notes, *corpora.notes)))),
    )


def _absent(track: Track, absent: Sequence[TrackFile]) -> str:
    """What is to be done about files that are not there."""
    names = ", ".join(Path(file.path).name for file in absent)
    unknown = [Path(file.path).name for file in absent if not file.origin.url]
    if unknown:
        return f"{track.name}: {', '.join(unknown)} of its corpora is not there; put it into the folder of the track"
    sizes = [file.origin.packed_bytes for file in absent]
    known = sum(size for size in sizes if size is not None)
    size = (
        "of unknown size"
        if None in sizes and not known
        else f"{format_bytes(known)}{' or more' if None in sizes else ''}"
    )
    return (
        f"{track.name}: {names} of its corpora is not there; say --download to fetch it into the cache ({size}, from "
        f"{absent[0].origin.url.rpartition('/')[0]}/), or put it into the folder of the track"
    )


def _procedure(table: Mapping[str, Any], wanted: str | None, where: str) -> Mapping[str, Any]:
    procedures: Sequence[Mapping[str, Any]] = [one for key in PROCEDURES for one in listed(table, key, where)]
    procedures = [*procedures, *_single(table, where)]
    if not procedures and "schedule" in table:
        procedures = [{"name": "default", "schedule": table["schedule"]}]
    if not procedures:
        raise SpecError(f"{where}: has no schedule, under none of {', '.join(PROCEDURES)}")
    if wanted is None:
        return next((one for one in procedures if one.get("default")), procedures[0])
    names = [str(one.get("name")) for one in procedures]
    if wanted not in names:
        raise SpecError(f'{where}: there is no procedure "{wanted}"; {nearest(wanted, names)}')
    return procedures[names.index(wanted)]


def _single(table: Mapping[str, Any], where: str) -> Iterator[Mapping[str, Any]]:
    """A procedure that stands alone."""
    for key in ("challenge", "test_procedure"):
        if key in table:
            if not isinstance(table[key], dict):
                raise SpecError(f'{where}: "{key}" is {quoted(table[key])}, not an object')
            yield table[key]


def _refuse_unused(parameters: Mapping[str, Any], templates: Templates, where: str) -> None:
    for name in parameters:
        if name not in templates.used:
            raise SpecError(f'{where}: the track has no parameter "{name}"; {nearest(name, templates.used)}')
