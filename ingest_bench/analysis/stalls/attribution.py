"""Stall attribution: spans in which requests waited far longer than usual, the causes that explain them, and messages.

A stall is a span in which requests waited more than 10 times the median, or seconds in which throughput fell below half
of its moving median. A cause is attributed if it begins and ends with the waiting of some of its requests
(`suspects.find_fits`), unless responses during it, or intervals of it that delayed no request, contradict it. Causes
that fit equally well are attributed together. Waiting without an attributed cause is unexplained.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.sample_columns import Samples, SampleSource
from ingest_bench.analysis.stalls import phases, suspects, waiting
from ingest_bench.analysis.stalls.phases import UNSPLIT
from ingest_bench.analysis.stalls.suspects import Suspect
from ingest_bench.analysis.stalls.waiting import Span, Waiting
from ingest_bench.model.experiment import Cell
from ingest_bench.model.results import Cause, CauseIntervals, ColumnValue, Note, Stall
from ingest_bench.model.samples import WorkerReport, response_times_ns, service_times_ns
from ingest_bench.units import format_count

# `Note.source` of notes about stalls.
STALL_SOURCE = "stall"
# A cause that covers a smaller share of the waiting is ruled out.
RULED_OUT = 0.1
# An explanation of a smaller share is chance: new requests begin to wait while a stall lasts.
_MIN_EXPLAINED = 0.15
_ANSWERED = "what was sent meanwhile was answered"
# If no CPU was free for this share of a thread's interval, the lack of CPU is the cause, not the thread's activity.
_STARVED = 0.8
# An instant cause (`CauseIntervals.is_instant`) has its first effect within this time.
_INSTANT_NS = 30_000_000
# Maximum numbers of stalls in a run's notes, and of ruled-out or undecided causes in one sentence.
_MAX_NOTES, _MAX_LISTED = 5, 4
_PHASES = {
    "client": "in the client",
    "wire": "on the wire",
    "reading": "being read",
    "processing": "being processed",
    "receiving": "being received",
    UNSPLIT: "in transit or in the server",
}


def find_stalls(
    samples: SampleSource,
    report: WorkerReport,
    median_ms: ColumnValue,
    causes: Iterable[CauseIntervals],
    reads: Samples | None = None,
    *,
    has_idle_spans: bool = False,
) -> tuple[Stall, ...]:
    """Return the stalls of a load's measurement with their causes; empty if the median response time is unknown.

    *causes*: what was watched for, on CLOCK_REALTIME. *reads*: the server's reads of the load's connections, if known.
    With *has_idle_spans* low throughput alone is no stall: nothing was due.
    """
    window, offset_ns = load.measurement_window(report), report.realtime_minus_monotonic_ns
    if not isinstance(median_ms, (int, float)) or window.length_s <= 0:
        return ()
    waited = waiting.find_waiting(samples, window, median_ms)
    spans = waiting.find_spans(waited, samples, has_idle_spans=has_idle_spans)
    all_suspects = suspects.build_suspects(causes, offset_ns)
    by_port = phases.reads_by_port(reads, offset_ns)
    return tuple(
        dataclasses.replace(
            _attribute(waited, span, spans, all_suspects),
            start_ns=span.start_ns + offset_ns,
            end_ns=span.end_ns + offset_ns,
            phases=phases.longest_phases(span.slow, by_port),
        )
        for span in spans
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    """A suspect, and what it has to do with a stall."""

    suspect: Suspect
    duration_ns: int
    """Its duration within the stall."""
    share: float
    """Share of the leading requests' waiting that it covers."""
    contradiction: str
    """Evidence against it; empty: none."""
    has_delayed: bool
    """Whether it can have delayed any request on its connection."""

    @property
    def is_ruled_out(self) -> bool:
        """Return whether it cannot be a cause."""
        return bool(self.contradiction) or self.share < RULED_OUT

    @property
    def objection(self) -> str:
        """Return why it is probably no cause; "" if nothing speaks against it."""
        is_answered = not self.has_delayed and self.share >= RULED_OUT
        return self.contradiction or (_ANSWERED if is_answered else "")

    def cause(self, reason: str) -> Cause:
        """Return the suspect as a cause of the stall."""
        return Cause(
            cause=self.suspect.watched.cause,
            thread=self.suspect.thread,
            port=self.suspect.port,
            node=self.suspect.watched.node,
            duration_ns=self.duration_ns,
            reason=reason,
        )


