"""Names of folders that cannot lead out of a results folder, and the JSON files in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeVar

from ingest_bench.errors import SpecError
from ingest_bench.inputs import files, records
from ingest_bench.model.results import SCHEMAS

T = TypeVar("T")
# NAME_MAX of Linux (limits.h) is 255, and a prefix and suffix are added: "time-NAME.png", "NAME.broken-12".
_MAX_NAME_BYTES = 235
_MAX_QUOTED = 60
JVM_OPTION_SEPARATORS = ' ,:"\t'
"""Characters that a path in a JVM option cannot have."""


def resolve_below(base: Path, name: str) -> Path:
    """Return the path of a name such as "cell/1" below a folder; raise SpecError when it leads out of it.

    Every name that comes from a file and becomes a path goes through this function.
    """
    for part in name.split("/"):
        check_name(part, f"{base}:")
    path = base / name
    check_inside(path, base)
    return path


def check_name(name: str, subject: str) -> None:
    """Raise SpecError if a folder of results cannot have that name."""
    if name in ("", ".", "..") or "/" in name:
        problem = "it is not the name of one folder"
    elif not name.isprintable():
        problem = "it has characters that cannot be printed"
    elif len(name.encode()) > _MAX_NAME_BYTES:
        problem = f"it is longer than {_MAX_NAME_BYTES} bytes"
    elif any(letter in f"{JVM_OPTION_SEPARATORS}'" for letter in name):
        problem = "JVM options accept no path with a comma, colon, quote or space; rename it"
    else:
        return
    raise SpecError(f"{subject} {quote_name(name)} cannot be a folder: {problem}")


def check_inside(path: Path, base: Path) -> None:
    """Raise SpecError if a path leads out of the folder that it begins with."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(base)):
        raise SpecError(f"{path}: this is a link that leads out of {base}; nothing was read or written there")


def quote_name(name: str) -> str:
    """Return a name, quoted and shortened for an error message."""
    short = name if len(name) <= _MAX_QUOTED else f"{name[:_MAX_QUOTED]}…"
    return json.dumps(short, ensure_ascii=not name.isprintable())


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; raise SpecError if it is damaged or has another schema."""
    try:
        text = files.read_text(path)
        table = json.loads(text)
        if "\\ud" in text.lower():
            # JSON can escape half a surrogate pair, which cannot be encoded again.
            json.dumps(table, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: this file is damaged: {error}") from None
    except OSError as error:
        raise SpecError(f"{path}: this file cannot be read ({error.strerror})") from None
    if not isinstance(table, dict):
        raise SpecError(f"{path}: this file is damaged: it does not hold a JSON object")
    if (expected := SCHEMAS.get(path.name)) is not None:
        schema = table.pop("schema", 1)
        if isinstance(schema, bool) or not isinstance(schema, int):
            raise SpecError(f"{path}: this file is damaged: its schema is not a whole number")
        if schema != expected:
            version, advice = ("a newer", "update this one") if schema > expected else ("an older", "measure again")
            numbers = f"schema {schema}, this one reads {expected}"
            raise SpecError(f"{path}: {version} ingest-bench wrote it ({numbers}): {advice}")
    return table


def parse_record(kind: type[T], table: dict[str, Any], path: Path) -> T:
    """Return the record that a file holds; raise SpecError if it does not fit."""
    try:
        return records.from_json(kind, table)
    except ValueError as error:
        raise SpecError(f"{path}: this file is damaged, or of another version: {error}") from None
