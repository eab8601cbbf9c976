"""The environment that an ordinary user's session takes."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest
from test_benchmarks import CHECKOUT, noxfile

command = pytest.importorskip("nox.command", reason="nox is in an environment of its own")


class Session:
    """Runs commands as nox does."""

    def __init__(self) -> None:
        self.env: dict[str, str | None] = {}

    def run(self, *argv: str, silent: bool = False, success_codes: tuple[int, ...] = (0,), **_: Any) -> str | bool:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode not in success_codes:
            raise command.CommandFailed(f"Returned code {done.returncode}")
        return done.stdout if silent else True


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.chdir(tmp_path)
    return Session()


@pytest.mark.parametrize(("name", "is_made"), [("tests", True), ("yes", False)])
def test_an_environment_without_the_package_is_not_used(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_made: bool
) -> None:
    if is_made:
        venv.create(tmp_path / name, symlinks=True)
    readable = noxfile()["readable_environment"]
    monkeypatch.setitem(readable.__globals__, "TEST_PROGRAMS", [tmp_path / name / "bin"])
    monkeypatch.setitem(readable.__globals__, "AS_NOBODY", ("env",))
    monkeypatch.setitem(readable.__globals__, "fresh_environment", lambda *_: Path("fresh"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(CHECKOUT)
    assert readable(session, tmp_path) == Path("fresh")
