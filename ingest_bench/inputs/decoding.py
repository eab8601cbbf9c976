"""A value of a type from what JSON holds, or one sentence about what stands there instead. Pure.

A file may be of another version, cut off, or made by somebody: nothing gets into a record that its type does not allow.
Not by msgspec (0.21): of a dataclass it ignores keys that are not known, and it takes a number of any size.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

# What the kernel, numpy and every other reader of a number take.
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_SHOWN = 60
_WORDS: Mapping[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def decoded(hint: Any, value: Any, where: str = "") -> Any:
    """The value as that type has it; ValueError says where (`runs[0].cell`) something else stands, and what."""
    options = options_of(hint)
    if hint is Any or (value is None and types.NoneType in options):
        return value
    *others, last = [option for option in options if option is not types.NoneType]
    for option in others:
        try:
            return _as(option, value, where)
        except ValueError:
            continue
    return _as(last, value, where)


def _as(kind: Any, value: Any, where: str) -> Any:
    origin = get_origin(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _record(kind, value, where)
    if origin is Literal:
        if value in get_args(kind):
            return value
        raise ValueError(f"{_at(where)}{_shown(value)} is not one of {', '.join(map(repr, get_args(kind)))}")
    if origin is tuple:
        items = _expect(value, list, "a list", where)
        hints = get_args(kind)
        if hints[-1] is Ellipsis:
            hints = hints[:1] * len(items)
        if len(items) != len(hints):
            raise ValueError(f"{_at(where)}a list of {len(items)} is not one of {len(hints)}")
        pairs = zip(hints, items, strict=True)
        return tuple(decoded(hint, item, f"{where}[{at}]") for at, (hint, item) in enumerate(pairs))
    if origin is dict:
        key_hint, item_hint = get_args(kind)
        return {
            _key(key_hint, key, where): decoded(item_hint, item, f"{where}[{_shown(key)}]")
            for key, item in _expect(value, dict, "an object", where).items()
        }
    if kind is Path:
        return Path(_expect(value, str, "a path", where))
    accepted = (int, float) if kind is float else kind
    found = _expect(value, accepted, _WORDS[kind], where)
    if isinstance(found, int) and not _SMALLEST <= found <= _LARGEST:
        raise ValueError(f"{_at(where)}a number of more than 64 bits")
    return found


def _record(kind: type, value: Any, where: str) -> Any:
    table = _expect(value, dict, "an object", where)
    hints = _hints(kind)
    for key in table:
        if key not in hints:
            raise ValueError(f"{_at(where)}the key {_shown(key)} is not known here")
    for field in dataclasses.fields(kind):
        if is_required(field) and field.name not in table:
            raise ValueError(f'{_at(where)}the key "{field.name}" is missing')
    prefix = f"{where}." if where else ""
    return kind(**{name: decoded(hints[name], item, f"{prefix}{name}") for name, item in table.items()})


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Whether a record has no value of its own for it."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def options_of(hint: Any) -> tuple[Any, ...]:
    """The types that a value of this type may have: those of a union, or it alone."""
    return get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _key(hint: Any, key: str, where: str) -> Any:
    """JSON's keys are texts; a histogram's are numbers."""
    if hint is not int:
        return key
    if not key.isascii() or not key.removeprefix("-").isdigit() or len(key) > len(str(_SMALLEST)):
        raise ValueError(f"{_at(where)}the key {_shown(key)} is not a whole number")
    return decoded(int, int(key), where)


def _expect(value: Any, kind: Any, what: str, where: str) -> Any:
    # To Python, true is a number too.
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, kind):
        raise ValueError(f"{_at(where)}{_shown(value)} is not {what}")
    return value


def _at(where: str) -> str:
    return f"{where}: " if where else ""


def _shown(value: Any) -> str:
    """A value as JSON writes it, short enough for a sentence."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
