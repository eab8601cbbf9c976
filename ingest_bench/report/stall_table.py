"""`stalls.csv`: every stall of every run, with the causes that explain it and those that were ruled out."""

from __future__ import annotations

from collections.abc import Sequence

from ingest_bench.analysis.stalls.attribution import format_cause, list_causes
from ingest_bench.analysis.stalls.phases import PHASES, UNSPLIT
from ingest_bench.model.results import Cause, Stall, Summary

_HEAD = (
    *("run", "start_s", "end_s", "requests", "max_concurrent", "longest_s"),
    *("causes", "threads", "nodes", "unexplained_s", "undecided", "ruled_out"),
    *(f"longest_{phase}_s" for phase in PHASES),
    "longest_unseen_s",
)


def stall_rows(summaries: Sequence[Summary]) -> list[list[object]]:
    """Return a head and a row for each stall. Times are seconds since the measurement began.

    `longest_PHASE_s` is how long the longest request was in each phase. Without the probe `reads` the phases on the
    wire, being read and being worked on cannot be told apart: their sum is in `longest_unseen_s`.
    """
    rows: list[list[object]] = [list(_HEAD)]
    for run in summaries:
        for stall in run.stalls:
            phases = dict(stall.phases)
            ends = (f"{run.seconds(at_ns):.3f}" for at_ns in (stall.start_ns, stall.end_ns))
            rows.append(
                [
                    *(run.run, *ends, stall.requests, stall.max_concurrent),
                    *(_format_seconds(stall.longest_response_ns), _list_causes(stall.causes)),
                    "; ".join(dict.fromkeys(cause.thread for cause in stall.causes if cause.thread)),
                    "; ".join(dict.fromkeys(str(cause.node) for cause in stall.causes if cause.node is not None)),
                    _format_seconds(stall.unexplained_ns),
                    *(_list_causes(stall.undecided), _list_causes(stall.ruled_out)),
                    *(_format_seconds(phases[name]) if name in phases else "" for name in (*PHASES, UNSPLIT)),
                ]
            )
    return rows


def stall_summary_rows(summaries: Sequence[Summary]) -> list[list[str]]:
    """Return a head and a row for each cause of each cell: stalls, their total and the longest."""
    lengths: dict[tuple[str, str], list[float]] = {}
    for run in summaries:
        for stall in run.stalls:
            length_s = (stall.end_ns - stall.start_ns) / 1e9
            lengths.setdefault((run.cell, format_causes([stall])), []).append(length_s)
    rows = [[*names, str(len(all_s)), f"{sum(all_s):.1f}", f"{max(all_s):.1f}"] for names, all_s in lengths.items()]
    return [["cell", "cause", "stalls", "in all, s", "longest, s"], *rows]


def stall_page_rows(summaries: Sequence[Summary]) -> list[list[str]]:
    """Return the same in few columns for people, without columns that are empty."""
    rows = [["run", "when, s", "waited at once", "longest, s", "causes", "undecided", "ruled out"]]
    rows += [
        [
            *(run.run, f"{run.seconds(stall.start_ns):.2f} to {run.seconds(stall.end_ns):.2f}"),
            str(stall.max_concurrent) if stall.requests else "none: the rate fell",
            f"{stall.longest_response_ns / 1e9:.2f}" if stall.requests else "",
            _list_causes(stall.causes) or "unexplained",
            *(list_causes(stall.undecided), list_causes(stall.ruled_out)),
        ]
        for run in summaries
        for stall in run.stalls
    ]
    is_used = [any(column[1:]) for column in zip(*rows, strict=True)]
    return [[cell for cell, used in zip(row, is_used, strict=True) if used] for row in rows]


def list_faults(run: Summary) -> list[tuple[str, float, float]]:
    """Return kind, begin and end of each fault, in seconds from the start of the measurement.

    One outside the load is left out: its record is damaged, or clocks were set.
    """
    first, last = run.load_span_s
    spans = [
        (fault.kind, run.seconds(fault.start_ns), run.seconds(fault.end_ns or fault.start_ns)) for fault in run.faults
    ]
    return [(kind, begin, end) for kind, begin, end in spans if end >= first and begin <= last]


def list_stalls(run: Summary) -> list[tuple[str, float, float]]:
    """Return causes, begin and end of each stall in seconds from the start of the measurement."""
    return [(format_causes([stall]), run.seconds(stall.start_ns), run.seconds(stall.end_ns)) for stall in run.stalls]


def format_causes(stalls: Sequence[Stall]) -> str:
    """Format the names of the causes, such as for a picture."""
    causes = dict.fromkeys(cause.cause for stall in stalls for cause in stall.causes)
    return ", ".join(causes) or "unexplained"


def _format_seconds(length_ns: int) -> str:
    return f"{length_ns / 1e9:.3f}"


def _list_causes(causes: Sequence[Cause]) -> str:
    return "; ".join(
        f"{format_cause(cause)} {_format_seconds(cause.duration_ns)} s" + (f" ({cause.reason})" if cause.reason else "")
        for cause in causes
    )
