"""The command with another PATH than that of a shell, as from cron, or without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import commands
import pytest

from ingest_bench.jvm import cache

pytestmark = [pytest.mark.jvm, pytest.mark.netns, pytest.mark.processes]

# Each has a namesake in the current folder, which must not run.
PROGRAMS = ("cp", "ip", "java", "nsenter", "python3", "setpriv", "sh", "sysctl", "tc", "unshare")


@pytest.mark.nightly
def test_doctor_and_plan_find_the_same_programs_with_any_path() -> None:
    commands.fill_cache()
    with commands.place() as place:
        for name in PROGRAMS:
            planted = place.folder / name
            planted.write_text('#!/bin/sh\n: > "${0%/*}/planted-program-ran"\nexit 1\n')
            planted.chmod(0o755)
        # The PATH of a shell, of cron, of a careless user, and none.
        outputs = {run(place, path, "doctor") for path in (os.environ["PATH"], "/usr/bin:/bin", ".", None)}
        assert len(outputs) == 1
        assert run(place, None, "plan", "quickstart")[0] == 0
        assert not (place.folder / "planted-program-ran").exists()


def run(place: commands.Place, path: str | None, *arguments: str) -> tuple[int, str]:
    """Return exit code and output of the installed command, with the environment of a cron job."""
    environment = {"HOME": str(place.folder), "INGEST_BENCH_CACHE": str(cache.folder())}
    if path is not None:
        environment["PATH"] = path
    command = str(Path(sys.executable).with_name("ingest-bench"))
    done = subprocess.run(
        [command, *arguments],
        cwd=place.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=commands.LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
