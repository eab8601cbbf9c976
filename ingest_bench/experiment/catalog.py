"""What is shipped by name, or the user's own file by path: network profiles, workloads, experiments."""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ingest_bench.errors import SpecError
from ingest_bench.experiment.contradictions import consistent
from ingest_bench.inputs import data, files, records
from ingest_bench.model.network import Profile
from ingest_bench.model.server import Server
from ingest_bench.model.workload import DocumentField, Workload
from ingest_bench.units import quoted, spelled

NETWORKS = "netem"
WORKLOADS = "workloads"
EXPERIMENTS = "workloads/experiments"
# tomllib reads some 300 kB in a second. The largest file that is shipped has 5 kB.
_LONGEST_TOML = 1 << 20
# Its time grows with the square of the parts of a key: 40 kB of one take 15 s.
_MOST_PARTS = 64
_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_PART}[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}")


def find(folder: str, name: str, what: str) -> Path:
    """The TOML of that name in a shipped folder, or the user's own file; SpecError with the nearest name."""
    if name.endswith(".toml"):
        path = Path(name)
        with contextlib.suppress(OSError):  # a name that is too long for any file
            if path.is_file():
                return path
        raise SpecError(f"{spelled(name)}: there is no such file")
    known = data.files(folder)
    if name not in known:
        raise SpecError(f'there is no {what} "{spelled(name)}"; {records.nearest(name, known)}')
    return known[name]


def table(path: Path) -> dict[str, Any]:
    """What a TOML file holds; SpecError with file and line when it is not TOML."""
    return _parsed(path, _text(path))


def _text(path: Path) -> str:
    try:
        return files.text(path)
    except ValueError as error:
        raise SpecError(f"{path}: this is not TOML: {error}") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    if len(text) > _LONGEST_TOML:
        raise SpecError(f"{path}: this file is too large: {len(text):,} characters, at most {_LONGEST_TOML:,} are read")
    if too_long := _LONG_KEY.search(text):
        line = text.count("\n", 0, too_long.start()) + 1
        raise SpecError(f"{path}: line {line}: a key of more than {_MOST_PARTS} parts; every key here has fewer")
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise SpecError(f"{path}: this is not TOML: {error}") from None
    except RecursionError:
        raise SpecError(f"{path}: this is not TOML that means anything: it is nested too deeply") from None


def called(path: Path) -> str:
    """What a file is called without its ending. Since Python 3.14 `Path.stem` keeps the ending after leading dots."""
    return path.name.rpartition(".")[0] or path.name


def profile(name: str, overrides: dict[str, Any] | None = None) -> Profile:
    """A network profile with some of its keys replaced, deeply: `{"to_server": {"delay": "5ms"}}` keeps the rest."""
    path = find(NETWORKS, name, "network profile")
    own = {"name": called(path), **table(path)}
    records.from_toml(Profile, own, str(path))
    where = f"{path}, with {', '.join(_written(overrides))}" if overrides else str(path)
    return consistent(records.from_toml(Profile, merged(own, overrides or {}), where), where)


def server(name: str) -> dict[str, Any]:
    """The table of a server of the user's own, with the folder where its paths begin."""
    path = find(EXPERIMENTS, name, "server")
    own = {**table(path), "folder": str(path.absolute().parent)}
    records.from_toml(Server, own, str(path))
    return own


def workload(name: str) -> Workload:
    """A workload by the name of its file, or by its path."""
    path = find(WORKLOADS, name, "workload")
    return _workload(path, _text(path))


@lru_cache(maxsize=32)
def _workload(path: Path, text: str) -> Workload:
    """That of a file with this text: a plan asks for it a hundred times, which took two thirds of its time."""
    read = {"name": called(path), **_parsed(path, text)}
    read["fields"] = document_fields(read.get("fields"), f"{path}: fields")
    return records.from_toml(Workload, read, str(path))


def document_fields(tables: Any, where: str) -> list[dict[str, Any]]:
    """The same fields with each generator's arguments gathered under `options`, as `DocumentField` has them."""
    if not isinstance(tables, list) or not tables or not all(isinstance(one, dict) for one in tables):
        raise SpecError(f'{where}: a list of tables is needed, such as fields = [{{ name = "n", kind = "id" }}]')
    own = set(records.keys(DocumentField)) - {"options"}
    return [
        {key: value for key, value in one.items() if key in own}
        | {"options": {key: value for key, value in one.items() if key not in own}}
        for one in tables
    ]


def _written(overrides: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Each key that is replaced, with its new value."""
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            yield from _written(value, f"{above}{key}.")
        else:
            yield f"{above}{key} = {quoted(value)}"


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """A new table: the base, with what stands in `over` in its place, table by table."""
    result = dict(base)
    for key, value in over.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result
