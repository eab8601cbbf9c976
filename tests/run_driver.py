"""`ingest-bench` as a process that reports events: one line for each phase and child process.

python run_driver.py FD ARGUMENTS...
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ingest_bench import cli

FD = int(sys.argv.pop(1))


def tell(what: str) -> None:
    os.write(FD, f"{what}\n".encode())


def watch(event: str, arguments: Any) -> None:
    """Report audit events of Python."""
    if event == "subprocess.Popen":
        tell("start " + " ".join(map(str, arguments[1])))


def report_phases() -> None:
    from ingest_bench.cli import screen  # noqa: PLC0415 - slow import

    class ReportingProgress(screen.RunProgress):
        def begin_phase(self, name: str) -> None:
            tell(f"stage {name}")
            super().begin_phase(name)

        def update(self, progress: Any) -> None:
            tell(f"load {progress.phase}")
            super().update(progress)

    screen.RunProgress = ReportingProgress  # type: ignore[misc]


sys.addaudithook(watch)
if sys.argv[1] == "run":
    report_phases()
cli.main()
