"""A frozen record from a table of TOML or JSON, and back.

One rule reads every TOML: the key is the field's name without its unit, and the unit says how text is parsed
(`delay_ns` is `delay = "50ms"`). JSON keeps the fields' names and plain integers.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from ingest_bench import decoding, rates, units, urls
from ingest_bench.errors import SpecError
from ingest_bench.model.load import Arrivals, Rate, TrackChoice
from ingest_bench.model.target import Url

T = TypeVar("T")

_TRUTHS = {"true": True, "on": True, "false": False, "off": False}

# Records that may be written as one text, and records whose fields must fit together.
_TEXTS: Mapping[type, Callable[[str], Any]] = {
    Rate: rates.parse_rate,
    Arrivals: rates.parse_arrivals,
    Url: urls.parse,
    TrackChoice: lambda text: TrackChoice(path=text),
}
_CHECKS: Mapping[type, Callable[[Any], None]] = {Arrivals: rates.check_arrivals}


def nearest(found: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the nearest one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(found, names, n=1)
    return f'did you mean "{close[0]}"?' if close else f"known: {', '.join(names)}"


def key_of(name: str) -> str:
    """The TOML key of a field: its name without the unit."""
    suffix = _suffix(name)
    return name.removesuffix(suffix) if suffix else name


def keys(record: type) -> Mapping[str, str]:
    """TOML key to field name of a record."""
    return {key_of(field.name): field.name for field in dataclasses.fields(record)}


def from_toml(record: type[T], table: Mapping[str, Any], where: str) -> T:
    """A record from a TOML table; SpecError names file and key (`where`), what was found and the remedy."""
    if not isinstance(table, Mapping):
        raise SpecError(f"{where}: {table!r} is not a table")
    known = keys(record)
    for key in table:
        if key not in known:
            raise SpecError(f'{where}: unknown key "{key}"; {nearest(key, known)}')
    hints = _hints(record)
    values = {
        known[key]: _read(hints[known[key]], value, _suffix(known[key]), f"{where}: {key}")
        for key, value in table.items()
    }
    _require(record, values, where)
    made = record(**values)
    if record in _CHECKS:
        _explained(_CHECKS[record], made, where)
    return made


def from_json(record: type[T], table: Any) -> T:
    """A record from what `to_json` made; ValueError says where something else stands in it, and what."""
    return typing.cast("T", decoding.decoded(record, table))


def to_json(value: Any) -> Any:
    """Dicts, lists and plain values; `from_json` reads them again."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _hints(record: type) -> dict[str, Any]:
    return get_type_hints(record)


def _suffix(name: str) -> str:
    return next((suffix for suffix in units.PARSERS if name.endswith(suffix)), "")


def _require(record: type, values: Mapping[str, Any], where: str) -> None:
    for field in dataclasses.fields(record):
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if not optional and field.name not in values:
            raise SpecError(f'{where}: the key "{key_of(field.name)}" is missing')


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _read(hint: Any, value: Any, suffix: str, where: str) -> Any:
    kinds = [option for option in _options(hint) if option is not type(None)]
    kind = kinds[0]
    origin = get_origin(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record(kind, value, where)
    if origin is tuple:
        items = value if isinstance(value, list) else _split(value, suffix)
        return tuple(_read(get_args(kind)[0], item, suffix, where) for item in items)
    if origin is dict:
        return {
            str(key): _read(get_args(kind)[1], item, "", f"{where}.{key}")
            for key, item in _expect(value, dict, "a table", where).items()
        }
    if origin is Literal:
        if value not in get_args(kind):
            raise SpecError(f"{where}: {value!r} is not one of {', '.join(map(str, get_args(kind)))}")
        return value
    if kind is Any:
        return value
    if suffix:
        return value if value in _words(kinds) else _number(value, suffix, where)
    if kind is bool:
        return _expect(_truth(value), bool, "true or false (on or off)", where)
    if kind is int:
        return _expect(_whole(value), int, "a whole number", where)
    if kind is float:
        return float(_expect(value, (int, float), "a number", where))
    return str(_expect(value, (str, int, float), "a text", where))


def _words(kinds: list[Any]) -> tuple[Any, ...]:
    """What may stand in the place of a number, such as "auto"."""
    return tuple(word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind))


def _record(kind: type, value: Any, where: str) -> Any:
    if isinstance(value, str) and kind in _TEXTS:
        return _explained(_TEXTS[kind], value, where)
    return from_toml(kind, _expect(value, dict, "a table", where), where)


def _number(value: Any, suffix: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise SpecError(f"{where}: {value!r} needs a unit, in quotes")
    if isinstance(value, int):
        value = str(value)
    return int(_explained(units.PARSERS[suffix], value, where))


def _explained(read: Callable[[Any], Any], value: Any, where: str) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise SpecError(f"{where}: {error}") from None


def _split(value: Any, suffix: str) -> list[str]:
    return str(value).split(".." if suffix == "_bytes" else " ")


def _expect(value: Any, kind: type | tuple[type, ...], what: str, where: str) -> Any:
    wrong_bool = isinstance(value, bool) and kind is not bool
    if wrong_bool or not isinstance(value, kind):
        raise SpecError(f"{where}: {value!r} is not {what}")
    return value


def _truth(value: Any) -> Any:
    """A level of a factor is text: "on" is true."""
    return _TRUTHS.get(value, value) if isinstance(value, str) else value


def _whole(value: Any) -> Any:
    """A level of a factor is text: "8" is 8."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
