"""Derive marks from marks, enforce promised capabilities, set signal handlers as a terminal does; fixtures."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest
from interface_lab import Lab, lab

# A test that needs none of these is a unit test.
CAPABILITIES = {
    "bpf",
    "data_prepper",
    "elasticsearch",
    "jvm",
    "netem",
    "netns",
    "opensearch",
    "processes",
}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Lab]:
    """Yield a machine with a stand-in for a real interface."""
    with lab(tmp_path / "state") as opened:
        yield opened


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--promised", default="", help="capabilities promised here: a skip is a failure")


def pytest_configure() -> None:
    # A background job may start with these signals ignored. The programs under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


# Before the selection by marks, and before pytest-xdist reads the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark unit tests, tests that may be retried, and tests that one worker runs in sequence."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if not CAPABILITIES & marks:
            item.add_marker("unit")
        if "measures" in marks:
            # Other work on the machine changes what they measure.
            item.add_marker(pytest.mark.flaky(reruns=1))
        if "machine" in marks:
            # They change or count what the whole machine shares.
            item.add_marker(pytest.mark.xdist_group("machine"))
        elif _has_module_fixture(item):
            # Such a fixture starts a server once for its module.
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def _has_module_fixture(item: pytest.Item) -> bool:
    fixtures = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    return any(fixture.scope == "module" for definitions in fixtures.values() for fixture in definitions)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a state folder of the test."""
    monkeypatch.setenv("INGEST_BENCH_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Return the folder of a node's raw files."""
    folder = tmp_path / "raw"
    folder.mkdir()
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a promised capability into a failure."""
    report = yield
    promised = set(item.config.getoption("--promised").split(","))
    marks = {mark.name for mark in item.iter_markers()}
    is_expected = hasattr(report, "wasxfail") or _needs_root(str(report.longrepr))
    if report.skipped and promised & marks and not is_expected:
        report.outcome = "failed"
        report.longrepr = f"promised here, but skipped: {report.longrepr}"
    return report


def _needs_root(reason: str) -> bool:
    """Return True if an ordinary user skips a test that only root can run."""
    return os.geteuid() != 0 and any(words in reason for words in ("needs root", "this is the ordinary user"))
