"""Verdicts of the benchmarks, and the sessions of nox."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

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


class Session:
    """Stand-in for a session of nox that records its commands."""

    def __init__(self, *posargs: str) -> None:
        self.posargs = list(posargs)
        self.env: dict[str, str | None] = {}
        self.ran: list[tuple[str, ...]] = []

    def install(self, *_: str) -> None:
        pass

    def run(self, *argv: str, **_: Any) -> None:
        self.ran.append(argv)

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


@cache
def noxfile() -> dict[str, Any]:
    """Read noxfile.py once: nox keeps every session that it has registered."""
    return runpy.run_path(str(CHECKOUT / "noxfile.py"))


def bench(monkeypatch: pytest.MonkeyPatch, *posargs: str) -> list[tuple[str, ...]]:
    """Return the commands of `nox -s bench -- …`."""
    pytest.importorskip("nox", reason="nox is in an environment of its own")
    monkeypatch.chdir(CHECKOUT)
    session = Session(*posargs)
    noxfile()["bench"].func(session)
    return session.ran


def test_bench_runs_all_benchmarks_or_the_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [Path(argv[1]).stem for argv in bench(monkeypatch)]
    assert names == ["memory", "net_check", "probes", "sending", "stalls"]
    assert bench(monkeypatch, "probes", "--rounds", "12") == [("python", "benchmarks/probes.py", "--rounds", "12")]


@pytest.mark.parametrize("name", ["porbes", "lab", "--rounds", "../benchmarks/probes"])
def test_bench_lists_benchmarks_for_an_unknown_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(ValueError, match="no such benchmark; there are memory, net_check"):
        bench(monkeypatch, name, "12")
