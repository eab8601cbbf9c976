"""What may have caused a stall, each with all its spans, and what speaks against it whatever it may cover. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ingest_bench.analysis.run.sample_columns import Samples
from ingest_bench.analysis.stalls.waiting import Span, Waiting
from ingest_bench.model.results import Interval, Watched
from ingest_bench.model.samples import service_times_ns

# Spans that are nearer to each other are one: a thread is looked at 20 to 50 times a second.
_BRIDGE_NS = 60_000_000
# Answers that were given all the same, as a share of what is usual: fewer may have been on their way.
_STRAY = 0.25
# A span is like another one from this share of its length on.
_ALIKE = 0.8
# Of the time that a request took on its connection a cause covers at least so much.
_HELD = 0.15
# Of what is not always as strong so many times as many spans may make nobody wait.
_VARIES = 3


@dataclass(frozen=True, slots=True)
class Suspect:
    """One cause of one thread, connection or node: its spans on the clock of the samples, without overlaps."""

    cause: str
    thread: str
    node: int | None
    port: int
    stops: bool
    sudden: bool
    before_sending: bool
    varies: bool
    starves: bool
    error_ns: int
    starts_ns: Samples
    ends_ns: Samples

    def covered_ns(self, moments_ns: Samples) -> Samples:
        """How long it lasted in all before each of these moments."""
        return covered_ns(self.starts_ns, self.ends_ns, moments_ns)

    def lasted_ns(self, start_ns: int, end_ns: int) -> int:
        """How long it lasted between two moments."""
        before, after = self.covered_ns(np.array([start_ns, end_ns]))
        return int(after - before)

    def within(self, start_ns: int, end_ns: int) -> tuple[Samples, Samples]:
        """Its spans that have a part between two moments, whole."""
        first = int(np.searchsorted(self.ends_ns, start_ns, side="right"))
        last = int(np.searchsorted(self.starts_ns, end_ns, side="left"))
        return self.starts_ns[first:last], self.ends_ns[first:last]


def covered_ns(starts_ns: Samples, ends_ns: Samples, moments_ns: Samples) -> Samples:
    """How long spans without overlaps lasted in all before each of these moments."""
    lengths = ends_ns - starts_ns
    before = np.concatenate(([0], np.cumsum(lengths)))
    place = np.searchsorted(starts_ns, moments_ns, side="right")
    last = np.maximum(place - 1, 0)
    inside = np.minimum(moments_ns - starts_ns[last], lengths[last]) if len(lengths) else np.zeros_like(moments_ns)
    found: Samples = np.where(place > 0, before[last] + inside, 0)
    return found


def joined(starts_ns: Samples, ends_ns: Samples, gap_ns: int = 0) -> tuple[Samples, Samples]:
    """The spans in their order, those that overlap or have no more than such a gap as one."""
    if not len(starts_ns):
        return starts_ns, ends_ns
    order = np.argsort(starts_ns, kind="stable")
    starts_ns, reached = starts_ns[order], np.maximum.accumulate(ends_ns[order])
    begins = np.concatenate(([True], starts_ns[1:] > reached[:-1] + gap_ns))
    ends = np.append(np.flatnonzero(begins)[1:] - 1, len(reached) - 1)
    return starts_ns[begins], reached[ends]


def suspects(watched: Iterable[Watched], offset_ns: int) -> list[Suspect]:
    """Of each cause one suspect for each node, thread and connection; one without spans where it was found nowhere.

    `offset_ns` is by how much CLOCK_REALTIME, which the watched spans are on, is ahead of the clock of the samples.
    """
    spans: dict[tuple[str, int | None, str, int], list[Interval]] = {}
    limits: dict[tuple[str, int | None], tuple[bool, bool, bool, bool, bool, int]] = {}
    for one in watched:
        spans.setdefault((one.cause, one.node, "", 0), [])
        stops, sudden, before, varies, starves, error_ns = limits.get(
            (one.cause, one.node), (True, True, True, False, True, 0)
        )
        limits[one.cause, one.node] = (
            *(stops and one.stops, sudden and one.sudden, before and one.before_sending),
            *(varies or one.varies, starves and one.starves),
            max(error_ns, one.error_ns),
        )
        for span in one.spans:
            spans.setdefault((one.cause, one.node, span.thread, span.port), []).append(span)
    found = []
    for (cause, node, thread, port), own in spans.items():
        if not own and any(key[:2] == (cause, node) and key[2:] != (thread, port) for key in spans):
            continue
        ends = np.array([(span.start_ns, span.end_ns) for span in own], dtype=np.int64).reshape(-1, 2)
        starts_ns, ends_ns = joined(ends[:, 0] - offset_ns, ends[:, 1] - offset_ns, _BRIDGE_NS)
        found.append(Suspect(cause, thread, node, port, *limits[cause, node], starts_ns, ends_ns))
    return found


def answered_meanwhile(suspect: Suspect, waiting: Waiting, span: Span, slack_ns: int) -> int:
    """How many answers prove that a cause which stops everything was not there; 0: it may have been.

    What was on its way already still arrives after it has begun. Of a node those of its own address count.
    """
    if not suspect.stops:
        return 0
    address = None if suspect.node is None or suspect.node - 1 not in waiting.answered else suspect.node - 1
    starts_ns, ends_ns = suspect.within(span.start_ns, span.end_ns)
    inner = [
        (start + suspect.error_ns + slack_ns, end - suspect.error_ns)
        for start, end in zip(starts_ns.tolist(), ends_ns.tolist(), strict=True)
    ]
    inner = [(start, end) for start, end in inner if start < end]
    answers = sum(waiting.answers(start, end, address) for start, end in inner)
    usual = sum(end - start for start, end in inner) / waiting.gap_ns
    return answers if answers >= 2 and answers > _STRAY * usual else 0


def harmless(suspect: Suspect, waiting: Waiting, stalls: Sequence[Span], lasted_ns: int) -> int:
    """How many spans as long as that made nobody wait; 0 where more did, for that is chance."""
    least_ns = max(_ALIKE * lasted_ns, waiting.slow_ns + suspect.error_ns)
    window = waiting.window
    long = suspect.ends_ns - suspect.starts_ns >= least_ns
    long &= (suspect.ends_ns > window.start_ns) & (suspect.starts_ns < window.end_ns)
    starts_ns, ends_ns = suspect.starts_ns[long], suspect.ends_ns[long]
    begins_ns, over_ns = (np.array([getattr(span, name) for span in stalls]) for name in ("start_ns", "end_ns"))
    first = np.searchsorted(over_ns, starts_ns, side="right")
    hit = (first < len(begins_ns)) & (begins_ns[np.minimum(first, len(begins_ns) - 1)] < ends_ns)
    missed = int((~hit).sum())
    return missed if missed >= (_VARIES if suspect.varies else 1) * hit.sum() else 0


def held_none(suspect: Suspect, slow: Samples, ports: Samples) -> bool:
    """Whether no slow request that waited on its own connection did so meanwhile.

    After a stall those that wait for a user are many, and what makes the server a little slower then is no cause.
    """
    own = slow[ports[: len(slow)] > 0]
    if suspect.before_sending or not len(own):
        return False
    held = suspect.covered_ns(own["done_ns"]) - suspect.covered_ns(own["sent_ns"])
    return not (held >= _HELD * service_times_ns(own)).any()
