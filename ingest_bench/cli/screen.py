"""All that the command prints, or writes where it was told to, and the progress of runs.

That is bars on a terminal, one plain line a stage elsewhere.

No other module prints, and nothing is printed but through `_shown`.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from ingest_bench.errors import SpecError
from ingest_bench.inputs import files
from ingest_bench.inputs.visible import one_line, visible
from ingest_bench.results import whole_files

if TYPE_CHECKING:
    from ingest_bench.load.supervisor import Progress as LoadProgress

# Away from a terminal nothing is cut: a log may be as wide as it likes.
_OUT = Console(width=None if sys.stdout.isatty() else 400)
_ERRORS = Console(stderr=True)
_SOON_S = 90
# A sentence is not wrapped into less.
_NARROW = 20


def say(text: str) -> None:
    """Print lines as they are; the terminal breaks them where it is too narrow."""
    _OUT.print(_shown(text), soft_wrap=True)


def heading(text: str) -> None:
    """Print a title."""
    _OUT.print(_shown(one_line(text), "bold"))


def mark(present: bool, name: str, detail: str) -> None:
    """Print a line that says yes or no."""
    _OUT.print(_shown("yes", "green") if present else _shown("no ", "red"), end="  ")
    say(f"{name}: {detail}")


def lasts(seconds: float) -> str:
    """About how long: "18 s", "5 min", "2.5 h"."""
    if seconds < _SOON_S:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 60 * _SOON_S else f"{seconds / 3600:.1f} h"


def note(text: str) -> None:
    """Print lines where errors go: the standard output is somebody else's."""
    _ERRORS.print(_shown(text), soft_wrap=True)


def complain(word: str, text: str) -> None:
    """Print an error after the word that says what kind of end it is."""
    _ERRORS.print(_shown(f"{word}:", "bold red") + _shown(f" {text}"), soft_wrap=True)


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int = 1) -> None:
    """Print a table; columns from `numbers_from` on are aligned to the right.

    Where it is wider than the terminal: one block a row with a line for each column that has a value.
    """
    grid = Table(title=_shown(one_line(title)) if title else None, title_justify="left", header_style="bold")
    for at, name in enumerate(head):
        justify: Literal["left", "right"] = "left" if at < numbers_from else "right"
        grid.add_column(_shown(one_line(name)), justify=justify, no_wrap=True)
    for row in rows:
        grid.add_row(*(_shown(one_line(cell)) for cell in row))
    # Asked at its own width, rich would say that any table fits: it cuts cells, "no_wrap" or not.
    if _OUT.measure(grid, options=_OUT.options.update(width=10_000)).maximum <= _OUT.width:
        _OUT.print(grid)
        return
    if title:
        heading(title)
    for row in rows:
        heading(" ".join(row[:numbers_from]))
        for name, value in zip(head[numbers_from:], row[numbers_from:], strict=True):
            if value:
                _OUT.print(_shown(one_line(f"  {name}: {value}")))


def keep(file: Path, content: str | bytes) -> None:
    """Write what somebody asked for in a file, whole or not at all; its folder is made.

    What is there and no file (`/dev/stdout`, a pipe) is written to. SpecError where nothing can be written.
    """
    # A name of a file that is no UTF-8 may stand in it.
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if files.is_special(file):
            file.write_bytes(data)
        else:
            whole_files.replace(files.behind_links(file), data)
    except OSError as error:
        raise SpecError(f"{file}: cannot be written: {error.strerror}") from None


