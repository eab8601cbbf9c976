"""How an OutOfMemoryError is found: a run that ends in one is a result, not a failure.

The flight recorder never records it, and `ExitOnOutOfMemoryError` leaves an empty recording. `CrashOnOutOfMemoryError`
leaves the chunks and an error file. It works for errors that the JVM itself throws (heap, metaspace); those that Java
code throws (direct buffers, Netty's own direct memory) go to the exceptions log, caught or not.
"""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from ingest_bench.inputs import files, untrusted
from ingest_bench.jvm.logs import Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Kind = Literal["heap", "direct", "metaspace", "threads", "other"]

# Of what an error says: the JVM's words are one sentence.
_MOST_SAID = 1000
# Every exception that is thrown: at most 24 MB of them.
EXCEPTIONS = Log(name="exceptions.log", what="exceptions=info", rotation="filecount=2,filesize=8m")

_CRASH = re.compile(r"OutOfMemory encountered: (?P<text>.*)")
# "[2.485s][info][exceptions] Exception <a 'java/lang/OutOfMemoryError'{0x…}: Direct buffer memory>", and in a server's
# own log "java.lang.OutOfMemoryError: Direct buffer memory". Behind the first exception of a line stand its words,
# which may be what somebody sent.
_THROWN = re.compile(
    r"^(?:\[(?P<at>[\dT:.+-]+)\])?(?:\[[^\]]*\])+ *"
    r"Exception <a '(?:[\w/$]*/)?(?:OutOfMemoryError|OutOfDirectMemoryError)'[^:>]*(?:: (?P<text>[^>]*))?>"
)
_LOGGED = re.compile(r"\b(?:OutOfMemoryError|OutOfDirectMemoryError): (?P<text>.*)")
# The words of HotSpot and the JDK, 11 to 25, and of Netty's PlatformDependent.
_KINDS: tuple[tuple[str, Kind], ...] = (
    ("direct", "direct"),
    ("heap", "heap"),
    ("gc overhead", "heap"),
    ("array size", "heap"),
    ("array length", "heap"),
    ("metaspace", "metaspace"),
    ("class space", "metaspace"),
    ("native thread", "threads"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The first OutOfMemoryError of a run."""

    kind: Kind
    text: str
    """What the JVM said."""
    source: str
    """The file that says so."""
    at_ns: int = 0
    """When it happened (CLOCK_REALTIME): as the line says, or when the file was written last."""

    @property
    def sentence(self) -> str:
        """As a person reads it."""
        return f"{self.kind}: {self.text} ({self.source})"


def jvm_options(raw: Path) -> tuple[str, ...]:
    """Options that end the JVM at the first OutOfMemoryError of its own, and leave what tells of it below `raw`."""
    return (
        "-XX:+CrashOnOutOfMemoryError",
        "-XX:-CreateCoredumpOnCrash",
        f"-XX:ErrorFile={raw / 'hs_err.log'}",
        EXCEPTIONS.start_option(raw),
    )


def find_oom(raw: Path, log: Path | None = None) -> OutOfMemory | None:
    """The OutOfMemoryError of a server, by its error file, its exceptions log or its own log; None without one.

    The first may have no text: the JVM made it before it ran out. What ran out is then said by one that comes later.
    """
    crashes = sorted(raw.glob("hs_err*.log"))
    rotated = sorted(raw.glob("exceptions.log*"), key=_written_ns)
    for paths, pattern in ((crashes, _CRASH), (rotated, _THROWN), ([log] if log else [], _LOGGED)):
        if first := next(_found(paths, pattern), None):
            said = next((one for one in _found(paths, pattern) if one.text), first)
            return dataclasses.replace(said, at_ns=first.at_ns)
    return None


def _found(paths: Iterable[Path], pattern: re.Pattern[str]) -> Iterator[OutOfMemory]:
    for path in paths:
        if not path.name.isprintable():
            # It would stand in the reason of the run.
            continue
        try:
            file = untrusted.open_file(path)
        except OSError:
            # It is gone, or the server put something else there.
            continue
        with file:
            # A server may write lines of any length.
            for line in files.pieces_of(file):
                if match := pattern.search(line):
                    text = (match["text"] or "").strip()[:_MOST_SAID]
                    at_ns = _moment(match.groupdict().get("at")) or os.fstat(file.fileno()).st_mtime_ns
                    yield OutOfMemory(kind=_kind(text), text=text, source=path.name, at_ns=at_ns)


def _written_ns(path: Path) -> int:
    """Return the time of the last write; 0 for a file that the JVM has renamed meanwhile."""
    try:
        return path.lstat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _moment(stamp: str | None) -> int:
    """A moment as a log has it, "2026-11-22T07:38:46.274+0000", on CLOCK_REALTIME; 0 for anything else."""
    try:
        return round(datetime.strptime(stamp or "", "%Y-%m-%dT%H:%M:%S.%f%z").timestamp() * 1000) * 10**6
    except ValueError:
        return 0


def _kind(text: str) -> Kind:
    return next((kind for words, kind in _KINDS if words in text.lower()), "other")
