"""The JSON parser for all text that a user supplies: documents, action lines, tracks, parameters.

It is stricter than `json`: accepted text has one meaning. Of a key that stands twice `json` takes the last value, and
the bulk API of OpenSearch takes the first: it would write to an index that was never checked.
"""

from __future__ import annotations

import json
from typing import Any

from ingest_bench.units import quoted


def parse_json(text: str) -> Any:
    """Parse one JSON value.

    ValueError for text that is not JSON, has a key with two values, or has a number that JSON has not. RecursionError
    for text that is nested too deeply.
    """
    try:
        return _DECODER.decode(text)
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise ValueError("it has a number of thousands of digits") from None
        raise


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        first: dict[str, Any] = {}
        for key, value in pairs:
            # As text: True and 1 are equal, and no server takes one for the other. Only where it is needed: the values
            # of other keys may hold the rest of the text, in each of hundreds of levels.
            if key in first and repr(first[key]) != repr(value):
                raise ValueError(f"the key {quoted(key)} stands twice in an object, with two values; take one out")
            first[key] = value
    return table


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")


# One decoder: `json.loads` with hooks makes a new one for each line.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
