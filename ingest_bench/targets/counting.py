"""What a server of the user's own says of its documents: how many there are, and which. Pure."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

    from ingest_bench.model.server import Count

# More than this no column of a summary holds, and no server has.
_MOST = 2**63
# More than an answer of 64 MiB has room for: a larger number would only fill the memory.
_MOST_NUMBERS = 10**8
# Of what an answer says, in an error.
_TOLD = 80


def number(count: Count, body: bytes) -> int:
    """How many documents an answer tells of; ValueError says what else is there."""
    if count.metric is not None:
        return whole(metric(body.decode("utf-8", "replace"), count.metric), f"the metric {count.metric}")
    return whole(at(body, count.json or ""), count.json or "it")


def numbered(body: bytes) -> bytes:
    """Which documents it has, a number a line, as `run.delivery` reads it; ValueError says what else is there."""
    try:
        numbers = np.array(body.split(), dtype=np.int64)
    except (ValueError, OverflowError):
        raise ValueError("it is not a number a line") from None
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < _MOST_NUMBERS:
        raise ValueError("a number of it is none that a document of the run has")
    known, times = np.unique(numbers, return_counts=True)
    told = b""
    # Nobody knows what is still inside.
    for having in (known, known[times > 1], known[:0]):
        bits = np.zeros(int(having.max(initial=-1)) + 1, dtype=np.bool_)
        bits[having] = True
        packed = np.packbits(bits, bitorder="little").tobytes()
        told += len(packed).to_bytes(8, "little") + packed
    return told


def at(body: bytes, path: str) -> Any:
    """What stands at a dotted path of a JSON answer; ValueError says how far it goes."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    gone = []
    for key in path.split(".") if path else ():
        gone.append(key)
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            raise ValueError(f"there is no {'.'.join(gone)} in it")
    return found


def metric(text: str, wanted: str) -> float:
    """The sum of a metric's samples with these labels, in the text format of Prometheus; ValueError without any."""
    (asked,) = _samples(f"{wanted} 0")
    same = (one for one in _samples(text) if one.name == asked.name)
    found = [one.value for one in same if asked.labels.items() <= one.labels.items()]
    if not found:
        raise ValueError(f"there is no metric {wanted} in it")
    try:
        return math.fsum(found)
    except (OverflowError, ValueError):
        # Beyond all numbers, or less one infinity than another.
        return math.nan


def totals(text: str) -> dict[str, float]:
    """The sum of each metric's samples, whatever their labels, in the text format of Prometheus."""
    found: dict[str, float] = {}
    for one in _samples(text):
        found[one.name] = found.get(one.name, 0.0) + one.value
    return found


def _samples(text: str) -> list[Sample]:
    # Without "# TYPE": of a counter the client changes the names of the samples to end with "_total".
    # Nor by `splitlines`: what ends a line for Python may stand in a label.
    plain = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    try:
        return [sample for family in text_string_to_metric_families(plain) for sample in family.samples]
    except ValueError as error:
        raise ValueError(f"it is not in the text format of Prometheus ({str(error)[:_TOLD]})") from None


def whole(found: Any, what: str) -> int:
    """A number of documents; ValueError for anything else."""
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
    if not is_number or not 0 <= found < _MOST or found != int(found):
        raise ValueError(f"{what} is {str(found)[:_TOLD]!r}, no number of documents")
    return int(found)
