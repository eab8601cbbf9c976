"""Suspected causes of stalls: their intervals, the evidence against them, and which of them explain waiting requests.

A cause that covers a part of the waiting is no explanation: some intervals of a bystander lie in a stall by chance. An
explanation has to begin when the first of its requests began to wait, and to end when the last of them got its
response; several causes may follow one another. A cause that began earlier did not delay requests then, so it does not
explain later ones; likewise a cause that continued. A cause of connections, such as lost packets, is one cause for all
connections: each connection's requests are compared with its own intervals, and matching connections count together.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ingest_bench.analysis.run.sample_columns import Samples
from ingest_bench.analysis.stalls.waiting import Span, Waiting
from ingest_bench.model.results import CauseIntervals, FaultRecord, Interval
from ingest_bench.model.samples import WorkerReport, service_times_ns

GENERATOR = "the load generator's event loop stalled"
# Timing error of an event-loop stall: it is detected by a timer of 50 ms (load.health).
_TIMER_NS = 60_000_000
# Timing error of a fault: some start programs (tc, jcmd) after the recorded time.
_FAULT_NS = 150_000_000
# A shorter fault, such as a reset, has no duration of its own; only its effect has.
_INSTANT_NS = 100_000_000
# During these faults nothing of the node responds; during the others its threads get no CPU.
_BLOCKING, _STARVING = frozenset(("pause",)), frozenset(("cpu",))

# Intervals closer than this are merged: threads are sampled 20 to 50 times a second.
_BRIDGE_NS = 60_000_000
# Responses during a blocking cause, as a share of the usual number; fewer may have been in transit.
_STRAY = 0.25
# Another interval is comparable from this share of the length on.
_ALIKE = 0.8
# Minimum share of a request's service time that a cause of it covers.
_HELD = 0.15
# A cause of varying strength may have this many times as many harmless intervals as harmful ones.
_VARIES = 3

# After a stall its requests are finished one after the other: tolerated share of the stall, and maximum.
_AFTER, _MAX_AFTER_NS = 0.15, 500_000_000
# Minimum share of a request's time that its causes cover.
_COVERED = 0.5
# Each of several causes must be necessary: without it this much less is covered.
_NEEDED = 0.1
# Explanations within this factor of the best one are equally good.
_AS_GOOD = 0.95
# Maximum causes of one explanation; of more suspects those that cover most are tried.
_MAX_CAUSES, _MAX_TRIED = 3, 12


def fault_causes(faults: Sequence[FaultRecord], end_ns: int) -> list[CauseIntervals]:
    """Return the intervals of each kind of fault on each node."""
    by_kind: dict[tuple[str, int | None], list[FaultRecord]] = {}
    for fault in faults:
        by_kind.setdefault((fault.kind, fault.node), []).append(fault)
    causes = []
    for (kind, node), records in by_kind.items():
        name = f"fault {kind}"
        intervals = tuple(Interval(name, fault.start_ns, fault.end_ns or end_ns) for fault in records)
        causes.append(
            CauseIntervals(
                name,
                intervals,
                node,
                blocks_responses=kind in _BLOCKING,
                is_instant=all(interval.end_ns - interval.start_ns < _INSTANT_NS for interval in intervals),
                varies_in_strength=True,
                starves_cpu=kind in _STARVING,
                timing_error_ns=_FAULT_NS,
            )
        )
    return causes


def generator_causes(loop_stalls: Sequence[Samples], report: WorkerReport) -> list[CauseIntervals]:
    """Return the event-loop stalls of the load's processes; empty if none was recorded."""
    if not loop_stalls:
        return []
    offset_ns = report.realtime_minus_monotonic_ns
    intervals = tuple(
        Interval(GENERATOR, start_ns + offset_ns, end_ns + offset_ns)
        for process in loop_stalls
        for start_ns, end_ns in zip(process["start_ns"].tolist(), process["end_ns"].tolist(), strict=True)
    )
    is_only_process = len(loop_stalls) == 1
    return [
        CauseIntervals(
            GENERATOR, intervals, blocks_responses=is_only_process, delays_sending=True, timing_error_ns=_TIMER_NS
        )
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Suspect:
    """One cause on one thread, connection or node, with disjoint spans on the clock of the samples."""

    watched: CauseIntervals
    """The cause with its node and flags; its intervals on other threads and connections are other suspects."""
    thread: str
    port: int
    starts_ns: Samples
    ends_ns: Samples

    def covered_ns(self, times_ns: Samples) -> Samples:
        """Return its total duration before each time."""
        return covered_ns(self.starts_ns, self.ends_ns, times_ns)

    def waited_ns(self, waits: Samples) -> int:
        """Return its total duration during all these waits, given as rows of start and end."""
        return int((self.covered_ns(waits[:, 1]) - self.covered_ns(waits[:, 0])).sum())

    def within(self, start_ns: int, end_ns: int) -> tuple[Samples, Samples]:
        """Return its complete spans that overlap the time between *start_ns* and *end_ns*."""
        first = int(np.searchsorted(self.ends_ns, start_ns, side="right"))
        last = int(np.searchsorted(self.starts_ns, end_ns, side="left"))
        return self.starts_ns[first:last], self.ends_ns[first:last]


def covered_ns(starts_ns: Samples, ends_ns: Samples, times_ns: Samples) -> Samples:
    """Return the total duration of disjoint spans before each time."""
    lengths = ends_ns - starts_ns
    before = np.concatenate(([0], np.cumsum(lengths)))
    place = np.searchsorted(starts_ns, times_ns, side="right")
    last = np.maximum(place - 1, 0)
    inside = np.minimum(times_ns - starts_ns[last], lengths[last]) if len(lengths) else np.zeros_like(times_ns)
    total_ns: Samples = np.where(place > 0, before[last] + inside, 0)
    return total_ns


def merge_spans(starts_ns: Samples, ends_ns: Samples, gap_ns: int = 0) -> tuple[Samples, Samples]:
    """Return the spans in order; those that overlap, or are at most *gap_ns* apart, are merged."""
    if not len(starts_ns):
        return starts_ns, ends_ns
    order = np.argsort(starts_ns, kind="stable")
    starts_ns, reached = starts_ns[order], np.maximum.accumulate(ends_ns[order])
    begins = np.concatenate(([True], starts_ns[1:] > reached[:-1] + gap_ns))
    ends = np.append(np.flatnonzero(begins)[1:] - 1, len(reached) - 1)
    return starts_ns[begins], reached[ends]


def build_suspects(causes: Iterable[CauseIntervals], offset_ns: int) -> list[Suspect]:
    """Return a suspect for each cause, node, thread and connection; one without spans if the cause never occurred.

    *offset_ns*: CLOCK_REALTIME, which the intervals are on, minus the clock of the samples.
    """
    merged: dict[tuple[str, int | None], CauseIntervals] = {}
    for item in causes:
        other = merged.setdefault((item.cause, item.node), item)
        if other is not item:
            # The GC log and the flight recording have the same pauses.
            intervals, error_ns = (*other.intervals, *item.intervals), max(item.timing_error_ns, other.timing_error_ns)
            merged[item.cause, item.node] = dataclasses.replace(item, intervals=intervals, timing_error_ns=error_ns)
    suspects = []
    for item in merged.values():
        ends_ns: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for interval in item.intervals:
            ends_ns.setdefault((interval.thread, interval.port), []).append((interval.start_ns, interval.end_ns))
        for (thread, port), own in (ends_ns or {("", 0): []}).items():
            starts, ends = np.array(own, dtype=np.int64).reshape(-1, 2).T - offset_ns
            suspects.append(Suspect(item, thread, port, *merge_spans(starts, ends, _BRIDGE_NS)))
    return suspects


def find_contradiction(suspect: Suspect, waiting: Waiting, span: Span, stalls: Sequence[Span]) -> str:
    """Return the evidence against a suspect of one of the stalls, whatever it covers; "" without any."""
    starts_ns, ends_ns = suspect.within(span.start_ns, span.end_ns)
    if suspect.watched.blocks_responses and (responses := _count_responses(suspect, waiting, starts_ns, ends_ns)):
        return f"{responses} responses meanwhile"
    longest_ns = int((ends_ns - starts_ns).max(initial=0))
    if longest_ns and (harmless := _count_harmless_spans(suspect, waiting, stalls, longest_ns)):
        return f"{harmless} as long delayed no request"
    return ""


def _count_responses(suspect: Suspect, waiting: Waiting, starts_ns: Samples, ends_ns: Samples) -> int:
    """Return the number of responses during these spans that rule out a blocking cause; 0 if it is possible.

    Responses in transit still arrive after the cause has begun. For a cause of a node, only responses from its address
    count.
    """
    node, error_ns = suspect.watched.node, suspect.watched.timing_error_ns
    address = None if node is None or node - 1 not in waiting.answered else node - 1
    certain = [
        (start + error_ns + waiting.lead_ns, end - error_ns)
        for start, end in zip(starts_ns.tolist(), ends_ns.tolist(), strict=True)
    ]
    certain = [(start, end) for start, end in certain if start < end]
    responses = sum(waiting.count_responses(start, end, address) for start, end in certain)
    usual = sum(end - start for start, end in certain) / waiting.gap_ns
    return responses if responses >= 2 and responses > _STRAY * usual else 0


def _count_harmless_spans(suspect: Suspect, waiting: Waiting, stalls: Sequence[Span], duration_ns: int) -> int:
    """Return the number of spans at least as long that delayed no request; 0 if more spans did delay requests."""
    shortest_ns = max(_ALIKE * duration_ns, waiting.slow_ns + suspect.watched.timing_error_ns)
    window = waiting.window
    is_long = suspect.ends_ns - suspect.starts_ns >= shortest_ns
    is_long &= (suspect.ends_ns > window.start_ns) & (suspect.starts_ns < window.end_ns)
    starts_ns, ends_ns = suspect.starts_ns[is_long], suspect.ends_ns[is_long]
    stall_starts_ns = np.array([span.start_ns for span in stalls])
    stall_ends_ns = np.array([span.end_ns for span in stalls])
    first = np.searchsorted(stall_ends_ns, starts_ns, side="right")
    hit = (first < len(stalls)) & (stall_starts_ns[np.minimum(first, len(stalls) - 1)] < ends_ns)
    harmless = int((~hit).sum())
    return harmless if harmless >= (_VARIES if suspect.watched.varies_in_strength else 1) * hit.sum() else 0


def delayed_no_request(suspect: Suspect, slow: Samples, ports: Samples) -> bool:
    """Return whether the cause covers too little of every slow request that waited on its own connection.

    After a stall many requests wait for a user; a cause that then slows the server a little is not their cause.
    """
    own = slow[ports[: len(slow)] > 0]
    if suspect.watched.delays_sending or not len(own):
        return False
    held_ns = suspect.covered_ns(own["done_ns"]) - suspect.covered_ns(own["sent_ns"])
    return not (held_ns >= _HELD * service_times_ns(own)).any()


@dataclass(frozen=True, slots=True)
class Fit:
    """Causes that together explain some requests of a stall."""

    causes: tuple[Suspect, ...]
    explained: Samples
    """Mask of the explained requests."""
    weight_ns: int
    """Their total waiting time."""


def find_fits(waiting: Waiting, waits: Samples, ports: Samples, suspects: Sequence[Suspect]) -> list[Fit]:
    """Return all explanations about as good as the best one, each with as few causes as possible; empty: unexplained.

    *waits*: start and end of each request's waiting, on the clock of the samples. *ports*: its connection, -1 if only
    throughput fell.
    """
    if not len(waits):
        return []
    candidates = _candidates(waiting, waits, ports, suspects)
    best: list[Fit] = []
    # The ends of a drop in throughput are not known well enough for more than one cause.
    max_causes = _MAX_CAUSES if (ports >= 0).any() else 1
    for size in range(1, max_causes + 1):
        fits = []
        for chosen in itertools.combinations(candidates, size):
            on_threads = [item.suspects[0] for item in chosen if item.suspects[0].thread]
            different = ({item.watched.cause for item in on_threads}, {item.thread for item in on_threads})
            # Different causes on different threads follow one another only by chance.
            if min(map(len, different)) <= 1 and (fit := _fit(waiting, waits, ports, chosen)) is not None:
                fits.append(fit)
        # More causes must explain more.
        threshold_ns = max((fit.weight_ns for fit in best), default=0) * (1 + _NEEDED)
        fits = [fit for fit in fits if fit.weight_ns > threshold_ns]
        if fits:
            heaviest_ns = max(fit.weight_ns for fit in fits)
            best = [fit for fit in fits if fit.weight_ns >= _AS_GOOD * heaviest_ns]
    return best


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One cause of one node and thread, on all affected connections, with its spans near the waiting."""

    suspects: tuple[Suspect, ...]
    """One, or one per connection."""
    starts_ns: Samples
    ends_ns: Samples
    ports: Samples
    """The connection of each span; 0: all of them."""


def _candidates(waiting: Waiting, waits: Samples, ports: Samples, suspects: Sequence[Suspect]) -> list[_Candidate]:
    """Return the causes that cover most of the waiting, at most `_MAX_TRIED`, in the order of the suspects."""
    groups: dict[tuple[str, int | None, str, bool], list[Suspect]] = {}
    for suspect in suspects:
        watched = suspect.watched
        groups.setdefault((watched.cause, watched.node, suspect.thread, suspect.port > 0), []).append(suspect)
    covered = {
        key: sum(item.waited_ns(waits[ports == item.port] if item.port else waits) for item in own)
        for key, own in groups.items()
    }
    tried = sorted((key for key, total_ns in covered.items() if total_ns), key=lambda key: -covered[key])[:_MAX_TRIED]
    margin_ns = max((suspect.watched.timing_error_ns for suspect in suspects), default=0) + waiting.lead_ns
    begin_ns, end_ns = int(waits[:, 0].min()) - margin_ns, int(waits[:, 1].max()) + margin_ns
    candidates = []
    for key in (key for key in groups if key in tried):
        spans = [(item, *item.within(begin_ns, end_ns)) for item in groups[key]]
        candidates.append(
            _Candidate(
                tuple(groups[key]),
                starts_ns=np.concatenate([starts_ns for _, starts_ns, _ in spans]),
                ends_ns=np.concatenate([ends_ns for _, _, ends_ns in spans]),
                ports=np.concatenate([np.full(len(starts_ns), item.port) for item, starts_ns, _ in spans]),
            )
        )
    return candidates


@dataclass(frozen=True, slots=True)
class _Lanes:
    """A time line on which connections follow one another, so that each one's spans meet only its own requests.

    One lane for all if no cause is of a connection.
    """

    ports: Samples
    """The port of each lane, in order."""
    of_request: Samples
    begin_ns: int
    length_ns: int

    def place(self, times_ns: Samples, lane: Samples) -> Samples:
        """Return the positions of times of these lanes on the line."""
        positions_ns: Samples = times_ns - self.begin_ns + lane * self.length_ns
        return positions_ns

    def spans(self, chosen: Sequence[_Candidate]) -> tuple[Samples, Samples]:
        """Return the merged spans of all these causes on the line. A cause of all connections is in each lane."""
        starts, ends = [], []
        for candidate in chosen:
            on, lane = np.nonzero((candidate.ports[:, None] == self.ports) | (candidate.ports[:, None] == 0))
            starts.append(self.place(candidate.starts_ns[on], lane))
            ends.append(self.place(candidate.ends_ns[on], lane))
        return merge_spans(np.concatenate(starts), np.concatenate(ends))

    def covered_ns(self, chosen: Sequence[_Candidate], waits: Samples) -> Samples:
        """Return the total duration of these causes while each request waited."""
        spans = self.spans(chosen)
        begins, ends = (self.place(times_ns, self.of_request) for times_ns in waits.T)
        lengths_ns: Samples = covered_ns(*spans, ends) - covered_ns(*spans, begins)
        return lengths_ns

    def extremes_ns(self, times_ns: Samples, lane: Samples, *, first: bool) -> Samples:
        """Return the first or last time of each lane; the opposite end of time for a lane without any."""
        limits = np.iinfo(np.int64)
        extremes_ns: Samples = np.full(len(self.ports), limits.max // 2 if first else limits.min // 2)
        (np.minimum if first else np.maximum).at(extremes_ns, lane, times_ns)
        return extremes_ns


def _fit(waiting: Waiting, waits: Samples, ports: Samples, chosen: Sequence[_Candidate]) -> Fit | None:
    of_port = ports if any((candidate.ports > 0).any() for candidate in chosen) else np.zeros_like(ports)
    begin_ns = min(int(times_ns.min()) for times_ns in (waits, *(candidate.starts_ns for candidate in chosen)))
    end_ns = max(int(times_ns.max()) for times_ns in (waits, *(candidate.ends_ns for candidate in chosen)))
    lanes = _Lanes(*np.unique(of_port, return_inverse=True), begin_ns, end_ns - begin_ns + 1)
    error_ns = max(candidate.suspects[0].watched.timing_error_ns for candidate in chosen)
    covered = lanes.covered_ns(chosen, waits)
    waited_ns = waits[:, 1] - waits[:, 0]
    after_ns = np.minimum(_AFTER * waited_ns, _MAX_AFTER_NS)
    explained = waited_ns - covered <= 2 * waiting.lead_ns + error_ns + after_ns
    explained &= covered >= _COVERED * waited_ns
    explained &= _aligned_lanes(waiting, waits, explained, lanes, chosen, error_ns)[lanes.of_request]
    if not explained.any():
        return None
    if len(chosen) > 1:
        total_ns = int(covered[explained].sum())
        for candidate in chosen:
            others = [other for other in chosen if other is not candidate]
            without_ns = int(lanes.covered_ns(others, waits)[explained].sum())
            if total_ns - without_ns < _NEEDED * total_ns:
                return None
    hit = {0, *ports[explained].tolist()}
    causes = tuple(suspect for candidate in chosen for suspect in candidate.suspects if suspect.port in hit)
    return Fit(causes, explained, int(waited_ns[explained].sum()))


def _aligned_lanes(
    waiting: Waiting,
    waits: Samples,
    explained: Samples,
    lanes: _Lanes,
    chosen: Sequence[_Candidate],
    error_ns: int,
) -> Samples:
    """Return a mask of the lanes in which the causes begin and end with the waiting that they explain."""
    first_ns = lanes.extremes_ns(waits[explained, 0], lanes.of_request[explained], first=True)
    last_ns = lanes.extremes_ns(waits[explained, 1], lanes.of_request[explained], first=False)
    on_line = lanes.spans(chosen)
    lane = on_line[0] // lanes.length_ns
    starts_ns, ends_ns = (times_ns + lanes.begin_ns - lane * lanes.length_ns for times_ns in on_line)
    touched = (ends_ns > first_ns[lane] - error_ns) & (starts_ns < last_ns[lane] + error_ns)
    # Waiting outside the measurement is unknown.
    window = waiting.window
    began_ns = np.maximum(lanes.extremes_ns(starts_ns[touched], lane[touched], first=True), window.start_ns)
    over_ns = np.minimum(lanes.extremes_ns(ends_ns[touched], lane[touched], first=False), window.end_ns)
    margin_ns, gap_ns = error_ns + waiting.lead_ns, int(3 * waiting.gap_ns)
    late_ns, after_ns = began_ns - first_ns, last_ns - over_ns
    max_after_ns = margin_ns + np.minimum(_AFTER * (last_ns - first_ns), _MAX_AFTER_NS)
    is_aligned: Samples = (
        (late_ns + gap_ns >= -margin_ns)
        & (late_ns <= margin_ns)
        & (after_ns >= -margin_ns)
        & (after_ns <= max_after_ns)
    )
    return is_aligned
