"""Tests that pass inside User-Mode Linux, whose kernel has what this one may lack."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ingest_bench.network.act import uml

_MARK = "INGEST_BENCH_TEST_IN_UML"
INSIDE = _MARK in os.environ
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no")


def passes(said: str, scratch: Path, *tests: str, before: tuple[str, ...] = ()) -> None:
    """Whether pytest says so of these tests inside; `before` is the start of the command that runs them."""
    if not shutil.which("linux.uml"):
        pytest.skip("needs User-Mode Linux (Debian: user-mode-linux)")
    done = subprocess.run(
        (
            *uml.becoming(),
            "bash",
            str(Path(__file__).with_name("in_uml.sh")),
            "300",
            str(scratch),
            *before,
            *_PYTEST,
            *tests,
        ),
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
        env={**os.environ, _MARK: "1", "KERNEL_WORDS": " ".join(uml.kernel_words())},
    )
    assert done.returncode == 0, done.stdout[-5000:] + (scratch / "errors").read_text(encoding="utf-8")[-2000:]
    assert said in done.stdout
