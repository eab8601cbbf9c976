"""Fleet as `run` sees it: a master that is a child process, and workers of other machines that have joined it.

Workers send the loads; observers watch the JVMs of the server, each on the machine of its node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import selectors
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.inputs.records import from_json, to_json
from ingest_bench.load.fleet import transfer
from ingest_bench.load.fleet.keys import RunKeys
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.supervisor import LoadWorker, Workers
from ingest_bench.model.samples import ClockOffset, WorkerReport
from ingest_bench.model.target import Endpoint
from ingest_bench.model.values import CONTROL

# Where workers join. Below 32768, the first port that the kernel takes for outgoing connections.
PORT = 23185
_POLL_S = 1.0
# The master reports every 5 s that it is alive.
_MASTER_SILENCE_S = 30.0
_MASTER_START_S = 60.0
# After each load a worker ends its process, which takes a moment, and joins again.
_REJOIN_TIMEOUT_S = 60.0
# 20 pings at 50 ms RTT take a second.
_CLOCK_TIMEOUT_S = 2.0
_FAREWELL_S = 5.0
# A few jcmd commands, on a busy machine.
_WATCH_TIMEOUT_S = 300.0
# The JVM writes a recording of some hundred megabytes (`jvm.observe`).
_UNWATCH_TIMEOUT_S = 900.0
# A heartbeat is due every second (locust.runners.HEARTBEAT_INTERVAL); less than this may be a busy machine.
_HEARTBEAT_GAP_NS = 2_500_000_000
_MAX_NAME_LENGTH = 64  # HOST_NAME_MAX of Linux (limits.h)
_MAX_ERROR_LENGTH = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWorkers:
    """Where workers from other machines may join, how many, and which."""

    bind: Endpoint
    workers: int = 0
    """Workers that send the loads; 0: local processes do."""
    observers: int = 0
    probes: frozenset[str] = frozenset()
    """Probes with which the observers must be able to watch."""
    shapes: str = ""
    """The interface that they must be allowed to shape; empty: none."""
    keys: RunKeys
    join_timeout_s: float = 300.0


class FleetWorker(LoadWorker):
    """A worker of another machine at one load."""

    def __init__(self, plan: LoadPlan, worker_id: str, machine: str, fleet: Fleet) -> None:
        super().__init__(plan)
        self.id = worker_id
        self.machine = machine
        self._fleet = fleet

    @property
    def name(self) -> str:
        """The name in error messages."""
        return f"{super().name} ({self.machine})"

    def command(self, line: Mapping[str, Any]) -> None:
        """Send a command to its machine."""
        self._fleet.send(self.id, "command", line)

    def update(self, status: Mapping[str, Any]) -> bool:
        """Take what the master reports about it. Return True if it has failed or is lost."""
        if status["phase"] == "lost":
            self.is_lost = True
            status = {"phase": "failed", "error": f"{status['error']} (in phase {self.phase!r})"}
        # Later messages must not hide a failure.
        if self.phase != "failed":
            self.status.update(status)
        return self.phase == "failed"

    def describe_failure(self) -> str:
        """Return its own reason, or how it was lost."""
        return f"{self.name}: {super().describe_failure()}"

    def read_report(self) -> WorkerReport | None:
        """Return its report, with the longest gap between its heartbeats; None if it left none."""
        report = super().read_report()
        if report is None:
            return None
        gap_ns = int(self.status["longest_heartbeat_gap_ns"])
        errors = report.errors
        if gap_ns > _HEARTBEAT_GAP_NS:
            errors += (f"{self.name}: no heartbeat for {gap_ns / 1e9:.1f} s; one is due every second",)
        return dataclasses.replace(report, longest_heartbeat_gap_ns=gap_ns, errors=errors)


class FleetObserver:
    """An observer on the machine of a node."""

    def __init__(self, worker_id: str, machine: str, watched: transfer.Watched) -> None:
        self.id, self.machine, self.watched = worker_id, machine, watched
        self.state: transfer.Observed | None = None
        """What it reported last in this run; None: nothing yet."""
        self.failure = ""
        """Why it cannot watch this run; empty: it can."""
        self.before: transfer.ClockReading | None = None
        """Clocks when it began to watch."""

    @property
    def has_ended(self) -> bool:
        """Return True if its JVM ended during the run."""
        return self.state is not None and self.state.has_ended

    def is_in(self, phase: str) -> bool:
        """Return True if it reported that phase last."""
        return self.state is not None and self.state.phase == phase

    def fail(self, reason: str) -> None:
        """Take the reason why it cannot watch; the first one counts."""
        self.failure = self.failure or f"observer ({self.machine}): {reason}"


class Fleet(Workers[FleetWorker]):
    """A master and the workers that have joined it, for one load after the other. RunFailed if the master ends.

    `workers` are those of the current load.
    """

    # From the last command before a load until its start.
    start_delay_ns = 10**9

    def __init__(self, master: system.Child, log: Callable[[str], None], options: RemoteWorkers) -> None:
        super().__init__()
        self.on_wait = self.check_observers
        self._master, self._log = master, log
        self.joined_workers = options.workers
        self._machines: dict[str, str] = {}
        """Workers that have joined: a description by id."""
        self._free: set[str] = set()
        """Those that wait for a load."""
        self._active: dict[str, FleetWorker] = {}
        """Those with a load."""
        self._options = options
        self._observers: dict[str, FleetObserver] = {}
        """Those that have joined."""
        self.observers: tuple[FleetObserver, ...] = ()
        """Those of the current run, in the order of the nodes."""
        self._watched_runs = 0
        self._clocks: dict[str, dict[str, int]] = {}
        """The last answer of the master to `clocks`."""
        self._first_clocks: dict[str, dict[str, int]] = {}
        """The one before the current load."""
        self._fetch_errors: dict[str, str] = {}
        self._is_listening = False
        self._last_message = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._selector.register(master.stdout, selectors.EVENT_READ)

    def assign(self, plan: LoadPlan) -> None:
        """Assign a load to workers, which prepare it."""
        self.wait_for_workers(plan.workers, _REJOIN_TIMEOUT_S)
        chosen = sorted(self._free, key=self._machines.__getitem__)[: plan.workers]
        self._free.difference_update(chosen)
        self.workers = [
            FleetWorker(dataclasses.replace(plan, worker=number), worker, self._machines[worker], self)
            for number, worker in enumerate(chosen)
        ]
        self._active = {worker.id: worker for worker in self.workers}
        self.failed = {}
        try:
            for worker in self.workers:
                self._send_plan(worker)
        except BaseException:
            self.stop()
            raise

    def _send_plan(self, worker: FleetWorker) -> None:
        plan = worker.plan
        for old in plan.output_files:
            old.unlink(missing_ok=True)
        text = json.dumps(plan.to_json())
        if len(text) > transfer.MAX_MESSAGE_BYTES * 3 // 4:
            raise RunFailed(f"the plan of the load has {len(text)} bytes, too many for a message to a worker")
        # Every worker reads its own part of these.
        sizes = {file.path: Path(file.path).stat().st_size for file in plan.files}
        self.send(worker.id, "plan", {"plan": text, "files": sizes})

    def begin(self) -> int:
        """Measure the clocks, and let all workers begin at one moment, each on its own clock."""
        self._first_clocks = self._measure_clocks(self.workers)
        for worker in self.workers:
            worker.clock_offset_ns = self._first_clocks[worker.id]["offset_ns"]
        return super().begin()

    def collect(self) -> list[WorkerReport | None]:
        """Download the samples of each worker, converted to our clock, and its report; also of those that failed."""
        last_clocks, failed = self._measure_clocks(self.workers, ignore_failures=True), tuple(self.failed)
        reports: list[WorkerReport | None] = []
        for worker in self.workers:
            first, last = self._first_clocks[worker.id], last_clocks[worker.id]
            clock = ClockOffset(
                worker=worker.plan.worker,
                machine=worker.machine,
                offset_before_ns=first["offset_ns"],
                measured_before_at_ns=first["at_ns"],
                offset_after_ns=last["offset_ns"],
                measured_after_at_ns=last["at_ns"],
                round_trip_ns=max(first["round_trip_ns"], last["round_trip_ns"]),
            )
            files = {path.name: path for path in worker.plan.output_files}
            error = self._fetch(worker.id, files, clock=clock)
            if error and worker not in failed:
                raise RunFailed(f"{worker.name}: {error}")
            report = None if error else worker.read_report()
            reports.append(None if report is None else transfer.convert_report(report, clock))
        return reports

    def stop(self) -> None:
        """Release the workers from their load: each ends it and waits for the next one."""
        released, self._active = sorted(self._active), {}
        self.failed = {}
        with contextlib.suppress(RunFailed):
            self._command_master({"do": "release", "workers": released})

    def gather_observers(self) -> tuple[FleetObserver, ...]:
        """Return the observers of the next run; RunFailed if one is missing."""
        # One that left since the last run is missing.
        self._process_pending()
        self.wait_for_observers(self._options.observers, _REJOIN_TIMEOUT_S)
        self.observers = tuple(sorted(self._observers.values(), key=lambda observer: observer.machine))
        for observer in self.observers:
            observer.state, observer.failure, observer.before = None, "", None
        self._watched_runs += 1
        return self.observers

    def watch(self, request: Mapping[str, Any]) -> None:
        """Let the gathered observers watch a run, and return when they do; RunFailed if one cannot.

        *request* is that of `join.JoinOptions.observer_argv` without `run` and `raw`.
        """
        for observer in self.observers:
            self.send(observer.id, "watch", {"run": self._watched_runs, "request": request})
        self._wait_for_phase("watching", _WATCH_TIMEOUT_S)
        for observer, reading in zip(self.observers, self._read_clocks(), strict=True):
            observer.before = reading

    def unwatch(self) -> list[ClockOffset]:
        """Let all observers stop. Return the offset of each one's CLOCK_REALTIME; InvalidRun if a clock was set.

        RunFailed if one cannot. One whose JVM has ended can: the files that remain are evidence.
        """
        for observer in self.observers:
            self.send(observer.id, "unwatch", {})
        self._wait_for_phase("stopped", _UNWATCH_TIMEOUT_S)
        return [
            transfer.realtime_offset(node, observer.machine, observer.before, after)
            for node, (observer, after) in enumerate(zip(self.observers, self._read_clocks(), strict=True))
            if observer.before is not None
        ]

    def fetch_raw(self, observer: FleetObserver, raw: Path) -> None:
        """Bring the files of an observer that has stopped into the folder *raw*; RunFailed if that is impossible."""
        assert observer.state is not None  # noqa: S101 - it has stopped
        sizes = observer.state.files
        free_bytes = shutil.disk_usage(raw).free
        if sum(sizes.values()) > free_bytes:
            raise RunFailed(
                f"observer ({observer.machine}): its files have {sum(sizes.values()):,} bytes, and {raw} has "
                f"{free_bytes:,} free. Free some space."
            )
        if error := self._fetch(observer.id, {name: raw / name for name in sizes}, sizes=sizes):
            raise RunFailed(f"observer ({observer.machine}): {error}")

    def release_observers(self) -> None:
        """Release the observers from their run: each ends what still watches, and deletes its files."""
        with contextlib.suppress(RunFailed):
            for observer in self.observers:
                self.send(observer.id, "released", {})

    def poll_observers(self) -> None:
        """Process the messages that have arrived, during a local load; RunFailed as `check_observers`."""
        self._process_pending()
        self.check_observers()

    def _process_pending(self) -> None:
        while self._selector.select(0):
            self.process_messages(0)

    def check_observers(self) -> None:
        """Raise RunFailed if an observer of the current run failed or is lost."""
        if failure := next((observer.failure for observer in self.observers if observer.failure), None):
            raise RunFailed(failure)

    def _wait_for_phase(self, phase: Literal["watching", "stopped"], timeout_s: float) -> None:
        limit = time.monotonic() + timeout_s

        def missing() -> list[str]:
            return [observer.machine for observer in self.observers if not observer.is_in(phase)]

        self.wait_until(lambda: not missing() or time.monotonic() > limit, None, ignore_failures=True)
        if names := "; ".join(missing()):
            raise RunFailed(f"observers not {phase} within {timeout_s:.0f} s: {names}")

    def _read_clocks(self) -> list[transfer.ClockReading]:
        clocks = self._measure_clocks(self.observers, ignore_failures=True)
        our_lead_ns = transfer.read_realtime_lead_ns()
        return [
            transfer.ClockReading(
                **clocks[observer.id], their_lead_ns=observer.state.realtime_lead_ns, our_lead_ns=our_lead_ns
            )
            for observer in self.observers
            if observer.state is not None
        ]

    def _measure_clocks(
        self, workers: Sequence[FleetWorker | FleetObserver], *, ignore_failures: bool = False
    ) -> dict[str, dict[str, int]]:
        """Return by worker id the offset of its clock from our clock, the round trip, and when it was measured."""
        self._clocks = {}
        self._command_master({"do": "clocks", "of": [worker.id for worker in workers]})
        timeout_s = _MASTER_START_S + _CLOCK_TIMEOUT_S * len(workers)
        self.wait_until(lambda: bool(self._clocks), timeout_s, ignore_failures=ignore_failures)
        return self._clocks

    def _fetch(
        self,
        worker_id: str,
        files: Mapping[str, Path],
        *,
        clock: ClockOffset | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> str:
        """Fetch files of a worker as `transfer.receive_file` does. Return why not all are here; empty: they are."""
        self._fetch_errors.pop(worker_id, None)
        paths = {name: str(path.absolute()) for name, path in files.items()}
        self._command_master(
            {"do": "fetch", "from": worker_id, "files": paths, "clock": to_json(clock), "sizes": dict(sizes or {})}
        )
        # Without a timeout: the master reports a worker that stops sending.
        self.wait_until(lambda: worker_id in self._fetch_errors, None, ignore_failures=True)
        return self._fetch_errors[worker_id]

    def start(self, bind: Endpoint, run_keys: RunKeys) -> None:
        """Wait until workers can join; RunFailed if they cannot."""
        self._command_master({"bind": to_json(bind), "keys": to_json(run_keys)})
        if not self._wait_until(lambda: self._is_listening, _MASTER_START_S):
            raise RunFailed(f"the master of the load did not start within {_MASTER_START_S:.0f} s")

    def wait_for_workers(self, count: int, timeout_s: float) -> None:
        """Wait until that many workers are free; RunFailed after the timeout."""
        if not self._wait_until(lambda: len(self._free) >= count, timeout_s):
            names = ", ".join(sorted(self._machines[worker] for worker in self._free))
            raise RunFailed(
                f"{len(self._free)} of {count} workers joined within {timeout_s:.0f} s{f' ({names})' if names else ''}"
            )

    def wait_for_observers(self, count: int, timeout_s: float) -> None:
        """Wait until that many observers have joined; RunFailed after the timeout."""
        if not self._wait_until(lambda: len(self._observers) >= count, timeout_s):
            names = "; ".join(sorted(observer.machine for observer in self._observers.values()))
            raise RunFailed(
                f"{len(self._observers)} of {count} observers joined within {timeout_s:.0f} s"
                f"{f' ({names})' if names else ''}. Start `ingest-bench worker --watch PID` on the machine of each "
                "node."
            )

    def process_messages(self, timeout_s: float) -> None:
        """Wait for messages of the master and process them; return after the first ones or the timeout."""
        if not self._selector.select(timeout_s):
            if time.monotonic() - self._last_message > _MASTER_SILENCE_S:
                raise RunFailed(f"the master of the load was silent for {_MASTER_SILENCE_S:.0f} s")
            return
        self._last_message = time.monotonic()
        for line in self._master.read_lines():
            self._process(json.loads(line))
        if self._master.has_ended:
            log = self._master.read_stderr_tail()
            raise RunFailed(f"the master of the load {self._master.describe_exit()}; its log ends with: {log}")

    def send(self, worker: str, kind: str, data: Mapping[str, Any]) -> None:
        """Send a message to a worker."""
        self._command_master({"do": "send", "to": worker, "kind": kind, "data": data})

    def _command_master(self, line: Mapping[str, Any]) -> None:
        self._master.write_line(json.dumps(line))

    def close(self, *, has_succeeded: bool) -> None:
        """Dismiss the workers and end the master."""
        with contextlib.suppress(RunFailed):
            self._command_master({"do": "dismiss", "kind": "dismissed" if has_succeeded else "abandoned"})
        self._selector.close()
        self._master.close(_FAREWELL_S)

    def _wait_until(self, is_reached: Callable[[], bool], timeout_s: float) -> bool:
        """Process messages until *is_reached*; return False after the timeout."""
        self._last_message = time.monotonic()
        limit = time.monotonic() + timeout_s
        while not is_reached() and time.monotonic() < limit:
            self.process_messages(min(_POLL_S, max(0.0, limit - time.monotonic())))
        return is_reached()

    def _process(self, line: dict[str, Any]) -> None:
        if "fatal" in line:
            raise RunFailed(str(line["fatal"]))
        if "refused" in line:
            self._log(str(line["refused"]))
        elif "listening" in line or "alive" in line:
            self._is_listening = True
        elif "joined" in line:
            self._admit(line)
        elif "clocks" in line:
            self._clocks = line["clocks"]
        elif "fetched" in line:
            self._fetch_errors[line["fetched"]] = _to_plain(line["error"], _MAX_ERROR_LENGTH)
        elif "observer" in line:
            self._take_observed(line.pop("observer"), line)
        else:
            self._take_status(line["worker"], line)

    def _take_observed(self, worker_id: str, line: Mapping[str, Any]) -> None:
        observer = self._observers.get(worker_id)
        if observer is not None and line["run"] == self._watched_runs:
            observer.state = from_json(transfer.Observed, line)
            if observer.state.phase == "failed":
                observer.fail(_to_plain(observer.state.error, _MAX_ERROR_LENGTH))

    def _take_status(self, worker_id: str, status: Mapping[str, Any]) -> None:
        worker = self._active.get(worker_id)
        if worker is not None and worker.update(status):
            self.failed[worker] = None
        if status["phase"] == "lost":
            self._active.pop(worker_id, None)
            self._free.discard(worker_id)
            if (observer := self._observers.pop(worker_id, None)) is not None:
                observer.fail(str(status["error"]))
            machine = self._machines.pop(worker_id, "")
            if machine and worker is None and observer not in self.observers:
                self._log(f"{machine} {status['error']}")

    def _admit(self, line: dict[str, Any]) -> None:
        """Take a worker or an observer that the run can use; refuse another one."""
        worker, theirs = str(line["joined"]), _to_plain(line["version"])
        machine = f"{_to_plain(line['machine'])}, {line['address']}, {line['key']}, pid {line['pid']}"
        watched = None if line.get("watched") is None else from_json(transfer.Watched, line["watched"])
        if reason := find_refusal(self._options, theirs, watched, tuple(self._observers.values())):
            self.send(worker, "refused", {"reason": reason})
            self._log(f"refused {machine}: {reason}")
            return
        if worker not in self._machines:
            self._log(f"{machine} joined{'' if watched is None else f': watches pid {watched.pid}'}")
        self._machines[worker] = machine
        if watched is None:
            self._free.add(worker)
        else:
            self._observers[worker] = FleetObserver(worker, machine, watched)


def find_refusal(
    options: RemoteWorkers, version: str, watched: transfer.Watched | None, others: Sequence[FleetObserver]
) -> str:
    """Return why the run refuses a worker of that version, or an observer of that JVM; empty: it does not.

    *others* are the observers that have joined.
    """
    ours = metadata.version("ingest-bench")
    if version != ours:
        return f"the run is ingest-bench {ours}, this worker is {version}. Install the same version on both sides."
    if watched is None:
        return (
            "" if options.workers else "the run sends the load itself. Give it --workers N, or start with --watch PID"
        )
    if not options.observers:
        return "the run waits for no observer. Give it --watchers N."
    if twin := next((other for other in others if _is_same_jvm(other.watched, watched)), None):
        return f"{twin.machine} watches the same JVM. Start one observer for each node."
    if len(others) >= options.observers:
        return f"all {options.observers} observers have joined. End one of them first, or give the run more --watchers."
    if options.shapes not in ("", watched.may_shape):
        return f"the run shapes {options.shapes} on this machine. Allow it: start with --may-shape {options.shapes}."
    reasons = (watched.unavailable[name] for name in sorted(options.probes & watched.unavailable.keys()))
    return next(reasons, "")


def _is_same_jvm(first: transfer.Watched, second: transfer.Watched) -> bool:
    return (first.pid, first.began) == (second.pid, second.began)


@contextlib.contextmanager
def open_fleet(options: RemoteWorkers, log: Callable[[str], None]) -> Iterator[Fleet]:
    """Open a fleet and wait until all workers have joined. They send the loads of the block, then are dismissed.

    RunFailed if they do not join in time. *log* gets a line about the wait, each worker that joins, and each refusal.
    """
    master = system.Child(system.build_module_argv("ingest_bench.load.fleet.master"), name="the master of the load")
    has_succeeded = False
    fleet = Fleet(master, log, options)
    try:
        fleet.start(options.bind, options.keys)
        counts = {"--connect": options.workers, "--watch": options.observers}
        expected = " and ".join(f"{count} x `ingest-bench worker {name}`" for name, count in counts.items() if count)
        log(f"waiting on {options.bind} for {expected}")
        fleet.wait_for_workers(options.workers, options.join_timeout_s)
        fleet.wait_for_observers(options.observers, options.join_timeout_s)
        yield fleet
        has_succeeded = True
    finally:
        fleet.close(has_succeeded=has_succeeded)


def _to_plain(text: str, length: int = _MAX_NAME_LENGTH) -> str:
    """Return a name given by another machine as one short line."""
    return re.sub(f"[{CONTROL}]", "?", str(text))[:length]
