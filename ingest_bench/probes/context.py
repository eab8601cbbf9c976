"""A probe, and what it needs to read its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from ingest_bench.inputs import records
from ingest_bench.jvm.options import Log
from ingest_bench.model.results import ProbeOutput
from ingest_bench.model.target import NETWORK_PACKAGES, ThreadRoles

Events = dict[str, dict[str, str]]
"""Flight recorder events by name, each with its settings: {"jdk.SocketRead": {"threshold": "0 ns"}}."""


NO_ROLES = ThreadRoles()
ATTACHMENT_FILE = "attached.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Facts about a JVM that ran before the probes attached. Stored next to the raw files."""

    since_ns: int = 0
    """CLOCK_REALTIME from which all probes watched. Older parts of a recording or a log are not this run's."""
    collector: str = ""
    """A GC log names it only at the start of a JVM."""
    stack_depth: int | None = None
    """None: `recording.STACK_DEPTH`."""
    g1_region_bytes: int | None = None
    """A GC log names it only at the start of a JVM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """The raw files of one run and its measurement window."""

    raw: Path
    start_ns: int
    """CLOCK_REALTIME, like every time that a probe reads or returns."""
    end_ns: int
    ports: frozenset[int]
    """Local ports of the load: the peer's ports from the server's point of view."""
    reader: Callable[[], tuple[str, ...]]
    """Return the reader command (`recording`) of a Java at least as new as the server's: older ones cannot read it."""

    thread_roles: ThreadRoles = NO_ROLES
    """Roles of the server's threads."""
    network: tuple[str, ...] = NETWORK_PACKAGES
    """Packages of its network layer."""

    @property
    def attachment(self) -> Attachment:
        """Facts about an attached JVM; the defaults if this run launched it."""
        path = self.raw / ATTACHMENT_FILE
        attachment: Attachment = records.from_file(Attachment, path) if path.exists() else Attachment()
        return attachment

    def covers(self, moment_ns: int) -> bool:
        """Return True if the moment is within the measurement."""
        return self.start_ns <= moment_ns < self.end_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """An instrument. Watching writes files below `raw`; reading turns those files into numbers. Never both at once."""

    read: Callable[[ReadContext], Iterator[ProbeOutput]]
    """Yields numbers, and remarks on those that are unavailable."""
    watch: Callable[[int, Path], AbstractContextManager[None]] = lambda _server_pid, _raw: nullcontext()
    """Watches a running server of this pid from outside. By default only the JVM writes files: recording and logs."""
    events: Events = field(default_factory=dict)
    """Flight recorder events that it needs; one recording serves all probes."""
    logs: tuple[Log, ...] = ()
    """Logs of the server's JVM that it reads in addition to the recording."""


def list_logs(probes: Mapping[str, Probe]) -> list[Log]:
    """Return the logs that these probes read; several probes may read one."""
    return list(dict.fromkeys(log for probe in probes.values() for log in probe.logs))
