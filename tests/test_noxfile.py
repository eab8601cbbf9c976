"""Which failures a session of nox lets pass, and which environment it takes for readable."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from test_benchmarks import CHECKOUT, noxfile

command = pytest.importorskip("nox.command", reason="nox is in an environment of its own")

PYTEST = (sys.executable, "-m", "pytest", "-q")


class Session:
    """Runs commands as nox does."""

    name = "tried"

    def __init__(self) -> None:
        self.env: dict[str, str | None] = {}
        self.codes: list[int] = []

    def run(self, *argv: str, silent: bool = False, success_codes: tuple[int, ...] = (0,), **_: Any) -> str | bool:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.codes.append(done.returncode)
        if done.returncode not in success_codes:
            raise command.CommandFailed(f"Returned code {done.returncode}")
        return done.stdout if silent else True


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.chdir(tmp_path)
    return Session()


def tried(session: Session, text: str) -> list[int]:
    """The exit codes of a first and a second try of this test."""
    Path("test_it.py").write_text(text, encoding="utf-8")
    noxfile()["twice_at_most"](session, PYTEST, "test_it.py")
    return session.codes


TWICE = """
from pathlib import Path

def test_it():
    seen = Path("seen")
    seen.touch(exist_ok=seen.exists())
    there = seen.read_text()
    seen.write_text("again")
    assert there
"""
AT_THE_END = """
import pytest

@pytest.fixture
def made():
    yield
    assert False

def test_it(made):
    pass
"""


@pytest.mark.slow
def test_what_fails_once_is_tried_again_and_what_passes_is_not(session: Session) -> None:
    assert tried(session, TWICE) == [1, 0]
    session.codes.clear()
    assert tried(session, TWICE) == [0]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "codes"), [(AT_THE_END, [1, 1]), ("import no_such_module", [2]), ("", [5])])
def test_what_fails_twice_or_cannot_be_tried_fails(session: Session, text: str, codes: list[int]) -> None:
    with pytest.raises(command.CommandFailed):
        tried(session, text)
    assert session.codes == codes


@pytest.mark.slow
def test_a_failure_that_could_not_be_kept_fails(session: Session) -> None:
    # As on a full disk.
    Path(".pytest_cache").write_bytes(b"")
    with pytest.raises(command.CommandFailed):
        tried(session, "def test_it():\n    assert 0\n")


@pytest.mark.slow
def test_a_failure_of_no_test_fails(session: Session) -> None:
    Path("conftest.py").write_text("def pytest_sessionfinish(session):\n    session.exitstatus = 1\n", encoding="utf-8")
    with pytest.raises(command.CommandFailed):
        tried(session, "def test_it():\n    pass\n")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "is_made"), [("tests", True), ("yes", False)])
def test_an_environment_without_the_package_is_not_taken_for_one_that_has_it(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_made: bool
) -> None:
    if is_made:
        venv.create(tmp_path / name, symlinks=True)
    readable = noxfile()["readable_environment"]
    monkeypatch.setitem(readable.__globals__, "MADE", [tmp_path / name / "bin"])
    monkeypatch.setitem(readable.__globals__, "AS_NOBODY", ("env",))
    monkeypatch.setitem(readable.__globals__, "fresh_environment", lambda *_: Path("fresh"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(CHECKOUT)
    assert readable(session, tmp_path) == Path("fresh")
