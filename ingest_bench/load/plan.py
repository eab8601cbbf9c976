"""What a load worker is told: one JSON file."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from ingest_bench.model.load import LoadOptions
from ingest_bench.model.target import Endpoint
from ingest_bench.model.workload import Workload
from ingest_bench.records import from_json, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Where a load goes, what it sends and when, and where its files are written."""

    address: Endpoint
    bulk_path: str
    workload: Workload
    options: LoadOptions
    out: Path
    host_header: str = ""
    """Empty: the address."""
    headers: dict[str, str] = field(default_factory=dict)
    """More headers for each request."""
    recorded_ns: tuple[int, ...] = ()
    """The planned times of `recorded` arrivals."""
    worker: int = 0
    workers: int = 1

    @property
    def users(self) -> int:
        """How many users all workers have together."""
        return self.options.users or self.workload.users

    @property
    def own_users(self) -> range:
        """The numbers of this worker's users: each worker has every n-th."""
        return range(self.worker, self.users, self.workers)

    @property
    def samples(self) -> Path:
        """The file of this worker's samples."""
        return self.out / f"samples-{self.worker}.bin"

    @property
    def report(self) -> Path:
        """The file of this worker's own report."""
        return self.out / f"load-{self.worker}.json"

    @property
    def log(self) -> Path:
        """What this worker printed beside the protocol."""
        return self.out / f"load-{self.worker}.log"

    def write(self) -> Path:
        """The JSON file of this plan."""
        path = self.out / f"load-plan-{self.worker}.json"
        table = to_json(dataclasses.replace(self, out=Path()))
        path.write_text(json.dumps(table | {"out": str(self.out.absolute())}, indent=1))
        return path


def read(path: Path) -> LoadPlan:
    """The plan that `LoadPlan.write` wrote."""
    table = json.loads(path.read_text())
    return from_json(LoadPlan, table | {"out": Path(table["out"])})
