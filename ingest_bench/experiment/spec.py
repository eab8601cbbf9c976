"""Experiments: TOML and overrides → Experiment → cells → plan of ordered runs. Pure, except for reading files."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog, contradictions, key_paths
from ingest_bench.inputs import records
from ingest_bench.inputs.names import check_name, suggest
from ingest_bench.model.experiment import (
    MAX_LEVELS,
    MAX_RUNS,
    SIDES,
    Cell,
    Experiment,
    Factor,
    Fault,
    HostSettings,
    Plan,
    Run,
)
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Profile
from ingest_bench.model.target import TargetOptions
from ingest_bench.units import quote_name, quote_value

_INCLUDES = "includes"
_MAX_INCLUDES, _MAX_FAULTS = 100, 1000
_HEAD = key_paths.HEAD
TOP = (*_HEAD, "factors", "fault", "settings", *key_paths.TABLES)
# Command-line options whose names differ from their keys.
_OPTIONS = {"measure_documents": "--documents", "file": "--target"}
# The name of a cell is that of a folder (NAME_MAX of Linux is 255), and a search appends its rate.
_MAX_NAME_LENGTH = 200


def load_experiment(
    name: str,
    overrides: Sequence[str] = (),
    *,
    fixed: Mapping[str, Any] | None = None,
    running: Mapping[str, Any] | None = None,
    replicates: int | None = None,
) -> Experiment:
    """Load an experiment by name or path, with each `key=value[,value…]` of `--set` applied.

    *fixed* holds values that have an option of their own, such as {"measure": "20s"}; None keeps the value of the file.
    *running* is a target that runs already: it replaces the target and the network of the file.
    """
    experiment = _read_experiment(catalog.find_file(catalog.EXPERIMENTS, name, "experiment"))
    if running is not None:
        experiment = _replace_target(experiment, running)
    chosen = _check_options(fixed or {})
    for key, value in chosen.items():
        tables = key_paths.set_value(experiment.tables, key_paths.resolve_key(key), value)
        experiment = replace(experiment, tables=tables)
    options = {key_paths.resolve_key(key): _OPTIONS.get(key, f"--{key}") for key in chosen}
    experiment = _apply_overrides(experiment, overrides, options)
    if replicates is not None:
        checked = records.read_key(Experiment, ("replicates",), replicates, "--replicates")
        experiment = replace(experiment, replicates=checked)
    build_cells(experiment)
    return experiment


def _read_experiment(path: Path) -> Experiment:
    table, where = catalog.read_table(path), str(path)
    for key in table:
        if key == _INCLUDES:
            raise SpecError(f"{where}: this file only includes other experiments. Run one of them, or all by its name.")
        if key not in TOP:
            remedy = suggest(key, (*TOP, *key_paths.iter_keys(())), "docs/keys.md")
            raise SpecError(f'{where}: unknown key "{quote_name(key)}"; {remedy}')
    faults = _get(table, "fault", list, [], "written as [[fault]]", where)
    if len(faults) > _MAX_FAULTS:
        raise SpecError(f"{where}: fault: {len(faults):,} faults; at most {_MAX_FAULTS:,} are allowed")
    head = {key: records.read_key(Experiment, (key,), table[key], f"{where}: {key}") for key in _HEAD if key in table}
    tables = {name: dict(_get(table, name, dict, {}, "a table", where)) for name in key_paths.TABLES}
    if isinstance(settings := tables["target"].get("setting"), dict):
        tables["target"]["setting"] = key_paths.flatten_table(settings, f"{where}: target.setting")
    settings_by_target = _get(table, "settings", dict, {}, "a table", where)
    for target, values in settings_by_target.items():
        key_paths.check_value(("target", "name"), target, f"{where}: settings")
        records.read_key(TargetOptions, ("setting",), values, f"{where}: settings.{target}")
    for steps, value in key_paths.iter_leaves(tables):
        key_paths.check_value(steps, value, f"{where}: {'.'.join(map(quote_name, steps))}")
        tables = key_paths.set_value(tables, steps, key_paths.convert_value(steps, value))
    return Experiment(
        name=catalog.file_stem(path),
        **head,
        tables=tables,
        settings=settings_by_target,
        factors=_factors(_get(table, "factors", dict, {}, "a table", where), where),
        faults=tuple(records.from_toml(Fault, fault, f"{where}: fault") for fault in faults),
    )


def _replace_target(experiment: Experiment, running: Mapping[str, Any]) -> Experiment:
    if any(experiment.tables[name] for name in ("target", *key_paths.LINKS)):
        # What the file says about its server and its link does not apply.
        description = f"{experiment.name}, on a server that runs already, as it is"
        experiment = replace(experiment, description=description)
    network = experiment.tables["network"] if running.get("interface") is not None else {}
    kept = {key: value for key, value in experiment.tables["target"].items() if key in ("file", "custom")}
    tables = {**experiment.tables, "target": kept | _check_options(running), "network": network, "peers": {}}
    return replace(experiment, tables=tables)


def parse_profile_overrides(settings: Sequence[str]) -> dict[str, Any]:
    """Return what each `key=value` of `net --set` overrides in a profile; SpecError for invalid keys and values."""
    overrides: dict[str, Any] = {}
    paths = set()
    for text in settings:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise SpecError(f"--set {quote_name(text)}: write it like mtu=9000 or to_server.delay=5ms")
        path = tuple(key.removeprefix("network.").split("."))
        if path in paths:
            raise SpecError(f"--set {key}: given twice. Remove one of them.")
        paths.add(path)
        key_paths.check_key("network", path[0], f"--set {quote_name(key)}: unknown key")
        records.read_key(Profile, path, value, f"--set {quote_name(key)}")
        overrides = key_paths.set_value(overrides, path, value)
    return overrides


def expand_includes(name: str) -> tuple[str, ...]:
    """Return the names of the experiments that this one includes (`includes = [...]`), or its own name."""
    path = catalog.find_file(catalog.EXPERIMENTS, name, "experiment")
    table = catalog.read_table(path)
    if _INCLUDES not in table:
        return (name,)
    names = table[_INCLUDES]
    if isinstance(names, list) and len(names) > _MAX_INCLUDES:
        raise SpecError(f"{path}: {_INCLUDES}: {len(names):,} experiments; at most {_MAX_INCLUDES} are allowed")
    if not isinstance(names, list) or not names or not all(isinstance(item, str) for item in names):
        raise SpecError(f"{path}: {_INCLUDES}: requires a list of experiments, found {quote_value(names)}")
    for key in table:
        if key not in ("description", _INCLUDES):
            raise SpecError(
                f'{path}: "{quote_name(key)}" cannot be combined with {_INCLUDES}: each experiment has its own'
            )
    return tuple(names)


def build_cells(experiment: Experiment) -> tuple[Cell, ...]:
    """Return the cells of all combinations of levels; SpecError names file, key, value and remedy."""
    _check_faults(experiment)
    runs_per_cell = experiment.replicates * (2 if experiment.costly_probes else 1)
    runs = runs_per_cell * math.prod(len(factor.levels) for factor in experiment.factors)
    if runs > MAX_RUNS:
        raise SpecError(
            f"{experiment.name}: the plan has {runs:,} runs; at most {MAX_RUNS:,} are allowed. "
            "Choose fewer levels or replicates."
        )
    choices = [[(factor.key, level) for level in factor.levels] for factor in experiment.factors]
    cells = tuple(_build_cell(experiment, dict(levels)) for levels in itertools.product(*choices))
    by_content: dict[str, Cell] = {}
    by_name: dict[str, Cell] = {}
    for cell in cells:
        if len(cell.name) > _MAX_NAME_LENGTH:
            raise SpecError(
                f"{experiment.name}: the levels make a folder name of {len(cell.name)} characters; at most "
                f"{_MAX_NAME_LENGTH} are allowed. Write constant values into the experiment's file."
            )
        content = repr((cell.network, cell.peers, cell.target, cell.load, cell.host, cell.faults))
        other = by_content.setdefault(content, cell)
        if other is not cell:
            raise SpecError(f"{experiment.name}: {other.name} and {cell.name} are the same. Remove one level.")
        other = by_name.setdefault(cell.name, cell)
        if other is not cell:
            raise SpecError(
                f"{experiment.name}: {other.levels} and {cell.levels} would both have the folder {cell.name}. "
                "Choose levels that differ in letters or digits."
            )
    return cells


def _check_faults(experiment: Experiment) -> None:
    """Check that levels of the factor `fault` are names of faults, and that no fault is named "none"."""
    if any(fault.name == "none" for fault in experiment.faults):
        raise SpecError(f'{experiment.name}: fault: "none" is the level without a fault. Choose another name.')
    names = {"none", *(fault.name for fault in experiment.faults if fault.name)}
    for factor in experiment.factors:
        if key_paths.resolve_key(factor.key)[0] == "fault":
            for level in factor.levels:
                problem = f'{experiment.name}: factors: fault: no [[fault]] is named "{quote_name(level)}"'
                check_name(level, names, problem)


def build_target(table: Mapping[str, Any], where: str) -> TargetOptions:
    """Return the target of a table, completed from the file of a custom target if the table names one."""
    file = str(table.get("file", table.get("name", "")))
    if "file" not in table and not catalog.is_custom_target(file):
        return records.from_toml(TargetOptions, table, where)
    path = catalog.find_file(catalog.CUSTOM_TARGETS, file, "example target")
    custom = catalog.merge_tables(catalog.read_custom_target(path), dict(table.get("custom", {})))
    start = {} if {"url", "attach"} & set(table) else custom.get("start", {})
    defaults = {key: start[key] for key in ("heap", "gc") if key in start}
    named = {"file": str(path), "name": catalog.file_stem(path), "custom": custom}
    return records.from_toml(TargetOptions, {**defaults, **table, **named}, where)


def _build_cell(experiment: Experiment, levels: dict[str, str]) -> Cell:
    tables = {name: dict(table) for name, table in experiment.tables.items()}
    paths = [key_paths.resolve_key(key) for key in levels]
    for path, level in zip(paths, levels.values(), strict=True):
        for level_path, value in key_paths.split_level(path, level).items():
            if level_path != path and level_path in paths:
                raise SpecError(
                    f'{experiment.name}: the target "{level}" has a version, and {level_path[-1]} is a factor too. '
                    "Remove one of them."
                )
            tables = key_paths.set_value(tables, level_path, key_paths.convert_value(level_path, value))
        twin = key_paths.TWINS.get(path)
        if twin is not None and twin not in paths:
            tables[twin[0]].pop(twin[1], None)
    name = str(tables["target"].get("name", TargetOptions().name))
    if settings := experiment.settings.get(name):
        tables["target"] = catalog.merge_tables({"setting": settings}, tables["target"])
    where = experiment.name
    fault_name = tables.pop("fault", {}).get("name")
    faults = tuple(fault for fault in experiment.faults if fault_name is None or fault.name in (None, fault_name))
    contradictions.check_running_target(tables, faults, where)
    target = build_target(tables["target"], f"{where}: target")
    options = records.from_toml(LoadOptions, tables["load"], f"{where}: load")
    if options.bulk_documents is not None and options.bulk_bytes is not None:
        raise SpecError(f"{where}: load: bulk conflicts with bulk_documents. Remove one of them.")
    default_profile = "unshaped" if target.nodes > 1 else "loopback"
    cell = Cell(
        name=cell_name({factor.key: levels[factor.key] for factor in experiment.factors if factor.names_cells}),
        levels=levels,
        network=None
        if target.is_already_running and not target.interface
        else _load_profile(tables["network"], default_profile),
        peers=_load_profile(tables["peers"], default_profile) if target.nodes > 1 else None,
        target=target,
        load=options,
        host=records.from_toml(HostSettings, tables["host"], f"{where}: host"),
        faults=faults,
        probes=experiment.probes,
    )
    contradictions.check_nodes(cell, where)
    absolute: Cell = catalog.with_absolute_paths(cell)
    return absolute


def _load_profile(table: Mapping[str, Any], default: str) -> Profile:
    overrides = {key: value for key, value in table.items() if key != "profile"}
    return catalog.load_profile(str(table.get("profile", default)), overrides)


def _check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command-line options that are set, by their keys; SpecError for invalid values."""
    chosen = {key: value for key, value in options.items() if value is not None}
    for key, value in chosen.items():
        key_paths.check_value(key_paths.resolve_key(key), value, _OPTIONS.get(key, f"--{key.replace('_', '-')}"))
    return chosen


