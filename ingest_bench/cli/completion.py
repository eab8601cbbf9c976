"""Shell completion of names: experiments, keys and values of `--set`, network profiles, targets, and results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args, get_type_hints

from ingest_bench import targets
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog, key_paths
from ingest_bench.inputs import files, records
from ingest_bench.results import layout

# Shells insert our names without quotes, zsh even evaluates them: a folder may be named "$(command)".
_UNQUOTED = re.compile(r"[\w./=,+@%:-]+")


def complete_experiment(incomplete: str) -> list[str]:
    """Return shipped experiments, and TOML files of the present folder."""
    return _select([*files.data_files(catalog.EXPERIMENTS), *map(str, Path().glob("*.toml"))], incomplete)


def complete_target(incomplete: str) -> list[str]:
    """Return the targets that ingest-bench can start, and the examples."""
    return _select([*targets.TARGETS, *files.data_files(catalog.CUSTOM_TARGETS)], incomplete)


def complete_results(incomplete: str) -> list[str]:
    """Return experiments with results, and their folders once a name is typed."""
    experiments = [path for path in layout.RESULTS.glob("*") if path.is_dir()]
    folders = [str(path) for experiment in experiments for path in sorted(experiment.glob("*"), reverse=True)]
    return _select([*(path.name for path in experiments), *(folders if "/" in incomplete else [])], incomplete)


def complete_setting(incomplete: str) -> list[str]:
    """Return the keys of `--set`, or the known values of a key."""
    key, equals, levels = incomplete.partition("=")
    if not equals:
        return [f"{name}=" for name in _select(key_paths.iter_keys(), key)]
    # A comma separates levels, and two dots the ends of a bisection; the last one is completed.
    before = f"{key}={levels[: max(levels.rfind(',') + 1, levels.rfind('..') + 2 if '..' in levels else 0)]}"
    return _select((before + value for value in _known_values(key)), incomplete)


def _known_values(key: str) -> Iterator[str]:
    try:
        table, name, *nested = key_paths.resolve_key(key)
    except SpecError:
        return
    if name == "profile":
        yield from files.data_files(catalog.NETWORKS)
    elif (table, name) == ("target", "name"):
        yield from complete_target("")
    elif (table, name) == ("target", "version"):
        yield from dict.fromkeys(version for target in targets.TARGETS.values() for version in target.versions)
    elif name == "workload":
        yield from files.data_files(catalog.WORKLOADS)
    elif not nested:
        record = key_paths.TABLES[table]
        hint = get_type_hints(record).get(records.fields_by_key(record).get(name, ""))
        yield from (value for value in get_args(hint) if isinstance(value, str))
        yield from ("true", "false") if hint is bool else ()


def _select(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names with that beginning. Shells complete other file names themselves, and quote them."""
    return [name for name in names if name.startswith(incomplete) and _UNQUOTED.fullmatch(name)]
