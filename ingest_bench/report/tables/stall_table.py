"""`stalls.csv`: every stall of every run, with what explains it and what was ruled out."""

from __future__ import annotations

from collections.abc import Sequence

from ingest_bench.analysis.stalls.phases import PHASES, UNSEEN
from ingest_bench.analysis.stalls.sentences import cause_text, listed
from ingest_bench.model.results import Cause, Stall, Summary

_HEAD = (
    *("run", "start_s", "end_s", "requests", "at_once", "longest_s"),
    *("causes", "threads", "nodes", "unexplained_s", "undecided", "ruled_out"),
    *(f"longest_{phase}_s" for phase in PHASES),
    "longest_unseen_s",
)


def rows(summaries: Sequence[Summary]) -> list[list[object]]:
    """A row for each stall, below a head; only the head where there was none. Seconds since the measurement began.

    `longest_…_s`: how long its longest request was in each phase. Without the server's reads nobody knows when it was
    on the wire, read or worked on, and the time of all three is in `longest_unseen_s`.
    """
    made: list[list[object]] = [list(_HEAD)]
    for run in summaries:
        for stall in run.stalls:
            start_ns = run.measure_start_ns or 0
            first, last = (f"{(moment - start_ns) / 1e9:.3f}" for moment in (stall.start_ns, stall.end_ns))
            made.append(
                [
                    *(run.run, first, last, stall.requests, stall.at_once, _seconds(stall.longest_ns)),
                    _told(stall.causes),
                    "; ".join(dict.fromkeys(cause.thread for cause in stall.causes if cause.thread)),
                    "; ".join(dict.fromkeys(str(cause.node) for cause in stall.causes if cause.node is not None)),
                    *(_seconds(stall.unexplained_ns), _told(stall.undecided), _told(stall.ruled_out)),
                    *_phases(stall),
                ]
            )
    return made


def page_rows(summaries: Sequence[Summary]) -> list[list[str]]:
    """The same in few columns, for people: only those that say something."""
    made = [["run", "when, s", "waited at once", "longest, s", "causes", "undecided", "ruled out"]]
    for run in summaries:
        for stall in run.stalls:
            first, last = ((moment - (run.measure_start_ns or 0)) / 1e9 for moment in (stall.start_ns, stall.end_ns))
            made.append(
                [
                    *(run.run, f"{first:.2f} to {last:.2f}"),
                    str(stall.at_once) if stall.requests else "none: the rate fell",
                    f"{stall.longest_ns / 1e9:.2f}" if stall.requests else "",
                    _told(stall.causes) or "unexplained",
                    *(listed(stall.undecided), listed(stall.ruled_out)),
                ]
            )
    said = [any(column[1:]) for column in zip(*made, strict=True)]
    return [[cell for cell, kept in zip(row, said, strict=True) if kept] for row in made]


def shown(stalls: Sequence[Stall]) -> str:
    """What explains them in a few words, such as for a picture."""
    causes = dict.fromkeys(cause.cause for stall in stalls for cause in stall.causes)
    return ", ".join(causes) or "unexplained"


def _phases(stall: Stall) -> list[str]:
    found = dict(stall.phases)
    return [_seconds(found[phase]) if phase in found else "" for phase in (*PHASES, UNSEEN)]


def _seconds(length_ns: int) -> str:
    return f"{length_ns / 1e9:.3f}"


def _told(causes: Sequence[Cause]) -> str:
    return "; ".join(
        f"{cause_text(cause)} {_seconds(cause.lasted_ns)} s" + (f" ({cause.why})" if cause.why else "")
        for cause in causes
    )
