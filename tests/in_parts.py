"""The plain tests as several pytest processes, each with a part of the files: `python in_parts.py OPTIONS [FILES]`.

A worker of pytest-xdist imports every test file, and what that imports; to import takes as long as to test. So each
process has files of its own here, as many bytes as the others.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_MOST = 4
_NO_TESTS = 5


def main(arguments: Sequence[str]) -> int:
    """The exit code: that of the first part that has another than 0."""
    files = [Path(word) for word in arguments if word.endswith(".py")] or sorted(Path("tests").glob("test_*.py"))
    options = [word for word in arguments if not word.endswith(".py")]
    pytest = str(Path(sys.executable).with_name("pytest"))
    with contextlib.ExitStack() as opened:
        running = []
        for number, part in enumerate(parts(files, min(_MOST, len(os.sched_getaffinity(0))))):
            said = opened.enter_context(tempfile.TemporaryFile())
            argv = [pytest, *options, "-o", f"cache_dir=.pytest_cache/part-{number}", *map(str, part)]
            process = subprocess.Popen(argv, stdout=said, stderr=subprocess.STDOUT)
            opened.callback(process.wait)
            opened.callback(process.terminate)
            running.append((process, said))
        codes = [process.wait() for process, _ in running]
        for _, said in running:
            said.seek(0)
            sys.stdout.write(said.read().decode())
    return next((code for code in codes if code not in (0, _NO_TESTS)), min(codes))


def parts(files: Sequence[Path], count: int) -> list[list[Path]]:
    """The files in so many parts of about the same size."""
    made: list[list[Path]] = [[] for _ in range(count)]
    sizes = [0] * count
    for file in sorted(files, key=lambda file: (-file.stat().st_size, file)):
        least = sizes.index(min(sizes))
        made[least].append(file)
        sizes[least] += file.stat().st_size
    return [part for part in made if part]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
