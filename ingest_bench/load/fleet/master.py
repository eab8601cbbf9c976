"""The master of a fleet: `python -m ingest_bench.load.fleet.master`, a child of whoever measures (`load.fleet.roster`).

Locust's MasterRunner, in a process of its own: to import Locust patches everything there is. It hears what to do in
lines of JSON on its standard input, its keys in the first one, and tells in such lines on its standard output. It ends
with its input.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
import locust.log
import locust.runners
from gevent.event import AsyncResult
from gevent.lock import RLock
from gevent.pool import Pool
from gevent.socket import wait_read, wait_write
from locust.env import Environment

from ingest_bench.errors import IngestBenchError, RunFailed
from ingest_bench.load.fleet import curve, keys, web
from ingest_bench.load.fleet.dispatch import FixedUsers
from ingest_bench.load.fleet.transfer import CREDITS, Clock, Incoming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from locust.runners import MasterRunner

_WHO = ("machine", "pid", "version", "seat")
_LOOK_S = 0.2
# Whoever measures takes us for dead when it hears nothing for long (`fleet.roster`).
_ALIVE_S = 5.0
_PINGS = 20
# Of 1,000 workers that are 50 ms away each, two minutes and not a quarter of an hour; so few hardly delay each other.
_ASKED_AT_ONCE = 8
_PONG_S = 2.0
# A worker that ships is heard all the time; without a piece for so long it ships no more.
_PIECE_S = 20.0
# Between "there is no more" and our end.
_FAREWELL_S = 2.0


class Master:
    """Carries out what it hears, tells what workers say, and who of them is lost."""

    def __init__(self, runner: MasterRunner, server: curve.Server) -> None:
        self._runner = runner
        self._server = server
        self._pongs: dict[str, AsyncResult] = {}
        self._incoming: dict[str, Incoming] = {}
        self._whole: dict[str, AsyncResult] = {}
        self._heard: dict[str, float] = {}
        self._joined: set[str] = set()
        self._silence: dict[str, float] = {}
        """The longest time in which a worker was not heard."""
        self._spawning = RLock()
        for kind, hear in (("hello", self._hello), ("say", self._say), ("pong", self._pong), ("piece", self._piece)):
            runner.register_message(kind, _guarded(hear))
        server.on_nonsense = self._give_up
        heartbeats: Any = runner.environment.events.heartbeat_sent
        heartbeats.add_listener(self._heartbeat)

    def serve(self) -> None:
        """Returns when nobody tells us what to do any more."""
        gevent.spawn(_or_end, self._watch)
        do: dict[str, Callable[[dict[str, Any]], None]] = {
            "send": self._send,
            "spawn": self._spawn,
            "clocks": self._clocks,
            "fetch": self._fetch,
            "forget": self._forget,
        }
        for line in _lines():
            if line["do"] == "dismiss":
                self._dismiss(line["kind"])
                return
            gevent.spawn(_or_end, do[line["do"]], line)

    def _give_up(self, worker: str, why: str) -> None:
        """It said what no worker of ours says: it is lost, and does not come back."""
        key, address = self._server.owners[worker]
        if worker in self._joined:
            tell(worker=worker, phase="lost", error=f"is given up: it sent {why}")
        else:
            tell(refused=f"gave up a worker of {key} ({address}): it sent {why}")
        self._runner.send_message("refused", {"why": f"it does not understand {why}"}, worker)
        self._lose(worker)

    def _hello(self, worker: str, data: dict[str, Any]) -> None:
        if worker in self._joined or worker not in self._runner.clients:
            self._server.hear_no_more(worker, "a message 'hello' when none was due")
            return
        self._joined.add(worker)
        key, address = self._server.owners[worker]
        tell(joined=worker, key=key, address=address, **{name: data.get(name) for name in _WHO})

    def _say(self, worker: str, data: dict[str, Any]) -> None:
        tell(worker=worker, longest_silence_ns=int(self._silence.get(worker, 0) * 1e9), **data)

    def _pong(self, worker: str, data: dict[str, Any]) -> None:
        heard_ns = time.monotonic_ns()
        if worker in self._pongs:
            self._pongs[worker].set((data, heard_ns))

    def _piece(self, worker: str, data: dict[str, Any]) -> None:
        incoming, whole = self._incoming.get(worker), self._whole.get(worker)
        # It may be lost, or say more after its last piece.
        if incoming is None or whole is None or whole.ready():
            return
        try:
            if incoming.take(data):
                whole.set(True)
            else:
                self._runner.send_message("took", {"number": data["number"]}, worker)
        except (RunFailed, OSError) as error:
            whole.set(str(error))
        # Locust hears one message after the other without a pause: heartbeats would wait for the last piece.
        gevent.sleep(0)

    def _send(self, line: dict[str, Any]) -> None:
        for worker in line["to"]:
            self._runner.send_message(line["kind"], line["data"], worker)

    def _spawn(self, line: dict[str, Any]) -> None:
        users = sum(sum(counts.values()) for counts in line["users"].values())
        self._silence.clear()
        # Locust waits up to a second for the reports of all users. Ours may begin, and end, before that.
        with self._spawning:
            FixedUsers.counts = line["users"]
            self._runner.stop(send_stop_to_client=False)
            self._runner.start(users, max(1, users))

    def _clocks(self, line: dict[str, Any]) -> None:
        """How far their clocks are ahead of ours."""
        pool = Pool(_ASKED_AT_ONCE)
        found = dict(zip(line["of"], pool.map(self._clock, line["of"]), strict=True))
        if None not in found.values():
            tell(clocks=found)

    def _clock(self, worker: str) -> dict[str, int] | None:
        """Of the answers the one that took the least time; None: there was none, and the worker is lost."""
        tries = [one for _ in range(_PINGS) if (one := self._asked(worker)) is not None]
        if not tries:
            tell(worker=worker, phase="lost", error="does not tell its time")
            return None
        round_trip_ns, offset_ns, at_ns = min(tries)
        return {"offset_ns": offset_ns, "round_trip_ns": round_trip_ns, "at_ns": at_ns}

    def _asked(self, worker: str) -> tuple[int, int, int] | None:
        pong = self._pongs[worker] = AsyncResult()
        asked_ns = time.monotonic_ns()
        self._runner.send_message("ping", {"asked_ns": asked_ns}, worker)
        try:
            data, heard_ns = pong.get(timeout=_PONG_S)
        except gevent.Timeout:
            return None
        if data["asked_ns"] > heard_ns:
            return None
        middle_ns = (data["asked_ns"] + heard_ns) // 2
        return heard_ns - data["asked_ns"], data["monotonic_ns"] - middle_ns, middle_ns

    def _fetch(self, line: dict[str, Any]) -> None:
        """The files of one worker, from its disk to ours."""
        worker, clock = line["from"], Clock(**line["clock"])
        try:
            for name, path in line["files"].items():
                self._incoming[worker] = Incoming(Path(path), clock if name in line["records"] else None)
                said = self._whole[worker] = AsyncResult()
                self._runner.send_message("ship", {"name": name, "credits": CREDITS}, worker)
                self._arrived(said, Path(path))
            tell(worker=worker, phase="fetched")
        except (RunFailed, OSError) as error:
            tell(worker=worker, phase="failed", error=str(error))
        finally:
            incoming = self._incoming.pop(worker, None)
            if incoming is not None:
                incoming.close()

    def _arrived(self, said: AsyncResult, path: Path) -> None:
        """Returns when the file is whole; RunFailed when it does not grow any more."""
        size_bytes = -1
        while not said.ready():
            if size_bytes == (size_bytes := path.stat().st_size):
                raise RunFailed(f"{path.name}: nothing more of it came within {_PIECE_S:.0f} s")
            said.wait(_PIECE_S)
        if said.get() is not True:
            raise RunFailed(said.get())

    def _forget(self, line: dict[str, Any]) -> None:
        """These workers are free of this load: each ends, and may join anew."""
        for worker in line["workers"]:
            self._runner.send_message("released", {}, worker)
            self._lose(worker)

    def _dismiss(self, kind: str) -> None:
        for worker in self._runner.clients:
            self._runner.send_message(kind, {}, worker)
        limit = time.monotonic() + _FAREWELL_S
        while len(self._runner.clients) and time.monotonic() < limit:
            gevent.sleep(0.02)

    def _heartbeat(self, client_id: str, **_: Any) -> None:
        now = time.monotonic()
        silence = now - self._heard.get(client_id, now)
        self._heard[client_id] = now
        self._silence[client_id] = max(self._silence.get(client_id, 0.0), silence)

    def _watch(self) -> None:
        """Locust has no event for a worker that is lost, and only a log for a greenlet that died."""
        known: set[str] = set()
        told = time.monotonic()
        while True:
            gevent.sleep(_LOOK_S)
            if time.monotonic() - told > _ALIVE_S:
                told = time.monotonic()
                tell(alive=True)
            if getattr(locust.log, "unhandled_greenlet_exception", False):
                raise RunFailed("a part of Locust's master died")
            states = {worker: node.state for worker, node in self._runner.clients.items()}
            for worker in [one for one, state in states.items() if state == locust.runners.STATE_MISSING]:
                silence = time.monotonic() - self._heard.get(worker, time.monotonic())
                tell(worker=worker, phase="lost", error=f"is gone: it was not heard for {silence:.1f} s")
                self._forget({"workers": [worker]})
            for worker in known - states.keys():
                tell(worker=worker, phase="left", error="is gone: it left")
            known = set(self._runner.clients)

    def _lose(self, worker: str) -> None:
        # Locust would start the load again for the others once it is missing for a minute.
        self._runner.clients.pop(worker, None)
        self._joined.discard(worker)
        for of in (self._heard, self._silence, self._pongs, self._whole):
            of.pop(worker, None)


def tell(**line: Any) -> None:
    """One line to whoever measures. It waits where nobody reads, and the workers do not."""
    rest = memoryview(json.dumps(line).encode() + b"\n")
    with _TELLING:
        while rest:
            try:
                rest = rest[os.write(1, rest) :]
            except BlockingIOError:
                wait_write(1)


def _lines() -> Iterator[dict[str, Any]]:
    """What we are told, a line after the other, to the end of our standard input."""
    rest = b""
    while True:
        wait_read(0)
        got = os.read(0, 1 << 20)
        if not got:
            return
        *lines, rest = (rest + got).split(b"\n")
        for line in lines:
            yield json.loads(line)


def _guarded(hear: Callable[[str, dict[str, Any]], None]) -> Callable[..., None]:
    """A listener whose exceptions end the process: Locust would log them and go on."""

    def heard(environment: Environment, msg: Any) -> None:  # noqa: ARG001 - Locust names them
        _or_end(hear, msg.node_id, msg.data or {})

    return heard


def _or_end(act: Callable[..., None], *arguments: Any) -> None:
    """What a greenlet does; its exception is told, and is the end of this process."""
    try:
        act(*arguments)
    except Exception as error:
        logging.exception("the master of the load ends")
        tell(fatal=f"{type(error).__name__}: {error}")
        os._exit(1)


def main() -> int:
    """The exit code, once nobody needs us any more."""
    setup = json.loads(sys.stdin.buffer.readline())
    os.set_blocking(1, False)
    # Each worker is a connection, and the usual soft limit is 1,024.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    # Locust's own page shows what workers report so often.
    locust.runners.WORKER_REPORT_INTERVAL = 1.0
    try:
        curve.install_server(setup["address"], keys.run_from(setup["keys"]), lambda said: tell(refused=said))
        environment = Environment(user_classes=[], dispatcher_class=FixedUsers)
        runner = environment.create_master_runner()
        server: Any = runner.server
        curve.check(server.socket)
        if setup["web"] is not None:
            web.show(environment, *setup["web"])
        master = Master(runner, server)
    except IngestBenchError as error:
        tell(fatal=str(error))
        return 1
    tell(listening=True)
    master.serve()
    server.close()
    return 0


_TELLING = RLock()

if __name__ == "__main__":
    # Locust's greenlets would keep the interpreter from its end.
    os._exit(main())
