"""Tests that an ordinary user must pass too: links, their checks and faults need no root."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ordinary_user
import pytest

from ingest_bench.network.act import uml

NETNS, NETEM, NIGHTLY, MEASURES = pytest.mark.netns, pytest.mark.netem, pytest.mark.nightly, pytest.mark.measures
# File, marker whose skip is a failure, marks and names of its tests.
CASES = [
    pytest.param("slow_fsync", "", "", "", marks=pytest.mark.processes),
    pytest.param("capture", "netns", "netns", "wire_agree or exec_captures", marks=(NETNS, MEASURES)),
    pytest.param("network_link", "netns", "", "", marks=(NETNS, NIGHTLY)),
    pytest.param("network_links", "netns", "not netem", "", marks=(NETNS, NIGHTLY)),
    pytest.param(
        *("network_check", "netns", "", "passes_every_check and (loopback or ethernet) or watched_wire"),
        marks=(NETNS, NIGHTLY, MEASURES),
    ),
    # Directions differ only by a number in the same rule.
    pytest.param("network_faults", "netns", "netns", "not -both] and not to-client]", marks=(NETNS, NIGHTLY)),
    # The netem of User-Mode Linux does not depend on the user.
    pytest.param(
        *("network_uml", "netem", "netem", "mtu_of_a_link or killed_program or is_left"), marks=(NETEM, NIGHTLY)
    ),
]


@pytest.mark.parametrize(("name", "promised", "marks", "tests"), CASES)
def test_ordinary_user_passes_the_same_tests(name: str, promised: str, marks: str, tests: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("this is the ordinary user")
    if promised == "netem" and uml.find_uml_problem():
        pytest.skip(uml.find_uml_problem())
    user = ordinary_user.before()
    file = str(Path(__file__).with_name(f"test_{name}.py"))
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, ordinary_user.UID, ordinary_user.UID)
        chosen = (f"--promised={promised}", "-m", marks, "-k", tests, f"--basetemp={folder}/tests")
        done = subprocess.run(
            (*user, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, file),
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            env={**os.environ, "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=Path(__file__).parent.parent,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
