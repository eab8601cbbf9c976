"""What every test shares: the promise about capabilities, which are plain, and signals as a terminal gives them."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from shared_out import marks_of, together
from stolen import REAL, TriedAgain
from time_limit import REASON, TimeLimit


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--promised", default="", help="markers promised here: a skip is a failure")
    parser.addoption("--plain", action="store_true", help="only what needs no root, no server and no network")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whether it has no plain test at all. To import it would take as long as many of them do."""
    if not config.getoption("--plain") or collection_path.suffix != ".py":
        return None
    return True if REAL & marks_of(collection_path) else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile` files are taken apart whose tests have nothing in common."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - it is not needed for one test

    made = LoadFileScheduling(config, log)
    made._split_scope = partial(together, config.rootpath)
    return made


def pytest_configure(config: pytest.Config) -> None:
    # What is imported and collected stays to the end. To look through it again and again takes a tenth of all time.
    gc.disable()
    if config.getoption("--plain"):
        plain, asked = f"not ({' or '.join(sorted(REAL))})", config.option.markexpr
        config.option.markexpr = f"({asked}) and {plain}" if asked else plain
    config.pluginmanager.register(TriedAgain())
    config.pluginmanager.register(TimeLimit())
    # A job that runs in the background may start with these ignored; the programs under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    promised = set(item.config.getoption("--promised").split(","))
    markers = {mark.name for mark in item.iter_markers()}
    if (
        report.skipped
        and not hasattr(report, "wasxfail")
        and promised & markers
        and not _is_no_want(str(report.longrepr))
    ):
        report.outcome = "failed"
        report.longrepr = f"promised here, but skipped: {report.longrepr}"
    return report


def _is_no_want(reason: str) -> bool:
    """Whether nothing is lacking: there was no time left, or an ordinary user skips what only root can try."""
    for_root = os.geteuid() != 0 and any(words in reason for words in ("needs root", "this is the ordinary user"))
    return for_root or REASON in reason
