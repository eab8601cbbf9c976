"""A worker of a fleet: `python -m ingest_bench.load.fleet.fleet_worker`, a child of who measures, here or elsewhere.

Locust's WorkerRunner, for one load: it joins, hears its plan, sends, hands over what it measured, and ends. Its keys
and what it may do come in one line of JSON on its standard input; its parent hears of it on its standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import json
import logging
import os
import signal
import socket
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
import locust.log
import locust.runners
from gevent.event import AsyncResult, Event
from gevent.queue import Empty, Queue
from locust.env import Environment

from ingest_bench.errors import IngestBenchError, RunFailed, text_elsewhere, text_here
from ingest_bench.inputs import credentials
from ingest_bench.load import worker
from ingest_bench.load.fleet import consent, curve, keys
from ingest_bench.load.fleet.transfer import pieces
from ingest_bench.load.fleet.web import Figures
from ingest_bench.load.plan import LoadPlan, from_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from locust import User

_PR_SET_PDEATHSIG = 1
# The master answers a heartbeat a second. Counted are ours: after a pause of our own it has the time to answer again.
_SILENT_BEATS = 6
_HEAR_S = 0.5
# For a piece that was sent and not taken. The master waits as long (`fleet.master`).
_PIECE_S = 20.0
# From "prepared", which the slowest worker is waited for, to the last user.
_SPAWN_S = 300.0
_ABANDONED = "is gone, it ended before its experiment did"


class FleetWorker:
    """Leads one load of this process (`worker.Lead`)."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._setup = setup
        self._is_far = setup["seat"] is None
        self._heard: Queue[tuple[str, dict[str, Any]]] = Queue()
        self._taken: Queue[int] = Queue()
        self._lost: AsyncResult[str] = AsyncResult()
        """Why it is over with this master."""
        self._silent_beats = 0
        self._spawning = Event()
        """Set when Locust's master lets the users start."""
        self._plan: LoadPlan | None = None
        self._figures: Figures | None = None
        self._stop: Callable[[], None] | None = None
        self.runner: Any = None

    def join(self) -> None:
        """Locust's worker has joined the master; RunFailed when that refuses us, is somebody else, or does not come."""
        # Without options of its own Locust looks for some in the current folder.
        options = argparse.Namespace(web_base_path="", tags=None, exclude_tags=None)
        # Locust's own way is to log an exception in a user and to go on; here it ends the load (`load.worker`).
        environment = Environment(parsed_options=options, catch_exceptions=False)
        curve.install_client(self._setup["address"], keys.worker_from(self._setup["keys"]), self._lose)
        joining = gevent.spawn(environment.create_worker_runner, "", 0)
        gevent.wait([joining, self._lost], timeout=self._setup["patience_s"], count=1)
        self._check()
        if not joining.ready():
            nobody = f"nobody took us as a worker in {self._setup['patience_s']:.0f} s"
            raise RunFailed(_ABANDONED if self._setup["knows_master"] else nobody)
        self.runner = joining.get()
        curve.check(self.runner.client.socket)
        for kind in ("plan", "begin", "end", "ship", "released", "dismissed", "abandoned", "refused"):
            self.runner.register_message(kind, self._hear)
        self.runner.register_message("ping", self._pong)
        self.runner.register_message("took", lambda environment, msg: self._taken.put(msg.data["number"]))  # noqa: ARG005
        events: Any = environment.events
        events.heartbeat_received.add_listener(self._beaten)
        events.test_start.add_listener(lambda **_: self._spawning.set())
        gevent.spawn(self._watch)
        who = {"machine": self._setup["machine"] or socket.gethostname(), "pid": os.getpid()}
        self._message("hello", {**who, "seat": self._setup["seat"], "version": metadata.version("ingest-bench")})

    def serve(self) -> None:
        """One load. Who is released or dismissed before it is over ends at once (`_hear`)."""
        _, told = self._next("plan")
        try:
            worker.send(self._prepared(told), self)
        except IngestBenchError as error:
            self.say(phase="failed", error=self.text_of(error))
        self._hand_over()

    def say(self, **line: Any) -> None:
        """Whoever measures hears it."""
        if self._figures is not None:
            self._figures.update(time.time_ns() - time.monotonic_ns())
        self._message("say", line)

    def text_of(self, error: Exception) -> str:
        """What the master hears of it. On another machine it hears nothing that a file of ours holds."""
        return text_elsewhere(error) if self._is_far else text_here(error)

    def ends(self, stop: Callable[[], None]) -> None:
        """An end in order is asked for by the master, or by SIGTERM."""
        self._stop = stop

    def spawned(self, classes: Sequence[type[User]], failed: Callable[[], str]) -> None:
        """Locust's master starts the users of these classes."""
        self.runner.environment.user_classes = list(classes)
        self.say(phase="prepared", users={one.__name__: one.fixed_count for one in classes})
        wanted = sum(one.fixed_count for one in classes)
        limit = time.monotonic() + _SPAWN_S
        while self.runner.user_count != wanted:
            self._check()
            if why := failed():
                raise RunFailed(why)
            if time.monotonic() > limit:
                raise RunFailed(f"{self.runner.user_count} of {wanted} users started within {_SPAWN_S:.0f} s")
            # The slowest worker is waited for: 200 on one machine that all look every 5 ms make it slower still.
            if self._spawning.wait(_HEAR_S):
                gevent.sleep(0.005)

    def start_ns(self) -> int:
        """When the master says."""
        return int(self._next("begin")[1]["start_ns"])

    def terminated(self) -> None:
        """SIGTERM: a load that is under way ends in order. Of a worker that ends elsewhere the master hears."""
        if not self._is_far and self._stop is not None:
            self._stop()
            self._heard.put(("released", {}))
            return
        if self.runner is not None:
            self.say(phase="failed", error="it was interrupted there")
        self.end()

    def end(self, code: int = 3, **last: Any) -> None:
        """This process is over. The master knows it, if there is one; our parent hears the last line."""
        if last:
            tell(**last)
        if self.runner is not None:
            with contextlib.suppress(Exception):
                self.runner.environment.events.quitting.fire(environment=self.runner.environment)
                self.runner.client.close()
        # Locust's greenlets would keep the interpreter from its end.
        os._exit(code)

    def _prepared(self, told: dict[str, Any]) -> LoadPlan:
        """The plan for this machine; RunFailed for what this machine does not have, or may not do."""
        plan = from_table(json.loads(told["plan"]))
        if self._is_far:
            plan = dataclasses.replace(plan, out=Path(self._setup["folder"]))
        self._plan = plan
        tell(load=f"{plan.workload.name} to {plan.address}, worker {plan.worker + 1} of {plan.workers}")
        wrong = [said for path, size in told["files"].items() if (said := consent.unlike(Path(path), size))]
        if wrong:
            raise RunFailed("; ".join(wrong))
        if self._is_far and (plan.credentials or plan.has_client_certificate):
            plan = consent.with_credentials(plan, self._setup["credentials_to"], self._setup["ca_pem"])
            plan = plan.with_client_certificate(*credentials.client_certificate(os.environ))
        if told["figures"]:
            self._figures = Figures(self.runner.environment, plan)
        return plan

    def _hand_over(self) -> None:
        """What was measured goes to the master, as it asks for it; then we are free."""
        while True:
            kind, told = self._next("ship", "released")
            if kind != "ship":
                return
            assert self._plan is not None  # noqa: S101 - a load was sent
            files = {path.name: path for path in (*self._plan.record_files, self._plan.report)}
            self._ship(files[told["name"]], told["credits"])

    def _ship(self, path: Path, credit: int) -> None:
        for piece in pieces(path):
            while credit == 0 or not self._taken.empty():
                try:
                    self._taken.get(timeout=_PIECE_S)
                except Empty:
                    raise RunFailed(f"{path.name}: the master took no piece for {_PIECE_S:.0f} s") from None
                credit += 1
            credit -= 1
            self._message("piece", piece)
            # Or the heartbeats would wait for the last piece.
            gevent.sleep(0)

    def _hear(self, environment: Environment, msg: Any) -> None:  # noqa: ARG002 - Locust names them
        kind = str(msg.type)
        if kind == "refused":
            self._lose(f"refused us: {msg.data['why']}")
        elif kind == "abandoned":
            self._lose(_ABANDONED)
        elif kind == "end" and self._stop is not None:
            self._stop()
        elif kind in {"released", "dismissed"}:
            # Also in the middle of a load that was given up there, or before we have looked at its plan.
            gevent.spawn(self.end, 0, last=kind)
        else:
            self._heard.put((kind, msg.data or {}))

    def _next(self, *kinds: str) -> tuple[str, dict[str, Any]]:
        """The next message of these kinds; RunFailed when there is no master any more that could send one."""
        while True:
            self._check()
            with contextlib.suppress(Empty):
                kind, told = self._heard.get(timeout=_HEAR_S)
                if kind in kinds:
                    return kind, told

    def _pong(self, environment: Environment, msg: Any) -> None:  # noqa: ARG002 - Locust names them
        self._message("pong", msg.data | {"monotonic_ns": time.monotonic_ns()})

    def _beaten(self, **_: Any) -> None:
        self._silent_beats = 0

    def _watch(self) -> None:
        while True:
            gevent.sleep(1.0)
            self._silent_beats += 1
            if self._silent_beats > _SILENT_BEATS:
                self._lose(_ABANDONED)
            if getattr(locust.log, "unhandled_greenlet_exception", False):
                self._lose("cannot be heard any more: a part of Locust's worker died")

    def _lose(self, why: str) -> None:
        if not self._lost.ready():
            self._lost.set(why)
            if self._stop is not None:
                self._stop()

    def _check(self) -> None:
        if self._lost.ready():
            raise RunFailed(self._lost.get())

    def _message(self, kind: str, data: dict[str, Any]) -> None:
        self.runner.send_message(kind, data)


