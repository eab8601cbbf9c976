"""Probe `host`: counters of the machine and the server's process from /proc, sampled every 100 ms by `proc.py`."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ingest_bench import system
from ingest_bench.inputs import records
from ingest_bench.model.results import CauseIntervals, Interval, Note, ProbeOutput, Reading, Series
from ingest_bench.probes import recording
from ingest_bench.probes.proc import ALWAYS, FIELDS, TICK_NS, read_waits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from ingest_bench.jvm.options import Log
    from ingest_bench.probes.context import Events, ReadContext

_FILE, _THREADS = "host.jsonl", "host-threads.jsonl"
# Older samples lack `at_monotonic_ns`.
_MIN_FIELDS = FIELDS.index("at_monotonic_ns")
_ALWAYS = [FIELDS.index(name) for name in ALWAYS]
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
# Counters, reported as their increase within the measurement. The other `FIELDS` are levels.
_INCREASES = {
    "server_context_switches_voluntary": "server_voluntary_switches",
    "server_context_switches_involuntary": "server_involuntary_switches",
    "server_minor_faults": "server_minor_faults",
    "server_major_faults": "server_major_faults",
    "context_switches": "context_switches",
    "thp_fault_alloc": "thp_fault_alloc",
    "thp_fault_fallback": "thp_fault_fallback",
    "thp_collapse_alloc": "thp_collapse_alloc",
    "thp_split_page": "thp_split_page",
    "compact_stall": "compact_stall",
    "compact_fail": "compact_fail",
    "compact_success": "compact_success",
    "numa_pages_migrated": "numa_pages_migrated",
    "pgmajfault": "pgmajfault",
    "allocstall": "allocstall",
}
# Counters over time.
_RATES = {
    "server_context_switches_per_s": ("server_voluntary_switches", "server_involuntary_switches"),
    "server_page_faults_per_s": ("server_minor_faults", "server_major_faults"),
    "compact_stall_per_s": ("compact_stall",),
    "numa_pages_migrated_per_s": ("numa_pages_migrated",),
}
# Fractions of the time between two samples that explain a stall.
_QUARTER, _HALF = 0.25, 0.5
# 10 MiB of small pages in 100 ms: copying them takes the kernel some milliseconds.
_MANY_PAGES = 2560
_NO_CPU, _DISK = "server threads waiting for a CPU", "server threads waiting for a disk"
# The JVM's own threads, by the 15 characters that the kernel keeps: their waits delay no request by themselves.
_JVM_THREAD = re.compile(
    r"(?:C[12] CompilerThre|GC Thread#|G1 |VM |JFR |Sweeper|Service Thread|Monitor |Signal |Finalizer|Reference |"
    r"Common-Cleaner|Notification |ZDriver|ZWorker|ZDirector|Concurrent Mark|Shenandoah).*"
)
_PRESSURE = ("cpu_some", "io_some", "io_full", "memory_some", "memory_full")


class Host:
    """Write one line of counters every 100 ms, by a child process. psutil counts switches of the main thread only."""

    events: Events = {}  # noqa: RUF012 - the Protocol asks for a plain attribute
    logs: tuple[Log, ...] = ()

    @contextmanager
    def watch(self, server_pid: int, raw: Path) -> Iterator[None]:
        """Sample until the block ends."""
        argv = system.build_module_argv(
            "ingest_bench.probes.proc", str(server_pid), str(raw / _FILE), str(raw / _THREADS)
        )
        child = system.start(argv, stdout=raw / "host.log")
        try:
            yield
        finally:
            system.stop(child)

    def read(self, context: ReadContext) -> Iterator[ProbeOutput]:
        """Yield increases of counters, means and maxima of levels, from the first to the last sample within."""
        table = _load_table(context.raw / _FILE)
        recorded_ns = table.get("at_ns", np.empty(0))
        table["at_ns"] = at_ns = _correct_times(table) if table else recorded_ns
        within = (at_ns >= context.start_ns) & (at_ns < context.end_ns)
        samples = int(_is_later(at_ns[within]).sum())
        if samples < 2:
            yield Note(source="host", text=f"{samples} samples within the measurement: see host.log of the run")
            return
        yield from _readings({name: column[within] for name, column in table.items()})
        yield from _series(table)
        yield from machine_causes(table)
        yield from thread_causes(context, dict(zip(recorded_ns.tolist(), at_ns.tolist(), strict=True)))


def _load_table(path: Path) -> dict[str, NDArray[np.float64]]:
    """Return the samples by column. Skip lines that are cut off or impossible."""
    if not path.exists():
        return {}
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row: tuple[int | None, ...] = records.decode(tuple[int | None, ...], json.loads(line))
        except (ValueError, RecursionError):
            continue
        if not _MIN_FIELDS <= len(row) <= len(FIELDS) or any(row[index] is None for index in _ALWAYS):
            continue
        if all(value is None or 0 <= value < _LIMIT for value in row):
            rows.append(row + (None,) * (len(FIELDS) - len(row)))
    # None: the machine has no such counter.
    return {name: np.array([row[index] for row in rows], dtype=float) for index, name in enumerate(FIELDS)}


def _correct_times(table: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the time of each sample on CLOCK_REALTIME as it was at the last one, like the load's samples.

    Distances are those of CLOCK_MONOTONIC, so clock changes meanwhile have no effect. Samples without CLOCK_MONOTONIC
    keep their recorded time.
    """
    at_ns, at_monotonic_ns = table["at_ns"], table["at_monotonic_ns"]
    if not len(at_ns) or np.isnan(at_monotonic_ns).any():
        return at_ns
    corrected_ns: NDArray[np.float64] = at_monotonic_ns + (at_ns[-1] - at_monotonic_ns[-1])
    return corrected_ns


