"""Parser of a JVM's garbage collection log (unified logging, Java 11 and later): the second source of probe `gc`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

# Decimal separators of the JVM's locale (LC_NUMERIC): glibc has these three.
_DECIMAL = r"[0-9]+[.,\u066b][0-9]+"
# Written by `-Xlog:gc*=info:file=…:time,uptime,level,tags`.
_LINE = re.compile(
    rf"\[(?P<time>[0-9T:.+-]+)\]\[{_DECIMAL}s\]\[\w+ *\]\[(?P<tags>[a-z,0-9]+) *\] "
    r"(?:GC\((?P<gc>[0-9]+)\) )?(?P<text>.*)"
)
_USING = re.compile(r"Using (?P<name>.+)|Initializing (?P<z>The Z Garbage Collector)")
# "Pause Young (Normal) (G1 Evacuation Pause) 6M->1M(64M) 9.619ms", ZGC "y: Pause Mark End 0.046ms".
_PAUSE = re.compile(
    r"(?:[YyO]: )?(?P<name>Pause .*?)(?: (?P<before>[0-9]+[KMG])->(?P<after>[0-9]+[KMG])\([0-9]+[KMG]\))?"
    rf" (?P<ms>{_DECIMAL})ms"
)
_PHASE_PAUSE = re.compile(r"(?:[YyO]: )?Pause ")
# ZGC: "Garbage Collection (Warmup) 8M(12%)->4M(6%)", generational "Minor Collection (…) 8M(12%)->4M(6%) 0.019s".
_CYCLE = re.compile(
    r"(?:Garbage|Minor|Major) Collection \((?P<cause>.+?)\)"
    rf"(?: (?P<before>[0-9]+[KMG])\([0-9]+%\)->(?P<after>[0-9]+[KMG])\([0-9]+%\)(?: {_DECIMAL}s)?)?"
)
# The last line of a concurrent cycle: of G1 ("Concurrent Cycle" in Java 11) and of CMS.
_CYCLE_END = re.compile(rf"Concurrent (?:(?:Mark |Undo )?Cycle|Reset) {_DECIMAL}ms")
# At gc,cpu, after each pause but ZGC's, in hundredths of a second.
_CPU = re.compile(rf"User=(?P<user>{_DECIMAL})s Sys=(?P<system>{_DECIMAL})s Real={_DECIMAL}s")
_HUMONGOUS = re.compile(r"Humongous regions: (?P<before>[0-9]+)->(?P<after>[0-9]+)")
_IGNORED = re.compile(
    r"Concurrent (?:Mark|Cycle|Undo|Preclean|Abortable|Sweep|Reset|Refine|Clear|Scan|Rebuild|Cleanup|Create).*"
    r"|Allocation Stall \(.*|(?:[yYO]: )?Relocation Stall \(.*|To-space exhausted|Periodic GC .*|GCLocker.*"
    r"|Out Of Memory \(.*|Attempt heap .*"
    # A cycle of ZGC that the end of the JVM cut off.
    r"|(?:Garbage|Minor|Major) Collection \(.+\) Aborted"
)
# Java 11 writes it in lower case, at gc,heap.
_REGION = re.compile(r"Heap [Rr]egion [Ss]ize: (?P<size>[0-9]+[KMG])")
COLLECTORS = {
    "G1": "g1",
    "Concurrent Mark Sweep": "cms",
    "Parallel": "parallel",
    "Serial": "serial",
    "The Z Garbage Collector": "zgc",
}
# With a CPU, the threads of a pause run most of the time. CPU times are too coarse for shorter pauses.
_STARVED_MIN_NS, _STARVED_CPU_SHARE = 50_000_000, 0.5
_SHOWN_CHARACTERS = 300
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause of the log or the recording, which has only the first three fields."""

    gc: int
    end_ns: int
    """CLOCK_REALTIME; from the log, cut to milliseconds."""
    duration_ns: int
    name: str = ""
    """"Pause Young (Normal) (G1 Evacuation Pause)"; ZGC: "Pause Mark End"."""
    before_bytes: int | None = None
    after_bytes: int | None = None
    is_certain: bool = True
    """False: a young collection interrupted by a full one; the log does not show if the young one collected."""
    cpu_ns: int | None = None
    """CPU time of all its threads, to 10 ms; None if the log does not have it."""
    waited_for_cms: bool = False
    """It began during a concurrent phase of CMS and had to wait until CMS released the heap."""

    @property
    def start_ns(self) -> int:
        """Start of the pause (CLOCK_REALTIME)."""
        return self.end_ns - self.duration_ns

    @property
    def collects(self) -> bool:
        """Return True if it freed memory; a remark of a concurrent cycle names the heap too."""
        return self.name.startswith(("Pause Young", "Pause Full"))

    @property
    def is_concurrent(self) -> bool:
        """Return True if it belongs to a concurrent cycle; the recording has its pauses only after the cycle ended."""
        zgc_names = ("Pause Mark", "Pause Relocate")
        return self.name.startswith(("Pause Remark", "Pause Cleanup", "Pause Initial Mark", *zgc_names))

    @property
    def is_starved(self) -> bool:
        """Return True if it was long for lack of CPU: all its threads together ran for less than half of it."""
        is_long = self.duration_ns >= _STARVED_MIN_NS
        return is_long and self.cpu_ns is not None and self.cpu_ns < _STARVED_CPU_SHARE * self.duration_ns

    @property
    def is_full(self) -> bool:
        """Return True if the complete heap was collected while the program was stopped."""
        return self.name.startswith("Pause Full")


