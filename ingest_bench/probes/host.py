"""Probe `host`: what the machine and the server's process did, every 100 ms, seen from /proc by a child process."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ingest_bench import system
from ingest_bench.inputs import decoding
from ingest_bench.model.results import Interval, Measured, Reading, Remark, Series, Watched
from ingest_bench.probes import recording, threads
from ingest_bench.probes.proc import ALWAYS, FIELDS, TICK_NS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from ingest_bench.jvm.logs import Log
    from ingest_bench.probes.context import Events, ReadContext

_FILE, _THREADS = "host.jsonl", "host-threads.jsonl"
# Before samples had `at_monotonic_ns`.
_FEWEST_FIELDS = FIELDS.index("at_monotonic_ns")
_ALWAYS = [FIELDS.index(name) for name in ALWAYS]
# More than all clocks and counters have, and a moment can still be moved by one of them in 64 bits.
_BEYOND = 1 << 62
# As causes of stalls.
STOPPED = "server process stopped"
_QUOTA, _STOLEN = "server held back by its CPU quota", "CPU stolen by the hypervisor"
SATURATED = "CPUs saturated"
# For each CPU so many threads run or wait for it, where none has enough of it: a busy server has one to three.
_MANY_THREADS = 5
# The machine is looked at ten times a second, and what has only begun is not seen yet.
_LOOK_NS = 120_000_000
# Counters: what they grew by within the measurement. The rest of `FIELDS` are levels.
_GROWTH = {
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
# Of the time between two samples: what explains that nothing went on.
_HELD, _HALF = 0.25, 0.5
# 10 MiB of small pages in a tenth of a second: to copy so much takes the kernel some milliseconds.
_MANY_PAGES = 2560
_NO_CPU, _DISK = "server threads waiting for a CPU", "server threads waiting for a disk"
# The JVM's own threads, by the 15 letters that the kernel keeps: what they wait for delays no request by itself.
_JVM_OWN = re.compile(
    r"(?:C[12] CompilerThre|GC Thread#|G1 |VM |JFR |Sweeper|Service Thread|Monitor |Signal |Finalizer|Reference |"
    r"Common-Cleaner|Notification |ZDriver|ZWorker|ZDirector|Concurrent Mark|Shenandoah).*"
)
_PRESSURE = ("cpu_some", "io_some", "io_full", "memory_some", "memory_full")


class Host:
    """A child process that writes one line of counters each 100 ms: psutil's own count sees only the main thread."""

    events: Events = {}  # noqa: RUF012 - the Protocol asks for a plain attribute
    logs: tuple[Log, ...] = ()

    @contextmanager
    def watch(self, server_pid: int, raw: Path) -> Iterator[None]:
        """The child samples as long as this stands."""
        argv = system.python("ingest_bench.probes.proc", str(server_pid), str(raw / _FILE), str(raw / _THREADS))
        child = system.start(argv, stdout=raw / "host.log")
        try:
            yield
        finally:
            system.stop(child)

    def read(self, context: ReadContext) -> Iterator[Measured]:
        """Growth of counters, means and maxima of levels, from the first to the last sample of the measurement."""
        table = _table(context.raw / _FILE)
        noted_ns = table.get("at_ns", np.empty(0))
        table["at_ns"] = at_ns = _moments(table) if table else noted_ns
        within = (at_ns >= context.start_ns) & (at_ns < context.end_ns)
        moments = int(_ordered(at_ns[within]).sum())
        if moments < 2:
            yield Remark(probe="host", text=f"{moments} samples within the measurement: see host.log of the run")
            return
        yield from _readings({name: column[within] for name, column in table.items()})
        yield from _series(table)
        yield from watched(table)
        yield from waits(context, dict(zip(noted_ns.tolist(), at_ns.tolist(), strict=True)))


def _table(path: Path) -> dict[str, NDArray[np.float64]]:
    """The samples by column. A line that was cut off by a kill, or cannot be one, is left out."""
    if not path.exists():
        return {}
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row: tuple[int | None, ...] = decoding.decoded(tuple[int | None, ...], json.loads(line))
        except (ValueError, RecursionError):
            continue
        if not _FEWEST_FIELDS <= len(row) <= len(FIELDS) or any(row[index] is None for index in _ALWAYS):
            continue
        if all(value is None or 0 <= value < _BEYOND for value in row):
            rows.append(row + (None,) * (len(FIELDS) - len(row)))
    # None: the machine has no such counter.
    return {name: np.array([row[index] for row in rows], dtype=float) for index, name in enumerate(FIELDS)}


