"""The layout of a results folder. The only module that knows a file name there.

    results/<experiment>/<utc-start>/
      plan.json  facts.json  summary.csv  summary.json  histograms.csv  report/
      <cell>/<replicate>/run.json  load/  raw/  home/  server.log

Schema 2 of run.json: a sample is a ticket with all its attempts (model/samples.py). In schema 1 it was one attempt.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ingest_bench import records
from ingest_bench.errors import SpecError
from ingest_bench.model.experiment import Plan, Run
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import READ_FIELDS, RunRecord
from ingest_bench.model.samples import SAMPLE

T = TypeVar("T")

SCHEMA = 2
SUMMARY = "summary.csv"
# NAME_MAX of Linux (limits.h) is 255, and more is written around a name: ".time-NAME.png.new", "NAME.broken-12".
_LONGEST_NAME_BYTES = 235
_SHOWN = 60
# A measurement ends after a day (load.plan), the longest warm-up too; tracks have several of them.
_LONGEST_LOAD_NS = 30 * 24 * 3600 * 10**9
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
        if self.path.is_symlink() or self.path.exists():
            tries = len(list(self.path.parent.glob(f"{self.path.name}.broken-*")))
            self.path.rename(self.path.with_name(f"{self.path.name}.broken-{tries + 1}"))
        for folder in (self.path, self.raw, self.load, self.home):
            folder.mkdir(parents=True)

    def write(self, record: RunRecord) -> None:
        """Replace run.json, whole or not at all."""
        write_json(self.path / "run.json", {"schema": SCHEMA, **records.to_json(record)})

    def record(self) -> RunRecord | None:
        """What run.json says, None where the run never started; SpecError when it is damaged or of another schema."""
        path = self.path / "run.json"
        if not path.is_file():
            return None
        table = read_json(path)
        schema = table.pop("schema", None)
        if schema != SCHEMA:
            raise SpecError(f"{path}: schema {schema}; this program reads schema {SCHEMA}")
        return _decoded(RunRecord, table, path)

    def samples(self) -> np.ndarray[Any, np.dtype[Any]]:
        """The ticket of every bulk of the run, by the moment it was sent. A record that was cut off is left out."""
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
        if not path.is_file():
            return None
        report = _decoded(WorkerReport, read_json(path), path)
        for end_ns in (report.warm_up_end_ns, report.measure_end_ns):
            if not 0 <= end_ns - report.started_monotonic_ns <= _LONGEST_LOAD_NS:
                raise SpecError(f"{path}: this file is damaged: no load starts and ends at such times")
        return report


class Results:
    """One results folder: a plan and its runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.report = path / "report"

    @property
    def plan(self) -> Plan:
        """The plan as it was written before anything ran; SpecError when the file cannot be one."""
        path = self.path / "plan.json"
        plan = _decoded(Plan, read_json(path), path)
        check_names(plan, f"{path}: ")
        records.check(plan, str(path))
        return plan

    def replace_plan(self, plan: Plan) -> None:
        """Write plan.json anew, whole or not at all: a search adds its next step."""
        write_json(self.path / "plan.json", records.to_json(plan))

    def run(self, run: Run) -> RunFolder:
        """The folder of one run."""
        return RunFolder(below(self.path, run.id))

    def records(self) -> dict[str, RunRecord]:
        """The records of all runs that were started, by run; SpecError when one is the record of another run."""
        found = {}
        for run in self.plan.runs:
            folder = self.run(run)
            record = folder.record()
            if record is None:
                continue
            if (record.run, record.cell) != (run.id, run.cell.name):
                raise SpecError(f"{folder.path}: its run.json is of another run than {run.id} of the plan")
            found[run.id] = record
        return found

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write what a report made: names relative to the folder, each whole or not at all."""
        for name, content in files.items():
            path = below(self.path, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, content)


def create(base: Path, plan: Plan, facts: Mapping[str, Any]) -> Results:
    """A new results folder with its plan and facts in it; SpecError when it cannot be written."""
    check_names(plan)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    try:
        path = _fresh(below(base, plan.experiment), stamp)
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
    """The results of that folder; SpecError when there are none, or when a link in it leads out of it."""
    if not (path / "plan.json").is_file():
        raise SpecError(f"{path}: there are no results (no plan.json); give results/<experiment>/<start>")
    for folder, folders, files in os.walk(path):
        # What a server had there is neither read nor written again.
        folders[:] = [name for name in folders if name != "home"]
        for place in (Path(folder) / name for name in (*folders, *files)):
            if place.is_symlink():
                _check_stays(place, path)
    return Results(path)


def check_names(plan: Plan, where: str = "") -> None:
    """Nothing; SpecError for a plan whose experiment or runs cannot have a folder, each its own."""
    _check_name(plan.experiment, f"{where}the experiment")
    if not plan.runs:
        raise SpecError(f"{where}the plan has no runs")
    seen = set()
    for run in plan.runs:
        cell, _, replicate = run.id.partition("/")
        _check_name(cell, f"{where}the run {_shown(run.id)}: its cell")
        _check_name(replicate, f"{where}the run {_shown(run.id)}: its replicate")
        if cell != run.cell.name:
            raise SpecError(f"{where}the run {_shown(run.id)} is of a cell with another name, {_shown(run.cell.name)}")
        if run.id in seen:
            raise SpecError(f"{where}there are two runs {_shown(run.id)}")
        seen.add(run.id)


def below(base: Path, name: str) -> Path:
    """Where a name, such as "cell/1", is below one of our folders; SpecError when it leads out of it.

    Every name that comes from a file and becomes a path goes through here.
    """
    for part in name.split("/"):
        _check_name(part, f"{base}:")
    path = base / name
    _check_stays(path, base)
    return path


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; SpecError when it is none."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text)
        if "\\ud" in text.lower():
            # Half a character can be escaped in JSON, and nobody can write it again.
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: this file is damaged: {error}") from None
    except OSError as error:
        raise SpecError(f"{path}: this file cannot be read ({error.strerror})") from None
    if not isinstance(found, dict):
        raise SpecError(f"{path}: this file is damaged: it does not hold a JSON object")
    return found


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file, whole or not at all."""
    _replace(path, (json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n").encode())


def _decoded(record: type[T], table: dict[str, Any], path: Path) -> T:
    try:
        return records.from_json(record, table)
    except ValueError as error:
        raise SpecError(f"{path}: this file is damaged, or of another version: {error}") from None


def _check_name(name: str, what: str) -> None:
    """Nothing; SpecError when none of our folders may be called so."""
    if name in ("", ".", "..") or "/" in name:
        trouble = "it is not the name of one folder"
    elif not name.isprintable():
        trouble = "it has characters that cannot be printed"
    elif len(name.encode()) > _LONGEST_NAME_BYTES:
        trouble = f"it is longer than {_LONGEST_NAME_BYTES} bytes"
    elif any(letter in " ,:\"'" for letter in name):
        trouble = "the JVM's options take no path with a comma, colon, quote or space; rename it"
    else:
        return
    raise SpecError(f"{what} {_shown(name)} cannot be a folder: {trouble}")


def _check_stays(path: Path, base: Path) -> None:
    """Nothing; SpecError when a path leads out of the folder that it begins with."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(base)):
        raise SpecError(f"{path}: this is a link that leads out of {base}; nothing was read or written there")


def _shown(name: str) -> str:
    return json.dumps(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…", ensure_ascii=not name.isprintable())


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
    # What is there under this name was left by a kill, or is somebody's link to another file.
    new.unlink(missing_ok=True)
    with new.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
