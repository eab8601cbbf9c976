"""Root's environment in a folder of mode 0700, such as below /root: tests that need an ordinary user are skipped."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import tempfile
import venv
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.netns]

TESTS = Path(__file__).parent
# Those that try something as an ordinary user, by the names of their parameters or their own.
CHOSEN = "65534 or ordinary_user or (moment and (link or box))"


def test_what_needs_an_ordinary_user_is_skipped_in_a_closed_environment() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, whose folders may be closed")
    uses = re.compile(r"^import ordinary_user|\bNOBODY\b|\bUSERS\b", re.MULTILINE)
    files = [path for path in sorted(TESTS.glob("test_*.py")) if uses.search(path.read_text(encoding="utf-8"))]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        # The packages of this environment by a path that leads through a closed folder.
        venv.create(folder, symlinks=True)
        packages = Path(sysconfig.get_path("purelib", vars={"base": folder}))
        (packages / "all.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        Path(folder).chmod(0o700)
        argv = (f"{folder}/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CHOSEN, *map(str, files))
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300, cwd=TESTS.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"(\d+) skipped", done.stdout)[-1]) > 10, done.stdout
    assert "this Python is not readable for other users" in done.stdout
