"""Somebody else's text, fit to be shown: what moves a cursor, ends a line or turns text round is written out. Pure."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections import Counter
from collections.abc import Mapping

from ingest_bench.model.results import Cause, Happened, Remark, Stall, Summary, Value

# Controls (C0, DEL, C1), formats (among them the marks that turn text round, CVE-2021-42574), halves of characters,
# and the two separators that end a line.
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
# No document of XML may have these, nor a picture as SVG.
_NO_CHARACTERS = "\ufffe\uffff"


def visible(text: str) -> str:
    r"""The text with each character that nobody sees as its escape, such as \x1b; lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(letter if letter in "\n\t" else _written(letter) for letter in text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    r"""The same where there is room for one line: its end is \n too."""
    return "".join(map(_written, text))


def summary(found: Summary) -> Summary:
    """The summary with visible texts: they were written by a server, or by whoever wrote the experiment."""
    return dataclasses.replace(
        found,
        run=one_line(found.run),
        cell=one_line(found.cell),
        levels={one_line(key): one_line(level) for key, level in found.levels.items()},
        reason=visible(found.reason),
        values={name: _value(value) for name, value in found.values.items()},
        experiment=one_line(found.experiment),
        faults=tuple(_fault(fault) for fault in found.faults),
        remarks=tuple(_remark(remark) for remark in found.remarks),
        stalls=tuple(_stall(stall) for stall in found.stalls),
        stacks=_stacks(found.stacks),
        nodes=tuple({one_line(name): _value(value) for name, value in node.items()} for node in found.nodes),
    )


def _stacks(found: Mapping[str, int]) -> dict[str, int]:
    added: Counter[str] = Counter()
    for frames, size in found.items():
        # Another stack may look so from the start.
        added[one_line(frames)] += size
    return dict(added)


def _written(letter: str) -> str:
    is_unseen = unicodedata.category(letter) in _UNSEEN or letter in _NO_CHARACTERS
    return letter.encode("unicode_escape").decode() if is_unseen else letter


def _value(value: Value) -> Value:
    return one_line(value) if isinstance(value, str) else value


def _fault(fault: Happened) -> Happened:
    return dataclasses.replace(
        fault,
        kind=one_line(fault.kind),
        direction=one_line(fault.direction),
        link=one_line(fault.link),
        seen=one_line(fault.seen),
    )


def _stall(stall: Stall) -> Stall:
    return dataclasses.replace(
        stall,
        causes=tuple(map(_cause, stall.causes)),
        ruled_out=tuple(map(_cause, stall.ruled_out)),
        undecided=tuple(map(_cause, stall.undecided)),
    )


def _cause(cause: Cause) -> Cause:
    return dataclasses.replace(cause, cause=one_line(cause.cause), thread=one_line(cause.thread))


def _remark(remark: Remark) -> Remark:
    return dataclasses.replace(remark, text=visible(remark.text))
