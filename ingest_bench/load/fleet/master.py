"""Master of a fleet: Locust's MasterRunner in a child process. `python -m ingest_bench.load.fleet.master`.

A process of its own: importing Locust patches the standard library. Commands of its parent (`fleet.roster`) come
as lines of JSON on standard input, its keys in the first one; events go to standard output. It ends with its input.
"""

from __future__ import annotations

import logging
import os
import resource
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
import locust.log
import locust.runners
from gevent.event import AsyncResult
from gevent.lock import RLock
from gevent.pool import Pool
from locust.dispatch import UsersDispatcher
from locust.env import Environment

from ingest_bench.errors import IngestBenchError, RunFailed
from ingest_bench.inputs.records import from_json
from ingest_bench.load import page
from ingest_bench.load.channel import LineChannel, die_with_parent
from ingest_bench.load.fleet import curve, keys
from ingest_bench.load.fleet.transfer import CREDITS, IncomingFile
from ingest_bench.model.samples import ClockOffset
from ingest_bench.model.target import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from locust.runners import MasterRunner

_WATCH_S = 0.2
# The parent gives up a master that is silent for 30 s (`fleet.roster`).
_ALIVE_S = 5.0
_PINGS = 20
# Ping 8 workers at a time: 1,000 workers at 50 ms RTT take 2 min instead of 15, and 8 concurrent pings do not skew each
# other.
_PINGED_WORKERS = 8
_PONG_TIMEOUT_S = 2.0
# A worker that sends a file is alive; without a piece for this long it has stopped sending.
_PIECE_TIMEOUT_S = 20.0
# From the last message to the workers until our exit.
_FAREWELL_S = 2.0


class PlannedUsers(UsersDispatcher):
    """Replaces Locust's dispatcher: each worker gets the users of its plan, and keeps them."""

    counts: dict[str, dict[str, int]]
    # Otherwise Locust restarts the load when another worker joins.
    dispatch_in_progress = True

    def __init__(self, worker_nodes: list[Any], user_classes: list[Any]) -> None:  # noqa: ARG002 - called by Locust
        self._pending: list[dict[str, dict[str, int]]] = []

    def new_dispatch(self, *_: Any, **__: Any) -> None:
        """Dispatch all users of all workers in one step."""
        # Not every worker has users of each class; Locust asks for each.
        self._pending = [{worker: Counter(users) for worker, users in self.counts.items()}]

    def __iter__(self) -> Iterator[dict[str, dict[str, int]]]:
        return self

    def __next__(self) -> dict[str, dict[str, int]]:
        if not self._pending:
            raise StopIteration
        return self._pending.pop()

    def add_worker(self, worker_node: Any) -> None:
        """Ignore a new worker: it has no users of this load."""

    def remove_worker(self, worker_node: Any) -> None:
        """Ignore a lost worker: no other one gets its users."""


