"""Probe `stalls`: what the server's threads did and waited for, as causes of stalls.

What a thread is busy with is known by a sample of its stack each 20 ms (jdk.ExecutionSample; StallSpans.java has the
table of telling frames). A thread that waits is in no sample: waits, files and safepoints have events of their own, and
of those that last.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import TYPE_CHECKING

from ingest_bench.model.results import Interval, Measured, Remark, Watched
from ingest_bench.probes import recording
from ingest_bench.probes.pauses import gc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ingest_bench.jvm.logs import Log
    from ingest_bench.probes.context import Events, ReadContext

_SAMPLE = "jdk.ExecutionSample"
# Looked for in any server, with the events that tell of them.
_ALWAYS = {
    "a thread waited for a lock": "jdk.JavaMonitorEnter",
    "a thread waited for another one": "jdk.ThreadPark",
    "a file was forced to disk": "jdk.FileForce",
    "a write to a file was slow": "jdk.FileWrite",
    "a read of a file was slow": "jdk.FileRead",
    "threads were slow to reach a safepoint": "jdk.SafepointBegin",
}
# A thread is looked at each 20 ms, and where there is no CPU at half of these moments or fewer.
_SAMPLES_NS = 100_000_000
# The JVM's own names of the operations of its collectors: vmOperations.hpp of JDK 11 to 25.
_OF_A_COLLECTOR = re.compile(
    r"JVM operation (?:CGC_|CMS_|G1|GenCollect|Parallel|Serial|Shenandoah|CollectFor"
    r"|[XZ](?:Operation|Mark|Relocate|Verify)).*"
)


class Stalls:
    """Samples, and what lasts 20 ms: waits, files, the way to a safepoint (10 ms) and what is done in one.

    Not jdk.CPUTimeSample: only Java 25 has it, and there jdk.ExecutionSample still finds the same.
    """

    events: Events = {  # noqa: RUF012 - the Protocol asks for a plain attribute
        _SAMPLE: {"period": "20 ms"},
        **{
            f"jdk.{name}": {"threshold": "20 ms", "stackTrace": "true"}
            for name in ("JavaMonitorEnter", "JavaMonitorWait", "ThreadPark", "ThreadSleep")
        },
        **{
            f"jdk.{name}": {"threshold": "20 ms", "stackTrace": "false"}
            for name in ("FileForce", "FileWrite", "FileRead")
        },
        **{f"jdk.{name}": {"threshold": "10 ms"} for name in ("SafepointBegin", "ExecuteVMOperation")},
    }
    logs: tuple[Log, ...] = ()

    def watch(self, server_pid: int, raw: Path) -> AbstractContextManager[None]:  # noqa: ARG002
        """Nothing: the JVM itself writes the recording."""
        return nullcontext()

    def read(self, context: ReadContext) -> Iterator[Measured]:
        """What was found within the measurement; nothing of a server whose recording ends before it does."""
        found = yield from recording.opened(context, "stalls")
        if not found.is_readable or found.seconds(context) * 1e9 < context.end_ns - context.start_ns:
            return
        content = found.content["stalls"]
        looked_for = set(found.content["known"]) - set(content["wrong"])
        causes: dict[str, list[Interval]] = {cause: [] for cause, event in _ALWAYS.items() if event in looked_for}
        lacked_cpu = gc.starved(context)
        for told, thread, start_ns, end_ns in content["spans"]:
            cause = gc.cause(start_ns, end_ns, lacked_cpu) if _OF_A_COLLECTOR.fullmatch(told) else told
            causes.setdefault(cause, []).append(Interval(cause, start_ns, end_ns, thread))
        for cause, each in causes.items():
            yield Watched(cause, tuple(each), stops=cause in (gc.PAUSE, gc.STARVED), error_ns=_SAMPLES_NS)
        if not content["samples"]:
            yield Remark(probe="stalls", text="the recording has no sample of a thread: what the server did is unknown")
        # JDK 11 gives each file event of a thread the duration of its first one; 15 to 19 have JDK-8296733.
        for event in content["wrong"]:
            text = f"{event} is left out: this Java records wrong durations, a thread would be in two at one moment"
            yield Remark(probe="stalls", text=text)
        if content["lost"]:
            yield Remark(probe="stalls", text=f"{content['lost']} spans more than can be kept were left out")


STALLS = Stalls()
