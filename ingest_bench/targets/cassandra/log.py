"""Parse the log of a Cassandra node: version, flushes, compactions and peers. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

# 0.7: "2026-11-23 02:50:00,123  INFO Memtable Completed flushing /home/data/ks/f-f-1-Data.db (1234 bytes)"
# 5.0: "2026-11-23 02:50:00,123  INFO Flushing Completed flushing /home/data/ks/f-c99f…/nb-1-big-Data.db (1.234KiB) …"
_LINE = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) +[A-Z]+ "
_VERSION = re.compile(_LINE + r"\S+ Cassandra version: (\S+)")
_JAVA = re.compile(_LINE + r"\S+ JVM vendor/version: .*/(\S+)")
_FLUSHED = re.compile(_LINE + r"(?:Memtable|Flushing) Completed flushing (\S+) \(([\d.]+) ?([KMGT]iB|B|bytes)\)")
_FLUSHING = re.compile(_LINE + r"(?:Memtable|Flushing) Writing Memtable-([^@]+)@")
# The second form comes from nodes that start at the same moment (0.7.5).
_UP = re.compile(_LINE + r"Gossiper \S+ /([\d.]+)(?::\d+)? (?:is now UP|has restarted, now UP again)")
_COMPACTING = re.compile(_LINE + r"(?:CompactionManager Compacting|CompactionTask Compacting \(\S+\)) \[")
# The table of a data file, in its own name or in that of its folder.
_TABLE = re.compile(r"/(\w+)-(?:f-\d+-Data|[0-9a-f]{32}/[^/]+)\.db$")
_BYTES = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class LogFacts(NamedTuple):
    """Facts from a log. Times are CLOCK_REALTIME nanoseconds, with a resolution of 1 ms."""

    version: str
    java: str
    flushes: tuple[tuple[int, int], ...]
    """Start of the write of each memtable, and bytes of its file: from 5.0 on, to three decimals of a unit."""
    compactions: tuple[int, ...]
    """Start of each."""
    up: frozenset[str]
    """Addresses of other nodes that it has ever found."""


def parse_log(lines: Iterable[str]) -> LogFacts:
    """Return the facts in these lines. A flush that has not ended is not counted."""
    version = java = ""
    starts: defaultdict[str, list[int]] = defaultdict(list)
    flushes: list[tuple[int, int]] = []
    compactions = []
    up = set()
    for line in lines:
        if match := _FLUSHING.match(line):
            starts[match[2]].append(_parse_time(match[1]))
        elif match := _FLUSHED.match(line):
            # Memtables of one table are written one after the other.
            table = _TABLE.search(match[2])
            if table is not None and starts[table[1]]:
                flushes.append((starts[table[1]].pop(0), round(float(match[3]) * _BYTES[match[4]])))
        elif match := _COMPACTING.match(line):
            compactions.append(_parse_time(match[1]))
        elif match := _UP.match(line):
            up.add(match[2])
        elif match := _VERSION.match(line):
            version = match[2]
        elif match := _JAVA.match(line):
            java = match[2]
    return LogFacts(version, java, tuple(sorted(flushes)), tuple(compactions), frozenset(up))


def _parse_time(text: str) -> int:
    time = datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC)
    return int(time.timestamp()) * 10**9 + time.microsecond * 1000
