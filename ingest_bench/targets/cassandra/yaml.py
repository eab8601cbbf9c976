"""The cassandra.yaml of each version: the settings that were asked for, and the text. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.units import quoted

if TYPE_CHECKING:
    from ingest_bench.model.target import TargetOptions

Kind = Literal["whole", "number", "word", "flag", "duration", "size", "rate"]
Value = int | float | str | bool
NAME = "cassandra.yaml"
STORAGE_PORT = 7000
_FORMS: Mapping[Kind, tuple[str, str]] = {
    "whole": (r"-?[0-9]{1,9}", "a whole number"),
    "number": (r"[0-9]{1,9}(?:\.[0-9]{1,9})?", "a number"),
    "word": (r"[A-Za-z0-9_.]{1,200}", "a word: letters, digits, dots and underscores"),
    "flag": (r"true|false", "true or false"),
    "duration": (r"[0-9]{1,9}(?:d|h|m|s|ms|us|ns)", 'a duration as Cassandra writes it, such as "10s" or "500ms"'),
    "size": (r"[0-9]{1,9}(?:B|KiB|MiB|GiB)", 'a size as Cassandra writes it, such as "32MiB"'),
    "rate": (r"[0-9]{1,9}(?:B|KiB|MiB)/s", 'a rate as Cassandra writes it, such as "64MiB/s"'),
}


def chosen(asked: TargetOptions, known: Mapping[str, Kind]) -> dict[str, Value]:
    """The settings that were asked for; SpecError for one that it has not, or whose value cannot be."""
    found: dict[str, Value] = {}
    for key, text in asked.setting.items():
        if key not in known:
            raise SpecError(f'target.setting: cassandra has no "{key}"; {records.nearest(key, known)}')
        kind = known[key]
        form, meaning = _FORMS[kind]
        if re.fullmatch(form, text) is None:
            raise SpecError(f"target.setting.{key}: {quoted(text)} is not {meaning}")
        found[key] = _value(kind, text)
    return found


def text(values: Mapping[str, object]) -> str:
    """The file: JSON is YAML."""
    return json.dumps(values, indent=1) + "\n"


def _value(kind: Kind, text: str) -> Value:
    if kind == "flag":
        return text == "true"
    if kind == "whole":
        return int(text)
    return float(text) if kind == "number" else text
