"""A frozen record from a table of TOML or JSON, and back.

One rule reads every TOML: the key is the field's name without its unit, and the unit says how text is parsed
(`delay_ns` is `delay = "50ms"`). JSON keeps the fields' names and plain integers. What a field may hold stands in its
type (`model.values`): nothing else gets into a record that is read from TOML, or checked after it was read from JSON.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from ingest_bench import units
from ingest_bench.errors import SpecError
from ingest_bench.inputs import decoding, files, rates, rules, thresholds, urls
from ingest_bench.inputs.decoding import is_required, options_of
from ingest_bench.model.load import Abort, Arrivals, Rate, TrackChoice
from ingest_bench.model.network import FarEnd, PortRange, RealLink
from ingest_bench.model.target import Endpoint, Url
from ingest_bench.model.values import Several
from ingest_bench.units import quoted, spelled

T = TypeVar("T")

_TRUTHS = {"true": True, "on": True, "false": False, "off": False}
# Python neither reads nor writes an int of more than 4300 digits, and no key means one of thirty.
_LARGEST = 10**30
# Nobody reads more names than these in a sentence.
_MOST_NAMED = 40

# Records that may be written as one text, and records whose fields must fit together.
_TEXTS: Mapping[type, Callable[[str], Any]] = {
    Rate: rates.parse_rate,
    Arrivals: rates.parse_arrivals,
    Abort: thresholds.parse_abort,
    Url: urls.parse,
    Endpoint: urls.parse_endpoint,
    FarEnd: urls.parse_far_end,
    PortRange: urls.parse_ports,
    RealLink: lambda text: RealLink(name=text),
    TrackChoice: lambda text: TrackChoice(path=text),
}
_CHECKS: Mapping[type, Callable[[Any], None]] = {
    Arrivals: rates.check_arrivals,
    Rate: rates.check_rate,
    FarEnd: urls.check_far_end,
    PortRange: urls.check_ports,
    RealLink: urls.check_real_link,
}


def _types(hint: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    options = options_of(hint)
    return [
        (option.__origin__, option.__metadata__) if get_origin(option) is Annotated else (option, ())
        for option in options
        if option is not types.NoneType
    ]


# Each type that a field may have, but None, with its rules.
_kinds: Callable[[Any], list[tuple[Any, tuple[Any, ...]]]] = functools.cache(_types)
# The types of a record's fields, with what they may hold.
_hints: Callable[[Any], dict[str, Any]] = functools.cache(functools.partial(get_type_hints, include_extras=True))
_keys: Callable[[Any], Mapping[str, str]] = functools.cache(
    lambda record: {key_of(field.name): field.name for field in dataclasses.fields(record)}
)


def nearest(found: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the nearest one, or all of them, or the nearest of very many."""
    names = sorted(known)
    if close := difflib.get_close_matches(found, names, n=1):
        return f'did you mean "{close[0]}"?'
    if len(names) <= _MOST_NAMED:
        return f"known: {', '.join(names)}"
    some = difflib.get_close_matches(found, names, n=5, cutoff=0.0)
    return f"of {len(names)} that are known the nearest are {', '.join(some)}"


def key_of(name: str) -> str:
    """The TOML key of a field: its name without the unit."""
    suffix = _suffix(name)
    return name.removesuffix(suffix) if suffix else name


def keys(record: type) -> Mapping[str, str]:
    """TOML key to field name of a record."""
    return _keys(record)


def from_toml(record: type[T], table: Mapping[str, Any], where: str) -> T:
    """A record from a TOML table; SpecError names file and key (`where`), what was found and what is allowed."""
    if not isinstance(table, Mapping):
        raise SpecError(f"{where}: {quoted(table)} is not a table")
    hints = _hints(record)
    values = {}
    for key, value in table.items():
        name = _known(record, key, where)
        values[name] = _read(hints[name], value, _suffix(name), f"{where}: {key}")
    _require(record, values, where)
    made = record(**values)
    if record in _CHECKS:
        _explained(_CHECKS[record], made, where)
    return made


def at(record: type, path: Sequence[str], value: Any, where: str) -> Any:
    """What one key of a record, or of the tables in it, becomes; SpecError (`where` names it) when it cannot be."""
    name = _known(record, path[0], where)
    return _below(_hints(record)[name], path[1:], value, _suffix(name), where)


def from_json(record: type[T], table: Any) -> T:
    """A record from what `to_json` made; ValueError says where something else stands in it, and what."""
    return typing.cast("T", decoding.decoded(record, table))


def from_file(hint: Any, path: Path) -> Any:
    """What a JSON file holds, as that type has it; SpecError when it is damaged or of another type.

    FileNotFoundError when it is not there.
    """
    try:
        return decoding.decoded(hint, json.loads(files.text(path)))
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: this file is damaged: {error}") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SpecError(f"{path}: this file cannot be read ({error.strerror})") from None


def check(made: Any, where: str) -> None:
    """SpecError when a field of a record, or of one in it, holds what it may not."""
    hints = _hints(type(made))
    for field in dataclasses.fields(made):
        suffix = _suffix(field.name)
        _check(hints[field.name], getattr(made, field.name), suffix, f"{where}: {key_of(field.name)}")
    if type(made) in _CHECKS:
        _explained(_CHECKS[type(made)], made, where)