@dataclass(slots=True, kw_only=True)
class GcLog:
    """Contents of a log."""

    collector: str = ""
    """A name of `COLLECTORS`; empty if the log names none; "unknown: NAME" for any other."""
    region_bytes: int | None = None
    """Region size of G1's heap; a log has it only at the start of a JVM."""
    pauses: list[Pause] = field(default_factory=list)
    humongous_regions: list[tuple[int, int, int]] = field(default_factory=list)
    """(end_ns, regions before, regions after) of each G1 collection."""
    cycle_ends: dict[int, int] = field(default_factory=dict)
    """End of each concurrent cycle (CLOCK_REALTIME, cut to milliseconds), by its number."""
    unknown_lines: list[str] = field(default_factory=list)
    """Lines of a collection that this parser does not know. Reported, never guessed."""

    @property
    def is_supported(self) -> bool:
        """Return True if the parser knows the collector, so that the pauses can be trusted."""
        return self.collector in COLLECTORS.values()

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each part that was not understood."""
        if not self.is_supported:
            supported = ", ".join(COLLECTORS)
            yield f"the GC log is of {self.collector or 'a collector that it does not name'}; supported: {supported}"
        if self.unknown_lines:
            examples = " | ".join(line[:_SHOWN_CHARACTERS] for line in self.unknown_lines[:3])
            yield f"{len(self.unknown_lines)} lines of the GC log were not recognised: {examples}"


def parse_gc_log(lines: Iterable[str], collector: str = "") -> GcLog:
    """Return the pauses of a log, without the `gc,start` line of each, which has no duration.

    *collector* is for a log that begins in the middle of a JVM's life and names none.
    """
    reader = _Reader(GcLog(collector=collector))
    for line in lines:
        try:
            reader.take(line.rstrip("\n"))
        except (ValueError, OverflowError):
            # The form is right, but the time or a number is impossible.
            reader.log.unknown_lines.append(line.rstrip("\n"))
    return reader.log


@dataclass(slots=True, kw_only=True)
class _Started:
    """A pause that has started and not ended yet; another one may run inside it."""

    gc: int
    failed_promotion: bool = False
    waited: bool = False
    inner_ns: int = 0
    inner_start_ns: int = 0


@dataclass(slots=True)
class _Reader:
    log: GcLog = field(default_factory=GcLog)
    started: list[_Started] = field(default_factory=list)
    with_heap: set[str] = field(default_factory=set)
    concurrent: bool = False
    """A concurrent phase of CMS is running."""
    phase_of: int = -1
    """The collection whose concurrent phase ended last, with no pause since."""

    def take(self, line: str) -> None:
        match = _LINE.fullmatch(line)
        if match is None:
            if line.strip():
                self.log.unknown_lines.append(line)
            return
        tags, text = match["tags"], match["text"]
        if match["gc"] is None:
            self._read_global_line(match, tags, text)
        elif tags == "gc,start" and text.startswith("Pause "):
            if self.started:
                self.started[-1].inner_start_ns = _realtime_ns(match["time"])
            self.started.append(_Started(gc=int(match["gc"]), waited=self.concurrent))
        elif tags == "gc,heap":
            self.with_heap.add(match["gc"])
            if regions := _HUMONGOUS.fullmatch(text):
                self.log.humongous_regions.append(
                    (_realtime_ns(match["time"]), int(regions["before"]), int(regions["after"]))
                )
        elif tags == "gc,cpu":
            self._add_cpu(int(match["gc"]), text)
        elif tags in ("gc", "gc,phases"):
            self._read_result(match, tags, text)

    def _read_global_line(self, match: re.Match[str], tags: str, text: str) -> None:
        if tags == "gc,promotion" and self.started:
            self.started[-1].failed_promotion = True
        elif (using := _USING.fullmatch(text)) and tags in ("gc", "gc,init"):
            name = using["name"] or using["z"]
            self.log.collector = COLLECTORS.get(name, f"unknown: {name}")
        elif (region := _REGION.fullmatch(text)) and tags in ("gc,heap", "gc,init"):
            self.log.region_bytes = _bytes(region["size"])
        elif tags == "gc" and not _IGNORED.fullmatch(text):
            self.log.unknown_lines.append(match.string)

    def _read_result(self, match: re.Match[str], tags: str, text: str) -> None:
        pause = _PAUSE.fullmatch(text)
        if pause:
            self._end(
                Pause(
                    gc=int(match["gc"]),
                    end_ns=_realtime_ns(match["time"]),
                    duration_ns=round(_decimal(pause["ms"]) * 1e6),
                    name=pause["name"],
                    before_bytes=_bytes(pause["before"]),
                    after_bytes=_bytes(pause["after"]),
                )
            )
        elif tags == "gc" and text.startswith("Concurrent ") and self.log.collector == "cms":
            self.concurrent = not text.endswith("ms")
            if not self.concurrent:
                self.phase_of = int(match["gc"])
        elif tags == "gc,phases":
            if _PHASE_PAUSE.match(text):
                self.log.unknown_lines.append(match.string)
        elif not (_CYCLE.fullmatch(text) or _IGNORED.fullmatch(text)):
            self.log.unknown_lines.append(match.string)
        if tags == "gc" and (_CYCLE_END.fullmatch(text) or ((cycle := _CYCLE.fullmatch(text)) and cycle["before"])):
            self.log.cycle_ends[int(match["gc"])] = _realtime_ns(match["time"])

    def _add_cpu(self, gc: int, text: str) -> None:
        """Add the CPU time to the last pause: the line follows that of its pause, or of its concurrent phase."""
        cpu, pauses = _CPU.fullmatch(text), self.log.pauses
        if cpu and pauses and pauses[-1].gc == gc != self.phase_of:
            cpu_s = _decimal(cpu["user"]) + _decimal(cpu["system"])
            pauses[-1] = replace(pauses[-1], cpu_ns=round(cpu_s * 1e9))

    def _end(self, pause: Pause) -> None:
        """Append the pause. Serial and CMS up to 17 log a young collection that gave up in favour of a full one.

        If a full collection ran within it, the time before that is a pause only if the young one really collected, as
        in the recording. After a failed promotion it did; otherwise the log of CMS does not show it. Without a line
        about its heap it never began.
        """
        if pause.gc == self.phase_of:
            self.phase_of = -1
        started = next((started for started in self.started if started.gc == pause.gc), None)
        if started is not None:
            self.started.remove(started)
            is_cms = self.log.collector == "cms"
            if started.inner_ns and (started.failed_promotion or is_cms):
                pause = replace(
                    pause,
                    end_ns=started.inner_start_ns,
                    duration_ns=pause.duration_ns - started.inner_ns,
                    is_certain=started.failed_promotion,
                    # The heap of its line is that after the full collection.
                    after_bytes=None,
                )
            elif started.inner_ns:
                return
            pause = replace(pause, waited_for_cms=started.waited and pause.is_full)
        if self.started:
            self.started[-1].inner_ns += pause.duration_ns
        is_young = pause.name.startswith("Pause Young")
        if is_young and self.log.collector == "serial" and str(pause.gc) not in self.with_heap:
            return
        self.log.pauses.append(pause)


def _decimal(text: str) -> float:
    return float(re.sub("[^0-9]", ".", text))


def _bytes(text: str | None) -> int | None:
    return None if text is None else int(text[:-1]) * _UNITS[text[-1]]


def _realtime_ns(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return int(moment.timestamp()) * 10**9 + moment.microsecond * 1000
