"""Everything that the command prints or writes to files named by the user, and the progress of runs.

Progress is a live block on a terminal, and one plain line for each run elsewhere. No other module prints, and
everything printed goes through `_to_text`, which escapes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ingest_bench import system
from ingest_bench.errors import IngestBenchError, SpecError
from ingest_bench.inputs import files
from ingest_bench.inputs.escaping import escape_line, escape_text

if TYPE_CHECKING:
    from ingest_bench.cli.options import OutputOptions
    from ingest_bench.load.supervisor import Progress as LoadProgress

# Without a terminal nothing is cut: lines of a log may have any width.
_STDOUT = Console(width=None if sys.stdout.isatty() else 400)
_STDERR = Console(stderr=True)
_MAX_SECONDS_SHOWN = 90
_QUANTILES = {"p50": 0.5, "p99": 0.99}
# Lines of a digest on a terminal of 24 lines, without the head of its table, the line "more rows", the empty one, and
# the prompt.
_MAX_DIGEST_LINES, _MIN_DIGEST_ROWS = 20, 4
# Sentences are not wrapped into less.
_MIN_TEXT_WIDTH = 20
# Longer names stand above their description.
_MAX_INDENT = 28
OUTCOME_STYLES = {"pass": "green", "fail": "bold red", "no verdict": "yellow", "skipped": "dim"}


def print_text(text: str, style: str = "") -> None:
    """Print lines, wrapped between words on a terminal. Indented lines and longer words are left to the terminal."""
    for line in escape_text(text).split("\n"):
        _STDOUT.print(Text("\n".join(_wrap(line)) or "", style), soft_wrap=True)


def print_unwrapped(text: str) -> None:
    """Print a file for people or programs: with line breaks it would be another one."""
    _STDOUT.print(_to_text(text), soft_wrap=True)


def print_notes(notes: Iterable[str], word: str = "note") -> None:
    """Print each note on a line of its own, after a word such as "note"."""
    for note in notes:
        print_text(f"{word}: {note}")


def print_heading(text: str) -> None:
    """Print a title."""
    _STDOUT.print(_to_text(escape_line(text), "bold"))


def print_capability(present: bool, name: str, detail: str) -> None:
    """Print a line that begins with yes or no."""
    _STDOUT.print(_to_text("yes", "green") if present else _to_text("no ", "red"), end="  ")
    print_text(f"{name}: {detail}")


def print_to_stderr(text: str) -> None:
    """Print lines to stderr, where stdout belongs to another program."""
    _STDERR.print(_to_text(text), soft_wrap=True)


def print_json(value: object) -> None:
    """Print a value as JSON. An infinite number is null: JSON has none."""
    finite = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
    print_unwrapped(json.dumps(finite, indent=1))


def open_page(page: Path) -> None:
    """Open a page in the user's browser; print why if that fails."""
    try:
        system.run(("xdg-open", page.absolute().as_uri()), env=os.environ)
    except IngestBenchError as error:
        print_to_stderr(f"--open: {error}")


def print_error(word: str, text: str) -> None:
    """Print an error to stderr after a word such as "error" or "interrupted"."""
    _STDERR.print(_to_text(f"{word}:", "bold red") + _to_text(f" {text}"), soft_wrap=True)


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int = 1) -> None:
    """Print a table; columns from `numbers_from` on are right-aligned. An outcome in the first one is coloured.

    If it is wider than the terminal: one block for each row, with a line for each column that has a value.
    """
    grid = Table(title=_to_text(escape_line(title)) if title else None, title_justify="left", header_style="bold")
    for at, name in enumerate(head):
        justify: Literal["left", "right"] = "left" if at < numbers_from else "right"
        grid.add_column(_to_text(escape_line(name)), justify=justify, no_wrap=True)
    for row in rows:
        outcome = OUTCOME_STYLES.get(row[0], "")
        grid.add_row(*(_to_text(escape_line(cell), "" if at else outcome) for at, cell in enumerate(row)))
    # Measured with a large width: at its own width rich says that any table fits, and cuts cells despite "no_wrap".
    if _STDOUT.measure(grid, options=_STDOUT.options.update(width=10_000)).maximum <= _STDOUT.width:
        _STDOUT.print(grid)
        return
    if title:
        print_heading(title)
    for row in rows:
        print_text(" ".join(map(escape_line, row[:numbers_from])), OUTCOME_STYLES.get(row[0], "bold"))
        for name, value in zip(head[numbers_from:], row[numbers_from:], strict=True):
            if value:
                _STDOUT.print(_to_text(escape_line(f"  {name}: {value}")))


