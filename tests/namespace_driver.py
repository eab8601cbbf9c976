"""Program of tests: a session in a namespace that writes a file of the kernel, prints "set", and waits for a line.

    FILE VALUE [net]         `net`: the file is of this network namespace

With DRIVER=alone its watchdog is killed before it prints.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from ingest_bench.ledger import watchdog
from ingest_bench.ledger.namespaces import NamespaceKind
from ingest_bench.ledger.steps import make_setting_step


def main(file: str, value: str, *kinds: NamespaceKind) -> None:
    key = "driver" + file.replace("/", "-")
    with watchdog.open_session(
        key, f"driver {file}", time_limit_s=60, resources=(file,), namespace_kinds=kinds
    ) as session:
        session.apply((make_setting_step(Path(file), value),))
        if os.environ.get("DRIVER") == "alone":
            (watchdog_pid,) = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
            os.kill(int(watchdog_pid), signal.SIGKILL)
        sys.stdout.write("set\n")
        sys.stdout.flush()
        sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]  # the arguments of a test
