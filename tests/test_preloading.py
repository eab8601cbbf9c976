"""A server that starts with the documents of an earlier run in its files."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest_bench.errors import InvalidRun, RunFailed, SpecError
from ingest_bench.lab import planning, preloading
from ingest_bench.lab.planning import Procedure, Requests
from ingest_bench.lab.server import running_server
from ingest_bench.lab.server.running_server import RunningServer, ServerSetup
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import BulkAction, Conflicts, LoadOptions, TrackOptions
from ingest_bench.model.network import Profile
from ingest_bench.model.target import Endpoint, ServerAddress, TargetOptions
from ingest_bench.results.layout import RunFolder

DOCUMENTS = 3000
OPENSEARCH = pytest.param("opensearch", None, marks=[pytest.mark.opensearch, pytest.mark.netns])
CASSANDRA = pytest.param("cassandra", "0.7.5", marks=[pytest.mark.jvm, pytest.mark.netns])


def cell(name: str, version: str | None = None, documents: int = DOCUMENTS, **load: object) -> Cell:
    options = LoadOptions(users=2, bulk_documents=100, **load)  # type: ignore[arg-type]
    target = TargetOptions(name=name, version=version, heap_bytes=512 << 20, preloaded_documents=documents)
    return Cell(name="c", levels={}, network=Profile(name="unshaped"), target=target, load=options)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    """A run's folder, whose homes can be removed afterwards."""
    run = RunFolder(tmp_path / "run")
    run.create()
    yield run
    run.remove_homes()
    assert not list(run.path.rglob("home"))


@contextlib.contextmanager
def preloaded(planned: Cell, folder: RunFolder) -> Iterator[tuple[RunningServer, Procedure]]:
    """Preload the documents, then start the server on them."""
    preloading.write_documents(planned, folder, "kernel", None)
    setup = ServerSetup(netem="kernel", java_home=None)
    with running_server.open_server(planned, folder, setup) as server:
        yield (
            server,
            planning.build_procedure(planned, server.address, folder.load, may_delete=True, target=server.target),
        )


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "version"), [OPENSEARCH, CASSANDRA])
def test_server_starts_with_the_documents_of_the_earlier_run(folder: RunFolder, name: str, version: str | None) -> None:
    # Half of the run's own documents replace others; CQL and Thrift support that in one table only.
    conflicts: Conflicts = "random" if name == "opensearch" else "none"
    planned = cell(name, version, action=BulkAction(indices=2, conflicts=conflicts, conflict_probability_ppm=500_000))
    with preloaded(planned, folder) as (server, procedure):
        assert not any(isinstance(step, Requests) for step in procedure.steps)
        assert len(procedure.indices) == 2
        counts = [server.target.count(server.nodes, (index,)) or 0 for index in procedure.indices]
        assert min(counts) > 0
        assert sum(counts) >= DOCUMENTS
    report = folder.earlier.read_load_report()
    assert report is not None
    assert not report.errors


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_earlier_run_that_is_out_of_memory_fails_with_the_reason(folder: RunFolder) -> None:
    planned = cell("cassandra", "0.7.5", documents=2_000_000)
    planned = dataclasses.replace(planned, target=dataclasses.replace(planned.target, heap_bytes=32 << 20))
    reason = r"^target\.preloaded_documents: the earlier run failed: out of memory, heap: "
    with pytest.raises(RunFailed, match=reason):
        preloading.write_documents(planned, folder, "kernel", None)


@pytest.mark.nightly
@pytest.mark.opensearch
@pytest.mark.netns
def test_all_shard_copies_of_several_nodes_are_started_before_the_load(folder: RunFolder) -> None:
    planned = dataclasses.replace(
        cell("opensearch"), load=LoadOptions(workload="geonames", users=2, bulk_documents=100)
    )
    target = dataclasses.replace(planned.target, nodes=2)
    planned = dataclasses.replace(planned, target=target, peers=Profile(name="unshaped"))
    with preloaded(planned, folder) as (server, procedure):
        for request in procedure.requests:
            server.target.execute(server.http, request)
        shards = server.http.request_json("GET", "/_cat/shards/geonames?format=json")
    placement = sorted((shard["shard"], shard["prirep"], shard["state"], shard["node"]) for shard in shards)
    copies = (("p", "STARTED", "node-1"), ("r", "STARTED", "node-2"))
    assert placement == [(str(shard), *copy) for shard in range(5) for copy in copies]
    assert sum(int(shard["docs"]) for shard in shards if shard["prirep"] == "p") >= DOCUMENTS


def test_preloading_requires_a_target_with_files_and_no_track() -> None:
    with pytest.raises(SpecError, match=r"^target\.preloaded_documents: sink has no command that flushes them"):
        planning.check_procedure(cell("sink"))
    track = dataclasses.replace(cell("opensearch"), load=LoadOptions(track=TrackOptions(path="nowhere")))
    with pytest.raises(SpecError, match="conflicts with a track"):
        planning.check_procedure(track)


def test_preloading_cell_sends_new_documents_with_default_retries_and_links() -> None:
    planned = cell("opensearch", action=BulkAction(conflicts="random", indices=2), timeout_ns=10**6, retries=0)
    preload = preloading._preloading_cell(planned)
    # A document that replaces another one would be one less.
    assert preload.load.action == BulkAction(indices=2)
    assert (preload.load.timeout_ns, preload.load.retries) == (LoadOptions().timeout_ns, LoadOptions().retries)
    assert preload.peers is None
    shaped = dataclasses.replace(planned, network=Profile(name="wan-50ms"), peers=Profile(name="wan-50ms"))
    preload = preloading._preloading_cell(shaped)
    assert (preload.network, preload.peers) == (Profile(name="unshaped"), Profile(name="unshaped"))


def test_run_with_fewer_documents_at_its_start_is_invalid() -> None:
    planned, procedure = cell("opensearch"), Procedure(steps=(), indices=("a",))
    for enough in (DOCUMENTS, DOCUMENTS + 99, None):
        preloading.check_documents(planned, procedure, enough)
    # With unknown indices not all documents are counted.
    preloading.check_documents(planned, dataclasses.replace(procedure, indices_known=False), 300)
    with pytest.raises(InvalidRun, match=r"^target\.preloaded_documents: the server has 300 .* instead of 3,000"):
        preloading.check_documents(planned, procedure, 300)


def test_index_is_created_by_the_earlier_run_only() -> None:
    address = ServerAddress(endpoint=Endpoint("server", 9200))
    for documents, has_requests in ((0, True), (1, False)):
        planned = cell("opensearch", documents=documents)
        procedure = planning.build_procedure(planned, address, Path(), may_delete=False)
        assert bool(procedure.requests) == has_requests
