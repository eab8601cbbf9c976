"""The tests that take long and are left out where a slow machine has no time for them: CI ends what is late."""

from __future__ import annotations

import os
import time

import pytest

# Seconds since the epoch (`date +%s`).
UNTIL = "LONG_TESTS_UNTIL"
REASON = "no time left for a long test"


class TimeLimit:
    """A plugin of pytest: after that moment no test that is marked `long` begins, and each is named as skipped."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        until = os.environ.get(UNTIL)
        if until and time.time() >= int(until) and item.get_closest_marker("long"):
            pytest.skip(REASON)