def _moments(table: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """When each sample was taken, on the clock of the last one: the load's samples are on that of its end.

    However the clock was set meanwhile, they lie as far apart as they did. Samples without CLOCK_MONOTONIC stay where
    the clock was.
    """
    at_ns, at_monotonic_ns = table["at_ns"], table["at_monotonic_ns"]
    if not len(at_ns) or np.isnan(at_monotonic_ns).any():
        return at_ns
    moments: NDArray[np.float64] = at_monotonic_ns + (at_ns[-1] - at_monotonic_ns[-1])
    return moments


def _ordered(at_ns: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which samples are later than all before them.

    Those are all, but where samples have no CLOCK_MONOTONIC and the clock was set back.
    """
    latest = np.maximum.accumulate(at_ns)
    return np.concatenate((np.ones(min(1, len(at_ns)), dtype=bool), np.diff(latest) > 0))


def _readings(samples: Mapping[str, NDArray[np.float64]]) -> Iterator[Reading]:
    ordered = _ordered(samples["at_ns"])[1:]

    def growth(name: str) -> float | None:
        value = float(samples[name][-1] - samples[name][0])
        return None if np.isnan(value) else value

    def seconds(name: str) -> float | None:
        value = growth(name)
        return None if value is None else value / 1e9

    user_s, system_s = seconds("server_user_ns"), seconds("server_system_ns")
    yield Reading("server_cpu_s", None if user_s is None or system_s is None else user_s + system_s)
    yield Reading("server_cpu_user_s", user_s)
    yield Reading("server_cpu_system_s", system_s)
    for name, column in _GROWTH.items():
        value = growth(column)
        yield Reading(name, None if value is None else round(value))
    busy, steal, idle = (float(ticks[1:].sum()) for ticks in _ticks(samples))
    whole = max(busy + steal + idle, 1)
    yield Reading("cpu_busy_share", None if np.isnan(whole) else busy / whole)
    yield Reading("cpu_steal_share", None if np.isnan(whole) else steal / whole)
    yield Reading("run_queue_mean", float(samples["run_queue"].mean()))
    yield Reading("run_queue_max", int(samples["run_queue"].max()))
    yield Reading("server_threads_max", int(samples["server_threads"].max()))
    yield Reading("server_rss_max_bytes", int(samples["server_rss_bytes"].max()))
    steps_ns = np.diff(samples["at_ns"])[ordered].sum()
    for name in _PRESSURE:
        grown_us = np.diff(samples[f"pressure_{name}_us"])[ordered].sum()
        yield Reading(f"pressure_{name}_share", None if np.isnan(grown_us) else float(grown_us * 1e3 / steps_ns))


def _series(table: Mapping[str, NDArray[np.float64]]) -> Iterator[Series]:
    """Rates between neighbouring samples, at the later one; the run queue as it was. None of what is not counted."""
    at_ns = table["at_ns"].astype(np.int64)
    ordered = _ordered(table["at_ns"])
    moments = tuple(int(at) for at in at_ns[1:][ordered[1:]])
    yield Series("server_cpu_cores", moments, _rates(table, ("server_user_ns", "server_system_ns"), 1))
    yield Series("server_cpu_system_cores", moments, _rates(table, ("server_system_ns",), 1))
    for name, counters in _RATES.items():
        if not any(np.isnan(table[counter]).any() for counter in counters):
            yield Series(name, moments, _rates(table, counters, 1e9))
    yield Series("run_queue", tuple(int(at) for at in at_ns[ordered]), tuple(table["run_queue"][ordered]))


def _rates(table: Mapping[str, NDArray[np.float64]], counters: Sequence[str], unit_ns: float) -> tuple[float, ...]:
    """What these counters grew by together, from each sample to the next that is later than all, for each `unit_ns`."""
    ordered = _ordered(table["at_ns"])[1:]
    steps: NDArray[np.float64] = np.diff(table["at_ns"])[ordered] / unit_ns
    grown = np.diff(sum((table[counter] for counter in counters), np.zeros(len(ordered) + 1)))[ordered]
    return tuple(grown / steps)


def watched(table: Mapping[str, NDArray[np.float64]]) -> Iterator[Watched]:
    """What may have kept the server from working: a sample stands for the time around it, a growth for that before it.

    A cause that the machine does not count is none that was looked for.
    """
    at_ns, ordered = table["at_ns"], _ordered(table["at_ns"])
    steps_ns = np.where(ordered, np.diff(at_ns, prepend=np.nan), np.nan)
    half_ns = np.nan_to_num(steps_ns) / 2
    around = at_ns - half_ns, at_ns + np.append(half_ns[1:], 0)
    since = np.concatenate((at_ns[:1], at_ns[:-1])), at_ns
    busy, steal, idle = _ticks(table)
    ticks = busy + steal + idle
    with np.errstate(divide="ignore", invalid="ignore"):
        cpus = np.nanmedian(ticks * TICK_NS / steps_ns) if ordered.sum() > 1 else np.nan
        found = {
            STOPPED: (around, table["server_threads_stopped"] > 0),
            _QUOTA: (since, _share(table, "server_throttled_ns", steps_ns) >= _HELD),
            _STOLEN: (since, steal / ticks >= _HELD),
            SATURATED: (around, table["run_queue"] >= _MANY_THREADS * cpus),
            "everything waiting for memory": (since, _share(table, "pressure_memory_full_us", steps_ns / 1e3) >= _HALF),
            "everything waiting for a disk": (since, _share(table, "pressure_io_full_us", steps_ns / 1e3) >= _HALF),
            "memory being compacted": (since, _grown(table, "compact_stall") > 0),
            "pages moved between NUMA nodes": (since, _grown(table, "numa_pages_migrated") >= _MANY_PAGES),
        }
    counted = {
        _QUOTA: "server_throttled_ns",
        "everything waiting for memory": "pressure_memory_full_us",
        "everything waiting for a disk": "pressure_io_full_us",
        "memory being compacted": "compact_stall",
        "pages moved between NUMA nodes": "numa_pages_migrated",
    }
    for cause, ((begins, ends), true) in found.items():
        if cause in counted and np.isnan(table[counted[cause]]).all():
            continue
        spans = zip(begins[true & ordered].tolist(), ends[true & ordered].tolist(), strict=True)
        told = tuple(Interval(cause, int(begin), int(end)) for begin, end in spans)
        yield Watched(
            cause,
            told,
            stops=cause == STOPPED,
            varies=cause != STOPPED,
            starves=cause in (_QUOTA, _STOLEN, SATURATED),
            error_ns=_LOOK_NS,
        )


def waits(context: ReadContext, moments: Mapping[float, float]) -> Iterator[Watched]:
    """When a thread of the server waited for a CPU for half of the time, or for a disk, by the names of its threads.

    `moments` has the moment of each sample by the time that was noted.
    The names are those that the flight recorder knows, where there is one with the probe `stalls`.
    """
    path = context.raw / _THREADS
    if not path.exists():
        return
    named = (
        recording.load(context).content.get("stalls", {}).get("threads", {}) if recording.files(context.raw)[0] else {}
    )
    found: dict[str, list[Interval]] = {_NO_CPU: [], _DISK: []}
    for noted in threads.read(path):
        since_ns, at_ns = (int(moments.get(float(at), at)) for at in (noted.since_ns, noted.at_ns))
        wait = replace(noted, since_ns=since_ns, at_ns=at_ns)
        # The clock was set back meanwhile, and nobody knows by how much.
        if wait.at_ns <= wait.since_ns or _JVM_OWN.fullmatch(wait.name):
            continue
        thread = named.get(str(wait.thread), wait.name)
        if wait.waited_ns >= _HALF * (wait.at_ns - wait.since_ns):
            # A longer one ended now, and was under way at the sample before.
            found[_NO_CPU].append(
                Interval(_NO_CPU, min(wait.since_ns, wait.at_ns - wait.waited_ns), wait.at_ns, thread)
            )
        if wait.state == "D":
            found[_DISK].append(Interval(_DISK, (wait.since_ns + wait.at_ns) // 2, wait.at_ns, thread))
    yield from (Watched(cause, tuple(_joined(spans)), varies=True, error_ns=_LOOK_NS) for cause, spans in found.items())


def _joined(spans: list[Interval]) -> Iterator[Interval]:
    """Those of one thread that overlap or touch, as one."""
    ordered = sorted(spans, key=lambda span: (span.thread, span.start_ns))
    for _, of_thread in itertools.groupby(ordered, key=lambda span: span.thread):
        first, *rest = of_thread
        for span in rest:
            if span.start_ns <= first.end_ns:
                first = replace(first, end_ns=max(first.end_ns, span.end_ns))
            else:
                yield first
                first = span
        yield first


def _share(table: Mapping[str, NDArray[np.float64]], name: str, whole: NDArray[np.float64]) -> NDArray[np.float64]:
    """What a counter grew by since the sample before, of so much."""
    return _grown(table, name) / whole


def _ticks(table: Mapping[str, NDArray[np.float64]]) -> Iterator[NDArray[np.float64]]:
    """Of all CPUs, how long they were busy, stolen and idle since the sample before. A count that fell is no time."""
    for state in ("busy", "steal", "idle"):
        yield np.maximum(_grown(table, f"cpu_{state}_ticks"), 0)


def _grown(table: Mapping[str, NDArray[np.float64]], name: str) -> NDArray[np.float64]:
    return np.diff(table[name], prepend=np.nan)


HOST = Host()
