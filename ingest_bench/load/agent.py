"""The other machine's side of a load: joins a supervisor, runs one worker a load for it, passes on what that says."""

from __future__ import annotations

import contextlib
import dataclasses
import selectors
import shutil
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.decoding import decoded
from ingest_bench.errors import RunFailed
from ingest_bench.load import wire
from ingest_bench.load.plan import LoadPlan
from ingest_bench.load.workers import LocalWorker, start_local

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest_bench.load.wire import Wire
    from ingest_bench.model.target import Endpoint

_TELL_S = 1.0
# How long a supervisor is waited for, as long as it waits for us (`load.remote`).
_PATIENCE_S = 300.0
_AGAIN_S = 0.2


def join(supervisor: Endpoint, secret: str, folder: Path, tell: Callable[[str], None], *, name: str = "") -> None:
    """All loads of an experiment are sent for the supervisor, each one's samples are there; RunFailed otherwise.

    The supervisor is waited for, so that the two may be started in any order. Files are kept below `folder` until
    they were collected. `tell` gets a line about what is waited for and what is done.
    """
    with _connected(supervisor, tell) as sock:
        Agent(wire.introduce(sock, secret, name or socket.gethostname()), folder, tell).run()


class Agent:
    """Serves one connection."""

    def __init__(self, connection: Wire, folder: Path, tell: Callable[[str], None]) -> None:
        self._wire = connection
        self._folder = folder
        self._tell = tell
        self._worker: LocalWorker | None = None
        self._plan: LoadPlan | None = None
        self._loads = 0
        self._dismissed = False
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Returns when the supervisor says that there are no more loads; RunFailed when it is gone without that."""
        orders: dict[str, Callable[[dict[str, Any]], None]] = {
            "ping": self._pong,
            "load": self._prepare,
            "start_ns": self._begin,
            "collect": self._collect,
            "stop": self._stop,
            "dismissed": self._dismiss,
        }
        with self._selector:
            self._selector.register(self._wire.sock, selectors.EVENT_READ)
            try:
                self._tell(f"joined {self._wire.partner}, waiting for its loads")
                while not self._dismissed and self._serve(orders):
                    pass
            except KeyboardInterrupt:
                with contextlib.suppress(RunFailed):
                    self._wire.send(phase="failed", error="it was interrupted there")
                raise
            finally:
                self._release()
        if not self._dismissed:
            raise RunFailed(f"{self._wire.partner}: is gone, it ended before its experiment did")
        self._tell(f"{self._wire.partner} has no more loads; sent: {self._loads}")

    def _serve(self, orders: dict[str, Callable[[dict[str, Any]], None]]) -> bool:
        """Whether the supervisor is still there."""
        # Without a load there is nothing to say, and nobody who reads it.
        patience_s = 0 if self._wire.has_line else None if self._plan is None else _TELL_S
        ready = [key.fileobj for key, _ in self._selector.select(patience_s)]
        if self._wire.has_line or self._wire.sock in ready:
            lines = self._wire.read()
            if lines is None:
                return False
            for line in lines:
                for order in orders.keys() & line.keys():
                    orders[order](line)
        elif not ready:
            self._wire.send(alive=True)
        if self._worker in ready:
            self._pass_on()
        return True

    def _pong(self, line: dict[str, Any]) -> None:
        self._wire.send(pong=line["ping"], monotonic_ns=time.monotonic_ns())

    def _prepare(self, line: dict[str, Any]) -> None:
        self._release()
        self._loads += 1
        told, files = self._understood(LoadPlan, line["load"]), self._understood(dict[str, int], line.get("files"))
        plan = dataclasses.replace(told, out=self._folder / f"load-{self._loads}")
        plan.out.mkdir(parents=True)
        self._plan = plan
        where = f"{plan.workload.name} to {plan.address}, worker {plan.worker + 1} of {plan.workers}"
        self._tell(f"load {self._loads}: {where}")
        wrong = [said for path, size in files.items() if (said := _unlike(Path(path), size))]
        if wrong:
            self._wire.send(phase="failed", error="; ".join(wrong))
            return
        self._worker = start_local(plan, tuple)
        self._selector.register(self._worker, selectors.EVENT_READ)

    def _begin(self, line: dict[str, Any]) -> None:
        if self._worker is not None:
            self._worker.begin(self._understood(int, line["start_ns"]))

    def _pass_on(self) -> None:
        worker = self._worker
        if worker is None:
            return
        if worker.hear():
            self._wire.send(**worker.said)
            return
        self._unwatch(worker)
        if worker.said["phase"] != "done":
            self._wire.send(phase="failed", error=worker.death())

    def _collect(self, _: dict[str, Any]) -> None:
        if self._worker is not None:
            self._unwatch(self._worker)
            self._worker.stop(orderly=True)
            system.stop(self._worker.popen)
        if self._plan is not None:
            for path in (*self._plan.sample_files, self._plan.report):
                self._wire.send_file(path)
        self._release()

    def _stop(self, _: dict[str, Any]) -> None:
        self._tell(f"load {self._loads}: given up there")
        self._release()

    def _dismiss(self, _: dict[str, Any]) -> None:
        self._dismissed = True

    def _release(self) -> None:
        """No load: its process has ended and its files are gone."""
        if self._worker is not None:
            self._unwatch(self._worker)
            self._worker.stop(orderly=False)
        if self._plan is not None:
            shutil.rmtree(self._plan.out, ignore_errors=True)
        self._worker = self._plan = None

    def _understood(self, hint: Any, value: Any) -> Any:
        """What the supervisor sent, as that type has it; RunFailed when it is something else."""
        try:
            return decoded(hint, value)
        except ValueError as error:
            raise RunFailed(f"{self._wire.partner}: sent a load that cannot be understood: {error}") from None

    def _unwatch(self, worker: LocalWorker) -> None:
        # KeyError: not watched any more, ValueError: nor open.
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(worker)


def _unlike(path: Path, size_bytes: int) -> str:
    """What is wrong with a file that should be as it is at the supervisor's; empty: nothing."""
    if not path.is_file():
        return f"{path}: this machine does not have this file"
    here = path.stat().st_size
    return "" if here == size_bytes else f"{path}: has {here} bytes, but {size_bytes} there; put the same file here"


def _connected(supervisor: Endpoint, tell: Callable[[str], None]) -> socket.socket:
    deadline = time.monotonic() + _PATIENCE_S
    tell(f"waiting for {supervisor}, for {_PATIENCE_S:.0f} s at most")
    while True:
        try:
            return socket.create_connection((supervisor.host, supervisor.port), timeout=wire.HANDSHAKE_S)
        except OSError as error:
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"{supervisor}: nobody took us as a worker in {_PATIENCE_S:.0f} s ({error}); "
                    "is the load started there, with --bind on an address that this machine reaches?"
                ) from None
            time.sleep(_AGAIN_S)
