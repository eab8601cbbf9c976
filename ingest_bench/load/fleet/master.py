"""Master of a fleet: Locust's MasterRunner in a child process. `python -m ingest_bench.load.fleet.master`.

A process of its own: importing Locust patches the standard library. Commands of its parent (`fleet.roster`) come
as lines of JSON on standard input, its keys in the first one; events go to standard output. It ends with its input.
"""

from __future__ import annotations

import functools
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import locust.log
import locust.runners
from gevent.event import AsyncResult
from gevent.pool import Pool
from locust.env import Environment
from locust.runners import MasterRunner

from ingest_bench.errors import IngestBenchError, RunFailed
from ingest_bench.inputs.records import decode, from_json
from ingest_bench.load.channel import LineChannel, run_child
from ingest_bench.load.fleet import curve
from ingest_bench.load.fleet.keys import RunKeys
from ingest_bench.load.fleet.transfer import receive_file
from ingest_bench.model.samples import ClockOffset
from ingest_bench.model.target import Endpoint

_WATCH_S = 0.2
# The parent gives up a master that is silent for 30 s (`fleet.roster`).
_ALIVE_S = 5.0
_PINGS = 20
# Ping 8 workers at a time: 1,000 workers at 50 ms RTT take 2 min instead of 15, and 8 concurrent pings do not skew each
# other.
_PINGED_WORKERS = 8
_PONG_TIMEOUT_S = 2.0
# For a piece of a file: 0.2 Mbit/s.
_PIECE_TIMEOUT_S = 20.0
# From the last message to the workers until our exit.
_FAREWELL_S = 2.0


