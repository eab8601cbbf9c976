"""What a node of Cassandra writes about itself: its version, its flushes and its compactions. Pure."""

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
# The second of nodes that start at the same moment (0.7.5).
_UP = re.compile(_LINE + r"Gossiper \S+ /([\d.]+)(?::\d+)? (?:is now UP|has restarted, now UP again)")
_COMPACTING = re.compile(_LINE + r"(?:CompactionManager Compacting|CompactionTask Compacting \(\S+\)) \[")
# The table of a file, by its own name or by that of its folder.
_TABLE = re.compile(r"/(\w+)-(?:f-\d+-Data|[0-9a-f]{32}/[^/]+)\.db$")
_BYTES = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class LogFacts(NamedTuple):
    """What stands in a log. Moments are CLOCK_REALTIME nanoseconds, known to the millisecond."""

    version: str
    java: str
    flushes: tuple[tuple[int, int], ...]
    """When each memtable began to be written, and how many bytes became of it: from 5.0 to three decimals of a unit."""
    compactions: tuple[int, ...]
    """When each began."""
    up: frozenset[str]
    """The addresses of other nodes that it has found, whether they are still there or not."""


def parse(lines: Iterable[str]) -> LogFacts:
    """What these lines say. A flush that has not ended is none."""
    version = java = ""
    began: defaultdict[str, list[int]] = defaultdict(list)
    flushes: list[tuple[int, int]] = []
    compactions = []
    up = set()
    for line in lines:
        if found := _FLUSHING.match(line):
            began[found[2]].append(_moment(found[1]))
        elif found := _FLUSHED.match(line):
            # Memtables of one table are written one after the other.
            table = _TABLE.search(found[2])
            if table is not None and began[table[1]]:
                flushes.append((began[table[1]].pop(0), round(float(found[3]) * _BYTES[found[4]])))
        elif found := _COMPACTING.match(line):
            compactions.append(_moment(found[1]))
        elif found := _UP.match(line):
            up.add(found[2])
        elif found := _VERSION.match(line):
            version = found[2]
        elif found := _JAVA.match(line):
            java = found[2]
    return LogFacts(version, java, tuple(sorted(flushes)), tuple(compactions), frozenset(up))


def _moment(text: str) -> int:
    moment = datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 10**9 + moment.microsecond * 1000
