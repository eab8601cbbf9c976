"""Which causes explain the waiting of a stall's requests: those that begin and end with it. Pure.

A cause that covers a part of the waiting is no explanation: of a bystander's spans some lie in a stall by chance. It
has to begin when the first of these requests began to wait, and to end when the last of them was answered; several may
do so one after the other. What began earlier made nobody wait before, so it did not then; what went on made nobody wait
later. A cause that hits connections, such as lost packets, is one cause however many it hits: each connection is
compared with its own spans of it, and those where they fit count together.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ingest_bench.analysis.run.sample_columns import Samples
from ingest_bench.analysis.stalls.suspects import Suspect, covered_ns, joined
from ingest_bench.analysis.stalls.waiting import Waiting

# What a request takes beside the waiting, in medians, and the ends of it: scheduling, and requests that are rare.
_LEAD, _LEAST_LEAD_NS, _MOST_LEAD_NS = 4, 20_000_000, 250_000_000
# After a stall its requests are done one after the other: such a share of it, up to so long.
_AFTER, _MOST_AFTER_NS = 0.15, 500_000_000
# Of a request's time the causes cover at least so much.
_COVERED = 0.5
# Each of several causes is needed: without it so much less of the waiting is covered.
_NEEDED = 0.1
# Of two explanations the one that explains so much less is none beside the other.
_AS_GOOD = 0.95
# So many causes together explain a stall at most; of more suspects the ones that cover most are tried.
_MOST_CAUSES, _MOST_TRIED = 3, 12


@dataclass(frozen=True, slots=True)
class Fit:
    """Causes that explain some requests of a stall together."""

    causes: tuple[int, ...]
    """By their places among the suspects."""
    explained: Samples
    """Which requests, as booleans."""
    weight_ns: int
    """How long these waited together."""


def lead_ns(waiting: Waiting) -> int:
    """How long a request may have been under way before something stopped it, or be after that was over."""
    return int(min(max(_LEAD * waiting.usual_ns, _LEAST_LEAD_NS), _MOST_LEAD_NS))


def fits(waiting: Waiting, waits: Samples, ports: Samples, suspects: Sequence[Suspect]) -> list[Fit]:
    """All explanations that are as good as the best one, each with as few causes as possible; none: unexplained.

    `waits` are the ends of each request's waiting, two columns on the clock of the samples; `ports` its connection, -1
    where only the rate fell.
    """
    if not len(waits):
        return []
    candidates = _candidates(waiting, waits, ports, suspects)
    best: list[Fit] = []
    # Where only the rate fell, its ends are not known well enough for more than one cause.
    most = _MOST_CAUSES if (ports >= 0).any() else 1
    for size in range(1, most + 1):
        found = [
            fit
            for chosen in itertools.combinations(candidates, size)
            if _belong_together([suspects[candidate.places[0]] for candidate in chosen])
            and (fit := _fit(waiting, waits, ports, suspects, chosen)) is not None
        ]
        # More causes explain it better, or they are none.
        least = max((fit.weight_ns for fit in best), default=0) * (1 + _NEEDED)
        found = [fit for fit in found if fit.weight_ns > least]
        if found:
            heaviest_ns = max(fit.weight_ns for fit in found)
            best = [fit for fit in found if fit.weight_ns >= _AS_GOOD * heaviest_ns]
    return best


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One cause of one node and thread, on all connections that it hit, with its spans near the waiting."""

    places: tuple[int, ...]
    """Places of its suspects: one, or one for each connection."""
    error_ns: int
    starts_ns: Samples
    ends_ns: Samples
    ports: Samples
    """The connection of each span; 0: all of them."""

    @property
    def has_ports(self) -> bool:
        return bool((self.ports > 0).any())


def _candidates(
    waiting: Waiting, waits: Samples, ports: Samples, suspects: Sequence[Suspect]
) -> tuple[_Candidate, ...]:
    """Return the causes that cover most of the waiting, at most `_MOST_TRIED`, in the order of the suspects."""
    groups: dict[tuple[str, int | None, str, bool], list[int]] = {}
    for place, suspect in enumerate(suspects):
        groups.setdefault((suspect.cause, suspect.node, suspect.thread, suspect.port > 0), []).append(place)
    room = max((suspect.error_ns for suspect in suspects), default=0) + lead_ns(waiting)
    begin_ns, end_ns = int(waits[:, 0].min()) - room, int(waits[:, 1].max()) + room
    shares: dict[tuple[int, ...], int] = {}
    for places in map(tuple, groups.values()):
        own = [
            (suspects[place], waits[ports == suspects[place].port] if suspects[place].port else waits)
            for place in places
        ]
        shares[places] = sum(
            int((suspect.covered_ns(of[:, 1]) - suspect.covered_ns(of[:, 0])).sum()) for suspect, of in own
        )
    tried = sorted((places for places, share in shares.items() if share), key=lambda places: -shares[places])
    candidates = []
    for places in sorted(tried[:_MOST_TRIED]):
        spans = [suspects[place].within(begin_ns, end_ns) for place in places]
        of_port = [np.full(len(starts), suspects[place].port) for place, (starts, _) in zip(places, spans, strict=True)]
        error_ns = max(suspects[place].error_ns for place in places)
        starts_ns, ends_ns = (np.concatenate(part) for part in zip(*spans, strict=True))
        candidates.append(_Candidate(places, error_ns, starts_ns, ends_ns, np.concatenate(of_port)))
    return tuple(candidates)


def _belong_together(chosen: Sequence[Suspect]) -> bool:
    """Whether they may follow each other: of several threads, each with something else, some fit by chance."""
    of_threads = [one for one in chosen if one.thread]
    return len({one.cause for one in of_threads}) <= 1 or len({one.thread for one in of_threads}) <= 1


