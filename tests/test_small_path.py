"""The command where cron starts it, or anybody else: with another PATH than a shell's, or with none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import commands
import pytest
from commands import Place, nothing_left

from ingest_bench.jvm import cache, java

pytestmark = [pytest.mark.jvm, pytest.mark.netns, pytest.mark.processes]

PATHS = {"as cron has it": "/usr/bin:/bin", "the current folder": ".", "unset": None}
# Each has a namesake in the current folder, which must not be the one that runs.
PROGRAMS = ("cp", "ip", "java", "nsenter", "python3", "setpriv", "sh", "sysctl", "tc", "unshare")
SINK = """
[network]
profile = "ethernet"
[target]
name = "sink"
heap = "128m"
[load]
bulk_documents = 100
warm_up = "500ms"
measure = "1s"
"""


@pytest.fixture
def here() -> Iterator[Place]:
    commands.fill_cache()
    with commands.place() as place:
        (place.folder / "x.toml").write_text(SINK)
        for name in PROGRAMS:
            planted = place.folder / name
            planted.write_text('#!/bin/sh\n: > "${0%/*}/planted-program-ran"\nexit 1\n')
            planted.chmod(0o755)
        yield place


def ran(place: Place, path: str | None, *arguments: str) -> tuple[int, str]:
    """Exit code and output of the installed command, in the environment that a crontab's line has."""
    environment = {"HOME": str(place.folder), "INGEST_BENCH_CACHE": str(cache.folder())}
    if path is not None:
        environment["PATH"] = path
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ingest-bench")), *arguments],
        cwd=place.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=commands.LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_a_run_finds_its_programs_whatever_path_says(here: Place, path: str | None) -> None:
    with nothing_left():
        assert ran(here, path, "plan", "x.toml")[0] == 0
        home = java.find(17).home
        code, said = ran(here, path, "run", "x.toml", "--java-home", str(home), "--out", "out")
    assert code == 0, said
    assert len(here.results) == 1
    assert not (here.folder / "planted-program-ran").exists()


@pytest.mark.nightly
def test_doctor_finds_the_same_programs_whatever_path_says(here: Place) -> None:
    said = {ran(here, path, "doctor") for path in (os.environ["PATH"], *PATHS.values())}
    assert len(said) == 1
    assert not (here.folder / "planted-program-ran").exists()
