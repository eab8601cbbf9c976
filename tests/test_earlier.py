"""A server that starts with the documents of an earlier run in its files."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import pytest

from ingest_bench.errors import InvalidRun, RunFailed, SpecError
from ingest_bench.lab import earlier, steps
from ingest_bench.lab.server import running_server
from ingest_bench.lab.steps.parts import Ask, Procedure
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import LoadOptions, TrackChoice
from ingest_bench.model.network import Profile
from ingest_bench.model.target import Endpoint, Place, TargetOptions
from ingest_bench.model.workload import BulkAction, Conflicts
from ingest_bench.results.run_folder import RunFolder

DOCUMENTS = 3000
OPENSEARCH = pytest.param("opensearch", None, marks=[pytest.mark.opensearch, pytest.mark.netns])
CASSANDRA = pytest.param("cassandra", "0.7.5", marks=[pytest.mark.jvm, pytest.mark.netns])


def cell(name: str, version: str | None = None, documents: int = DOCUMENTS, **load: object) -> Cell:
    options = LoadOptions(users=2, bulk_documents=100, **load)  # type: ignore[arg-type]
    target = TargetOptions(name=name, version=version, heap_bytes=512 << 20, earlier_documents=documents)
    return Cell(name="c", levels={}, network=Profile(name="unshaped"), target=target, load=options)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "version"), [OPENSEARCH, CASSANDRA])
def test_documents_of_an_earlier_run_are_there_at_the_start(tmp_path: Path, name: str, version: str | None) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    # Of the run itself a half will replace others; CQL and Thrift take that into one table alone.
    conflicts: Conflicts = "random" if name == "opensearch" else "none"
    asked = cell(name, version, action=BulkAction(indices=2, conflicts=conflicts, conflict_probability_ppm=500_000))
    earlier.leave(asked, folder, netem="kernel", java_home=None)
    report = folder.earlier.load_report()
    assert report is not None
    assert not report.errors
    with running_server.opened(
        asked, folder, _untimed, lambda _jdk, _raw: (), netem="kernel", java_home=None
    ) as server:
        to_do = steps.of(asked, server.place, folder.load, may_delete=True, target=server.target)
        assert not any(isinstance(part, Ask) for part in to_do.parts)
        assert len(to_do.indices) == 2
        each = [server.target.count(server.nodes, (index,)) or 0 for index in to_do.indices]
        assert min(each) > 0
        assert sum(each) >= DOCUMENTS
    folder.remove_homes()
    assert not list(folder.path.rglob("home"))


@pytest.mark.nightly
@pytest.mark.jvm
@pytest.mark.netns
def test_an_earlier_run_that_is_out_of_memory_says_so(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    asked = cell("cassandra", "0.7.5", documents=2_000_000)
    asked = dataclasses.replace(asked, target=dataclasses.replace(asked.target, heap_bytes=32 << 20))
    with pytest.raises(RunFailed, match=r"^target\.earlier_documents: the run before failed: out of memory, heap: "):
        earlier.leave(asked, folder, netem="kernel", java_home=None)
    folder.remove_homes()
    assert not list(folder.path.rglob("home"))


@pytest.mark.nightly
@pytest.mark.opensearch
@pytest.mark.netns
def test_of_several_nodes_all_copies_are_there_before_the_load_and_the_first_on_the_first_node(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    asked = dataclasses.replace(cell("opensearch"), load=LoadOptions(workload="geonames", users=2, bulk_documents=100))
    target, plain = dataclasses.replace(asked.target, nodes=2), Profile(name="unshaped")
    asked = dataclasses.replace(asked, target=target, peers=plain)
    earlier.leave(asked, folder, netem="kernel", java_home=None)
    with running_server.opened(
        asked, folder, _untimed, lambda _jdk, _raw: (), netem="kernel", java_home=None
    ) as server:
        to_do = steps.of(asked, server.place, folder.load, may_delete=True, target=server.target)
        for request in to_do.requests:
            server.target.ask(server.http, request)
        shards = server.http.expect("GET", "/_cat/shards/geonames?format=json")
    where = sorted((one["shard"], one["prirep"], one["state"], one["node"]) for one in shards)
    copies = (("p", "STARTED", "node-1"), ("r", "STARTED", "node-2"))
    assert where == [(str(shard), *copy) for shard in range(5) for copy in copies]
    assert sum(int(one["docs"]) for one in shards if one["prirep"] == "p") >= DOCUMENTS
    folder.remove_homes()


def _untimed(_: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def test_what_keeps_no_files_has_none_of_an_earlier_run() -> None:
    with pytest.raises(SpecError, match=r"^target\.earlier_documents: sink cannot be told to write them to files"):
        steps.check(cell("sink"))
    tracked = dataclasses.replace(cell("opensearch"), load=LoadOptions(track=TrackChoice(path="nowhere")))
    with pytest.raises(SpecError, match="a track says itself"):
        steps._check_files(tracked)


def test_documents_that_are_asked_for_are_all_there_or_the_run_is_invalid() -> None:
    asked = cell("opensearch", action=BulkAction(conflicts="random", indices=2))
    # A document that replaces another one would be one less.
    assert earlier._alone(asked).load.action == BulkAction(indices=2)
    # And what a measured request may not take, one of those may: all of them are wanted.
    impatient = earlier._alone(cell("opensearch", timeout_ns=10**6, retries=0)).load
    assert (impatient.timeout_ns, impatient.retries) == (LoadOptions().timeout_ns, LoadOptions().retries)
    # Nothing shapes its links, of which only several nodes have some between them.
    several = dataclasses.replace(asked, network=Profile(name="wan-50ms"), peers=Profile(name="wan-50ms"))
    plain = Profile(name="unshaped")
    assert (earlier._alone(several).network, earlier._alone(several).peers) == (plain, plain)
    assert earlier._alone(asked).peers is None
    to_do = Procedure(parts=(), indices=("a",))
    for enough in (DOCUMENTS, DOCUMENTS + 99, None):
        earlier.check(asked, to_do, enough)
    # Of a file that is too large to be read before, not all indices are counted.
    earlier.check(asked, dataclasses.replace(to_do, indices_known=False), 300)
    with pytest.raises(InvalidRun, match=r"^target\.earlier_documents: the server has 300 .* 3,000 were asked for"):
        earlier.check(asked, to_do, 300)


def test_an_index_is_made_by_the_run_that_is_the_first() -> None:
    place = Place(endpoint=Endpoint("server", 9200))

    def makes(documents: int) -> bool:
        to_do = steps.of(cell("opensearch", documents=documents), place, Path(), may_delete=False)
        return bool(to_do.requests)

    assert (makes(0), makes(1)) == (True, False)
