"""A file of tests once more, as an ordinary user."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

NOBODY = 65534


def repeat(file: str, *, promised: str, limit_s: int, marks: str = "", names: str = "not ordinary_user") -> None:
    """Those tests of the file that have these marks and names pass; a skip where there is no other user to be.

    `promised` are the markers whose want is a failure.
    """
    if os.geteuid() != 0:
        pytest.skip("this is the ordinary user")
    user = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    if subprocess.run((*user, sys.executable, "-c", "import ingest_bench, pytest"), check=False).returncode:
        pytest.skip("this Python is not readable for other users")
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, NOBODY, NOBODY)
        chosen = (f"--promised={promised}", "-m", marks, "-k", names, f"--basetemp={folder}/tests")
        done = subprocess.run(
            (*user, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, file),
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
            env={**os.environ, "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=Path(__file__).parent.parent,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
