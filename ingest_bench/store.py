"""The layout of a results folder. The only module that knows a file name there.

    results/<experiment>/<utc-start>/
      plan.json  facts.json  summary.csv  summary.json  histograms.csv  report/
      <cell>/<replicate>/run.json  load/  raw/  home/  server.log

Schema 1 of run.json: the first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ingest_bench import records
from ingest_bench.errors import SpecError
from ingest_bench.model.experiment import Plan, Run
from ingest_bench.model.load import SAMPLE_FIELDS, WorkerReport
from ingest_bench.model.results import READ_FIELDS, RunRecord

SCHEMA = 1
SUMMARY = "summary.csv"
SAMPLE = np.dtype(list(SAMPLE_FIELDS))
READ = np.dtype(list(READ_FIELDS))


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        # Absolute: servers and workers run in folders of their own.
        self.path = path.absolute()
        self.raw = self.path / "raw"
        self.load = self.path / "load"
        self.home = self.path / "home"
        self.log = self.path / "server.log"

    def create(self) -> None:
        """Make the folders; what a broken try of the same run left is moved aside, not lost."""
        if self.path.exists():
            tries = len(list(self.path.parent.glob(f"{self.path.name}.broken-*")))
            self.path.rename(self.path.with_name(f"{self.path.name}.broken-{tries + 1}"))
        for folder in (self.path, self.raw, self.load, self.home):
            folder.mkdir(parents=True)

    def write(self, record: RunRecord) -> None:
        """Replace run.json, whole or not at all."""
        write_json(self.path / "run.json", {"schema": SCHEMA, **records.to_json(record)})

    def record(self) -> RunRecord | None:
        """What run.json says, None where the run never started; SpecError when it is of another schema."""
        path = self.path / "run.json"
        if not path.is_file():
            return None
        table = read_json(path)
        schema = table.pop("schema", None)
        if schema != SCHEMA:
            raise SpecError(f"{path}: schema {schema}; this program reads schema {SCHEMA}")
        return records.from_json(RunRecord, table)

    def samples(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Every bulk request of the run, by the moment it was sent. A record that was cut off is left out."""
        return _samples(self.load.rglob("samples-*.bin"))

    def queries(self) -> np.ndarray[Any, np.dtype[Any]] | None:
        """The same of every query; None when the load had none."""
        files = list(self.load.rglob("queries-*.bin"))
        return _samples(files) if files else None

    def reads(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Every socket read of the load's connections, as the probe `reads` left them; none without it."""
        path = self.raw / "reads.bin"
        return np.fromfile(path, dtype=READ) if path.is_file() else np.empty(0, dtype=READ)

    def load_report(self) -> WorkerReport | None:
        """What the load said at its end; None when it never came to it."""
        path = self.load / "load.json"
        return records.from_json(WorkerReport, read_json(path)) if path.is_file() else None


class Results:
    """One results folder: a plan and its runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.report = path / "report"

    @property
    def plan(self) -> Plan:
        """The plan as it was written before anything ran."""
        path = self.path / "plan.json"
        try:
            plan = records.from_json(Plan, read_json(path))
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise SpecError(f"{path}: this is no plan of this version of ingest-bench ({error})") from None
        records.check(plan, str(path))
        return plan

    def replace_plan(self, plan: Plan) -> None:
        """Write plan.json anew, whole or not at all: a search adds its next step."""
        write_json(self.path / "plan.json", records.to_json(plan))

    def run(self, run: Run) -> RunFolder:
        """The folder of one run."""
        return RunFolder(self.path / run.id)

    def records(self) -> dict[str, RunRecord]:
        """The records of all runs that were started, by run."""
        found = ((run.id, self.run(run).record()) for run in self.plan.runs)
        return {name: record for name, record in found if record is not None}

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write what a report made: names relative to the folder, each whole or not at all."""
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, content)


def create(base: Path, plan: Plan, facts: Mapping[str, Any]) -> Results:
    """A new results folder with its plan and facts in it; SpecError when it cannot be written."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    try:
        path = _fresh(base / plan.experiment, stamp)
        write_json(path / "plan.json", records.to_json(plan))
        write_json(path / "facts.json", dict(facts))
    except OSError as error:
        raise SpecError(
            f"{base}: results cannot be written there ({error.strerror}); choose a folder by --out"
        ) from None
    return Results(path)


def check_writable(base: Path) -> None:
    """SpecError when results cannot be written there; nothing is made."""
    place = base.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise SpecError(f"{base}: results cannot be written there ({place} is no folder); choose a folder by --out")
    if not os.access(place, os.W_OK | os.X_OK):
        raise SpecError(f"{base}: results cannot be written there ({place} is closed); choose a folder by --out")


def open_results(path: Path) -> Results:
    """The results of that folder; SpecError when there are none."""
    if not (path / "plan.json").is_file():
        raise SpecError(f"{path}: there are no results (no plan.json); give results/<experiment>/<start>")
    return Results(path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; SpecError when it is none."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (json.JSONDecodeError, UnicodeDecodeError, ValueError) as error:
        raise SpecError(f"{path}: this file is damaged: {error}") from None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file, whole or not at all."""
    _replace(path, (json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n").encode())


def _samples(files: Iterable[Path]) -> np.ndarray[Any, np.dtype[Any]]:
    parts = []
    for path in sorted(files):
        whole = path.stat().st_size // SAMPLE.itemsize
        parts.append(np.fromfile(path, dtype=SAMPLE, count=whole))
    joined = np.concatenate(parts) if parts else np.empty(0, dtype=SAMPLE)
    return joined[np.argsort(joined["sent_ns"], kind="stable")]


def _fresh(base: Path, stamp: str) -> Path:
    base.mkdir(parents=True, exist_ok=True)
    for extra in ("", *(f"-{count}" for count in range(2, 100))):
        path = base / f"{stamp}{extra}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise FileExistsError(17, f"too many runs started at {stamp}")


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
