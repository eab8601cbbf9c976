"""`bisect`: find the release of a server in which a column of summary.csv changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from ingest_bench.analysis.compare.bisection import count_steps
from ingest_bench.analysis.run import columns
from ingest_bench.cli import run, screen
from ingest_bench.cli.completion import complete_experiment, complete_setting
from ingest_bench.cli.experiment_options import ExperimentOptions, build_plans
from ingest_bench.cli.options import App, OutputOptions, check_columns, grouped
from ingest_bench.cli.run import ExecutionOptions, RunCommand
from ingest_bench.errors import SpecError
from ingest_bench.experiment import key_paths
from ingest_bench.lab import bisection, campaign
from ingest_bench.lab.runner import NetemBackend
from ingest_bench.model.experiment import MAX_LEVELS, Bisection, Plan
from ingest_bench.units import format_count, quote_name

app = App()

_MIN_REPLICATES = 3
_VERSION = ("target", "version")
_EXAMPLES = """\
Examples:
  ingest-bench bisect cassandra-2463 --set version=0.7.4..5.0.9 --dry-run
  ingest-bench bisect my.toml --set version=4.2.2..4.2.16
  ingest-bench bisect my.toml --set version=4.2.2..4.2.16 --column gc_pauses
  ingest-bench bisect my.toml --set version=4.2.16..4.2.20 --good 4.2.20"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectOptions:
    """Options of `bisect` that say what is measured and judged."""

    sets: Annotated[list[str], {"autocompletion": complete_setting}] = field(default_factory=list)
    good: str | None = None
    bad: str | None = None
    column: str | None = None
    replicates: Annotated[int | None, {"min": _MIN_REPLICATES}] = None
    measure: str | None = None
    warm_up: str | None = None


@app.command("bisect", epilog=_EXAMPLES)
@grouped
def bisect_releases(
    experiment: Annotated[str, {"autocompletion": complete_experiment}],
    options: BisectOptions,
    output: OutputOptions,
    netem: NetemBackend = "auto",
    java_home: Path | None = None,
    results_folder: Path | None = None,
    is_dry: bool = False,
) -> int:
    """Find the release in which a column changed: exit 0, or 3 without a verdict. Requires --set version=A..B.

    Both ends are measured first, A as the good and B as the bad one. Then the release in the middle of the range is
    measured, and so on, until the releases on both sides of the change are known. A release that does not start is
    skipped. `run --resume` continues an interrupted bisection.
    """
    plan, rules = _build_plan(experiment, options)
    execution = ExecutionOptions(netem=netem, java_home=java_home)
    if is_dry:
        notes = campaign.check_plan(plan)
        if output.as_json:
            screen.print_json({"releases": rules.releases, "column": rules.column, "runs": campaign.max_runs(plan)})
        else:
            screen.print_text(f"{_describe_plan(plan, rules)}\nreleases: {', '.join(rules.releases)}")
            screen.print_notes(notes)
            screen.print_text("Nothing was started.")
        return 0
    output.announce(_describe_plan(plan, rules))
    command = RunCommand(execution=execution, output=output, results_folder=results_folder)
    return run.start([plan], command, execution.to_run_options())


def _build_plan(experiment: str, options: BisectOptions) -> tuple[Plan, Bisection]:
    """Return the plan of both ends and its rules; SpecError for impossible options."""
    key, first, last = _find_range(options.sets)
    measured = ExperimentOptions(
        experiment=experiment,
        sets=_replace_version(options.sets, f"{key}={first},{last}"),
        replicates=options.replicates,
        measure=options.measure,
        warm_up=options.warm_up,
    )
    plan = _build_only_plan(measured)
    releases = bisection.select_releases(plan.runs[0].cell.target, first, last)
    good, bad = _choose_ends(releases, options)
    low, high = sorted(map(releases.index, (good, bad)))
    if high - low >= MAX_LEVELS:
        raise SpecError(f"{good} to {bad}: {high - low + 1:,} releases; at most {MAX_LEVELS:,} are allowed")
    if options.column is not None:
        check_columns([options.column])
    rules = Bisection(
        column=columns.compared_column(options.column or plan.headline),
        key=key,
        releases=tuple(releases[low : high + 1]),
        is_good_last=good == releases[high],
        replicates=max(_MIN_REPLICATES, *(run.replicate for run in plan.runs)),
    )
    sets = _replace_version(options.sets, f"{key}={releases[low]},{releases[high]}")
    measured = dataclasses.replace(measured, sets=sets, replicates=rules.replicates)
    return bisection.plan_bisection(_build_only_plan(measured), rules), rules


def _find_range(sets: Sequence[str]) -> tuple[str, str, str]:
    """Return the key and both ends of `version=A..B`; SpecError without such a setting."""
    key, _, value = next((text.partition("=") for text in sets if _sets_version(text)), ("version", "", ""))
    first, _, last = value.partition("..")
    if not (first and last) or first == last:
        wrong = f"--set {quote_name(f'{key}={value}')}: " if value else ""
        raise SpecError(f"{wrong}bisect requires two ends: --set {key}=A..B, the earlier release first")
    return key, first, last


def _sets_version(text: str) -> bool:
    key, equals, _ = text.partition("=")
    return bool(equals) and key_paths.resolve_key(key) == _VERSION


def _replace_version(sets: Sequence[str], setting: str) -> list[str]:
    return [setting if _sets_version(text) else text for text in sets]


def _build_only_plan(measured: ExperimentOptions) -> Plan:
    plan, *others = build_plans(measured)
    if others:
        names = ", ".join(item.experiment for item in (plan, *others))
        raise SpecError(f"{measured.experiment} includes several experiments. Bisect one of them: {names}")
    return plan


def _choose_ends(releases: Sequence[str], options: BisectOptions) -> tuple[str, str]:
    """Return the good and the bad end: those of the options, else the first and the last of the releases."""
    chosen_good, chosen_bad = (
        name and bisection.find_release(name, releases, f"{option}: the range")
        for option, name in (("--good", options.good), ("--bad", options.bad))
    )
    first, last = releases[0], releases[-1]
    good = chosen_good or (last if chosen_bad == first else first)
    bad = chosen_bad or (first if good == last else last)
    if good == bad:
        raise SpecError(f"good and bad release: both are {good}. Name two releases.")
    return good, bad


def _describe_plan(plan: Plan, rules: Bisection) -> str:
    """Return what will run, and for how long."""
    good, *_, bad = rules.from_good_to_bad
    runs, server = campaign.max_runs(plan), plan.runs[0].cell.target.name
    seconds = runs * run.estimate_run_s(plan.runs[0].cell.load)
    about = f", about {screen.format_duration(seconds)}" if seconds else ""
    return (
        f"bisect {rules.column} over {len(rules.releases)} releases of {server}: {good} (good) and {bad} (bad), then "
        f"{count_steps(rules)} between them. {rules.replicates} runs each: {format_count(runs, 'run')}{about}; more "
        "only if a release is skipped or undecided."
    )
