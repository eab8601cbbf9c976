"""The other machine's side of a load: joins a supervisor, runs one worker for it, passes on what that says."""

from __future__ import annotations

import dataclasses
import selectors
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.load import wire
from ingest_bench.load.plan import from_table
from ingest_bench.load.workers import LocalWorker, start_local

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest_bench.load.wire import Wire
    from ingest_bench.model.target import Endpoint

_TELL_S = 1.0


def join(supervisor: Endpoint, secret: str, folder: Path, *, name: str = "", patience_s: float = 300.0) -> None:
    """One load is done for the supervisor, from joining to its samples' arrival there; RunFailed otherwise.

    The supervisor is waited for, so that the two may be started in any order. Files are kept below `folder`.
    """
    sock = _connected(supervisor, patience_s)
    with sock:
        Agent(wire.introduce(sock, secret, name or socket.gethostname()), folder).run()


class Agent:
    """Serves one connection."""

    def __init__(self, connection: Wire, folder: Path) -> None:
        self._wire = connection
        self._folder = folder
        self._worker: LocalWorker | None = None
        self._collected = False
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Returns after the supervisor has collected everything."""
        orders: dict[str, Callable[[Any], None]] = {
            "ping": self._pong,
            "plan": self._prepare,
            "start_ns": self._begin,
            "collect": self._collect,
        }
        with self._selector:
            self._selector.register(self._wire.sock, selectors.EVENT_READ)
            try:
                while self._serve(orders):
                    pass
            finally:
                if self._worker is not None:
                    self._worker.stop(orderly=False)
        if not self._collected:
            raise RunFailed(f"{self._wire.partner}: ended the load before it was collected")

    def _serve(self, orders: dict[str, Callable[[Any], None]]) -> bool:
        """Whether there is more to do."""
        ready = [key.fileobj for key, _ in self._selector.select(0 if self._wire.has_line else _TELL_S)]
        if self._wire.has_line or self._wire.sock in ready:
            lines = self._wire.read()
            if lines is None:
                return False
            for line in lines:
                for order in orders.keys() & line.keys():
                    orders[order](line[order])
        elif not ready:
            self._wire.send(alive=True)
        if self._worker in ready:
            self._pass_on()
        return True

    def _pong(self, number: int) -> None:
        self._wire.send(pong=number, monotonic_ns=time.monotonic_ns())

    def _prepare(self, table: dict[str, Any]) -> None:
        plan = dataclasses.replace(from_table(table), out=self._folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        if plan.corpus is not None and not Path(plan.corpus).is_file():
            self._wire.send(phase="failed", error=f"{plan.corpus}: this machine does not have this file")
            return
        self._worker = start_local(plan, tuple)
        self._selector.register(self._worker, selectors.EVENT_READ)

    def _begin(self, start_ns: int) -> None:
        if self._worker is not None:
            self._worker.begin(start_ns)

    def _pass_on(self) -> None:
        worker = self._worker
        if worker is None:
            return
        if worker.hear():
            self._wire.send(**worker.said)
            return
        self._selector.unregister(worker)
        if worker.said["phase"] != "done":
            self._wire.send(phase="failed", error=worker.death())

    def _collect(self, _: Any) -> None:
        if self._worker is not None:
            self._worker.stop(orderly=True)
            system.stop(self._worker.popen)
            plan = self._worker.plan
            for path in (*plan.sample_files, plan.report):
                self._wire.send_file(path)
        self._collected = True


def _connected(supervisor: Endpoint, patience_s: float) -> socket.socket:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return socket.create_connection((supervisor.host, supervisor.port), timeout=wire.HANDSHAKE_S)
        except OSError as error:
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"{supervisor}: nobody took us as a worker in {patience_s:.0f} s ({error}); "
                    "is the load started there, with --bind on an address that this machine reaches?"
                ) from None
            time.sleep(0.2)
