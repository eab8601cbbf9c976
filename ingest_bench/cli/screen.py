"""The two consoles, and the progress of runs: bars on a terminal, one plain line a stage elsewhere."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ingest_bench.load import Progress as LoadProgress

# Away from a terminal nothing is cut: a log may be as wide as it likes.
OUT = Console(width=None if sys.stdout.isatty() else 400)
ERRORS = Console(stderr=True)


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int = 1) -> None:
    """Print a table; columns from `numbers_from` on are aligned to the right.

    Where it is wider than the terminal: one block a row with a line a column.
    """
    grid = Table(title=Text(title) if title else None, title_justify="left", header_style="bold")
    for at, name in enumerate(head):
        grid.add_column(name, justify="left" if at < numbers_from else "right", no_wrap=True)
    for row in rows:
        grid.add_row(*map(Text, row))
    # Asked at its own width, rich would say that any table fits: it cuts cells, "no_wrap" or not.
    if OUT.measure(grid, options=OUT.options.update(width=10_000)).maximum <= OUT.width:
        OUT.print(grid)
        return
    if title:
        heading(title)
    for row in rows:
        heading(" ".join(row[:numbers_from]))
        for name, value in zip(head[numbers_from:], row[numbers_from:], strict=True):
            OUT.print(f"  {name}: {value}", highlight=False, markup=False)


def names(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print names, each with a sentence beside it that wraps there."""
    heading(title)
    indent = 2 + max((len(name) for name, _ in rows), default=0) + 2
    for name, said in rows:
        wrapped = textwrap.wrap(said, max(20, OUT.width - indent)) or [""]
        say(f"  {name:<{indent - 2}}{wrapped[0]}")
        for line in wrapped[1:]:
            say(" " * indent + line)


class RunProgress:
    """Tells how far the runs are."""

    def __init__(self, runs: int, progress: Progress | None) -> None:
        self._runs = runs
        self._progress = progress
        self._task = progress.add_task("", total=runs) if progress else None
        self._name = ""

    def begin(self, number: int, name: str) -> None:
        """A run begins."""
        self._name = f"run {number}/{self._runs} {name}"
        if not self._progress:
            OUT.print(self._name, soft_wrap=True, highlight=False, markup=False)

    def stage(self, name: str) -> None:
        """A stage of the run begins."""
        self._show(name)

    def load(self, seen: LoadProgress) -> None:
        """The load says how far it is."""
        left = "" if seen.seconds_left is None else f", {seen.seconds_left:.0f} s left"
        self._show(f"{seen.phase}, {seen.documents:,} documents{left}")

    def end(self, said: str) -> None:
        """A run ended."""
        if self._progress and self._task is not None:
            self._progress.advance(self._task)
            self._progress.console.print(f"{self._name}: {said}", soft_wrap=True, highlight=False, markup=False)
        else:
            OUT.print(f"  {said}", soft_wrap=True, highlight=False, markup=False)

    def _show(self, what: str) -> None:
        if self._progress and self._task is not None:
            self._progress.update(self._task, description=f"{self._name}: {what}")


@contextlib.contextmanager
def run_progress(runs: int) -> Iterator[RunProgress]:
    """A progress display for that many runs; plain lines when the output is no terminal."""
    if not OUT.is_terminal:
        yield RunProgress(runs, None)
        return
    columns = (BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=OUT, transient=True) as progress:
        yield RunProgress(runs, progress)


@contextlib.contextmanager
def downloads() -> Iterator[Callable[[str, int, int | None], None]]:
    """A function that shows downloads as bars, or as one line each when the output is no terminal."""
    seen: dict[str, TaskID] = {}
    if not OUT.is_terminal:
        yield lambda what, done, _total: None if done or what in seen else _say_once(seen, what)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=OUT, transient=True) as progress:

        def show(what: str, done: int, total: int | None) -> None:
            if what not in seen:
                seen[what] = progress.add_task(f"fetch {what}", total=total)
            progress.update(seen[what], completed=done, total=total)

        yield show


def _say_once(seen: dict[str, TaskID], what: str) -> None:
    seen[what] = TaskID(0)
    say(f"fetch {what}")


def say(text: str) -> None:
    """Print a line as it is; the terminal breaks it where it is too narrow."""
    OUT.print(text, soft_wrap=True, highlight=False, markup=False)


def heading(text: str) -> None:
    """Print a title."""
    OUT.print(text, style="bold", highlight=False, markup=False)


def mark(present: bool, name: str, detail: str) -> None:
    """Print a line that says yes or no."""
    OUT.print("[green]yes[/]" if present else "[red]no [/]", end="  ")
    say(f"{name}: {detail}")
