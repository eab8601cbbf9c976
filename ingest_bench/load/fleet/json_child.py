"""A child of ours that is told, and tells, in lines of JSON: the master of a fleet, and a worker on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from typing import IO, TYPE_CHECKING, Any

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.load.fleet import keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingest_bench.load.fleet.keys import RunKeys, WorkerKeys
    from ingest_bench.model.target import Endpoint

_FAREWELL_S = 5.0
_LOG_TAIL_BYTES = 1500


class JsonChild:
    """A process that was told this `setup`. What it prints beside its lines is in the log, which is closed with it."""

    def __init__(self, argv: Sequence[str], setup: Mapping[str, Any], log: IO[bytes]) -> None:
        self._log = log
        self._popen = system.start(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=log.fileno())
        assert self._popen.stdin is not None  # noqa: S101 - it was started with pipes
        assert self._popen.stdout is not None  # noqa: S101 - it was started with pipes
        self._stdin, self.stdout = self._popen.stdin, self._popen.stdout
        self._unread = b""
        self.has_ended = False
        self.last: dict[str, Any] = {}
        """What it said last."""
        self.write(setup)

    @property
    def pid(self) -> int:
        """Of what was started (inside a namespace: what entered it)."""
        return self._popen.pid

    def write(self, line: Mapping[str, Any]) -> bool:
        """Whether it can hear this."""
        try:
            self._stdin.write(json.dumps(line).encode() + b"\n")
            self._stdin.flush()
        except (BrokenPipeError, ValueError):
            return False
        return True

    def read(self) -> list[dict[str, Any]]:
        """What it said, waited for: at least a part of a line, or it has ended."""
        got: bytes = self.stdout.read1(1 << 16)  # type: ignore[attr-defined] # as subprocess opens pipes
        self.has_ended = not got
        *whole, self._unread = (self._unread + got).split(b"\n")
        lines = [json.loads(line) for line in whole]
        self.last = lines[-1] if lines else self.last
        return lines

    def death(self) -> str:
        """How it ended, after its name."""
        code = self._popen.wait()
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def log_end(self) -> str:
        """The end of its log."""
        size_bytes = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), _LOG_TAIL_BYTES, max(0, size_bytes - _LOG_TAIL_BYTES))
        return tail.decode("utf-8", "replace").strip() or "nothing"

    def end(self) -> None:
        """It ends its load in order, and then itself."""
        if self._popen.poll() is None:
            self._popen.terminate()

    def close(self, patience_s: float = 0.0) -> None:
        """It has ended: by itself without its input, in that time, else by SIGTERM, and by SIGKILL after 5 s."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(patience_s)
        system.stop(self._popen)
        self.stdout.close()
        self._log.close()


class MasterProcess:
    """A master that listens there, or will in a moment. RunFailed once it is gone."""

    def __init__(self, address: Mapping[str, Any], run: RunKeys, web: Endpoint | None) -> None:
        shown = None if web is None else [web.host, web.port]
        setup = {"address": dict(address), "keys": keys.table(run), "web": shown}
        # Without a name: nothing is left of it, however we end.
        log = tempfile.TemporaryFile()  # noqa: SIM115 - the child closes it
        self._child = JsonChild(system.python("ingest_bench.load.fleet.master"), setup, log)
        self.stdout = self._child.stdout

    def write(self, line: Mapping[str, Any]) -> None:
        """It hears this."""
        if not self._child.write(line):
            raise RunFailed(f"the master of the load has ended; its log says: {self._child.log_end()}")

    def read(self) -> list[dict[str, Any]]:
        """What it said, at least a part of a line."""
        lines = self._child.read()
        for line in lines:
            if "fatal" in line:
                raise RunFailed(str(line["fatal"]))
        if self._child.has_ended:
            raise RunFailed(f"the master of the load {self._child.death()}; its log says: {self._child.log_end()}")
        return lines

    def close(self) -> None:
        """It has ended: it does so with its input, when the workers have heard their last word."""
        self._child.close(_FAREWELL_S)


def worker_setup(
    address: Mapping[str, Any],
    own: WorkerKeys,
    *,
    patience_s: float,
    seat: int | None = None,
    machine: str = "",
    folder: str = "",
    credentials_to: str | None = None,
    ca_pem: str = "",
    knows_master: bool = False,
) -> dict[str, Any]:
    """What the process of a worker is told (`fleet_worker`). Without a seat it is one of another machine."""
    return {
        "address": dict(address),
        "keys": keys.table(own),
        "patience_s": patience_s,
        "seat": seat,
        "machine": machine,
        "folder": folder,
        "credentials_to": credentials_to,
        "ca_pem": ca_pem,
        "knows_master": knows_master,
    }
