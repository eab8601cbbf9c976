"""The settings of our own servers: `[target.setting]` as system properties of their JVM."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ingest_bench import units
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.units import quoted

if TYPE_CHECKING:
    from ingest_bench.model.target import TargetOptions

Settings = Mapping[str, tuple[str, Callable[[str], int | str]]]
"""Each setting, the system property that carries it to Java, and how its text is read (ValueError says why not)."""


def parsed(target: str, known: Settings, asked: TargetOptions) -> dict[str, str]:
    """The value of each property for what was asked; SpecError for a setting that the server does not know."""
    values = {}
    for key, text in asked.setting.items():
        if key not in known:
            raise SpecError(f'target.setting: {target} has no "{key}"; {records.nearest(key, known)}')
        name, parse = known[key]
        try:
            values[name] = str(parse(text))
        except ValueError as error:
            raise SpecError(f"target.setting.{key}: {error}") from None
    return values


def refuse(asked: TargetOptions, fields: Iterable[str], why: str) -> None:
    """SpecError, which says why, where one of these fields of what was asked is not as it is by itself."""
    defaults = {field.name: field.default for field in dataclasses.fields(asked)}
    for field in fields:
        if getattr(asked, field) != defaults[field]:
            raise SpecError(f"target.{field.removesuffix('_bytes')}: {why}; take it out")


def copies(asked: TargetOptions) -> int:
    """On how many nodes each document is; SpecError when there are not so many."""
    found = asked.nodes if asked.replicas is None else asked.replicas + 1
    if found > asked.nodes:
        raise SpecError(
            f"target.replicas: {asked.replicas} beside the first are {found} copies, and there are {asked.nodes} nodes "
            "for them (target.nodes)"
        )
    return found


def properties(values: Mapping[str, str]) -> tuple[str, ...]:
    """These properties as options of the JVM."""
    return tuple(f"-D{name}={value}" for name, value in values.items())


def one_of(*words: str) -> Callable[[str], str]:
    """One of these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return text

    return parse


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """A whole number between these two."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and least <= int(text) <= most):
            raise ValueError(f"{quoted(text)} is not between {least} and {most}")
        return int(text)

    return parse


def time_between(least_ns: int, most_ns: int) -> Callable[[str], int]:
    """A time in nanoseconds, such as of "100ms", between these two."""

    def parse(text: str) -> int:
        found = units.parse_time_ns(text)
        if not least_ns <= found <= most_ns:
            raise ValueError(
                f"{quoted(text)} is not between {units.format_time(least_ns)} and {units.format_time(most_ns)}"
            )
        return found

    return parse


def name_of_field(text: str) -> str:
    """The name of a document's field."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", text):
        raise ValueError(f"{quoted(text)} is no name of a field: A-Z, a-z, 0-9 and underscore")
    return text