def _is_later(at_ns: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for each sample if it is later than all before it.

    False only for samples without CLOCK_MONOTONIC after the clock was set back.
    """
    latest = np.maximum.accumulate(at_ns)
    return np.concatenate((np.ones(min(1, len(at_ns)), dtype=bool), np.diff(latest) > 0))


def _readings(samples: Mapping[str, NDArray[np.float64]]) -> Iterator[Reading]:
    is_later = _is_later(samples["at_ns"])[1:]
    increases = {name: float(samples[name][-1] - samples[name][0]) for name in FIELDS}
    # `FIELDS` that every kernel counts are never NaN.
    user_s, system_s = increases["server_user_ns"] / 1e9, increases["server_system_ns"] / 1e9
    yield Reading("server_cpu_s", user_s + system_s)
    yield Reading("server_cpu_user_s", user_s)
    yield Reading("server_cpu_system_s", system_s)
    for name, column in _INCREASES.items():
        yield Reading(name, None if np.isnan(increases[column]) else round(increases[column]))
    busy, steal, idle = (float(ticks[1:].sum()) for ticks in _ticks(samples))
    total = max(busy + steal + idle, 1)
    yield Reading("cpu_busy_share", busy / total)
    yield Reading("cpu_steal_share", steal / total)
    yield Reading("run_queue_mean", float(samples["run_queue"].mean()))
    yield Reading("run_queue_max", int(samples["run_queue"].max()))
    yield Reading("server_threads_max", int(samples["server_threads"].max()))
    yield Reading("server_rss_max_bytes", int(samples["server_rss_bytes"].max()))
    elapsed_ns = np.diff(samples["at_ns"])[is_later].sum()
    for name in _PRESSURE:
        stalled_us = np.diff(samples[f"pressure_{name}_us"])[is_later].sum()
        yield Reading(f"pressure_{name}_share", None if np.isnan(stalled_us) else float(stalled_us * 1e3 / elapsed_ns))


def _series(table: Mapping[str, NDArray[np.float64]]) -> Iterator[Series]:
    """Yield rates between neighbouring samples, at the later one, and the run queue. Nothing for missing counters."""
    at_ns = table["at_ns"].astype(np.int64)
    is_later = _is_later(table["at_ns"])
    moments = tuple(int(at) for at in at_ns[1:][is_later[1:]])
    yield Series("server_cpu_cores", moments, _rates(table, ("server_user_ns", "server_system_ns"), 1))
    yield Series("server_cpu_system_cores", moments, _rates(table, ("server_system_ns",), 1))
    for name, counters in _RATES.items():
        if not any(np.isnan(table[counter]).any() for counter in counters):
            yield Series(name, moments, _rates(table, counters, 1e9))
    yield Series("run_queue", tuple(int(at) for at in at_ns[is_later]), tuple(table["run_queue"][is_later]))


def _rates(table: Mapping[str, NDArray[np.float64]], counters: Sequence[str], unit_ns: float) -> tuple[float, ...]:
    """Return the increase of the sum of *counters* from each sample to the next later one, per *unit_ns*."""
    is_later = _is_later(table["at_ns"])[1:]
    steps: NDArray[np.float64] = np.diff(table["at_ns"])[is_later] / unit_ns
    increases = np.diff(sum((table[counter] for counter in counters), np.zeros(len(is_later) + 1)))[is_later]
    return tuple(increases / steps)


def machine_causes(table: Mapping[str, NDArray[np.float64]]) -> Iterator[CauseIntervals]:
    """Yield causes that may have blocked the server. A level covers the time around it, an increase that before it.

    Causes that this machine does not count are not yielded: they were not searched for.
    """
    at_ns, is_later = table["at_ns"], _is_later(table["at_ns"])
    steps_ns = np.where(is_later, np.diff(at_ns, prepend=np.nan), np.nan)
    half_ns = np.nan_to_num(steps_ns) / 2
    around = at_ns - half_ns, at_ns + np.append(half_ns[1:], 0)
    since = np.concatenate((at_ns[:1], at_ns[:-1])), at_ns
    busy, steal, idle = _ticks(table)
    ticks = busy + steal + idle
    with np.errstate(divide="ignore", invalid="ignore"):
        cpus = np.nanmedian(ticks * TICK_NS / steps_ns) if is_later.sum() > 1 else np.nan
        steps_us = steps_ns / 1e3
        causes = {
            STOPPED: (around, table["server_threads_stopped"] > 0),
            _QUOTA: (since, _increase(table, "server_throttled_ns") / steps_ns >= _QUARTER),
            _STOLEN: (since, steal / ticks >= _QUARTER),
            SATURATED: (around, table["run_queue"] >= _SATURATED_THREADS * cpus),
            "everything waiting for memory": (since, _increase(table, "pressure_memory_full_us") / steps_us >= _HALF),
            "everything waiting for a disk": (since, _increase(table, "pressure_io_full_us") / steps_us >= _HALF),
            "memory being compacted": (since, _increase(table, "compact_stall") > 0),
            "pages moved between NUMA nodes": (since, _increase(table, "numa_pages_migrated") >= _MANY_PAGES),
        }
    optional_counters = {
        _QUOTA: "server_throttled_ns",
        "everything waiting for memory": "pressure_memory_full_us",
        "everything waiting for a disk": "pressure_io_full_us",
        "memory being compacted": "compact_stall",
        "pages moved between NUMA nodes": "numa_pages_migrated",
    }
    for cause, ((begins, ends), is_present) in causes.items():
        if cause in optional_counters and np.isnan(table[optional_counters[cause]]).all():
            continue
        selected = is_present & is_later
        spans = zip(begins[selected].tolist(), ends[selected].tolist(), strict=True)
        yield CauseIntervals(
            cause,
            tuple(Interval(cause, int(begin), int(end)) for begin, end in spans),
            blocks_responses=cause == STOPPED,
            varies_in_strength=cause != STOPPED,
            starves_cpu=cause in (_QUOTA, _STOLEN, SATURATED),
            timing_error_ns=_SAMPLE_NS,
        )


def thread_causes(context: ReadContext, times: Mapping[float, float]) -> Iterator[CauseIntervals]:
    """Yield when a thread of the server waited for a CPU for half of the time, or for a disk.

    *times* maps each sample's recorded time to its corrected one. Thread names are the flight recorder's if the probe
    `stalls` ran.
    """
    path = context.raw / _THREADS
    if not path.exists():
        return
    names: Mapping[str, str] = {}
    if recording.recording_files(context.raw)[0]:
        names = recording.load_recording(context).content.get("stalls", {}).get("threads", {})
    spans: dict[str, list[Interval]] = {_NO_CPU: [], _DISK: []}
    for wait in read_waits(path):
        since_ns, at_ns = (int(times.get(float(at), at)) for at in (wait.since_ns, wait.at_ns))
        # The clock was set back meanwhile, by an unknown amount.
        if at_ns <= since_ns or _JVM_THREAD.fullmatch(wait.name):
            continue
        thread = names.get(str(wait.thread), wait.name)
        if wait.waited_ns >= _HALF * (at_ns - since_ns):
            # A wait longer than the sample interval had begun before the previous sample.
            spans[_NO_CPU].append(Interval(_NO_CPU, min(since_ns, at_ns - wait.waited_ns), at_ns, thread))
        if wait.state == "D":
            spans[_DISK].append(Interval(_DISK, (since_ns + at_ns) // 2, at_ns, thread))
    for cause, intervals in spans.items():
        yield CauseIntervals(cause, tuple(_merge_spans(intervals)), varies_in_strength=True, timing_error_ns=_SAMPLE_NS)


def _merge_spans(spans: list[Interval]) -> Iterator[Interval]:
    """Yield the spans; those of one thread that overlap or touch are merged."""
    ordered = sorted(spans, key=lambda span: (span.thread, span.start_ns))
    for _, of_thread in itertools.groupby(ordered, key=lambda span: span.thread):
        first, *later = of_thread
        for span in later:
            if span.start_ns <= first.end_ns:
                first = replace(first, end_ns=max(first.end_ns, span.end_ns))
            else:
                yield first
                first = span
        yield first


def _ticks(table: Mapping[str, NDArray[np.float64]]) -> Iterator[NDArray[np.float64]]:
    """Yield busy, stolen and idle ticks of all CPUs since the previous sample. A counter that fell counts as 0."""
    for state in ("busy", "steal", "idle"):
        yield np.maximum(_increase(table, f"cpu_{state}_ticks"), 0)


def _increase(table: Mapping[str, NDArray[np.float64]], name: str) -> NDArray[np.float64]:
    return np.diff(table[name], prepend=np.nan)


HOST = Host()
