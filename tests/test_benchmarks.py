"""What the benchmarks say of their promises."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

CHECKOUT = Path(__file__).parents[1]


def test_a_promise_that_was_not_measured_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(CHECKOUT / "benchmarks"))
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


class Session:
    """What a session of nox is asked to run."""

    def __init__(self, *posargs: str) -> None:
        self.posargs = list(posargs)
        self.env: dict[str, str | None] = {}
        self.ran: list[tuple[str, ...]] = []

    def install(self, *_: str) -> None:
        pass

    def run(self, *argv: str, **_: Any) -> None:
        self.ran.append(argv)

    def error(self, said: str) -> NoReturn:
        raise ValueError(said)


@cache
def noxfile() -> dict[str, Any]:
    """Read once: nox keeps every session that it has seen."""
    return runpy.run_path(str(CHECKOUT / "noxfile.py"))


def bench(monkeypatch: pytest.MonkeyPatch, *posargs: str) -> list[tuple[str, ...]]:
    """What `nox -s bench -- …` runs."""
    pytest.importorskip("nox", reason="nox is in an environment of its own")
    monkeypatch.chdir(CHECKOUT)
    session = Session(*posargs)
    noxfile()["bench"].func(session)
    return session.ran


def test_bench_runs_all_that_need_nothing_given_or_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [Path(argv[1]).stem for argv in bench(monkeypatch)]
    assert {"probes", "sending", "recordings"} <= set(names)
    assert not {"lab", "nights", "against_itself"} & set(names)
    assert bench(monkeypatch, "probes", "--rounds", "12") == [("python", "benchmarks/probes.py", "--rounds", "12")]
    assert bench(monkeypatch, "nights", "folder") == [("python", "benchmarks/nights.py", "folder")]


@pytest.mark.parametrize("name", ["porbes", "lab", "--rounds", "../benchmarks/probes"])
def test_bench_of_a_name_that_is_none_says_which_there_are(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(ValueError, match="no such benchmark; there are against_itself, analysis, capture"):
        bench(monkeypatch, name, "12")
