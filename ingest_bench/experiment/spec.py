"""TOML and the user's overrides to an Experiment, and an Experiment to its cells. Pure but for reading files."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog, contradictions, key_paths, whole_paths
from ingest_bench.inputs import records
from ingest_bench.model.experiment import MOST_LEVELS, MOST_RUNS, Cell, Experiment, Factor, Fault
from ingest_bench.model.host_settings import HostSettings
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Profile
from ingest_bench.model.target import TargetOptions
from ingest_bench.units import quoted, spelled

_INCLUDES = "includes"
_MOST_INCLUDES, _MOST_FAULTS = 100, 1000
# What an experiment says of itself, beside its tables.
_HEAD = ("description", "replicates", "seed", "probes", "costly_probes")
TOP = (*_HEAD, "factors", "fault", "settings", *key_paths.TABLES)
# Two keys for one thing: the one that is set takes the place of the other.
_TWINS: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("load", "bulk"): ("load", "bulk_documents"),
    ("load", "bulk_documents"): ("load", "bulk"),
}
# Options of the command whose names are not their keys'.
_OPTIONS = {"measure_documents": "--documents", "file": "--target"}
# A cell's name is a folder's (NAME_MAX of Linux is 255), and a search adds its rate.
_LONGEST_NAME = 200


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
            raise SpecError(f'{where}: unknown key "{spelled(key)}"; {records.nearest(key, TOP)}')
    faults = _kind(table, "fault", list, [], "written as [[fault]]", where)
    if len(faults) > _MOST_FAULTS:
        raise SpecError(f"{where}: fault: {len(faults):,} faults, and at most {_MOST_FAULTS:,} are possible")
    head = {key: records.at(Experiment, (key,), table[key], f"{where}: {key}") for key in _HEAD if key in table}
    tables = {name: dict(_kind(table, name, dict, {}, "a table", where)) for name in key_paths.TABLES}
    if isinstance(settings := tables["target"].get("setting"), dict):
        tables["target"]["setting"] = key_paths.dotted(settings, f"{where}: target.setting")
    for steps, value in key_paths.leaves(tables):
        key_paths.check(steps, value, f"{where}: {'.'.join(map(spelled, steps))}")
        tables = key_paths.set_at(tables, steps, key_paths.typed(steps, value))
    experiment = Experiment(
        name=catalog.called(path),
        **head,
        tables=tables,
        settings=_settings(_kind(table, "settings", dict, {}, "a table", where), where),
        factors=_factors(_kind(table, "factors", dict, {}, "a table", where), where),
        faults=tuple(records.from_toml(Fault, fault, f"{where}: fault") for fault in faults),
    )
    if running is not None:
        if any(experiment.tables[name] for name in ("target", *key_paths.LINKS)):
            # What it says of its server and its link is not so.
            description = f"{catalog.called(path)}, on a server that runs already, as it is"
            experiment = dataclasses.replace(experiment, description=description)
        network = experiment.tables["network"] if running.get("interface") is not None else {}
        kept = {key: value for key, value in experiment.tables["target"].items() if key in ("file", "server")}
        tables = {**experiment.tables, "target": kept | _asked(running), "network": network, "peers": {}}
        experiment = dataclasses.replace(experiment, tables=tables)
    chosen = _asked(fixed or {})
    for key, value in chosen.items():
        tables = key_paths.set_at(experiment.tables, key_paths.path_of(key), value)
        experiment = dataclasses.replace(experiment, tables=tables)
    given = {key_paths.path_of(key): _OPTIONS.get(key, f"--{key}") for key in chosen}
    experiment = _overridden(experiment, overrides, given)
    if replicates is not None:
        checked = records.at(Experiment, ("replicates",), replicates, "--replicates")
        experiment = dataclasses.replace(experiment, replicates=checked)
    cells(experiment)
    return experiment


def profile_overrides(settings: Sequence[str]) -> dict[str, Any]:
    """What each `key=value` of `net --set` changes of a profile; SpecError for what no profile may have."""
    found: dict[str, Any] = {}
    given = set()
    for text in settings:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise SpecError(f"--set {spelled(text)}: write it like mtu=9000 or to_server.delay=5ms")
        path = tuple(key.removeprefix("network.").split("."))
        if path in given:
            raise SpecError(f"--set {key}: it is given twice; take one of them out")
        given.add(path)
        records.at(Profile, path, value, f"--set {spelled(key)}")
        found = key_paths.set_at(found, path, value)
    return found


def included(name: str) -> tuple[str, ...]:
    """The experiments that this one stands for (`includes = [...]`), or itself."""
    path = catalog.find(catalog.EXPERIMENTS, name, "experiment")
    table = catalog.table(path)
    if _INCLUDES not in table:
        return (name,)
    names = table[_INCLUDES]
    if isinstance(names, list) and len(names) > _MOST_INCLUDES:
        raise SpecError(f"{path}: {_INCLUDES}: {len(names):,} experiments, and at most {_MOST_INCLUDES} are possible")
    if not isinstance(names, list) or not names or not all(isinstance(one, str) for one in names):
        raise SpecError(f"{path}: {_INCLUDES}: a list of experiments is needed, found {quoted(names)}")
    for key in table:
        if key not in ("description", _INCLUDES):
            raise SpecError(f'{path}: "{spelled(key)}" has no place beside {_INCLUDES}: each experiment has its own')
    return tuple(names)


def cells(experiment: Experiment) -> tuple[Cell, ...]:
    """Every combination of levels, resolved; SpecError names file, key, what was found and the remedy."""
    _check_faults(experiment)
    each = experiment.replicates * (2 if experiment.costly_probes else 1)
    runs = each * math.prod(len(factor.levels) for factor in experiment.factors)
    if runs > MOST_RUNS:
        raise SpecError(
            f"{experiment.name}: that makes {runs:,} runs, and at most {MOST_RUNS:,} are done; "
            "take fewer levels or replicates"
        )
    choices = [[(factor.key, level) for level in factor.levels] for factor in experiment.factors]
    found = tuple(_cell(experiment, dict(chosen)) for chosen in itertools.product(*choices))
    alike: dict[str, Cell] = {}
    folders: dict[str, Cell] = {}
    for cell in found:
        if len(cell.name) > _LONGEST_NAME:
            raise SpecError(
                f"{experiment.name}: the levels make a folder's name of {len(cell.name)} characters, and at most "
                f"{_LONGEST_NAME} are possible; write what does not vary into the experiment's file"
            )
        other = alike.setdefault(repr((cell.network, cell.peers, cell.target, cell.load, cell.host, cell.faults)), cell)
        if other is not cell:
            raise SpecError(f"{experiment.name}: {other.name} and {cell.name} are the same; take one level out")
        other = folders.setdefault(cell.name, cell)
        if other is not cell:
            raise SpecError(
                f"{experiment.name}: {other.levels} and {cell.levels} would both have the folder {cell.name}; "
                "let the levels differ in letters or digits"
            )
    return found


def _check_faults(experiment: Experiment) -> None:
    """SpecError where a level of the factor `fault` is the name of none, or one has the name of a cell without any."""
    if any(fault.name == "none" for fault in experiment.faults):
        raise SpecError(f'{experiment.name}: fault: "none" is the level where none happens; give it another name')
    known = {"none", *(fault.name for fault in experiment.faults if fault.name)}
    for factor in experiment.factors:
        if key_paths.path_of(factor.key)[0] == "fault":
            for level in factor.levels:
                if level not in known:
                    raise SpecError(
                        f'{experiment.name}: factors: fault: no [[fault]] has the name "{spelled(level)}"; '
                        f"{records.nearest(level, known)}"
                    )


def target_options(table: Mapping[str, Any], where: str) -> TargetOptions:
    """The target of such a table. Where it names a file of the user's own, that says the rest."""
    if "file" not in table:
        return records.from_toml(TargetOptions, table, where)
    own = catalog.merged(catalog.server(str(table["file"])), dict(table.get("server", {})))
    start = {} if {"url", "attach"} & set(table) else own.get("start", {})
    usual = {key: start[key] for key in ("heap", "gc") if key in start}
    named = {"name": catalog.called(Path(str(table["file"]))), "server": own}
    return records.from_toml(TargetOptions, {**usual, **table, **named}, where)


