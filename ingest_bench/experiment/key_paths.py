"""Keys of an experiment: their paths in its tables, and the values that they accept. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.inputs import records, user_json
from ingest_bench.inputs.names import check_name, find_match, suggest
from ingest_bench.model.experiment import Cell, Fault, HostSettings
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Impairment, Profile
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
# Other keys of an experiment's file. `--set` and factors do not take them.
HEAD = ("description", "headline", "replicates", "seed", "probes", "costly_probes")
# Two keys for one value: the one that is set replaces the other.
TWINS: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("load", "bulk"): ("load", "bulk_documents"),
    ("load", "bulk_documents"): ("load", "bulk"),
}
_IN_FILE = "it is set at the top of the experiment's file"
_FILE_OF_ONE_TARGET = "With --target: `ingest-bench init my.toml`, then `ingest-bench run my.toml --target …`"
# What is not a key, and how it is set.
REMEDIES = {
    **dict.fromkeys(HEAD, _IN_FILE),
    **dict.fromkeys(("probes", "costly_probes"), f"{_IN_FILE}. {_FILE_OF_ONE_TARGET}"),
    "replicates": "use --replicates N, or set it at the top of the experiment's file",
    "out": "use --out DIR",
    "java_home": "use --java-home DIR",
    "java": "use --java-home DIR, or a version that is named after its Java: version=java17",
}
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


def resolve_key(key: str, value: str = "") -> tuple[str, ...]:
    """Return the path of a key of `--set` or `[factors]`: "heap" is ("target", "heap").

    SpecError for an unknown key says which one was meant, by its name and *value*.
    """
    if key in _NAMES:
        return _NAMES[key]
    first, *parts = unquote_key(key).split(".")
    if first in TABLES and parts:
        check_key(first, parts[0], f'unknown key "{quote_name(key)}"')
        return (first, parts[0], *_nested_keys(parts[0], parts[1:]))
    for table in _BARE:
        if first in records.fields_by_key(TABLES[table]) and first != "name":
            return (table, first, *_nested_keys(first, parts))
    meant = find_key(unquote_key(key), value)
    remedy = REMEDIES.get(first) or suggest(meant or unquote_key(key), iter_keys(), "docs/keys.md")
    raise SpecError(f'unknown key "{quote_name(key)}"; {remedy}')


def find_key(name: str, value: str) -> str | None:
    """Return the key that was meant; of two keys for one value, the one that accepts it: "5MB" is not a count."""
    key = find_match(name, iter_keys())
    path = resolve_key(key) if key else ()
    twin = TWINS.get(path)
    return twin[-1] if twin and _accepts(twin, value) and not _accepts(path, value) else key


def _accepts(path: Sequence[str], value: str) -> bool:
    try:
        check_value(path, value, "")
    except SpecError:
        return False
    return True


def iter_keys(bare: Sequence[str] = _BARE) -> Iterator[str]:
    """Yield all keys; those of the tables *bare* without the name of their table."""
    yield from _NAMES if bare else ()
    for table, record_type in TABLES.items():
        prefix = "" if table in bare else f"{table}."
        yield from (f"{prefix}{key}" for key in records.fields_by_key(record_type) if key != "name")
    for table, direction in itertools.product(LINKS, ("to_server", "to_client")):
        yield from (f"{table}.{direction}.{key}" for key in records.fields_by_key(Impairment))
    # Settings of the built-in servers `direct-memory` and `sink`; other servers have hundreds.
    yield from ("target.name", "setting.threads", "setting.sink.threads")


def check_key(table: str, key: str, problem: str) -> None:
    """Raise SpecError if a table has no such key; it says which one was meant, also of another table."""
    keys = [*records.fields_by_key(TABLES[table]), *(["profile"] if table in LINKS else [])]
    if key not in keys:
        check_name(key, [*keys, *([] if find_match(key, keys) else iter_keys(()))], problem, "docs/keys.md")


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
        check_key(table, keys[0], f'{where}: unknown key "{quote_name(keys[0])}"')
        records.read_key(TABLES[table], keys, value, where)
