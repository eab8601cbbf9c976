"""The layout of a results folder. The only module that knows a file name there.

    results/<experiment>/<utc-start>/
      plan.json  facts.json  summary.csv  summary.json  histograms.csv  report/
      <cell>/<replicate>/run.json  load/  raw/  home/  server.log     (these three are the first node's)
                         node-2/{raw/  home/  server.log}             (and so on)
                         earlier/                                     (of documents that were there at the start)

Schema 3 of run.json: a sample says where it went, and how many bytes had no answer (model/samples.py). In schema 2 it
did not, and in schema 1 it was one attempt of a ticket.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ingest_bench import files, naming, records, whole_files
from ingest_bench.errors import SpecError
from ingest_bench.model.experiment import Plan, Run
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.network import LinkName
from ingest_bench.model.results import READ_FIELDS, RunRecord
from ingest_bench.model.samples import CPU_MARK
from ingest_bench.sample_files import SampleFiles

T = TypeVar("T")

SCHEMA = 3
PLAN = "plan.json"
SUMMARY = "summary.csv"
# A measurement ends after a day (load.plan), the longest warm-up too; tracks have several of them.
LONGEST_LOAD_NS = 30 * 24 * 3600 * 10**9
READ = np.dtype(list(READ_FIELDS))


class NodeFolder:
    """The files of one node of a run's server."""

    def __init__(self, path: Path) -> None:
        # Absolute: servers and workers run in folders of their own.
        self.path = path.absolute()
        self.raw = self.path / "raw"
        self.home = self.path / "home"
        self.log = self.path / "server.log"
        self.delivered_file = self.raw / "delivered.bin"
        """Which documents it has, by their numbers (`analysis.delivery`); not there where nobody can tell."""
        self.last_frames = self.raw / "last-frames.pcap"
        """The headers that crossed the clients' link to it last; only of a run that did not go well."""

    def make(self) -> None:
        """Make the folders where they are not there yet."""
        for folder in (self.raw, self.home):
            folder.mkdir(parents=True, exist_ok=True)


