"""TOML and the user's overrides to an Experiment, and an Experiment to its cells. Pure but for reading files."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ingest_bench import catalog, coherence, records
from ingest_bench.errors import SpecError
from ingest_bench.model.experiment import Cell, Experiment, Factor, Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Profile
from ingest_bench.model.target import TargetOptions

_TABLES: Mapping[str, type] = {"network": Profile, "target": TargetOptions, "load": LoadOptions}
TOP = ("description", "replicates", "seed", "probes", "costly_probes", "factors", "fault", *_TABLES)
_INCLUDES = "includes"
# The key that names the thing itself may be written as the table's name.
_NAMES = {"network": ("network", "profile"), "target": ("target", "name"), "workload": ("load", "workload")}


def load(
    name: str,
    overrides: Sequence[str] = (),
    *,
    fixed: Mapping[str, Any] | None = None,
    running: Mapping[str, Any] | None = None,
    replicates: int | None = None,
) -> Experiment:
    """The experiment of that name or path, with each `key=value[,value…]` of `--set` in its place.

    `fixed` holds what has an option of its own, such as {"measure": "20s"}; None leaves what the file says.
    `running` is the target when that runs already: it takes the place of the file's target and network.
    """
    path = catalog.find(catalog.EXPERIMENTS, name, "experiment")
    table = catalog.table(path)
    where = str(path)
    for key in table:
        if key == _INCLUDES:
            raise SpecError(f"{where}: it only names other experiments; run one of them, or all by its name")
        if key not in TOP:
            raise SpecError(f'{where}: unknown key "{key}"; {records.nearest(key, TOP)}')
    experiment = Experiment(
        name=path.stem,
        description=str(table.get("description", "")),
        replicates=_count(table.get("replicates", 1), f"{where}: replicates"),
        seed=_kind(table, "seed", int, 1, "a whole number", where),
        probes=tuple(map(str, _kind(table, "probes", list, [], "a list of names", where))),
        costly_probes=tuple(map(str, _kind(table, "costly_probes", list, [], "a list of names", where))),
        tables={name: dict(_kind(table, name, dict, {}, "a table", where)) for name in _TABLES},
        factors=_factors(_kind(table, "factors", dict, {}, "a table", where), where),
        faults=tuple(
            records.from_toml(Fault, fault, f"{where}: fault")
            for fault in _kind(table, "fault", list, [], "written as [[fault]]", where)
        ),
    )
    if running is not None:
        if experiment.tables["target"] or experiment.tables["network"]:
            # What it says of its server and its link is not so.
            experiment = _replaced(experiment, description=f"{path.stem}, on a server that runs already, as it is")
        experiment = _replaced(experiment, tables={**experiment.tables, "target": dict(running), "network": {}})
    for key, value in (fixed or {}).items():
        if value is not None:
            experiment = _replaced(experiment, tables=_set(experiment.tables, path_of(key), value))
    for override in overrides:
        experiment = _override(experiment, override)
    if replicates is not None:
        experiment = _replaced(experiment, replicates=_count(replicates, "--replicates"))
    cells(experiment)
    return experiment


def included(name: str) -> tuple[str, ...]:
    """The experiments that this one stands for (`includes = [...]`), or itself."""
    path = catalog.find(catalog.EXPERIMENTS, name, "experiment")
    table = catalog.table(path)
    if _INCLUDES not in table:
        return (name,)
    names = table[_INCLUDES]
    if not isinstance(names, list) or not names or not all(isinstance(one, str) for one in names):
        raise SpecError(f"{path}: {_INCLUDES}: a list of experiments is needed, found {names!r}")
    for key in table:
        if key not in ("description", _INCLUDES):
            raise SpecError(f'{path}: "{key}" has no place beside {_INCLUDES}: each experiment has its own')
    return tuple(names)


def cells(experiment: Experiment) -> tuple[Cell, ...]:
    """Every combination of levels, resolved; SpecError names file, key, what was found and the remedy."""
    choices = [[(factor.key, level) for level in factor.levels] for factor in experiment.factors]
    found = tuple(_cell(experiment, dict(chosen)) for chosen in itertools.product(*choices))
    for at, cell in enumerate(found):
        for other in found[:at]:
            if (cell.network, cell.target, cell.load) == (other.network, other.target, other.load):
                raise SpecError(f"{experiment.name}: {other.name} and {cell.name} are the same; take one level out")
    return found


def path_of(key: str) -> tuple[str, ...]:
    """The table and the keys below it that a key of `--set` or `[factors]` means: "heap" is ("target", "heap")."""
    if key in _NAMES:
        return _NAMES[key]
    first, *rest = key.split(".")
    if first in _TABLES and rest:
        _known(
            rest[0],
            {*records.keys(_TABLES[first]), "profile"} if first == "network" else records.keys(_TABLES[first]),
            key,
        )
        return (first, *rest)
    for table in ("target", "load", "network"):
        if first in records.keys(_TABLES[table]) and first != "name":
            return (table, first, *([".".join(rest)] if first == "setting" else rest))
    everything = {*_NAMES, *(name for record in _TABLES.values() for name in records.keys(record) if name != "name")}
    raise SpecError(f'unknown key "{key}"; {records.nearest(first, everything)}')


def _known(found: str, known: Any, key: str) -> None:
    if found not in known:
        raise SpecError(f'unknown key "{key}"; {records.nearest(found, known)}')


def _cell(experiment: Experiment, levels: dict[str, str]) -> Cell:
    tables = {name: dict(table) for name, table in experiment.tables.items()}
    for key, level in levels.items():
        tables = _set(tables, path_of(key), level)
    network = tables["network"]
    overrides = {key: value for key, value in network.items() if key != "profile"}
    where = experiment.name
    coherence.check_running(tables, experiment.faults, where)
    target = records.from_toml(TargetOptions, tables["target"], f"{where}: target")
    return Cell(
        name=cell_name(levels),
        levels=levels,
        network=None if target.runs_already else catalog.profile(str(network.get("profile", "loopback")), overrides),
        target=target,
        load=records.from_toml(LoadOptions, tables["load"], f"{where}: load"),
        faults=experiment.faults,
        probes=experiment.probes,
    )


def _set(tables: dict[str, dict[str, Any]], path: Sequence[str], value: Any) -> dict[str, dict[str, Any]]:
    nested: Any = value
    for step in reversed(path):
        nested = {step: nested}
    return catalog.merged(tables, nested)


def _factors(table: Mapping[str, Any], where: str) -> tuple[Factor, ...]:
    factors = []
    for key, levels in table.items():
        if not isinstance(levels, list) or not levels:
            raise SpecError(f"{where}: factors: {key}: a factor is a list of levels, found {levels!r}")
        factors.append(_factor(key, [_text(level) for level in levels], f"{where}: factors"))
    return tuple(factors)


def _factor(key: str, levels: Sequence[str], where: str) -> Factor:
    path_of(key)
    twice = next((level for level in levels if levels.count(level) > 1), None)
    if twice is not None:
        raise SpecError(f'{where}: {key}: the level "{twice}" is given twice')
    return Factor(key=key, levels=tuple(levels))


def _override(experiment: Experiment, text: str) -> Experiment:
    key, equals, value = text.partition("=")
    if not equals or not value:
        raise SpecError(f'--set {text}: write it like "heap=1g,2g"')
    path = path_of(key)
    kept = [factor for factor in experiment.factors if path_of(factor.key) != path]
    place = next((at for at, factor in enumerate(experiment.factors) if path_of(factor.key) == path), len(kept))
    kept.insert(place, _factor(key, value.split(","), "--set"))
    return _replaced(experiment, factors=tuple(kept))


def _replaced(experiment: Experiment, **changes: Any) -> Experiment:
    return dataclasses.replace(experiment, **changes)


def _text(level: Any) -> str:
    return str(level).lower() if isinstance(level, bool) else str(level)


def _kind(table: Mapping[str, Any], key: str, kind: type, default: Any, what: str, where: str) -> Any:
    value = table.get(key, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise SpecError(f"{where}: {key}: {value!r} is not {what}")
    return value


def _count(value: Any, where: str) -> int:
    if not isinstance(value, int) or value < 1:
        raise SpecError(f"{where}: {value!r} is not a count of at least 1")
    return value


def cell_name(levels: Mapping[str, str]) -> str:
    """The name of the cell with these levels, also its folder below the results."""
    parts = (f"{key.rpartition('.')[2]}={level}" for key, level in levels.items())
    # It is a folder's name too, and the JVM's options take no path with a comma, a colon, a quote or a space.
    return "+".join(re.sub(r"[^A-Za-z0-9=._-]+", "_", part) for part in parts) or "only"
