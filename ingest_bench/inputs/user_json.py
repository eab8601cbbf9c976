"""Parser for JSON that a user supplies: documents, action lines, tracks and their parameters.

It is stricter than `json`: accepted text has one meaning. For a duplicate key `json` takes the last value, and the
bulk API of OpenSearch takes the first: it would write to an index that was never checked.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any

from ingest_bench.errors import SpecError
from ingest_bench.inputs import files
from ingest_bench.units import quote_name, quote_value

_WORDS = {"true": True, "false": False, "none": None}


def parse_json(text: str) -> Any:
    """Parse one JSON value.

    ValueError if the text is not JSON, has a key with two values, or a number that JSON does not have; RecursionError
    if it is nested too deeply.
    """
    try:
        return _DECODER.decode(text)
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise ValueError("it has a number of thousands of digits") from None
        raise


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        first_values: dict[str, Any] = {}
        for key, value in pairs:
            # Compared as text: True == 1 in Python, not in a server. Only for duplicate keys: the text of a value may
            # be long, at hundreds of levels.
            if key in first_values and repr(first_values[key]) != repr(value):
                raise ValueError(f"an object has two values for the key {quote_value(key)}; remove one")
            first_values[key] = value
    return table


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number in JSON")


# One decoder: `json.loads` with hooks makes a new one for each line.
_DECODER = json.JSONDecoder(object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)


def parse_track_parameters(text: str) -> dict[str, Any]:
    """Parse `--track-params` as Rally does: a JSON object, the path of a JSON file, or "bulk_size:2000,codec:best"."""
    stripped = text.strip()
    if stripped.startswith("{"):
        return _parse_object(stripped, "--track-params")
    # "mapping:small.json" is a parameter, as in OpenSearch Benchmark.
    if stripped.endswith(".json") and ":" not in stripped:
        return read_object(Path(os.path.expanduser(stripped)), f"--track-params {quote_name(stripped)}")  # noqa: PTH111 - raises nothing
    parameters = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, value = part.partition(":")
        if not colon or not name.strip():
            raise SpecError(f"--track-params: {quote_value(part)} is not NAME:VALUE; write values with commas as JSON")
        parameters[name.strip()] = parse_value(value)
    return parameters


def parse_value(text: str) -> Any:
    """Parse one value: true, false or none in any case, an int, a float, a quoted text, or else the text itself."""
    value = text.strip()
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    with contextlib.suppress(ValueError):
        return int(value)
    with contextlib.suppress(ValueError):
        # JSON has no infinity and no NaN.
        if math.isfinite(number := float(value)):
            return number
    return value


def read_object(path: Path, where: str) -> dict[str, Any]:
    """Return the JSON object in a file; SpecError begins with *where*."""
    return _parse_object(files.read_user_text(path, where), where)


def _parse_object(text: str, where: str) -> dict[str, Any]:
    try:
        table = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{where}: cannot be read as JSON: {error}") from None
    if not isinstance(table, dict):
        raise SpecError(f"{where}: {quote_value(table)} is not a JSON object of names and values")
    return table
