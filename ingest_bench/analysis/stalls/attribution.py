"""Stalls: when requests waited far longer than usual, what explains it, and what cannot. Pure.

A stall is a span in which requests waited more than 10 times the median, or seconds in which the rate fell below half
of its moving median. A cause is named where it begins and ends with the waiting of some of its requests (`fit`), unless
answers that were given meanwhile, or spans of it that made nobody wait, speak against it (`suspects`). Causes that fit
alike are named together. What no named cause explains is unexplained.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.column import Column
from ingest_bench.analysis.run.sample_columns import Samples, Tickets, Window
from ingest_bench.analysis.stalls import fit, phases, waiting
from ingest_bench.analysis.stalls.suspects import Suspect, answered_meanwhile, harmless, held_none, joined, suspects
from ingest_bench.analysis.stalls.waiting import Span, Waiting
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Cause, Stall, Value, Watched
from ingest_bench.model.samples import response_times_ns, service_times_ns

# What covers less of the waiting is ruled out.
RULED_OUT = 0.1
# What explains less of it explains some of its requests by chance: while a stall lasts, new ones begin to wait.
_LEAST = 0.15
_ANSWERED = "what was sent meanwhile was answered"
# Of what a thread did, if no CPU was free for so much of it, that is the cause and not the thread's doing.
_STARVED = 0.8
# What is sudden (`Watched.sudden`) has its first effect so soon.
_AT_ONCE_NS = 30_000_000

COLUMNS = (
    Column(
        "stalls",
        "spans within the measurement in which requests took more than 10 times the median (and 0.1 s), or the rate "
        "of seconds fell below half of its moving median",
    ),
    Column("stalled_s", "their length together: one slow request is enough, while others go on (silent_s: none does)"),
    Column("stall_cause_top", 'what explains most of it; "unexplained" where nothing explains more'),
    Column("stalled_unexplained_s", "how much of stalled_s no cause explains that was looked for"),
)


def of_load(
    tickets: Tickets, report: WorkerReport, median_ms: Value, watched: Sequence[Watched], reads: Samples | None = None
) -> tuple[Stall, ...]:
    """The stalls of a load's measurement (`find`)."""
    return find(tickets, load.window_of(report), median_ms, watched, report.realtime_minus_monotonic_ns, reads)


def find(
    tickets: Tickets,
    window: Window,
    median_ms: Value,
    watched: Sequence[Watched],
    realtime_minus_monotonic_ns: int,
    reads: Samples | None = None,
) -> tuple[Stall, ...]:
    """The stalls of the measurement, each with its causes; none where nobody knows what is slow.

    `watched`: what was looked for, on CLOCK_REALTIME. `reads`: the server's reads of the load's connections, if known.
    """
    if not isinstance(median_ms, (int, float)) or window.length_s <= 0:
        return ()
    seen = waiting.of_load(tickets, window, median_ms)
    spans = waiting.spans(seen, tickets)
    if not spans:
        return ()
    all_of_them = suspects(watched, realtime_minus_monotonic_ns)
    of_port = phases.by_port(reads, realtime_minus_monotonic_ns)
    return tuple(
        dataclasses.replace(
            _judged(seen, span, spans, all_of_them),
            start_ns=span.start_ns + realtime_minus_monotonic_ns,
            end_ns=span.end_ns + realtime_minus_monotonic_ns,
            phases=phases.of_longest(span.slow, of_port),
        )
        for span in spans
    )


