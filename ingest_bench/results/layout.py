"""The layout of a results folder. The only module that knows a file name there.

results/<experiment>/<utc-start>/
plan.json  facts.json  summary.csv  summary.json  histograms.csv  report/
<cell>/<replicate>/run.json  load/  raw/  home/  jvm/  server.log     (from raw/ on they are the first node's)
node-2/{raw/  home/  jvm/  server.log}       (and so on; home/ and jvm/ are the server's, while it runs)
earlier/                                     (of documents that were there at the start)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ingest_bench import system
from ingest_bench.errors import SpecError
from ingest_bench.inputs import files, records, untrusted
from ingest_bench.model.experiment import Plan, Run
from ingest_bench.model.results import RunRecord
from ingest_bench.results import folder_names, whole_files
from ingest_bench.results.run_folder import RunFolder

PLAN, FACTS = "plan.json", "facts.json"
SUMMARY = "summary.csv"


class Results:
    """One results folder: a plan and its runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.report = path / "report"

    @property
    def plan(self) -> Plan:
        """The plan as it was written before anything ran; SpecError when the file cannot be one."""
        path = self.path / PLAN
        plan = whole_files.record(Plan, whole_files.read_json(path), path)
        check_names(plan, f"{path}: ")
        records.check(plan, str(path))
        return plan

    def replace_plan(self, plan: Plan) -> None:
        """Write plan.json anew, whole or not at all: a search adds its next step."""
        whole_files.write_json(self.path / PLAN, records.to_json(plan))

    def run(self, run: Run) -> RunFolder:
        """The folder of one run."""
        return RunFolder(folder_names.below(self.path, run.id))

    def records(self) -> dict[str, RunRecord]:
        """The records of all runs that were started, by run; SpecError when one is the record of another run."""
        found = {}
        for run in self.plan.runs:
            folder = self.run(run)
            record = folder.record()
            if record is None:
                continue
            if (record.run, record.cell) != (run.id, run.cell.name):
                raise SpecError(f"{folder.path / 'run.json'}: this file is of another run than {run.id} of the plan")
            found[run.id] = record
        return found

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else carries out its runs meanwhile; SpecError when somebody does. The kernel ends it with us."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise SpecError(f"{self.path}: another ingest-bench carries out these runs now; wait for its end") from None
        try:
            yield
        finally:
            os.close(descriptor)

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write what a report made: names relative to the folder, each whole or not at all."""
        for name, content in files.items():
            path = folder_names.below(self.path, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            whole_files.replace(path, content)


def create(base: Path, plan: Plan, facts: Mapping[str, Any]) -> Results:
    """A new results folder with its plan and facts in it; SpecError when it cannot be written."""
    check_names(plan)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    _check_trusted(base / plan.experiment / stamp)
    try:
        path = _fresh(folder_names.below(base, plan.experiment), stamp)
        # Another user may have been faster.
        _check_trusted(path)
        whole_files.write_json(path / PLAN, records.to_json(plan))
        whole_files.write_json(path / FACTS, dict(facts))
    except OSError as error:
        raise SpecError(
            f"{base}: results cannot be written there ({error.strerror}); choose a folder by --out"
        ) from None
    return Results(path)


def _check_trusted(path: Path) -> None:
    """Raise SpecError if we are root and another user can replace *path*, or a file created there later."""
    if system.is_root() and (place := untrusted.swappable(path)):
        raise SpecError(
            f"{place}: another user can replace files here while root writes them; choose a folder of root's by --out, "
            "or do not run as root"
        )


def check_writable(base: Path, *, by_jvm: bool = False) -> None:
    """SpecError when results cannot be written there, or not by a JVM that is told where; nothing is made."""
    place = base.absolute()
    if by_jvm and any(letter in folder_names.NOT_IN_OPTIONS for letter in str(place)):
        raise SpecError(
            f"{place}: the JVM's options take no path with a comma, colon, quote or space; choose another by --out"
        )
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise SpecError(f"{base}: results cannot be written there ({place} is no folder); choose a folder by --out")
    if not os.access(place, os.W_OK | os.X_OK):
        raise SpecError(f"{base}: results cannot be written there ({place} is closed); choose a folder by --out")
    _check_trusted(base / f".{os.getpid()}.new")


def open_results(path: Path, *, to_write: bool = False) -> Results:
    """Return the results of that folder; SpecError when there are none, or when a link in it leads out of it.

    With `to_write` also where we are root and another user can replace a folder of it.
    """
    refuses = to_write and system.is_root()
    if refuses and (place := untrusted.swappable(path)):
        raise _replaceable(place, path)
    if not (path / PLAN).is_file():
        raise SpecError(f"{path}: there are no results (no plan.json); give results/<experiment>/<start>")
    for folder, folders, names in os.walk(path):
        if refuses and not untrusted.is_own(Path(folder)):
            raise _replaceable(Path(folder), path)
        # What a server had there is neither read nor written again.
        folders[:] = [name for name in folders if name not in ("home", "jvm")]
        for place in (Path(folder) / name for name in (*folders, *names)):
            if place.is_symlink():
                folder_names.check_stays(place, path)
            # A load leaves sockets, which nobody reads.
            if place.exists() and not place.is_socket() and (trouble := files.trouble(place)):
                raise SpecError(f"{place}: {trouble}; take it out")
    return Results(path)


def _replaceable(place: Path, path: Path) -> SpecError:
    return SpecError(
        f"{place}: another user can replace files here while root writes them; do not run this as root, or give the "
        f"results to root first: chown -R root: {path}; chmod -R go-w {path}"
    )


def facts(path: Path) -> dict[str, Any]:
    """The facts of the machine of that results folder; empty where there are none, as beside a summary.csv alone."""
    file = path / FACTS
    return whole_files.read_json(file) if file.is_file() else {}


def fingerprints(path: Path) -> dict[str, str]:
    """What the plan's files held when its first runs were made, by their paths; empty where the facts do not say it."""
    return whole_files.record(dict[str, str], facts(path).get("files", {}), path / FACTS)


def check_names(plan: Plan, where: str = "") -> None:
    """SpecError for a plan whose experiment or runs cannot each have a folder of their own."""
    folder_names.check(plan.experiment, f"{where}the experiment")
    if not plan.runs:
        raise SpecError(f"{where}the plan has no runs")
    seen = set()
    for run in plan.runs:
        cell, _, replicate = run.id.partition("/")
        folder_names.check(cell, f"{where}the run {folder_names.shown(run.id)}: its cell")
        folder_names.check(replicate, f"{where}the run {folder_names.shown(run.id)}: its replicate")
        if cell != run.cell.name:
            raise SpecError(
                f"{where}the run {folder_names.shown(run.id)} is of a cell with another name, "
                f"{folder_names.shown(run.cell.name)}"
            )
        if run.id in seen:
            raise SpecError(f"{where}there are two runs {folder_names.shown(run.id)}")
        seen.add(run.id)


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
