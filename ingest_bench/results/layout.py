"""The layout of a results folder. The only module that knows its file names.

results/<experiment>/latest                  (link to the newest of these)
results/<experiment>/<utc-start>/
plan.json  facts.json  summary.csv  summary.json  histograms.csv  report/
<cell>/<replicate>/run.json  load/  raw/  home/  jvm/  server.log     (from raw/ on: files of the first node)
node-2/{raw/  home/  jvm/  server.log}       (further nodes; home/ and jvm/ belong to the server while it runs)
earlier/                                     (the earlier run whose documents this server has at its start)
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ingest_bench import system
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.inputs import files, records, untrusted
from ingest_bench.model.experiment import Plan, Run
from ingest_bench.model.load import MAX_LOAD_S
from ingest_bench.model.network import LinkName
from ingest_bench.model.results import READ_FIELDS, FileDigest, NodeObserver, RunRecord
from ingest_bench.model.samples import RECORDS, SAMPLE, ClockOffset, WorkerReport
from ingest_bench.results import safe_files

Array = np.ndarray[Any, np.dtype[Any]]
PLAN, FACTS = "plan.json", "facts.json"
OBSERVER = "observer.json"
"""Next to the raw files of a node whose JVM an observer on another machine watched."""
SUMMARY = "summary.csv"
RESULTS, LATEST = Path("results"), "latest"
"""The default folder of results, and the link to the newest results of an experiment."""
MAX_LOAD_NS = MAX_LOAD_S * 10**9
READ = np.dtype(list(READ_FIELDS))
# Folder levels below `jvm`: jfr/<start>/<chunk>.jfr.
_JVM_DEPTH = 3
# Files that a note names of those that were left out.
_MAX_NAMED = 5
# Enough to delete about 100 GB of a server's files.
_REMOVE_TIMEOUT_S = 600
# Records of all sample files together in memory: enough for numpy to be fast, and little next to the interpreter.
_BATCH_RECORDS = 1 << 20
_MIN_BATCH_RECORDS = 1 << 10


class SampleFiles:
    """The samples of a load, read in batches: a load of any length is read in constant memory.

    Each worker wrote its own file, sorted by the end of its requests; requests that were never sent come last. An
    incomplete last record is ignored.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._sizes = [path.stat().st_size // SAMPLE.itemsize for path in paths]
        self._cached: Array | None = None

    def __len__(self) -> int:
        return sum(self._sizes)

    def batches(self) -> Iterator[Array]:
        """Yield all samples. No request ended before the first one of an earlier batch, except those never sent."""
        if len(self) <= _BATCH_RECORDS:
            # Small files are read once, however often the batches are iterated.
            if self._cached is None:
                self._cached = self.load_all()
            yield self._cached
            return
        step = max(_MIN_BATCH_RECORDS, _BATCH_RECORDS // len(self._paths))
        readers = [self._read_blocks(path, size, step) for path, size in zip(self._paths, self._sizes, strict=True)]
        # The next block begins before all later ones of every file.
        yield from heapq.merge(*readers, key=lambda block: int(block["done_ns"][0]))

    def load_all(self) -> Array:
        """Return all samples of the first worker, then those of the others."""
        whole_files = zip(self._paths, self._sizes, strict=True)
        records = [block for path, size in whole_files for block in self._read_blocks(path, size, max(size, 1))]
        return np.concatenate([np.empty(0, dtype=SAMPLE), *records])

    def _read_blocks(self, path: Path, size: int, step: int) -> Iterator[Array]:
        for start in range(0, size, step):
            yield files.read_records(path, SAMPLE, start, min(step, size - start))


class NodeFolder:
    """The files of one node of a run's server."""

    def __init__(self, path: Path) -> None:
        # Absolute: servers and workers run in folders of their own.
        self.path = path.absolute()
        self.raw = self.path / "raw"
        self.home = self.path / "home"
        self.jvm = self.path / "jvm"
        """Recording and logs of its JVM, whose user may write here. They move to `raw`, where only we may write."""
        self.log = self.path / "server.log"
        self.delivered_file = self.raw / "delivered.bin"
        """Numbers of the documents that it has (`analysis.run.delivery`); missing where they cannot be read back."""
        self.last_frames = self.raw / "last-frames.pcap"
        """Headers of the last frames on the clients' link to it; only of a run that did not end normally."""

    def read_observer(self) -> NodeObserver | None:
        """Return the observer on another machine; None: a node was watched from here. SpecError if it is damaged."""
        path = self.raw / OBSERVER
        if not path.is_file():
            return None
        observer = safe_files.parse_record(NodeObserver, safe_files.read_json(path), path)
        clock = observer.clock
        drift_ns = abs(clock.offset_after_ns - clock.offset_before_ns)
        values = (clock.offset_before_ns, clock.measured_before_at_ns, clock.measured_after_at_ns)
        if drift_ns > max(1, values[2] - values[1]) or max(map(abs, values)) >= 2**61:
            raise SpecError(f"{path}: this file is damaged: clock: no clock has such an offset")
        return observer

    @property
    def clock(self) -> ClockOffset:
        """The offset of the clock of the raw files; 0 for a node that was watched from here."""
        observer = self.read_observer()
        return ClockOffset(worker=0) if observer is None else observer.clock

    def read_socket_reads(self) -> Array:
        """Return every socket read of the load's connections by this node; empty without the probe `reads`."""
        path = self.raw / "reads.bin"
        if not path.is_file():
            return np.empty(0, dtype=READ)
        reads = files.read_records(path, READ)
        if (observer := self.read_observer()) is not None:
            reads = reads.copy()
            reads["end_ns"] = observer.clock.to_ours(reads["end_ns"])
        return reads

    def create_folders(self) -> None:
        """Create the folders that do not exist yet."""
        for folder in (self.raw, self.home, self.jvm):
            folder.mkdir(parents=True, exist_ok=True)


class RunFolder(NodeFolder):
    """The files of one run, which include those of the first node. Other nodes have folders below it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.load = self.path / "load"

    @property
    def earlier(self) -> RunFolder:
        """The earlier run whose documents the server of this one has at its start."""
        return RunFolder(self.path / "earlier")

    def nodes(self, count: int) -> tuple[NodeFolder, ...]:
        """Return the folders of that many nodes."""
        return (self, *(NodeFolder(self.path / f"node-{number}") for number in range(2, count + 1)))

    def wire_file(self, link: LinkName) -> Path:
        """Return the file with the frames of a link: of the node that it leads to, or of the first of two."""
        return self.nodes(link.nodes[0])[-1].raw / ("wire.json" if link.kind == "clients" else f"wire-{link}.json")

    def create(self) -> None:
        """Create the folders. Files of an interrupted attempt of the same run are moved aside, not deleted."""
        if self.path.is_symlink() or self.path.exists():
            if not self.path.is_symlink():
                # Only `kill -9` leaves them.
                self.remove_homes()
                self.move_jvm_files()
            aside = (self.path.with_name(f"{self.path.name}.broken-{number}") for number in itertools.count(1))
            # The user may have deleted some of them, which are large.
            self.path.rename(next(path for path in aside if not path.is_symlink() and not path.exists()))
        self.load.mkdir(parents=True)
        self.create_folders()

    def write_record(self, record: RunRecord) -> None:
        """Replace run.json atomically."""
        files.write_json(self.path / "run.json", records.to_json(record))

    def read_record(self) -> RunRecord | None:
        """Return run.json, None if the run never started; raise SpecError if it is damaged or of another schema."""
        path = self.path / "run.json"
        return safe_files.parse_record(RunRecord, safe_files.read_json(path), path) if path.is_file() else None

    def samples(self) -> SampleFiles:
        """Return the samples of the run."""
        return SampleFiles(sorted(self.load.rglob("samples-*.bin")))

    def queries(self) -> SampleFiles | None:
        """Return the samples of its queries; None when the load had none."""
        paths = sorted(self.load.rglob("queries-*.bin"))
        return SampleFiles(paths) if paths else None

    def read_load_records(self, kind: Literal["cpu", "loop_stalls"]) -> tuple[Array, ...]:
        """Return the CPU marks or the event-loop stalls of each load process that has any."""
        return tuple(files.read_records(path, RECORDS[kind]) for path in sorted(self.load.rglob(f"{kind}-*.bin")))

    def read_load_report(self) -> WorkerReport | None:
        """Return the report at the end of the load; None if the load did not end normally."""
        path = self.load / "load.json"
        if not path.is_file():
            return None
        report = safe_files.parse_record(WorkerReport, safe_files.read_json(path), path)
        for end_ns in (report.warm_up_end_ns, report.measure_end_ns):
            if not 0 <= end_ns - report.started_monotonic_ns <= MAX_LOAD_NS:
                raise SpecError(f"{path}: this file is damaged: no load starts and ends at such times")
        if not all(0 < port < 1 << 16 for port in report.local_ports):
            raise SpecError(f"{path}: this file is damaged: local_ports: a port is a number from 1 to 65535")
        return report

    def write_delivered(self, numbers: Sequence[bytes]) -> None:
        """Write the numbers of the documents that each node has, as the node returned them."""
        for node, content in zip(self.nodes(len(numbers)), numbers, strict=False):
            node.delivered_file.write_bytes(content)

    def read_delivered(self, nodes: int) -> list[bytes] | None:
        """Return the same for that many nodes; None where they could not be read back."""
        paths = [node.delivered_file for node in self.nodes(nodes)]
        return [path.read_bytes() for path in paths] if all(path.is_file() for path in paths) else None

    def digest_files(self) -> dict[str, FileDigest]:
        """Return length and checksum of each raw file of the run, by its path in the folder.

        The server's log is left out: the server can make it as long as it likes.
        """
        digests = {}
        for pattern in (f"{top}{name}" for top in ("", "earlier/") for name in ("load", "raw", "node-*/raw")):
            for path in (path for top in self.path.glob(pattern) for path in top.rglob("*") if path.is_file()):
                digest = FileDigest(bytes=path.stat().st_size, sha256=files.sha256(path))
                digests[str(path.relative_to(self.path))] = digest
        return digests

    def describe_changes(self, digests: Mapping[str, FileDigest]) -> list[str]:
        """Return a sentence for each of these files that differs from what the run left."""
        sentences = []
        for name, digest in sorted(digests.items()):
            path = safe_files.resolve_below(self.path, name)
            if not path.is_file():
                sentences.append(f"{name} was deleted after the run")
            elif (length := path.stat().st_size) != digest.bytes:
                sentences.append(f"{name} has {length:,} bytes, and had {digest.bytes:,} when the run ended")
            elif files.sha256(path) != digest.sha256:
                sentences.append(f"{name} was changed after the run: its checksum differs")
        return sentences

    def remove_homes(self) -> None:
        """Delete the data of the servers: useless without them, and maybe larger than all other files."""
        for home in self._server_folders("home"):
            _remove(home)

    def move_jvm_files(self) -> list[str]:
        """Move the files of the JVMs to `raw`, where only this user can change them. Return a note for files not moved.

        Call it when all servers of the run have ended.
        """
        notes = []
        for folder in self._server_folders("jvm"):
            try:
                left = untrusted.move_files(folder, folder.with_name("raw"), depth=_JVM_DEPTH)
            except OSError as error:
                place = folder.relative_to(self.path)
                notes.append(f"the files of the JVM stay in {place}/ and were not read ({error.strerror})")
                continue
            names = ", ".join(safe_files.quote_name(str(path.relative_to(self.path))) for path in left[:_MAX_NAMED])
            notes += [f"left out, not a regular file of the JVM: {names}"] if left else []
            _remove(folder)
        return notes

    def move_homes_from(self, other: RunFolder, nodes: int) -> None:
        """Move the homes that the servers of another run left into the folders of this run's nodes."""
        for own, theirs in zip(self.nodes(nodes), other.nodes(nodes), strict=True):
            own.path.mkdir(parents=True, exist_ok=True)
            _remove(own.home)
            theirs.home.rename(own.home)
            # Root writes there again, and a link or pipe of the server could lead it elsewhere.
            try:
                _, others = untrusted.take_ownership(own.home)
            except OSError as error:
                raise RunFailed(f"{own.home}: the servers' files cannot be reused ({error.strerror})") from None
            for path in others:
                path.unlink()

    def _server_folders(self, name: str) -> Iterator[Path]:
        """Yield the folders of that name of all servers of the run."""
        for node in ("", "node-*/", "earlier/", "earlier/node-*/"):
            yield from self.path.glob(f"{node}{name}")


class Results:
    """One results folder: a plan and its runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.report = path / "report"

    @property
    def plan(self) -> Plan:
        """The plan as it was written before anything ran; SpecError if the file is damaged."""
        path = self.path / PLAN
        plan = safe_files.parse_record(Plan, safe_files.read_json(path), path)
        check_names(plan, f"{path}: ")
        records.check(plan, str(path))
        return plan

    def replace_plan(self, plan: Plan) -> None:
        """Replace plan.json atomically: a search adds its next step."""
        files.write_json(self.path / PLAN, records.to_json(plan))

    def run_folder(self, run: Run) -> RunFolder:
        """Return the folder of one run."""
        return RunFolder(safe_files.resolve_below(self.path, run.id))

    def read_records(self) -> dict[str, RunRecord]:
        """Return the records of all runs that were started, by run; raise SpecError if one belongs to another run."""
        by_run = {}
        for run in self.plan.runs:
            folder = self.run_folder(run)
            if (record := folder.read_record()) is not None:
                if (record.run, record.cell) != (run.id, run.cell.name):
                    path = folder.path / "run.json"
                    raise SpecError(f"{path}: this file is of another run than {run.id} of the plan")
                by_run[run.id] = record
        return by_run

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder until the block or the process ends; raise SpecError if another process holds the lock."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise SpecError(f"{self.path}: another ingest-bench executes these runs now; wait until it ends") from None
        try:
            yield
        finally:
            os.close(descriptor)

    def write_files(self, contents: Mapping[str, bytes]) -> None:
        """Write the files of a report, each atomically; names are relative to the folder."""
        for name, content in contents.items():
            path = safe_files.resolve_below(self.path, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomically(path, content)


def create_results(base: Path, plan: Plan, facts: Mapping[str, Any]) -> Results:
    """Create a results folder with its plan and facts; raise SpecError if it cannot be written."""
    check_names(plan)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    _check_trusted(base / plan.experiment / stamp)
    try:
        path = _create_folder(safe_files.resolve_below(base, plan.experiment), stamp)
        # Checked again: another user may have replaced it meanwhile.
        _check_trusted(path)
        files.write_json(path / PLAN, records.to_json(plan))
        files.write_json(path / FACTS, dict(facts))
    except OSError as error:
        raise _unwritable_error(base, error.strerror) from None
    link = path.with_name(f".{os.getpid()}.new")
    # Not every file system has links, and a folder of that name may be the user's.
    with contextlib.suppress(OSError):
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
        link.replace(path.with_name(LATEST))
    link.unlink(missing_ok=True)
    return Results(path)


def find_experiment(path: Path) -> Path:
    """Return the folder of results that *path* is, or that it names."""
    is_name = not path.exists() and len(path.parts) == 1 and (RESULTS / path).is_dir()
    return RESULTS / path if is_name else path


def find_results(path: Path) -> Path:
    """Return the results folder that *path* means: itself, the newest one of that experiment's folder, or of its name.

    A link "latest" is read once and never followed: another user could replace it between a check and its use. If it
    leads to no results, for example because they were deleted, the newest folder counts.
    """
    path = find_experiment(path)
    folder = path.parent if path.name == LATEST and path.is_symlink() else path
    link = folder / LATEST
    # The name is empty for a link to a root.
    if link.is_symlink() and (name := link.readlink().name) and (folder / name / PLAN).exists():
        return folder / name
    if (folder / PLAN).exists():
        return folder
    return max((file.parent for file in folder.glob(f"*/{PLAN}") if not file.parent.is_symlink()), default=path)


def check_writable(base: Path, *, by_jvm: bool = False) -> None:
    """Raise SpecError if results cannot be written there, or (*by_jvm*) not by a JVM. Nothing is created."""
    place = base.absolute()
    if by_jvm and any(letter in safe_files.JVM_OPTION_SEPARATORS for letter in str(place)):
        raise SpecError(
            f"{place}: JVM options accept no path with a comma, colon, quote or space; choose another by --out"
        )
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise _unwritable_error(base, f"{place} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise _unwritable_error(base, f"{place} is not writable")
    _check_trusted(base / f".{os.getpid()}.new")


def _unwritable_error(base: Path, reason: str | None) -> SpecError:
    return SpecError(f"{base}: results cannot be written there ({reason}); choose a folder by --out")


def describe_missing_results(path: Path, file: str = PLAN) -> str:
    """Return why a path has no results: it is not a folder, or without that file."""
    if not path.exists():
        return "does not exist"
    return f"no results found (no {file})" if path.is_dir() else "is a file, not a folder of results"


def open_results(path: Path, *, to_write: bool = False) -> Results:
    """Return the results of that folder; raise SpecError if there are none, or if a link in it leads out of it.

    With `to_write`, also if we are root and another user can replace a folder of it.
    """
    is_strict = to_write and system.is_root()
    if is_strict and (place := untrusted.find_writable_folder(path)):
        raise _replaceable_error(place, path)
    if not (path / PLAN).is_file():
        raise SpecError(f"{path}: {describe_missing_results(path)}; give results/<experiment>/<start>")
    for folder, folders, names in os.walk(path):
        if is_strict and not untrusted.is_own(Path(folder)):
            raise _replaceable_error(Path(folder), path)
        # Files of a server are neither read nor written again.
        folders[:] = [name for name in folders if name not in ("home", "jvm")]
        for place in (Path(folder) / name for name in (*folders, *names)):
            if place.is_symlink():
                safe_files.check_inside(place, path)
            # A load leaves sockets, which are never read.
            if place.exists() and not place.is_socket() and (problem := files.why_not_plain(place)):
                raise SpecError(f"{place}: {problem}; remove it")
    return Results(path)


def read_facts(path: Path) -> dict[str, Any]:
    """Return the facts of the machine of that results folder; empty for a summary.csv without its folder."""
    file = path / FACTS
    return safe_files.read_json(file) if file.is_file() else {}


def read_fingerprints(path: Path) -> dict[str, str]:
    """Return the checksums of the plan's files at the first run, by their paths; empty where the facts have none."""
    return safe_files.parse_record(dict[str, str], read_facts(path).get("files", {}), path / FACTS)


def check_names(plan: Plan, where: str = "") -> None:
    """Raise SpecError for a plan whose experiment or runs cannot each have a folder of their own."""
    safe_files.check_name(plan.experiment, f"{where}the experiment")
    if not plan.runs:
        raise SpecError(f"{where}the plan has no runs")
    ids = set()
    for run in plan.runs:
        cell, _, replicate = run.id.partition("/")
        subject = f"{where}the run {safe_files.quote_name(run.id)}"
        safe_files.check_name(cell, f"{subject}: its cell")
        safe_files.check_name(replicate, f"{subject}: its replicate")
        if cell != run.cell.name:
            raise SpecError(f"{subject} belongs to a cell with another name, {safe_files.quote_name(run.cell.name)}")
        if run.id in ids:
            raise SpecError(f"{where}there are two runs {safe_files.quote_name(run.id)}")
        ids.add(run.id)


def _check_trusted(path: Path) -> None:
    """Raise SpecError if we are root and another user can replace *path*, or a file created there later."""
    if system.is_root() and (place := untrusted.find_writable_folder(path)):
        raise SpecError(
            f"{place}: another user can replace files here while root writes them; choose a folder of root's by --out, "
            "or do not run as root"
        )


def _replaceable_error(place: Path, path: Path) -> SpecError:
    return SpecError(
        f"{place}: another user can replace files here while root writes them; do not run this as root, or give the "
        f"results to root first: chown -R root: {path}; chmod -R go-w {path}"
    )


def _create_folder(base: Path, stamp: str) -> Path:
    base.mkdir(parents=True, exist_ok=True)
    for suffix in ("", *(f"-{count}" for count in range(2, 100))):
        path = base / f"{stamp}{suffix}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise FileExistsError(17, f"too many runs started at {stamp}")


def _remove(folder: Path) -> None:
    """Delete a server's folder of any depth; shutil.rmtree would exceed the recursion limit."""
    system.run(("rm", "-rf", "--", str(folder)), check=False, timeout_s=_REMOVE_TIMEOUT_S)