def _attribute(waited: Waiting, span: Span, spans: Sequence[Span], all_suspects: Sequence[Suspect]) -> Stall:
    """Return one stall with its causes, on the clock of the samples."""
    waits, ports, sent = _waits(span, waited)
    # Requests that queued for a user behind others do not show when a cause began.
    is_behind = np.concatenate(([False], np.maximum.accumulate(waits[:, 1])[:-1] > waits[1:, 0]))
    leads = np.flatnonzero((ports != 0) | ~is_behind)
    own = sent[leads]
    total_ns = max(1, int((own[:, 1] - own[:, 0]).sum()))
    judged = [
        _Judged(
            suspect,
            suspect.waited_ns(np.array([[span.start_ns, span.end_ns]])),
            suspect.waited_ns(own) / total_ns,
            suspects.find_contradiction(suspect, waited, span, spans),
            not suspects.delayed_no_request(suspect, span.slow, ports),
        )
        for suspect in all_suspects
    ]
    attributed, unexplained = _explain(waited, span, own, ports[leads], judged)
    # Requests that waited for a user waited for the same cause as the last leading request before them.
    unexplained = unexplained[np.searchsorted(leads, np.arange(len(waits)), side="right") - 1]
    starts_ns, ends_ns = suspects.merge_spans(*waits[unexplained].T)
    others = [item for item in judged if item.suspect not in attributed]
    return Stall(
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        requests=len(span.slow),
        max_concurrent=span.max_concurrent,
        longest_response_ns=int(response_times_ns(span.slow).max(initial=0)),
        causes=_merge(item.cause(item.objection) for item in judged if item.suspect in attributed),
        unexplained_ns=int((ends_ns - starts_ns).sum()),
        ruled_out=_merge((item.cause(item.objection) for item in others if item.is_ruled_out), by_thread=False),
        undecided=_merge(item.cause(_describe_misfit(item.suspect, waits)) for item in others if not item.is_ruled_out),
    )


def _explain(
    waited: Waiting, span: Span, own: Samples, ports: Samples, judged: Sequence[_Judged]
) -> tuple[set[Suspect], Samples]:
    """Return the attributed suspects, and a mask of the leading requests that remain unexplained.

    *own*, *ports*: when and on which connections the leading requests waited.
    """
    total_ns = max(1, int((own[:, 1] - own[:, 0]).sum()))
    possible = [item.suspect for item in judged if item.has_delayed and not item.contradiction and item.duration_ns]
    starving = _starving(possible, span)
    attributed: set[Suspect] = set()
    unexplained = np.ones(len(own), dtype=bool)
    while unexplained.any():
        fits = suspects.find_fits(waited, own[unexplained], ports[unexplained], possible)
        if not fits or fits[0].weight_ns < _MIN_EXPLAINED * total_ns:
            break
        # A single thread's activity may have lasted that long because of a cause that affected all threads.
        fits = [fit for fit in fits if not any(suspect.thread for suspect in fit.causes)] or fits
        for suspect in (suspect for fit in fits for suspect in fit.causes):
            attributed.update(starving.get(suspect, (suspect,)))
        unexplained[np.flatnonzero(unexplained)[np.logical_or.reduce([fit.explained for fit in fits])]] = False
    if unexplained.any():
        first_ns = int(own[unexplained, 0].min())
        instant = set()
        for suspect in (item.suspect for item in judged if item.suspect.watched.is_instant):
            delay_ns = suspect.starts_ns - first_ns
            if ((delay_ns >= -_INSTANT_NS) & (delay_ns <= waited.lead_ns)).any():
                instant.add(suspect)
        attributed |= instant
        unexplained &= not instant
    if any(suspect.watched.blocks_responses for suspect in attributed):
        # Activities of threads took longer only because the threads were blocked as well.
        attributed = {suspect for suspect in attributed if not suspect.thread}
    return attributed, unexplained


