"""Several loads at the same time, each with processes and samples of its own: the parallel tasks of a track."""

from __future__ import annotations

import functools
import operator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import TYPE_CHECKING

from ingest_bench.load.supervisor import PHASES, LoadProcess, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingest_bench.model.load import WorkerReport

_LOOK_S = 0.5


def wait(
    loads: Sequence[LoadProcess], ends_all: Sequence[bool], on_progress: Callable[[Progress], None]
) -> list[WorkerReport]:
    """The reports of all loads, which begin together. Those that `ends_all` marks end the others when they are done.

    RunFailed as soon as one of them has failed; the others are then ended in order first, and keep their samples.
    """
    for load in loads:
        load.get_ready()
    seen: dict[int, Progress] = {}

    def waited(number: int) -> WorkerReport:
        return loads[number].wait(lambda told: seen.update({number: told}))

    with ThreadPoolExecutor(len(loads)) as threads:
        waits = [threads.submit(waited, number) for number in range(len(loads))]
        try:
            broken = _until_one_ends_all(waits, ends_all, lambda: on_progress(_joined(list(seen.values()))))
        finally:
            for load in loads:
                load.end()
            wait_for(waits, return_when=ALL_COMPLETED)
    # What failed by itself, before what the others did then.
    return [one.result() for one in (*broken, *waits)][len(broken) :]


def _until_one_ends_all(
    waits: Sequence[Future[WorkerReport]], ends_all: Sequence[bool], tell: Callable[[], None]
) -> list[Future[WorkerReport]]:
    """What has failed, as soon as anything has; else nothing, when all are done or one that ends the others is."""
    open_waits = set(waits)
    while open_waits:
        done, open_waits = wait_for(open_waits, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
        tell()
        broken = [one for one in done if one.exception() is not None]
        if broken or any(ends for one, ends in zip(waits, ends_all, strict=True) if one in done):
            return broken
    return []


def _joined(told: Sequence[Progress]) -> Progress:
    left = [one.seconds_left for one in told if one.seconds_left is not None]
    seen = [one.seen for one in told if one.seen is not None]
    return Progress(
        phase=min((one.phase for one in told), key=PHASES.index, default=PHASES[0]),
        documents=sum(one.documents for one in told),
        seconds_left=max(left) if left and len(left) == len(told) else None,
        seen=functools.reduce(operator.add, seen) if seen else None,
    )
