"""Fault `fragmented-memory`: split much of the machine's free memory into single pages.

A huge page then requires compaction. The fault has begun when the memory is split, which takes as long as touching it;
its effect says how long. It acts on the whole machine.
"""

from __future__ import annotations

import json
import select
import signal
from contextlib import ExitStack

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.faults.kind import ActiveFault, FaultKind, Stage
from ingest_bench.host import fragments
from ingest_bench.model.experiment import Fault

DEFAULT_SHARE_PPM = 500_000
# Stays free while memory is taken: half of that is freed again once it is split. With 2 GiB a server that grew by half
# of one got its huge pages from the rest: none of 805 waited for compaction.
MIN_FREE_BYTES = 256 << 20
# The kernel must free some gigabytes.
_END_TIMEOUT_S = 30.0
_POLL_S = 0.05


def _begin(fault: Fault, stage: Stage) -> ActiveFault:
    share_ppm = DEFAULT_SHARE_PPM if fault.share_ppm is None else fault.share_ppm
    argv = system.build_script_argv(fragments.__file__, str(share_ppm), str(MIN_FREE_BYTES))
    with ExitStack() as stack:
        # It dies with the thread that begins this fault, which also ends it.
        child = stack.enter_context(system.Child(argv, name="fragmented-memory: its process"))
        poll = select.poll()
        poll.register(child.stdout, select.POLLIN)
        while not poll.poll(_POLL_S * 1000):
            if stage.load_ended.is_set():
                raise RunFailed(
                    "fragmented-memory: the load ended before memory was split. Measure longer, or take a smaller "
                    "share."
                )
        try:
            line = child.read_line()
        except RunFailed:
            _check_not_killed(child)
            raise
        effect, applied = _judge(json.loads(line)), stack.pop_all()

    def end() -> None:
        with applied:
            child.read_until_exit(_END_TIMEOUT_S)
            _check_not_killed(child)
            if (exit_text := child.describe_exit()) != "exited with code 0":
                raise RunFailed(f"{child.name} {exit_text}")

    return ActiveFault(effect, end)


def _check_not_killed(child: system.Child) -> None:
    """Raise RunFailed if the kernel killed the child: then no memory is split any more."""
    if child.describe_exit() == f"was killed by signal {signal.SIGKILL}":
        raise RunFailed(f"{child.name} was killed, as the first one when memory runs out. Take a smaller share.")


def _judge(result: dict[str, float]) -> str:
    """Return the effect; raise RunFailed if no memory was taken, or as many large blocks are free as before."""
    before_mb, after_mb, taken_mb, free_mb, min_free_mb = (
        result[name] / 1e6 for name in ("before_bytes", "after_bytes", "taken_bytes", "free_bytes", "min_free_bytes")
    )
    if not taken_mb and free_mb - fragments.STEP_BYTES / 1e6 <= min_free_mb:
        raise RunFailed(
            f"fragmented-memory: no memory was taken: {free_mb:,.0f} MB of the machine's memory are free, and "
            f"{min_free_mb:,.0f} MB stay free. Free some memory: as root, `echo 1 > /proc/sys/vm/drop_caches` frees "
            "unused page cache."
        )
    effect = f"free in blocks of a huge page: {before_mb:,.0f} MB before, {after_mb:,.0f} MB after "
    effect += f"{result['duration_s']:.1f} s"
    if not taken_mb or after_mb >= before_mb:
        raise RunFailed(
            f"fragmented-memory: {effect}: the {taken_mb:,.0f} MB that it took were split already, or too little. Take "
            "a larger share, or free some memory."
        )
    return f"{effect}; every second page of {taken_mb:,.0f} MB is held"


FRAGMENTED_MEMORY = FaultKind(scope="server", begin=_begin, is_slow_to_begin=True, keys=frozenset({"share_ppm"}))
