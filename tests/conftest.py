"""What every test shares: the promise about capabilities, and signals as a terminal gives them."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import pytest
from stolen import TriedAgain


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--promised", default="", help="markers promised here: a skip is a failure")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(TriedAgain())
    # A job that runs in the background may start with these ignored; the programs under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    promised = set(item.config.getoption("--promised").split(","))
    markers = {mark.name for mark in item.iter_markers()}
    if (
        report.skipped
        and not hasattr(report, "wasxfail")
        and promised & markers
        and not _for_root(str(report.longrepr))
    ):
        report.outcome = "failed"
        report.longrepr = f"promised here, but skipped: {report.longrepr}"
    return report


def _for_root(reason: str) -> bool:
    """Whether an ordinary user skips what only root can try; that is no promise broken."""
    return os.geteuid() != 0 and any(words in reason for words in ("needs root", "this is the ordinary user"))
