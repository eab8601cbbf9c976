"""What servers of ours count themselves."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ingest_bench.errors import RunFailed
from ingest_bench.targets import counting
from ingest_bench.units import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ingest_bench.targets.http import Http


def added_up(nodes: Sequence[Http]) -> dict[str, Any]:
    """What servers of ours counted themselves, this question too, added up; RunFailed for what is no table."""
    tables = [_of_one(http) for http in nodes]
    try:
        return functools.reduce(_added, tables)
    except (TypeError, ValueError):
        raise RunFailed(f"{nodes[0].origin}: its counters and those of the others are not alike: {tables!r}") from None


def documents(nodes: Sequence[Http]) -> int:
    """The documents that servers of ours counted, each its own, added up."""
    return sum(map(_count, nodes))


def _count(http: Http) -> int:
    answer = http.expect("GET", "/_count")
    try:
        return counting.whole(answer["count"], "count")
    except (KeyError, TypeError, ValueError):
        raise RunFailed(f"server: GET {http.origin}/_count tells no number of documents: {quoted(answer)}") from None


def _of_one(http: Http) -> dict[str, Any]:
    counted = http.expect("GET", "/_counters")
    if not isinstance(counted, dict):
        raise RunFailed(f"{http.origin}: its counters are no table: {counted!r}")
    return counted


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """A table of counts, and of tables of them, with another one's added."""
    total = dict(one)
    for key, count in other.items():
        total[key] = _added(total.get(key, {}), count) if isinstance(count, dict) else total.get(key, 0) + count
    return total
