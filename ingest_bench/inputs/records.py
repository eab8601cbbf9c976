"""Frozen records from TOML or JSON, and back.

One rule reads every TOML: the key is the field's name without its unit, and the unit says how text is parsed
(`delay_ns` is `delay = "50ms"`). JSON keeps field names and plain integers. The limits of a value are part of its type
(`model.values`). They are enforced for TOML, and by `check` for records that were read from JSON.

Not by msgspec (0.21): for a dataclass it ignores unknown keys and accepts numbers of any size.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from ingest_bench import units
from ingest_bench.errors import SpecError
from ingest_bench.inputs import files, load_values, urls
from ingest_bench.inputs.names import find_match, suggest
from ingest_bench.model.load import AbortCondition, Arrivals, Rate, TrackOptions
from ingest_bench.model.network import PortRange, RealInterface, RemoteAddress
from ingest_bench.model.target import Endpoint, Url
from ingest_bench.model.values import Between, Json, Length, Pattern
from ingest_bench.units import quote_name, quote_value

T = TypeVar("T")

_BOOLEANS = {"true": True, "on": True, "false": False, "off": False}
# Python neither reads nor writes an int of more than 4,300 digits; no TOML key needs more than thirty.
_LARGEST_TOML = 10**30
# Numbers in JSON: what the kernel, numpy and every other reader accept.
_SMALLEST_JSON, _LARGEST_JSON = -(2**63), 2**63 - 1
_MAX_QUOTED = 60
_TYPE_NAMES: Mapping[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}

# Records that may be written as one text, and records with a check across fields.
_TEXT_PARSERS: Mapping[type, Callable[[str], Any]] = {
    Rate: load_values.parse_rate,
    Arrivals: load_values.parse_arrivals,
    AbortCondition: load_values.parse_abort,
    Url: urls.parse_url,
    Endpoint: urls.parse_endpoint,
    RemoteAddress: urls.parse_remote_address,
    PortRange: urls.parse_ports,
    RealInterface: lambda text: RealInterface(name=text),
    TrackOptions: lambda text: TrackOptions(path=text),
}
_CHECKS: Mapping[type, Callable[[Any], None]] = {
    Arrivals: load_values.check_arrivals,
    Rate: load_values.check_rate,
    RemoteAddress: urls.check_remote_address,
    PortRange: urls.check_ports,
    RealInterface: urls.check_interface,
}


def toml_key(field_name: str) -> str:
    """Return the TOML key of a field: its name without the unit."""
    return field_name.removesuffix(_unit_suffix(field_name))


def fields_by_key(record_type: type) -> Mapping[str, str]:
    """Return the field names of a record by their TOML keys."""
    return _names_by_key(record_type)


@functools.cache
def _names_by_key(record_type: Any) -> Mapping[str, str]:
    return {toml_key(field.name): field.name for field in dataclasses.fields(record_type)}


def from_toml(record_type: type[T], table: Mapping[str, Any], where: str) -> T:
    """Read a record from a TOML table; SpecError names the file and key (`where`), the value and what is allowed."""
    return typing.cast("T", _TOML.read_table(record_type, table, where))


def read_key(record_type: type, path: Sequence[str], value: Any, where: str) -> Any:
    """Read the value of one key of a record or of a table in it; SpecError starts with `where`."""
    field_name = _TOML.find_field(record_type, path[0], where)
    return _TOML.read_below(_hints(record_type)[field_name], path[1:], value, _unit_suffix(field_name), where)


def from_json(record_type: type[T], table: Any) -> T:
    """Read a record from the output of `to_json`; ValueError names the place of a wrong value."""
    return typing.cast("T", decode(record_type, table))


def decode(hint: Any, value: Any, where: str = "") -> Any:
    """Convert a JSON value to a type; ValueError names the place (`runs[0].cell`) and value that do not fit."""
    return _JSON.read(hint, value, "", where)


def from_file(hint: Any, path: Path) -> Any:
    """Read a JSON file as a type; SpecError if it is damaged or of another type, FileNotFoundError if it is missing."""
    try:
        return decode(hint, json.loads(files.read_text(path)))
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: this file is damaged: {error}") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SpecError(f"{path}: this file cannot be read ({error.strerror})") from None


def check(record: Any, where: str) -> None:
    """Raise SpecError if a field of a record, or of a record in it, is outside its limits."""
    _FIELDS.read(type(record), record, "", where)


def to_json(value: Any) -> Any:
    """Return dicts, lists and plain values that `from_json` reads again."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def describe_fields(value: Any, name: str = "", key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each value in a record that is set, as a user would write it, by its dotted TOML key."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from describe_fields(getattr(value, field.name), field.name, f"{key}.{toml_key(field.name)}")
    elif isinstance(value, Mapping):
        for name_below, item in value.items():
            yield from describe_fields(item, "", f"{key}.{name_below}")
    elif isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
        for number, item in enumerate(value, 1):
            yield from describe_fields(item, "", f"{key}.{number}")
    elif value not in (None, "", (), []):
        yield key.removeprefix("."), format_field(name, value)


