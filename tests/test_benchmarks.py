"""What the benchmarks say of their promises."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_a_promise_that_was_not_measured_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import sending  # noqa: PLC0415 - it stands beside what it imports

    alone = {size: {sending.WRK: [1.0]} for size in sending.BODIES}
    assert sending.judged(alone).told() == 3
    said = capsys.readouterr().out
    assert "kept" not in said
    assert "4 kB: ingest-bench / wrk was not measured" in said
    fast = {sending.OWN: [1.0], sending.POOL: [1.0], sending.WRK: [1.0], sending.WRK_POOL: [1.0], sending.FAST: [10.0]}
    assert sending.judged(dict.fromkeys(sending.BODIES, fast)).told() == 0
    slow = {**fast, sending.WRK: [0.1]}
    assert sending.judged(dict.fromkeys(sending.BODIES, slow)).told() == 1
