"""Parameters of a track from text, read as Rally and OpenSearch Benchmark read `--track-params`."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

from ingest_bench.errors import SpecError
from ingest_bench.inputs import files
from ingest_bench.inputs.user_json import parse_json
from ingest_bench.units import quoted, spelled

_WORDS = {"true": True, "false": False, "none": None}


def parse(text: str) -> dict[str, Any]:
    """Parse `--track-params`: a JSON object, the path of a JSON file, or "bulk_size:2000,codec:default"."""
    stripped = text.strip()
    if stripped.startswith("{"):
        return _object(stripped, "--track-params")
    # "mapping:small.json" is a parameter, as in OpenSearch Benchmark.
    if stripped.endswith(".json") and ":" not in stripped:
        where = f"--track-params {spelled(stripped)}"
        try:
            return _object(files.text(Path(stripped).expanduser()), where)
        except (OSError, UnicodeDecodeError, RuntimeError) as error:
            raise SpecError(f"{where}: cannot be read: {error}") from None
    parameters = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, value = part.partition(":")
        if not colon or not name.strip():
            raise SpecError(f"--track-params: {quoted(part)} is not NAME:VALUE; write values with commas as JSON")
        parameters[name.strip()] = parse_value(value)
    return parameters


def parse_value(text: str) -> Any:
    """Parse one value: true, false or none in any case, an int, a float, a text in quotes, or else the text itself."""
    value = text.strip()
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    with contextlib.suppress(ValueError):
        return int(value)
    with contextlib.suppress(ValueError):
        # JSON has no word for other numbers.
        if math.isfinite(number := float(value)):
            return number
    return value


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        parameters = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{where}: cannot be read as JSON: {error}") from None
    if not isinstance(parameters, dict):
        raise SpecError(f"{where}: {quoted(parameters)} is not a JSON object of names and values")
    return parameters
