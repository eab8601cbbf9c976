"""One worker of a fleet, as whoever measures sees it."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import RunFailed
from ingest_bench.inputs.records import from_json
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.values import CONTROL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingest_bench.load.fleet.json_child import JsonChild
    from ingest_bench.load.plan import LoadPlan

# A heartbeat is due every second (locust.runners.HEARTBEAT_INTERVAL); what a busy machine delays is no pause.
_PAUSE_NS = 2_500_000_000
_LONGEST_NAME = 64  # HOST_NAME_MAX of Linux (limits.h)


class Member:
    """A worker at one load. What it said last is in `said`, at least its phase."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.said: dict[str, Any] = {"phase": "prepare"}
        self.id = ""
        """By which the master knows it; empty until it has joined."""
        self.child: JsonChild | None = None
        """None: it is one of somebody else's, on another machine."""
        self.who = ""
        """Of one on another machine, which one."""
        self._lost = ""

    @property
    def name(self) -> str:
        """What errors call it."""
        who = f" ({self.who})" if self.who else ""
        return f"load worker {self.plan.worker + 1} of {self.plan.workers}{who}"

    @property
    def is_over(self) -> bool:
        """Whether it ended before it was done."""
        return self.said["phase"] == "failed" or self.is_lost

    @property
    def is_lost(self) -> bool:
        """Whether nothing will be heard of it any more."""
        return bool(self._lost) or (self.child is not None and self.child.has_ended)

    @property
    def has_sent(self) -> bool:
        """Whether it sends no more: it is done, or has failed."""
        return self.is_over or self.said["phase"] == "done"

    def take(self, line: Mapping[str, Any]) -> None:
        """What the master says about it."""
        if line["phase"] in {"lost", "left"}:
            self._lost = self._lost or str(line["error"])
        # Nothing that it says comes after that: who waits for it would not see it.
        elif self.said["phase"] not in {"failed", "fetched"}:
            self.said.update(line)

    def death(self) -> str:
        """Why it ended before it was done: what it said itself, or how it ended."""
        said, phase = self.said.get("error"), self.said["phase"]
        if self.child is None:
            return f"{self.name}: {said or f'{self._lost} (in phase {phase!r})'}"
        if said or "error" in self.child.last:
            return str(said or f"{self.name}: {self.child.last['error']}")
        if not self.child.has_ended:
            return f"{self.name} {self._lost} in phase {phase!r}"
        log = f"its log {self.plan.log} says: {self.child.log_end()}"
        return f"{self.name} {self.child.death()} in phase {phase!r}; {log}"

    def report(self) -> WorkerReport | None:
        """Its report, with what its heartbeats say; None: it left none."""
        try:
            found = from_json(WorkerReport, json.loads(self.plan.report.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise RunFailed(f"{self.name}: its report {self.plan.report} cannot be read ({error})") from None
        silence_ns = int(self.said.get("longest_silence_ns", 0))
        errors = found.errors
        if silence_ns > _PAUSE_NS:
            errors += (f"{self.name}: was not heard for {silence_ns / 1e9:.1f} s; it should be every second",)
        return dataclasses.replace(found, longest_silence_ns=silence_ns, errors=errors)


def who(line: Mapping[str, Any]) -> str:
    """A worker of another machine, as it joined, as errors call it: its host, from where it joined, and its key."""
    return f"{plain(line['machine'])}, {line['address']}, {line['key']}, pid {line['pid']}"


def plain(text: str) -> str:
    """A name that somebody else gave, as one short line."""
    return re.sub(f"[{CONTROL}]", "?", text)[:_LONGEST_NAME]
