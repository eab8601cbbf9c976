"""Begin and end the faults of a run at their times."""

from __future__ import annotations

import contextlib
import dataclasses
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
    """Run each fault in a thread of its own during the block; each that began has ended when the block ends.

    *measure_start_ns* returns the start of the measurement (CLOCK_MONOTONIC), None while it is unknown. The load's seed
    determines the times of random faults. A fault that fails has no more turns. Raise RunFailed at the end of the block
    with every failure, after the block's own if that is a RunFailed.
    """
    measure_ns = load.measure_ns if load.measure_documents is None else None
    runner = FaultRunner(stage, measure_start_ns, measure_ns)
    threads: list[threading.Thread] = []
    failure: RunFailed | None = None
    try:
        for number, fault in enumerate(faults):
            arguments = number, fault, checks.iterate_begin_times(fault, number, load.seed)
            thread = threading.Thread(target=runner.run, args=arguments, name=fault.kind, daemon=True)
            thread.start()
            threads.append(thread)
        yield runner
    except RunFailed as error:
        failure = error
    finally:
        stage.load_ended.set()
        for thread in threads:
            thread.join()
    errors = [str(error) if isinstance(error, OSError) else describe_error(error) for error in runner.errors]
    # A load that failed ended early: faults that had not begun by then are not failures.
    # A random fault need not happen.
    missed = [fault.kind for number, fault in enumerate(faults) if number not in runner.begun and not fault.random]
    if failure is None and measure_ns is not None and missed:
        errors.append(
            f"{' and '.join(missed)} had not begun when the load ended: the machine is too slow. "
            "Give them other times, or measure longer."
        )
    text = "\n".join(f"fault: {error}" for error in errors)
    if failure is not None:
        raise type(failure)(f"{failure}\n{text}") if text else failure
    if text:
        raise RunFailed(text)


class FaultRunner:
    """Runs the faults of a run and records them."""

    def __init__(self, stage: Stage, measure_start_ns: Callable[[], int | None], measure_ns: int | None) -> None:
        self.errors: list[Exception] = []
        """In the order in which faults failed."""
        self.records: list[FaultRecord] = []
        self.begun: set[int] = set()
        """Indices of the faults that have begun at least once, or failed to begin."""
        self._due: dict[int, tuple[Fault, int]] = {}
        """Active faults by their index, with the time at which each should end."""
        self._ended = threading.Condition()
        self._stage = stage
        self._measure_start_ns = measure_start_ns
        self._measure_ns = measure_ns
        self._lock = threading.Lock()

    def run(self, number: int, fault: Fault, begin_times: Iterator[int]) -> None:
        """Begin and end a fault at each of these times of the measurement, until the load ends or the fault fails."""
        is_long = not fault.for_ns or FAULTS[fault.kind].is_slow_to_begin
        busy_until_ns = -1
        try:
            with FAULTS[fault.kind].prepare(fault, self._stage) as stage:
                for at_ns in begin_times:
                    if at_ns <= busy_until_ns:
                        continue
                    begin_ns = self._wait_until(at_ns, fault)
                    if begin_ns is None or self._is_too_late(fault, begin_ns):
                        return
                    self.begun.add(number)
                    with self._announce_end(number, fault, at_ns):
                        self._take_turn(fault, stage)
                    # The turns during a long one are skipped. One that only ended late does not cost the next turn.
                    busy_until_ns = self._elapsed_ns() if is_long else begin_ns + fault.for_ns
        except Exception as error:  # noqa: BLE001 - `run_faults` raises it in another thread
            self.begun.add(number)
            self.errors.append(error)

    def _is_too_late(self, fault: Fault, begin_ns: int) -> bool:
        """Return True if a repeated fault would not end within the measurement."""
        if not fault.every_ns or self._measure_ns is None:
            return False
        return begin_ns >= self._measure_ns or begin_ns + fault.for_ns > self._measure_ns

    def _wait_until(self, at_ns: int, fault: Fault) -> int | None:
        """Wait until a time of the measurement; return it, or the present one if it is late, None if the load ended.

        At the same moment ends come before begins, so that the effect of a fault does not contain that of another.
        """
        while self._measure_start_ns() is None:
            if self._stage.load_ended.wait(_POLL_START_S):
                return None
        present_ns = self._elapsed_ns()
        if self._stage.load_ended.wait(max(0, at_ns - present_ns) / 1e9):
            return None
        with self._ended:
            if self._is_end_due(at_ns, fault):
                self._ended.wait_for(lambda: not self._is_end_due(at_ns, fault))
                present_ns = self._elapsed_ns()
        return None if self._stage.load_ended.wait(0) else max(at_ns, present_ns)

    def _is_end_due(self, at_ns: int, fault: Fault) -> bool:
        """Return True if an active fault of the same state should have ended. A killed node may take long to start."""
        return not FAULTS[fault.kind].is_slow_to_begin and any(
            due_ns <= at_ns and _change_same_state(fault, other) for other, due_ns in self._due.values()
        )

    @contextlib.contextmanager
    def _announce_end(self, number: int, fault: Fault, at_ns: int) -> Iterator[None]:
        """Let other faults know, during the block, when this one should end. One without a duration may take long."""
        if not fault.for_ns:
            yield
            return
        with self._ended:
            self._due[number] = (fault, at_ns + fault.for_ns)
        try:
            yield
        finally:
            with self._ended:
                del self._due[number]
                self._ended.notify_all()

    def _elapsed_ns(self) -> int:
        return time.monotonic_ns() - (self._measure_start_ns() or 0)

    def _take_turn(self, fault: Fault, stage: Stage) -> None:
        """Begin a fault, end it after its duration or with the load, and record it."""
        kind, start_ns, begin_ns = FAULTS[fault.kind], time.time_ns(), time.monotonic_ns()
        active = begin_fault(fault, stage)
        if kind.is_slow_to_begin:
            # Its duration counts from here.
            start_ns, begin_ns = time.time_ns(), time.monotonic_ns()
        record = FaultRecord(
            kind=fault.kind,
            start_ns=start_ns,
            direction=fault.direction if "direction" in kind.keys else "",
            link=fault.link if kind.scope == "link" else "",
            node=fault.node,
        )
        with self._lock:
            index = len(self.records)
            self.records.append(record)
        if fault.for_ns:
            # A late begin does not shorten the fault.
            self._stage.load_ended.wait(max(0, begin_ns + fault.for_ns - time.monotonic_ns()) / 1e9)
        effect = "; ".join(filter(None, (active.effect, active.end())))
        self.records[index] = dataclasses.replace(record, end_ns=time.time_ns(), effect=effect)


def _change_same_state(first: Fault, second: Fault) -> bool:
    if FAULTS[first.kind].scope == FAULTS[second.kind].scope == "link":
        return True
    return first.kind == second.kind and (first.node == second.node or None in (first.node, second.node))


def begin_fault(fault: Fault, stage: Stage) -> ActiveFault:
    """Begin a fault; `end` of the result ends it."""
    return FAULTS[fault.kind].begin(fault, stage)
