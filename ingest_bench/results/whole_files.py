"""Files that are whole: replaced at once or not at all, and refused where they are damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ingest_bench.errors import SpecError
from ingest_bench.inputs import files, records
from ingest_bench.model.schemas import OLDEST, SCHEMAS

T = TypeVar("T")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; SpecError when it is none, or of a schema that this program does not read."""
    try:
        text = files.text(path)
        found = json.loads(text)
        if "\\ud" in text.lower():
            # Half a character can be escaped in JSON, and nobody can write it again.
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: this file is damaged: {error}") from None
    except OSError as error:
        raise SpecError(f"{path}: this file cannot be read ({error.strerror})") from None
    if not isinstance(found, dict):
        raise SpecError(f"{path}: this file is damaged: it does not hold a JSON object")
    if path.name in SCHEMAS:
        _check_schema(path, found.pop("schema", 1))
    return found


def schema_of(path: Path) -> int:
    """The schema number of a file that is there; SpecError as `read_json`."""
    read_json(path)
    return int(json.loads(files.text(path)).get("schema", 1))


def _check_schema(path: Path, schema: Any) -> None:
    known, oldest = SCHEMAS[path.name], OLDEST.get(path.name, 1)
    if isinstance(schema, bool) or not isinstance(schema, int):
        raise SpecError(f"{path}: this file is damaged: its schema is no whole number")
    if schema > known:
        raise SpecError(
            f"{path}: a newer ingest-bench wrote it (schema {schema}, this one reads {known}): update this one"
        )
    if schema < oldest:
        raise SpecError(f"{path}: schema {schema} is too old, the oldest that is read is {oldest}: measure anew")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file, whole or not at all; with its schema number where it has one."""
    if path.name in SCHEMAS:
        value = {"schema": SCHEMAS[path.name], **value}
    replace(path, (json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n").encode())


def replace(path: Path, content: bytes) -> None:
    """This is in the file now."""
    # Of this process alone: `report` may write while `run` does.
    new = path.with_name(f".{os.getpid()}.new")
    # What is there under this name was left by a kill, or is somebody's link to another file.
    new.unlink(missing_ok=True)
    try:
        with new.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        # Half a file is of no use, and where the disk is full it takes what is missing.
        new.unlink(missing_ok=True)
        raise


def record(kind: type[T], table: dict[str, Any], path: Path) -> T:
    """The record of that file; SpecError when it is not what this program writes there."""
    try:
        return records.from_json(kind, table)
    except ValueError as error:
        raise SpecError(f"{path}: this file is damaged, or of another version: {error}") from None
