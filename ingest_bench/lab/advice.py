"""Advice from a results folder: what limits its runs, by what evidence, and the command that tests it. Runs nothing."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ingest_bench.analysis.advice import RULES, Advice, Finding, ObservedRun
from ingest_bench.analysis.receive_buffers import MAX_SHARE, Cost, configured_buffers, fixed
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog, key_paths, spec
from ingest_bench.lab.buffer_advice import BufferAdvice
from ingest_bench.model.experiment import Cell, Plan
from ingest_bench.model.results import RunRecord, Summary
from ingest_bench.results import layout
from ingest_bench.results.layout import Results

# Of the servers whose receive buffer can be chosen; each has a default of 64 KiB.
_WITH_BUFFERS = frozenset({"opensearch", "elasticsearch", "sink"})
_DEFAULT_BUFFER = fixed(64 << 10)
_BUFFER_RULE = "receive buffer"
# Options of `bisect` that `run` does not have.
_OF_BISECT = ("--good", "--bad", "--column")


def observe_runs(results: Results, summaries: Sequence[Summary]) -> list[ObservedRun]:
    """Return the runs with a result."""
    planned = {run.id: run for run in results.plan.runs}
    records = results.read_records()
    return [
        _observe_run(summary, planned[summary.run].cell, records[summary.run])
        for summary in summaries
        if summary.state in ("measured", "oom")
    ]


def find_advice(results: Results, runs: Sequence[ObservedRun], buffers: Sequence[BufferAdvice] = ()) -> list[Finding]:
    """Return the advice of each rule, and of the predicted receive buffers of the cells."""
    held: dict[str, list[tuple[ObservedRun, Advice]]] = {}
    for rule in RULES:
        pairs = ((run, rule.advise(run)) for run in runs if rule.applies_to(run) and rule.has_evidence(run))
        held[rule.name] = [(run, advice) for run, advice in pairs if advice is not None]
    held[_BUFFER_RULE] = list(_advise_buffers(runs, buffers))
    plan, command = results.plan, str(layout.read_facts(results.path).get("command", ""))
    return [
        Finding(
            rule=rule,
            advice=_describe_restart(pairs[0][1], pairs[0][0].cell),
            runs=tuple(run.run for run, _ in pairs),
            of_runs=len(runs),
            test=format_test(plan, command, pairs[0][0].cell, pairs[0][1]),
        )
        for rule, pairs in held.items()
        if pairs
    ]


def list_unchecked(runs: Sequence[ObservedRun], buffers: Sequence[BufferAdvice]) -> dict[str, str]:
    """Return the rules that no run has the evidence for, and what records it."""
    unchecked = {
        rule.name: rule.recorder
        for rule in RULES
        if rule.recorder
        and (relevant := [run for run in runs if rule.applies_to(run)])
        and not any(map(rule.has_evidence, relevant))
    }
    with_buffers = {run.cell.name for run in runs if run.server in _WITH_BUFFERS}
    is_checked = not with_buffers or any(advice.recommendation for advice in buffers if advice.cell in with_buffers)
    return unchecked if is_checked else {**unchecked, _BUFFER_RULE: "probe reads"}


def format_test(plan: Plan, command: str, cell: Cell, advice: Advice) -> str:
    """Return the command of the results with the levels of the advice instead of its own, for this cell alone."""
    words = ["run", plan.experiment]
    # A damaged facts.json may have any text.
    with suppress(ValueError):
        _, *recorded = shlex.split(command) or [""]
        words = ["run", *recorded[1:]] if recorded[:1] in (["run"], ["bisect"]) else words
    words = [plan.experiment if _includes(word, plan.experiment) else word for word in words]
    settings = {
        factor.key: level
        for factor in plan.factors
        if len(factor.levels) > 1 and _find_path(factor.key) and "," not in (level := cell.levels.get(factor.key, ","))
    }
    if not _needs_restart(advice, cell):
        own = _find_path(advice.key)
        settings = {key: level for key, level in settings.items() if _find_path(key) != own}
        settings[advice.key] = ",".join(advice.levels)
    paths = set(map(_find_path, settings))
    kept: list[str] = []
    for word in words:
        is_value = bool(kept) and kept[-1] in ("--set", *_OF_BISECT)
        option, _, text = (f"{kept[-1]}={word}" if is_value else word).partition("=")
        if text and (option in _OF_BISECT or (option == "--set" and _find_path(text.partition("=")[0]) in paths)):
            del kept[len(kept) - is_value :]
        else:
            kept.append(word)
    options = [word for key, text in settings.items() for word in ("--set", f"{key}={text}")]
    return shlex.join(["ingest-bench", *kept, *options])


def _includes(word: str, experiment: str) -> bool:
    """Return True if a word of the command is an experiment that includes the other one."""
    try:
        names = spec.expand_includes(word)
    except SpecError:
        return False
    return word not in names and experiment in names


def _find_path(key: str) -> tuple[str, ...]:
    """Return the path of a key; () for a factor that is none, such as the side of an A/A test."""
    try:
        return key_paths.resolve_key(key)
    except SpecError:
        return ()


def _observe_run(summary: Summary, cell: Cell, record: RunRecord) -> ObservedRun:
    users = cell.load.users
    if users is None and cell.load.track is None:
        # A workload of the user may have been moved since.
        with suppress(SpecError):
            users = catalog.load_workload(cell.load.workload).users
    facts = {"users": users, "allocator": record.server.get("allocator"), "measured_s": summary.measured_s}
    return ObservedRun(run=summary.run, cell=cell, values={**summary.values, **facts})


def _needs_restart(advice: Advice, cell: Cell) -> bool:
    """Return True if the setting is of a server that the run does not start: its user changes it before the test."""
    return cell.target.is_already_running and _find_path(advice.key)[0] == "target"


def _describe_restart(advice: Advice, cell: Cell) -> Advice:
    if not _needs_restart(advice, cell):
        return advice
    text = f"{advice.text}. Restart the server with {advice.key}={advice.levels[-1]}, then test"
    return dataclasses.replace(advice, text=text)


def _advise_buffers(
    runs: Sequence[ObservedRun], buffers: Sequence[BufferAdvice]
) -> Iterator[tuple[ObservedRun, Advice]]:
    """Yield the recommended receive buffer for each run whose own wastes more than it may, or is too large."""
    by_cell = {advice.cell: advice for advice in buffers}
    for run in runs:
        cell = by_cell.get(run.cell.name)
        if run.server not in _WITH_BUFFERS or cell is None or cell.recommendation is None:
            continue
        own = configured_buffers(run.cell.target) or _DEFAULT_BUFFER
        cost, best = next((cost for cost in cell.costs if cost.buffers == own), None), cell.recommendation.best
        if cost is None or best.buffers == own or not (cost.share > MAX_SHARE or _is_large(cost)):
            continue
        yield (
            run,
            Advice(
                text=f"{own} allocates {cost.share:.2f} bytes for each byte read, {best.buffers} would allocate "
                f"{best.share:.2f}",
                evidence={**run.cite("read_bytes_mean", "g1_region_bytes"), "allocated_per_byte": round(cost.share, 3)},
                key="receive_predictor",
                levels=(str(own), str(best.buffers)),
            ),
        )


def _is_large(cost: Cost) -> bool:
    return bool(cost.over_tlab_bytes or cost.humongous_bytes)
