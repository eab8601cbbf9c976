"""Begin and end the faults of a run at their times."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import threading
import time
from collections.abc import Callable, Iterator

from ingest_bench.errors import RunFailed, describe_error
from ingest_bench.faults import FAULTS, checks
from ingest_bench.faults.kind import ActiveFault, Stage
from ingest_bench.model.experiment import Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.results import FaultRecord

_POLL_START_S = 0.02


@contextlib.contextmanager
def run_faults(
    faults: tuple[Fault, ...],
    stage: Stage,
    measure_start_ns: Callable[[], int | None],
    load: LoadOptions,
) -> Iterator[FaultRunner]:
    """Run the faults in a thread during the block; each that began has ended when the block ends.

    *measure_start_ns* returns the start of the measurement (CLOCK_MONOTONIC), None while it is unknown. The load's seed
    determines the times of random faults. A fault without a duration may take long: others continue, and its own next
    turns are skipped. A fault that fails has no more turns. Raise RunFailed at the end of the block with every failure,
    after the block's own if that is a RunFailed.
    """
    measure_ns = load.measure_ns if load.measure_documents is None else None
    runner = FaultRunner(faults, stage, measure_start_ns, measure_ns, load.seed)
    if not faults:
        yield runner
        return
    thread = threading.Thread(target=runner.run, name="faults", daemon=True)
    thread.start()
    failure: RunFailed | None = None
    try:
        yield runner
    except RunFailed as error:
        failure = error
    finally:
        stage.load_ended.set()
        thread.join()
    errors = [str(error) if isinstance(error, OSError) else describe_error(error) for error in runner.errors]
    # A load that failed ended early: faults that had not begun by then are not failures.
    # A random fault need not happen.
    missed = [fault.kind for number, fault in enumerate(faults) if number not in runner.begun and not fault.random]
    if failure is None and measure_ns is not None and missed:
        errors.append(
            f"{' and '.join(missed)} had not begun when the load ended: another fault took too long before, "
            "or the machine is too slow. Give them other times, or measure longer."
        )
    text = "\n".join(f"fault: {error}" for error in errors)
    if failure is not None:
        raise type(failure)(f"{failure}\n{text}") if text else failure
    if text:
        raise RunFailed(text)


class FaultRunner:
    """Runs the faults of a run and records them."""

    def __init__(
        self,
        faults: tuple[Fault, ...],
        stage: Stage,
        measure_start_ns: Callable[[], int | None],
        measure_ns: int | None = None,
        seed: int = 1,
    ) -> None:
        self.errors: list[Exception] = []
        """In the order in which faults failed."""
        self.records: list[FaultRecord] = []
        self._stage = stage
        self._measure_start_ns = measure_start_ns
        self._measure_ns = measure_ns
        self._faults = faults
        self._begin_times = [checks.iterate_begin_times(fault, number, seed) for number, fault in enumerate(faults)]
        # Time, 1 for a begin and 0 for an end, index of the fault: at the same moment ends come before begins.
        self._events = [(next(times), 1, number) for number, times in enumerate(self._begin_times)]
        heapq.heapify(self._events)
        self._active: dict[int, tuple[ActiveFault, int]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self.begun: set[int] = set()
        """Indices of the faults that have begun at least once, or failed to begin."""
        self._failed: set[int] = set()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Begin and end each fault at its time."""
        try:
            while self._events:
                at_ns, is_begin, number = heapq.heappop(self._events)
                if (late_ns := self._wait_until(at_ns)) is None:
                    return
                fault = self._faults[number]
                if not is_begin:
                    self._end(number)
                    continue
                if number in self._failed or self._is_too_late(fault, at_ns + late_ns):
                    continue
                if number not in self._threads or not self._threads[number].is_alive():
                    self._begin(number, fault)
                end_ns = at_ns + late_ns + fault.for_ns
                if fault.for_ns:
                    # A late begin does not shorten the fault.
                    heapq.heappush(self._events, (end_ns, 0, number))
                next_begin_ns = next((time_ns for time_ns in self._begin_times[number] if time_ns > end_ns), None)
                if next_begin_ns is not None:
                    heapq.heappush(self._events, (next_begin_ns, 1, number))
        except Exception as error:  # noqa: BLE001 - `run_faults` raises it in another thread
            self.errors.append(error)
        finally:
            for number in list(self._active):
                self._end(number)
            for thread in self._threads.values():
                thread.join()

    def _is_too_late(self, fault: Fault, begin_ns: int) -> bool:
        """Return True if a repeated fault would not end within the measurement."""
        if not fault.every_ns or self._measure_ns is None:
            return False
        return begin_ns >= self._measure_ns or begin_ns + fault.for_ns > self._measure_ns

    def _wait_until(self, at_ns: int) -> int | None:
        """Wait until a time of the measurement; return how late it is then, None if the load ended before."""
        while (start_ns := self._measure_start_ns()) is None:
            if self._stage.load_ended.wait(_POLL_START_S):
                return None
        late_ns = time.monotonic_ns() - start_ns - at_ns
        return None if self._stage.load_ended.wait(max(0, -late_ns) / 1e9) else max(0, late_ns)

    def _begin(self, number: int, fault: Fault) -> None:
        self.begun.add(number)
        if not fault.for_ns or FAULTS[fault.kind].is_slow_to_begin:
            self._run_in_thread(number, lambda: self._run_from_begin_to_end(fault))
        else:
            self._catch_error(number, lambda: self._active.update({number: self._begin_and_record(fault)}))

    def _run_from_begin_to_end(self, fault: Fault) -> None:
        active, index = self._begin_and_record(fault)
        if fault.for_ns:
            self._stage.load_ended.wait(fault.for_ns / 1e9)
        self._end_and_record(active, index)

    def _begin_and_record(self, fault: Fault) -> tuple[ActiveFault, int]:
        """Begin a fault, add its record, and return the record's index too."""
        kind, start_ns = FAULTS[fault.kind], time.time_ns()
        active = begin_fault(fault, self._stage)
        if kind.is_slow_to_begin:
            # Its duration counts from here.
            start_ns = time.time_ns()
        record = FaultRecord(
            kind=fault.kind,
            start_ns=start_ns,
            direction=fault.direction if "direction" in kind.keys else "",
            link=fault.link if kind.scope == "link" else "",
            node=fault.node,
        )
        with self._lock:
            self.records.append(record)
            return active, len(self.records) - 1

    def _end(self, number: int) -> None:
        if active := self._active.pop(number, None):
            run = self._run_in_thread if FAULTS[self._faults[number].kind].is_slow_to_end else self._catch_error
            run(number, lambda: self._end_and_record(*active))

    def _end_and_record(self, active: ActiveFault, index: int) -> None:
        effect = "; ".join(filter(None, (active.effect, active.end())))
        self.records[index] = dataclasses.replace(self.records[index], end_ns=time.time_ns(), effect=effect)

    def _run_in_thread(self, number: int, act: Callable[[], None]) -> None:
        """Run what may take long without delaying other events, such as the end of a pause."""
        name = self._faults[number].kind
        thread = threading.Thread(target=self._catch_error, args=(number, act), name=name, daemon=True)
        self._threads[number] = thread
        thread.start()

    def _catch_error(self, number: int, act: Callable[[], None]) -> None:
        """Keep an error, which fails the run at its end; until then the other faults continue."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - `run_faults` raises it in another thread
            self._failed.add(number)
            self.errors.append(error)


def begin_fault(fault: Fault, stage: Stage) -> ActiveFault:
    """Begin a fault; `end` of the result ends it."""
    return FAULTS[fault.kind].begin(fault, stage)
