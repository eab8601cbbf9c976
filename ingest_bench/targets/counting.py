"""Read document counts, document numbers and counters from the responses of servers."""

from __future__ import annotations

import functools
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from ingest_bench.errors import RunFailed
from ingest_bench.units import quote_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from prometheus_client.samples import Sample

    from ingest_bench.model.target import DocumentCount
    from ingest_bench.targets.http import Http

# No column of a summary holds more, and no server has more.
_MAX_COUNT = 2**63
# More than a response of 64 MiB has room for: a larger number would only fill the memory.
_MAX_DOCUMENT_NUMBER = 10**8
_MAX_QUOTED = 80


def read_count(count: DocumentCount, body: bytes) -> int:
    """Return the number of documents in a response; ValueError quotes what is there instead."""
    if count.metric is not None:
        return parse_count(sum_metric(body.decode("utf-8", "replace"), count.metric), f"the metric {count.metric}")
    return parse_count(read_json_path(body, count.json or ""), count.json or "it")


def pack_numbers(body: bytes) -> bytes:
    """Pack document numbers, one per line, as `analysis.run.delivery` reads them; ValueError for anything else.

    The format has three bit sets: documents, duplicates, and documents still inside, which are unknown here.
    """
    try:
        numbers = np.array(body.split(), dtype=np.int64)
    except (ValueError, OverflowError):
        raise ValueError("it is not one number per line") from None
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < _MAX_DOCUMENT_NUMBER:
        raise ValueError("it has a number that no document of the run has")
    unique, times = np.unique(numbers, return_counts=True)
    packed = b""
    for members in (unique, unique[times > 1], unique[:0]):
        bits = np.zeros(int(members.max(initial=-1)) + 1, dtype=np.bool_)
        bits[members] = True
        set_bytes = np.packbits(bits, bitorder="little").tobytes()
        packed += len(set_bytes).to_bytes(8, "little") + set_bytes
    return packed


def read_json_path(body: bytes, path: str) -> Any:
    """Return the value at a dotted path of a JSON response; ValueError names the first missing part."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    parts: list[str] = []
    for key in path.split(".") if path else ():
        parts.append(key)
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise ValueError(f"it has no {'.'.join(parts)}")
    return value


def sum_metric(text: str, metric: str) -> float:
    """Return the sum of a metric's samples with these labels, in the text format of Prometheus; ValueError for none."""
    (pattern,) = _parse_samples(f"{metric} 0")
    same_name = (sample for sample in _parse_samples(text) if sample.name == pattern.name)
    values = [sample.value for sample in same_name if pattern.labels.items() <= sample.labels.items()]
    if not values:
        raise ValueError(f"it has no metric {metric}")
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        # Beyond the largest float, or inf - inf.
        return math.nan


def sum_metrics(text: str) -> dict[str, float]:
    """Return the sum of each metric's samples, over all labels, in the text format of Prometheus."""
    totals: dict[str, float] = {}
    for sample in _parse_samples(text):
        totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


def _parse_samples(text: str) -> list[Sample]:
    # Without "# TYPE": the client renames the samples of a counter to end with "_total".
    # Not by `splitlines`: some line separators of Python may be part of a label.
    plain = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    try:
        return [sample for family in text_string_to_metric_families(plain) for sample in family.samples]
    except ValueError as error:
        raise ValueError(f"it is not in the text format of Prometheus ({str(error)[:_MAX_QUOTED]})") from None


def parse_count(value: Any, name: str) -> int:
    """Return a number of documents; ValueError for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < _MAX_COUNT or value != int(value):
        raise ValueError(f"{name} is {str(value)[:_MAX_QUOTED]!r}, not a number of documents")
    return int(value)


def request_count(http: Http, path: str, timeout_s: float = 60) -> int:
    """Return the number in `count` of a JSON response; RunFailed for anything else."""
    response = http.request_json("GET", path, timeout_s=timeout_s)
    try:
        return parse_count(response["count"], "count")
    except (KeyError, TypeError, ValueError):
        raise RunFailed(
            f"server: the response to GET {http.origin}{path} has no number of documents: {quote_value(response)}"
        ) from None


def sum_counters(nodes: Sequence[Http]) -> dict[str, Any]:
    """Return the counters of built-in servers, including this request, added up; RunFailed if they do not match."""
    tables = [http.request_json("GET", "/_counters") for http in nodes]
    for http, counters in zip(nodes, tables, strict=True):
        if not isinstance(counters, dict):
            raise RunFailed(f"{http.origin}: its counters are not a table: {counters!r}")
    try:
        return functools.reduce(_add_tables, tables)
    except (TypeError, ValueError):
        raise RunFailed(f"{nodes[0].origin}: its counters differ in structure from other nodes': {tables!r}") from None


def _add_tables(table: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Add two tables of counts, which may contain tables of counts."""
    total = dict(table)
    for key, count in other.items():
        total[key] = _add_tables(total.get(key, {}), count) if isinstance(count, dict) else total.get(key, 0) + count
    return total
