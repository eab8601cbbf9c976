"""Probe `host`: counters of the machine and the server's process from /proc, sampled every 100 ms by `host/proc.py`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.host.proc import ALWAYS, FIELDS, PRESSURE, TICK_NS, VMSTAT, ThreadWait
from ingest_bench.inputs import records
from ingest_bench.model.results import CauseIntervals, Interval, Note, ProbeOutput, Reading, Series
from ingest_bench.probes import recording
from ingest_bench.probes.context import Probe, ReadContext

_FILE, _THREADS, _LOG = "host.jsonl", "host-threads.jsonl", "host.log"
# Above every clock and counter; two such values can still be added in 64 bits.
_LIMIT = 1 << 62
# As causes of stalls.
STOPPED = "server process stopped"
_QUOTA, _STOLEN = "server held back by its CPU quota", "CPU stolen by the hypervisor"
SATURATED = "CPUs saturated"
# Runnable threads per CPU from which none gets enough CPU: a busy server has one to three.
_SATURATED_THREADS = 5
# Sampled ten times a second; an event that has just begun is in the next sample.
_SAMPLE_NS = 120_000_000
# Counters, reported as their increase within the measurement.
_INCREASES = (
    "server_context_switches_voluntary",
    "server_context_switches_involuntary",
    "server_minor_faults",
    "server_major_faults",
    "context_switches",
    *VMSTAT,
)


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean())


def _largest(values: NDArray[np.float64]) -> int:
    return int(values.max())


# Levels, reported as their mean or maximum over samples.
_LEVELS: Mapping[str, tuple[str, Callable[[NDArray[np.float64]], float]]] = {
    "run_queue_mean": ("run_queue", _mean),
    "run_queue_max": ("run_queue", _largest),
    "server_threads_max": ("server_threads", _largest),
    "server_rss_max_bytes": ("server_rss_bytes", _largest),
    "cgroup_sock_mean_bytes": ("cgroup_sock_bytes", _mean),
    "cgroup_sock_max_bytes": ("cgroup_sock_bytes", _largest),
}
# Counters over time.
_RATES = {
    "server_context_switches_per_s": ("server_context_switches_voluntary", "server_context_switches_involuntary"),
    "server_page_faults_per_s": ("server_minor_faults", "server_major_faults"),
    "compact_stall_per_s": ("compact_stall",),
    "numa_pages_migrated_per_s": ("numa_pages_migrated",),
}
# Fractions of the time between two samples that explain a stall.
_QUARTER, _HALF = 0.25, 0.5
# 10 MiB of small pages in 100 ms: copying them takes the kernel some milliseconds.
_MANY_PAGES = 2560
# For the first sample, and for the last one. A busy machine delays one by tenths of a second.
_SAMPLE_LIMIT_S = 30
_NO_CPU, _DISK = "server threads waiting for a CPU", "server threads waiting for a disk"
# The JVM's own threads, by the 15 characters that the kernel keeps: their waits delay no request by themselves.
_JVM_THREAD = re.compile(
    r"(?:C[12] CompilerThre|GC Thread#|G1 |VM |JFR |Sweeper|Service Thread|Monitor |Signal |Finalizer|Reference |"
    r"Common-Cleaner|Notification |ZDriver|ZWorker|ZDirector|Concurrent Mark|Shenandoah).*"
)


@contextmanager
def _watch(server_pid: int, raw: Path) -> Iterator[None]:
    """Write one line of counters every 100 ms, by a child process, from before the load until after it.

    psutil counts switches of the main thread only.
    """
    ending: list[str] = []

    def wait(read_output: Callable[[float], str]) -> None:
        # A server that has ended has no sample.
        try:
            read_output(_SAMPLE_LIMIT_S)
        except RunFailed as error:
            ending.append(f"{error}\n")

    argv = system.build_module_argv("ingest_bench.host.proc", str(server_pid), str(raw / _FILE), str(raw / _THREADS))
    with system.Child(argv, name="host", log=raw / _LOG) as child:
        wait(child.read_line)
        yield
        wait(child.read_until_exit)
        ending.append(f"{child.name}: {child.describe_exit()}\n")
    # A full disk ends the sampling too, and takes no text.
    with suppress(OSError), (raw / _LOG).open("a", encoding="utf-8") as log:
        log.writelines(ending)


def _read(context: ReadContext) -> Iterator[ProbeOutput]:
    """Yield increases of counters within the measurement, means and maxima of the levels of its samples.

    If the samples do not cover the measurement, as of a server that ended, these are unknown; yield the rest.
    """
    table = _load_table(context.raw / _FILE)
    # The load's samples are on CLOCK_REALTIME as it was at the end. Distances are those of CLOCK_MONOTONIC, so that
    # clock changes meanwhile have no effect.
    last_lead_ns = (table["at_ns"] - table["at_monotonic_ns"])[-1:]
    table["at_ns"] = table["at_monotonic_ns"] + last_lead_ns
    # Any other sample is impossible.
    is_later = np.diff(np.maximum.accumulate(table["at_ns"]), prepend=-np.inf) > 0
    table = {name: column[is_later] for name, column in table.items()}
    at_ns = table["at_ns"]
    if at_ns.size < 2:
        yield Note(source="host", text=f"{at_ns.size} samples: see {_LOG} of the run")
        return
    is_covered = at_ns[0] <= context.start_ns and context.end_ns <= at_ns[-1]
    if is_covered:
        yield from _readings(table, context)
    else:
        sampled_ns = max(min(at_ns[-1], context.end_ns) - max(at_ns[0], context.start_ns), 0)
        sampled = f"sampled {sampled_ns / 1e9:.2f} of {(context.end_ns - context.start_ns) / 1e9:.2f} s"
        yield Note(source="host", text=f"{sampled}: numbers of the measurement are unknown, see {_LOG} of the run")
    yield from _series(table)
    yield from machine_causes(table)
    for output in thread_causes(context, int(last_lead_ns[0])):
        if is_covered or not isinstance(output, Reading):
            yield output


def _decode_lines(hint: Any, path: Path) -> Iterator[Any]:
    """Yield the records in a file of JSON lines; skip lines that are cut off or impossible."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError, RecursionError):
            yield records.decode(hint, json.loads(line))


