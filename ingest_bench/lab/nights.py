"""The results below a folder, as nights: what a trend is made of."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ingest_bench.analysis.compare.comparable import Results
from ingest_bench.analysis.compare.trend import Night
from ingest_bench.errors import SpecError
from ingest_bench.inputs import visible
from ingest_bench.lab import evaluation
from ingest_bench.model.results import RunRecord
from ingest_bench.results import layout

# As `layout.create` names them; the second of one second has a number.
_START = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2}Z(-[0-9]+)?")


def below(folder: Path) -> tuple[list[Night], list[str]]:
    """Every result in that folder, however deep, and those that are left out, each with the reason.

    Links to folders are not followed: "latest" would be a night twice. SpecError when there is none at all.
    """
    if not folder.is_dir():
        raise SpecError(f"{folder}: there is no such folder; give the one that holds the results of many nights")
    found: list[Night] = []
    left_out: list[str] = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        if layout.PLAN in names:
            folders.clear()
            try:
                found.append(_night(Path(place)))
            except SpecError as error:
                left_out.append(f"left out: {error}")
    if not found:
        said = "; ".join(left_out) or f"no folder with a {layout.PLAN} is in it"
        raise SpecError(f"{folder}: there are no results below it: {said}")
    return found, left_out


def _night(path: Path) -> Night:
    """One results folder; SpecError where it is damaged, or where its runs are of another schema."""
    results = layout.open_results(path)
    records = results.records().values()
    start = _start(path.name, records)
    if not start:
        raise SpecError(f"{path}: nobody knows when it began: its name is no time, and no run was started")
    there = evaluation.judged(path)
    java = sorted({str(each.server["java"]) for each in records if each.server.get("java")})
    facts = {**there.facts, **({"java": " and ".join(java)} if java else {})}
    return Night(
        start=visible.one_line(start),
        experiment=visible.one_line(results.plan.experiment),
        results=(Results(summaries=there.summaries, facts=facts),),
    )


def _start(name: str, records: Iterable[RunRecord]) -> str:
    """When it began: its name, or, where somebody gave it another one, its first run."""
    if _START.fullmatch(name):
        return name
    first = min((each.started_utc for each in records if each.started_utc), default="")
    return first.replace(":", "-").replace("+00-00", "Z")
