"""What every test shares: the promise about capabilities, and signals as a terminal gives them."""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--promised", default="", help="markers promised here: a skip is a failure")


def pytest_configure() -> None:
    # A job that runs in the background may start with these ignored; the programs under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    promised = set(item.config.getoption("--promised").split(","))
    if report.skipped and not hasattr(report, "wasxfail") and promised & {mark.name for mark in item.iter_markers()}:
        report.outcome = "failed"
        report.longrepr = f"promised here, but skipped: {report.longrepr}"
    return report
