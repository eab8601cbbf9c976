"""Free memory in single pages: what is counted of it, and what is left of large blocks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.faults import timeline
from ingest_bench.faults.stage import Stage
from ingest_bench.host import fragments
from ingest_bench.model.experiment import Fault

BUDDYINFO = """\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal    933   2654   2396   1018    463   5580   3084   1677   1070    568   3075
"""
GIB = 1 << 30


def test_blocks_of_a_huge_page_are_counted_with_their_sizes() -> None:
    # 1 + 568 of 2 MiB, 3 + 3075 of 4 MiB.
    assert fragments.huge_bytes(BUDDYINFO, 2 << 20, 4096) == (569 * 2 + 3078 * 4) << 20
    # Pages of 64 KiB: of the same order a block is 16 times as large.
    assert fragments.huge_bytes(BUDDYINFO, 32 << 20, 65536) == 16 * (569 * 2 + 3078 * 4) << 20


def test_one_that_takes_nothing_fails_the_run() -> None:
    fault = timeline.begin(Fault(kind="fragmented-memory", at_ns=0, for_ns=1, share_ppm=0), Stage())
    with pytest.raises(RunFailed, match=r"the 0 MB that it took were in small pieces already"):
        fault.end()


def test_one_that_is_over_too_soon_fails_the_run() -> None:
    fault = timeline.begin(Fault(kind="fragmented-memory", at_ns=0, for_ns=1, share_ppm=900_000), Stage())
    with pytest.raises(RunFailed, match="it was over before the memory was touched"):
        fault.end()


@pytest.mark.parametrize("said", ["", '{"taken": 9, "before": 9, "after": 1, "s": 1.0}'])
def test_one_whose_process_the_kernel_killed_meanwhile_fails_the_run(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is the first that is killed where memory runs out, and then nothing is in pieces any more.
    argv = ("sh", "-c", 'printf %s "$1"; kill -9 $$', "sh", said)
    monkeypatch.setattr(system, "script", lambda *_: argv)
    fault = timeline.begin(Fault(kind="fragmented-memory", at_ns=0, for_ns=1), Stage())
    with pytest.raises(RunFailed, match="its process was killed meanwhile"):
        fault.end()


@pytest.mark.processes
def test_large_blocks_are_fewer_and_what_is_taken_is_given_back() -> None:
    available = fragments.available_bytes()
    if available < 9 * GIB:
        pytest.skip("needs 9 GiB of memory that is available")
    share_ppm = 10**6 * 5 * GIB // available
    argv = system.script(fragments.__file__, str(share_ppm), str(2 * GIB))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        said = json.loads(child.stdout.readline())
        assert 4 * GIB < said["taken"] <= 5 * GIB
        # Half of it is there, the other half was given back: the kernel's own count of the process.
        status = Path(f"/proc/{child.pid}/status").read_text()
        resident_bytes = 1024 * int(status.partition("VmRSS:")[2].split()[0])
        assert said["taken"] / 2 <= resident_bytes < said["taken"] / 2 + (64 << 20)
        assert said["after"] < said["before"]
        child.communicate()
    assert child.returncode == 0