def _judged(seen: Waiting, span: Span, spans: Sequence[Span], found: Sequence[Suspect]) -> Stall:
    """One stall with its causes, on the clock of the samples."""
    waits, ports = _waits(span, seen.window), _ports(span, seen)
    leads = np.flatnonzero(_leads(waits, ports))
    own, own_ports = _on_connection(span, waits, ports)[leads], ports[leads]
    # One that was answered when the measurement began has none of it.
    whole = max(1, int((own[:, 1] - own[:, 0]).sum()))
    shares = [int((one.covered_ns(own[:, 1]) - one.covered_ns(own[:, 0])).sum()) / whole for one in found]
    against = [_against(one, seen, span, spans) for one in found]
    held = [not held_none(one, span.slow, ports) for one in found]
    near = [
        (place, one)
        for place, one in enumerate(found)
        if held[place] and not against[place] and one.lasted_ns(span.start_ns, span.end_ns)
    ]
    starved = _starved(near, span)
    named: set[int] = set()
    left = np.ones(len(own), dtype=bool)
    while left.any():
        best = fit.fits(seen, own[left], own_ports[left], [one for _, one in near])
        if not best or best[0].weight_ns < _LEAST * whole:
            break
        # What a single thread did may have lasted so long because of what all of them met.
        of_all = [one for one in best if not any(near[number][1].thread for number in one.causes)]
        best = of_all or best
        for one in best:
            for place in (near[number][0] for number in one.causes):
                named.update(starved.get(place, (place,)))
        left[np.flatnonzero(left)[np.logical_or.reduce([one.explained for one in best])]] = False
    if left.any():
        begun = [place for place, one in enumerate(found) if one.sudden and _begins(one, own[left], fit.lead_ns(seen))]
        named.update(begun)
        left &= not begun
    # Those that waited for a user waited for what the last one before them waited for.
    left = left[np.searchsorted(leads, np.arange(len(waits)), side="right") - 1]
    if any(found[place].stops for place in named):
        # Whatever a thread did meanwhile lasted as long, because the thread stood still as well.
        named = {place for place in named if not found[place].thread}
    starts_ns, ends_ns = joined(*waits[left].T)
    told = [
        Cause(
            cause=one.cause,
            thread=one.thread,
            port=one.port,
            node=one.node,
            lasted_ns=one.lasted_ns(span.start_ns, span.end_ns),
            why=against[place] or ("" if held[place] or shares[place] < RULED_OUT else _ANSWERED),
        )
        for place, one in enumerate(found)
    ]
    out = [place for place in range(len(found)) if place not in named and (against[place] or shares[place] < RULED_OUT)]
    rest = [place for place in range(len(found)) if place not in named and place not in out]
    return Stall(
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        requests=len(span.slow),
        at_once=span.at_once,
        longest_ns=int(response_times_ns(span.slow).max()) if len(span.slow) else 0,
        causes=_of_all_ports(told[place] for place in named),
        unexplained_ns=int((ends_ns - starts_ns).sum()),
        ruled_out=_of_all_threads(told[place] for place in out),
        undecided=_of_all_ports(dataclasses.replace(told[place], why=_misfit(found[place], waits)) for place in rest),
    )


def _starved(near: Sequence[tuple[int, Suspect]], span: Span) -> dict[int, tuple[int, ...]]:
    """Of each thread's doing that had no CPU for most of it what took the CPU, by their places."""
    starving = [(place, one) for place, one in near if one.starves]
    found = {}
    for place, one in near:
        if not one.thread:
            continue
        starts_ns, ends_ns = (
            moments.clip(span.start_ns, span.end_ns) for moments in one.within(span.start_ns, span.end_ns)
        )
        least_ns = _STARVED * int((ends_ns - starts_ns).sum())
        takers = tuple(
            taker
            for taker, other in starving
            if (other.covered_ns(ends_ns) - other.covered_ns(starts_ns)).sum() >= least_ns
        )
        if takers:
            found[place] = takers
    return found


def _waits(span: Span, window: Window) -> Samples:
    """The ends of each slow request within the measurement; of a rate that fell those of the stall."""
    if not len(span.slow):
        return np.array([[span.start_ns, span.end_ns]])
    ends = np.column_stack((span.slow["planned_ns"], span.slow["done_ns"]))
    return ends.clip(window.start_ns, window.end_ns)


def _ports(span: Span, seen: Waiting) -> Samples:
    """On which connection each slow request waited; 0: it waited for a user that was free (of a rate that fell: -1).

    What was sent after the measurement waited for a user within it. So did what took little of its time on its
    connection: after a stall the users catch up, and are a little slower than usual.
    """
    slow = span.slow
    if not len(slow):
        return np.full(1, -1)
    service_ns = service_times_ns(slow)
    is_on_its_connection = (service_ns > seen.slow_ns / 2) & (slow["sent_ns"] < seen.window.end_ns)
    is_on_its_connection &= service_ns >= _LEAST * response_times_ns(slow)
    ports: Samples = np.where(is_on_its_connection, slow["local_port"], 0)
    return ports


