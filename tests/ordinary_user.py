"""Run a command as an ordinary user."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

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
