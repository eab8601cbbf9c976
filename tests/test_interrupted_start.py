"""Ctrl-C while the command is still importing: exit code 130 and one line."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.processes]

# Sends SIGINT to itself at the import of a module, as a user does at that moment.
COMMAND = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from ingest_bench.cli import main
sys.argv[1:] = ["list"]
main()
"""


@pytest.mark.parametrize(
    "module", ["ingest_bench.errors", "rich.console", "ingest_bench.cli.app", "ingest_bench.probes"]
)
def test_ctrl_c_during_an_import_exits_with_130_and_one_line(module: str) -> None:
    argv = (sys.executable, "-c", COMMAND.replace("sys.argv[1]", repr(module)))
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (130, "")
    # The modules of a command are imported when something may be running already.
    assert re.fullmatch("interrupted(: everything that was started is stopped)?\n", done.stderr)


def test_a_ctrl_c_that_is_ignored_from_the_start_stays_ignored() -> None:
    command = COMMAND.replace("sys.argv[1]", repr("typer"))
    argv = ("sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", command)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_entry_point_imports_nothing_before_it_can_be_interrupted() -> None:
    script = "import os, signal, sys; known = {*sys.modules}; import ingest_bench.cli; print(*{*sys.modules} - known)"
    done = subprocess.run((sys.executable, "-c", script), capture_output=True, text=True, check=True, timeout=60)
    assert set(done.stdout.split()) <= {"__future__", "ingest_bench", "ingest_bench.cli"}


def test_ctrl_c_with_a_closed_standard_error_still_exits_with_130() -> None:
    command = COMMAND.replace("sys.argv[1]", repr("typer"))
    done = subprocess.run(("sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", command), check=False, timeout=60)
    assert done.returncode == 130
