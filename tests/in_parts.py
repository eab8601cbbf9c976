"""The plain tests as several pytest processes, each with a part of the files: `python in_parts.py OPTIONS [FILES]`.

A worker of pytest-xdist imports every test file, and what that imports; to import takes as long as to test. So each
process has files of its own here, for about the same time. `--each 3` makes three parts for each processor: one that is
done early takes another. With `--mypy` the types are checked beside them.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

_MOST = 4
_NO_TESTS = 5
# A test that is marked so takes as long as those in so many bytes that are not.
_SLOW, _SLOW_BYTES = "mark.slow", 50_000


def main(arguments: Sequence[str]) -> int:
    """The exit code: that of the first command that has another than 0."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--each", type=int, default=1)
    parser.add_argument("--mypy", action="store_true")
    asked, others = parser.parse_known_args(arguments)
    files = [Path(word) for word in others if word.endswith(".py")] or sorted(Path("tests").glob("test_*.py"))
    options = [word for word in others if not word.endswith(".py")]
    programs, processors = Path(sys.executable).parent, min(_MOST, len(os.sched_getaffinity(0)))
    commands = [[str(programs / "mypy")]] if asked.mypy else []
    slow_bytes = 0 if "not slow" in options else _SLOW_BYTES
    for number, part in enumerate(parts(files, processors * asked.each, slow_bytes)):
        cache = f"cache_dir=.pytest_cache/part-{number}"
        commands.append([str(programs / "pytest"), *options, "-o", cache, *map(str, part)])
    running: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(processors) as pool:
        try:
            codes = list(pool.map(partial(_told, running), commands))
        except SystemExit:
            # SIGTERM is for this process alone.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            raise
        finally:
            # After Ctrl-C too: those that run have had it as well, and no other starts.
            pool.shutdown(cancel_futures=True)
    # Types that are right are no test.
    return next((code for code in codes if code not in (0, _NO_TESTS)), min(codes[asked.mypy :], default=_NO_TESTS))


def _told(running: list[subprocess.Popen[bytes]], command: Sequence[str]) -> int:
    """The exit code of a command; what it says is said at once when it has ended, whatever bytes it is."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        running.append(process)
        said, _ = process.communicate()
    sys.stdout.buffer.write(said)
    sys.stdout.flush()
    return process.returncode


def parts(files: Sequence[Path], count: int, slow_bytes: int) -> list[list[Path]]:
    """The files in so many parts of about the same size, in which a slow test counts as so many bytes."""
    made: list[list[Path]] = [[] for _ in range(count)]
    sizes = [0] * count
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    own = {file: len(text) + slow_bytes * text.count(_SLOW) for file, text in texts.items()}
    for file in sorted(files, key=lambda file: (-own[file], file)):
        least = sizes.index(min(sizes))
        made[least].append(file)
        sizes[least] += own[file]
    return [part for part in made if part]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main(sys.argv[1:]))
