"""Read a track: `read_track` returns the steps of one challenge (test procedure).

    templates.py  render the files in a sandbox      declarations.py  indices, templates, and requests other than bulks
    corpora.py    files that a bulk task sends       schedule.py      tasks to steps

As a program (`python -m ingest_bench.documents.tracks.reader`) it reads a track within limits of time and memory: the
templates of a track are untrusted programs. Their sandbox gives them access to nothing, but they may loop or grow
forever, and no limit inside one process stops that. The request comes as JSON on stdin, the response is JSON on stdout.
Code of a track (track.py, workload.py) is never executed; tasks that need it are skipped.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ingest_bench.documents.corpus import check_corpus
from ingest_bench.documents.tracks.corpora import Corpora
from ingest_bench.documents.tracks.declarations import object_list, parse_declarations
from ingest_bench.documents.tracks.schedule import TaskFilter, build_schedule
from ingest_bench.documents.tracks.templates import Templates, explain_missing, without_marks
from ingest_bench.errors import SpecError
from ingest_bench.inputs import files
from ingest_bench.inputs.names import check_name
from ingest_bench.inputs.records import to_json
from ingest_bench.model.load import Track, TrackFile, TrackIndex
from ingest_bench.units import format_bytes, format_count, quote_value

FILES = ("track.json", "workload.json")
_PROCEDURES = ("challenges", "test_procedures")
# Of all published tracks elastic/security takes most: 26 MB more than this program.
_MEMORY_BYTES = 1024**3


def read_track(
    path: Path,
    *,
    parameters: Mapping[str, Any] | None = None,
    procedure: str | None = None,
    test_mode: bool = False,
    downloads: str | Path | None = None,
    tool_caches: Sequence[str | Path] = (),
    include_tasks: Sequence[str] = (),
    exclude_tasks: Sequence[str] = (),
) -> Track:
    """Return the steps of one procedure of a track; SpecError names file, parameter or key, and the remedy.

    *path* is its folder, or a .json file of any name. Files of its corpora may be missing. They are searched in the
    folder of the track, in *downloads*, and in the caches of Rally and OpenSearch Benchmark.
    """
    parameters = parameters or {}
    try:
        file = _main_file(path)
        templates = Templates(file.parent, parameters)
        table = templates.render_json(file.name)
        if not isinstance(table, dict) or table.get("version", 2) != 2:
            raise SpecError(f"{file}: only version 2 of the format is supported")  # noqa: TRY301 - explained below
        corpora = Corpora(
            table=object_list(table, "corpora", str(file)),
            declarations=parse_declarations(table, templates, str(file)),
            templates=templates,
            downloads=None if downloads is None else Path(downloads),
            tool_caches=tuple(map(Path, tool_caches)),
            test_mode=test_mode,
        )
        chosen = _choose_procedure(table, procedure, str(file))
        schedule = build_schedule(table, chosen, corpora, TaskFilter(include_tasks, exclude_tasks))
        for name in parameters:
            check_name(name, templates.used_parameters, f'{file}: the track has no parameter "{name}"')
    except SpecError as error:
        raise explain_missing(error, path) from None
    dependencies = ['"dependencies" of the track is not used'] if "dependencies" in table else []
    return Track(
        name=files.track_name(path.resolve()),
        description=without_marks(str(table.get("description", ""))),
        challenge=without_marks(str(chosen.get("name", "default"))),
        indices=tuple(TrackIndex(name=name, body=body) for name, body in corpora.declarations.indices.items()),
        streams=corpora.declarations.streams,
        steps=tuple(schedule.steps),
        skipped=tuple(map(without_marks, schedule.skipped)),
        notes=tuple(map(without_marks, dict.fromkeys((*dependencies, *schedule.notes, *corpora.notes)))),
    )


def missing_files(track: Track) -> tuple[TrackFile, ...]:
    """Return the files that the track sends and that are missing, each once."""
    files = {file.path: file for step in track.steps for file in step.files}
    return tuple(file for path, file in files.items() if not Path(path).is_file())


def check_files(track: Track) -> None:
    """Check that every file of the track can be sent; SpecError names file and line."""
    if missing := missing_files(track):
        raise SpecError(_describe_missing(track, missing))
    files = {(file.path, file.has_action_lines, file.origin.documents) for step in track.steps for file in step.files}
    for path, has_action_lines, expected in sorted(files, key=str):
        documents = check_corpus(Path(path), has_action_lines=has_action_lines).documents
        if expected is not None and documents is not None and documents != expected:
            raise SpecError(
                f"{path}: has {format_count(documents, 'document')} where the track says {expected:,} "
                '("document-count"). Get the complete file, or correct the track.'
            )


def _main_file(path: Path) -> Path:
    """Return the file that a track begins with."""
    if not path.exists():
        raise SpecError(f"{path}: does not exist. Give the folder of a track, or a .json file.")
    if path.is_file():
        if path.suffix != ".json":
            raise SpecError(f"{path}: not a track. Give a folder or a .json file.")
        return path
    file = next((path / name for name in FILES if (path / name).is_file()), None)
    if file is None:
        raise SpecError(f"{path}: not a track: it contains neither {' nor '.join(FILES)}")
    return file


def _describe_missing(track: Track, missing: Sequence[TrackFile]) -> str:
    """Return the error message for missing files."""
    without_url = [Path(file.path).name for file in missing if not file.origin.url]
    if without_url:
        return f"{track.name}: missing corpus files: {', '.join(without_url)}. Put them into the folder of the track."
    names = ", ".join(Path(file.path).name for file in missing)
    sizes = [file.origin.compressed_bytes for file in missing]
    known_bytes = sum(size for size in sizes if size is not None)
    size = f"{format_bytes(known_bytes)}{' or more' if None in sizes else ''}"
    if None in sizes and not known_bytes:
        size = "unknown size"
    return (
        f"{track.name}: missing corpus files: {names}. Use --download to fetch them into the cache ({size}, from "
        f"{missing[0].origin.url.rpartition('/')[0]}/), or put them into the folder of the track."
    )


def _choose_procedure(table: Mapping[str, Any], name: str | None, where: str) -> Mapping[str, Any]:
    procedures = [procedure for key in _PROCEDURES for procedure in object_list(table, key, where)]
    for key in ("challenge", "test_procedure"):
        if key in table:
            if not isinstance(table[key], dict):
                raise SpecError(f'{where}: "{key}" is {quote_value(table[key])}, not an object')
            procedures.append(table[key])
    if not procedures and "schedule" in table:
        procedures = [{"name": "default", "schedule": table["schedule"]}]
    if not procedures:
        raise SpecError(f"{where}: has no schedule, under none of {', '.join(_PROCEDURES)}")
    if name is None:
        return next((procedure for procedure in procedures if procedure.get("default")), procedures[0])
    names = [str(procedure.get("name")) for procedure in procedures]
    check_name(name, names, f'{where}: there is no procedure "{name}"')
    return procedures[names.index(name)]


def answer_request(folder: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the track as JSON, or why it was refused."""
    try:
        return {"track": to_json(read_track(Path(folder), **arguments))}
    except SpecError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": f"{folder}: its templates need more than 1 GiB of memory: one of them grows"}
    except Exception as error:  # noqa: BLE001 - a file of the user can cause any error
        reason = " ".join(str(error).split())[:300]
        return {"refused": f"{folder}: cannot be read: {type(error).__name__}: {reason}"}


def main() -> None:
    """Read the track that stdin names, within limits, and print it as JSON."""
    request = json.loads(sys.stdin.buffer.read())
    resource.setrlimit(resource.RLIMIT_CPU, (request["cpu_s"], request["cpu_s"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.stdout.write(json.dumps(answer_request(request["folder"], request["arguments"])))


if __name__ == "__main__":
    main()
