"""Probes on a JVM that runs already, and what is different about what they left."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ingest_bench.inputs import records
from ingest_bench.jvm.attach import told
from ingest_bench.jvm.observed import observed
from ingest_bench.probes import oom, recording
from ingest_bench.probes.context import ATTACHED, Attachment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ingest_bench.jvm.attach import Attached
    from ingest_bench.probes.context import Events, Probe


@contextmanager
def watch_attached(
    probes: Sequence[Probe], jvm: Attached, raw: Path, limit_s: int, *, profiles: bool
) -> Iterator[None]:
    """These probes watch a running JVM; `read` then finds in `raw` what a JVM of ours would have left.

    Nothing of it stays in the JVM. InvalidRun when the block takes longer than `limit_s`.
    """
    events: Events = {}
    for probe in probes:
        recording.merge(events, probe.events)
    # Of the JDK whose jcmd asks it: that may be another one than it runs on, and what it does not know is ignored.
    profile = recording.profile(jvm.jcmd.parent.parent) if profiles else None
    settings = recording.settings_file(raw) if events or profiles else None
    if settings is not None:
        settings.write_text(recording.settings(events, profile), encoding="utf-8")
    logs = [*(log for probe in probes for log in probe.logs), oom.EXCEPTIONS]
    said = told(jvm)
    with ExitStack() as stack:
        stack.enter_context(observed(jvm, raw, settings=settings, logs=logs, limit_s=limit_s))
        kept = Attachment(
            since_ns=time.time_ns(),
            collector=said.collector,
            stack_depth=said.stack_depth,
            g1_region_bytes=said.g1_region_bytes,
        )
        (raw / ATTACHED).write_text(json.dumps(records.to_json(kept)), encoding="utf-8")
        for probe in probes:
            stack.enter_context(probe.watch(jvm.pid, raw))
        yield
