"""Escape text from servers and experiments before it is shown: control characters, line ends, direction marks."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Mapping
from typing import Any, cast

from ingest_bench.model.results import Note, Summary

# Controls (C0, DEL, C1), formats (with direction marks, CVE-2021-42574), surrogates, line and paragraph separators.
_ESCAPED_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
# Forbidden in XML, and so in a picture as SVG.
_NO_CHARACTERS = "\ufffe\uffff"
_MULTILINE_FIELDS = {(Summary, "reason"), (Note, "text")}


def escape_text(text: str) -> str:
    r"""Return the text with each invisible character as its escape, such as \x1b; line feeds and tabs stay."""
    if text.isprintable():
        return text
    return "".join(letter if letter in "\n\t" else _escape_letter(letter) for letter in text.replace("\r\n", "\n"))


def escape_line(text: str) -> str:
    r"""Return the text as one line: line feeds and tabs become \n and \t too."""
    return "".join(map(_escape_letter, text))


def escape_summary(summary: Summary) -> Summary:
    """Return the summary with all texts escaped: a server or the author of the experiment wrote them."""
    return cast("Summary", _escape_value(summary))


def _escape_letter(letter: str) -> str:
    is_escaped = unicodedata.category(letter) in _ESCAPED_CATEGORIES or letter in _NO_CHARACTERS
    return letter.encode("unicode_escape").decode() if is_escaped else letter


def _escape_value(value: Any) -> Any:
    if isinstance(value, str):
        return escape_line(value)
    if isinstance(value, tuple):
        return tuple(map(_escape_value, value))
    if isinstance(value, Mapping):
        escaped: dict[Any, Any] = {}
        for key, item in value.items():
            name = escape_line(key) if isinstance(key, str) else key
            item_escaped = _escape_value(item)
            # Two stacks may be equal once escaped: add their sizes.
            is_sum = name in escaped and isinstance(item, int)
            escaped[name] = escaped[name] + item_escaped if is_sum else item_escaped
        return escaped
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        texts = {
            name: escape_text(item) if (type(value), name) in _MULTILINE_FIELDS else _escape_value(item)
            for name, item in fields.items()
        }
        return dataclasses.replace(value, **texts)
    return value
