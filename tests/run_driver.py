"""`ingest-bench` as its own process that tells where it is: one line for each stage and each command that it starts.

python run_driver.py FD ARGUMENTS...
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ingest_bench import cli

FD = int(sys.argv.pop(1))
# The command, and what one of its commands needs, which is loaded once that is asked for.
LOADED = ("ingest_bench.cli.app", "ingest_bench.probes")


def tell(what: str) -> None:
    os.write(FD, f"{what}\n".encode())


def watch(event: str, arguments: Any) -> None:
    """Python itself says what it is about to do."""
    if event == "subprocess.Popen":
        tell("start " + " ".join(map(str, arguments[1])))
    elif event == "import" and arguments[0] in LOADED:
        tell(f"loading {arguments[0]}")


def tell_stages() -> None:
    from ingest_bench.cli import screen  # noqa: PLC0415 - it takes its time to load

    class Telling(screen.RunProgress):
        def stage(self, name: str) -> None:
            tell(f"stage {name}")
            super().stage(name)

        def load(self, seen: Any) -> None:
            tell(f"load {seen.phase}")
            super().load(seen)

    screen.RunProgress = Telling  # type: ignore[misc]


sys.addaudithook(watch)
if sys.argv[1] == "run":
    tell_stages()
cli.main()
