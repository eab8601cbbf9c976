"""Whole loads over a real link into a real JVM that counts what it reads, and that misbehaves when told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from servers import Served, served

from ingest_bench.experiment import catalog
from ingest_bench.load import supervisor
from ingest_bench.load.plan import LoadPlan
from ingest_bench.model.load import BulkAction, LoadOptions
from ingest_bench.model.samples import OUTCOMES, SAMPLE, WorkerReport
from ingest_bench.model.target import ServerAddress, TargetOptions

pytestmark = [pytest.mark.jvm, pytest.mark.netns, pytest.mark.processes]

WORKLOAD = catalog.load_workload("nyc_taxis")


@dataclass(frozen=True, slots=True)
class Loaded:
    report: WorkerReport
    samples: NDArray[np.void]
    bytes_read: int
    counted: int

    def documents(self, *outcomes: str) -> int:
        chosen = np.isin(self.samples["outcome"], [OUTCOMES.index(name) for name in outcomes])
        return int((self.samples["documents"] - self.samples["documents_acked"])[chosen].sum())

    @property
    def acked(self) -> int:
        return int(self.samples["documents_acked"].sum())


@contextmanager
def sink(tmp_path: Path, **setting: str) -> Iterator[Served]:
    chosen = {f"sink.{name}": value for name, value in setting.items()}
    with served(tmp_path, TargetOptions(name="sink", heap_bytes=256 << 20, setting=chosen)) as server:
        yield server


def loaded(server: Served, folder: Path, **options: Any) -> Loaded:
    """One load, and what the sink read and took of it."""
    chosen: dict[str, Any] = {"warm_up_ns": 500_000_000, "measure_ns": 2 * 10**9, "users": 4, "bulk_documents": 200}
    plan = LoadPlan(
        server=ServerAddress(endpoint=server.listen),
        wire=server.target.wire(server.options, WORKLOAD),
        workload=WORKLOAD,
        options=LoadOptions(**(chosen | options)),
        folder=folder,
    )
    before, question = bytes_read(server), -bytes_read(server)
    question += bytes_read(server)
    counted = server.count(WORKLOAD.index)
    settings = -bytes_read(server)
    report = supervisor.start_load(plan, server.link.client.command).wait(lambda _: None)
    read = bytes_read(server) + settings - question
    assert before > 0
    files = sorted(folder.glob("samples-*.bin"))
    samples = np.concatenate([np.fromfile(file, dtype=SAMPLE) for file in files])
    return Loaded(report, samples, read, server.count(WORKLOAD.index) - counted)


def bytes_read(server: Served) -> int:
    return int(server.counters()["bytes_read"])


def test_bytes_and_documents_equal_those_of_the_jvm(tmp_path: Path) -> None:
    with sink(tmp_path) as server:
        sample = loaded(server, tmp_path / "sample")
        two = loaded(server, tmp_path / "two", processes=2)
        zipped = loaded(server, tmp_path / "zipped", gzip=True, users=1)
    for done in (sample, two):
        assert done.report.bytes_written == done.bytes_read == done.samples["bytes_sent"].sum()
        assert done.acked == done.counted > 0
        assert done.report.errors == ()
    assert set(two.samples["user"]) == {0, 1, 2, 3}
    assert zipped.report.bytes_written == zipped.bytes_read


@pytest.mark.nightly
def test_documents_with_ids_are_exact_with_lost_responses(tmp_path: Path) -> None:
    action = BulkAction(conflicts="random", conflict_probability_ppm=250_000)
    with sink(tmp_path, unheard="5%", close="2%", unavailable="5%", reject="1%") as server:
        done = loaded(server, tmp_path / "load", action=action, retries=50)
    # Only of what the end of the load kept from another attempt it is not known: a arrival of each user at most.
    unknown = int((done.samples["documents"] - done.samples["documents_failed"]).sum()) - done.acked
    assert unknown <= 4 * 200
    expected = done.acked - done.report.documents_repeated
    assert expected <= done.counted <= expected + unknown
    assert done.report.documents_repeated > 0.2 * done.acked
    assert done.samples["attempts"].max() > 2
    assert done.samples["bytes_unanswered"].sum() > 0
    lost = done.report.bytes_written - done.bytes_read
    assert 0 <= lost <= done.samples["bytes_unanswered"].sum()
    assert any("503" in error for error in done.report.errors)


@pytest.mark.nightly
def test_documents_are_within_the_unknown_with_broken_connections(tmp_path: Path) -> None:
    with sink(tmp_path, close="3%", broken="3%", silent="1%") as server:
        done = loaded(server, tmp_path / "load", timeout_ns=300_000_000)
    unknown = done.documents("connection-error", "invalid-response", "timeout", "cut-off")
    assert {"ok", "connection-error", "invalid-response", "timeout"} <= {OUTCOMES[n] for n in done.samples["outcome"]}
    assert done.acked <= done.counted <= done.acked + unknown
    assert done.bytes_read <= done.report.bytes_written
