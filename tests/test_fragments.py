"""Free memory in single pages: what is counted of it, and what is left of large blocks."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.faults import timeline
from ingest_bench.faults.stage import Stage
from ingest_bench.host import fragments
from ingest_bench.model.experiment import Fault
from ingest_bench.model.load import LoadOptions

BUDDYINFO = """\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal    933   2654   2396   1018    463   5580   3084   1677   1070    568   3075
"""
GIB = 1 << 30
ZONEINFO = """\
Node 0, zone      DMA
  pages free     3840
        boost    0
        min      10
        low      13
        high     16
  pagesets
    cpu: 0
              count:    0
              high:     43191
Node 0, zone   Normal
        high     25557
"""


def test_blocks_of_a_huge_page_are_counted_with_their_sizes() -> None:
    # 1 + 568 of 2 MiB, 3 + 3075 of 4 MiB.
    assert fragments.huge_bytes(BUDDYINFO, 2 << 20, 4096) == (569 * 2 + 3078 * 4) << 20
    # Pages of 64 KiB: of the same order a block is 16 times as large.
    assert fragments.huge_bytes(BUDDYINFO, 32 << 20, 65536) == 16 * (569 * 2 + 3078 * 4) << 20


def test_what_the_kernel_keeps_free_is_counted_for_all_zones_and_no_cpu() -> None:
    assert fragments.kept_free_bytes(ZONEINFO, 4096) == (16 + 25557) * 4096
    assert 0 < fragments.kept_free_bytes(Path("/proc/zoneinfo").read_text(), 4096) < fragments.available_bytes()


def fragmented(**keys: int) -> Fault:
    return Fault(kind="fragmented-memory", at_ns=0, for_ns=1, **keys)  # type: ignore[arg-type]


def says(monkeypatch: pytest.MonkeyPatch, script: str, *given: str) -> None:
    """Another program in place of the one that takes memory."""
    monkeypatch.setattr(system, "script", lambda *_: ("sh", "-c", script, "sh", *given))


SAID = '{"taken": 9000000, "before": 9000000, "after": 1000000, "s": 2.5, "free": 900000000, "left": 268435456}'


def test_one_that_takes_nothing_never_begins() -> None:
    with pytest.raises(RunFailed, match=r"the 0 MB that it took were in small pieces already"):
        timeline.begin(fragmented(share_ppm=0), Stage())


@pytest.mark.parametrize("after", [3_000_000_000, 2_999_000_000])
def test_one_for_which_too_little_is_free_says_so(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    # The large blocks of a busy machine come and go meanwhile.
    said = {"taken": 0, "before": 3_000_000_000, "after": after, "s": 0.1, "free": 300 << 20, "left": 256 << 20}
    says(monkeypatch, 'echo "$1"; cat', json.dumps(said))
    with pytest.raises(RunFailed, match="nothing was taken: 315 MB of the machine's memory are free, of which 268 MB"):
        timeline.begin(fragmented(), Stage())


def test_one_that_took_nothing_has_not_begun_though_fewer_large_blocks_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    says(monkeypatch, 'echo "$1"; cat', SAID.replace('"taken": 9000000', '"taken": 0'))
    with pytest.raises(RunFailed, match="take a larger share"):
        timeline.begin(fragmented(), Stage())


@pytest.mark.processes
def test_no_page_of_a_file_is_taken_where_the_kernel_keeps_more_free_than_we_leave(tmp_path: Path) -> None:
    # The program itself, asked for all of 1 GiB at most. It reads that 1 GB is free, and less with each step that it
    # takes, on a kernel that keeps all but 300 MB of that: others take and free nothing meanwhile.
    read = "readings = iter(range(10**9, 0, -STEP_BYTES))\nfree_bytes = lambda: next(readings)"
    kept = "kept_free_bytes = lambda *_: 700 * 10**6"
    text = Path(fragments.__file__).read_text().replace("\nif __name__", f"\n{read}\n{kept}\n\nif __name__")
    (tmp_path / "fragments.py").write_text(text)
    share_ppm = 10**6 * GIB // fragments.available_bytes()
    argv = system.script(tmp_path / "fragments.py", str(share_ppm), "0")
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=60)
    # The first reading is of what there is at first. Three steps leave 732 MB or more; a fourth would leave 665.
    assert json.loads(done.stdout)["taken"] == 3 * fragments.STEP_BYTES


def test_it_has_begun_once_the_memory_is_in_pieces_and_lasts_as_long_from_then_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Its memory is in pieces when the test says so.
    os.mkfifo(tmp_path / "go")
    says(monkeypatch, 'touch "$2/began"; read line < "$2/go"; echo "$1"; cat', SAID, str(tmp_path))
    flushed = threading.Event()
    faults = (dataclasses.replace(fragmented(), for_ns=300 * 10**6), Fault(kind="flush", at_ns=1))
    stage = Stage(flush=flushed.set)
    with timeline.happening(faults, stage, lambda: 1, LoadOptions(measure_documents=1)) as seen:
        until = time.monotonic() + 60
        while not (tmp_path / "began").exists() or not flushed.is_set():
            assert time.monotonic() < until
            time.sleep(0.01)
        # Others go on meanwhile, and nothing is recorded of what has not been seen.
        assert "fragmented-memory" not in [record.kind for record in seen.records]
        in_pieces = time.time_ns()
        (tmp_path / "go").write_text("\n")
        while len([record for record in seen.records if record.ended]) < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
    (record,) = (one for one in seen.records if one.kind == "fragmented-memory")
    assert record.ended is not None
    assert record.started >= in_pieces
    assert record.ended - record.started >= 300 * 10**6
    assert record.seen == "free in blocks of a huge page: 9 MB before, 1 MB after 2.5 s, of 9 MB every second page"


def test_one_whose_memory_is_not_in_pieces_when_the_load_ends_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, "exec sleep 1000")
    with (
        pytest.raises(RunFailed, match="the load was over before the memory was in pieces"),
        timeline.happening((fragmented(),), Stage(), lambda: 1, LoadOptions(measure_documents=1)) as seen,
    ):
        time.sleep(0.3)
    assert not seen.records


def test_one_whose_process_the_kernel_kills_before_it_is_done_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    # It is the first that is killed where memory runs out.
    says(monkeypatch, "kill -9 $$")
    with pytest.raises(RunFailed, match="its process was killed meanwhile"):
        timeline.begin(fragmented(), Stage())


def test_one_whose_process_the_kernel_kills_meanwhile_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    # Then nothing is in pieces any more.
    says(monkeypatch, 'echo "$1"; kill -9 $$', SAID)
    begun = timeline.begin(fragmented(), Stage())
    with pytest.raises(RunFailed, match="its process was killed meanwhile"):
        begun.end()


def test_one_whose_process_breaks_says_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, "echo 'madvise: errno 22'; exit 1")
    with pytest.raises(RunFailed, match="its process broke, it said: madvise: errno 22"):
        timeline.begin(fragmented(), Stage())


@pytest.mark.nightly
@pytest.mark.processes
def test_large_blocks_are_fewer_and_what_is_taken_is_given_back() -> None:
    available = fragments.available_bytes()
    if fragments.free_bytes() < 9 * GIB:
        pytest.skip("needs 9 GiB of memory that is free")
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