def _starving(possible: Sequence[Suspect], span: Span) -> dict[Suspect, tuple[Suspect, ...]]:
    """Return, for each thread's activity that had no CPU most of the time, the suspects that took the CPU."""
    takers = [suspect for suspect in possible if suspect.watched.starves_cpu]
    starving = {}
    for suspect in (suspect for suspect in possible if suspect.thread):
        own = np.column_stack(suspect.within(span.start_ns, span.end_ns)).clip(span.start_ns, span.end_ns)
        threshold_ns = _STARVED * int((own[:, 1] - own[:, 0]).sum())
        if own_takers := tuple(taker for taker in takers if taker.waited_ns(own) >= threshold_ns):
            starving[suspect] = own_takers
    return starving


def _waits(span: Span, waited: Waiting) -> tuple[Samples, Samples, Samples]:
    """Return when each slow request waited, its connection, and when it waited on that connection.

    Times are rows of start and end within the measurement; those of the stall if only throughput fell. Connection 0: it
    waited for a free user; -1: only throughput fell.

    A request that was sent after the measurement waited for a user within it. So did a request that spent little of its
    time on its connection: after a stall users catch up, and are a little slower than usual.
    """
    slow, window = span.slow, waited.window
    if not len(slow):
        waits = np.array([[span.start_ns, span.end_ns]])
        return waits, np.full(1, -1), waits
    service_ns = service_times_ns(slow)
    on_connection = (service_ns > waited.slow_ns / 2) & (slow["sent_ns"] < window.end_ns)
    on_connection &= service_ns >= _MIN_EXPLAINED * response_times_ns(slow)
    ports = np.where(on_connection, slow["local_port"], 0)
    waits = np.column_stack((slow["scheduled_ns"], slow["done_ns"])).clip(window.start_ns, window.end_ns)
    begins_ns = np.where(ports > 0, np.maximum(slow["sent_ns"], waits[:, 0]), waits[:, 0])
    return waits, ports, np.column_stack((begins_ns, waits[:, 1]))


def _describe_misfit(suspect: Suspect, waits: Samples) -> str:
    """Return how a cause that occurred within a stall differs from its waiting."""
    first_ns, last_ns = int(waits[:, 0].min()), int(waits[:, 1].max())
    starts_ns, ends_ns = suspect.within(first_ns, last_ns)
    if not len(starts_ns):
        return ""
    differences_ns = {
        "began {:.2f} s before": first_ns - int(starts_ns[0]),
        "began {:.2f} s later": int(starts_ns[0]) - first_ns,
        "ended {:.2f} s before": last_ns - int(ends_ns[-1]),
        "continued for {:.2f} s": int(ends_ns[-1]) - last_ns,
    }
    text, largest_ns = max(differences_ns.items(), key=lambda item: item[1])
    return text.format(largest_ns / 1e9)


def _merge(causes: Iterable[Cause], *, by_thread: bool = True) -> tuple[Cause, ...]:
    """Return the causes, longest first; the same cause on several connections is one cause.

    If not *by_thread*, each cause of a node is represented by its longest thread.
    """
    groups: dict[tuple[str, int | None, str], list[Cause]] = {}
    for cause in sorted(causes, key=lambda cause: (-cause.duration_ns, cause.cause, cause.thread, cause.port)):
        groups.setdefault((cause.cause, cause.node, cause.thread if by_thread else ""), []).append(cause)
    return tuple(
        dataclasses.replace(first, port=0 if more and by_thread else first.port) for first, *more in groups.values()
    )


def stall_columns(stalls: Sequence[Stall]) -> dict[str, ColumnValue]:
    """Return the columns about stalls."""
    # Single requests may wait longer still while throughput is low: overlapping stalls count once.
    ends_ns = np.array([(stall.start_ns, stall.end_ns) for stall in stalls]).reshape(-1, 2)
    starts_ns, ends_ns = suspects.merge_spans(*ends_ns.T)
    stalled_ns = int((ends_ns - starts_ns).sum())
    unexplained_ns = min(sum(stall.unexplained_ns for stall in stalls), stalled_ns)
    totals = Counter[str]()
    for stall in stalls:
        for name in {cause.cause for cause in stall.causes}:
            totals[name] += max(cause.duration_ns for cause in stall.causes if cause.cause == name)
    if unexplained_ns:
        totals["unexplained"] = unexplained_ns
    return {
        "stalls": len(stalls),
        "stalled_s": stalled_ns / 1e9,
        "stall_cause_top": max(totals, key=lambda name: totals[name], default=None),
        "stalled_unexplained_s": unexplained_ns / 1e9,
    }


