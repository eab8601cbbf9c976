"""What the faults of a run cost: how long throughput took to come back, and what a killed server forgot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from ingest_bench.analysis.run import integrity
from ingest_bench.model.results import Happened, Series, Value

# "Back" is this share of the median before the first fault. Not all of it: seconds of a steady run differ too.
BACK_SHARE = 0.9


def recovery_s(docs_per_s: Series, faults: Sequence[Happened], start_ns: int, end_ns: int) -> float | None:
    """Seconds from the end of the last fault to the end of the first second at the earlier throughput.

    None when there was no fault, no throughput before it to compare with, or throughput did not come back within the
    measurement (`silent_s` and the picture show that).
    """
    if not faults:
        return None
    earlier = before(docs_per_s, faults, start_ns)
    if not earlier or not (wanted := BACK_SHARE * median(earlier)):
        return None
    last_ns = max(fault.ended or fault.started for fault in faults)
    seconds = zip(docs_per_s.at_ns, docs_per_s.values, strict=True)
    after = (at for at, value in seconds if at + 10**9 > last_ns and at + 10**9 <= end_ns and value >= wanted)
    back_ns = next(after, None)
    return None if back_ns is None else (back_ns + 10**9 - last_ns) / 1e9


def before(docs_per_s: Series, faults: Sequence[Happened], start_ns: int) -> list[float]:
    """Return the throughput of the whole seconds before the first fault."""
    first_ns = min(fault.started for fault in faults)
    seconds = zip(docs_per_s.at_ns, docs_per_s.values, strict=True)
    return [value for at, value in seconds if start_ns <= at and at + 10**9 <= first_ns]


def lost(faults: Sequence[Happened], values: Mapping[str, Value]) -> dict[str, Value]:
    """Acknowledged documents that a server without some of its memory does not have: at least so many.

    At least, because those whose request broke without an answer may be there in their place. Without a `kill` a
    document that is missing makes a run invalid; with it that is the result.
    """
    expected, counted = integrity.documents_expected(values), values.get("documents_counted")
    if not any(fault.kind == "kill" for fault in faults) or expected is None or not isinstance(counted, int):
        return {}
    return {"lost_documents": max(0, expected - counted)}