class RunFolder(NodeFolder):
    """The files of one run. Those of the first node lie in it, those of any other in a folder of its own below."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.load = self.path / "load"

    @property
    def earlier(self) -> RunFolder:
        """The files of the earlier run whose documents this one's server has at its start."""
        return RunFolder(self.path / "earlier")

    def nodes(self, count: int) -> tuple[NodeFolder, ...]:
        """The folders of so many nodes."""
        return (self, *(NodeFolder(self.path / f"node-{number}") for number in range(2, count + 1)))

    def keep_delivered(self, told: Sequence[bytes]) -> None:
        """What each node says of the numbers of its documents, kept as it is."""
        for node, of_node in zip(self.nodes(len(told)), told, strict=False):
            node.delivered_file.write_bytes(of_node)

    def delivered(self, nodes: int) -> list[bytes] | None:
        """The same of so many nodes; None where they could not be read back."""
        paths = [node.delivered_file for node in self.nodes(nodes)]
        return [path.read_bytes() for path in paths] if all(path.is_file() for path in paths) else None

    def wire(self, link: LinkName) -> Path:
        """What was seen of a link's wire: beside the raw files of the node that it leads to, or of the first of two."""
        node = self.nodes(link.nodes[0])[-1]
        return node.raw / ("wire.json" if link.kind == "clients" else f"wire-{link}.json")

    def remove_homes(self) -> None:
        """What the servers had there is of no use without them, and may be larger than everything else together."""
        for pattern in ("home", "node-*/home", "earlier/home", "earlier/node-*/home"):
            for home in self.path.glob(pattern):
                shutil.rmtree(home, ignore_errors=True)

    def take_homes(self, other: RunFolder, nodes: int) -> None:
        """The servers of that run left something there: those of this one find it in their own homes."""
        for own, its in zip(self.nodes(nodes), other.nodes(nodes), strict=True):
            own.path.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(own.home, ignore_errors=True)
            # Root writes there again, and a link that the server left would lead it elsewhere.
            for path in its.home.rglob("*"):
                if path.is_symlink():
                    path.unlink()
            its.home.rename(own.home)

    def create(self) -> None:
        """Make the folders; what a broken try of the same run left is moved aside, not lost."""
        if self.path.is_symlink() or self.path.exists():
            if not self.path.is_symlink():
                # Only `kill -9` leaves them.
                self.remove_homes()
            tries = len(list(self.path.parent.glob(f"{self.path.name}.broken-*")))
            self.path.rename(self.path.with_name(f"{self.path.name}.broken-{tries + 1}"))
        self.load.mkdir(parents=True)
        self.make()

    def write(self, record: RunRecord) -> None:
        """Replace run.json, whole or not at all."""
        whole_files.write_json(self.path / "run.json", {"schema": SCHEMA, **records.to_json(record)})

    def record(self) -> RunRecord | None:
        """What run.json says, None where the run never started; SpecError when it is damaged or of another schema."""
        path = self.path / "run.json"
        if not path.is_file():
            return None
        table = whole_files.read_json(path)
        schema = table.pop("schema", None)
        if schema != SCHEMA:
            raise SpecError(f"{path}: schema {schema}; this program reads schema {SCHEMA}")
        return _decoded(RunRecord, table, path)

    def samples(self) -> SampleFiles:
        """The ticket of every bulk of the run. A record that was cut off is left out."""
        return SampleFiles(sorted(self.load.rglob("samples-*.bin")))

    def queries(self) -> SampleFiles | None:
        """The same of every query; None when the load had none."""
        files = sorted(self.load.rglob("queries-*.bin"))
        return SampleFiles(files) if files else None

    def cpu(self) -> tuple[np.ndarray[Any, np.dtype[Any]], ...]:
        """The CPU of each process that sent, in marks of a second. A mark that was cut off is left out."""
        return tuple(_whole(path, CPU_MARK) for path in sorted(self.load.rglob("cpu-*.bin")))

    def reads(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Every socket read of the load's connections, as the probe `reads` left them; none without it."""
        path = self.raw / "reads.bin"
        return np.fromfile(path, dtype=READ) if path.is_file() else np.empty(0, dtype=READ)

    def load_report(self) -> WorkerReport | None:
        """What the load said at its end; None when it never came to it."""
        path = self.load / "load.json"
        if not path.is_file():
            return None
        report = _decoded(WorkerReport, whole_files.read_json(path), path)
        for end_ns in (report.warm_up_end_ns, report.measure_end_ns):
            if not 0 <= end_ns - report.started_monotonic_ns <= LONGEST_LOAD_NS:
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
        path = self.path / PLAN
        plan = _decoded(Plan, whole_files.read_json(path), path)
        check_names(plan, f"{path}: ")
        records.check(plan, str(path))
        return plan

    def replace_plan(self, plan: Plan) -> None:
        """Write plan.json anew, whole or not at all: a search adds its next step."""
        whole_files.write_json(self.path / PLAN, records.to_json(plan))

    def run(self, run: Run) -> RunFolder:
        """The folder of one run."""
        return RunFolder(naming.below(self.path, run.id))

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
            path = naming.below(self.path, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            whole_files.replace(path, content)


def create(base: Path, plan: Plan, facts: Mapping[str, Any]) -> Results:
    """A new results folder with its plan and facts in it; SpecError when it cannot be written."""
    check_names(plan)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    try:
        path = _fresh(naming.below(base, plan.experiment), stamp)
        whole_files.write_json(path / PLAN, records.to_json(plan))
        whole_files.write_json(path / "facts.json", dict(facts))
    except OSError as error:
        raise SpecError(
            f"{base}: results cannot be written there ({error.strerror}); choose a folder by --out"
        ) from None
    return Results(path)


def check_writable(base: Path, *, by_jvm: bool = False) -> None:
    """SpecError when results cannot be written there, or not by a JVM that is told where; nothing is made."""
    place = base.absolute()
    if by_jvm and any(letter in naming.NOT_IN_OPTIONS for letter in str(place)):
        raise SpecError(
            f"{place}: the JVM's options take no path with a comma, colon, quote or space; choose another by --out"
        )
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise SpecError(f"{base}: results cannot be written there ({place} is no folder); choose a folder by --out")
    if not os.access(place, os.W_OK | os.X_OK):
        raise SpecError(f"{base}: results cannot be written there ({place} is closed); choose a folder by --out")


def open_results(path: Path) -> Results:
    """The results of that folder; SpecError when there are none, or when a link in it leads out of it."""
    if not (path / PLAN).is_file():
        raise SpecError(f"{path}: there are no results (no plan.json); give results/<experiment>/<start>")
    for folder, folders, names in os.walk(path):
        # What a server had there is neither read nor written again.
        folders[:] = [name for name in folders if name != "home"]
        for place in (Path(folder) / name for name in (*folders, *names)):
            if place.is_symlink():
                naming.check_stays(place, path)
            # A load leaves sockets, which nobody reads.
            if place.exists() and not place.is_socket() and (trouble := files.trouble(place)):
                raise SpecError(f"{place}: {trouble}; take it out")
    return Results(path)


def facts(path: Path) -> dict[str, Any]:
    """The facts of the machine of that results folder; empty where there are none, as beside a summary.csv alone."""
    file = path / "facts.json"
    return whole_files.read_json(file) if file.is_file() else {}


def check_names(plan: Plan, where: str = "") -> None:
    """Nothing; SpecError for a plan whose experiment or runs cannot have a folder, each its own."""
    naming.check(plan.experiment, f"{where}the experiment")
    if not plan.runs:
        raise SpecError(f"{where}the plan has no runs")
    seen = set()
    for run in plan.runs:
        cell, _, replicate = run.id.partition("/")
        naming.check(cell, f"{where}the run {naming.shown(run.id)}: its cell")
        naming.check(replicate, f"{where}the run {naming.shown(run.id)}: its replicate")
        if cell != run.cell.name:
            raise SpecError(
                f"{where}the run {naming.shown(run.id)} is of a cell with another name, {naming.shown(run.cell.name)}"
            )
        if run.id in seen:
            raise SpecError(f"{where}there are two runs {naming.shown(run.id)}")
        seen.add(run.id)


def _decoded(record: type[T], table: dict[str, Any], path: Path) -> T:
    try:
        return records.from_json(record, table)
    except ValueError as error:
        raise SpecError(f"{path}: this file is damaged, or of another version: {error}") from None


def _whole(path: Path, record: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """The records of a file but the last one, where that was cut off."""
    return np.fromfile(path, dtype=record, count=path.stat().st_size // record.itemsize)


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
