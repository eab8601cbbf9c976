"""Verdicts of the benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]


def test_a_limit_without_measurements_has_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(CHECKOUT / "benchmarks"))
    import sending  # noqa: PLC0415 - next to the modules that it imports

    only_wrk = {size: {sending.WRK: [1.0]} for size in sending.BODIES}
    assert sending.judge(only_wrk).print() == 3
    output = capsys.readouterr().out
    assert "All limits are met" not in output
    assert "4 kB: ingest-bench / wrk was not measured" in output
    fast = {sending.OWN: [1.0], sending.POOL: [1.0], sending.WRK: [1.0], sending.WRK_POOL: [1.0], sending.FAST: [10.0]}
    assert sending.judge(dict.fromkeys(sending.BODIES, fast)).print() == 0
    slow = {**fast, sending.WRK: [0.1]}
    assert sending.judge(dict.fromkeys(sending.BODIES, slow)).print() == 1