def _factors(table: Mapping[str, Any], where: str) -> tuple[Factor, ...]:
    factors = []
    for key, levels in key_paths.flatten_table(table, f"{where}: factors").items():
        key_where = f"{where}: factors: {quote_name(key)}"
        if not isinstance(levels, list) or not levels:
            raise SpecError(f"{key_where}: a factor requires a list of levels, found {quote_value(levels)}")
        factors.append(_factor(key, [_level_text(level, key_where) for level in levels], key_where))
    return tuple(factors)


def _factor(key: str, levels: Sequence[str], where: str) -> Factor:
    path = key_paths.resolve_key(key)
    if len(levels) > MAX_LEVELS:
        raise SpecError(f"{where}: {len(levels):,} levels; at most {MAX_LEVELS:,} are allowed")
    repeated = next((level for level in levels if levels.count(level) > 1), None)
    if repeated is not None:
        raise SpecError(f"{where}: the level {quote_value(repeated)} is given twice. Remove one of them.")
    for level in levels:
        for level_path, value in key_paths.split_level(path, level).items():
            key_paths.check_value(level_path, value, where)
    return Factor(key=key_paths.unquote_key(key), levels=tuple(levels))


def _apply_overrides(
    experiment: Experiment, overrides: Sequence[str], options: Mapping[tuple[str, ...], str]
) -> Experiment:
    """Replace the factor of each `key=value[,value…]`, or append it."""
    sources = dict(options)
    factors = list(experiment.factors)
    for text in overrides:
        key, _, value = text.partition("=")
        if not key or not value:
            raise SpecError(f'--set {quote_name(text)}: write it like "heap=1g,2g"')
        path = key_paths.resolve_key(key, value.partition(",")[0])
        if path in sources:
            raise SpecError(f"--set {key}: set already by {sources[path]}. Give all levels at once: {key}=A,B")
        sources[path] = f"--set {quote_name(key)}"
        place = next(
            (index for index, factor in enumerate(factors) if key_paths.resolve_key(factor.key) == path), len(factors)
        )
        factor = _factor(key, value.split(","), sources[path])
        # Otherwise results with another heap would have other cells.
        is_named = place < len(factors) or len(factor.levels) > 1
        factors[place : place + 1] = [replace(factor, names_cells=is_named)]
    return replace(experiment, factors=tuple(factors))