def _load_table(path: Path) -> dict[str, NDArray[np.float64]]:
    """Return the samples by column, without impossible ones."""
    rows = [
        row
        for row in _decode_lines(tuple[int | None, ...], path)
        if len(row) == len(FIELDS) and None not in row[: len(ALWAYS)]
        if all(value is None or 0 <= value < _LIMIT for value in row)
    ]
    # None: the machine has no such counter.
    return {name: np.array([row[index] for row in rows], dtype=float) for index, name in enumerate(FIELDS)}


def _readings(table: Mapping[str, NDArray[np.float64]], context: ReadContext) -> Iterator[Reading]:
    """Yield increases of counters, at a constant rate between two samples, and levels of the samples within."""

    def increase(counter: NDArray[np.float64]) -> float:
        return float(np.diff(np.interp((context.start_ns, context.end_ns), table["at_ns"], counter))[0])

    increases = {name: increase(column) for name, column in table.items()}
    # `FIELDS` that every kernel counts are never NaN.
    user_s, system_s = increases["server_user_ns"] / 1e9, increases["server_system_ns"] / 1e9
    yield Reading("server_cpu_s", user_s + system_s)
    yield Reading("server_cpu_user_s", user_s)
    yield Reading("server_cpu_system_s", system_s)
    for name in _INCREASES:
        yield Reading(name, None if np.isnan(increases[name]) else round(increases[name]))
    busy, steal, idle = (increase(np.cumsum(np.nan_to_num(ticks))) for ticks in _ticks(table))
    total = max(busy + steal + idle, 1)
    yield Reading("cpu_busy_share", busy / total)
    yield Reading("cpu_steal_share", steal / total)
    within = (table["at_ns"] >= context.start_ns) & (table["at_ns"] < context.end_ns)
    for name, (level, summarise) in _LEVELS.items():
        values = table[level][within]
        yield Reading(name, summarise(values) if values.size and not np.isnan(values).any() else None)
    for resource, kind in PRESSURE:
        share = increases[f"pressure_{resource}_{kind}_us"] * 1e3 / increases["at_ns"]
        yield Reading(f"pressure_{resource}_{kind}_share", None if np.isnan(share) else share)


def _series(table: Mapping[str, NDArray[np.float64]]) -> Iterator[Series]:
    """Yield rates between neighbouring samples, at the later one, and levels. Nothing for missing counters."""
    moments = tuple(map(int, table["at_ns"]))
    yield Series("server_cpu_cores", moments[1:], _rates(table, ("server_user_ns", "server_system_ns"), 1))
    yield Series("server_cpu_system_cores", moments[1:], _rates(table, ("server_system_ns",), 1))
    for name, counters in _RATES.items():
        if not any(np.isnan(table[counter]).any() for counter in counters):
            yield Series(name, moments[1:], _rates(table, counters, 1e9))
    for name in ("run_queue", "server_rss_bytes", "cgroup_memory_bytes"):
        if not np.isnan(table[name]).any():
            yield Series(name, moments, tuple(table[name]))


def _rates(table: Mapping[str, NDArray[np.float64]], counters: Sequence[str], unit_ns: float) -> tuple[float, ...]:
    """Return the increase of the sum of *counters* from each sample to the next, per *unit_ns*."""
    totals = np.sum([table[counter] for counter in counters], axis=0)
    return tuple(np.diff(totals) / (np.diff(table["at_ns"]) / unit_ns))


