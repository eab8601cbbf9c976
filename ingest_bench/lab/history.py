"""The results below a folder as a history: the input of a trend."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ingest_bench.analysis.compare.changes import Results
from ingest_bench.analysis.compare.trend import DatedResult
from ingest_bench.errors import SpecError
from ingest_bench.inputs import escaping
from ingest_bench.lab import evaluation
from ingest_bench.model.results import RunRecord
from ingest_bench.results import layout

# Folder names by `layout.create`; a second folder in the same second gets a number.
_START = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2}Z(-[0-9]+)?")


def load_history(folder: Path) -> tuple[list[DatedResult], list[str]]:
    """Return every result below the folder, and a message for each that is left out.

    Links to folders are not followed: "latest" would be a duplicate. SpecError if there is no result.
    """
    if not folder.is_dir():
        raise SpecError(f"{folder}: no such folder. Give the one with the results of many dates.")
    history: list[DatedResult] = []
    left_out: list[str] = []
    for path, folders, names in os.walk(folder):
        folders.sort()
        if layout.PLAN in names:
            folders.clear()
            try:
                history.append(_load_result(Path(path)))
            except SpecError as error:
                left_out.append(f"left out: {error}")
    if not history:
        reason = "; ".join(left_out) or f"no folder with a {layout.PLAN} is in it"
        raise SpecError(f"{folder}: there are no results below it: {reason}")
    return history, left_out


def _load_result(path: Path) -> DatedResult:
    """Return one results folder; SpecError if it is damaged, or if its runs have another schema."""
    results = layout.open_results(path)
    records = results.read_records().values()
    start = _start_time(path.name, records)
    if not start:
        raise SpecError(f"{path}: its start is unknown: its name is not a time, and no run was started")
    comparable = evaluation.read_comparable(path)
    java = sorted({str(record.server["java"]) for record in records if record.server.get("java")})
    facts = {**comparable.facts, **({"java": " and ".join(java)} if java else {})}
    return DatedResult(
        start=escaping.escape_line(start),
        experiment=escaping.escape_line(results.plan.experiment),
        results=(Results(summaries=comparable.summaries, facts=facts),),
    )


def _start_time(name: str, records: Iterable[RunRecord]) -> str:
    """Return the folder's name, or the start of its first run if the folder was renamed."""
    if _START.fullmatch(name):
        return name
    first = min((record.started_utc for record in records if record.started_utc), default="")
    return first.replace(":", "-").replace("+00-00", "Z")
