"""Contexts and recordings of probes, and their outputs by kind."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ingest_bench.model.results import CauseIntervals, Histogram, Interval, Note, ProbeOutput, Reading, Series
from ingest_bench.probes import PROBES, recording
from ingest_bench.probes.context import ReadContext

DATA = Path(__file__).parent / "data"
EVER_NS = 2**63 - 1
Reader = Callable[[], tuple[str, ...]]


def make_context(
    raw: Path, start_ns: int = 0, end_ns: int = EVER_NS, ports: Iterable[int] = (), reader: Reader = tuple
) -> ReadContext:
    return ReadContext(raw=raw, start_ns=start_ns, end_ns=end_ns, ports=frozenset(ports), reader=reader)


def write_recording(context: ReadContext, content: dict[str, Any], names: Sequence[str] = ("recording.jfr",)) -> None:
    """Write a recording that has been read already. *names*: its files."""
    (context.raw / "recording.jfr").write_bytes(b"read already")
    key = [
        recording.READER_VERSION,
        context.start_ns,
        context.end_ns,
        sorted(context.ports),
        list(context.network),
        names,
    ]
    (context.raw / "recording.json").write_text(json.dumps({"key": key, "content": content}))


def read_data(name: str) -> str:
    """Return the text of a compressed file below tests/data."""
    return gzip.decompress((DATA / name).read_bytes()).decode()


def read(name: str, context: ReadContext) -> list[ProbeOutput]:
    """Return the output of a probe."""
    return list(PROBES[name].read(context))


def readings(outputs: Iterable[ProbeOutput]) -> dict[str, Any]:
    return {item.name: item.value for item in outputs if isinstance(item, Reading)}


def notes(outputs: Iterable[ProbeOutput]) -> list[str]:
    return [item.text for item in outputs if isinstance(item, Note)]


def causes(outputs: Iterable[ProbeOutput]) -> dict[str, tuple[Interval, ...]]:
    return {item.cause: item.intervals for item in outputs if isinstance(item, CauseIntervals)}


def series(outputs: Iterable[ProbeOutput]) -> dict[str, Series]:
    return {item.name: item for item in outputs if isinstance(item, Series)}


def histogram(outputs: Iterable[ProbeOutput]) -> dict[int, int]:
    """Return the counts of the only histogram."""
    (counts,) = (item.counts for item in outputs if isinstance(item, Histogram))
    return dict(counts)
