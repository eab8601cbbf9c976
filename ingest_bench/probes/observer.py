"""Observers: how a JVM is watched. Launched by us, attached, remote, over JMX, or external (HTTP API only).

Each observer watches with the probes of a run, and writes files below the raw folder of each node. A plan has the name
of its observer (`TargetOptions.observer`), which decides how the files are read.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest_bench.inputs import records
from ingest_bench.jvm.attach import read_facts
from ingest_bench.jvm.observe import RECORDING, observe
from ingest_bench.model.results import CauseIntervals, Note, Series
from ingest_bench.model.samples import ClockOffset
from ingest_bench.probes import node_stats, oom, recording
from ingest_bench.probes.context import ATTACHMENT_FILE, Attachment, list_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ingest_bench.jvm.attach import AttachedJvm
    from ingest_bench.jvm.jmx import JmxJvm
    from ingest_bench.model.results import ProbeOutput
    from ingest_bench.model.target import ObserverName
    from ingest_bench.probes.context import Probe, ReadContext

    Watch = Callable[[Mapping[str, Probe], Sequence[Path], int], AbstractContextManager[None]]
    """Watch with these probes into the raw folder of each node, during a block of at most that many seconds."""

# The only probe that a server's stats API has numbers for.
_EXTERNAL_PROBE = "gc"
_OUR_CLOCK = ClockOffset(worker=0)


@contextmanager
def watch_launched(
    pids: Sequence[int], probes: Mapping[str, Probe], raws: Sequence[Path], _limit_s: int = 0
) -> Iterator[None]:
    """Watch JVMs that we launched, one per node: their options start the recording and the logs (`jvm_options`)."""
    with ExitStack() as stack:
        for pid, raw in zip(pids, raws, strict=True):
            for probe in probes.values():
                stack.enter_context(probe.watch(pid, raw))
        yield


@contextmanager
def watch_attached(
    jvms: Sequence[AttachedJvm],
    probes: Mapping[str, Probe],
    raws: Sequence[Path],
    limit_s: int,
    *,
    is_profiling: bool = False,
) -> Iterator[None]:
    """Watch JVMs that ran before, one per node. The probes write the same files as for launched JVMs.

    Afterwards everything is removed from each JVM, even if this process is killed or one of them cannot be watched.
    *is_profiling*: record the JDK's profiling events too. InvalidRun if the block takes longer than *limit_s*.
    """
    with ExitStack() as stack:
        for jvm, raw in zip(jvms, raws, strict=True):
            stack.enter_context(_watch_attached(jvm, probes, raw, limit_s, is_profiling=is_profiling))
        yield


@contextmanager
def _watch_attached(
    jvm: AttachedJvm, probes: Mapping[str, Probe], raw: Path, limit_s: int, *, is_profiling: bool
) -> Iterator[None]:
    events = recording.merge_events(probe.events for probe in probes.values())
    # Of the JDK that has jcmd, which may differ from the JVM's; a JVM ignores settings that it does not know.
    profile = recording.profile_path(jvm.jcmd.parent.parent) if is_profiling else None
    settings = recording.settings_path(raw) if events or is_profiling else None
    if settings is not None:
        settings.write_text(recording.format_settings(events, profile), encoding="utf-8")
    logs = [*list_logs(probes), oom.EXCEPTIONS]
    facts = read_facts(jvm)
    with observe(jvm, raw, settings=settings, logs=logs, limit_s=limit_s):
        attachment = Attachment(
            since_ns=time.time_ns(),
            collector=facts.collector,
            stack_depth=facts.stack_depth,
            g1_region_bytes=facts.g1_region_bytes,
        )
        (raw / ATTACHMENT_FILE).write_text(json.dumps(records.to_json(attachment)), encoding="utf-8")
        with watch_launched((jvm.pid,), probes, (raw,)):
            yield
    for log in logs:
        # `observe` leaves out a log without a line: there was no collection, which is known.
        (raw / log.name).touch()


@contextmanager
def watch_jmx(
    jvms: Sequence[JmxJvm], probes: Mapping[str, Probe], raws: Sequence[Path], limit_s: int
) -> Iterator[None]:
    """Record JVMs over JMX, one per node. Their logs, and counters of their machines, cannot be had this way."""
    settings = recording.format_settings(recording.merge_events(probe.events for probe in probes.values()))
    with ExitStack() as stack:
        for jvm, raw in zip(jvms, raws, strict=True):
            path = recording.settings_path(raw)
            path.write_text(settings, encoding="utf-8")
            stack.enter_context(jvm.record(path, raw / RECORDING, limit_s))
            attachment = Attachment(
                # Nothing in the recording is older than itself. Its clock is known after the run.
                since_ns=1,
                collector=jvm.facts.collector,
                stack_depth=jvm.facts.stack_depth,
                g1_region_bytes=jvm.facts.g1_region_bytes,
            )
            (raw / ATTACHMENT_FILE).write_text(json.dumps(records.to_json(attachment)), encoding="utf-8")
        yield


@contextmanager
def watch_external(
    connect: Callable[[], AbstractContextManager[Any]],
    request_stats: Callable[[Any], Any] | None,
    probes: Mapping[str, Probe],
    raws: Sequence[Path],
    _limit_s: int = 0,
) -> Iterator[None]:
    """Poll GET /_nodes/stats/jvm over a separate connection if the probe `gc` is selected.

    *request_stats* returns the response; None: the server has no API for JVM stats.
    """
    (raw,) = raws
    with ExitStack() as stack:
        if request_stats is not None and _EXTERNAL_PROBE in probes:
            request = functools.partial(request_stats, stack.enter_context(connect()))
            stack.enter_context(node_stats.watch(request, raw))
        yield


def read_outputs(
    observer: ObserverName, probes: Mapping[str, Probe], context: ReadContext, clock: ClockOffset = _OUR_CLOCK
) -> Iterator[ProbeOutput]:
    """Yield the output of the probes; of an external server only its stats, and a note for each other probe.

    The raw files have times of *clock*, the context and the output those of our clock.
    """
    start_ns, end_ns = clock.to_theirs(context.start_ns), clock.to_theirs(context.end_ns)
    context = dataclasses.replace(context, start_ns=start_ns, end_ns=end_ns)
    for item in _read_outputs(observer, probes, context):
        yield _to_our_clock(item, clock)


def _to_our_clock(item: ProbeOutput, clock: ClockOffset) -> ProbeOutput:
    def convert(times_ns: Iterable[int]) -> Iterable[int]:
        return map(int, clock.to_ours(np.array(tuple(times_ns), dtype=np.int64)))

    match item:
        case Series():
            return dataclasses.replace(item, at_ns=tuple(convert(item.at_ns)))
        case CauseIntervals():
            starts = convert(interval.start_ns for interval in item.intervals)
            ends = convert(interval.end_ns for interval in item.intervals)
            spans = zip(item.intervals, starts, ends, strict=True)
            moved = (dataclasses.replace(interval, start_ns=start, end_ns=end) for interval, start, end in spans)
            return dataclasses.replace(item, intervals=tuple(moved))
    return item


def _read_outputs(observer: ObserverName, probes: Mapping[str, Probe], context: ReadContext) -> Iterator[ProbeOutput]:
    for name, probe in probes.items():
        if observer == "jmx" and not probe.events:
            yield Note(source=name, text="unavailable: the probe runs on the server's host, and only its JMX is known")
        elif observer != "external":
            yield from probe.read(context)
        elif name == _EXTERNAL_PROBE:
            yield from node_stats.read(context.raw, context.start_ns, context.end_ns)
        else:
            text = "unavailable: the probe runs on the server's host, and only its URL is known"
            yield Note(source=name, text=text)
