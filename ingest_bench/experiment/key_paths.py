"""Where a key of an experiment stands in its tables, and what may stand there. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.inputs import records, track_parameters
from ingest_bench.model.experiment import Fault
from ingest_bench.model.host_settings import HostSettings
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Profile
from ingest_bench.model.target import TargetOptions
from ingest_bench.units import spelled

TABLES: Mapping[str, type] = {
    "network": Profile,
    "peers": Profile,
    "target": TargetOptions,
    "load": LoadOptions,
    "host": HostSettings,
}
# Their keys may be written without the name of the table; those of the others may not.
_BARE = ("target", "load", "network")
# Those of a link, which may name a profile and change it.
LINKS = ("network", "peers")
# A part of a key in quotes, as TOML has it.
_PART = re.compile(r"\"([^\"]*)\"|'([^']*)'")
# No table has tables below tables below tables; what a track's parameter holds is its own.
_DEEPEST = 3
_TRACK_PARAMETERS = ("load", "track", "parameters")
# The key that names the thing itself may be written as the table's name.
_NAMES = {
    "network": ("network", "profile"),
    "peers": ("peers", "profile"),
    "target": ("target", "name"),
    "workload": ("load", "workload"),
    # Which of the faults with a name happen.
    "fault": ("fault", "name"),
}


def path_of(key: str) -> tuple[str, ...]:
    """The table and the keys below it that a key of `--set` or `[factors]` means: "heap" is ("target", "heap")."""
    if key in _NAMES:
        return _NAMES[key]
    first, *rest = plain(key).split(".")
    if first in TABLES and rest:
        _known(
            rest[0],
            {*records.keys(TABLES[first]), "profile"} if first in LINKS else records.keys(TABLES[first]),
            key,
        )
        return (first, rest[0], *_deeper(rest[0], rest[1:]))
    for table in _BARE:
        if first in records.keys(TABLES[table]) and first != "name":
            return (table, first, *_deeper(first, rest))
    bare = {*_NAMES, *(name for table in _BARE for name in records.keys(TABLES[table]) if name != "name")}
    of_host = {f"host.{name}" for name in records.keys(HostSettings)}
    if f"host.{key}" in of_host:
        raise SpecError(f'unknown key "{key}"; did you mean "host.{key}"?')
    raise SpecError(f'unknown key "{spelled(key)}"; {records.nearest(first, bare)}')


def plain(key: str) -> str:
    """The key without the quotes that TOML may have around its parts: setting."sink.delay" is setting.sink.delay."""
    return _PART.sub(lambda part: part[1] or part[2] or part[0], key)


def dotted(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The same with one key for each value: what TOML reads as a table in a table is a name with dots in it.

    SpecError where two ways to write a name are the same one.
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        below = dotted(value, where) if isinstance(value, dict) else None
        for name, each in {key: value}.items() if below is None else below.items():
            whole = key if below is None else f"{key}.{name}"
            if whole in found:
                raise SpecError(f"{where}: {spelled(whole)} is given twice, once with quotes; take one of them out")
            found[whole] = each
    return found


def _deeper(key: str, rest: Sequence[str]) -> Sequence[str]:
    """The keys below one: a setting of the server has dots in its name."""
    return [".".join(rest)] if key == "setting" and rest else rest


def _known(found: str, known: Any, key: str) -> None:
    if found not in known:
        raise SpecError(f'unknown key "{spelled(key)}"; {records.nearest(found, known)}')


def set_at(tables: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """The tables with that value at that path."""
    nested: Any = value
    for step in reversed(path):
        nested = {step: nested}
    return catalog.merged(tables, nested)


def typed(path: Sequence[str], value: Any) -> Any:
    """Return the value at that path. Text of a track's parameter is parsed as Rally parses it: "False" is false."""
    is_text = tuple(path[:3]) == _TRACK_PARAMETERS and isinstance(value, str)
    return track_parameters.parse_value(value) if is_text else value


def parted(path: tuple[str, ...], level: str) -> dict[tuple[str, ...], str]:
    """What a level is, key by key: a target may be named with its version, "cassandra 5.0.9"."""
    name, space, version = level.partition(" ")
    if path == _NAMES["target"] and space:
        return {path: name, ("target", "version"): version}
    return {path: level}


def leaves(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each value of a table and of those in it, with the keys that lead there."""
    for key, value in table.items():
        if isinstance(value, dict) and len(above) < _DEEPEST:
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def check(path: Sequence[str], value: Any, where: str) -> None:
    """SpecError when the key at that path of the tables may not have that value."""
    table, *rest = path
    if table == "fault" or (table in LINKS and rest[0] == "profile"):
        # By its name or its path, as a fault has one.
        records.at(Fault, rest, value, where)
    else:
        records.at(TABLES[table], rest, value, where)
