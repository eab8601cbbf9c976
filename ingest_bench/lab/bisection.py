"""The bisection of releases: its plan, and its runs, one at a time (`analysis.compare.bisection` decides).

plan.json has each run before it starts, so that an interrupted bisection resumes from its folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence

from ingest_bench import targets
from ingest_bench.analysis.compare import bisection
from ingest_bench.analysis.compare.cells import AFFECTED_BY_PROBES
from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.inputs.names import find_match
from ingest_bench.jvm import artifacts
from ingest_bench.model.experiment import Bisection, Plan, Run
from ingest_bench.model.results import Summary
from ingest_bench.model.target import TargetOptions
from ingest_bench.results.layout import Results
from ingest_bench.units import quote_name


def select_releases(options: TargetOptions, first: str, last: str) -> list[str]:
    """Return the releases of a target from *first* to *last*; SpecError if one is unknown, or the later one is first.

    Pre-releases are left out, unless an end is one.
    """
    target = targets.resolve(options)
    versions = artifacts.sort_versions(target.list_releases())
    ends = [find_release(name, versions, f"--set version: {target.name}") for name in (first, last)]
    keeps_all = any(map(artifacts.is_pre_release, ends))
    low, high = map(versions.index, ends)
    if low > high:
        raise SpecError(f"--set version: {last} is earlier than {first}. Write it first, and add --good {first}.")
    return [name for name in versions[low : high + 1] if keeps_all or not artifacts.is_pre_release(name)]


def find_release(name: str, releases: Sequence[str], where: str) -> str:
    """Return the release of that name, also without a suffix such as ".Final"; SpecError with a suggestion."""
    release = artifacts.find_version(name, releases)
    if release is None:
        match = find_match(name, releases)
        remedy = f'did you mean "{match}"?' if match else f"it has those from {releases[0]} to {releases[-1]}"
        raise SpecError(f'{where} has no release "{quote_name(name)}"; {remedy}')
    return release


def plan_bisection(ordered: Plan, rules: Bisection) -> Plan:
    """Return the initial plan of a bisection: all runs of both ends.

    Costly probes watch all runs or none: all for a column that they do not affect, because it may be theirs.
    """
    if others := [item for item in ordered.factors if item.key != rules.key and len(item.levels) > 1]:
        names = ", ".join(item.key for item in others)
        settings = " ".join(f"--set {quote_name(f'{item.key}={item.levels[0]}')}" for item in others)
        raise SpecError(f"bisect judges one cell of each release, and there are levels of {names}. Choose: {settings}")
    is_instrumented = rules.column not in AFFECTED_BY_PROBES and any(run.instrumented for run in ordered.runs)
    return dataclasses.replace(
        ordered,
        experiment=f"{ordered.experiment}-bisect",
        headline=rules.column,
        runs=tuple(run for run in ordered.runs if run.instrumented == is_instrumented),
        bisection=rules,
    )


def max_runs(rules: Bisection) -> int:
    """Return the number of runs if no release is skipped or undecided."""
    return rules.replicates * (2 + bisection.count_steps(rules))


def next_run(results: Results, summaries: Mapping[str, Summary], done: Container[str]) -> Run | None:
    """Return the next run of a bisection, written to plan.json; None at its end."""
    plan, rules = results.plan, results.plan.bisection
    assert rules is not None  # noqa: S101 - only a bisection has a next run
    release = bisection.judge_releases(rules, summaries.values()).next_release
    if release is None:
        return None
    if undone := next((run for run in plan.runs if run.id not in done), None):
        return undone
    planned = _plan_run(plan, rules.key, release)
    measured = {run.cell.levels[rules.key] for run in (*plan.runs, planned)}
    levels = tuple(version for version in rules.releases if version in measured)
    factors = (dataclasses.replace(item, levels=levels) if item.key == rules.key else item for item in plan.factors)
    results.replace_plan(dataclasses.replace(plan, runs=(*plan.runs, planned), factors=tuple(factors)))
    return planned


def _plan_run(plan: Plan, key: str, release: str) -> Run:
    """Return the next replicate of a release: the first run of the plan with another version."""
    first = plan.runs[0]
    levels = {**first.cell.levels, key: release}
    name = spec.cell_name({factor.key: levels[factor.key] for factor in plan.factors if factor.names_cells})
    target = dataclasses.replace(first.cell.target, version=release)
    replicate = 1 + sum(run.cell.name == name for run in plan.runs)
    return Run(
        id=f"{name}/{replicate}{'-instrumented' if first.instrumented else ''}",
        cell=dataclasses.replace(first.cell, name=name, levels=levels, target=target),
        replicate=replicate,
        instrumented=first.instrumented,
    )
