"""Which tests are left out when CI's time is short."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import time_limit

FOUR = """
import pytest

@pytest.mark.netem
@pytest.mark.long
def test_takes_long():
    pass

@pytest.mark.netem
def test_takes_a_moment():
    pass

@pytest.mark.netem
def test_lacks_something():
    pytest.skip("there is no netem")

@pytest.mark.long
def test_fails():
    assert False
"""
pytest_plugins = ["pytester"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds_left", "outcome"),
    # What is promised and lacks something fails, also then.
    [
        (None, {"passed": 2, "failed": 2}),
        (60, {"passed": 2, "failed": 2}),
        (-1, {"passed": 1, "failed": 1, "skipped": 2}),
    ],
)
def test_only_long_tests_are_left_out_when_time_is_over(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    seconds_left: int | None,
    outcome: dict[str, int],
) -> None:
    monkeypatch.delenv(time_limit.UNTIL, raising=False)
    if seconds_left is not None:
        monkeypatch.setenv(time_limit.UNTIL, str(round(time.time()) + seconds_left))
    pytester.makeini("[pytest]\nmarkers =\n    netem\n    long\n")
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text(encoding="utf-8"))
    for name in ("shared_out", "stolen", "time_limit"):
        pytester.makepyfile(**{name: Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")})
    pytester.makepyfile(test_four=FOUR)
    ran = pytester.runpytest_subprocess("--promised", "netem", "-ra")
    ran.assert_outcomes(**outcome)
    assert sum(time_limit.REASON in line for line in ran.outlines if line.startswith("SKIPPED")) == (
        "skipped" in outcome
    )