@dataclass(frozen=True, slots=True)
class _Lanes:
    """A line of time that has the connections one after the other, so that spans of each meet its own requests alone.

    One lane for all where no cause is of a connection.
    """

    ports: Samples
    """The port of each lane, in their order."""
    of_request: Samples
    begin_ns: int
    length_ns: int

    def place(self, moments_ns: Samples, lane: Samples) -> Samples:
        """Return where moments of these lanes lie on the line."""
        positions_ns: Samples = moments_ns - self.begin_ns + lane * self.length_ns
        return positions_ns

    def spans(self, chosen: Sequence[_Candidate]) -> tuple[Samples, Samples]:
        """Return the spans of all these causes on the line, joined. One of all connections is in each lane."""
        starts, ends = [], []
        for candidate in chosen:
            on, lane = np.nonzero((candidate.ports[:, None] == self.ports) | (candidate.ports[:, None] == 0))
            starts.append(self.place(candidate.starts_ns[on], lane))
            ends.append(self.place(candidate.ends_ns[on], lane))
        return joined(np.concatenate(starts), np.concatenate(ends))

    def covered_ns(self, chosen: Sequence[_Candidate], waits: Samples) -> Samples:
        """Return how long these causes together lasted while each request waited."""
        spans = self.spans(chosen)
        begins, ends = (self.place(moments, self.of_request) for moments in waits.T)
        lengths_ns: Samples = covered_ns(*spans, ends) - covered_ns(*spans, begins)
        return lengths_ns

    def ends_ns(self, moments: Samples, lane: Samples, *, first: bool) -> Samples:
        """Return of each lane the first or the last of these moments; the other end of time where it has none."""
        limits = np.iinfo(np.int64)
        extremes_ns: Samples = np.full(len(self.ports), limits.max // 2 if first else limits.min // 2)
        (np.minimum if first else np.maximum).at(extremes_ns, lane, moments)
        return extremes_ns


def _lanes(waits: Samples, ports: Samples, chosen: Sequence[_Candidate]) -> _Lanes:
    of_port = ports if any(candidate.has_ports for candidate in chosen) else np.zeros_like(ports)
    unique, of_request = np.unique(of_port, return_inverse=True)
    begin_ns = min(int(waits[:, 0].min()), *(int(candidate.starts_ns.min(initial=waits[0, 0])) for candidate in chosen))
    end_ns = max(int(waits[:, 1].max()), *(int(candidate.ends_ns.max(initial=waits[0, 1])) for candidate in chosen))
    return _Lanes(unique, of_request, begin_ns, end_ns - begin_ns + 1)


def _fit(
    waiting: Waiting, waits: Samples, ports: Samples, suspects: Sequence[Suspect], chosen: Sequence[_Candidate]
) -> Fit | None:
    error_ns, lead = max(candidate.error_ns for candidate in chosen), lead_ns(waiting)
    lanes = _lanes(waits, ports, chosen)
    covered = lanes.covered_ns(chosen, waits)
    lasted = waits[:, 1] - waits[:, 0]
    after = np.minimum(_AFTER * lasted, _MOST_AFTER_NS)
    explained = (lasted - covered <= 2 * lead + error_ns + after) & (covered >= _COVERED * lasted)
    explained &= _begins_and_ends(waiting, waits, explained, lanes, chosen)[lanes.of_request]
    if not explained.any():
        return None
    if len(chosen) > 1:
        whole = int(covered[explained].sum())
        for left_out in chosen:
            others = [candidate for candidate in chosen if candidate is not left_out]
            without = lanes.covered_ns(others, waits)[explained]
            if whole - int(without.sum()) < _NEEDED * whole:
                return None
    hit = frozenset(ports[explained].tolist())
    causes = tuple(
        place
        for candidate in chosen
        for place in candidate.places
        if not suspects[place].port or suspects[place].port in hit
    )
    return Fit(causes, explained, int(lasted[explained].sum()))


def _begins_and_ends(
    waiting: Waiting, waits: Samples, explained: Samples, lanes: _Lanes, chosen: Sequence[_Candidate]
) -> Samples:
    """Return in which lanes the causes begin and end with the waiting of the requests that they explain."""
    error_ns, lead, window = max(candidate.error_ns for candidate in chosen), lead_ns(waiting), waiting.window
    first_ns = lanes.ends_ns(waits[explained, 0], lanes.of_request[explained], first=True)
    last_ns = lanes.ends_ns(waits[explained, 1], lanes.of_request[explained], first=False)
    on_line = lanes.spans(chosen)
    lane = on_line[0] // lanes.length_ns
    starts_ns, ends_ns = (moments + lanes.begin_ns - lane * lanes.length_ns for moments in on_line)
    touched = (ends_ns > first_ns[lane] - error_ns) & (starts_ns < last_ns[lane] + error_ns)
    # What is not measured any more is not known of the waiting either.
    began_ns = np.maximum(lanes.ends_ns(starts_ns[touched], lane[touched], first=True), window.start_ns)
    over_ns = np.minimum(lanes.ends_ns(ends_ns[touched], lane[touched], first=False), window.end_ns)
    room, gap = error_ns + lead, int(3 * waiting.gap_ns)
    late_ns, after_ns = began_ns - first_ns, last_ns - over_ns
    most_after_ns = room + np.minimum(_AFTER * (last_ns - first_ns), _MOST_AFTER_NS)
    is_aligned: Samples = (
        (late_ns + gap >= -room) & (late_ns <= room) & (after_ns >= -room) & (after_ns <= most_after_ns)
    )
    return is_aligned
