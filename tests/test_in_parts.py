from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from in_parts import main, parts


def written(folder: Path, sizes: Sequence[int]) -> list[Path]:
    files = [folder / f"test_{number}.py" for number in range(len(sizes))]
    for file, size in zip(files, sizes, strict=True):
        file.write_bytes(b"#" * size)
    return files


def test_each_file_has_one_place_and_the_parts_are_of_about_one_size(tmp_path: Path) -> None:
    files = written(tmp_path, [1000, 10, 600, 400, 500, 490, 1])
    made = parts(files, 3, 0)
    assert sorted(file for part in made for file in part) == sorted(files)
    sizes = [sum(file.stat().st_size for file in part) for part in made]
    assert max(sizes) - min(sizes) < 100


def test_a_slow_test_counts_as_many_bytes(tmp_path: Path) -> None:
    slow, *others = written(tmp_path, [10, 300, 200])
    slow.write_text("@pytest.mark.slow", encoding="utf-8")
    assert parts([slow, *others], 2, 0) == [[others[0]], [others[1], slow]]
    assert parts([slow, *others], 2, 500) == [[slow], others]


def test_no_part_is_empty(tmp_path: Path) -> None:
    assert parts(written(tmp_path, [3, 2]), 6, 0) == [[tmp_path / "test_0.py"], [tmp_path / "test_1.py"]]


@pytest.mark.slow
@pytest.mark.parametrize(("second", "code"), [("assert 1 + 1 == 2", 0), ("assert 1 + 1 == 3", 1)])
def test_what_each_part_says_is_said_and_one_that_fails_fails_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], second: str, code: int
) -> None:
    for number, text in enumerate(("pass", second, "pass")):
        (tmp_path / f"test_{number}.py").write_text(f"def test_it():\n    {text}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert main(["--each", "3", "-q", *files]) == code
    assert capfd.readouterr().out.count(" passed") == 3 - code


@pytest.mark.slow
def test_an_option_that_pytest_does_not_know_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_0.py").write_text("def test_it():\n    pass\n", encoding="utf-8")
    script = Path(__file__).with_name("in_parts.py")
    done = subprocess.run(
        (sys.executable, str(script), "--no-such-option", "test_0.py"), cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 4
    assert b"--no-such-option" in done.stdout


@pytest.mark.slow
def test_what_is_no_text_is_said_and_what_other_parts_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for number, text in enumerate(('import os; os.write(1, b"\\xff")', "assert 1 + 1 == 3")):
        (tmp_path / f"test_{number}.py").write_text(f"def test_it():\n    {text}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["--each", "2", "-q", "-s", "test_0.py", "test_1.py"]) == 1
    said = capfdbinary.readouterr().out
    assert b"\xff" in said
    assert b"1 failed" in said


@pytest.mark.slow
@pytest.mark.parametrize("files", [["test_0.py"], []])
def test_types_that_are_right_do_not_stand_for_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str]
) -> None:
    (tmp_path / "test_0.py").write_text("def test_it() -> None:\n    pass\n", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text('[tool.mypy]\nfiles = ["test_0.py"]\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(programs(tmp_path)))
    assert main(["--mypy", "-q", "-k", "no_such", *files]) == 5


def programs(folder: Path) -> Path:
    """A Python beside which stand the pytest that there is, and a mypy that finds nothing."""
    (folder / "bin").mkdir()
    for name, text in (("pytest", f'exec "{sys.executable}" -m pytest "$@"'), ("mypy", "exit 0")):
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (folder / "bin" / name).chmod(0o755)
    return folder / "bin" / "python"


@pytest.mark.slow
def test_a_part_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "test_0.py").write_text(
        "import os, time\nfrom pathlib import Path\n\ndef test_it():\n"
        "    Path('new').write_text(str(os.getpid()))\n    os.rename('new', 'pid')\n    time.sleep(60)\n",
        encoding="utf-8",
    )
    script = Path(__file__).with_name("in_parts.py")
    with subprocess.Popen((sys.executable, str(script), "-q", "test_0.py"), cwd=tmp_path) as started:
        until = time.monotonic() + 30
        while not (tmp_path / "pid").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        pid = int((tmp_path / "pid").read_text(encoding="utf-8"))
        started.terminate()
    assert started.returncode == 128 + signal.SIGTERM
    assert not Path(f"/proc/{pid}").exists()
