"""Places in the files of a track: which line of which file a line of assembled or rendered text comes from."""

from __future__ import annotations

import bisect
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

# Around the file name and the line of a template, in marked text. Noncharacters: no text of a user has them.
_OPEN, _BETWEEN, _CLOSE = "\ufdd2", "\ufdd3", "\ufdd4"
_MARK = re.compile(f"{_OPEN}([^{_BETWEEN}]*){_BETWEEN}([0-9]+){_CLOSE}")


class Place(NamedTuple):
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}: line {self.line}"


@dataclass(slots=True)
class Assembled:
    """Text that is put together from several files."""

    places: list[Place] = field(default_factory=list)
    """The place of each of its lines."""
    _pieces: list[str] = field(default_factory=list)
    _is_continued: bool = False
    """Whether there is something in its last line."""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces)

    def add(self, text: str, places: list[Place]) -> None:
        """Append *text*, whose lines are from *places*, to the last line."""
        if self.places and not self._is_continued:
            self.places[-1] = places[0]
        self.places += places[1:] if self.places else places
        _, feed, last = text.rpartition("\n")
        self._is_continued = bool(last.strip()) or (self._is_continued and not feed)
        self._pieces.append(text)


class Marks(Extension):
    """Jinja extension that writes its place before each line of a template's text."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Yield the tokens of a template, its text with marks."""
        for token in stream:
            yield token if token.type != "data" else Token(token.lineno, "data", _marked(token, stream.filename))


def _marked(token: Token, file: str | None) -> str:
    lines = enumerate(token.value.split("\n"), token.lineno)
    return "\n".join(f"{_OPEN}{file}{_BETWEEN}{number}{_CLOSE}{line}" for number, line in lines)


def position_in_marked(marked: str, text: str, position: int) -> tuple[str, int] | None:
    """Return the template file and the line of a position in *text*, which was rendered again with marks.

    None if a template depends on its own text, so that the marks changed what it renders.
    """
    pieces: list[str] = []
    offsets: list[int] = []
    marks: list[tuple[str, int]] = []
    end = length = 0
    for mark in _MARK.finditer(marked):
        pieces.append(marked[end : mark.start()])
        length += len(pieces[-1])
        offsets.append(length)
        marks.append((mark[1], int(mark[2])))
        end = mark.end()
    plain = "".join((*pieces, marked[end:]))
    at = bisect.bisect_right(offsets, position)
    return marks[at - 1] if at and plain == text else None


def raised_at(error: BaseException) -> tuple[str, int] | None:
    """Return the template file and the line in which rendering raised *error*; None if no template did."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        # Jinja puts such frames instead of those of compiled templates (jinja2.debug).
        if "__jinja_exception__" in frame.f_globals
    ]
    return frames[-1] if frames else None
