"""Read document counts, document numbers and metrics from the responses of servers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from ingest_bench.errors import RunFailed
from ingest_bench.model.target import DocumentCount

# No column of a summary holds more, and no server has more.
_MAX_COUNT = 2**63
# More than a response of 64 MiB has room for: a larger number would only fill the memory.
_MAX_DOCUMENT_NUMBER = 10**8
_MAX_QUOTED = 80
_POLL_S = 0.5
# More than any count has, and less than the 4,300 that Python converts.
_MAX_DIGITS = 100


def read_count(count: DocumentCount, body: bytes) -> int:
    """Return the number of documents in a response; ValueError quotes what is there instead."""
    if count.metric is not None:
        return parse_count(sum_metric(body.decode("utf-8", "replace"), count.metric), f"the metric {count.metric}")
    value = read_json_path(body, count.json or "")
    is_number_in_text = isinstance(value, str) and value.isascii() and value.isdecimal()
    return parse_count(int(value[:_MAX_DIGITS]) if is_number_in_text else value, count.json or "it")


def wait_for_count(count: Callable[[], int | None], expected: int, limit_s: float) -> int | None:
    """Return the number of documents once it is at least *expected*, or the one after the time limit.

    RunFailed of *count* is raised only after the time limit: a server may be busy after a load.
    """
    deadline = time.monotonic() + limit_s
    while True:
        is_last = time.monotonic() >= deadline
        try:
            documents = count()
            if is_last or documents is None or documents >= expected:
                return documents
        except RunFailed:
            if is_last:
                raise
        time.sleep(_POLL_S)


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
    """Return the value at a place of a JSON response; ValueError names the first missing part.

    A path that begins with "/" is a JSON pointer (RFC 6901); otherwise dots separate keys and list indices.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    is_pointer = path.startswith("/")
    separator = "/" if is_pointer else "."
    parts = path.split(separator) if path else []
    # The first part of a pointer is empty.
    for index in range(is_pointer, len(parts)):
        key = parts[index].replace("~1", "/").replace("~0", "~") if is_pointer else parts[index]
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise ValueError(f"it has no {separator.join(parts[: index + 1])}")
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
