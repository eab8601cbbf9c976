"""`fragmented-memory`: much of the machine's free memory is in pieces of one page: a huge page needs compaction.

It takes as long as its memory takes to be touched: what is seen says how long. It is a fault of the whole machine.
"""

from __future__ import annotations

import json
import signal
import subprocess

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.faults.kind import Begun, FaultKind
from ingest_bench.faults.stage import Stage
from ingest_bench.host import fragments
from ingest_bench.model.experiment import Fault

SHARE_PPM = 500_000
# A server that grows has to find room, and so has everybody else.
LEFT_BYTES = 2 << 30
# The kernel takes some gigabytes back.
_END_LIMIT_S = 30.0


def _begin(fault: Fault, stage: Stage) -> Begun:
    del stage
    share_ppm = SHARE_PPM if fault.share_ppm is None else fault.share_ppm
    # It dies with the thread of the faults, which outlives every fault.
    child = system.start(
        system.script(fragments.__file__, str(share_ppm), str(LEFT_BYTES)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    return Begun("", lambda: _ended(child))


def _ended(child: subprocess.Popen[bytes]) -> str:
    try:
        said, _ = child.communicate(timeout=_END_LIMIT_S)
        seen = json.loads(said)
    except (subprocess.TimeoutExpired, ValueError):
        seen = None
    if child.returncode == -signal.SIGKILL:
        raise RunFailed(
            "fragmented-memory: its process was killed meanwhile, as the first one where memory runs out; take a "
            "smaller share"
        )
    if seen is None:
        child.kill()
        said, _ = child.communicate()
        why = "it was over before the memory was touched; let it last longer, or take a smaller share"
        if words := said.decode(errors="replace")[-500:]:
            why = f"its process broke, it said: {words}"
        raise RunFailed(f"fragmented-memory: {why}")
    before, after, taken = (seen[name] / 1e6 for name in ("before", "after", "taken"))
    told = f"free in blocks of a huge page: {before:,.0f} MB before, {after:,.0f} MB after {seen['s']:.1f} s"
    if after >= before:
        raise RunFailed(
            f"fragmented-memory: {told}: the {taken:,.0f} MB that it took were in small pieces already, or what was "
            "left was too little; take a larger share, or free memory"
        )
    return f"{told}, of {taken:,.0f} MB every second page"


FRAGMENTED_MEMORY = FaultKind(hits="server", begin=_begin, lasts=True, takes=frozenset({"share_ppm"}))
