"""What a closed loop hides: a user that awaits a slow answer sends nothing, and what it would have sent waits nowhere.

One of four users waits 3.4 s: of some thousand requests one is slow, and no percentile has those that would have come
meanwhile (Gil Tene's "coordinated omission").
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping

from ingest_bench.analysis.run.sample_columns import Tickets, Window, pieces, under_way
from ingest_bench.model.load import WorkerReport
from ingest_bench.model.results import Remark, Summary, Value
from ingest_bench.model.samples import service_times_ns

# An answer is slow that takes longer than so many medians.
_SLOW = 10
# Less of the measurement is no news.
_WORTH = 0.02
# From so many requests a second on a rate has no fraction.
_WHOLE = 10
# Of a lower one, this many digits.
_DOWN = decimal.Context(prec=3, rounding=decimal.ROUND_FLOOR)


def values(tickets: Tickets, window: Window, report: WorkerReport, median_ms: Value) -> dict[str, Value]:
    """The column about it; None for an open loop, and where nobody knows what is slow."""
    if report.is_open or not isinstance(median_ms, (int, float)):
        return {"idle_while_waiting_s": None}
    waited_ns, users = 0, set[int]()
    for samples, _ in pieces(tickets):
        own = samples[under_way(samples, window) & (samples["user"] >= 0)]
        users.update(own["user"].tolist())
        slow = own[service_times_ns(own) > _SLOW * median_ms * 1e6]
        ends, begins = slow["done_ns"].clip(max=window.end_ns), slow["sent_ns"].clip(min=window.start_ns)
        waited_ns += int((ends - begins).clip(min=0).sum())
    return {"idle_while_waiting_s": waited_ns / 1e9 / len(users) if users else None}


def remarks(values: Mapping[str, Value], window: Window) -> list[Remark]:
    """What a reader should know of it, and the open loop that would show it."""
    length_s = window.length_s
    if (found := _much(values, length_s)) is None:
        return []
    idle_s, rate = found
    text = (
        f"closed loop: each user sent nothing for {idle_s:.1f} of {length_s:.1f} s on average, because an answer took "
        f"more than {_SLOW} times the median. What would have come meanwhile is in no percentile; an open loop has it, "
        f"at a lower rate than this where the users kept the server busy: --set arrivals={rate}"
    )
    return [Remark(probe="load", text=text)]


def hidden(run: Summary) -> str:
    """The same in short, to stand beside response times; empty where it is no news."""
    if run.measure_start_ns is None or run.measure_end_ns is None:
        return ""
    length_s = (run.measure_end_ns - run.measure_start_ns) / 1e9
    if (found := _much(run.values, length_s)) is None:
        return ""
    idle_s, rate = found
    return (
        f"closed loop: each user sent nothing for {idle_s:.1f} of {length_s:.1f} s on average, which no percentile "
        f"has; an open loop has it: arrivals={rate} or less"
    )


def _much(values: Mapping[str, Value], length_s: float) -> tuple[float, str] | None:
    """How long the users sent nothing, and the rate of the open loop; None where that is no news."""
    idle_s, requests = values.get("idle_while_waiting_s"), values.get("requests_answered")
    if not isinstance(idle_s, (int, float)) or not isinstance(requests, int) or idle_s <= _WORTH * length_s:
        return None
    return idle_s, _rate(requests / length_s)


def _rate(per_s: float) -> str:
    """As arrivals have it: what was answered, rounded down.

    A server that was busy all the time falls behind for ever above it. At it, it has caught up at the end of the run.
    """
    if per_s >= _WHOLE:
        return f"{int(per_s)}/s"
    number, unit = (per_s, "s") if per_s >= 1 / 60 else (per_s * 3600, "h")
    return f"{_DOWN.create_decimal(repr(number)).normalize():f}/{unit}"
