"""A server that starts with the documents of an earlier run in its files."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import pytest

from ingest_bench import earlier, procedure, serving
from ingest_bench.errors import SpecError
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import LoadOptions, TrackChoice
from ingest_bench.model.network import Profile
from ingest_bench.model.target import Endpoint, Place, TargetOptions
from ingest_bench.model.workload import BulkAction
from ingest_bench.parts import Ask
from ingest_bench.store import RunFolder

DOCUMENTS = 3000
OPENSEARCH = pytest.param("opensearch", None, marks=[pytest.mark.opensearch, pytest.mark.netns])
CASSANDRA = pytest.param("cassandra", "0.7.5", marks=[pytest.mark.jvm, pytest.mark.netns])


def cell(name: str, version: str | None = None, documents: int = DOCUMENTS, **load: object) -> Cell:
    options = LoadOptions(users=2, bulk_documents=100, **load)  # type: ignore[arg-type]
    target = TargetOptions(name=name, version=version, heap_bytes=512 << 20, earlier_documents=documents)
    return Cell(name="c", levels={}, network=Profile(name="unshaped"), target=target, load=options)


@pytest.mark.parametrize(("name", "version"), [OPENSEARCH, CASSANDRA])
def test_documents_of_an_earlier_run_are_there_at_the_start(tmp_path: Path, name: str, version: str | None) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    asked = cell(name, version, action=BulkAction(indices=2))
    earlier.leave(asked, folder, netem="kernel", java_home=None)
    report = folder.earlier.load_report()
    assert report is not None
    assert not report.errors
    with serving.opened(asked, folder, _untimed, lambda _jdk, _raw: (), netem="kernel", java_home=None) as server:
        to_do = procedure.of(asked, server.place, folder.load, may_delete=True, target=server.target)
        assert not any(isinstance(part, Ask) for part in to_do.parts)
        assert len(to_do.indices) == 2
        each = [server.target.count(server.nodes, (index,)) or 0 for index in to_do.indices]
        assert min(each) > 0
        assert sum(each) >= DOCUMENTS
    folder.remove_homes()
    assert not list(folder.path.rglob("home"))


def _untimed(_: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def test_what_keeps_no_files_has_none_of_an_earlier_run() -> None:
    with pytest.raises(SpecError, match=r"^target\.earlier_documents: sink cannot be told to write them to files"):
        procedure.check(cell("sink"))
    tracked = dataclasses.replace(cell("opensearch"), load=LoadOptions(track=TrackChoice(path="nowhere")))
    with pytest.raises(SpecError, match="a track says itself"):
        procedure._check_files(tracked)


def test_an_index_is_made_by_the_run_that_is_the_first() -> None:
    place = Place(endpoint=Endpoint("server", 9200))

    def makes(documents: int) -> bool:
        to_do = procedure.of(cell("opensearch", documents=documents), place, Path(), may_delete=False)
        return bool(to_do.requests)

    assert (makes(0), makes(1)) == (True, False)
