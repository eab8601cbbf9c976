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
from ingest_bench.analysis.run.sample_columns import Samples, SampleSource, Window
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


def find_load_stalls(
    samples: SampleSource,
    report: WorkerReport,
    median_ms: ColumnValue,
    causes: Sequence[CauseIntervals],
    reads: Samples | None = None,
) -> tuple[Stall, ...]:
    """Return the stalls of a load's measurement (`find_stalls`)."""
    window = load.measurement_window(report)
    return find_stalls(samples, window, median_ms, causes, report.realtime_minus_monotonic_ns, reads)


def find_stalls(
    samples: SampleSource,
    window: Window,
    median_ms: ColumnValue,
    causes: Sequence[CauseIntervals],
    realtime_minus_monotonic_ns: int,
    reads: Samples | None = None,
) -> tuple[Stall, ...]:
    """Return the stalls of the measurement with their causes; empty if the median is unknown.

    *causes*: what was watched for, on CLOCK_REALTIME. *reads*: the server's reads of the load's connections, if known.
    """
    if not isinstance(median_ms, (int, float)) or window.length_s <= 0:
        return ()
    waited = waiting.find_waiting(samples, window, median_ms)
    spans = waiting.find_spans(waited, samples)
    if not spans:
        return ()
    all_suspects = suspects.build_suspects(causes, realtime_minus_monotonic_ns)
    by_port = phases.reads_by_port(reads, realtime_minus_monotonic_ns)
    return tuple(
        dataclasses.replace(
            _attribute(_Evidence.collect(waited, span, spans, all_suspects)),
            start_ns=span.start_ns + realtime_minus_monotonic_ns,
            end_ns=span.end_ns + realtime_minus_monotonic_ns,
            phases=phases.longest_phases(span.slow, by_port),
        )
        for span in spans
    )


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The waiting of one stall, and what each suspect has to do with it; lists are indexed as `suspects`."""

    waiting: Waiting
    span: Span
    suspects: Sequence[Suspect]
    waits: Samples
    """Start and end of each slow request's waiting."""
    ports: Samples
    """Its connection; 0: it waited for a free user; -1: only throughput fell."""
    leads: Samples
    """Indices of the requests that show when a cause began."""
    shares: Sequence[float]
    """Share of the leading requests' waiting that each suspect covers."""
    contradictions: Sequence[str]
    """Evidence against each suspect; empty: none."""
    has_delayed: Sequence[bool]
    """Whether each suspect can have delayed any request on its connection."""

    @classmethod
    def collect(cls, waited: Waiting, span: Span, spans: Sequence[Span], all_suspects: Sequence[Suspect]) -> _Evidence:
        waits, ports = _waits(span, waited.window), _ports(span, waited)
        leads = np.flatnonzero(_is_lead(waits, ports))
        own = _from_sending(span, waits, ports)[leads]
        total_ns = max(1, int((own[:, 1] - own[:, 0]).sum()))
        return cls(
            waited,
            span,
            all_suspects,
            waits,
            ports,
            leads,
            shares=[
                int((suspect.covered_ns(own[:, 1]) - suspect.covered_ns(own[:, 0])).sum()) / total_ns
                for suspect in all_suspects
            ],
            contradictions=[_contradiction(suspect, waited, span, spans) for suspect in all_suspects],
            has_delayed=[not suspects.delayed_no_request(suspect, span.slow, ports) for suspect in all_suspects],
        )

    def cause(self, place: int) -> Cause:
        """Return a suspect as a cause of the stall."""
        suspect = self.suspects[place]
        is_answered = not self.has_delayed[place] and self.shares[place] >= RULED_OUT
        return Cause(
            cause=suspect.cause,
            thread=suspect.thread,
            port=suspect.port,
            node=suspect.node,
            duration_ns=suspect.duration_ns(self.span.start_ns, self.span.end_ns),
            reason=self.contradictions[place] or (_ANSWERED if is_answered else ""),
        )

    def is_ruled_out(self, place: int) -> bool:
        """Return whether a suspect cannot be a cause."""
        return bool(self.contradictions[place]) or self.shares[place] < RULED_OUT


def _attribute(evidence: _Evidence) -> Stall:
    """Return one stall with its causes, on the clock of the samples."""
    span, waits = evidence.span, evidence.waits
    attributed, unexplained = _explain(evidence)
    # Requests that waited for a user waited for the same cause as the last leading request before them.
    unexplained = unexplained[np.searchsorted(evidence.leads, np.arange(len(waits)), side="right") - 1]
    if any(evidence.suspects[place].blocks_responses for place in attributed):
        # Activities of threads took longer only because the threads were blocked as well.
        attributed = {place for place in attributed if not evidence.suspects[place].thread}
    starts_ns, ends_ns = suspects.merge_spans(*waits[unexplained].T)
    others = [place for place in range(len(evidence.suspects)) if place not in attributed]
    undecided = [place for place in others if not evidence.is_ruled_out(place)]
    return Stall(
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        requests=len(span.slow),
        max_concurrent=span.max_concurrent,
        longest_response_ns=int(response_times_ns(span.slow).max()) if len(span.slow) else 0,
        causes=_merge_ports(evidence.cause(place) for place in attributed),
        unexplained_ns=int((ends_ns - starts_ns).sum()),
        ruled_out=_merge_threads(evidence.cause(place) for place in others if evidence.is_ruled_out(place)),
        undecided=_merge_ports(
            dataclasses.replace(evidence.cause(place), reason=_describe_misfit(evidence.suspects[place], waits))
            for place in undecided
        ),
    )


