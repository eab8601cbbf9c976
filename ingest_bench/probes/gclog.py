"""The garbage collection log of a JVM (unified logging, Java 11 and later): the second source beside the recording."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Ours: `-Xlog:gc*=info,gc+humongous=debug:file=…:time,uptime,level,tags`.
_LINE = re.compile(
    r"\[(?P<time>[0-9T:.+-]+)\]\[[0-9.,]+s\]\[\w+ *\]\[(?P<tags>[a-z,0-9]+) *\] (?:GC\((?P<gc>[0-9]+)\) )?(?P<text>.*)"
)
_USING = re.compile(r"Using (?P<name>.+)|Initializing (?P<z>The Z Garbage Collector)")
# "Pause Young (Normal) (G1 Evacuation Pause) 6M->1M(64M) 9.619ms", ZGC "y: Pause Mark End 0.046ms".
_PAUSE = re.compile(
    r"(?:[YyO]: )?(?P<name>Pause .*?)(?: (?P<before>[0-9]+[KMG])->(?P<after>[0-9]+[KMG])\([0-9]+[KMG]\))?"
    r" (?P<ms>[0-9]+\.[0-9]+)ms"
)
# ZGC: "Garbage Collection (Warmup) 8M(12%)->4M(6%)", generational "Minor Collection (…) 8M(12%)->4M(6%) 0.019s".
_CYCLE = re.compile(
    r"(?:Garbage|Minor|Major) Collection \((?P<cause>.+)\)"
    r"(?: (?P<before>[0-9]+[KMG])\([0-9]+%\)->(?P<after>[0-9]+[KMG])\([0-9]+%\)(?: [0-9.]+s)?)?"
)
_HUMONGOUS = re.compile(r"Humongous regions: (?P<before>[0-9]+)->(?P<after>[0-9]+)")
_KNOWN = re.compile(
    r"Concurrent (?:Mark|Cycle|Undo|Preclean|Abortable|Sweep|Reset|Refine|Clear|Scan|Rebuild|Cleanup|Create).*"
    r"|Allocation Stall \(.*|(?:[yYO]: )?Relocation Stall \(.*|To-space exhausted|Periodic GC .*|GCLocker.*"
    r"|Out Of Memory \(.*|Attempt heap .*"
)
COLLECTORS = {
    "G1": "g1",
    "Concurrent Mark Sweep": "cms",
    "Parallel": "parallel",
    "Serial": "serial",
    "The Z Garbage Collector": "zgc",
}
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPause:
    """One pause as the log tells it; `end_ns` is CLOCK_REALTIME, cut to milliseconds."""

    gc: int
    end_ns: int
    duration_ns: int
    name: str
    """"Pause Young (Normal) (G1 Evacuation Pause)"; ZGC: "Pause Mark End"."""
    before_bytes: int | None = None
    after_bytes: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether the whole heap was collected while the program stood still."""
        return self.name.startswith("Pause Full")


@dataclass(slots=True, kw_only=True)
class GcLog:
    """What a whole log says."""

    collector: str = ""
    """A name of `COLLECTORS`; empty when the log never said one; "unknown: NAME" for any other."""
    pauses: list[LogPause] = field(default_factory=list)
    humongous_regions: list[tuple[int, int, int]] = field(default_factory=list)
    """(end_ns, regions before, regions after) of each G1 collection."""
    to_space_exhausted: int = 0
    unrecognised: list[str] = field(default_factory=list)
    """Lines that a collection wrote and that this reader does not know. Reported, never guessed."""


def parse(lines: Iterable[str]) -> GcLog:
    """The pauses of a log. The `gc,start` twin of each pause is left out: it has no duration."""
    log = GcLog()
    for line in lines:
        match = _LINE.fullmatch(line.rstrip("\n"))
        if match is None:
            if line.strip():
                log.unrecognised.append(line.rstrip("\n"))
            continue
        _take(log, match, match["tags"], match["text"])
    return log


def _take(log: GcLog, match: re.Match[str], tags: str, text: str) -> None:
    using = _USING.fullmatch(text) if tags in ("gc", "gc,init") else None
    if using and not match["gc"]:
        name = using["name"] or using["z"]
        log.collector = COLLECTORS.get(name, f"unknown: {name}")
    elif tags == "gc,heap" and (regions := _HUMONGOUS.fullmatch(text)):
        log.humongous_regions.append((_realtime_ns(match["time"]), int(regions["before"]), int(regions["after"])))
    elif tags in ("gc", "gc,phases"):
        pause = _PAUSE.fullmatch(text)
        if pause and match["gc"]:
            log.pauses.append(_pause(match, pause))
        elif tags == "gc" and not (_CYCLE.fullmatch(text) or _KNOWN.fullmatch(text)):
            log.unrecognised.append(match.string.rstrip("\n"))
        log.to_space_exhausted += text == "To-space exhausted" or "(Evacuation Failure" in text


def _pause(match: re.Match[str], pause: re.Match[str]) -> LogPause:
    return LogPause(
        gc=int(match["gc"]),
        end_ns=_realtime_ns(match["time"]),
        duration_ns=round(float(pause["ms"]) * 1e6),
        name=pause["name"],
        before_bytes=_bytes(pause["before"]),
        after_bytes=_bytes(pause["after"]),
    )


def _bytes(text: str | None) -> int | None:
    return None if text is None else int(text[:-1]) * _UNITS[text[-1]]


def _realtime_ns(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return int(moment.timestamp()) * 10**9 + moment.microsecond * 1000