def _cell(experiment: Experiment, levels: dict[str, str]) -> Cell:
    tables = {name: dict(table) for name, table in experiment.tables.items()}
    paths = [key_paths.path_of(key) for key in levels]
    for path, level in zip(paths, levels.values(), strict=True):
        for each, value in key_paths.parted(path, level).items():
            if each != path and each in paths:
                raise SpecError(
                    f'{experiment.name}: the target "{level}" has a version, and so has the factor {each[-1]}; '
                    "take one of them out"
                )
            tables = key_paths.set_at(tables, each, key_paths.typed(each, value))
        twin = _TWINS.get(path)
        if twin is not None and twin not in paths:
            tables[twin[0]].pop(twin[1], None)
    name = str(tables["target"].get("name", TargetOptions().name))
    if own := experiment.settings.get(name):
        tables["target"] = catalog.merged({"setting": own}, tables["target"])
    where = experiment.name
    happens = tables.pop("fault", {}).get("name")
    faults = tuple(fault for fault in experiment.faults if happens is None or fault.name in (None, happens))
    contradictions.check_running(tables, faults, where)
    target = target_options(tables["target"], f"{where}: target")
    options = records.from_toml(LoadOptions, tables["load"], f"{where}: load")
    contradictions.check_load(options, f"{where}: load")
    usual = "unshaped" if target.nodes > 1 else "loopback"
    cell = Cell(
        name=cell_name(levels),
        levels=levels,
        network=None if target.runs_already and not target.interface else _profile(tables["network"], usual),
        peers=_profile(tables["peers"], usual) if target.nodes > 1 else None,
        target=target,
        load=options,
        host=records.from_toml(HostSettings, tables["host"], f"{where}: host"),
        faults=faults,
        probes=experiment.probes,
    )
    contradictions.check_nodes(cell, where)
    return whole_paths.from_anywhere(cell)