def to_json(value: Any) -> Any:
    """Dicts, lists and plain values; `from_json` reads them again."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _suffix(name: str) -> str:
    return next((suffix for suffix in units.PARSERS if name.endswith(suffix)), "")


def _known(record: type, key: str, where: str) -> str:
    """The field of a key."""
    known = keys(record)
    if key not in known:
        raise SpecError(f'{where}: unknown key "{spelled(key)}"; {nearest(key, known)}')
    return known[key]


def _require(record: type, values: Mapping[str, Any], where: str) -> None:
    for field in dataclasses.fields(record):
        if is_required(field) and field.name not in values:
            raise SpecError(f'{where}: the key "{key_of(field.name)}" is missing')


def _read(hint: Any, value: Any, suffix: str, where: str) -> Any:
    (kind, ruled), *others = _kinds(hint)
    if any(get_origin(other) is Literal and value in get_args(other) for other, _ in others):
        return value  # a word in the place of a number, such as "auto"
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise SpecError(f"{where}: a number of more than thirty digits means nothing here")
    made = _parsed(kind, ruled, value, suffix, where)
    _enforce(ruled, made, value, suffix, where)
    return made


def _parsed(kind: Any, ruled: tuple[Any, ...], value: Any, suffix: str, where: str) -> Any:
    """The value as its type has it, not yet checked against the rules of its own field."""
    origin = get_origin(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record(kind, value, where)
    if origin is tuple:
        return tuple(_read(get_args(kind)[0], item, suffix, where) for item in _items(ruled, value, suffix, where))
    if origin is dict:
        key_hint, item_hint = get_args(kind)
        return {
            _read(key_hint, key, "", where): _read(item_hint, item, "", f"{where}.{key}")
            for key, item in _expect(value, dict, "a table", where).items()
        }
    if origin is Literal:
        if value not in get_args(kind):
            raise SpecError(f"{where}: {quoted(value)} is not one of {', '.join(map(str, get_args(kind)))}")
        return value
    if kind is Any:
        return value
    if suffix:
        return _number(value, suffix, where)
    if kind is bool:
        return _expect(_truth(value), bool, "true or false (on or off)", where)
    if kind is int:
        return _expect(_whole(value), int, "a whole number", where)
    if kind is float:
        return float(_expect(value, (int, float), "a number", where))
    return str(_expect(value, (str, int, float), "a text", where))


def _below(hint: Any, path: Sequence[str], value: Any, suffix: str, where: str) -> Any:
    if not path:
        return _read(hint, value, suffix, where)
    kind, _ = _kinds(hint)[0]
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return at(kind, path, value, where)
    if get_origin(kind) is dict:
        key_hint, item_hint = get_args(kind)
        _read(key_hint, path[0], "", where)
        return _below(item_hint, path[1:], value, "", where)
    if kind is Any:
        return _read(hint, value, "", where)
    raise SpecError(f"{where}: there is nothing below it; a name with dots in it stands in quotes")


def _record(kind: type, value: Any, where: str) -> Any:
    if isinstance(value, str) and kind in _TEXTS:
        made = _explained(_TEXTS[kind], value, where)
        check(made, where)
        return made
    return from_toml(kind, _expect(value, Mapping, "a table", where), where)


def _items(ruled: tuple[Any, ...], value: Any, suffix: str, where: str) -> Sequence[Any]:
    if isinstance(value, list):
        return value
    separator = next((rule.separator for rule in ruled if isinstance(rule, Several)), None)
    return str(_expect(value, (str, int) if suffix else str, "a list", where)).split(separator)


def _number(value: Any, suffix: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise SpecError(f"{where}: {quoted(value)} needs a unit, in quotes")
    return int(_explained(units.PARSERS[suffix], str(value), where))


def _explained(read: Callable[[Any], Any], value: Any, where: str) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise SpecError(f"{where}: {error}") from None


def _expect(value: Any, kind: type | tuple[type, ...], what: str, where: str) -> Any:
    wrong_bool = isinstance(value, bool) and kind is not bool
    if wrong_bool or not isinstance(value, kind):
        raise SpecError(f"{where}: {quoted(value)} is not {what}")
    return value


def _truth(value: Any) -> Any:
    """A level of a factor is text: "on" is true."""
    return _TRUTHS.get(value, value) if isinstance(value, str) else value


def _whole(value: Any) -> Any:
    """A level of a factor is text: "8" is 8."""
    return int(value) if isinstance(value, str) and re.fullmatch("-?[0-9]{1,30}", value) else value


def _enforce(ruled: tuple[Any, ...], made: Any, found: Any, suffix: str, where: str) -> None:
    for rule in ruled:
        if trouble := rules.broken(rule, made, suffix):
            raise SpecError(f"{where}: {quoted(found)} {trouble}")


def _check(hint: Any, value: Any, suffix: str, where: str) -> None:
    """The same of a value that is in its record already."""
    options = options_of(hint)
    if value is None and types.NoneType in options:
        return
    kind, ruled = next(((kind, ruled) for kind, ruled in _kinds(hint) if _is_a(kind, value)), (None, ()))
    if kind is None:
        raise SpecError(f"{where}: {quoted(value)} is of another type than it is written in")
    _enforce(ruled, value, value, suffix, where)
    if dataclasses.is_dataclass(kind):
        check(value, where)
    elif get_origin(kind) is tuple:
        for item in value:
            _check(get_args(kind)[0], item, suffix, where)
    elif get_origin(kind) is dict:
        for key, item in value.items():
            _check(get_args(kind)[0], key, "", where)
            _check(get_args(kind)[1], item, "", f"{where}.{key}")


def _is_a(kind: Any, value: Any) -> bool:
    if kind is Any:
        return True
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    wanted = get_origin(kind) or kind
    return isinstance(value, (int, float) if wanted is float else wanted) and (
        wanted is bool or not isinstance(value, bool)
    )
