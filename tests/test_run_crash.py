"""A run that is interrupted or killed at any stage: nothing is left behind, and nothing that was measured is lost."""

from __future__ import annotations

import csv
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import commands
import pytest
from commands import CTRL_C, USERS, Command, Place, nothing_left, report, running

pytestmark = [pytest.mark.jvm, pytest.mark.netns, pytest.mark.processes]

EXPERIMENT = """
description = "Interrupted"
probes = ["reads", "gc", "host"]
[target]
name = "sink"
heap = "256m"
[load]
warm_up = "300ms"
measure = "2s"
"""
ONE_RUN = ("run", "interrupted.toml", "--out", "out")
LOOPBACK = (*ONE_RUN, "--set", "network=loopback")
VETH = (*ONE_RUN, "--set", "network=ethernet")
# What tells that the stage is under way, and who must be running then besides the command.
STAGES = {
    "link": (("stage link", "ip -batch"), ("cat",)),
    "check": (("stage check", "ingest_bench.network.measure.meter"), ("cat",)),
    "boot": (
        ("ingest_bench.load.worker", "stage boot", "NettySink"),
        ("cat", "http_child.py", "ingest_bench.load.worker"),
    ),
    "warm-up": (
        ("load warm-up",),
        ("NettySink", "ingest_bench.load.worker", "ingest_bench.network.measure.wire"),
    ),
    "measure": (("load measure",), ("NettySink", "ingest_bench.load.worker", "ingest_bench.host.proc")),
    "stop": (("stage stop",), ("NettySink", "cat")),
    "analysis": (("stage analysis", "JfrReader"), ()),
}


@pytest.fixture(scope="module", autouse=True)
def _cache() -> None:
    commands.fill_cache()


@pytest.fixture
def here() -> Iterator[Place]:
    with commands.place() as place_here:
        (place_here.folder / "interrupted.toml").write_text(EXPERIMENT)
        yield place_here


def reach(command: Command, stage: str) -> None:
    events, needed = STAGES[stage]
    for event in events:
        command.until(event)
    # A process that is about to become another program has no command line for a moment.
    for _ in range(100):
        if all(part in running(command) for part in needed):
            return
    raise AssertionError(f"{needed} are not all among {running(command)}")


def readable(place: Place, capsys: pytest.CaptureFixture[str], stage: str) -> None:
    """Whatever was measured can be reported: all of it once the run itself was over."""
    (results,) = place.results
    code, output = report(results, capsys)
    assert code == (0 if stage == "analysis" else 3), output
    assert "Traceback" not in output
    assert (results / "summary.csv").is_file()


def explained(command: Command, place: Place) -> None:
    """One line that says what happened and how to go on; what the server had is gone."""
    assert list(place.results[0].rglob("home")) == []
    results = place.results[0].relative_to(place.folder)
    assert "Traceback" not in command.text, command.text
    output = [line for line in command.text.splitlines() if "interrupted" in line]
    assert len(output) == 1, command.text
    assert f"ingest-bench run --resume {results}" in output[0]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "stage",
    [
        pytest.param("link", marks=pytest.mark.ordinary),
        "check",
        "boot",
        pytest.param("measure", marks=pytest.mark.ordinary),
        "stop",
        "analysis",
    ],
)
def test_sigkill_leaves_no_process_and_keeps_the_measurements(
    stage: str, here: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    with nothing_left(), here.command(*(VETH if stage in ("link", "measure") else LOOPBACK)) as command:
        reach(command, stage)
        command.popen.kill()
        assert command.end() == -signal.SIGKILL
    readable(here, capsys, stage)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "stage"),
    [
        pytest.param("SIGINT", "boot", marks=pytest.mark.ordinary),
        ("SIGTERM", "warm-up"),
        ("SIGINT", "analysis"),
    ],
)
def test_signal_ends_the_run_with_one_line_of_explanation(
    name: str, stage: str, here: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    with nothing_left(), here.command(*LOOPBACK) as command:
        reach(command, stage)
        command.popen.send_signal(commands.SIGNALS[name])
        assert command.end() == 130, command.text
    explained(command, here)
    readable(here, capsys, stage)


@pytest.mark.ordinary
def test_ctrl_c_on_a_terminal_ends_the_run(here: Place, capsys: pytest.CaptureFixture[str]) -> None:
    with nothing_left(), here.command(*VETH, terminal=True) as command:
        reach(command, "measure")
        os.write(command.output_fd, CTRL_C)
        assert command.end() == 130, command.text
    explained(command, here)
    readable(here, capsys, "measure")


@pytest.mark.nightly
def test_closed_terminal_ends_the_run(here: Place, capsys: pytest.CaptureFixture[str]) -> None:
    with nothing_left(), here.command(*LOOPBACK, terminal=True) as command:
        reach(command, "stop")
        command.close_terminal()
        assert command.end() == 130
    readable(here, capsys, "stop")


@pytest.mark.nightly
@pytest.mark.parametrize("user", USERS)
def test_interrupted_experiment_is_resumed(user: int | None) -> None:
    with commands.place(user) as place:
        (place.folder / "interrupted.toml").write_text(EXPERIMENT)
        with nothing_left(), place.command(*ONE_RUN, "--set", "network=loopback,ethernet") as command:
            command.until("stage analysis")
            reach(command, "measure")
            command.popen.send_signal(signal.SIGINT)
            assert command.end() == 130, command.text
        (results,) = place.results
        explained(command, place)
        first = measured(results)
        assert len(first) == 1
        resume = ("run", "--resume", str(results))
        with nothing_left(), place.command(*resume) as command:
            reach(command, "measure")
            command.popen.kill()
            command.end()
        # As its user: root writes nothing where another user can replace it.
        with place.command("report", str(results)) as command:
            assert command.end() == 3, command.text
        assert measured(results) == first
        with nothing_left(), place.command(*resume) as command:
            assert command.end() == 0, command.text
        assert command.stages.count("link") == 1
        both = measured(results)
        assert len(both) == 2
        assert {run: both[run] for run in first} == first
        (broken,) = {path.parent for path in results.glob("*/1.broken-*")}
        assert len(list(broken.glob("1.broken-*"))) == 2


def measured(results: Path) -> dict[str, tuple[dict[str, str], tuple[tuple[str, bytes], ...]]]:
    """Each measured run: its row of summary.csv, and the files that the numbers come from."""
    with (results / "summary.csv").open(encoding="utf-8") as opened:
        rows = [row for row in csv.DictReader(opened) if row["state"] == "measured"]
    return {row["run"]: (row, files(results / row["run"])) for row in rows}


def files(run: Path) -> tuple[tuple[str, bytes], ...]:
    names = ("run.json", "load/load.json", "load/samples-0.bin", "raw/recording.jfr", "raw/gc.log")
    return tuple((name, (run / name).read_bytes()) for name in names)
