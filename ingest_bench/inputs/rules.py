"""Whether a value is what its field may hold, and the words for what it may hold. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from ingest_bench import units
from ingest_bench.model.values import Between, Form, Json, Several

_SHOWN: Mapping[str, tuple[Callable[[float], str], str]] = {
    "_ns": (units.format_time, "ns"),
    "_bytes": (units.format_bytes, "B"),
    "_bps": (units.format_bps, "bit"),
    "_ppm": (units.format_ppm, "ppm"),
}


def broken(rule: Any, value: Any, suffix: str) -> str:
    """What is wrong with a value, as the end of a sentence that begins with it; empty: nothing.

    `suffix` is the unit at the end of the field's name, or nothing.
    """
    if isinstance(rule, Between):
        return "" if rule.least <= value <= rule.most else f"is not {words(rule, suffix)}"
    if isinstance(rule, Form):
        return "" if re.fullmatch(rule.pattern, value) else f"is not {words(rule, suffix)}"
    if isinstance(rule, Several):
        if not rule.least <= len(value) <= rule.most:
            return f"has {len(value)} values, not {words(rule, suffix)}"
        return "is out of order: the smallest comes first" if rule.rising and list(value) != sorted(value) else ""
    if isinstance(rule, Json):
        trouble = _not_json(value, rule.deepest)
        return f"is not JSON: {trouble}" if trouble else ""
    return ""


def words(rule: Any, suffix: str) -> str:
    """What a rule allows, after "is"."""
    if isinstance(rule, Between):
        ends = f"between {shown(rule.least, suffix)} and {shown(rule.most, suffix)}"
        return f"{ends} ({rule.why})" if rule.why else ends
    if isinstance(rule, Several):
        return str(rule.least) if rule.least == rule.most else f"{rule.least} to {rule.most}"
    return rule.what if isinstance(rule, Form) else "what JSON can say"


def shown(end: float, suffix: str) -> str:
    """An end of a range as a user would write it, exactly."""
    if suffix:
        show, unit = _SHOWN[suffix]
        text = show(end)
        return text if _means(text, suffix) == end else f"{end}{unit}"
    return f"{end:,}" if isinstance(end, int) else f"{end:,g}"


def _means(text: str, suffix: str) -> int | None:
    """What a text with a unit says; None for one that is too fine, such as 1.46KiB."""
    try:
        return units.PARSERS[suffix](text)
    except ValueError:
        return None


def _not_json(value: Any, deepest: int) -> str:
    """Why it cannot be written as JSON that every reader understands; empty: it can."""
    if isinstance(value, (list, tuple, Mapping)):
        if not deepest:
            return "lists and tables in it are nested too deeply"
        inner = (*value.keys(), *value.values()) if isinstance(value, Mapping) else value
        return next(filter(None, (_not_json(one, deepest - 1) for one in inner)), "")
    if isinstance(value, str):
        return "a character in it is none of Unicode" if re.search("[\ud800-\udfff]", value) else ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{value} is no number there"
    if isinstance(value, int):
        return "" if -(2**63) <= value < 2**64 else "a number in it has more than 64 bits"
    return "" if value is None else f"there is no {type(value).__name__} there; put it in quotes"
