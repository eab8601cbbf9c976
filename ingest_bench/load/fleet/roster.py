"""The fleet as whoever measures sees it: a master that is a child of ours, and workers that joined it.

On this machine the workers are children of ours too, one for each share of a load, in the client's namespace; they
reach the master by a socket in a folder, which no link of ours shapes. From other machines they join over TCP.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import selectors
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.load.fleet import keys
from ingest_bench.load.fleet.json_child import JsonChild, MasterProcess, worker_setup
from ingest_bench.load.fleet.member import plain, who
from ingest_bench.load.fleet.transfer import LIMIT_BYTES, Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ingest_bench.load.fleet.keys import RunKeys
    from ingest_bench.load.fleet.member import Member
    from ingest_bench.load.plan import LoadPlan
    from ingest_bench.model.target import Endpoint

    Enter = Callable[[Sequence[str]], Sequence[str]]
    Tell = Callable[[str], None]

# Where workers join. Below 32768, from where on the kernel takes ports for connections.
PORT = 23185
_LOOK_S = 1.0
# The master says every 5 s that it is there.
_SILENT_S = 30.0
_MASTER_LIMIT_S = 60.0
# Each load is sent by new processes: a worker elsewhere joins again in a second or two.
_AGAIN_LIMIT_S = 60.0
# 20 questions to one that is 50 ms away take a second.
_CLOCK_LIMIT_S = 2.0
_FAREWELL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where workers from other machines may join, and which."""

    bind: Endpoint
    workers: int
    keys: RunKeys
    patience_s: float = 300.0
    """How long they are waited for."""