def print_digest(rows: Sequence[Sequence[str]], sentences: Sequence[str], last: Sequence[str] = ()) -> None:
    """Print a table without lines, then sentences; on a terminal both are cut to fit with the lines *last*.

    The caller prints these next.
    """
    head, *body = rows
    shown = len(body)
    if _STDOUT.is_terminal:
        room = _MAX_DIGEST_LINES - sum(map(_count_lines, last))
        sentences = _cut_sentences(sentences, room - _MIN_DIGEST_ROWS)
        room -= sum(map(_count_lines, sentences))
        shown = min(shown, room)
        while shown > 1 and len(_STDOUT.render_lines(_build_digest(head, body[:shown]))) > 1 + room:
            shown -= 1
    _STDOUT.print(_build_digest(head, body[:shown]))
    if len(body) > shown:
        print_text(f"… {len(body) - shown} more rows: --wide, or the page")
    print_text("")
    for sentence in sentences:
        print_text(sentence)


def print_blocks(blocks: Sequence[str], last: str) -> None:
    """Print blocks of lines, then a line; on a terminal only as many blocks as fit."""
    room = _MAX_DIGEST_LINES - _count_lines(last)
    for at, block in enumerate(blocks):
        room -= sum(map(_count_lines, block.split("\n")))
        if _STDOUT.is_terminal and room < 0 < at:
            print_text(f"… {len(blocks) - at} more: --json")
            break
        print_text(block)
    if last:
        print_text(last)


def _build_digest(head: Sequence[str], body: Sequence[Sequence[str]]) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for at, name in enumerate(head):
        justify: Literal["left", "right"] = "right" if at else "left"
        grid.add_column(
            _to_text(escape_line(name)), justify=justify, no_wrap=bool(at), min_width=None if at else _MIN_TEXT_WIDTH
        )
    for row in body:
        grid.add_row(*(_to_text(escape_line(cell)) for cell in row))
    return grid


def _cut_sentences(sentences: Sequence[str], most: int) -> list[str]:
    """Return sentences of that many lines on the terminal: the longest ones are cut first, then the last ones."""
    texts = list(sentences)
    while sum(map(_count_lines, texts)) > most:
        longest = max(range(len(texts)), key=lambda at: _count_lines(texts[at]))
        if _count_lines(texts[longest]) == 1:
            return [*texts[: most - 1], f"… {len(texts) - most + 1} more: the page"]
        # The last line, or all but one of a word that is longer than a line.
        *kept, end = _wrap(texts[longest])[:-1] or [texts[longest]]
        end = end[: _STDOUT.width - 2]
        texts[longest] = " ".join([*kept, f"{end.rpartition(' ')[0] or end} …"])
    return texts