class Master:
    """Carries out commands, and reports what workers send and which are lost."""

    def __init__(self, runner: MasterRunner, server: curve.Server, channel: LineChannel) -> None:
        self._runner, self._server, self._channel = runner, server, channel
        self._pongs: dict[str, AsyncResult[Any]] = {}
        self._incoming: dict[str, tuple[IncomingFile, AsyncResult[Any]]] = {}
        self._last_heartbeat: dict[str, float] = {}
        self._longest_gap_s: dict[str, float] = {}
        self._joined: set[str] = set()
        self._spawning = RLock()
        for kind, handler in {
            "hello": self._on_hello,
            "status": self._on_status,
            "pong": self._on_pong,
            "piece": self._on_piece,
        }.items():
            runner.register_message(kind, self._wrap_handler(handler))
        server.on_invalid_message = self._expel
        heartbeats: Any = runner.environment.events.heartbeat_sent
        heartbeats.add_listener(self._on_heartbeat)

    def serve(self, lines: Iterator[dict[str, Any]]) -> None:
        """Carry out commands until there are no more."""
        gevent.spawn(self._exit_on_error, self._watch)
        commands: dict[str, Callable[[dict[str, Any]], None]] = {
            "send": self._send,
            "spawn": self._spawn,
            "clocks": self._measure_clocks,
            "fetch": self._fetch,
            "forget": self._forget,
        }
        for line in lines:
            if line["do"] == "dismiss":
                self._dismiss(line["kind"])
                return
            gevent.spawn(self._exit_on_error, commands[line["do"]], line)

    def _report(self, **event: Any) -> None:
        self._channel.send(event)

    def _expel(self, worker: str, fault: str) -> None:
        """Lose a worker that sent an invalid message; it cannot come back."""
        key, address = self._server.owners[worker]
        if worker in self._joined:
            self._report(worker=worker, phase="lost", error=f"is expelled: it sent {fault}")
        else:
            self._report(refused=f"expelled a worker of {key} ({address}): it sent {fault}")
        self._runner.send_message("refused", {"reason": f"the run does not understand {fault}"}, worker)
        self._lose(worker)

    def _on_hello(self, worker: str, data: dict[str, Any]) -> None:
        if worker in self._joined or worker not in self._runner.clients:
            self._server.ignore_worker(worker, "an unexpected message 'hello'")
            return
        self._joined.add(worker)
        key, address = self._server.owners[worker]
        self._report(joined=worker, key=key, address=address, **data)

    def _on_status(self, worker: str, data: dict[str, Any]) -> None:
        gap_ns = int(self._longest_gap_s.get(worker, 0) * 1e9)
        self._report(worker=worker, longest_heartbeat_gap_ns=gap_ns, **data)

    def _on_pong(self, worker: str, data: dict[str, Any]) -> None:
        received_ns = time.monotonic_ns()
        if worker in self._pongs:
            self._pongs[worker].set((data, received_ns))

    def _on_piece(self, worker: str, data: dict[str, Any]) -> None:
        incoming, result = self._incoming.get(worker, (None, None))
        # The worker may be lost, or send more after its last piece.
        if incoming is None or result is None or result.ready():
            return
        try:
            if incoming.add(data):
                result.set(True)
            else:
                self._runner.send_message("took", {"number": data["number"]}, worker)
        except (RunFailed, OSError) as error:
            result.set(str(error))
        # Locust handles one message after the other without a pause: heartbeats would wait for the last piece.
        gevent.sleep(0)

    def _on_heartbeat(self, client_id: str, **_: Any) -> None:
        now = time.monotonic()
        gap_s = now - self._last_heartbeat.get(client_id, now)
        self._last_heartbeat[client_id] = now
        self._longest_gap_s[client_id] = max(self._longest_gap_s.get(client_id, 0.0), gap_s)

    def _send(self, line: dict[str, Any]) -> None:
        for worker in line["to"]:
            self._runner.send_message(line["kind"], line["data"], worker)

    def _spawn(self, line: dict[str, Any]) -> None:
        users = sum(sum(counts.values()) for counts in line["users"].values())
        self._longest_gap_s.clear()
        # Locust waits up to a second for the reports of all users. Ours may begin, and end, before that.
        with self._spawning:
            PlannedUsers.counts = line["users"]
            self._runner.stop(send_stop_to_client=False)
            self._runner.start(users, max(1, users))

    def _measure_clocks(self, line: dict[str, Any]) -> None:
        """Report the offsets of the workers' clocks from our clock."""
        offsets = dict(zip(line["of"], Pool(_PINGED_WORKERS).map(self._measure_clock, line["of"]), strict=True))
        if None not in offsets.values():
            self._report(clocks=offsets)

    def _measure_clock(self, worker: str) -> dict[str, int] | None:
        """Return the offset by the ping with the shortest round trip; None without a pong: the worker is lost."""
        pings = [ping for _ in range(_PINGS) if (ping := self._ping(worker)) is not None]
        if not pings:
            self._report(worker=worker, phase="lost", error="does not answer pings")
            return None
        round_trip_ns, offset_ns, at_ns = min(pings)
        return {"offset_ns": offset_ns, "round_trip_ns": round_trip_ns, "at_ns": at_ns}

    def _ping(self, worker: str) -> tuple[int, int, int] | None:
        pong = self._pongs[worker] = AsyncResult()
        self._runner.send_message("ping", {"asked_ns": time.monotonic_ns()}, worker)
        try:
            data, received_ns = pong.get(timeout=_PONG_TIMEOUT_S)
        except gevent.Timeout:
            return None
        asked_ns = data["asked_ns"]
        if asked_ns > received_ns:
            return None
        middle_ns = (asked_ns + received_ns) // 2
        return received_ns - asked_ns, data["monotonic_ns"] - middle_ns, middle_ns

    def _fetch(self, line: dict[str, Any]) -> None:
        """Transfer the files of one worker to our disk."""
        worker, clock = line["from"], from_json(ClockOffset, line["clock"])
        incoming: IncomingFile | None = None
        try:
            for name, path in line["files"].items():
                incoming = IncomingFile(Path(path), clock if name in line["records"] else None)
                result: AsyncResult[Any] = AsyncResult()
                self._incoming[worker] = incoming, result
                self._runner.send_message("ship", {"name": name, "credits": CREDITS}, worker)
                _wait_for_file(result, Path(path))
            self._report(worker=worker, phase="fetched")
        except (RunFailed, OSError) as error:
            self._report(worker=worker, phase="failed", error=str(error))
        finally:
            self._incoming.pop(worker, None)
            if incoming is not None:
                incoming.close()

    def _forget(self, line: dict[str, Any]) -> None:
        """Release workers from their load: each process ends, and the next one may join."""
        for worker in line["workers"]:
            self._runner.send_message("released", {}, worker)
            self._lose(worker)

    def _dismiss(self, kind: str) -> None:
        for worker in self._runner.clients:
            self._runner.send_message(kind, {}, worker)
        limit = time.monotonic() + _FAREWELL_S
        while len(self._runner.clients) and time.monotonic() < limit:
            gevent.sleep(0.02)

    def _watch(self) -> None:
        """Report lost workers, for which Locust has no event, and end if a greenlet of Locust died (only logged)."""
        connected: set[str] = set()
        reported = time.monotonic()
        while True:
            gevent.sleep(_WATCH_S)
            if time.monotonic() - reported > _ALIVE_S:
                reported = time.monotonic()
                self._report(alive=True)
            if getattr(locust.log, "unhandled_greenlet_exception", False):
                raise RunFailed("a greenlet of Locust's master died")
            states = {worker: node.state for worker, node in self._runner.clients.items()}
            for worker in [worker for worker, state in states.items() if state == locust.runners.STATE_MISSING]:
                silence_s = time.monotonic() - self._last_heartbeat.get(worker, time.monotonic())
                self._report(worker=worker, phase="lost", error=f"is lost: no heartbeat for {silence_s:.1f} s")
                self._forget({"workers": [worker]})
            for worker in connected - states.keys():
                self._report(worker=worker, phase="lost", error="is lost: it left")
            connected = set(self._runner.clients)

    def _lose(self, worker: str) -> None:
        # Locust would restart the load for the others once a worker is missing for a minute.
        self._runner.clients.pop(worker, None)
        self._joined.discard(worker)
        for table in (self._last_heartbeat, self._longest_gap_s, self._pongs, self._incoming):
            table.pop(worker, None)

    def _wrap_handler(self, handler: Callable[[str, dict[str, Any]], None]) -> Callable[..., None]:
        """Return a Locust listener whose exceptions end the process: Locust would log them and continue."""

        def handle(environment: Environment, msg: Any) -> None:  # noqa: ARG001 - named by Locust
            self._exit_on_error(handler, msg.node_id, msg.data or {})

        return handle

    def _exit_on_error(self, act: Callable[..., None], *arguments: Any) -> None:
        try:
            act(*arguments)
        except Exception as error:
            logging.exception("the master of the load failed")
            self._report(fatal=f"{type(error).__name__}: {error}")
            self._channel.flush()
            os._exit(1)