class Fleet:
    """A master and its workers, for one load after the other. RunFailed when the master is gone."""

    def __init__(self, master: MasterProcess, tell: Tell, *, joined: int, shows_figures: bool) -> None:
        self._master = master
        self.joined = joined
        """How many workers joined from other machines; 0: all are children of ours."""
        self._tell = tell
        self._shows_figures = shows_figures
        self._free: dict[str, dict[str, Any]] = {}
        self._active: dict[str, Member] = {}
        self._used: dict[str, str] = {}
        """Workers whose load is over, and that wait to hear whether there is another one: who each of them is."""
        self._over: dict[Member, None] = {}
        """Workers of ours that ended before they were done, in their order."""
        self._sitting: dict[int, Member] = {}
        self.seats: tuple[dict[str, Any], keys.WorkerKeys] | None = None
        """Where children of ours join, and with which keys."""
        self._listening = False
        self._heard = time.monotonic()
        self._clocks: dict[str, Any] | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(master.stdout, selectors.EVENT_READ)

    @property
    def is_far(self) -> bool:
        """Whether the workers are on other machines."""
        return self.joined > 0

    def wait_for_workers(self, count: int, patience_s: float) -> None:
        """So many workers are free; RunFailed when they do not come in time."""
        if not self._wait(lambda: len(self._free) >= count, patience_s):
            names = ", ".join(sorted(who(one) for one in self._free.values()))
            here = f" ({names})" if names else ""
            raise RunFailed(f"{len(self._free)} of {count} workers joined in {patience_s:.0f} s{here}")

    def muster(self, members: Sequence[Member], enters: Sequence[Enter]) -> None:
        """Each of these has a worker, preparing its share. They are to be released, also when one could not begin."""
        if not self.is_far:
            for member in members:
                self._start(member, enters[member.plan.worker % len(enters)])
            return
        self._forget(self._used)
        self._used.clear()
        self.wait_for_workers(len(members), _AGAIN_LIMIT_S)
        chosen = sorted(self._free, key=lambda worker: who(self._free[worker]))[: len(members)]
        for member, worker in zip(members, chosen, strict=True):
            member.who = who(self._free.pop(worker))
            self._assign(member, worker)

    def hear(self, limit_s: float = _LOOK_S) -> None:
        """What the master and our children say; returns once something was said, or after that time."""
        found = self._selector.select(limit_s)
        if found:
            self._heard = time.monotonic()
        elif time.monotonic() - self._heard > _SILENT_S:
            raise RunFailed(f"the master of the load has said nothing for {_SILENT_S:.0f} s")
        for key, _ in found:
            member: Member | None = key.data
            if member is None:
                for line in self._master.read():
                    self._take(line)
            elif member.child is not None:
                member.child.read()
                if member.child.has_ended:
                    self._selector.unregister(key.fileobj)
                    self._over[member] = None

    def spawn(self, members: Sequence[Member]) -> None:
        """Locust starts the users of these workers."""
        users = {member.id: member.said["users"] for member in members}
        # Locust takes the names of all classes from the first worker.
        self._master.write({"do": "spawn", "users": dict(sorted(users.items(), key=lambda found: -len(found[1])))})

    def send(self, members: Sequence[Member], kind: str, **data: Any) -> None:
        """These workers hear it."""
        self._master.write({"do": "send", "to": [one.id for one in members if one.id], "kind": kind, "data": data})

    def clocks(self, members: Sequence[Member]) -> dict[str, dict[str, int]]:
        """By the id of each worker, how far its clock is ahead of ours, how long it was asked for that, and when."""
        self._clocks = None
        self._master.write({"do": "clocks", "of": [member.id for member in members]})
        self.until(lambda: self._clocks is not None, _MASTER_LIMIT_S + _CLOCK_LIMIT_S * len(members), members)
        assert self._clocks is not None  # noqa: S101 - it was waited for
        return self._clocks

    def fetch(self, member: Member, clock: Clock) -> None:
        """What it measured is on our disk: samples on our clock, its report as it is."""
        plan = member.plan
        files = {path.name: str(path.absolute()) for path in (*plan.record_files, plan.report)}
        records = [path.name for path in plan.record_files]
        order = {"do": "fetch", "from": member.id, "files": files, "records": records}
        self._master.write({**order, "clock": dataclasses.asdict(clock)})
        # While it sends, it is heard; the master says when it does not any more.
        self.until(lambda: member.said["phase"] == "fetched", None, [member])

    def until(self, reached: Callable[[], bool], limit_s: float | None, members: Sequence[Member]) -> None:
        """Returns once it is reached; RunFailed when one of the workers is lost before, or the time is over."""
        self._heard = time.monotonic()
        limit = None if limit_s is None else time.monotonic() + limit_s
        ours = set(members)
        while not reached():
            self.hear()
            # Not all members: that many workers are heard twice a second each.
            for member in self._over:
                if member in ours:
                    raise RunFailed(member.death())
            if limit is not None and time.monotonic() > limit:
                phases = ", ".join(f"{member.name}: {member.said['phase']}" for member in members)
                raise RunFailed(f"the load did not get on within {limit_s:.0f} s ({phases})")

    def release(self, members: Sequence[Member]) -> None:
        """These workers are at no load of ours any more. Those elsewhere may join anew; our children have ended."""
        for member in members:
            if member.child is not None:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(member.child.stdout)
                member.child.close()
        given_up: set[str] = set()
        for member in members:
            self._over.pop(member, None)
            if self._active.pop(member.id, None) is None:
                continue
            if member.said["phase"] == "fetched":
                self._used[member.id] = member.who
            else:
                given_up.add(member.id)
        with contextlib.suppress(RunFailed):
            self._forget(given_up)

    def close(self, *, well: bool) -> None:
        """No fleet. Workers elsewhere hear that there are no more loads, or that it was given up."""
        with contextlib.suppress(RunFailed):
            if well and self.is_far:
                # Who was given up is on its way back, and should hear that it was all.
                self._wait(lambda: len(self._free) + len(self._used) >= self.joined, _FAREWELL_S)
            self._master.write({"do": "dismiss", "kind": "dismissed" if well else "abandoned"})
        self._selector.close()
        self._master.close()

    def wait_until_listening(self) -> None:
        """Workers can join; RunFailed when they cannot."""
        if not self._wait(lambda: self._listening, _MASTER_LIMIT_S):
            raise RunFailed(f"the master of the load did not start within {_MASTER_LIMIT_S:.0f} s")

    def _wait(self, reached: Callable[[], bool], limit_s: float) -> bool:
        """Whether it is reached in that time."""
        self._heard = time.monotonic()
        limit = time.monotonic() + limit_s
        while not reached() and time.monotonic() < limit:
            self.hear(min(_LOOK_S, max(0.0, limit - time.monotonic())))
        return reached()

    def _forget(self, workers: Iterable[str]) -> None:
        """The processes of these workers end at once; elsewhere others join in their place."""
        self._master.write({"do": "forget", "workers": sorted(workers)})

    def _start(self, member: Member, enter: Enter) -> None:
        """It has a child of ours that joins and then prepares its share."""
        assert self.seats is not None  # noqa: S101 - this is a fleet of children of ours
        seat = len(self._sitting)
        self._sitting[seat] = member
        address, own = self.seats
        setup = worker_setup(address, own, patience_s=_MASTER_LIMIT_S, seat=seat)
        argv = enter(system.python("ingest_bench.load.fleet.fleet_worker"))
        member.child = JsonChild(argv, setup, member.plan.log.open("w+b"))
        self._selector.register(member.child.stdout, selectors.EVENT_READ, member)

    def _assign(self, member: Member, worker: str) -> None:
        plan = member.plan
        member.id = worker
        self._active[worker] = member
        for old in (*plan.record_files, plan.report):
            old.unlink(missing_ok=True)
        text = json.dumps(plan.table())
        if len(text) > LIMIT_BYTES * 3 // 4:
            raise RunFailed(f"the plan of the load has {len(text)} bytes, too many for the way to a worker")
        files = _sizes(plan) if self.is_far else {}
        self.send([member], "plan", plan=text, files=files, figures=self._shows_figures)

    def _take(self, line: dict[str, Any]) -> None:
        if "refused" in line:
            self._tell(str(line["refused"]))
        elif "listening" in line or "alive" in line:
            self._listening = True
        elif "joined" in line:
            self._join(line)
        elif "clocks" in line:
            self._clocks = line["clocks"]
        elif (member := self._active.get(line["worker"])) is not None:
            member.take(line)
            if member.is_over:
                self._over[member] = None
        elif line["phase"] in {"lost", "left"}:
            used, free = self._used.pop(line["worker"], ""), self._free.pop(line["worker"], None)
            if name := used if free is None else who(free):
                self._tell(f"{name} {line['error']}")

    def _join(self, line: dict[str, Any]) -> None:
        worker, ours, its = str(line["joined"]), metadata.version("ingest-bench"), plain(str(line["version"]))
        if not self.is_far:
            self._assign(self._sitting[line["seat"]], worker)
        elif its != ours:
            why = f"it is ingest-bench {ours}, we are {its}; install the same here and there"
            self._master.write({"do": "send", "to": [worker], "kind": "refused", "data": {"why": why}})
            self._tell(f"refused {who(line)}: it is ingest-bench {its}, this is {ours}")
        else:
            self._free[worker] = line
            self._tell(f"{who(line)} joined")


