"""Fleet as `run` sees it: a master that is a child process, and workers of other machines that have joined it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import selectors
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.inputs.records import to_json
from ingest_bench.load.fleet import keys, transfer
from ingest_bench.load.supervisor import LoadWorker, Workers, start_delay_ns
from ingest_bench.model.samples import ClockOffset, WorkerReport
from ingest_bench.model.values import CONTROL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ingest_bench.load.fleet.keys import RunKeys
    from ingest_bench.load.plan import LoadPlan
    from ingest_bench.model.target import Endpoint

    LogLine = Callable[[str], None]

# Where workers join. Below 32768, the first port that the kernel takes for outgoing connections.
PORT = 23185
_POLL_S = 1.0
# The master reports every 5 s that it is alive.
_MASTER_SILENCE_S = 30.0
_MASTER_START_S = 60.0
# Each load is sent by new processes: a worker joins again in a second or two.
_REJOIN_TIMEOUT_S = 60.0
# 20 pings at 50 ms RTT take a second.
_CLOCK_TIMEOUT_S = 2.0
_FAREWELL_S = 5.0
# A heartbeat is due every second (locust.runners.HEARTBEAT_INTERVAL); less than this may be a busy machine.
_HEARTBEAT_GAP_NS = 2_500_000_000
_MAX_NAME_LENGTH = 64  # HOST_NAME_MAX of Linux (limits.h)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWorkers:
    """Where workers from other machines may join, how many, and which."""

    bind: Endpoint
    workers: int
    keys: RunKeys
    join_timeout_s: float = 300.0


class FleetWorker(LoadWorker):
    """A worker of another machine at one load."""

    def __init__(self, plan: LoadPlan, worker_id: str, machine: str) -> None:
        super().__init__(plan)
        self.id = worker_id
        self.machine = machine
        self.lost_reason = ""

    @property
    def name(self) -> str:
        """The name in error messages."""
        return f"{super().name} ({self.machine})"

    def update(self, status: Mapping[str, Any]) -> bool:
        """Take what the master reports about it. Return True if it has failed or is lost."""
        if status["phase"] == "lost":
            self.lost_reason = self.lost_reason or str(status["error"])
        # Later messages must not hide a failure, or that its files are here.
        elif self.phase not in {"failed", "fetched"}:
            self.status.update(status)
        return bool(self.lost_reason) or self.phase == "failed"

    def describe_failure(self) -> str:
        """Return its own reason, or how it was lost."""
        return f"{self.name}: {self.status.get('error') or f'{self.lost_reason} (in phase {self.phase!r})'}"

    def read_report(self) -> WorkerReport | None:
        """Return its report, with the longest gap between its heartbeats; None if it left none."""
        report = super().read_report()
        if report is None:
            return None
        gap_ns = int(self.status.get("longest_heartbeat_gap_ns", 0))
        errors = report.errors
        if gap_ns > _HEARTBEAT_GAP_NS:
            errors += (f"{self.name}: no heartbeat for {gap_ns / 1e9:.1f} s; one is due every second",)
        return dataclasses.replace(report, longest_heartbeat_gap_ns=gap_ns, errors=errors)


class FleetWorkers(Workers):
    """The workers of a fleet at one load."""

    def __init__(self, fleet: Fleet, workers: list[FleetWorker]) -> None:
        super().__init__(workers)
        self._fleet, self._remote = fleet, workers
        self._clocks: dict[str, dict[str, int]] = {}
        self._is_stopped = False

    def process_messages(self, timeout_s: float) -> None:
        """Process the messages of the master."""
        self._fleet.process_messages(timeout_s)

    def spawn_users(self) -> None:
        """Let Locust start the users of these workers."""
        users = {worker.id: worker.status["users"] for worker in self._remote}
        # Locust takes the names of all classes from the first worker.
        most_first = dict(sorted(users.items(), key=lambda item: -len(item[1])))
        self._fleet.command({"do": "spawn", "users": most_first})

    def begin(self) -> int:
        """Measure the clocks, and let all workers begin at one moment, each on its own clock."""
        self._clocks = self._measure_clocks()
        start_ns = time.monotonic_ns() + start_delay_ns(len(self._remote), is_remote=True)
        for worker in self._remote:
            self._send([worker], "begin", start_ns=start_ns + self._clocks[worker.id]["offset_ns"])
        return start_ns

    def request_end(self) -> None:
        """Let all workers end their load in order."""
        self._send(self._remote, "end")

    def collect(self) -> list[WorkerReport | None]:
        """Download the samples of each worker, converted to our clock, and its report."""
        last_clocks = self._measure_clocks()
        reports: list[WorkerReport | None] = []
        for worker in self._remote:
            first, last = self._clocks[worker.id], last_clocks[worker.id]
            clock = ClockOffset(
                worker=worker.plan.worker,
                machine=worker.machine,
                offset_before_ns=first["offset_ns"],
                measured_before_at_ns=first["at_ns"],
                offset_after_ns=last["offset_ns"],
                measured_after_at_ns=last["at_ns"],
                round_trip_ns=max(first["round_trip_ns"], last["round_trip_ns"]),
            )
            self._fetch(worker, clock)
            report = worker.read_report()
            reports.append(None if report is None else transfer.convert_report(report, clock))
        return reports

    def can_salvage(self) -> bool:
        """Return True if the load began and no worker is lost."""
        return bool(self._clocks) and not any(worker.lost_reason for worker in self._remote)

    def stop(self) -> None:
        """Release the workers: those whose files are here wait for the next load, the others start anew."""
        if not self._is_stopped:
            self._is_stopped = True
            self._fleet.release(self._remote)

    def add_failure(self, worker: FleetWorker) -> None:
        """Note that a worker has failed or is lost."""
        self.failed[worker] = None

    def _send(self, workers: Iterable[FleetWorker], kind: str, **data: Any) -> None:
        self._fleet.send([worker.id for worker in workers], kind, data)

    def _measure_clocks(self) -> dict[str, dict[str, int]]:
        """Return by worker id the offset of its clock from our clock, the round trip, and when it was measured."""
        fleet = self._fleet
        fleet.clocks = None
        fleet.command({"do": "clocks", "of": [worker.id for worker in self._remote]})
        self.wait_until(lambda: fleet.clocks is not None, _MASTER_START_S + _CLOCK_TIMEOUT_S * len(self._remote))
        assert fleet.clocks is not None  # noqa: S101 - it was waited for
        return fleet.clocks

    def _fetch(self, worker: FleetWorker, clock: ClockOffset) -> None:
        plan = worker.plan
        files = {path.name: str(path.absolute()) for path in (*plan.record_files, plan.report_file)}
        records = [path.name for path in plan.record_files]
        command = {"do": "fetch", "from": worker.id, "files": files, "records": records, "clock": to_json(clock)}
        self._fleet.command(command)
        # Without a timeout: the master reports a worker that stops sending.
        self.wait_until(lambda: worker.phase == "fetched" or worker in self.failed, None, ignore_failures=True)
        if worker in self.failed:
            raise RunFailed(worker.describe_failure())


class Fleet:
    """A master and the workers that have joined it, for one load after the other. RunFailed if the master ends."""

    def __init__(self, master: system.Child, log: LogLine, options: RemoteWorkers, *, shows_page: bool) -> None:
        self._master, self._log = master, log
        self.joined_workers = options.workers
        self._shows_page = shows_page
        self._free: dict[str, str] = {}
        """Workers that wait for a load: a description by id."""
        self._used: dict[str, str] = {}
        """Workers whose load has ended, and that wait to be released or dismissed."""
        self._active: dict[str, FleetWorker] = {}
        self._load: FleetWorkers | None = None
        self.clocks: dict[str, dict[str, int]] | None = None
        """The last answer of the master to `clocks`."""
        self._is_listening = False
        self._last_message = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._selector.register(master.stdout, selectors.EVENT_READ)

    def assign(self, plan: LoadPlan) -> FleetWorkers:
        """Assign a load to workers, which prepare it."""
        if not plan.workers:
            raise RunFailed("the load has no workers")
        self._forget(self._used)
        self._used.clear()
        self.wait_for_workers(plan.workers, _REJOIN_TIMEOUT_S)
        chosen = sorted(self._free, key=self._free.__getitem__)[: plan.workers]
        workers = [
            FleetWorker(dataclasses.replace(plan, worker=number), worker, self._free.pop(worker))
            for number, worker in enumerate(chosen)
        ]
        self._load = FleetWorkers(self, workers)
        self._active = {worker.id: worker for worker in workers}
        try:
            for worker in workers:
                self._send_plan(worker)
        except BaseException:
            self._load.stop()
            raise
        return self._load

    def _send_plan(self, worker: FleetWorker) -> None:
        plan = worker.plan
        for old in (*plan.record_files, plan.report_file):
            old.unlink(missing_ok=True)
        text = json.dumps(plan.to_json())
        if len(text) > transfer.MAX_MESSAGE_BYTES * 3 // 4:
            raise RunFailed(f"the plan of the load has {len(text)} bytes, too many for a message to a worker")
        self.send([worker.id], "plan", {"plan": text, "files": _file_sizes(plan), "figures": self._shows_page})

    def release(self, workers: Iterable[FleetWorker]) -> None:
        """Release workers from their load."""
        unfinished: set[str] = set()
        for worker in workers:
            if self._active.pop(worker.id, None) is None:
                continue
            if worker.phase == "fetched":
                self._used[worker.id] = worker.machine
            else:
                unfinished.add(worker.id)
        with contextlib.suppress(RunFailed):
            self._forget(unfinished)

    def wait_until_listening(self) -> None:
        """Wait until workers can join; RunFailed if they cannot."""
        if not self._wait_until(lambda: self._is_listening, _MASTER_START_S):
            raise RunFailed(f"the master of the load did not start within {_MASTER_START_S:.0f} s")

    def wait_for_workers(self, count: int, timeout_s: float) -> None:
        """Wait until that many workers are free; RunFailed after the timeout."""
        if not self._wait_until(lambda: len(self._free) >= count, timeout_s):
            names = ", ".join(sorted(self._free.values()))
            raise RunFailed(
                f"{len(self._free)} of {count} workers joined within {timeout_s:.0f} s{f' ({names})' if names else ''}"
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
            raise RunFailed(self._describe_master_end())

    def command(self, line: Mapping[str, Any]) -> None:
        """Send a command to the master."""
        self._master.write_line(json.dumps(line))

    def send(self, workers: list[str], kind: str, data: Mapping[str, Any]) -> None:
        """Send a message to these workers."""
        self.command({"do": "send", "to": workers, "kind": kind, "data": data})

    def close(self, *, has_succeeded: bool) -> None:
        """Dismiss the workers and end the master."""
        with contextlib.suppress(RunFailed):
            if has_succeeded:
                # Workers that were released are joining again, and should learn that there are no more loads.
                self._wait_until(lambda: len(self._free) + len(self._used) >= self.joined_workers, _FAREWELL_S)
            self.command({"do": "dismiss", "kind": "dismissed" if has_succeeded else "abandoned"})
        self._selector.close()
        self._master.close(_FAREWELL_S)

    def _wait_until(self, is_reached: Callable[[], bool], timeout_s: float) -> bool:
        """Process messages until *is_reached*; return False after the timeout."""
        self._last_message = time.monotonic()
        limit = time.monotonic() + timeout_s
        while not is_reached() and time.monotonic() < limit:
            self.process_messages(min(_POLL_S, max(0.0, limit - time.monotonic())))
        return is_reached()

    def _forget(self, workers: Iterable[str]) -> None:
        """Let the processes of these workers end; their machines join again with new ones."""
        self.command({"do": "forget", "workers": sorted(workers)})

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
            self.clocks = line["clocks"]
        elif (worker := self._active.get(line["worker"])) is not None:
            if worker.update(line) and self._load is not None:
                self._load.add_failure(worker)
        elif line["phase"] == "lost":
            used, free = self._used.pop(line["worker"], ""), self._free.pop(line["worker"], "")
            if machine := used or free:
                self._log(f"{machine} {line['error']}")

    def _admit(self, line: dict[str, Any]) -> None:
        """Take a worker of our version; refuse another one."""
        worker, ours, theirs = str(line["joined"]), metadata.version("ingest-bench"), _to_plain(line["version"])
        machine = f"{_to_plain(line['machine'])}, {line['address']}, {line['key']}, pid {line['pid']}"
        if theirs != ours:
            reason = f"the run is ingest-bench {ours}, this worker is {theirs}. Install the same version on both sides."
            self.send([worker], "refused", {"reason": reason})
            self._log(f"refused {machine}: it is ingest-bench {theirs}, this is {ours}")
        else:
            self._free[worker] = machine
            self._log(f"{machine} joined")

    def _describe_master_end(self) -> str:
        log = self._master.read_stderr_tail()
        return f"the master of the load {self._master.describe_exit()}; its log ends with: {log}"


@contextlib.contextmanager
def open_fleet(options: RemoteWorkers, log: LogLine, page: Endpoint | None = None) -> Iterator[Fleet]:
    """Open a fleet and wait until all workers have joined. They send the loads of the block, then are dismissed.

    RunFailed if they do not join in time. *log* gets a line about the wait, each worker that joins, and each refusal.
    Locust's page is served at *page*.
    """
    master = system.Child(system.build_module_argv("ingest_bench.load.fleet.master"), name="the master of the load")
    has_succeeded = False
    fleet = Fleet(master, log, options, shows_page=page is not None)
    try:
        fleet.command({"bind": to_json(options.bind), "keys": keys.to_json(options.keys), "page": to_json(page)})
        fleet.wait_until_listening()
        log(f"waiting on {options.bind} for {options.workers} x `ingest-bench worker --connect`")
        fleet.wait_for_workers(options.workers, options.join_timeout_s)
        yield fleet
        has_succeeded = True
    finally:
        fleet.close(has_succeeded=has_succeeded)


def _to_plain(text: str) -> str:
    """Return a name given by another machine as one short line."""
    return re.sub(f"[{CONTROL}]", "?", str(text))[:_MAX_NAME_LENGTH]


def _file_sizes(plan: LoadPlan) -> dict[str, int]:
    """Return the size of each file that each machine needs: every worker reads its own part of it."""
    step_files = [] if plan.step is None else [file.path for file in plan.step.files]
    return {path: Path(path).stat().st_size for path in (*([plan.corpus] if plan.corpus else ()), *step_files)}
