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
from ingest_bench.load.fleet import transfer
from ingest_bench.load.supervisor import LoadWorker, Workers
from ingest_bench.model.samples import ClockOffset, WorkerReport
from ingest_bench.model.values import CONTROL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ingest_bench.load.fleet.keys import RunKeys
    from ingest_bench.load.plan import LoadPlan
    from ingest_bench.model.target import Endpoint

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


class Fleet(Workers[FleetWorker]):
    """A master and the workers that have joined it, for one load after the other. RunFailed if the master ends.

    `workers` are those of the current load.
    """

    # From the last command before a load until its start.
    start_delay_ns = 10**9

    def __init__(self, master: system.Child, log: Callable[[str], None], options: RemoteWorkers) -> None:
        super().__init__()
        self._master, self._log = master, log
        self.joined_workers = options.workers
        self._machines: dict[str, str] = {}
        """Workers that have joined: a description by id."""
        self._free: set[str] = set()
        """Those that wait for a load."""
        self._active: dict[str, FleetWorker] = {}
        """Those with a load."""
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
        self._first_clocks = self._measure_clocks()
        for worker in self.workers:
            worker.clock_offset_ns = self._first_clocks[worker.id]["offset_ns"]
        return super().begin()

    def collect(self) -> list[WorkerReport | None]:
        """Download the samples of each worker, converted to our clock, and its report; also of those that failed."""
        last_clocks, failed = self._measure_clocks(ignore_failures=True), tuple(self.failed)
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
            error = self._fetch(worker, clock)
            if error and worker not in failed:
                raise RunFailed(f"{worker.name}: {error}")
            report = None if error else worker.read_report()
            reports.append(None if report is None else transfer.convert_report(report, clock))
        return reports

    def stop(self) -> None:
        """Release the workers from their load: each ends it and waits for the next one."""
        released, self._active = sorted(self._active), {}
        with contextlib.suppress(RunFailed):
            self._command_master({"do": "release", "workers": released})

    def _measure_clocks(self, *, ignore_failures: bool = False) -> dict[str, dict[str, int]]:
        """Return by worker id the offset of its clock from our clock, the round trip, and when it was measured."""
        self._clocks = {}
        self._command_master({"do": "clocks", "of": [worker.id for worker in self.workers]})
        timeout_s = _MASTER_START_S + _CLOCK_TIMEOUT_S * len(self.workers)
        self.wait_until(lambda: bool(self._clocks), timeout_s, ignore_failures=ignore_failures)
        return self._clocks

    def _fetch(self, worker: FleetWorker, clock: ClockOffset) -> str:
        """Fetch the files of a worker. Return why not all of them are here; empty: they are."""
        plan = worker.plan
        self._fetch_errors.pop(worker.id, None)
        files = {path.name: str(path.absolute()) for path in plan.output_files}
        self._command_master({"do": "fetch", "from": worker.id, "files": files, "clock": to_json(clock)})
        # Without a timeout: the master reports a worker that stops sending.
        self.wait_until(lambda: worker.id in self._fetch_errors, None, ignore_failures=True)
        return self._fetch_errors[worker.id]

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
            self._fetch_errors[line["fetched"]] = line["error"]
        else:
            self._take_status(line["worker"], line)

    def _take_status(self, worker_id: str, status: Mapping[str, Any]) -> None:
        worker = self._active.get(worker_id)
        if worker is not None and worker.update(status):
            self.failed[worker] = None
        if status["phase"] == "lost":
            self._active.pop(worker_id, None)
            self._free.discard(worker_id)
            machine = self._machines.pop(worker_id, "")
            if machine and worker is None:
                self._log(f"{machine} {status['error']}")

    def _admit(self, line: dict[str, Any]) -> None:
        """Take a worker of our version; refuse another one."""
        worker, ours, theirs = str(line["joined"]), metadata.version("ingest-bench"), _to_plain(line["version"])
        machine = f"{_to_plain(line['machine'])}, {line['address']}, {line['key']}, pid {line['pid']}"
        if theirs != ours:
            reason = f"the run is ingest-bench {ours}, this worker is {theirs}. Install the same version on both sides."
            self.send(worker, "refused", {"reason": reason})
            self._log(f"refused {machine}: it is ingest-bench {theirs}, this is {ours}")
            return
        if worker not in self._machines:
            self._log(f"{machine} joined")
        self._machines[worker] = machine
        self._free.add(worker)


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
        log(f"waiting on {options.bind} for {options.workers} x `ingest-bench worker --connect`")
        fleet.wait_for_workers(options.workers, options.join_timeout_s)
        yield fleet
        has_succeeded = True
    finally:
        fleet.close(has_succeeded=has_succeeded)


def _to_plain(text: str) -> str:
    """Return a name given by another machine as one short line."""
    return re.sub(f"[{CONTROL}]", "?", str(text))[:_MAX_NAME_LENGTH]
