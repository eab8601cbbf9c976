"""When the faults of a run begin and end."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import threading
import time
from collections.abc import Callable, Iterator

from ingest_bench.errors import IngestBenchError, RunFailed
from ingest_bench.faults import FAULTS, checks
from ingest_bench.faults.kind import Begun
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.results import Happened


@contextlib.contextmanager
def happening(
    faults: tuple[Fault, ...],
    stage: Stage,
    measure_start_ns: Callable[[], int | None],
    load: LoadOptions,
) -> Iterator[Following]:
    """While the block lasts, each fault happens at its moment; each that began has ended when the block ends.

    `measure_start_ns` says when the measurement of that load begins (CLOCK_MONOTONIC), None as long as nobody knows.
    The load's seed decides the moments of those that come at random. One without a length may take long: others go on
    meanwhile, and its own next turns are left out. One that fails has no more turns, and the others keep their moments:
    RunFailed at the end of the block tells every failure, behind the block's own where that is a RunFailed.
    """
    measure_ns = load.measure_ns if load.measure_documents is None else None
    happened = Following(faults, stage, measure_start_ns, measure_ns, load.seed)
    if not faults:
        yield happened
        return
    thread = threading.Thread(target=happened.follow, name="faults", daemon=True)
    thread.start()
    failed: RunFailed | None = None
    try:
        yield happened
    except RunFailed as error:
        failed = error
    finally:
        happened.over.set()
        thread.join()
    said = [_told(error) for error in happened.errors]
    # Where the load failed it ended early: those that had not begun are no failure of their own.
    if failed is None and measure_ns is not None and (never := [fault.kind for fault in happened.never()]):
        said.append(
            f"{' and '.join(never)} had not begun when the load ended: another fault took too long before, "
            "or the machine is too slow. Give them other moments, or measure longer"
        )
    words = "\n".join(f"fault: {one}" for one in said)
    if failed is not None:
        raise type(failed)(f"{failed}\n{words}") if words else failed
    if words:
        raise RunFailed(words)


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, (IngestBenchError, OSError)) else f"{type(error).__name__}: {error}"


class Following:
    """The faults of a run, and what became of them."""

    def __init__(
        self,
        faults: tuple[Fault, ...],
        stage: Stage,
        measure_start_ns: Callable[[], int | None],
        measure_ns: int | None = None,
        seed: int = 1,
    ) -> None:
        self.over = stage.over
        self.errors: list[Exception] = []
        """Of each fault that failed, in the order in which they did."""
        self.records: list[Happened] = []
        self._stage = stage
        self._measure_start_ns = measure_start_ns
        self._measure_ns = measure_ns
        self._faults = faults
        # When, whether it begins, and which: those that end come before those that begin at the same moment.
        self._turns = [checks.moments(fault, number, seed) for number, fault in enumerate(faults)]
        self._moments = [(next(turns), 1, number) for number, turns in enumerate(self._turns)]
        heapq.heapify(self._moments)
        self._ends: dict[int, tuple[Begun, int]] = {}
        self._busy: dict[int, threading.Thread] = {}
        self._began: set[int] = set()
        self._failed: set[int] = set()
        self._lock = threading.Lock()

    def follow(self) -> None:
        """Let each fault begin and end at its moment."""
        try:
            while self._moments:
                at_ns, begins, number = heapq.heappop(self._moments)
                if (late_ns := self._wait_until(at_ns)) is None:
                    return
                fault = self._faults[number]
                if not begins:
                    self._end(number)
                    continue
                if number in self._failed or self._is_too_late(fault, at_ns + late_ns):
                    continue
                if number not in self._busy or not self._busy[number].is_alive():
                    self._begin(number, fault)
                end_ns = at_ns + late_ns + fault.for_ns
                if fault.for_ns:
                    # One that begins late lasts as long as any.
                    heapq.heappush(self._moments, (end_ns, 0, number))
                again_ns = next((turn for turn in self._turns[number] if turn > end_ns), None)
                if again_ns is not None:
                    heapq.heappush(self._moments, (again_ns, 1, number))
        except Exception as error:  # noqa: BLE001 - nobody would see it in this thread
            self.errors.append(error)
        finally:
            for number in list(self._ends):
                self._end(number)
            for thread in self._busy.values():
                thread.join()

    def never(self) -> list[Fault]:
        """Those that should have happened and have not; of those at random nobody knows."""
        return [fault for number, fault in enumerate(self._faults) if number not in self._began and not fault.random]

    def _is_too_late(self, fault: Fault, begin_ns: int) -> bool:
        """Whether one turn more would not end within the measurement."""
        if not fault.every_ns or self._measure_ns is None:
            return False
        return begin_ns >= self._measure_ns or begin_ns + fault.for_ns > self._measure_ns

    def _wait_until(self, at_ns: int) -> int | None:
        """How late it is then, once that moment of the measurement has come; None: the block ended before."""
        while (start_ns := self._measure_start_ns()) is None:
            if self.over.wait(0.02):
                return None
        late_ns = time.monotonic_ns() - start_ns - at_ns
        return None if self.over.wait(max(0, -late_ns) / 1e9) else max(0, late_ns)

    def _begin(self, number: int, fault: Fault) -> None:
        self._began.add(number)
        if not fault.for_ns or FAULTS[fault.kind].begins_slowly:
            self._meanwhile(number, lambda: self._happen(fault))
        else:
            self._try(number, lambda: self._keep(number, fault))

    def _keep(self, number: int, fault: Fault) -> None:
        """It has begun, and ends when its moment comes."""
        started = time.time_ns()
        begun = begin(fault, self._stage)
        self._ends[number] = (begun, self._noted(fault, started))

    def _happen(self, fault: Fault) -> None:
        """All of it, from its beginning to its end. What begins slowly lasts from when it has begun."""
        started = time.time_ns()
        begun = begin(fault, self._stage)
        place = self._noted(fault, time.time_ns() if fault.for_ns else started)
        if fault.for_ns:
            self.over.wait(fault.for_ns / 1e9)
        self._over(begun, place)

    def _noted(self, fault: Fault, started: int) -> int:
        """The place of its record: one that could not begin has none."""
        kind = FAULTS[fault.kind]
        record = Happened(
            kind=fault.kind,
            started=started,
            direction=fault.direction if "direction" in kind.takes else "",
            link=fault.link if kind.hits == "link" else "",
            node=fault.node,
        )
        with self._lock:
            self.records.append(record)
            return len(self.records) - 1

    def _end(self, number: int) -> None:
        if number not in self._ends:
            return
        begun, place = self._ends.pop(number)
        if FAULTS[self._faults[number].kind].is_slow:
            self._meanwhile(number, lambda: self._over(begun, place))
        else:
            self._try(number, lambda: self._over(begun, place))

    def _meanwhile(self, number: int, act: Callable[[], None]) -> None:
        """What may take long: what is due meanwhile, such as the end of a pause, must not wait for it."""
        name = self._faults[number].kind
        thread = threading.Thread(target=self._try, args=(number, act), name=name, daemon=True)
        self._busy[number] = thread
        thread.start()

    def _over(self, begun: Begun, place: int) -> None:
        """End it, and write down when that was and what was seen."""
        seen = begun.end()
        words = "; ".join(filter(None, (begun.seen, seen)))
        self.records[place] = dataclasses.replace(self.records[place], ended=time.time_ns(), seen=words)

    def _try(self, number: int, act: Callable[[], None]) -> None:
        """An error fails the run in the end; until then the other faults begin and end as ever."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - nobody would see it in this thread
            self._failed.add(number)
            self.errors.append(error)


def begin(fault: Fault, stage: Stage) -> Begun:
    """Let a fault begin; `end` of what is returned ends it."""
    return FAULTS[fault.kind].begin(fault, stage)
