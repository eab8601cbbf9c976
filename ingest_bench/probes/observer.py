"""Observers: how a JVM is watched. Launched by us, attached, or external (HTTP API only).

Each observer watches with the probes of a run, and reads their files. A plan has the name of its observer
(`TargetOptions.observer`), so that readers of a run's files find the observer in `OBSERVERS`.
"""

from __future__ import annotations

import functools
import json
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ingest_bench.inputs import records
from ingest_bench.jvm.attach import read_facts
from ingest_bench.jvm.observe import observe
from ingest_bench.model.results import Note
from ingest_bench.probes import node_stats, oom, recording
from ingest_bench.probes.context import ATTACHMENT_FILE, Attachment, list_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ingest_bench.jvm.attach import AttachedJvm
    from ingest_bench.model.results import ProbeOutput
    from ingest_bench.model.target import ObserverName
    from ingest_bench.probes.context import Probe, ReadContext

# The only probe that a server's stats API has numbers for.
_EXTERNAL_PROBE = "gc"


class Observer(Protocol):
    """Watching writes files below the raw folder of each node; reading turns those of one node into numbers."""

    def watch(self, probes: Mapping[str, Probe], raws: Sequence[Path], limit_s: int) -> AbstractContextManager[None]:
        """Watch each node with these probes during the block, which takes at most *limit_s*."""
        ...

    @staticmethod
    def read(probes: Mapping[str, Probe], context: ReadContext) -> list[ProbeOutput]:
        """Return the output of these probes within the measurement."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchedObserver:
    """We launched the JVMs, one per node: their options start the recording and the logs (`probes.jvm_options`)."""

    pids: tuple[int, ...]

    @contextmanager
    def watch(self, probes: Mapping[str, Probe], raws: Sequence[Path], limit_s: int) -> Iterator[None]:  # noqa: ARG002
        """Watch each JVM with all probes."""
        with ExitStack() as stack:
            for pid, raw in zip(self.pids, raws, strict=True):
                for probe in probes.values():
                    stack.enter_context(probe.watch(pid, raw))
            yield

    @staticmethod
    def read(probes: Mapping[str, Probe], context: ReadContext) -> list[ProbeOutput]:
        """Return the output of all probes."""
        return [output for probe in probes.values() for output in probe.read(context)]


@dataclass(frozen=True, slots=True)
class AttachedObserver:
    """The JVM ran before. All probes watch it and write the same files as for a launched JVM."""

    jvm: AttachedJvm
    is_profiling: bool = False
    """Record the JDK's profiling events too."""

    @contextmanager
    def watch(self, probes: Mapping[str, Probe], raws: Sequence[Path], limit_s: int) -> Iterator[None]:
        """Watch the JVM with all probes; remove everything from it afterwards, even if this process is killed.

        InvalidRun if the block takes longer than *limit_s*.
        """
        (raw,) = raws
        events = recording.merge_events(probe.events for probe in probes.values())
        # Of the JDK that has jcmd, which may differ from the JVM's; a JVM ignores settings that it does not know.
        profile = recording.profile_path(self.jvm.jcmd.parent.parent) if self.is_profiling else None
        settings = recording.settings_path(raw) if events or self.is_profiling else None
        if settings is not None:
            settings.write_text(recording.format_settings(events, profile), encoding="utf-8")
        logs = [*list_logs(probes), oom.EXCEPTIONS]
        facts = read_facts(self.jvm)
        with observe(self.jvm, raw, settings=settings, logs=logs, limit_s=limit_s):
            attachment = Attachment(
                since_ns=time.time_ns(),
                collector=facts.collector,
                stack_depth=facts.stack_depth,
                g1_region_bytes=facts.g1_region_bytes,
            )
            (raw / ATTACHMENT_FILE).write_text(json.dumps(records.to_json(attachment)), encoding="utf-8")
            with LaunchedObserver((self.jvm.pid,)).watch(probes, raws, limit_s):
                yield

    @staticmethod
    def read(probes: Mapping[str, Probe], context: ReadContext) -> list[ProbeOutput]:
        """Return the output of all probes, as for a launched JVM."""
        return LaunchedObserver.read(probes, context)


@dataclass(frozen=True, slots=True)
class ExternalObserver:
    """Only the server's URL is known: the source is its response to GET /_nodes/stats/jvm."""

    connect: Callable[[], AbstractContextManager[Any]]
    """Opens a separate connection."""
    request_stats: Callable[[Any], Any] | None
    """Returns the response over such a connection; None: the server has no API for JVM stats."""

    @contextmanager
    def watch(self, probes: Mapping[str, Probe], raws: Sequence[Path], limit_s: int) -> Iterator[None]:  # noqa: ARG002
        """Poll the stats API if the probe `gc` is selected."""
        (raw,) = raws
        with ExitStack() as stack:
            if self.request_stats is not None and _EXTERNAL_PROBE in probes:
                request_stats = functools.partial(self.request_stats, stack.enter_context(self.connect()))
                stack.enter_context(node_stats.watch(request_stats, raw))
            yield

    @staticmethod
    def read(probes: Mapping[str, Probe], context: ReadContext) -> list[ProbeOutput]:
        """Return the stats within the measurement, and a note for each probe that has no data."""
        text = "unavailable: the probe runs on the server's host, and only its URL is known"
        outputs: list[ProbeOutput] = []
        for name in probes:
            if name == _EXTERNAL_PROBE:
                outputs += node_stats.read(context.raw, context.start_ns, context.end_ns)
            else:
                outputs.append(Note(source=name, text=text))
        return outputs


OBSERVERS: Mapping[ObserverName, type[Observer]] = {
    "launched": LaunchedObserver,
    "attached": AttachedObserver,
    "external": ExternalObserver,
}
