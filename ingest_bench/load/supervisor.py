"""The supervisor of a load: its workers start at one moment, their progress is told, and what they report is merged."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest_bench.errors import RunAborted, RunFailed
from ingest_bench.load import reports
from ingest_bench.load.fleet import roster
from ingest_bench.load.fleet.json_child import JsonChild
from ingest_bench.load.fleet.member import Member
from ingest_bench.load.fleet.transfer import Clock, report_on_our_clock
from ingest_bench.load.live import figures
from ingest_bench.load.live.giving_up import Patience
from ingest_bench.model.load import ClockOffset, WorkerReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingest_bench.load.fleet.roster import Enter, Fleet
    from ingest_bench.load.live.figures import Seen
    from ingest_bench.load.plan import LoadPlan

# From "ready" of the last worker to the first request: a moment that every worker still sees coming.
_START_DELAY_NS = 200 * 10**6
_FAR_START_DELAY_NS = 10**9
# They are told one after the other: 100 on a busy machine of 2 cores within 0.1 s.
_START_DELAY_EACH_NS = 2 * 10**6
_PREPARE_LIMIT_S = 300.0
# What a worker may need beyond its plan: the drain (load.worker) and its report.
_END_LIMIT_S = 60.0
# The state of all workers is put together at most so often: they tell theirs twice a second, each.
_LOOK_NS = 10**8
# Of a load, in their order.
PHASES = ("prepare", "prepared", "ready", "warm-up", "measure", "drain", "done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a load is, all workers together."""

    phase: str
    """One of PHASES, that of the worker that is least far."""
    documents: int
    """Acknowledged so far."""
    seconds_left: float | None
    """None: until everything is sent."""
    seen: Seen | None = None
    """Its figures, all workers together; None: nobody wants them."""


