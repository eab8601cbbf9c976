"""Which tests go to one process of pytest-xdist together."""

from __future__ import annotations

from pathlib import Path

import pytest
import shared_out

pytest_plugins = ["pytester"]

FILES = {
    "test_of_all.py": "import pytest\n\npytestmark = [pytest.mark.netns, pytest.mark.machine]\n",
    "test_of_all_too.py": "pytestmark = pytest.mark.machine\n\n@pytest.fixture(scope='module')\n",
    "test_server.py": 'pytestmark = [\n    pytest.mark.jvm,\n]\n\n@pytest.fixture(scope="module")\n',
    "test_free.py": "import pytest\n\n@pytest.mark.machine\ndef test_a(): pass\n",
}


@pytest.mark.parametrize(
    ("test", "group"),
    [
        ("test_of_all.py::test_a[b::c]", "machine"),
        ("test_of_all_too.py::TestOne::test_a", "machine"),
        ("test_server.py::test_a[1]", "test_server.py"),
        ("test_free.py::test_a[1]", "test_free.py::test_a[1]"),
    ],
)
def test_tests_of_one_server_and_of_the_whole_machine_stay_together(tmp_path: Path, test: str, group: str) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    assert shared_out.together(tmp_path, test) == group


def test_the_marks_of_a_module_are_those_of_all_its_tests(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    assert "machine" in shared_out.marks_of(tmp_path / "test_of_all.py")
    assert "jvm" in shared_out.marks_of(tmp_path / "test_server.py")
    assert shared_out.marks_of(tmp_path / "test_free.py") == set()


# Each waits for the other one: in one process, one after the other, none would ever see it.
FREE = """
import os, time

def wait_for(other, own):
    open(own, "w").close()
    until = time.monotonic() + 60
    while not os.path.exists(other):
        assert time.monotonic() < until
        time.sleep(0.01)

def test_a(): wait_for("b", "a")
def test_b(): wait_for("a", "b")
"""
OF_ALL = """
import os
import pytest

pytestmark = pytest.mark.machine

def test_it():
    with open("machine", "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")
"""


@pytest.mark.slow
def test_what_the_machine_has_in_common_has_one_process_and_a_file_of_its_own_tests_has_two(
    pytester: pytest.Pytester,
) -> None:
    for name in ("conftest", "shared_out", "stolen", "time_limit"):
        pytester.makepyfile(**{name: Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")})
    pytester.makeini("[pytest]\nmarkers = machine\n")
    pytester.makepyfile(test_free=FREE, test_one=OF_ALL, test_other=OF_ALL)
    ran = pytester.runpytest_subprocess("-n", "2", "--dist", "loadfile")
    ran.assert_outcomes(passed=4)
    first, second = (pytester.path / "machine").read_text().split()
    assert first == second
