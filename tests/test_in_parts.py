from __future__ import annotations

import subprocess
import sys
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