def _count_lines(text: str) -> int:
    """Return the number of lines that a text takes on the terminal."""
    return sum(max(1, -(-len(line) // _STDOUT.width)) for line in _wrap(text))


def print_names(title: str, rows: Sequence[tuple[str, str]], width: int | None = None) -> None:
    """Print names with a wrapped description next to them, or below them on a narrow terminal."""
    print_heading(title)
    escaped = [(escape_line(name), escape_line(description)) for name, description in rows]
    width = width or _STDOUT.width
    indent = min(2 + max((len(name) for name, _ in escaped), default=0) + 2, _MAX_INDENT)
    if width - indent < _MIN_TEXT_WIDTH:
        indent = 6
    for name, description in escaped:
        wrapped = textwrap.wrap(description, max(_MIN_TEXT_WIDTH, width - indent)) or [""]
        first = "" if len(name) + 4 > indent else wrapped.pop(0)
        print_text(f"  {name:<{indent - 2}}{first}")
        for line in wrapped:
            print_text(" " * indent + line)


def write_output(file: Path, content: str | bytes) -> None:
    """Write a file that the user named, atomically unless it is special; raise SpecError if that fails."""
    # The text may hold a file name that is not UTF-8.
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if files.is_special(file):
            file.write_bytes(data)
        else:
            files.write_atomically(files.resolve_links(file), data)
    except OSError as error:
        raise SpecError(f"{file}: cannot be written: {error.strerror}") from None


def format_duration(seconds: float) -> str:
    """Format an approximate duration: "18 s", "5 min", "2.5 h"."""
    if seconds < _MAX_SECONDS_SHOWN:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 60 * _MAX_SECONDS_SHOWN else f"{seconds / 3600:.1f} h"


def _wrap(line: str) -> list[str]:
    """Return a line in parts of the terminal's width; one part if it is indented, or if there is no terminal."""
    if not _STDOUT.is_terminal or line.startswith(" "):
        return [line]
    return textwrap.wrap(line, _STDOUT.width, break_long_words=False, break_on_hyphens=False)


def _to_text(text: str, style: str = "") -> Text:
    """Escape a text from any source, so that it holds neither markup nor terminal commands."""
    return Text(escape_text(text), style)


class RunProgress:
    """Shows runs: on a terminal in one block that is redrawn, elsewhere as one line for each run that ended.

    The remaining time is estimated from the mean of the runs so far. With `verbose`, each stage is a line too.
    """

    def __init__(self, runs: int, run_s: float | None, output: OutputOptions) -> None:
        self._runs, self._expected_s, self._output = runs, run_s, output
        self._is_verbose = output.verbose and not output.is_silent
        self._live = Live(self, console=_STDOUT, transient=True)
        self._number = self._name = self._phase = ""
        self._load: LoadProgress | None = None
        self._first: tuple[float, LoadProgress] | None = None
        """The first progress of the present phase, and its time: figures are counted from there."""
        self._ended = self._remaining = 0
        self._ended_s = self._began = 0.0

    @contextlib.contextmanager
    def show(self) -> Iterator[RunProgress]:
        """Show the block, on a terminal, until the end of the with statement."""
        with self._live if is_live(self._output) else contextlib.nullcontext():
            yield self

    def begin_run(self, number: int, name: str, remaining: int) -> None:
        """Show that a run begins, the first of those that remain."""
        self._began, self._remaining = time.monotonic(), remaining
        self._number, self._name, self._phase, self._load = f"run {number}/{self._runs}", name, "", None
        if self._is_verbose:
            print_text(f"{self._number} {name}{self._estimate()}")

    def begin_phase(self, name: str) -> None:
        """Show that a phase of the run begins."""
        if self._is_verbose and name != self._phase:
            print_text(f"  {time.monotonic() - self._began:.0f} s: {name}")
        self._phase, self._first, self._load = name, None, None

    def update(self, progress: LoadProgress) -> None:
        """Show the progress of the load."""
        if progress.phase != self._phase:
            self.begin_phase(progress.phase)
        self._load = progress
        self._first = self._first or (time.monotonic(), progress)

    def end_run(self, outcome: str) -> None:
        """Show the outcome of the run."""
        self._ended += 1
        self._ended_s += time.monotonic() - self._began
        self._load, self._phase = None, "analysis"
        if not self._output.is_silent:
            print_text(f"  {outcome}" if self._is_verbose else f"{self._number} {self._name}: {outcome}")

    def _run_s(self) -> float | None:
        return self._ended_s / self._ended if self._ended else self._expected_s

    def _estimate(self) -> str:
        if (run_s := self._run_s()) is None:
            return ""
        seconds = max(0.0, self._remaining * run_s - (time.monotonic() - self._began))
        return f", about {format_duration(seconds)} left"

    def __rich__(self) -> Group:
        """Return the block."""
        left = "" if self._load is None or self._load.seconds_left is None else f" {self._load.seconds_left:.0f} s"
        share = min(0.95, (time.monotonic() - self._began) / run_s) if (run_s := self._run_s()) else 0.0
        # What changes is at the start of a line, because its end is cut off.
        texts = (f"{self._number}: {self._phase}{left}{self._estimate()}  {self._name}", self._describe_load())
        lines = (Text(escape_line(text), no_wrap=True, overflow="ellipsis") for text in texts)
        return Group(*lines, ProgressBar(total=self._runs, completed=self._ended + share))

    def _describe_load(self) -> str:
        """Describe documents, response times, errors and pauses since the phase began, and the heap."""
        if self._load is None or self._first is None:
            return ""
        (first_s, first), load = self._first, self._load
        seconds, documents = time.monotonic() - first_s, load.documents - first.documents
        parts = [f"{documents / seconds:,.0f} docs/s" if seconds > 1 else f"{load.documents:,} documents"]
        if load.figures is not None and first.figures is not None:
            bulks = load.figures.bulks - first.figures.bulks
            parts += [f"{name} {bulks.quantile_ns(share) / 1e6:,.1f} ms" for name, share in _QUANTILES.items()]
            parts.append(f"{bulks.requests - bulks.outcomes.get('ok', 0):,} errors")
        if load.heap_bytes is not None:
            parts.append(f"heap {load.heap_bytes / 2**20:,.0f} MiB")
            parts.append(f"GC {(load.gc_pause_ns - first.gc_pause_ns) / 1e6:,.0f} ms")
        return "  ".join(parts)


def is_live(output: OutputOptions) -> bool:
    """Return whether the progress of runs is a block that shows live figures."""
    return _STDOUT.is_terminal and not output.is_silent


@contextlib.contextmanager
def download_progress(*, to_stderr: bool = False) -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield a function that shows downloads as bars, or as one line each without a terminal."""
    tasks: dict[str, TaskID] = {}
    console, show = (_STDERR, print_to_stderr) if to_stderr else (_STDOUT, print_text)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def update(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(escape_line(f"fetch {name}"), total=total)
                if progress.disable and not done:
                    show(f"fetch {name}")
            progress.update(tasks[name], completed=done, total=total)

        yield update