class Master:
    """Carries out commands, and reports what workers send and which are lost."""

    def __init__(self, runner: MasterRunner, server: curve.Server, channel: LineChannel) -> None:
        self._runner, self._server, self._channel = runner, server, channel
        self._replies: dict[str, tuple[str, AsyncResult[Any]]] = {}
        """By worker: the kind of the reply that it was asked for last ("pong" or "piece"), and the reply."""
        self._last_heartbeat: dict[str, float] = {}
        self._longest_gap_s: dict[str, float] = {}
        self._joined: set[str] = set()
        handlers: dict[str, Callable[[str, dict[str, Any]], None]] = {
            "hello": self._on_hello,
            "status": self._on_status,
            "observed": self._on_observed,
            "pong": functools.partial(self._on_reply, "pong"),
            "piece": functools.partial(self._on_reply, "piece"),
        }
        for kind, handler in handlers.items():
            runner.register_message(kind, self._wrap_handler(handler))
        server.on_invalid_message = self._expel
        heartbeats: Any = runner.environment.events.heartbeat_sent
        heartbeats.add_listener(self._on_heartbeat)

    def serve(self, lines: Iterator[dict[str, Any]]) -> None:
        """Carry out commands until there are no more."""
        gevent.spawn(self._exit_on_error, self._watch)
        commands: dict[str, Callable[[dict[str, Any]], None]] = {
            "send": self._send,
            "clocks": self._measure_clocks,
            "fetch": self._fetch,
            "release": self._release,
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

    def _on_observed(self, worker: str, data: dict[str, Any]) -> None:
        self._report(observer=worker, **data)

    def _on_reply(self, kind: str, worker: str, data: dict[str, Any]) -> None:
        received_ns = time.monotonic_ns()
        expected_kind, reply = self._replies.get(worker, ("", None))
        if reply is not None and kind == expected_kind:
            reply.set((data, received_ns))

    def _request(
        self, worker: str, kind: str, request: dict[str, Any], reply_kind: str, timeout_s: float
    ) -> tuple[dict[str, Any], int]:
        """Return the reply of a worker to a request, and when it arrived; gevent.Timeout without one."""
        reply: AsyncResult[tuple[dict[str, Any], int]] = AsyncResult()
        self._replies[worker] = reply_kind, reply
        self._runner.send_message(kind, request, worker)
        data, received_ns = reply.get(timeout=timeout_s)
        return data, received_ns

    def _on_heartbeat(self, client_id: str, **_: Any) -> None:
        now = time.monotonic()
        gap_s = now - self._last_heartbeat.get(client_id, now)
        self._last_heartbeat[client_id] = now
        self._longest_gap_s[client_id] = max(self._longest_gap_s.get(client_id, 0.0), gap_s)

    def _send(self, line: dict[str, Any]) -> None:
        if line["kind"] == "plan":
            self._longest_gap_s.pop(line["to"], None)
        self._runner.send_message(line["kind"], line["data"], line["to"])

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
            self._release({"workers": [worker]})
            return None
        round_trip_ns, offset_ns, at_ns = min(pings)
        return {"offset_ns": offset_ns, "round_trip_ns": round_trip_ns, "at_ns": at_ns}

    def _ping(self, worker: str) -> tuple[int, int, int] | None:
        try:
            request = {"asked_ns": time.monotonic_ns()}
            pong, received_ns = self._request(worker, "ping", request, "pong", _PONG_TIMEOUT_S)
        except gevent.Timeout:
            return None
        asked_ns = pong["asked_ns"]
        if asked_ns > received_ns:
            return None
        middle_ns = (asked_ns + received_ns) // 2
        return received_ns - asked_ns, pong["monotonic_ns"] - middle_ns, middle_ns

    def _fetch(self, line: dict[str, Any]) -> None:
        """Transfer the files of one worker to our disk."""
        worker, clock, failure = line["from"], decode(ClockOffset | None, line["clock"]), ""
        try:
            for name, path in line["files"].items():
                request = functools.partial(self._request_piece, worker, name)
                receive_file(Path(path), request, clock, line["sizes"].get(name))
        except RunFailed as error:
            failure = str(error)
        self._report(fetched=worker, error=failure)

    def _request_piece(self, worker: str, name: str, number: int) -> dict[str, Any]:
        try:
            return self._request(worker, "read", {"name": name, "number": number}, "piece", _PIECE_TIMEOUT_S)[0]
        except gevent.Timeout:
            raise RunFailed(f"{name}: no piece of it arrived within {_PIECE_TIMEOUT_S:.0f} s") from None

    def _release(self, line: dict[str, Any]) -> None:
        """Release workers from their load: each ends it, and joins again."""
        for worker in line["workers"]:
            self._runner.send_message("released", {}, worker)
            self._lose(worker)

    def _dismiss(self, kind: str) -> None:
        # Also workers that are joining again.
        for worker in self._server.owners:
            self._runner.send_message(kind, {}, worker)
        limit = time.monotonic() + _FAREWELL_S
        while len(self._runner.clients) and time.monotonic() < limit:
            gevent.sleep(0.02)

    def _watch(self) -> None:
        """Report lost workers, for which Locust has no event, and end if a greenlet of Locust died (only logged)."""
        reported = time.monotonic()
        while True:
            gevent.sleep(_WATCH_S)
            if time.monotonic() - reported > _ALIVE_S:
                reported = time.monotonic()
                self._report(alive=True)
            if getattr(locust.log, "unhandled_greenlet_exception", False):
                raise RunFailed("a greenlet of Locust's master died")
            for worker in [*self._joined]:
                node = self._runner.clients.get(worker)
                if node is None:
                    self._report(worker=worker, phase="lost", error="is lost: it left")
                    self._lose(worker)
                elif node.state == locust.runners.STATE_MISSING:
                    silence_s = time.monotonic() - self._last_heartbeat.get(worker, time.monotonic())
                    self._report(worker=worker, phase="lost", error=f"is lost: no heartbeat for {silence_s:.1f} s")
                    self._release({"workers": [worker]})

    def _lose(self, worker: str) -> None:
        # Locust would start a load for the others once a worker is missing for a minute.
        self._runner.clients.pop(worker, None)
        self._joined.discard(worker)
        for table in (self._last_heartbeat, self._longest_gap_s, self._replies):
            table.pop(worker, None)

    def _wrap_handler(self, handler: Callable[[str, dict[str, Any]], None]) -> Callable[..., None]:
        """Return a Locust listener whose exceptions end the process: Locust would log them and continue."""

        def handle(environment: Environment, msg: Any) -> None:  # noqa: ARG001 - named by Locust
            self._exit_on_error(handler, msg.node_id, msg.data)

        return handle

    def _exit_on_error(self, act: Callable[..., None], *arguments: Any) -> None:
        try:
            act(*arguments)
        except Exception as error:
            logging.exception("the master of the load failed")
            self._report(fatal=f"{type(error).__name__}: {error}")
            self._channel.flush()
            os._exit(1)


def main() -> None:
    """Lead a fleet until there are no more commands."""
    with run_child() as channel:
        lines = channel.lines()
        setup = next(lines)
        # Each worker is a connection, and the usual soft limit is 1,024.
        hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
        try:
            bind, keys = from_json(Endpoint, setup["bind"]), from_json(RunKeys, setup["keys"])
            curve.install_server(bind, keys, lambda line: channel.send({"refused": line}))
            runner = Environment(user_classes=[]).create_master_runner()
            server: Any = runner.server
            curve.require_encrypted(server.socket)
        except IngestBenchError as error:
            channel.send({"fatal": str(error)})
            return
        channel.send({"listening": True})
        Master(runner, server, channel).serve(lines)
        # First: once the socket is closed, Locust's receiving greenlet loops without a pause.
        channel.flush()
        server.close()


if __name__ == "__main__":
    main()