def _on_connection(span: Span, waits: Samples, ports: Samples) -> Samples:
    """The same ends, from the sending on where a request waited on its connection."""
    found = waits.copy()
    if len(span.slow):
        found[:, 0] = np.where(ports > 0, np.maximum(span.slow["sent_ns"], waits[:, 0]), waits[:, 0])
    return found


def _leads(waits: Samples, ports: Samples) -> Samples:
    """Which requests say when a cause began: not those that waited for a user, while others waited already."""
    reached = np.maximum.accumulate(waits[:, 1])
    before: Samples = np.concatenate(([False], reached[:-1] > waits[1:, 0]))
    found: Samples = (ports != 0) | ~before
    return found


def _against(one: Suspect, seen: Waiting, span: Span, spans: Sequence[Span]) -> str:
    """What speaks against this cause, whatever it covers; empty: nothing."""
    if answers := answered_meanwhile(one, seen, span, fit.lead_ns(seen)):
        return f"{answers} answers meanwhile"
    starts_ns, ends_ns = one.within(span.start_ns, span.end_ns)
    lasted_ns = int((ends_ns - starts_ns).max()) if len(starts_ns) else 0
    if lasted_ns and (missed := harmless(one, seen, spans, lasted_ns)):
        return f"{missed} as long made nobody wait"
    return ""


def _begins(one: Suspect, waits: Samples, lead_ns: int) -> bool:
    """Whether something sudden happened when the first of them began to wait."""
    first_ns = int(waits[:, 0].min())
    return bool(((one.starts_ns >= first_ns - _AT_ONCE_NS) & (one.starts_ns <= first_ns + lead_ns)).any())


def _misfit(one: Suspect, waits: Samples) -> str:
    """In what a cause that lasted within a stall does not fit its waiting."""
    first_ns, last_ns = int(waits[:, 0].min()), int(waits[:, 1].max())
    starts_ns, ends_ns = one.within(first_ns, last_ns)
    if not len(starts_ns):
        return ""
    apart = {
        "began {:.2f} s before": first_ns - int(starts_ns[0]),
        "began {:.2f} s later": int(starts_ns[0]) - first_ns,
        "ended {:.2f} s before": last_ns - int(ends_ns[-1]),
        "went on {:.2f} s": int(ends_ns[-1]) - last_ns,
    }
    text, most_ns = max(apart.items(), key=lambda item: item[1])
    return text.format(most_ns / 1e9)


def _longest_first(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    return tuple(sorted(causes, key=lambda one: (-one.lasted_ns, one.cause, one.thread, one.port)))


def _of_all_ports(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """What several connections had at once is one cause."""
    found: dict[tuple[str, int | None, str], list[Cause]] = {}
    for one in _longest_first(causes):
        found.setdefault((one.cause, one.node, one.thread), []).append(one)
    return tuple(dataclasses.replace(first, port=0 if more else first.port) for first, *more in found.values())


def _of_all_threads(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """Each cause once, of whatever threads: the one of them that lasted longest speaks for all."""
    found: dict[tuple[str, int | None], Cause] = {}
    for one in _longest_first(causes):
        found.setdefault((one.cause, one.node), one)
    return tuple(found.values())


def values(stalls: Sequence[Stall]) -> dict[str, Value]:
    """The columns about them."""
    # While a rate has fallen single requests may wait longer still: that is no time more.
    ends_ns = np.array([(stall.start_ns, stall.end_ns) for stall in stalls]).reshape(-1, 2)
    starts_ns, ends_ns = joined(*ends_ns.T)
    stalled_ns = int((ends_ns - starts_ns).sum())
    unexplained_ns = min(sum(stall.unexplained_ns for stall in stalls), stalled_ns)
    totals = Counter[str]()
    for stall in stalls:
        for cause in {one.cause for one in stall.causes}:
            totals[cause] += max(one.lasted_ns for one in stall.causes if one.cause == cause)
    if unexplained_ns:
        totals["unexplained"] = unexplained_ns
    return {
        "stalls": len(stalls),
        "stalled_s": stalled_ns / 1e9,
        "stall_cause_top": max(totals, key=lambda cause: totals[cause], default=None),
        "stalled_unexplained_s": unexplained_ns / 1e9,
    }
