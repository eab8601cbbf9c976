"""Run a command or tests as an ordinary user."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

UID = 65534
_USER = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")


def before() -> tuple[str, ...]:
    """Return the prefix that runs a command as an ordinary user; skip if that user cannot run this Python."""
    if os.geteuid() != 0:
        return ()
    if not _can_use_this_python():
        pytest.skip("this Python is not readable for other users")
    return _USER


@functools.cache
def _can_use_this_python() -> bool:
    # By a shell: what setpriv starts itself, it finds as root does. Not from the checkout, which it may read.
    started = (*_USER, "sh", "-c", 'exec "$@"', "sh", sys.executable, "-c", "import ingest_bench, pytest")
    return subprocess.run(started, check=False, cwd="/", capture_output=True).returncode == 0


def repeat(file: str, *, promised: str, limit_s: int, marks: str = "", names: str = "not ordinary_user") -> None:
    """Run the tests of the file with these marks and names as an ordinary user; skip without root.

    *promised* are markers whose skip is a failure.
    """
    if os.geteuid() != 0:
        pytest.skip("this is the ordinary user")
    user = before()
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, UID, UID)
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
