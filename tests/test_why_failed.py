"""What ended a server's run, or did not: OutOfMemoryErrors of its nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ingest_bench.errors import RunAborted, RunFailed
from ingest_bench.lab import runner, why_failed
from ingest_bench.lab.server.running_server import RunningServer
from ingest_bench.model.experiment import Cell
from ingest_bench.model.results import RunRecord
from ingest_bench.results.run_folder import RunFolder

THROWN = (
    "[2026-11-22T07:38:4{}.000+0000][info][exceptions] Exception <a 'java/lang/OutOfMemoryError'{{0x1}}: {}> (0x1)\n"
)
RECORD = RunRecord(run="c/1", replicate=1, cell="c", levels={}, instrumented=False, state="started", started_utc="")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Of a run with two nodes, whose JVMs threw nothing."""
    run = RunFolder(tmp_path / "run")
    run.create()
    for node in run.nodes(2):
        node.make()
        (node.jvm / "exceptions.log").write_text("[1s][info][exceptions] Exception <a 'java/lang/X'{0x0}: x>\n")
    return run


def server(nodes: int = 2) -> RunningServer:
    return cast(RunningServer, SimpleNamespace(nodes=(None,) * nodes, is_ours=True, ended=lambda: ()))


def throws(folder: RunFolder, node: int, second: int, words: str) -> None:
    (folder.nodes(2)[node].jvm / "exceptions.log").write_text(THROWN.format(second, words))


def found(folder: RunFolder, **how: Any) -> str | None:
    first = why_failed.out_of_memory(folder, server(), **how)
    return first.sentence if first is not None else None


def test_the_first_error_of_all_nodes_is_the_first_one_in_time(folder: RunFolder) -> None:
    throws(folder, 0, 7, "Java heap space")
    throws(folder, 1, 6, "Direct buffer memory")
    assert found(folder) == "direct: Direct buffer memory (exceptions.log)"


def test_what_a_server_that_lives_on_writes_of_somebody_elses_error_is_none_of_its_own(folder: RunFolder) -> None:
    """A document with the words of an error, in the log of a server that writes what it got."""
    folder.log.write_text('took {"message":"java.lang.OutOfMemoryError: Java heap space"}\n')
    assert found(folder, lived_on=True) is None
    # One that has ended could not say it elsewhere, where its disk was full; nor could one without such a log, or whose
    # first exceptions are not there any more.
    said = 'heap: Java heap space"} (server.log)'
    assert found(folder) == said
    (folder.jvm / "exceptions.log.0").write_text("")
    assert found(folder, lived_on=True) == said
    for log in folder.jvm.glob("exceptions.log*"):
        log.unlink()
    assert found(folder, lived_on=True) == said


def test_a_run_that_failed_beside_a_server_that_lives_has_the_failure_as_its_reason(folder: RunFolder) -> None:
    folder.log.write_text('took {"message":"java.lang.OutOfMemoryError: Java heap space"}\n')
    failed = runner._broken(RECORD, cast(Cell, None), folder, server(), RunFailed("a load worker died"))
    assert (failed.state, failed.reason) == ("failed", "a load worker died")


def test_a_run_that_was_given_up_tells_of_the_error_that_its_server_survived(folder: RunFolder) -> None:
    hopeless = RunAborted("aborted by errors > 5% for 10s")
    aborted = runner._aborted(RECORD, folder, server(), hopeless)
    assert (aborted.state, aborted.reason, aborted.out_of_memory) == ("aborted", str(hopeless), "")
    throws(folder, 0, 7, "Direct buffer memory")
    aborted = runner._aborted(RECORD, folder, server(), hopeless)
    assert (aborted.state, aborted.out_of_memory) == ("aborted", "direct")
    assert aborted.reason == (
        f"{hopeless}; the server had an OutOfMemoryError: direct: Direct buffer memory (exceptions.log)"
    )
    assert aborted.out_of_memory_realtime_ns == 1795333127 * 10**9