def machine_causes(table: Mapping[str, NDArray[np.float64]]) -> Iterator[CauseIntervals]:
    """Yield causes that may have blocked the server. A level covers the time around it, an increase that before it.

    Causes that this machine does not count are not yielded: they were not searched for.
    """
    at_ns = table["at_ns"]
    steps_ns = np.diff(at_ns, prepend=np.nan)
    half_ns = np.nan_to_num(steps_ns) / 2
    around = at_ns - half_ns, at_ns + np.append(half_ns[1:], 0)
    since = np.concatenate((at_ns[:1], at_ns[:-1])), at_ns
    busy, steal, idle = _ticks(table)
    ticks = busy + steal + idle
    cpus = np.nanmedian(ticks * TICK_NS / steps_ns)

    def waits(resource: str) -> NDArray[np.bool_]:
        return _increase(table, f"pressure_{resource}_full_us") * 1e3 / steps_ns >= _HALF

    # Cause, its time, the counter without which it is not searched for, and the samples that show it.
    with np.errstate(divide="ignore", invalid="ignore"):
        causes = (
            (STOPPED, around, "server_threads_stopped", table["server_threads_stopped"] > 0),
            (_QUOTA, since, "server_throttled_ns", _increase(table, "server_throttled_ns") / steps_ns >= _QUARTER),
            (_STOLEN, since, "cpu_steal_ticks", steal / ticks >= _QUARTER),
            (SATURATED, around, "run_queue", table["run_queue"] >= _SATURATED_THREADS * cpus),
            ("everything waiting for memory", since, "pressure_memory_full_us", waits("memory")),
            ("everything waiting for a disk", since, "pressure_io_full_us", waits("io")),
            ("memory being compacted", since, "compact_stall", _increase(table, "compact_stall") > 0),
            (
                "pages moved between NUMA nodes",
                since,
                "numa_pages_migrated",
                _increase(table, "numa_pages_migrated") >= _MANY_PAGES,
            ),
        )
    for cause, (begins, ends), counter, is_present in causes:
        if np.isnan(table[counter]).all():
            continue
        spans = zip(begins[is_present].tolist(), ends[is_present].tolist(), strict=True)
        yield CauseIntervals(
            cause,
            tuple(Interval(cause, int(begin), int(end)) for begin, end in spans),
            blocks_responses=cause == STOPPED,
            varies_in_strength=cause != STOPPED,
            starves_cpu=cause in (_QUOTA, _STOLEN, SATURATED),
            timing_error_ns=_SAMPLE_NS,
        )


def thread_causes(context: ReadContext, lead_ns: int) -> Iterator[CauseIntervals | Reading]:
    """Yield when a thread of the server waited for a CPU for half of the time, or for a disk, and which one ran most.

    *lead_ns*: of CLOCK_REALTIME over CLOCK_MONOTONIC. Thread names are the flight recorder's if the probe `stalls` ran.
    """
    path = context.raw / _THREADS
    if not path.exists():
        return
    names: Mapping[str, str] = {}
    if recording.recording_files(context.raw)[0]:
        names = recording.load_recording(context).content.get("stalls", {}).get("threads", {})
    spans: dict[str, list[Interval]] = {_NO_CPU: [], _DISK: []}
    ran_ns = Counter[tuple[int, str]]()
    for wait in _decode_lines(ThreadWait, path):
        since_ns, at_ns = wait.since_ns + lead_ns, wait.at_ns + lead_ns
        if at_ns <= since_ns or _JVM_THREAD.fullmatch(wait.name):
            continue
        thread = names.get(str(wait.thread), wait.name)
        if context.covers(at_ns):
            ran_ns[wait.thread, thread] += wait.ran_ns
        if wait.waited_ns >= _HALF * (at_ns - since_ns):
            # A wait longer than the sample interval had begun before the previous sample.
            spans[_NO_CPU].append(Interval(_NO_CPU, min(since_ns, at_ns - wait.waited_ns), at_ns, thread))
        if wait.state == "D":
            spans[_DISK].append(Interval(_DISK, (since_ns + at_ns) // 2, at_ns, thread))
    for (_, thread), busiest_ns in ran_ns.most_common(1):
        yield Reading("server_thread_busiest", thread)
        yield Reading("server_thread_cpu_share", busiest_ns / (context.end_ns - context.start_ns))
    for cause, intervals in spans.items():
        ordered = sorted(intervals, key=lambda interval: (interval.thread, interval.start_ns))
        yield CauseIntervals(cause, tuple(ordered), varies_in_strength=True, timing_error_ns=_SAMPLE_NS)


def _ticks(table: Mapping[str, NDArray[np.float64]]) -> Iterator[NDArray[np.float64]]:
    """Yield busy, stolen and idle ticks of all CPUs since the previous sample. A counter that fell counts as 0."""
    for state in ("busy", "steal", "idle"):
        yield np.maximum(_increase(table, f"cpu_{state}_ticks"), 0)


def _increase(table: Mapping[str, NDArray[np.float64]], name: str) -> NDArray[np.float64]:
    return np.diff(table[name], prepend=np.nan)


HOST = Probe(watch=_watch, read=_read)
