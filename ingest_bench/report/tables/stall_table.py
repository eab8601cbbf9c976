"""`stalls.csv`: every stall of every run, with what explains it and what was ruled out."""

from __future__ import annotations

from collections.abc import Sequence

from ingest_bench.model.results import Summary

_HEAD = ("run", "start_s", "end_s", "requests", "at_once", "longest_s", "causes", "unexplained_s", "ruled_out")


def rows(summaries: Sequence[Summary]) -> list[list[object]]:
    """A row for each stall, below a head; only the head where there was none. Seconds since the measurement began."""
    made: list[list[object]] = [list(_HEAD)]
    for run in summaries:
        for stall in run.stalls:
            start_ns = run.measure_start_ns or 0
            first, last = ((moment - start_ns) / 1e9 for moment in (stall.start_ns, stall.end_ns))
            counts = (stall.requests, stall.at_once, f"{stall.longest_ns / 1e9:.3f}")
            causes, out = _told(stall.causes), _told(stall.ruled_out)
            unexplained = f"{stall.unexplained_ns / 1e9:.3f}"
            made.append([run.run, f"{first:.3f}", f"{last:.3f}", *counts, causes, unexplained, out])
    return made


def _told(causes: Sequence[tuple[str, int]]) -> str:
    return "; ".join(f"{cause} {lasted_ns / 1e9:.3f} s" for cause, lasted_ns in causes)
