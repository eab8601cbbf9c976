"""Run tests inside User-Mode Linux, whose kernel has parts that this one may lack."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ingest_bench.network.act import uml

_MARK = "INGEST_BENCH_TEST_IN_UML"
INSIDE = _MARK in os.environ
# User-Mode Linux 6.1 cannot restore the registers of a CPU with AMX: numpy's AVX-512 code computed log(2) = -inf there.
_AVX_512 = [name for name in np.show_config(mode="dicts")["SIMD Extensions"]["found"] if "512" in name or "V4" in name]
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no")


def assert_passes(summary: str, scratch: Path, *tests: str, before: tuple[str, ...] = ()) -> None:
    """Assert that pytest prints *summary* for these tests inside; `before` is a prefix of its command."""
    if not shutil.which("linux.uml"):
        pytest.skip("needs User-Mode Linux (Debian: user-mode-linux)")
    done = subprocess.run(
        (
            *uml.uml_command(),
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
        env={
            **os.environ,
            _MARK: "1",
            "KERNEL_WORDS": " ".join(uml.uml_kernel_options()),
            "NPY_DISABLE_CPU_FEATURES": " ".join(_AVX_512),
        },
    )
    assert done.returncode == 0, done.stdout[-5000:] + (scratch / "errors").read_text(encoding="utf-8")[-2000:]
    assert summary in done.stdout