def _explain(evidence: _Evidence) -> tuple[set[int], Samples]:
    """Return the attributed suspects, and a mask of the leading requests that remain unexplained."""
    waited, span = evidence.waiting, evidence.span
    own = _from_sending(span, evidence.waits, evidence.ports)[evidence.leads]
    ports = evidence.ports[evidence.leads]
    total_ns = max(1, int((own[:, 1] - own[:, 0]).sum()))
    possible = [
        (place, suspect)
        for place, suspect in enumerate(evidence.suspects)
        if evidence.has_delayed[place]
        and not evidence.contradictions[place]
        and suspect.duration_ns(span.start_ns, span.end_ns)
    ]
    starving = _starving(possible, span)
    attributed: set[int] = set()
    unexplained = np.ones(len(own), dtype=bool)
    while unexplained.any():
        fits = suspects.find_fits(waited, own[unexplained], ports[unexplained], [suspect for _, suspect in possible])
        if not fits or fits[0].weight_ns < _MIN_EXPLAINED * total_ns:
            break
        # A single thread's activity may have lasted that long because of a cause that affected all threads.
        of_all_threads = [fit for fit in fits if not any(possible[number][1].thread for number in fit.causes)]
        fits = of_all_threads or fits
        for place in (possible[number][0] for fit in fits for number in fit.causes):
            attributed.update(starving.get(place, (place,)))
        unexplained[np.flatnonzero(unexplained)[np.logical_or.reduce([fit.explained for fit in fits])]] = False
    if unexplained.any():
        lead_ns = suspects.lead_ns(waited)
        instant = [
            place
            for place, suspect in enumerate(evidence.suspects)
            if suspect.is_instant and _begins_with(suspect, own[unexplained], lead_ns)
        ]
        attributed.update(instant)
        unexplained &= not instant
    return attributed, unexplained


def _starving(possible: Sequence[tuple[int, Suspect]], span: Span) -> dict[int, tuple[int, ...]]:
    """Return, for each thread's activity that had no CPU most of the time, the suspects that took the CPU."""
    takers = [(place, suspect) for place, suspect in possible if suspect.starves_cpu]
    starving = {}
    for place, suspect in possible:
        if not suspect.thread:
            continue
        starts_ns, ends_ns = (
            times_ns.clip(span.start_ns, span.end_ns) for times_ns in suspect.within(span.start_ns, span.end_ns)
        )
        threshold_ns = _STARVED * int((ends_ns - starts_ns).sum())
        own_takers = tuple(
            taker_place
            for taker_place, taker in takers
            if (taker.covered_ns(ends_ns) - taker.covered_ns(starts_ns)).sum() >= threshold_ns
        )
        if own_takers:
            starving[place] = own_takers
    return starving


def _waits(span: Span, window: Window) -> Samples:
    """Return the ends of each slow request within the measurement; of the stall if only throughput fell."""
    if not len(span.slow):
        return np.array([[span.start_ns, span.end_ns]])
    ends = np.column_stack((span.slow["scheduled_ns"], span.slow["done_ns"]))
    return ends.clip(window.start_ns, window.end_ns)


def _ports(span: Span, waited: Waiting) -> Samples:
    """Return the connection on which each slow request waited; 0: it waited for a free user; -1: only throughput fell.

    A request that was sent after the measurement waited for a user within it. So did a request that spent little of its
    time on its connection: after a stall users catch up, and are a little slower than usual.
    """
    slow = span.slow
    if not len(slow):
        return np.full(1, -1)
    service_ns = service_times_ns(slow)
    on_connection = (service_ns > waited.slow_ns / 2) & (slow["sent_ns"] < waited.window.end_ns)
    on_connection &= service_ns >= _MIN_EXPLAINED * response_times_ns(slow)
    ports: Samples = np.where(on_connection, slow["local_port"], 0)
    return ports


def _from_sending(span: Span, waits: Samples, ports: Samples) -> Samples:
    """Return the same ends, but from the sending on for requests that waited on their connection."""
    ends = waits.copy()
    if len(span.slow):
        ends[:, 0] = np.where(ports > 0, np.maximum(span.slow["sent_ns"], waits[:, 0]), waits[:, 0])
    return ends