@contextlib.contextmanager
def local(folder: Path, web: Endpoint | None = None, tell: Tell = lambda _: None) -> Iterator[Fleet]:
    """A fleet of workers that are children of ours, for the block's time. Call it from the main thread.

    In the folder, which nobody else needs, is the socket by which they reach their master.
    """
    run, (seat,) = keys.new(("load worker",))
    folder.mkdir(parents=True, exist_ok=True)
    place = folder.absolute() / "master"
    address = {"socket": str(place)}
    fleet = Fleet(MasterProcess(address, run, web), tell, joined=0, shows_figures=web is not None)
    fleet.seats = address, seat
    with contextlib.ExitStack() as stack:
        # Not by the master: it may be killed.
        stack.callback(place.unlink, missing_ok=True)
        stack.enter_context(_closed(fleet))
        yield fleet


@contextlib.contextmanager
def joined(remote: Remote, tell: Tell, web: Endpoint | None = None) -> Iterator[Fleet]:
    """A fleet of workers from other machines, all of which have joined, for all loads of the block.

    When it ends well they hear that it was all. RunFailed when they do not come in time. `tell` gets a line about what
    is waited for, for each that joins, and for who is refused.
    """
    master = MasterProcess({"host": remote.bind.host, "port": remote.bind.port}, remote.keys, web)
    fleet = Fleet(master, tell, joined=remote.workers, shows_figures=web is not None)
    with _closed(fleet):
        fleet.wait_until_listening()
        tell(f"waiting on {remote.bind} for {remote.workers} x `ingest-bench worker --connect`")
        fleet.wait_for_workers(remote.workers, remote.patience_s)
        yield fleet


@contextlib.contextmanager
def _closed(fleet: Fleet) -> Iterator[None]:
    well = False
    try:
        yield
        well = True
    finally:
        fleet.close(well=well)


def _sizes(plan: LoadPlan) -> dict[str, int]:
    """The files that each machine needs, as large as ours: every worker reads its own part of them."""
    step = [] if plan.step is None else [file.path for file in plan.step.files]
    return {path: Path(path).stat().st_size for path in (*([plan.corpus] if plan.corpus else ()), *step)}
