"""Columns of documents: each gives its field's text, name and value, for many documents at once.

A document is made by joining ready pieces, not by formatting values: a field's values are formatted once, into a
table, and each document draws a row. That is what makes a 64 MiB pool a matter of a second.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ingest_bench.errors import SpecError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Picks = NDArray[np.int64]


class Column(Protocol):
    """One field of many documents."""

    def take(self, first: int, picks: Picks) -> list[bytes]:
        """The field's text in the documents `first`, `first + 1`, …; `picks` are their random numbers."""
        ...


@dataclass(frozen=True, slots=True)
class Table:
    """Ready texts; a document's random number says which."""

    texts: NDArray[np.object_]

    def take(self, first: int, picks: Picks) -> list[bytes]:  # noqa: ARG002 - a table needs no place
        """The drawn rows."""
        rows: list[bytes] = self.texts[picks % len(self.texts)].tolist()
        return rows


@dataclass(frozen=True, slots=True)
class Numbered:
    """A number that no two documents share, in a Python format such as `PMC{:07d}`."""

    prefix: bytes
    template: str
    suffix: bytes
    start: int

    def take(self, first: int, picks: Picks) -> list[bytes]:
        """The texts of the documents' own numbers."""
        begin = self.start + first
        form = self.template.format
        return [
            b"".join((self.prefix, form(number).encode(), self.suffix)) for number in range(begin, begin + len(picks))
        ]


@dataclass(frozen=True)
class Slices:
    """Long texts: slices of one long prose, cut at spaces, with lengths from a table."""

    text: Callable[[], bytes]
    """The prose: it takes half a second, and is made when the first document is."""
    lengths: Sequence[int]
    prefix: bytes
    suffix: bytes

    @functools.cached_property
    def prose(self) -> tuple[bytes, Picks]:
        """The prose, and where a slice may begin; SpecError where the longest one has no place in it."""
        prose = self.text()
        spaces = np.flatnonzero(np.frombuffer(prose, dtype=np.uint8) == ord(" "))
        starts = spaces[spaces < len(prose) - max(self.lengths) - 1] + 1
        if not len(starts):
            raise SpecError(f"a text of {max(self.lengths)} bytes is longer than the prose that it is cut from")
        return prose, starts

    def take(self, first: int, picks: Picks) -> list[bytes]:
        """A slice for each document: its number gives the length, its random number the place."""
        prose, starts = self.prose
        places = starts[picks % len(starts)].tolist()
        texts = []
        for number, place in enumerate(places, start=first):
            end = prose.rfind(b" ", place, place + self.lengths[number % len(self.lengths)] + 1)
            texts.append(b"".join((self.prefix, prose[place : max(place, end)], self.suffix)))
        return texts


def table(texts: Sequence[str], prefix: str, suffix: str, present: NDArray[np.bool_] | None = None) -> Table:
    """A table of texts between prefix and suffix; a row that is not `present` is empty."""
    rows = np.empty(len(texts), dtype=object)
    rows[:] = [f"{prefix}{text}{suffix}".encode() for text in texts]
    if present is not None:
        rows[~present] = b""
    return Table(rows)
