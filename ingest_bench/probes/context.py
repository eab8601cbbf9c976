"""What a probe gets to read its files with, and what a probe is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ingest_bench.inputs import records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ingest_bench.jvm.logs import Log
    from ingest_bench.model.results import Measured

Events = dict[str, dict[str, str]]
"""Flight recorder events by name, each with its settings: {"jdk.SocketRead": {"threshold": "0 ns"}}."""


ATTACHED = "attached.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """What only a JVM that ran before the probes came could say; kept beside the raw files."""

    since_ns: int = 0
    """CLOCK_REALTIME from which all probes watched. What is older in a recording or a log is of somebody else."""
    collector: str = ""
    """A GC log names it only at the start of a JVM."""
    stack_depth: int | None = None
    """None: ours, `recording.STACK_DEPTH`."""
    g1_region_bytes: int | None = None
    """A GC log names it only at the start of a JVM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """The raw files of one run, and the measurement within it."""

    raw: Path
    start_ns: int
    """CLOCK_REALTIME, as every time that a probe reads or gives."""
    end_ns: int
    ports: frozenset[int]
    """The local ports of the load: the peer's ports as the server sees them."""
    reader: Callable[[], tuple[str, ...]]
    """`recording.reader` of a Java at least as new as the server's: an older one cannot read its recording."""

    @property
    def attachment(self) -> Attachment:
        """What is different because the JVM ran before; nothing, when we started it."""
        path = self.raw / ATTACHED
        try:
            found: Attachment = records.from_file(Attachment, path)
        except FileNotFoundError:
            return Attachment()
        return found

    def covers(self, moment_ns: int) -> bool:
        """Whether this moment is within the measurement."""
        return self.start_ns <= moment_ns < self.end_ns


class Probe(Protocol):
    """Watching leaves files below `raw`; reading turns those files into numbers. Never both at once."""

    @property
    def events(self) -> Mapping[str, dict[str, str]]:
        """Flight recorder events that it needs; one recording serves all probes."""
        ...

    @property
    def logs(self) -> tuple[Log, ...]:
        """Logs of the server's JVM that it reads beside the recording."""
        ...

    def watch(self, server_pid: int, raw: Path) -> AbstractContextManager[None]:
        """Watches a running server from outside."""
        ...

    def read(self, context: ReadContext) -> Iterator[Measured]:
        """Numbers, and remarks on those that are unavailable."""
        ...