def format_field(name: str, value: Any) -> str:
    """Return the value of a field of that name as a user would write it: "512 MiB" for heap_bytes."""
    if isinstance(value, (tuple, list)):
        return ", ".join(format_field(name, item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    suffix = _unit_suffix(name)
    if not (suffix and isinstance(value, int)):
        return str(value)
    # A space between the number and its unit.
    return re.sub("(?<=[0-9])(?=[A-Za-z])", " ", format_bound(value, suffix))


@functools.cache
def _names_by_name(record_type: Any) -> Mapping[str, str]:
    return {field.name: field.name for field in dataclasses.fields(record_type)}


@functools.cache
def _hints(record_type: Any) -> dict[str, Any]:
    return get_type_hints(record_type, include_extras=True)


@functools.cache
def _alternatives(hint: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return the types that a hint allows, except None, each with its rules."""
    options = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return [
        (option.__origin__, option.__metadata__) if get_origin(option) is Annotated else (option, ())
        for option in options
        if option is not types.NoneType
    ]


@functools.cache
def _allows_none(hint: Any) -> bool:
    return types.NoneType in get_args(hint)


def _unit_suffix(field_name: str) -> str:
    return next((suffix for suffix in units.PARSERS if field_name.endswith(suffix)), "")


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _quote_json(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value)
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…"


class _Walker:
    """Walk a type hint and a value together. This class reads TOML; subclasses read JSON and check fields."""

    def read(self, hint: Any, value: Any, suffix: str, where: str) -> Any:
        """Return the value as its type has it. `suffix` is the unit of the field."""
        (kind, limits), *others = _alternatives(hint)
        # A word instead of a number, such as "auto".
        words = [word for other, _ in others if get_origin(other) is Literal for word in get_args(other)]
        if value in words:
            return value
        if words and isinstance(value, str) and (match := find_match(value, words)):
            self.fail(where, f'{self.quote(value)} is unknown; did you mean "{match}"?')
        if isinstance(value, int) and abs(value) >= _LARGEST_TOML:
            self.fail(where, "numbers of more than thirty digits are not supported")
        converted = self.convert(kind, limits, value, suffix, where)
        self.enforce(limits, converted, value, suffix, where)
        return converted

    def convert(self, kind: Any, limits: tuple[Any, ...], value: Any, suffix: str, where: str) -> Any:
        """Convert the value to one type, without the rules of its own field."""
        origin = get_origin(kind)
        if _is_record(kind):
            return self.read_record(kind, value, where)
        if origin is tuple:
            items = self.split_items(limits, value, suffix, where)
            hints = get_args(kind)
            if hints[-1] is Ellipsis:
                hints = hints[:1] * len(items)
            if len(items) != len(hints):
                self.fail(where, f"a list of {len(items)} is not one of {len(hints)}")
            pairs = enumerate(zip(hints, items, strict=True))
            return tuple(self.read(hint, item, suffix, self.item_place(where, index)) for index, (hint, item) in pairs)
        if origin is dict:
            key_hint, item_hint = get_args(kind)
            return {
                self.read_dict_key(key_hint, key, where): self.read(item_hint, item, "", self.entry_place(where, key))
                for key, item in self.expect(value, dict, self.table_name, where).items()
            }
        if origin is Literal:
            # A level of a factor is text: "8" is 8.
            value = next((option for option in get_args(kind) if value == str(option)), value)
            if value not in get_args(kind):
                if isinstance(value, str) and (match := find_match(value, map(str, get_args(kind)))):
                    self.fail(where, f'{self.quote(value)} is unknown; did you mean "{match}"?')
                self.fail(where, f"{self.quote(value)} is not one of {', '.join(map(self.quote_word, get_args(kind)))}")
            return value
        return value if kind is Any else self.read_scalar(kind, value, suffix, where)

    def read_table(self, record_type: type, table: Any, where: str) -> Any:
        """Return the record of a table."""
        values = {}
        for key, value in self.expect(table, Mapping, self.table_name, where).items():
            field_name = self.find_field(record_type, key, where)
            hint = _hints(record_type)[field_name]
            values[field_name] = self.read(hint, value, _unit_suffix(field_name), self.field_place(where, key))
        for field, key in zip(dataclasses.fields(record_type), self.names_by_key(record_type), strict=True):
            is_optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
            if field.name not in values and not is_optional:
                self.fail(where, f'the key "{key}" is missing')
        record = record_type(**values)
        self.check_together(record, where)
        return record

    def find_field(self, record_type: type, key: str, where: str) -> str:
        """Return the field name of a key."""
        names = self.names_by_key(record_type)
        if key not in names:
            self.fail(where, f'unknown key "{quote_name(key)}"; {suggest(key, names)}')
        return names[key]

    def read_below(self, hint: Any, path: Sequence[str], value: Any, suffix: str, where: str) -> Any:
        """Return the value at a dotted path below a field."""
        if not path:
            return self.read(hint, value, suffix, where)
        kind, _ = _alternatives(hint)[0]
        if _is_record(kind):
            return read_key(kind, path, value, where)
        if get_origin(kind) is dict:
            key_hint, item_hint = get_args(kind)
            self.read(key_hint, path[0], "", where)
            return self.read_below(item_hint, path[1:], value, "", where)
        if kind is Any:
            return self.read(hint, value, "", where)
        return self.fail(where, "there is nothing below it; put a name with dots in quotes")

    # The rest differs between TOML, JSON and fields.

    table_name = "a table"
    names_by_key = staticmethod(fields_by_key)
    quote: Callable[[Any], str] = staticmethod(quote_value)
    quote_word: Callable[[Any], str] = staticmethod(str)
    field_place: Callable[[str, str], str] = staticmethod("{}: {}".format)
    # The place of a list is also that of its items.
    item_place: Callable[[str, int], str] = staticmethod("{0}".format)
    entry_place: Callable[[str, Any], str] = staticmethod("{}.{}".format)

    def fail(self, where: str, problem: str) -> NoReturn:
        raise SpecError(f"{where}: {problem}")

    def expect(self, value: Any, kind: Any, description: str, where: str) -> Any:
        # In Python, True is an int.
        if (isinstance(value, bool) and kind is not bool) or not isinstance(value, kind):
            self.fail(where, f"{self.quote(value)} is not {description}")
        return value

    def enforce(self, limits: tuple[Any, ...], converted: Any, value: Any, suffix: str, where: str) -> None:
        for rule in limits:
            if problem := find_violation(rule, converted, suffix):
                unit = "; without a unit it is bytes" if suffix == "_bytes" and str(value).isdigit() else ""
                self.fail(where, f"{self.quote(value)} {problem}{unit}")

    def check_together(self, record: Any, where: str) -> None:
        if type(record) in _CHECKS:
            self._explain(_CHECKS[type(record)], record, where)

    def read_record(self, kind: type, value: Any, where: str) -> Any:
        if isinstance(value, str) and kind in _TEXT_PARSERS:
            record = self._explain(_TEXT_PARSERS[kind], value, where)
            check(record, where)
            return record
        return self.read_table(kind, value, where)

    def split_items(self, limits: tuple[Any, ...], value: Any, suffix: str, where: str) -> Sequence[Any]:
        if isinstance(value, list):
            return value
        separator = next((rule.separator for rule in limits if isinstance(rule, Length)), None)
        return str(self.expect(value, (str, int) if suffix else str, "a list", where)).split(separator)

    def read_dict_key(self, hint: Any, key: Any, where: str) -> Any:
        return self.read(hint, key, "", where)

    def read_scalar(self, kind: Any, value: Any, suffix: str, where: str) -> Any:
        # A level of a factor is text: "on" is true, "8" is 8.
        if suffix:
            if isinstance(value, bool) or not isinstance(value, (str, int)):
                self.fail(where, f"{quote_value(value)} needs a unit, in quotes")
            return int(self._explain(units.PARSERS[suffix], str(value), where))
        if kind is bool:
            boolean = _BOOLEANS.get(value, value) if isinstance(value, str) else value
            return self.expect(boolean, bool, "true or false (on or off)", where)
        if kind is int:
            is_number = isinstance(value, str) and re.fullmatch("-?[0-9]{1,30}", value)
            return self.expect(int(value) if is_number else value, int, "a whole number", where)
        if kind is float:
            return float(self.expect(value, (int, float), "a number", where))
        return str(self.expect(value, (str, int, float), "a text", where))

    def _explain(self, parse: Callable[[Any], Any], value: Any, where: str) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            self.fail(where, str(error))


class _JsonWalker(_Walker):
    """Read JSON: every value has the type of its field already, and no rule is enforced."""

    table_name = "an object"
    names_by_key = staticmethod(_names_by_name)
    quote = staticmethod(_quote_json)
    quote_word = staticmethod(repr)
    field_place = staticmethod(lambda where, key: f"{where}.{key}" if where else key)
    item_place = staticmethod("{}[{}]".format)
    entry_place = staticmethod(lambda where, key: f"{where}[{_quote_json(key)}]")

    def read(self, hint: Any, value: Any, suffix: str, where: str) -> Any:
        if value is None and _allows_none(hint):
            return value
        *others, (last, _) = _alternatives(hint)
        for kind, _ in others:
            try:
                return self.convert(kind, (), value, suffix, where)
            except ValueError:
                continue
        return self.convert(last, (), value, suffix, where)

    def fail(self, where: str, problem: str) -> NoReturn:
        raise ValueError(f"{where}: {problem}" if where else problem)

    def check_together(self, record: Any, where: str) -> None:
        pass

    def read_record(self, kind: type, value: Any, where: str) -> Any:
        return self.read_table(kind, value, where)

    def split_items(self, _limits: tuple[Any, ...], value: Any, _suffix: str, where: str) -> Sequence[Any]:
        return typing.cast("list[Any]", self.expect(value, list, "a list", where))

    def read_dict_key(self, hint: Any, key: Any, where: str) -> Any:
        # JSON's keys are texts; those of a histogram are numbers.
        if _alternatives(hint)[0][0] is not int:
            return key
        if not key.isascii() or not key.removeprefix("-").isdigit() or len(key) > len(str(_SMALLEST_JSON)):
            self.fail(where, f"the key {self.quote(key)} is not a whole number")
        return self.read(int, int(key), "", where)

    def read_scalar(self, kind: Any, value: Any, _suffix: str, where: str) -> Any:
        if kind is Path:
            return Path(self.expect(value, str, "a path", where))
        self.expect(value, (int, float) if kind is float else kind, _TYPE_NAMES[kind], where)
        if isinstance(value, int) and not _SMALLEST_JSON <= value <= _LARGEST_JSON:
            self.fail(where, "a number of more than 64 bits")
        return value


class _FieldWalker(_Walker):
    """Enforce the rules of values that are in their record already."""

    def read(self, hint: Any, value: Any, suffix: str, where: str) -> Any:
        if value is None and _allows_none(hint):
            return value
        kind, limits = next(((kind, limits) for kind, limits in _alternatives(hint) if _fits(kind, value)), (None, ()))
        if kind is None:
            self.fail(where, f"{quote_value(value)} has the wrong type")
        self.enforce(limits, value, value, suffix, where)
        return self.convert(kind, limits, value, suffix, where)

    def read_record(self, kind: type, value: Any, where: str) -> Any:
        hints = _hints(kind)
        for field in dataclasses.fields(kind):
            place = self.field_place(where, toml_key(field.name))
            self.read(hints[field.name], getattr(value, field.name), _unit_suffix(field.name), place)
        self.check_together(value, where)
        return value

    def split_items(self, _limits: tuple[Any, ...], value: Any, _suffix: str, _where: str) -> Sequence[Any]:
        return typing.cast("tuple[Any, ...]", value)

    def read_scalar(self, _kind: Any, value: Any, _suffix: str, _where: str) -> Any:
        return value


_TOML, _JSON, _FIELDS = _Walker(), _JsonWalker(), _FieldWalker()


def _fits(kind: Any, value: Any) -> bool:
    if kind is Any:
        return True
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    value_type = get_origin(kind) or kind
    return isinstance(value, (int, float) if value_type is float else value_type) and (
        value_type is bool or not isinstance(value, bool)
    )


_FORMATS: Mapping[str, tuple[Callable[[float], str], str]] = {
    "_ns": (units.format_time, "ns"),
    "_bytes": (units.format_bytes, "B"),
    "_bps": (units.format_bps, "bit"),
    "_ppm": (units.format_ppm, "ppm"),
}


def find_violation(rule: Any, value: Any, suffix: str) -> str:
    """Return why a value breaks a rule, as the rest of a sentence about the value; empty if it does not.

    `suffix` is the unit at the end of the field's name, or empty.
    """
    if isinstance(rule, Between):
        return "" if rule.minimum <= value <= rule.maximum else f"is not {describe_rule(rule, suffix)}"
    if isinstance(rule, Pattern):
        return "" if re.fullmatch(rule.pattern, value) else f"is not {describe_rule(rule, suffix)}"
    if isinstance(rule, Length):
        if not rule.minimum <= len(value) <= rule.maximum:
            return f"has {len(value)} values, not {describe_rule(rule, suffix)}"
        if rule.distinct and len(set(value)) < len(value):
            return "has a value twice"
        return "is not in rising order" if rule.rising and list(value) != sorted(value) else ""
    if isinstance(rule, Json) and (problem := _why_not_json(value, rule.max_depth)):
        return f"is not JSON: {problem}"
    return ""


def describe_rule(rule: Any, suffix: str) -> str:
    """Return what a rule allows, to follow "is"."""
    if isinstance(rule, Between):
        bounds = f"between {format_bound(rule.minimum, suffix)} and {format_bound(rule.maximum, suffix)}"
        return f"{bounds} ({rule.reason})" if rule.reason else bounds
    if isinstance(rule, Length):
        return str(rule.minimum) if rule.minimum == rule.maximum else f"{rule.minimum} to {rule.maximum}"
    return rule.description if isinstance(rule, Pattern) else "a JSON value"


def format_bound(bound: float, suffix: str) -> str:
    """Return a bound of a range as a user would write it, without rounding."""
    if not suffix:
        return f"{bound:,}" if isinstance(bound, int) else f"{bound:,g}"
    format_value, unit = _FORMATS[suffix]
    text = format_value(bound)
    try:
        is_exact = units.PARSERS[suffix](text) == bound
    except ValueError:  # too fine for its unit, such as 1.46KiB
        is_exact = False
    return text if is_exact else f"{bound}{unit}"


def _why_not_json(value: Any, max_depth: int) -> str:
    """Return why a value cannot be written as JSON that every reader accepts; empty if it can."""
    if isinstance(value, (list, tuple, Mapping)):
        if not max_depth:
            return "lists and tables in it are nested too deeply"
        items = (*value.keys(), *value.values()) if isinstance(value, Mapping) else value
        return next(filter(None, (_why_not_json(item, max_depth - 1) for item in items)), "")
    if isinstance(value, str):
        return "it contains a lone surrogate" if re.search("[\ud800-\udfff]", value) else ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"JSON has no number {value}"
    if isinstance(value, int):
        return "" if -(2**63) <= value < 2**64 else "a number in it has more than 64 bits"
    return "" if value is None else f"JSON has no {type(value).__name__}; put it in quotes"
