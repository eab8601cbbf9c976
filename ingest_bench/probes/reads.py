"""Probe `reads`: the size of every socket read of the load's connections, by the flight recorder."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from ingest_bench.model.results import Histogram, Measured, Reading, Remark
from ingest_bench.probes import recording

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ingest_bench.jvm.logs import Log
    from ingest_bench.probes.context import Events, ReadContext

NAMES = ("bytes_read", "reads_recorded", "reads_empty")


class Reads:
    """jdk.SocketRead without a threshold: exact for NIO socket channels (1,562,721 reads and their bytes, Java 17).

    The default threshold of 20 ms (default.jfc, 17.0.15) keeps no read of a fast link. Native epoll, asynchronous
    channels and streams of a socket do not write this event.
    """

    events: Events = {  # noqa: RUF012 - the Protocol asks for a plain attribute
        "jdk.SocketRead": {"threshold": "0 ns", "stackTrace": "false"}
    }
    logs: tuple[Log, ...] = ()

    def watch(self, server_pid: int, raw: Path) -> AbstractContextManager[None]:  # noqa: ARG002
        """Nothing: the JVM itself writes the recording."""
        return nullcontext()

    def read(self, context: ReadContext) -> Iterator[Measured]:
        """Sizes within the measurement; `bytes_read` is of the whole recording, to compare with what the load sent."""
        found = yield from recording.opened(context, "reads")
        reads = found.content.get("reads")
        if not reads or not reads["all"]["count"]:
            others = reads["other_ports"]["count"] if reads else 0
            yield Remark(
                probe="reads",
                text=f"the recording holds no read of the load's connections, and {others} of others: a server with a"
                " native transport (epoll) does not write them; the probe kernel-reads sees those",
            )
            yield from (Reading(name, None) for name in NAMES)
            return
        counts = {int(size): count for size, count in reads["histogram"].items()}
        yield Reading("bytes_read", reads["all"]["total"] if found.is_whole else None)
        yield Reading("reads_recorded", reads["all"]["count"] if found.is_whole else None)
        yield Reading("reads_empty", reads["empty"])
        yield Histogram("read_bytes", counts)


READS = Reads()