def _profile(table: Mapping[str, Any], usual: str) -> Profile:
    """The profile that such a table names and changes."""
    return catalog.profile(
        str(table.get("profile", usual)), {key: value for key, value in table.items() if key != "profile"}
    )


def _asked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, by the keys that they stand for."""
    given = {key: value for key, value in options.items() if value is not None}
    for key, value in given.items():
        key_paths.check(key_paths.path_of(key), value, _OPTIONS.get(key, f"--{key.replace('_', '-')}"))
    return given


def _settings(table: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """The settings of each server by its name, `[settings.forwarder]`."""
    for target, own in table.items():
        key_paths.check(("target", "name"), target, f"{where}: settings")
        records.at(TargetOptions, ("setting",), own, f"{where}: settings.{target}")
    return dict(table)


def _factors(table: Mapping[str, Any], where: str) -> tuple[Factor, ...]:
    factors = []
    for key, levels in key_paths.dotted(table, f"{where}: factors").items():
        if not isinstance(levels, list) or not levels:
            raise SpecError(f"{where}: factors: {spelled(key)}: a factor is a list of levels, found {quoted(levels)}")
        here = f"{where}: factors: {spelled(key)}"
        factors.append(_factor(key, [_text(level, here) for level in levels], here))
    return tuple(factors)


def _factor(key: str, levels: Sequence[str], where: str) -> Factor:
    path = key_paths.path_of(key)
    if len(levels) > MOST_LEVELS:
        raise SpecError(f"{where}: a factor has at most {MOST_LEVELS:,} levels, found {len(levels):,}")
    twice = next((level for level in levels if levels.count(level) > 1), None)
    if twice is not None:
        raise SpecError(f"{where}: the level {quoted(twice)} is given twice")
    for level in levels:
        for each, value in key_paths.parted(path, level).items():
            key_paths.check(each, value, where)
    return Factor(key=key_paths.plain(key), levels=tuple(levels))


def _overridden(experiment: Experiment, overrides: Sequence[str], options: Mapping[tuple[str, ...], str]) -> Experiment:
    """The experiment with each `key=value[,value…]` in the place of its factor, or as one more."""
    given = dict(options)
    factors = list(experiment.factors)
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not value:
            raise SpecError(f'--set {spelled(text)}: write it like "heap=1g,2g"')
        path = key_paths.path_of(key)
        if path in given:
            raise SpecError(f"--set {key}: it is given already, by {given[path]}; give all levels at once: {key}=A,B")
        given[path] = f"--set {spelled(key)}"
        place = next((at for at, factor in enumerate(factors) if key_paths.path_of(factor.key) == path), len(factors))
        factors[place : place + 1] = [_factor(key, value.split(","), given[path])]
    return dataclasses.replace(experiment, factors=tuple(factors))


def _text(level: Any, where: str) -> str:
    if not isinstance(level, (str, int, float)):
        raise SpecError(f"{where}: {quoted(level)} is no level: a text, a number, true or false")
    if isinstance(level, bool):
        return str(level).lower()
    try:
        return str(level)
    except ValueError:
        raise SpecError(f"{where}: {quoted(level)} is no level") from None


def _kind(table: Mapping[str, Any], key: str, kind: type, default: Any, what: str, where: str) -> Any:
    value = table.get(key, default)
    if not isinstance(value, kind):
        raise SpecError(f"{where}: {key}: {quoted(value)} is not {what}")
    return value


def cell_name(levels: Mapping[str, str]) -> str:
    """The name of the cell with these levels, also its folder below the results."""
    parts = (f"{key.rpartition('.')[2]}={level}" for key, level in levels.items())
    # It is a folder's name too, and the JVM's options take no path with a comma, a colon, a quote or a space.
    return "+".join(re.sub(r"[^A-Za-z0-9=._-]+", "_", part) for part in parts) or "only"
