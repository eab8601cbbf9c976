"""Which causes explain the waiting of a stall's requests: those that begin and end with it. Pure.

A cause that covers a part of the waiting is no explanation: of a bystander's spans some lie in a stall by chance. It
has to begin when the first of these requests began to wait, and to end when the last of them was answered; several may
do so one after the other. What began earlier made nobody wait before, so it did not then; what went on made nobody wait
later.
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
    shares = [int(_inside(one, waits).sum()) for one in suspects]
    tried = sorted((place for place, share in enumerate(shares) if share), key=lambda place: -shares[place])
    best: list[Fit] = []
    # Where only the rate fell, its ends are not known well enough for more than one cause.
    most = _MOST_CAUSES if (ports >= 0).any() else 1
    for size in range(1, most + 1):
        found = [
            fit
            for causes in itertools.combinations(sorted(tried[:_MOST_TRIED]), size)
            if _belong_together([suspects[place] for place in causes])
            and (fit := _fit(waiting, waits, ports, suspects, causes)) is not None
        ]
        # More causes explain it better, or they are none.
        least = max((fit.weight_ns for fit in best), default=0) * (1 + _NEEDED)
        found = [fit for fit in found if fit.weight_ns > least]
        if found:
            heaviest_ns = max(fit.weight_ns for fit in found)
            best = [fit for fit in found if fit.weight_ns >= _AS_GOOD * heaviest_ns]
    return best


def _belong_together(chosen: Sequence[Suspect]) -> bool:
    """Whether they may follow each other: of several threads, each with something else, some fit by chance."""
    of_threads = [one for one in chosen if one.thread]
    return len({one.cause for one in of_threads}) <= 1 or len({one.thread for one in of_threads}) <= 1


def _inside(suspect: Suspect, waits: Samples) -> Samples:
    found: Samples = suspect.covered_ns(waits[:, 1]) - suspect.covered_ns(waits[:, 0])
    return found


def _fit(
    waiting: Waiting, waits: Samples, ports: Samples, suspects: Sequence[Suspect], causes: tuple[int, ...]
) -> Fit | None:
    chosen = [suspects[place] for place in causes]
    error_ns, lead = max(one.error_ns for one in chosen), lead_ns(waiting)
    begin_ns, end_ns = int(waits[:, 0].min()), int(waits[:, 1].max())
    near = [one.within(begin_ns - error_ns - lead, end_ns + error_ns + lead) for one in chosen]
    starts_ns, ends_ns = joined(np.concatenate([a for a, _ in near]), np.concatenate([b for _, b in near]))
    lasted = waits[:, 1] - waits[:, 0]
    after = np.minimum(_AFTER * lasted, _MOST_AFTER_NS)
    covered = covered_ns(starts_ns, ends_ns, waits[:, 1]) - covered_ns(starts_ns, ends_ns, waits[:, 0])
    explained = (lasted - covered <= 2 * lead + error_ns + after) & (covered >= _COVERED * lasted)
    own = {one.port for one in chosen if one.port}
    if own and all(one.port for one in chosen):
        explained &= np.isin(ports, list(own))
    if not explained.any():
        return None
    first_ns, last_ns = int(waits[explained, 0].min()), int(waits[explained, 1].max())
    touched = (ends_ns > first_ns - error_ns) & (starts_ns < last_ns + error_ns)
    # What is not measured any more is not known of the waiting either.
    window = waiting.window
    began_ns = max(int(starts_ns[touched].min()), window.start_ns)
    over_ns = min(int(ends_ns[touched].max()), window.end_ns)
    room, gap = error_ns + lead, int(3 * waiting.gap_ns)
    if not -room <= began_ns - first_ns + gap or began_ns - first_ns > room:
        return None
    if not -room <= last_ns - over_ns or last_ns - over_ns > room + min(_AFTER * (last_ns - first_ns), _MOST_AFTER_NS):
        return None
    if len(causes) > 1:
        whole = int(covered[explained].sum())
        for left_out in range(len(causes)):
            rest = [near[number] for number in range(len(causes)) if number != left_out]
            ends = joined(np.concatenate([a for a, _ in rest]), np.concatenate([b for _, b in rest]))
            without = covered_ns(*ends, waits[explained, 1]) - covered_ns(*ends, waits[explained, 0])
            if whole - int(without.sum()) < _NEEDED * whole:
                return None
    return Fit(causes, explained, int(lasted[explained].sum()))