def _level_text(level: Any, where: str) -> str:
    if not isinstance(level, (str, int, float)):
        raise SpecError(f"{where}: {quote_value(level)} is not a level. Write a text, a number, true or false.")
    if isinstance(level, bool):
        return str(level).lower()
    try:
        return str(level)
    except ValueError:
        raise SpecError(f"{where}: {quote_value(level)} is not a level") from None


def _get(table: Mapping[str, Any], key: str, kind: type, default: Any, what: str, where: str) -> Any:
    value = table.get(key, default)
    if not isinstance(value, kind):
        raise SpecError(f"{where}: {key}: {quote_value(value)} is not {what}")
    return value


def cell_name(levels: Mapping[str, str]) -> str:
    """Return the name of the cell with these levels, also its folder in the results."""
    parts = (f"{key.rpartition('.')[2]}={level}" for key, level in levels.items())
    # JVM options accept no path with a comma, a colon, a quote or a space.
    return "+".join(re.sub(r"[^A-Za-z0-9=._-]+", "_", part) for part in parts) or "only"


def add_level(cell: Cell, key: str, level: str) -> Cell:
    """Return the cell with one more level, also in its name."""
    name = cell_name({key: level}) if cell.name == cell_name({}) else f"{cell.name}+{cell_name({key: level})}"
    return replace(cell, name=name, levels={**cell.levels, key: level})


