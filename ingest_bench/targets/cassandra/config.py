"""cassandra.yaml of all versions: chosen settings and the file's text. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.units import quote_value

if TYPE_CHECKING:
    from ingest_bench.model.target import TargetOptions

Kind = Literal["whole", "number", "word", "flag", "duration", "size", "rate"]
Value = int | float | str | bool
FILE_NAME = "cassandra.yaml"
STORAGE_PORT = 7000
_PATTERNS: Mapping[Kind, tuple[str, str]] = {
    "whole": (r"-?[0-9]{1,9}", "a whole number"),
    "number": (r"[0-9]{1,9}(?:\.[0-9]{1,9})?", "a number"),
    "word": (r"[A-Za-z0-9_.]{1,200}", "a word: letters, digits, dots and underscores"),
    "flag": (r"true|false", "true or false"),
    "duration": (r"[0-9]{1,9}(?:d|h|m|s|ms|us|ns)", 'a duration as Cassandra writes it, such as "10s" or "500ms"'),
    "size": (r"[0-9]{1,9}(?:B|KiB|MiB|GiB)", 'a size as Cassandra writes it, such as "32MiB"'),
    "rate": (r"[0-9]{1,9}(?:B|KiB|MiB)/s", 'a rate as Cassandra writes it, such as "64MiB/s"'),
}


def parse_settings(options: TargetOptions, kinds: Mapping[str, Kind]) -> dict[str, Value]:
    """Return the chosen settings; SpecError for an unknown setting or an invalid value."""
    values: dict[str, Value] = {}
    for key, text in options.setting.items():
        if key not in kinds:
            raise SpecError(f'target.setting: cassandra has no "{key}"; {records.suggest(key, kinds)}')
        kind = kinds[key]
        pattern, description = _PATTERNS[kind]
        if re.fullmatch(pattern, text) is None:
            raise SpecError(f"target.setting.{key}: {quote_value(text)} is not {description}")
        values[key] = _convert(kind, text)
    return values


def format_yaml(values: Mapping[str, object]) -> str:
    """Return the file's text: JSON is YAML."""
    return json.dumps(values, indent=1) + "\n"


def _convert(kind: Kind, text: str) -> Value:
    if kind == "flag":
        return text == "true"
    if kind == "whole":
        return int(text)
    return float(text) if kind == "number" else text
