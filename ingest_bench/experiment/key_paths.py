"""Keys of an experiment: their paths in its tables, and the values that they accept. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.inputs import records, user_json
from ingest_bench.model.experiment import Cell, Fault, HostSettings
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Profile
from ingest_bench.model.target import TargetOptions
from ingest_bench.units import quote_name

TABLES: Mapping[str, type] = {
    "network": Profile,
    "peers": Profile,
    "target": TargetOptions,
    "load": LoadOptions,
    "host": HostSettings,
}
# Keys of these tables may be written without the name of the table.
_BARE = ("target", "load", "network")
# Tables of a link, which may name a profile and override it.
LINKS = ("network", "peers")
# A quoted part of a key, as in TOML.
_QUOTED_PART = re.compile(r"\"([^\"]*)\"|'([^']*)'")
# Tables are nested at most this deep; the value of a track's parameter may be nested further.
_MAX_DEPTH = 3
_TRACK_PARAMETERS = ("load", "track", "parameters")
# A table's name stands for the key that names its object.
_NAMES = {
    "network": ("network", "profile"),
    "peers": ("peers", "profile"),
    "target": ("target", "name"),
    "workload": ("load", "workload"),
    # Selects one of the named faults.
    "fault": ("fault", "name"),
}


def resolve_key(key: str) -> tuple[str, ...]:
    """Return the path of a key of `--set` or `[factors]`: "heap" is ("target", "heap")."""
    if key in _NAMES:
        return _NAMES[key]
    first, *parts = unquote_key(key).split(".")
    if first in TABLES and parts:
        keys = {*records.fields_by_key(TABLES[first]), *(["profile"] if first in LINKS else [])}
        if parts[0] not in keys:
            raise SpecError(f'unknown key "{quote_name(key)}"; {records.suggest(parts[0], keys)}')
        return (first, parts[0], *_nested_keys(parts[0], parts[1:]))
    for table in _BARE:
        if first in records.fields_by_key(TABLES[table]) and first != "name":
            return (table, first, *_nested_keys(first, parts))
    bare = {*_NAMES, *(name for table in _BARE for name in records.fields_by_key(TABLES[table]) if name != "name")}
    if key in records.fields_by_key(HostSettings):
        raise SpecError(f'unknown key "{key}"; did you mean "host.{key}"?')
    raise SpecError(f'unknown key "{quote_name(key)}"; {records.suggest(first, bare)}')


def unquote_key(key: str) -> str:
    """Remove the quotes that TOML allows around parts of a key: setting."sink.delay" is setting.sink.delay."""
    return _QUOTED_PART.sub(lambda part: part[1] or part[2] or part[0], key)


def flatten_table(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the table with dotted keys instead of nested tables: TOML reads an unquoted dotted name as nested tables.

    SpecError if a name is written in two ways.
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        nested = flatten_table(value, where) if isinstance(value, dict) else None
        for name, item in {key: value}.items() if nested is None else nested.items():
            dotted = key if nested is None else f"{key}.{name}"
            if dotted in flat:
                raise SpecError(f"{where}: {quote_name(dotted)} is given twice, once with quotes. Remove one of them.")
            flat[dotted] = item
    return flat


def _nested_keys(key: str, parts: Sequence[str]) -> Sequence[str]:
    """Return the keys below *key*: the name of a setting has dots."""
    return [".".join(parts)] if key == "setting" and parts else parts


def set_value(tables: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return the tables with that value at that path."""
    nested: Any = value
    for step in reversed(path):
        nested = {step: nested}
    return catalog.merge_tables(tables, nested)


def convert_value(path: Sequence[str], value: Any) -> Any:
    """Return the value at that path. Text of a track's parameter is parsed as Rally parses it: "False" is false."""
    is_text = tuple(path[:3]) == _TRACK_PARAMETERS and isinstance(value, str)
    return user_json.parse_value(value) if is_text else value


def split_level(path: tuple[str, ...], level: str) -> dict[tuple[str, ...], str]:
    """Return the keys and values of a level: a target may include its version, "cassandra 5.0.9"."""
    name, space, version = level.partition(" ")
    if path == _NAMES["target"] and space:
        return {path: name, ("target", "version"): version}
    return {path: level}


def iter_leaves(table: Mapping[str, Any], parent: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each value of a table and its nested tables, with its path."""
    for key, value in table.items():
        if isinstance(value, dict) and len(parent) < _MAX_DEPTH:
            yield from iter_leaves(value, (*parent, key))
        else:
            yield (*parent, key), value


def describe_settings(cell: Cell) -> dict[str, str]:
    """Return each setting of a cell as text, by the key that `--set` accepts: "heap" is "1 GiB"."""
    tables = {name: getattr(cell, name) for name in (*TABLES, "faults", "probes")}
    texts = {key: text for name, table in tables.items() for key, text in records.describe_fields(table, name, name)}
    return {
        key if key in ("target.name", "load.nodes") else key.removeprefix("target.").removeprefix("load."): text
        for key, text in texts.items()
    }


def check_value(path: Sequence[str], value: Any, where: str) -> None:
    """Raise SpecError if the key at that path does not accept that value."""
    table, *keys = path
    if table == "fault" or (table in LINKS and keys[0] == "profile"):
        # A name or a path, as in a fault.
        records.read_key(Fault, keys, value, where)
    else:
        records.read_key(TABLES[table], keys, value, where)
