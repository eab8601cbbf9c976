"""Files of experiments: shipped TOML by name or the user's own by path, absolute paths, and fingerprints."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ingest_bench.errors import SpecError
from ingest_bench.experiment.contradictions import check_profile
from ingest_bench.inputs import files, records
from ingest_bench.inputs.names import check_name, find_match
from ingest_bench.model.experiment import Plan
from ingest_bench.model.load import DocumentField, Workload
from ingest_bench.model.network import Profile
from ingest_bench.model.target import CustomTarget
from ingest_bench.units import quote_name, quote_value

NETWORKS = "netem"
WORKLOADS = "workloads"
EXPERIMENTS = "workloads/experiments"
CUSTOM_TARGETS = "docs/custom-targets"
# tomllib reads about 300 kB a second. The largest shipped file has 5 kB.
_MAX_TOML_CHARACTERS = 1 << 20
# Its time grows with the square of the number of parts of a key: 40 kB of one key take 15 s.
_MAX_KEY_PARTS = 64
_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_PART}[ \t]*+\.[ \t]*+){{{_MAX_KEY_PARTS}}}")
# Of a file of any size, this much is read: pieces at even distances, the first and the last bytes among them.
_FINGERPRINT_PIECES, _FINGERPRINT_PIECE_BYTES = 64, 1 << 16
# A track has a few corpora; a folder with more files is not one.
_MAX_FINGERPRINTS = 1000
# Keys whose files decide what is sent, what happens, and what is measured. Other values may be paths too: settings of a
# server, such as "/".
_FILE_KEYS = frozenset(
    ("documents", "mapping", "index_settings", "workload", "profile", "trace", "file", "jar", "source", "classpath")
)
# Keys whose values may be the name of a shipped file (`find_file`); those of the others are always paths.
_SHIPPED_OR_PATHS = frozenset({"workload", "profile"})
# Fields of a cell that are always paths.
_CELL_PATHS = frozenset(
    ("file", "ca_file", "client_cert", "client_key", "documents", "mapping", "index_settings", "path", "trace")
)
# Fields of a cell with records that have such fields. Paths of a custom target are relative to its folder.
_WITH_PATHS = frozenset({"target", "load", "track", "arrivals", "query_arrivals", "faults"})


def find_file(folder: str, name: str, what: str) -> Path:
    """Return the path of a shipped TOML by name, or of the user's own file; SpecError suggests the nearest name."""
    shipped = files.data_files(folder)
    if name.endswith(".toml"):
        path, similar = Path(name), None
        with contextlib.suppress(OSError):  # a name longer than the file system allows
            if path.is_file():
                return path
            siblings = {file.stem: file.name for file in path.parent.glob("*.toml")} if path.parent.is_dir() else {}
            similar = find_match(path.stem, [*siblings, *shipped])
            similar = siblings.get(similar or "", similar)
        raise SpecError(f"{quote_name(name)}: file not found" + (f'; did you mean "{similar}"?' if similar else ""))
    if what == "experiment" and Path(name).suffix and Path(name).exists():
        raise SpecError(f"{quote_name(name)}: not a .toml file. Documents: --documents FILE. A track: --track DIR.")
    check_name(name, shipped, f'unknown {what} "{quote_name(name)}"', "`ingest-bench list`")
    return shipped[name]


def read_template() -> str:
    """Return the text of an experiment with comments, for `init`."""
    return files.read_text(Path(__file__).with_name("template.toml"))


def read_table(path: Path) -> dict[str, Any]:
    """Return the table of a TOML file; SpecError names file and line if it is not TOML."""
    return _parse(path, files.read_user_text(path, str(path)))


def _parse(path: Path, text: str) -> dict[str, Any]:
    if len(text) > _MAX_TOML_CHARACTERS:
        raise SpecError(
            f"{path}: this file is too large: {len(text):,} characters, at most {_MAX_TOML_CHARACTERS:,} are read"
        )
    if too_long := _LONG_KEY.search(text):
        line = text.count("\n", 0, too_long.start()) + 1
        raise SpecError(f"{path}: line {line}: a key has more than {_MAX_KEY_PARTS} parts; every valid key has fewer")
    try:
        if table := tomllib.loads(text):
            return table
    except ValueError as error:
        raise SpecError(f"{path}: this is not TOML: {error}") from None
    except RecursionError:
        raise SpecError(f"{path}: this is not valid TOML: it is nested too deeply") from None
    raise SpecError(f"{path}: this file has no keys. docs/keys.md lists all keys.")


def file_stem(path: Path) -> str:
    """Return the file name without its suffix. Since Python 3.14 `Path.stem` keeps the suffix after leading dots."""
    return path.name.rpartition(".")[0] or path.name


def load_profile(name: str, overrides: dict[str, Any] | None = None) -> Profile:
    """Return a network profile with keys overridden, deeply: `{"to_server": {"delay": "5ms"}}` keeps the other keys."""
    path = find_file(NETWORKS, name, "network profile")
    base = {"name": file_stem(path), **read_table(path)}
    records.from_toml(Profile, base, str(path))
    where = f"{path}, with {', '.join(_format_overrides(overrides))}" if overrides else str(path)
    return check_profile(records.from_toml(Profile, merge_tables(base, overrides or {}), where), where)


def is_custom_target(name: str) -> bool:
    """Return True for the file of a custom target, and for the name of an example."""
    return name.endswith(".toml") or name in files.data_files(CUSTOM_TARGETS)


def read_custom_target(path: Path) -> dict[str, Any]:
    """Return the table of a custom target, with the folder to which its paths are relative."""
    table = {**read_table(path), "folder": str(path.absolute().parent)}
    records.from_toml(CustomTarget, table, str(path))
    return table


