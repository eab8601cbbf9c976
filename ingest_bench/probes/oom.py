"""Detection of OutOfMemoryErrors: a run that ends in one is a result, not a failure.

The flight recorder never records it, and `ExitOnOutOfMemoryError` leaves an empty recording. `CrashOnOutOfMemoryError`
leaves the chunks and an error file. It works for errors that the JVM itself throws (heap, metaspace); those that Java
code throws (direct buffers, Netty's own direct memory) go to the exceptions log, caught or not.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from ingest_bench.inputs import files, untrusted
from ingest_bench.jvm.options import Log

Kind = Literal["heap", "direct", "metaspace", "threads", "other"]

# Longest message of an error that is kept: the JVM's is one sentence.
_MAX_MESSAGE_CHARACTERS = 1000
# Every exception that is thrown, at most 24 MB of them.
EXCEPTIONS = Log(name="exceptions.log", what="exceptions=info", rotation="filecount=2,filesize=8m")

_CRASH = re.compile(r"OutOfMemory encountered: (?P<text>.*)")
# "[2.485s][info][exceptions] Exception <a 'java/lang/OutOfMemoryError'{0x…}: Direct buffer memory>", and in a server's
# own log "java.lang.OutOfMemoryError: Direct buffer memory". The message after the first exception of a line may
# contain data from a client.
_THROWN = re.compile(
    r"^(?:\[(?P<at>[\dT:.+-]+)\])?(?:\[[^\]]*\])+ *"
    r"Exception <a '(?:[\w/$]*/)?(?:OutOfMemoryError|OutOfDirectMemoryError)'[^:>]*(?:: (?P<text>[^>]*))?>"
)
_LOGGED = re.compile(r"\b(?:OutOfMemoryError|OutOfDirectMemoryError): (?P<text>.*)")
# Messages of HotSpot and the JDK, 11 to 25, and of Netty's PlatformDependent.
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
    """The JVM's message."""
    source: str
    """The file that contains it."""
    at_ns: int = 0
    """CLOCK_REALTIME of the error: from the log line, otherwise the last write to the file."""

    @property
    def description(self) -> str:
        """Kind, message and file in one line."""
        return f"{self.kind}: {self.text} ({self.source})"


def jvm_options(raw: Path) -> tuple[str, ...]:
    """Return options that end the JVM at its first own OutOfMemoryError and leave evidence of it below *raw*."""
    return (
        "-XX:+CrashOnOutOfMemoryError",
        "-XX:-CreateCoredumpOnCrash",
        f"-XX:ErrorFile={raw / 'hs_err.log'}",
        EXCEPTIONS.start_option(raw),
    )


def find_oom(raw: Path, log: Path | None = None) -> OutOfMemory | None:
    """Return the OutOfMemoryError in a server's error file, exceptions log or own log; None without one.

    The first may have no message: the JVM created it before it ran out. The kind is then that of a later one.
    """
    crashes = sorted(raw.glob("hs_err*.log"))
    rotated = sorted(raw.glob("exceptions.log*"), key=_modified_ns)
    for paths, pattern in ((crashes, _CRASH), (rotated, _THROWN), ([log] if log else [], _LOGGED)):
        if first := next(_search(paths, pattern), None):
            with_message = next((error for error in _search(paths, pattern) if error.text), first)
            return dataclasses.replace(with_message, at_ns=first.at_ns)
    return None


def _search(paths: Iterable[Path], pattern: re.Pattern[str]) -> Iterator[OutOfMemory]:
    for path in paths:
        if not path.name.isprintable():
            # The name would be part of the run's reason.
            continue
        try:
            file = untrusted.open_file(path)
        except OSError:
            # The file is gone, or the server put something else there.
            continue
        with file:
            # A server may write lines of any length.
            for line in files.iter_pieces(file):
                if match := pattern.search(line):
                    text = (match["text"] or "").strip()[:_MAX_MESSAGE_CHARACTERS]
                    kind: Kind = next((kind for phrase, kind in _KINDS if phrase in text.lower()), "other")
                    at_ns = _parse_time_ns(match.groupdict().get("at")) or os.fstat(file.fileno()).st_mtime_ns
                    yield OutOfMemory(kind=kind, text=text, source=path.name, at_ns=at_ns)


def _modified_ns(path: Path) -> int:
    """Return the time of the last write; 0 for a file that the JVM has renamed meanwhile."""
    try:
        return path.lstat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _parse_time_ns(stamp: str | None) -> int:
    """Return a log's time stamp, "2026-11-22T07:38:46.274+0000", on CLOCK_REALTIME; 0 for anything else."""
    try:
        return round(datetime.strptime(stamp or "", "%Y-%m-%dT%H:%M:%S.%f%z").timestamp() * 1000) * 10**6
    except ValueError:
        return 0
