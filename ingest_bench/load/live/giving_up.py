"""Whether a load is hopeless by the user's own conditions (`Abort`), from its figures. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest_bench.inputs import thresholds
from ingest_bench.load.live.figures import Figures, Seen
from ingest_bench.model.load import ERRORS, Abort

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOOK_NS = 10**9
_SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


class Patience:
    """Looks at a load each second of its measurement.

    A second in which no request ended says nothing: it neither breaks a condition nor keeps it. For "max" a request
    that still waits counts with its wait.
    """

    def __init__(self, conditions: Sequence[Abort]) -> None:
        self._conditions = conditions
        self._before: Figures | None = None
        self._looked_ns = 0
        self._broken_since_ns: dict[int, int] = {}

    def broken(self, now_ns: int, seen: Seen) -> str:
        """Why the load is given up; empty: it is not. Of the time before the first call nothing counts."""
        if self._before is None:
            self._before, self._looked_ns = seen.bulks, now_ns
            return ""
        if now_ns - self._looked_ns < _LOOK_NS:
            return ""
        since_ns, self._looked_ns = self._looked_ns, now_ns
        new, self._before = seen.bulks - self._before, seen.bulks
        for number, condition in enumerate(self._conditions):
            value = _value(condition, new, seen.oldest_ns)
            if value is None:
                continue
            if value <= condition.above:
                self._broken_since_ns.pop(number, None)
                continue
            began_ns = self._broken_since_ns.setdefault(number, since_ns)
            if now_ns - began_ns >= condition.for_ns:
                found = thresholds.shown(condition.number, value)
                return f"aborted by {thresholds.abort_text(condition)}: {condition.number} {found} in the last second"
        return ""


def _value(condition: Abort, new: Figures, oldest_ns: int) -> float | None:
    """The number of a condition in the last second; None: nothing is known of it."""
    if condition.number == "max" and oldest_ns / 1e6 > condition.above:
        return oldest_ns / 1e6
    if not new.requests:
        return None
    return new.errors if condition.number == ERRORS else new.quantile_ns(_SHARES[condition.number]) / 1e6