def load_workload(name: str) -> Workload:
    """Return a workload by the name of its file, or by its path."""
    path = find_file(WORKLOADS, name, "workload")
    return _parse_workload(path, files.read_user_text(path, str(path)))


@lru_cache(maxsize=32)
def _parse_workload(path: Path, text: str) -> Workload:
    """Parse a workload, cached: a plan needs it a hundred times, which took two thirds of its time."""
    table = {"name": file_stem(path), **_parse(path, text)}
    table["fields"] = group_field_options(table.get("fields"), f"{path}: fields")
    return records.from_toml(Workload, table, str(path))


def group_field_options(tables: Any, where: str) -> list[dict[str, Any]]:
    """Return the fields with the arguments of each generator under `options`, as in `DocumentField`."""
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise SpecError(f'{where}: requires a list of tables, such as fields = [{{ name = "n", kind = "id" }}]')
    common = set(records.fields_by_key(DocumentField)) - {"options"}
    return [
        {key: value for key, value in table.items() if key in common}
        | {"options": {key: value for key, value in table.items() if key not in common}}
        for table in tables
    ]


def _format_overrides(overrides: Mapping[str, Any], parent: str = "") -> Iterator[str]:
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            yield from _format_overrides(value, f"{parent}{key}.")
        else:
            yield f"{parent}{key} = {quote_value(value)}"


def merge_tables(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return a new table: *base* with the values of *overrides*, table by table."""
    result = dict(base)
    for key, value in overrides.items():
        nested = result.get(key)
        result[key] = merge_tables(nested, value) if isinstance(nested, dict) and isinstance(value, dict) else value
    return result


def with_absolute_paths(record: Any) -> Any:
    """Return a cell, or a record in it, with absolute paths, so that its runs can be resumed from another folder."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, str):
            if field.name in _CELL_PATHS or (field.name in _SHIPPED_OR_PATHS and value.endswith(".toml")):
                changes[field.name] = absolute_path(value)
        elif field.name in _WITH_PATHS and value is not None:
            is_list = isinstance(value, tuple)
            changes[field.name] = tuple(map(with_absolute_paths, value)) if is_list else with_absolute_paths(value)
    return dataclasses.replace(record, **changes)


def absolute_path(path: str | Path) -> str:
    """Return the absolute path; a tilde that the shell left, as in `--track=~/geonames`, is the home folder."""
    # Path.expanduser raises for an unknown user, whose name with the tilde may be a folder's.
    return str(Path(os.path.expanduser(path)).absolute())  # noqa: PTH111


def compute_fingerprints(plan: Plan) -> dict[str, str]:
    """Return the fingerprint of each file that the runs of a plan read, by its path; for a folder, of each file in it.

    Runs of other documents, traces or profiles are not replicates.
    """
    paths = dict.fromkeys(_iter_paths(records.to_json(plan)))
    return {str(file): _fingerprint(file) for path in paths for file in _iter_files(path)}


def check_fingerprints(recorded: Mapping[str, str], plan: Plan) -> None:
    """Raise SpecError if a file has changed since the first runs of this plan."""
    current = compute_fingerprints(plan)
    consequence = "the remaining runs would not be replicates"
    for path in current.keys() - recorded.keys() if recorded else ():
        raise SpecError(
            f"{path}: did not exist during the first runs of this folder; {consequence}. Remove it, or start anew "
            "without --resume."
        )
    for path, before in recorded.items():
        if (now := current.get(path)) != before:
            raise SpecError(
                f"{path}: {'is missing' if now is None else 'has changed'} since the first runs of this folder; "
                f"{consequence}. Restore it ({before}), or start anew without --resume."
            )


def _iter_paths(value: Any, key: str = "", base: str = "") -> Iterator[Path]:
    """Yield the values of file keys, and the `path` of a track. Those of a custom target are relative to its folder."""
    if isinstance(value, str):
        if key in _FILE_KEYS and (key not in _SHIPPED_OR_PATHS or os.sep in value or value.endswith(".toml")):
            yield from files.expand_pattern(base, value)
    elif isinstance(value, Mapping):
        base = str(value.get("folder", base))
        for name, item in value.items():
            if (key, name) == ("track", "path"):
                # For a track in one file, each file that it may read.
                is_file = Path(item).is_file()
                yield from sorted(files.find_track_files(Path(item)))[:_MAX_FINGERPRINTS] if is_file else [Path(item)]
            else:
                yield from _iter_paths(item, name, base)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _iter_paths(item, key, base)


def _iter_files(path: Path) -> Iterator[Path]:
    try:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if _is_readable(file))[:_MAX_FINGERPRINTS]
        elif _is_readable(path):
            yield path
    except OSError:
        return  # A value that is not a path: too long, or below a folder that cannot be read.


def _is_readable(path: Path) -> bool:
    """Return True for a file that a run can read: next to a track there may be files of other users."""
    return path.is_file() and os.access(path, os.R_OK)


def _fingerprint(path: Path) -> str:
    size_bytes = path.stat().st_size
    checksum = hashlib.sha256()
    last = max(0, size_bytes - _FINGERPRINT_PIECE_BYTES)
    with files.open_plain(path) as file:
        for offset in sorted({last * number // (_FINGERPRINT_PIECES - 1) for number in range(_FINGERPRINT_PIECES)}):
            file.seek(offset)
            checksum.update(file.read(_FINGERPRINT_PIECE_BYTES))
    return f"{size_bytes} bytes, {checksum.hexdigest()[:16]}"
