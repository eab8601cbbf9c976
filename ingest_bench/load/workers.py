"""A load worker as its supervisor sees it, and the one that is a child of ours."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any, Protocol

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.model.load import WorkerReport
from ingest_bench.records import from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingest_bench.load.plan import LoadPlan

    Enter = Callable[[Sequence[str]], Sequence[str]]

_LOG_TAIL_BYTES = 1500


class Worker(Protocol):
    """One worker. What it said last is in `said`, at least its phase."""

    said: dict[str, Any]

    @property
    def name(self) -> str:
        """What errors call it."""

    def fileno(self) -> int:
        """What becomes readable when it says something."""

    @property
    def is_silent(self) -> bool:
        """Whether it should have said something long ago."""

    def hear(self) -> bool:
        """Whether it can still say something; what it said is in `said`."""

    def begin(self, start_ns: int) -> None:
        """It sends from that moment of our CLOCK_MONOTONIC on."""

    def death(self) -> str:
        """Why it ended before it was done."""

    def stop(self, *, orderly: bool) -> None:
        """It does not send any more. In order: what it has measured is written first."""

    def collect(self) -> WorkerReport | None:
        """Its report, its samples below our `out`; None when it left none."""


class LocalWorker:
    """A child of ours, on our own clock and disk."""

    def __init__(self, plan: LoadPlan, popen: subprocess.Popen[bytes]) -> None:
        self.plan = plan
        self.popen = popen
        self.said: dict[str, Any] = {"phase": "prepare"}
        self._unread = b""

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"load worker {self.plan.worker + 1} of {self.plan.workers}"

    def fileno(self) -> int:
        """Its standard output."""
        assert self.popen.stdout is not None  # noqa: S101 - it was started with one
        return self.popen.stdout.fileno()

    @property
    def is_silent(self) -> bool:
        """Never: when it ends, its output ends."""
        return False

    def hear(self) -> bool:
        """Whether its standard output is still open."""
        got = self.read()
        *lines, self._unread = (self._unread + got).split(b"\n")
        for line in lines:
            try:
                self.said.update(json.loads(line))
            except ValueError:
                continue
        return bool(got)

    def read(self) -> bytes:
        """What it wrote; nothing: it has closed its output."""
        assert self.popen.stdout is not None  # noqa: S101 - it was started with one
        return bytes(self.popen.stdout.read1(65536))  # type: ignore[attr-defined] # as subprocess opens pipes

    def begin(self, start_ns: int) -> None:
        """It hears when to start; one that has ended does not."""
        assert self.popen.stdin is not None  # noqa: S101 - it was started with one
        try:
            self.popen.stdin.write(json.dumps({"start_ns": start_ns}).encode() + b"\n")
            self.popen.stdin.flush()
        except BrokenPipeError:
            return

    def death(self) -> str:
        """What it said itself, or its exit and the end of its log."""
        if "error" in self.said:
            return str(self.said["error"])
        code = self.popen.wait()
        log = self.plan.log.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{self.name} {ended} in phase {self.said['phase']!r}; its log {self.plan.log} says: {log or 'nothing'}"

    def stop(self, *, orderly: bool) -> None:
        """SIGTERM, and SIGKILL after 5 s."""
        if orderly and self.popen.poll() is None and self.said["phase"] != "done":
            self.popen.terminate()
            return
        system.stop(self.popen)
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()

    def collect(self) -> WorkerReport | None:
        """What it wrote at its end, which is waited for."""
        system.stop(self.popen)
        return read_report(self.plan, self.name)


def start_local(plan: LoadPlan, enter: Enter) -> LocalWorker:
    """A worker in the namespace that `enter` enters, preparing."""
    for old in (plan.samples, plan.queries, plan.report):
        old.unlink(missing_ok=True)
    argv = enter(system.python("ingest_bench.load.worker", str(plan.write())))
    with plan.log.open("wb") as log:
        popen = system.start(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=log.fileno())
    return LocalWorker(plan, popen)


def read_report(plan: LoadPlan, name: str) -> WorkerReport | None:
    """The report of one worker; None: it wrote none."""
    try:
        return from_json(WorkerReport, json.loads(plan.report.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunFailed(f"{name}: its report {plan.report} cannot be read ({error})") from None
