"""Run by tests in a namespace: a session that sets a file of the kernel, says "set", and waits for a line.

    FILE VALUE [net]         `net`: it is of this network namespace

With `alone` in DRIVER it has no watchdog when it says so: it was killed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from ingest_bench.ledger import watchdog
from ingest_bench.ledger.namespaces import Kind
from ingest_bench.ledger.steps import setting_step


def main(file: str, value: str, *within: Kind) -> None:
    key = "driver" + file.replace("/", "-")
    with watchdog.session(key, f"driver {file}", time_limit_s=60, resources=(file,), within=within) as opened:
        opened.change((setting_step(Path(file), value),))
        if os.environ.get("DRIVER") == "alone":
            (dog,) = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
            os.kill(int(dog), signal.SIGKILL)
        sys.stdout.write("set\n")
        sys.stdout.flush()
        sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]  # the words of the caller, a test
