"""Each stall in one line: who waited, while what lasted, what was ruled out, where the longest was. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingest_bench.analysis.run import sample_columns as load
from ingest_bench.analysis.run.sample_columns import Tickets
from ingest_bench.analysis.stalls.attribution import RULED_OUT
from ingest_bench.analysis.stalls.phases import UNSEEN
from ingest_bench.model.experiment import Cell
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Cause, Remark, Stall
from ingest_bench.units import count_of

# Who says what is said of stalls, as a probe says what it has to.
OF_STALL = "stall"
# Of one run, as sentences.
_TOLD = 5
# Ruled out or undecided, in one sentence.
_LISTED = 4
_PHASES = {
    "client": "in the client",
    "wire": "on the wire",
    "reading": "being read",
    "working": "being worked on",
    "answer": "being answered",
    UNSEEN: "on its way or in the server",
}


def sentence(stall: Stall, start_ns: int, users: int) -> str:
    """Return one stall in one line; seconds are from the start of the measurement.

    `users` is how many users a closed loop had, each with a connection and one request at a time; 0 for an open loop,
    whose requests also wait for a user.
    """
    first, last = ((moment - start_ns) / 1e9 for moment in (stall.start_ns, stall.end_ns))
    return f"{first:.2f}-{last:.2f} s: {_who(stall, users)}{_because(stall)}{_out(stall)}{_where(stall)}"


def _users(tickets: Tickets) -> int:
    return len({int(user) for samples, _ in load.pieces(tickets) for user in np.unique(samples["user"]) if user >= 0})


def cause_text(cause: Cause) -> str:
    """A cause with its thread and node: "Lucene flushed a segment in opensearch[write][T#2]"."""
    text = f"{cause.cause} in {cause.thread}" if cause.thread else cause.cause
    text = f"{text} on port {cause.port}" if cause.port else text
    return f"{text} of node {cause.node}" if cause.node is not None else text


def _who(stall: Stall, users: int) -> str:
    if not stall.requests:
        return "the rate was below half of what it is around"
    waited = f"{stall.at_once} of {users} connections waited"
    if not users:
        waited = f"{count_of(stall.at_once, 'request')} waited at once"
    return f"{waited}, the longest {stall.longest_ns / 1e9:.2f} s"


def _because(stall: Stall) -> str:
    text = " and ".join(f"{cause_text(cause)} ({cause.lasted_ns / 1e9:.2f} s)" for cause in stall.causes)
    text = f", while: {text}" if text else ", unexplained"
    if stall.causes and _is_open(stall):
        text += f", {stall.unexplained_ns / 1e9:.2f} s of it unexplained"
    return text


def _is_open(stall: Stall) -> bool:
    """Whether much of it is unexplained."""
    return stall.unexplained_ns >= RULED_OUT * (stall.end_ns - stall.start_ns)


def _out(stall: Stall) -> str:
    lists = (("undecided", stall.undecided), ("ruled out", stall.ruled_out))
    return "".join(f"; {title}: {listed(causes)}" for title, causes in lists if causes)


def _shown(cause: Cause) -> str:
    detail = cause.why or (f"{cause.lasted_ns / 1e9:.2f} s" if cause.lasted_ns else "")
    return f"{cause_text(cause)} ({detail})" if detail else cause_text(cause)


def listed(causes: Sequence[Cause]) -> str:
    """The first of them, each with why it is none or how long it lasted, and how many more there are."""
    more = len(causes) - _LISTED
    return ", ".join(map(_shown, causes[:_LISTED])) + (f" and {more} more" if more > 0 else "")


def _where(stall: Stall) -> str:
    if not stall.phases:
        return ""
    name, longest_ns = max(stall.phases, key=lambda phase: phase[1])
    return f"; the longest was {_PHASES[name]} for {longest_ns / 1e9:.2f} s"


def remarks(stalls: Sequence[Stall], report: WorkerReport, tickets: Tickets, cell: Cell) -> list[Remark]:
    """A sentence for each of the longest stalls, in their order in time, and who could have seen more."""
    if not stalls:
        return []
    start_ns = report.warm_up_end_ns + report.realtime_minus_monotonic_ns
    users = 0 if report.is_open else _users(tickets)
    longest = sorted(stalls, key=lambda stall: stall.start_ns - stall.end_ns)[:_TOLD]
    told = [sentence(stall, start_ns, users) for stall in sorted(longest, key=lambda stall: stall.start_ns)]
    if len(stalls) > _TOLD:
        told.append(f"{len(stalls) - _TOLD} shorter stalls more: report/stalls.csv")
    is_blind = "stalls" not in cell.probes and cell.target.vantage != "outside"
    if is_blind and any(map(_is_open, stalls)):
        wanted = ", ".join(f'"{name}"' for name in (*cell.probes, "stalls"))
        told.append(f"nobody watched what the server's threads did; probes = [{wanted}] in the experiment's file does")
    return [Remark(probe=OF_STALL, text=text) for text in told]