def _is_lead(waits: Samples, ports: Samples) -> Samples:
    """Return a mask of the requests that show when a cause began: not those queued for a user behind others."""
    reached = np.maximum.accumulate(waits[:, 1])
    is_behind: Samples = np.concatenate(([False], reached[:-1] > waits[1:, 0]))
    is_lead: Samples = (ports != 0) | ~is_behind
    return is_lead


def _contradiction(suspect: Suspect, waited: Waiting, span: Span, spans: Sequence[Span]) -> str:
    """Return the evidence against a suspect, whatever it covers; "" without any."""
    if responses := suspects.count_responses_during(suspect, waited, span, suspects.lead_ns(waited)):
        return f"{responses} responses meanwhile"
    starts_ns, ends_ns = suspect.within(span.start_ns, span.end_ns)
    longest_ns = int((ends_ns - starts_ns).max()) if len(starts_ns) else 0
    if longest_ns and (harmless := suspects.count_harmless_spans(suspect, waited, spans, longest_ns)):
        return f"{harmless} as long delayed no request"
    return ""


def _begins_with(suspect: Suspect, waits: Samples, lead_ns: int) -> bool:
    """Return whether an instant cause occurred when the first request began to wait."""
    first_ns = int(waits[:, 0].min())
    return bool(((suspect.starts_ns >= first_ns - _INSTANT_NS) & (suspect.starts_ns <= first_ns + lead_ns)).any())


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


def _longest_first(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    return tuple(sorted(causes, key=lambda cause: (-cause.duration_ns, cause.cause, cause.thread, cause.port)))


def _merge_ports(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """Return the causes, longest first; the same cause on several connections is one cause."""
    groups: dict[tuple[str, int | None, str], list[Cause]] = {}
    for cause in _longest_first(causes):
        groups.setdefault((cause.cause, cause.node, cause.thread), []).append(cause)
    return tuple(dataclasses.replace(first, port=0 if more else first.port) for first, *more in groups.values())


def _merge_threads(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """Return each cause of a node once, represented by its longest thread."""
    longest: dict[tuple[str, int | None], Cause] = {}
    for cause in _longest_first(causes):
        longest.setdefault((cause.cause, cause.node), cause)
    return tuple(longest.values())


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
    users = 0 if report.is_open_loop else _count_users(samples)
    longest = sorted(stalls, key=lambda stall: stall.start_ns - stall.end_ns)[:_MAX_NOTES]
    texts = [describe_stall(stall, start_ns, users) for stall in sorted(longest, key=lambda stall: stall.start_ns)]
    if len(stalls) > _MAX_NOTES:
        texts.append(f"{len(stalls) - _MAX_NOTES} more, shorter stalls: report/stalls.csv")
    is_blind = "stalls" not in cell.probes and cell.target.observer != "external"
    if is_blind and any(map(_is_partly_unexplained, stalls)):
        probes = ", ".join(f'"{name}"' for name in (*cell.probes, "stalls"))
        texts.append(f"the server's threads were not watched: set probes = [{probes}] in the experiment's file")
    return [Note(source=STALL_SOURCE, text=text) for text in texts]


def _count_users(samples: SampleSource) -> int:
    return len(
        {int(user) for batch, _ in load.iterate_batches(samples) for user in np.unique(batch["user"]) if user >= 0}
    )


def describe_stall(stall: Stall, start_ns: int, users: int) -> str:
    """Return one stall in one line; seconds are from the start of the measurement.

    *users*: number of users of a closed loop, each with one connection and one request at a time; 0 for an open loop,
    whose requests may also wait for a user.
    """
    first, last = ((time_ns - start_ns) / 1e9 for time_ns in (stall.start_ns, stall.end_ns))
    lists = (("undecided", stall.undecided), ("ruled out", stall.ruled_out))
    others = "".join(f"; {title}: {list_causes(causes)}" for title, causes in lists if causes)
    return (
        f"{first:.2f}-{last:.2f} s: {_describe_waiting(stall, users)}{_describe_causes(stall)}{others}{_phase(stall)}"
    )


def _describe_waiting(stall: Stall, users: int) -> str:
    if not stall.requests:
        return "throughput was below half of its usual value"
    waited = f"{stall.max_concurrent} of {users} connections waited"
    if not users:
        waited = f"{format_count(stall.max_concurrent, 'request')} waited at once"
    return f"{waited}, the longest {stall.longest_response_ns / 1e9:.2f} s"


def _describe_causes(stall: Stall) -> str:
    if not stall.causes:
        return ", unexplained"
    text = " and ".join(f"{format_cause(cause)} ({cause.duration_ns / 1e9:.2f} s)" for cause in stall.causes)
    unexplained = f", {stall.unexplained_ns / 1e9:.2f} s of it unexplained" if _is_partly_unexplained(stall) else ""
    return f", while: {text}{unexplained}"


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


def _phase(stall: Stall) -> str:
    if not stall.phases:
        return ""
    name, longest_ns = max(stall.phases, key=lambda phase: phase[1])
    return f"; the longest was {_PHASES[name]} for {longest_ns / 1e9:.2f} s"