def _wait_for_file(result: AsyncResult[Any], path: Path) -> None:
    """Wait until the file is complete; RunFailed if it stops growing."""
    size_bytes = -1
    while not result.ready():
        if size_bytes == (size_bytes := path.stat().st_size):
            raise RunFailed(f"{path.name}: no piece of it arrived within {_PIECE_TIMEOUT_S:.0f} s")
        result.wait(_PIECE_TIMEOUT_S)
    if result.get() is not True:
        raise RunFailed(result.get())


def main() -> None:
    """Lead a fleet until there are no more commands."""
    die_with_parent()
    channel = LineChannel()
    lines = channel.lines()
    setup = next(lines)
    # Each worker is a connection, and the usual soft limit is 1,024.
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    # Locust's page shows what workers report at this interval.
    locust.runners.WORKER_REPORT_INTERVAL = 1.0
    try:
        bind = from_json(Endpoint, setup["bind"])
        curve.install_server(bind, keys.run_keys_from_json(setup["keys"]), lambda line: channel.send({"refused": line}))
        environment = Environment(user_classes=[], dispatcher_class=PlannedUsers)
        runner = environment.create_master_runner()
        server: Any = runner.server
        curve.require_encrypted(server.socket)
        if setup["page"] is not None:
            page.show_page(environment, setup["page"]["host"], setup["page"]["port"])
        master = Master(runner, server, channel)
    except IngestBenchError as error:
        channel.send({"fatal": str(error)})
    else:
        channel.send({"listening": True})
        master.serve(lines)
        # First: once the socket is closed, Locust's receiving greenlet loops without a pause.
        channel.flush()
        server.close()
        os._exit(0)
    channel.flush()
    # Greenlets of Locust would delay the exit of the interpreter.
    os._exit(0)


if __name__ == "__main__":
    main()
