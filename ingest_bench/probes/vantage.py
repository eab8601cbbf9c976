"""From where a JVM is watched: started by us, attached to, or from outside only.

Each vantage watches with the probes of a run, and reads what they left. `VANTAGES` has them by the name that a target's
options say (`TargetOptions.vantage`): a plan has those, so whoever reads a run's files knows how it was watched.
"""

from __future__ import annotations

import functools
import json
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ingest_bench.inputs import records
from ingest_bench.jvm.attach import facts_of
from ingest_bench.jvm.observed import observed
from ingest_bench.model.results import Remark
from ingest_bench.probes import nodestats, oom, recording
from ingest_bench.probes.context import ATTACHED, Attachment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ingest_bench.jvm.attach import Attached
    from ingest_bench.model.results import Measured
    from ingest_bench.model.target import VantageName
    from ingest_bench.probes.context import Events, Probe, ReadContext

# The one that the stats API of a server knows something of.
_TOLD_OUTSIDE = "gc"


class Vantage(Protocol):
    """Watching leaves files below the raw folder of each node; reading turns those of one node into numbers."""

    def watch(self, probes: Mapping[str, Probe], raws: Sequence[Path], limit_s: int) -> AbstractContextManager[None]:
        """These probes watch each node while the block lasts, which is `limit_s` at most."""
        ...

    @staticmethod
    def read(probes: Mapping[str, Probe], context: ReadContext) -> list[Measured]:
        """What these probes saw within the measurement."""
        ...


@dataclass(frozen=True, slots=True)
class Started:
    """We started its JVMs, one a node: their options have the recording and the logs (`probes.jvm_options`)."""

    pids: tuple[int, ...]

    @contextmanager
    def watch(self, probes: Mapping[str, Probe], raws: Sequence[Path], limit_s: int) -> Iterator[None]:  # noqa: ARG002
        """All these probes watch each JVM."""
        with ExitStack() as stack:
            for pid, raw in zip(self.pids, raws, strict=True):
                for probe in probes.values():
                    stack.enter_context(probe.watch(pid, raw))
            yield

    @staticmethod
    def read(probes: Mapping[str, Probe], context: ReadContext) -> list[Measured]:
        """What these probes saw within the measurement."""
        return [measured for probe in probes.values() for measured in probe.read(context)]


@dataclass(frozen=True, slots=True)
class AttachedTo:
    """Its JVM ran before. All probes watch it, and leave what they leave of a JVM of ours."""

    jvm: Attached
    profiles: bool = False
    """Its recording has what the JDK records for profiling, too."""

    @contextmanager
    def watch(self, probes: Mapping[str, Probe], raws: Sequence[Path], limit_s: int) -> Iterator[None]:
        """All these probes watch the JVM; nothing of them stays in it, whatever happens to us.

        InvalidRun when the block takes longer than `limit_s`.
        """
        (raw,) = raws
        events: Events = {}
        for probe in probes.values():
            recording.merge(events, probe.events)
        # Of the JDK whose jcmd asks it: that may be another one than it runs on, and what it does not know is ignored.
        profile = recording.profile(self.jvm.jcmd.parent.parent) if self.profiles else None
        settings = recording.settings_file(raw) if events or self.profiles else None
        if settings is not None:
            settings.write_text(recording.settings(events, profile), encoding="utf-8")
        logs = [*(log for probe in probes.values() for log in probe.logs), oom.EXCEPTIONS]
        said = facts_of(self.jvm)
        with observed(self.jvm, raw, settings=settings, logs=logs, limit_s=limit_s):
            kept = Attachment(
                since_ns=time.time_ns(),
                collector=said.collector,
                stack_depth=said.stack_depth,
                g1_region_bytes=said.g1_region_bytes,
            )
            (raw / ATTACHED).write_text(json.dumps(records.to_json(kept)), encoding="utf-8")
            with Started((self.jvm.pid,)).watch(probes, raws, limit_s):
                yield

    @staticmethod
    def read(probes: Mapping[str, Probe], context: ReadContext) -> list[Measured]:
        """The same as of a JVM of ours."""
        return Started.read(probes, context)


@dataclass(frozen=True, slots=True)
class FromOutside:
    """There is no more than its URL: what can be seen is what it answers to GET /_nodes/stats/jvm."""

    connected: Callable[[], AbstractContextManager[Any]]
    """A connection of its own."""
    ask: Callable[[Any], Any] | None
    """The answer over such a connection; None: the server has no API that tells of its JVM."""

    @contextmanager
    def watch(self, probes: Mapping[str, Probe], raws: Sequence[Path], limit_s: int) -> Iterator[None]:  # noqa: ARG002
        """The server is asked, where there is a probe that it knows something of."""
        (raw,) = raws
        with ExitStack() as stack:
            if self.ask is not None and _TOLD_OUTSIDE in probes:
                ask = functools.partial(self.ask, stack.enter_context(self.connected()))
                stack.enter_context(nodestats.watch(ask, raw))
            yield

    @staticmethod
    def read(probes: Mapping[str, Probe], context: ReadContext) -> list[Measured]:
        """What the server said within the measurement, and a remark for each probe that sees nothing from there."""
        text = "unavailable: only the server's own JVM and machine can tell, and there is no more than its URL"
        found: list[Measured] = []
        for name in probes:
            if name == _TOLD_OUTSIDE:
                found += nodestats.read(context.raw, context.start_ns, context.end_ns)
            else:
                found.append(Remark(probe=name, text=text))
        return found


VANTAGES: Mapping[VantageName, type[Vantage]] = {
    "started": Started,
    "attached": AttachedTo,
    "outside": FromOutside,
}