def build_plan(experiment: Experiment) -> Plan:
    """Return the ordered runs: one block per replicate, shuffled by the seed, so that a drift affects all cells."""
    cells = build_cells(experiment)
    runs = []
    for replicate in range(1, experiment.replicates + 1):
        block = [Run(id=f"{cell.name}/{replicate}", cell=cell, replicate=replicate) for cell in cells]
        if experiment.costly_probes:
            probed = [replace(cell, probes=(*cell.probes, *experiment.costly_probes)) for cell in cells]
            names = [f"{cell.name}/{replicate}-instrumented" for cell in cells]
            block += [
                Run(id=name, cell=cell, replicate=replicate, instrumented=True)
                for name, cell in zip(names, probed, strict=True)
            ]
        random.Random(f"{experiment.seed}/{replicate}").shuffle(block)  # noqa: S311 - an order, not a secret
        runs += block
    return Plan(
        experiment=experiment.name,
        description=experiment.description,
        headline=experiment.headline,
        seed=experiment.seed,
        factors=experiment.factors,
        runs=tuple(runs),
    )


def pair_runs(plan: Plan) -> Plan:
    """Return the plan of an A/A test: each run twice in a row, for both sides in random order."""
    if len(SIDES) * len(plan.runs) > MAX_RUNS:
        raise SpecError(
            f"--aa: the plan has {len(SIDES) * len(plan.runs):,} runs; at most {MAX_RUNS:,} are allowed. Choose fewer."
        )
    runs = []
    for run in plan.runs:
        sides = list(SIDES)
        random.Random(f"{plan.seed}/{run.id}").shuffle(sides)  # noqa: S311 - an order, not a secret
        for side in sides:
            cell = add_level(run.cell, "side", side)
            runs.append(replace(run, id=cell.name + run.id.removeprefix(run.cell.name), cell=cell))
    return replace(plan, factors=(*plan.factors, Factor(key="side", levels=SIDES)), runs=tuple(runs))
