"""When a test is tried again: only where somebody else had the processor."""

from __future__ import annotations

import pytest
import stolen

TWO = """
import pytest

@pytest.mark.netem
def test_fails_once(tmp_path_factory, request):
    tries = request.config.rootpath / "tries"
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    assert len(tries.read_text()) > 1

def test_quick():
    assert False
"""
pytest_plugins = ["pytester"]


@pytest.mark.slow
@pytest.mark.parametrize(("share", "passed", "failed"), [(0.5, 1, 1), (0.0, 0, 2)])
def test_a_test_of_real_parts_is_tried_again_where_its_processor_was_taken(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, share: float, passed: int, failed: int
) -> None:
    monkeypatch.setattr(stolen, "_RESTS_S", (0,))
    monkeypatch.setattr(stolen, "stolen_share", lambda _before, _after: share)
    pytester.makeini("[pytest]\nmarkers = netem\n")
    pytester.makepyfile(TWO)
    ran = pytester.inline_run(plugins=[stolen.TriedAgain()])
    ran.assertoutcome(passed=passed, failed=failed)