class LoadProcess:
    """A running load. `wait` once; `stop` at any time."""

    def __init__(self, plan: LoadPlan, fleet: Fleet, opened: contextlib.ExitStack) -> None:
        self._plan = plan
        self._fleet = fleet
        self._opened = opened
        self._members: list[Member] = []
        self._before: dict[str, dict[str, int]] = {}
        self._is_ready = self._shall_end = self._is_stopped = False
        self.measure_start_ns: int | None = None
        """When the measurement begins (CLOCK_MONOTONIC); None until the load has begun."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers that were started here."""
        return tuple(child.pid for child in self._children)

    def prepare(self, enters: Sequence[Enter]) -> None:
        """Each worker has its share, and prepares it."""
        plan = self._plan if self._fleet.is_far else self._plan.unpacked()
        # Known before the first one starts: `stop` ends those that did when a later one cannot.
        self._members = [Member(dataclasses.replace(plan, worker=number)) for number in range(plan.workers)]
        self._fleet.muster(self._members, enters)

    def wait(self, on_progress: Callable[[Progress], None]) -> WorkerReport:
        """The whole load's report; RunFailed when it was hopeless, or when a worker died (its name is said).

        RunAborted when a condition of the plan's ended it: its samples and its report are there.
        """
        fleet, members, options = self._fleet, self._members, self._plan.options
        told_to_end = False
        looked_ns = 0
        patience = Patience(options.abort)
        try:
            self.get_ready()
            self._begin()
            limit_s = (options.longest_warm_up_ns + self._plan.measure_ns) / 1e9 + _END_LIMIT_S

            def done() -> bool:
                nonlocal told_to_end, looked_ns
                if self._shall_end and not told_to_end:
                    fleet.send(members, "end")
                    told_to_end = True
                is_done, now_ns = self._all("done"), time.monotonic_ns()
                if not is_done and now_ns - looked_ns < _LOOK_NS:
                    return False
                looked_ns = now_ns
                progress = self._progress()
                on_progress(progress)
                if progress.seen is not None and progress.phase == "measure":
                    why = patience.broken(now_ns, progress.seen)
                    if why:
                        raise RunAborted(why)
                return is_done

            fleet.until(done, limit_s, members)
            merged = reports.merge([_there(member, report) for member, report in self._collected()])
            reports.write(merged, self._plan.out)
        except RunFailed as error:
            is_aborted = isinstance(error, RunAborted)
            self._salvage(in_order=is_aborted)
            if is_aborted:
                on_progress(self._progress())
            raise
        finally:
            self.stop()
        return merged

    def hear(self) -> None:
        """What the workers say is heard without waiting for it: without us they are not told what to prepare."""
        self._fleet.hear(0)

    def get_ready(self) -> None:
        """All users have started and wait for the beginning; RunFailed when that takes too long. `wait` does it too."""
        if self._is_ready:
            return
        self._fleet.until(lambda: self._all("prepared"), _PREPARE_LIMIT_S, self._members)
        self._fleet.spawn(self._members)
        self._fleet.until(lambda: self._all("ready"), _PREPARE_LIMIT_S, self._members)
        self._is_ready = True

    def end(self) -> None:
        """What is under way is its last: `wait`, maybe in another thread, returns soon, with a report."""
        self._shall_end = True

    def stop(self) -> None:
        """No worker runs any more. One that still sends ends its load in order, if that takes no more than 5 s."""
        if self._is_stopped:
            return
        for child in self._children:
            child.end()
        self._fleet.release(self._members)
        self._opened.close()
        self._is_stopped = True

    @property
    def _children(self) -> list[JsonChild]:
        return [member.child for member in self._members if member.child is not None]

    def _all(self, phase: str) -> bool:
        return all(member.said["phase"] == phase for member in self._members)

    def _begin(self) -> None:
        """All workers begin at one moment, each on its own clock."""
        fleet, members = self._fleet, self._members
        self._before = fleet.clocks(members) if fleet.is_far else {}
        start_ns = time.monotonic_ns() + start_delay_ns(len(members), is_far=fleet.is_far)
        self.measure_start_ns = start_ns + self._plan.options.longest_warm_up_ns
        for member in members:
            ahead_ns = self._before[member.id]["offset_ns"] if fleet.is_far else 0
            fleet.send([member], "begin", start_ns=start_ns + ahead_ns)

    def _collected(self) -> list[tuple[Member, WorkerReport | None]]:
        """What each worker left, once it has left it: its samples are in our files, on our clock."""
        fleet, members = self._fleet, self._members
        if not fleet.is_far:
            for act in (JsonChild.end, JsonChild.close):
                for child in self._children:
                    act(child)
            return [(member, member.report()) for member in members]
        return self._fetched(fleet.clocks(members))

    def _fetched(self, after: dict[str, dict[str, int]]) -> list[tuple[Member, WorkerReport | None]]:
        found: list[tuple[Member, WorkerReport | None]] = []
        for member in self._members:
            one, last = self._before[member.id], after[member.id]
            clock = Clock(one["offset_ns"], one["at_ns"], last["offset_ns"], last["at_ns"])
            self._fleet.fetch(member, clock)
            offset = ClockOffset(
                worker=member.plan.worker,
                machine=member.who,
                before_ns=clock.before_ns,
                before_at_ns=clock.before_at_ns,
                after_ns=clock.after_ns,
                after_at_ns=clock.after_at_ns,
                round_trip_ns=max(one["round_trip_ns"], last["round_trip_ns"]),
            )
            report = member.report()
            found.append((member, None if report is None else report_on_our_clock(report, clock, offset)))
        return found

    def _salvage(self, *, in_order: bool) -> None:
        """What was measured until then is kept: the server may have ended out of memory, which is a result.

        In order: requests under way get their answers before.
        """
        members = self._members
        with contextlib.suppress(RunFailed):
            if self._fleet.is_far and (not self._before or any(member.is_lost for member in members)):
                return
            if self._fleet.is_far or in_order:
                self._fleet.send(members, "end")
                self._fleet.until(lambda: all(member.has_sent for member in members), _END_LIMIT_S, ())
            whole = [report for _, report in self._collected() if report is not None]
            if whole and len(whole) == len(members):
                reports.write(reports.merge(whole), self._plan.out)

    def _progress(self) -> Progress:
        phases = [member.said["phase"] for member in self._members]
        told = [member.said["figures"] for member in self._members if "figures" in member.said]
        left = (member.said.get("seconds_left") for member in self._members)
        return Progress(
            phase=min((phase for phase in phases if phase in PHASES), key=PHASES.index, default="measure"),
            documents=sum(member.said.get("documents", 0) for member in self._members),
            seconds_left=max(filter(None, left), default=None),
            seen=figures.from_lines(told) if told else None,
        )


def start(
    plan: LoadPlan,
    enter: Enter | Sequence[Enter] = tuple,
    fleet: Fleet | None = None,
    *,
    tells_figures: bool = False,
) -> LoadProcess:
    """The load's workers, preparing. `enter` wraps an argv so that it runs in the client's namespace.

    With several `enter` the workers take them in turn; those of a `fleet` on other machines stay where they are.
    Call it from the main thread: the children die with the thread that forked them.
    """
    plan.out.mkdir(parents=True, exist_ok=True)
    far = 0 if fleet is None else fleet.joined
    # Each has a user, and a document to send where their number ends the load.
    workers = min(far or plan.options.processes, plan.users, plan.options.measure_documents or plan.users)
    wanted = tells_figures or bool(plan.options.abort)
    plan = dataclasses.replace(plan, workers=workers, tells_figures=wanted).checked()
    with contextlib.ExitStack() as stack:
        fleet = fleet or stack.enter_context(roster.local(plan.out))
        load = LoadProcess(plan, fleet, stack.pop_all())
    try:
        load.prepare([enter] if callable(enter) else list(enter))
    except BaseException:
        load.stop()
        raise
    return load


def start_delay_ns(workers: int, *, is_far: bool) -> int:
    """How long before the start of a load so many workers are told of it."""
    return (_FAR_START_DELAY_NS if is_far else _START_DELAY_NS) + workers * _START_DELAY_EACH_NS


def _there(member: Member, report: WorkerReport | None) -> WorkerReport:
    if report is None:
        raise RunFailed(f"{member.name}: left no report")
    return report