def note_stalls(stalls: Sequence[Stall], report: WorkerReport, samples: SampleSource, cell: Cell) -> list[Note]:
    """Return a sentence for each of the longest stalls in order of time, and which probe would have seen more."""
    if not stalls:
        return []
    start_ns = report.warm_up_end_ns + report.realtime_minus_monotonic_ns
    users = 0
    if not report.is_open_loop:
        numbers = (np.unique(batch["user"]).tolist() for batch in load.iterate_batches(samples))
        users = len(set[int]().union(*numbers) - {-1})
    longest = sorted(stalls, key=lambda stall: stall.start_ns - stall.end_ns)[:_MAX_NOTES]
    texts = [describe_stall(stall, start_ns, users) for stall in sorted(longest, key=lambda stall: stall.start_ns)]
    if len(stalls) > _MAX_NOTES:
        texts.append(f"{len(stalls) - _MAX_NOTES} more, shorter stalls: report/stalls.csv")
    is_blind = "stalls" not in cell.probes and cell.target.observer != "external"
    if is_blind and any(map(_is_partly_unexplained, stalls)):
        probes = ", ".join(f'"{name}"' for name in (*cell.probes, "stalls"))
        texts.append(f"the server's threads were not watched: set probes = [{probes}] in the experiment's file")
    return [Note(source=STALL_SOURCE, text=text) for text in texts]


def describe_stall(stall: Stall, start_ns: int, users: int) -> str:
    """Return one stall in one line; seconds are from the start of the measurement.

    *users*: number of users of a closed loop, each with one connection and one request at a time; 0 for an open loop,
    whose requests may also wait for a user.
    """
    first, last = ((time_ns - start_ns) / 1e9 for time_ns in (stall.start_ns, stall.end_ns))
    if not stall.requests:
        waited = "throughput was below half of its usual value"
    elif users:
        waited = f"{stall.max_concurrent} of {users} connections waited"
    else:
        waited = f"{format_count(stall.max_concurrent, 'request')} waited at once"
    if stall.requests:
        waited += f", the longest {stall.longest_response_ns / 1e9:.2f} s"
    text = f"{first:.2f}-{last:.2f} s: {waited}, unexplained"
    if stall.causes:
        causes = " and ".join(f"{format_cause(cause)} ({cause.duration_ns / 1e9:.2f} s)" for cause in stall.causes)
        text = f"{first:.2f}-{last:.2f} s: {waited}, while: {causes}"
        if _is_partly_unexplained(stall):
            text += f", {stall.unexplained_ns / 1e9:.2f} s of it unexplained"
    for title, others in (("undecided", stall.undecided), ("ruled out", stall.ruled_out)):
        text += f"; {title}: {list_causes(others)}" if others else ""
    if stall.phases:
        name, longest_ns = max(stall.phases, key=lambda phase: phase[1])
        text += f"; the longest was {_PHASES[name]} for {longest_ns / 1e9:.2f} s"
    return text


def _is_partly_unexplained(stall: Stall) -> bool:
    """Return whether a relevant part of the stall is unexplained."""
    return stall.unexplained_ns >= RULED_OUT * (stall.end_ns - stall.start_ns)


def format_cause(cause: Cause) -> str:
    """Return a cause with its thread, port and node: "Lucene flushed a segment in opensearch[write][T#2]"."""
    text = f"{cause.cause} in {cause.thread}" if cause.thread else cause.cause
    text = f"{text} on port {cause.port}" if cause.port else text
    return f"{text} of node {cause.node}" if cause.node is not None else text


def list_causes(causes: Sequence[Cause]) -> str:
    """Return the first causes with the reason or their duration, and the number of further ones."""
    texts = []
    for cause in causes[:_MAX_LISTED]:
        detail = cause.reason or (f"{cause.duration_ns / 1e9:.2f} s" if cause.duration_ns else "")
        texts.append(f"{format_cause(cause)} ({detail})" if detail else format_cause(cause))
    more = len(causes) - _MAX_LISTED
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")
