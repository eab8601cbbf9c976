"""The end of a run: OutOfMemoryErrors of its nodes, failures, aborts, and its measurement."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import example_runs as made
import pytest

from ingest_bench.errors import RunAborted, RunFailed, SpecError
from ingest_bench.lab import evaluation, runner
from ingest_bench.lab.runner import RunOptions
from ingest_bench.lab.server import running_server
from ingest_bench.lab.server.running_server import RunningServer
from ingest_bench.model.experiment import Run
from ingest_bench.results.layout import MAX_LOAD_NS, RunFolder

SECOND = made.SECOND
START_NS = made.START + made.OFFSET
EXCEPTION = (
    "[2026-11-22T07:38:4{}.000+0000][info][exceptions] Exception <a 'java/lang/OutOfMemoryError'{{0x1}}: {}> (0x1)\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The folder of a run with two nodes without an OutOfMemoryError."""
    run = RunFolder(tmp_path / "run")
    run.create()
    for node in run.nodes(2):
        node.create_folders()
        (node.jvm / "exceptions.log").write_text("[1s][info][exceptions] Exception <a 'java/lang/X'{0x0}: x>\n")
    return run


def server() -> RunningServer:
    options = SimpleNamespace(node_count=2)
    return cast(RunningServer, SimpleNamespace(options=options, is_launched=True, ended_nodes=lambda: ()))


def execution(folder: RunFolder) -> runner._Execution:
    planned = Run(id="c/1", cell=made.cell(), replicate=1)
    return runner._Execution(planned, folder, RunOptions(), lambda _: None, lambda _: None)


def throw(folder: RunFolder, node: int, second: int, message: str) -> None:
    (folder.nodes(2)[node].jvm / "exceptions.log").write_text(EXCEPTION.format(second, message))


def find(folder: RunFolder, *, is_alive: bool = False) -> str | None:
    error = running_server.find_out_of_memory(folder, server(), is_alive=is_alive)
    return error.description if error is not None else None


def test_first_out_of_memory_error_is_the_earliest_of_all_nodes(folder: RunFolder) -> None:
    throw(folder, 0, 7, "Java heap space")
    throw(folder, 1, 6, "Direct buffer memory")
    assert find(folder) == "direct: Direct buffer memory (exceptions.log)"


def test_error_text_of_a_document_in_the_log_of_a_live_server_is_ignored(folder: RunFolder) -> None:
    folder.log.write_text('took {"message":"java.lang.OutOfMemoryError: Java heap space"}\n')
    assert find(folder, is_alive=True) is None
    # An ended server may have had a full disk; without a complete exceptions log the server's log is the only source.
    from_log = 'heap: Java heap space"} (server.log)'
    assert find(folder) == from_log
    (folder.jvm / "exceptions.log.0").write_text("")
    assert find(folder, is_alive=True) == from_log
    for log in folder.jvm.glob("exceptions.log*"):
        log.unlink()
    assert find(folder, is_alive=True) == from_log


def test_failed_run_with_a_live_server_has_the_failure_as_its_reason(folder: RunFolder) -> None:
    folder.log.write_text('took {"message":"java.lang.OutOfMemoryError: Java heap space"}\n')
    failed = execution(folder)
    failed._record_failure(server(), RunFailed("a load worker died"))
    assert (failed.record.state, failed.record.reason) == ("failed", "a load worker died")


def test_aborted_run_reports_an_out_of_memory_error_of_its_server(folder: RunFolder) -> None:
    error = RunAborted("aborted by errors > 5% for 10s")
    aborted = execution(folder)
    aborted._record_abort(server(), error)
    record = aborted.record
    assert (record.state, record.reason, record.out_of_memory) == ("aborted", str(error), "")
    throw(folder, 0, 7, "Direct buffer memory")
    aborted._record_abort(server(), error)
    record = aborted.record
    assert (record.state, record.out_of_memory) == ("aborted", "direct")
    oom = "direct: Direct buffer memory (exceptions.log)"
    assert record.reason == f"{error}; the server had an OutOfMemoryError: {oom}"
    assert record.out_of_memory_realtime_ns == 1795333127 * 10**9


def load_folder(report: Any) -> Any:
    return SimpleNamespace(read_load_report=lambda: report, path=Path("run"))


@pytest.mark.parametrize(
    ("end_of_server_s", "start_s", "end_s"),
    [
        (None, 2, 7),
        (9, 2, 7),
        (6.5, 2, 6.5),
        (3, 2, 3),
        # Less than a second of measurement: the warm-up is measured.
        (2.999, 0, 2.999),
        (1, 0, 1),
        (-1, 0, 0),
    ],
)
def test_measurement_ends_with_its_server(end_of_server_s: float | None, start_s: float, end_s: float) -> None:
    until_ns = None if end_of_server_s is None else START_NS + round(end_of_server_s * SECOND)
    fields = evaluation.measurement_fields(load_folder(made.report()), made.cell(), until_ns=until_ns)
    assert fields["warm_up_ns"] == 2 * SECOND
    assert fields["measure_start_realtime_ns"] == START_NS + start_s * SECOND
    assert fields["measure_end_realtime_ns"] == START_NS + round(end_s * SECOND)


def test_load_without_a_report_has_no_measurement() -> None:
    assert evaluation.measurement_fields(load_folder(None), made.cell()) == {}


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "is_valid"),
    [
        (0, 0, True),
        (0, MAX_LOAD_NS, True),
        (5, 7, True),
        (-1, 5, False),
        (7, 6, False),
        (1, MAX_LOAD_NS + 1, False),
    ],
)
def test_measurement_outside_of_its_load_is_damaged(start_ns: int, end_ns: int, is_valid: bool) -> None:
    record = made.record(measure_start_realtime_ns=START_NS + start_ns, measure_end_realtime_ns=START_NS + end_ns)
    expectation = pytest.raises(SpecError, match="is not within the load's time")
    with contextlib.nullcontext() if is_valid else expectation:
        evaluation._check_times(load_folder(made.report()), record)
