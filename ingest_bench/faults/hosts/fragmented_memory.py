"""`fragmented-memory`: much of the machine's free memory is in pieces of one page: a huge page needs compaction.

It has begun once the memory is in pieces, which takes as long as to touch it, and what is seen says how long that took.
It is a fault of the whole machine.
"""

from __future__ import annotations

import json
import select
import signal
import subprocess

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Stage
from ingest_bench.host import fragments
from ingest_bench.model.experiment import Fault

SHARE_PPM = 500_000
# Free while all is taken: half of that is free again as soon as it is in pieces. With 2 GiB a server that grew by half
# of one had its huge pages of what was left whole: none of 805 waited for compaction.
LEFT_BYTES = 256 << 20
# The kernel takes some gigabytes back.
_END_LIMIT_S = 30.0
_LOOK_S = 0.05


def _begin(fault: Fault, stage: Stage) -> Begun:
    share_ppm = SHARE_PPM if fault.share_ppm is None else fault.share_ppm
    # It dies with the thread that begins this fault, which ends it too.
    child = system.start(
        system.script(fragments.__file__, str(share_ppm), str(LEFT_BYTES)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        told = _in_pieces(_said(child, stage))
    except BaseException:
        child.kill()
        child.communicate()
        raise
    return Begun(told, lambda: _ended(child))


def _said(child: subprocess.Popen[bytes], stage: Stage) -> bytes:
    """What it says once its memory is in pieces; RunFailed when it does not come to that."""
    assert child.stdout is not None  # noqa: S101 - it is a pipe
    waiting = select.poll()
    waiting.register(child.stdout, select.POLLIN)
    while not waiting.poll(_LOOK_S * 1000):
        if stage.over.is_set():
            raise RunFailed(
                "fragmented-memory: the load was over before the memory was in pieces; measure longer, or take a "
                "smaller share"
            )
    said = child.stdout.readline()
    if not said.endswith(b"\n"):
        _check(child)
        raise RunFailed(f"fragmented-memory: its process broke, it said: {said.decode(errors='replace')[-500:]}")
    return said


def _in_pieces(said: bytes) -> str:
    """What it saw, in words; RunFailed when nothing was taken, or there are as many large blocks as before."""
    try:
        seen = json.loads(said)
    except ValueError:
        raise RunFailed(
            f"fragmented-memory: its process broke, it said: {said.decode(errors='replace')[-500:]}"
        ) from None
    before, after, taken, free, left = (seen[name] / 1e6 for name in ("before", "after", "taken", "free", "left"))
    if not taken and free - fragments.STEP_BYTES / 1e6 <= left:
        raise RunFailed(
            f"fragmented-memory: nothing was taken: {free:,.0f} MB of the machine's memory are free, of which "
            f"{left:,.0f} MB are left; free memory. Pages of files are not free: as root, "
            "`echo 1 > /proc/sys/vm/drop_caches` gives up those that nobody uses"
        )
    told = f"free in blocks of a huge page: {before:,.0f} MB before, {after:,.0f} MB after {seen['s']:.1f} s"
    if not taken or after >= before:
        raise RunFailed(
            f"fragmented-memory: {told}: the {taken:,.0f} MB that it took were in small pieces already, or what was "
            "left was too little; take a larger share, or free memory"
        )
    return f"{told}, of {taken:,.0f} MB every second page"


def _ended(child: subprocess.Popen[bytes]) -> str:
    try:
        child.communicate(timeout=_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise RunFailed(f"fragmented-memory: its process did not end within {_END_LIMIT_S:g} s") from None
    _check(child)
    return ""


def _check(child: subprocess.Popen[bytes]) -> None:
    """RunFailed for one that the kernel has killed: then nothing is in pieces any more."""
    if child.wait() == -signal.SIGKILL:
        raise RunFailed(
            "fragmented-memory: its process was killed meanwhile, as the first one where memory runs out; take a "
            "smaller share"
        )
    if child.returncode:
        raise RunFailed(f"fragmented-memory: its process ended with status {child.returncode}")


FRAGMENTED_MEMORY = FaultKind(
    hits="server", begin=_begin, lasts=True, begins_slowly=True, takes=frozenset({"share_ppm"})
)
