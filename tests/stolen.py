"""Tests whose processor somebody else had meanwhile: a hypervisor that takes its time says so in /proc/stat.

What measures times then fails by the machine's doing. Such a test is tried again, and the summary says how often; one
that fails on a machine of its own fails at once.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from ingest_bench.trials import processor_ticks, stolen_share

REAL = {"netem", "netns", "bpf", "device_mapper", "jvm", "opensearch", "elasticsearch", "processes", "data_prepper"}
# An idle virtual machine is told of less than 1%.
_MUCH = 0.02
_RESTS_S = (2, 5, 10, 20)


class TriedAgain:
    """A plugin of pytest."""

    def __init__(self) -> None:
        self.said: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """The test, until it passes, or fails while the processor was ours."""
        if not REAL & {mark.name for mark in item.iter_markers()}:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for rest_s in (*_RESTS_S, None):
            before = processor_ticks()
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            share = stolen_share(before, processor_ticks())
            if rest_s is None or share < _MUCH or not any(report.failed for report in reports):
                break
            self.said.append(f"{item.nodeid}: tried again, for the hypervisor took {share:.0%} of the processor")
            time.sleep(rest_s)
            item._initrequest()  # type: ignore[attr-defined] # as pytest-rerunfailures does
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A process of pytest-xdist hands on what it says."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["tried_again"] = self.said

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What such a process said."""
        self.said += getattr(node, "workeroutput", {}).get("tried_again", [])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Each test that was tried again."""
        for line in self.said:
            terminalreporter.write_line(line)
