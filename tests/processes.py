"""Wait for the end of processes."""

from __future__ import annotations

import time

import psutil


def is_alive(process: psutil.Process) -> bool:
    """Return True if it is running; a zombie is not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(family: list[psutil.Process], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while alive := [process for process in family if is_alive(process)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.02)
