"""The files of one run and of its server's nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ingest_bench import system
from ingest_bench.errors import RunFailed, SpecError
from ingest_bench.inputs import record_files, records, untrusted
from ingest_bench.inputs.files import sha256
from ingest_bench.model.load import LONGEST_LOAD_S, WorkerReport
from ingest_bench.model.network import LinkName
from ingest_bench.model.results import READ_FIELDS, FileMark, RunRecord
from ingest_bench.model.samples import CPU_MARK, SAMPLE, SAMPLE_3, STANDSTILL
from ingest_bench.results import folder_names, whole_files
from ingest_bench.results.sample_files import SampleFiles

LONGEST_LOAD_NS = LONGEST_LOAD_S * 10**9
# Below `jvm`: jfr/<start>/<chunk>.jfr.
_JVM_DEPTH = 3
# Of what is left out, in a note.
_MOST_NAMES = 5
# Some 100 GB of a server's files.
_REMOVE_LIMIT_S = 600
READ = np.dtype(list(READ_FIELDS))


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
        """Which documents it has, by their numbers (`analysis.run.delivery`); not there where nobody can tell."""
        self.last_frames = self.raw / "last-frames.pcap"
        """The headers that crossed the clients' link to it last; only of a run that did not go well."""

    def reads(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Every socket read by this node of the load's connections, as the probe `reads` left them; none without it."""
        path = self.raw / "reads.bin"
        return record_files.read(path, READ) if path.is_file() else np.empty(0, dtype=READ)

    def make(self) -> None:
        """Make the folders where they are not there yet."""
        for folder in (self.raw, self.home, self.jvm):
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

    def marks(self) -> dict[str, FileMark]:
        """The length and the checksum of each file that the run left, by its place in the folder.

        Not of a server's log, which the server can make as long as it likes.
        """
        marks = {}
        for place in (f"{top}{name}" for top in ("", "earlier/") for name in ("load", "raw", "node-*/raw")):
            for path in (path for top in self.path.glob(place) for path in top.rglob("*") if path.is_file()):
                marks[str(path.relative_to(self.path))] = FileMark(bytes=path.stat().st_size, sha256=sha256(path))
        return marks

    def changed(self, marks: Mapping[str, FileMark]) -> list[str]:
        """A sentence for each of these files that is not what the run left."""
        said = []
        for name, mark in sorted(marks.items()):
            path = folder_names.below(self.path, name)
            if not path.is_file():
                said.append(f"{name} is gone since the run")
            elif (length := path.stat().st_size) != mark.bytes:
                said.append(f"{name} has {length:,} bytes, and {mark.bytes:,} when the run ended")
            elif sha256(path) != mark.sha256:
                said.append(f"{name} was changed after the run: its checksum is another one")
        return said

    def remove_homes(self) -> None:
        """What the servers had there is of no use without them, and may be larger than everything else together."""
        for home in self._of_servers("home"):
            _remove(home)

    def keep_jvm_files(self) -> list[str]:
        """Move the files of the JVMs to `raw`, where only this user can change them. Return a note for files not kept.

        Call it when no server of the run is left.
        """
        sentences = []
        for folder in self._of_servers("jvm"):
            try:
                left = untrusted.move_files(folder, folder.with_name("raw"), depth=_JVM_DEPTH)
            except OSError as error:
                sentences.append(
                    f"what the JVM wrote stays in {folder.relative_to(self.path)}/, and was not read ({error.strerror})"
                )
                continue
            names = ", ".join(folder_names.shown(str(path.relative_to(self.path))) for path in left[:_MOST_NAMES])
            sentences += [f"left out, not a plain file of the JVM's: {names}"] if left else []
            _remove(folder)
        return sentences

    def _of_servers(self, name: str) -> Iterator[Path]:
        """Yield the folders of that name of all servers of the run."""
        for node in ("", "node-*/", "earlier/", "earlier/node-*/"):
            yield from self.path.glob(f"{node}{name}")

    def take_homes(self, other: RunFolder, nodes: int) -> None:
        """The servers of that run left something there: those of this one find it in their own homes."""
        for own, its in zip(self.nodes(nodes), other.nodes(nodes), strict=True):
            own.path.mkdir(parents=True, exist_ok=True)
            _remove(own.home)
            its.home.rename(own.home)
            # Root writes there again, and a link or a pipe that the server left would lead it elsewhere.
            try:
                _, others = untrusted.take(own.home)
            except OSError as error:
                raise RunFailed(f"{own.home}: what the servers left cannot be used again ({error.strerror})") from None
            for path in others:
                path.unlink()

    def create(self) -> None:
        """Make the folders; what a broken try of the same run left is moved aside, not lost."""
        if self.path.is_symlink() or self.path.exists():
            if not self.path.is_symlink():
                # Only `kill -9` leaves them.
                self.remove_homes()
                self.keep_jvm_files()
            aside = (self.path.with_name(f"{self.path.name}.broken-{number}") for number in itertools.count(1))
            # Some of them may have been deleted: they are large.
            self.path.rename(next(path for path in aside if not path.is_symlink() and not path.exists()))
        self.load.mkdir(parents=True)
        self.make()

    def write(self, record: RunRecord) -> None:
        """Replace run.json, whole or not at all."""
        whole_files.write_json(self.path / "run.json", records.to_json(record))

    def record(self) -> RunRecord | None:
        """What run.json says, None where the run never started; SpecError when it is damaged or of another schema."""
        path = self.path / "run.json"
        if not path.is_file():
            return None
        table = whole_files.read_json(path)
        return whole_files.record(RunRecord, table, path)

    def samples(self) -> SampleFiles:
        """The ticket of every bulk of the run. A record that was cut off is left out."""
        return SampleFiles(sorted(self.load.rglob("samples-*.bin")), self._sample)

    def queries(self) -> SampleFiles | None:
        """The same of every query; None when the load had none."""
        files = sorted(self.load.rglob("queries-*.bin"))
        return SampleFiles(files, self._sample) if files else None

    @property
    def _sample(self) -> np.dtype[Any]:
        path = self.path / "run.json"
        return SAMPLE_3 if path.is_file() and whole_files.schema_of(path) < 4 else SAMPLE

    def cpu(self) -> tuple[np.ndarray[Any, np.dtype[Any]], ...]:
        """The CPU of each process that sent, in marks of a second. A mark that was cut off is left out."""
        return tuple(record_files.read(path, CPU_MARK) for path in sorted(self.load.rglob("cpu-*.bin")))

    def standstills(self) -> tuple[np.ndarray[Any, np.dtype[Any]], ...]:
        """When each process that sent stood still; one that never did has none."""
        return tuple(record_files.read(path, STANDSTILL) for path in sorted(self.load.rglob("standstills-*.bin")))

    def load_report(self) -> WorkerReport | None:
        """What the load said at its end; None when it never came to it."""
        path = self.load / "load.json"
        if not path.is_file():
            return None
        report = whole_files.record(WorkerReport, whole_files.read_json(path), path)
        for end_ns in (report.warm_up_end_ns, report.measure_end_ns):
            if not 0 <= end_ns - report.started_monotonic_ns <= LONGEST_LOAD_NS:
                raise SpecError(f"{path}: this file is damaged: no load starts and ends at such times")
        if not all(0 < port < 1 << 16 for port in report.local_ports):
            raise SpecError(f"{path}: this file is damaged: local_ports: a port is a number from 1 to 65535")
        return report


def _remove(folder: Path) -> None:
    """Delete a folder of a server's; of any depth, for which shutil.rmtree has too small a stack."""
    system.run(("rm", "-rf", "--", str(folder)), check=False, timeout_s=_REMOVE_LIMIT_S)