def tell(**line: Any) -> None:
    """One line to our parent. It is dropped when nobody reads: the load must not wait for that."""
    with contextlib.suppress(BlockingIOError):
        os.write(1, json.dumps(line).encode() + b"\n")


def main() -> None:
    """One load; the last line of the standard output says how it ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    setup = json.loads(sys.stdin.buffer.readline())
    os.set_blocking(1, False)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    locust.runners.WORKER_REPORT_INTERVAL = 1.0
    # We hear it ourselves, on a clock that nobody sets, and sooner (`_watch`); nor does the master want our log.
    locust.runners.MASTER_HEARTBEAT_TIMEOUT = sys.maxsize // 10**9
    locust.runners.WORKER_LOG_REPORT_INTERVAL = -1
    locust.runners.CONNECT_RETRY_COUNT = sys.maxsize
    own = FleetWorker(setup)
    gevent.signal_handler(signal.SIGTERM, own.terminated)
    try:
        own.join()
        tell(joined=True)
        own.serve()
    except IngestBenchError as error:
        own.end(3, error=str(error))
    except Exception as error:
        logging.exception("the worker ends")
        if own.runner is not None:
            own.say(phase="failed", error=own.text_of(error))
        own.end(3, error=text_here(error))
    else:
        own.end(0, last="released")


if __name__ == "__main__":
    main()