def names(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print names, each with a sentence beside it that wraps there; below it where the terminal is narrow."""
    heading(title)
    shown = [(one_line(name), one_line(said)) for name, said in rows]
    indent = 2 + max((len(name) for name, _ in shown), default=0) + 2
    if _OUT.width - indent < _NARROW:
        indent = 6
    for name, said in shown:
        wrapped = textwrap.wrap(said, max(_NARROW, _OUT.width - indent)) or [""]
        first = "" if len(name) + 4 > indent else wrapped.pop(0)
        say(f"  {name:<{indent - 2}}{first}")
        for line in wrapped:
            say(" " * indent + line)


def _shown(text: str, style: str = "") -> Text:
    """Whatever is printed goes through here: anybody's text, which is neither markup nor a command to the terminal."""
    return Text(visible(text), style)


def literal(text: str) -> str:
    """The help of an option in which brackets are brackets, and no style."""
    return escape(text)


class RunProgress:
    """Tells how far the runs are, and about how long the others take: as long as those before them did on average."""

    def __init__(self, runs: int, run_s: float | None, progress: Progress | None) -> None:
        self._runs = runs
        self._expected_s = run_s
        self._progress = progress
        self._task = progress.add_task("", total=runs) if progress else None
        self._number = self._name = self._rest = self._last = ""
        self._ended = 0
        self._ended_s = self._began = 0.0

    def begin(self, number: int, name: str, left: int) -> None:
        """A run begins, the first of so many that are left."""
        self._began, self._last = time.monotonic(), ""
        self._number, self._name, self._rest = f"run {number}/{self._runs}", name, self._takes(left)
        if not self._progress:
            say(f"{self._number} {name}{self._rest}")

    def stage(self, name: str) -> None:
        """A stage of the run begins."""
        self._show(name, name)

    def load(self, seen: LoadProgress) -> None:
        """The load says how far it is."""
        left = "" if seen.seconds_left is None else f", {seen.seconds_left:.0f} s left"
        self._show(seen.phase, f"{seen.phase}, {seen.documents:,} documents{left}")

    def end(self, said: str) -> None:
        """A run ended."""
        self._ended += 1
        self._ended_s += time.monotonic() - self._began
        if self._progress and self._task is not None:
            self._progress.advance(self._task)
            say(f"{self._number} {self._name}: {said}")
        else:
            say(f"  {said}")

    def _takes(self, runs: int) -> str:
        """About how long so many runs take; nothing where nobody knows."""
        if self._expected_s is None:
            return ""
        left_s = runs * (self._ended_s / self._ended if self._ended else self._expected_s)
        return f" (all: about {lasts(left_s)})"

    def _show(self, stage: str, what: str) -> None:
        if self._progress and self._task is not None:
            self._progress.update(self._task, description=one_line(f"{self._number}: {what}{self._rest}  {self._name}"))
        elif stage != self._last:
            say(f"  {time.monotonic() - self._began:.0f} s: {stage}")
        self._last = stage


def _cut(form: str) -> TextColumn:
    """A text that takes what room is left on its line. What changes stands at its beginning: the end is cut off."""
    return TextColumn(form, markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))


@contextlib.contextmanager
def run_progress(runs: int, run_s: float | None = None) -> Iterator[RunProgress]:
    """A progress display for that many runs of about so many seconds; plain lines when the output is no terminal.

    None: nobody knows how long they take, or how many they will be.
    """
    if not _OUT.is_terminal:
        yield RunProgress(runs, run_s, None)
        return
    columns = (BarColumn(bar_width=20), TimeElapsedColumn(), _cut("{task.description}"))
    with Progress(*columns, console=_OUT, transient=True, expand=True) as progress:
        yield RunProgress(runs, run_s, progress)


@contextlib.contextmanager
def downloads() -> Iterator[Callable[[str, int, int | None], None]]:
    """A function that shows downloads as bars, or as one line each when the output is no terminal."""
    seen: dict[str, TaskID] = {}
    if not _OUT.is_terminal:
        yield lambda what, done, _total: None if done or what in seen else _say_once(seen, what)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_OUT, transient=True) as progress:

        def show(what: str, done: int, total: int | None) -> None:
            if what not in seen:
                seen[what] = progress.add_task(one_line(f"fetch {what}"), total=total)
            progress.update(seen[what], completed=done, total=total)

        yield show


def _say_once(seen: dict[str, TaskID], what: str) -> None:
    seen[what] = TaskID(0)
    say(f"fetch {what}")
