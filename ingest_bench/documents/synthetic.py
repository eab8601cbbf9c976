"""Synthetic documents of a workload: seeded, as JSON text, at hundreds of megabytes per second.

A document is joined from formatted pieces: the values of a field are formatted once, into a table, and each document
draws a row. Formatting values for each document would make a 64 MiB pool take much longer than its one second.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ingest_bench.documents import lines, words
from ingest_bench.documents.generators import GENERATORS, Rows, Sigma, Vocabulary, create_generator
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.inputs import files, records
from ingest_bench.model.load import DocumentField, Workload
from ingest_bench.model.values import MIB, Between, Json, Length, Line, Pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Picks = NDArray[np.int64]
    Column = Callable[[int, Picks], list[bytes]]
    """One field with its separator and name: returns its text in documents *first*, *first* + 1, … for their random
    numbers."""

# Documents are generated in blocks, each from its own seed, so that any process can generate any block. A block has
# this many documents, or fewer if they are large: a block of papers would be 165 MB.
BLOCK_DOCUMENTS = 4096
BLOCK_BYTES = 4 * 1024**2
PROSE_BYTES = 4 * 1024**2
# A prime, so that lengths do not align with a bulk size. Every 997 documents have the exact mean.
LENGTHS = 997
MIN_TEXT_BYTES = 64
# Rows that a check generates. Of two choices, one of which leads to a wrong value, 512 have each.
_CHECKED_ROWS = 1024
# Characters that stand between quotes in JSON unescaped.
_PLAIN = r'[^"\\\x00-\x1f\ud800-\udfff]'
IdFormat = Annotated[
    str,
    Pattern(
        rf"|(?:(?![{{}}]){_PLAIN}){{0,100}}\{{(:0?[0-9]{{0,2}}d)?\}}(?:(?![{{}}]){_PLAIN}){{0,100}}",
        'a format with one number in it: "PMC{:07d}"',
    ),
]
InJson = Annotated[
    str,
    Pattern(
        rf'(?:{_PLAIN}|\\["\\/bfnrt]|\\u[0-9a-fA-F]{{4}}){{0,10000}}', "a text as it stands in JSON, quotes escaped"
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Id:
    """A number unique to each document; with a Python format such as `PMC{:07d}` it is a text."""

    start: Annotated[int, Between(0, 10**18, "the last document's number must fit into 64 bits too")] = 0
    format: IdFormat = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Prose with log-normal lengths around a mean. `lead` precedes it, escaped as JSON."""

    mean_bytes: Annotated[int, Between(MIN_TEXT_BYTES, MIB, "a part of the prose that it is cut from")]
    sigma: Sigma = 0.5
    vocabulary: Vocabulary = 40000
    lead: InJson = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    """An object of other fields."""

    fields: Annotated[tuple[Annotated[dict[Line, Any], Json()], ...], Length(1, 1000)]


# Kinds that need columns of their own instead of a value per row.
SPECIAL: Mapping[str, type[Id] | type[Text] | type[Nested]] = {"id": Id, "text": Text, "object": Nested}
KINDS = (*GENERATORS, *SPECIAL)


def _take_rows(texts: Sequence[str], prefix: str, is_present: NDArray[np.bool_] | None = None) -> Column:
    """Return a column of texts after a prefix, one per row of a table; a row that is not present is empty."""
    rows = np.empty(len(texts), dtype=object)
    rows[:] = [f"{prefix}{text}".encode() for text in texts]
    if is_present is not None:
        rows[~is_present] = b""

    def take(_first: int, picks: Picks) -> list[bytes]:
        taken: list[bytes] = rows[picks % len(rows)].tolist()
        return taken

    return take


def _take_numbers(prefix: str, options: Id) -> Column:
    """Return a column of document numbers."""
    quote = '"' if options.format else ""
    template, before, after = options.format or "{}", f"{prefix}{quote}".encode(), quote.encode()

    def take(first: int, picks: Picks) -> list[bytes]:
        start = options.start + first
        return [
            b"".join((before, template.format(number).encode(), after)) for number in range(start, start + len(picks))
        ]

    return take


def _take_slices(prefix: str, options: Text, seed: int) -> Column:
    """Return a column of long texts: slices of one long prose, cut at spaces, with lengths from a table."""
    random = np.random.default_rng([seed, 3])
    # Draws are scaled to the mean, which makes it exact, and sorted only to be shuffled again.
    spread = np.exp(options.sigma * np.sort(random.normal(size=LENGTHS)))
    sizes = np.maximum(MIN_TEXT_BYTES, spread / spread.mean() * options.mean_bytes).astype(int)
    lengths: list[int] = random.permutation(sizes).tolist()
    longest, before = max(lengths), f'{prefix}"{options.lead}'.encode()

    @functools.cache
    def find_starts() -> tuple[bytes, Picks]:
        """Return the prose and the offsets at which a slice may begin; SpecError if the longest slice does not fit."""
        prose = words.prose(seed, PROSE_BYTES, options.vocabulary)
        spaces = np.flatnonzero(np.frombuffer(prose, dtype=np.uint8) == ord(" "))
        starts = spaces[spaces < len(prose) - longest - 1] + 1
        if not len(starts):
            raise SpecError(f"a text of {longest} bytes is longer than the prose that it is cut from")
        return prose, starts

    def take(first: int, picks: Picks) -> list[bytes]:
        """Return a slice for each document: its number selects the length, its random number the offset."""
        prose, starts = find_starts()
        texts = []
        for number, start in enumerate(starts[picks % len(starts)].tolist(), start=first):
            end = prose.rfind(b" ", start, start + lengths[number % LENGTHS] + 1)
            texts.append(b"".join((before, prose[start : max(start, end)], b'"')))
        return texts

    if longest > PROSE_BYTES // 4:
        # Prose takes half a second, so it is made for the first document. This text may not fit: prose of short words
        # has a third of that size.
        find_starts()
    return take


@dataclass(frozen=True, slots=True)
class _Build:
    """State that all columns of a workload share while they are built."""

    seed: int
    where: str
    limit: int
    """Most values of a field."""
    is_check: bool
    rows: dict[str, tuple[int, Rows]] = field(default_factory=dict)
    """By row name: the number of distinct values of its fields, and the row."""

    def rows_of(self, spec: DocumentField, path: str) -> Rows:
        random = np.random.default_rng([self.seed, *path.encode()])
        size = min(spec.distinct, self.limit)
        rows = Rows(random, size, self.seed, f"{self.where}: {path}", is_check=self.is_check)
        if not spec.row:
            return rows
        distinct, shared = self.rows.setdefault(spec.row, (spec.distinct, rows))
        if distinct != spec.distinct:
            raise SpecError(
                f'{self.where}: {path}: distinct is {spec.distinct}, but row "{spec.row}" has {distinct}. '
                "Give all fields of a row the same."
            )
        return replace(rows, fields=shared.fields)


class DocumentGenerator:
    """Generates the documents of a workload in blocks. A seed always gives the same documents."""

    def __init__(self, workload: Workload, seed: int, *, limit: int = sys.maxsize, is_check: bool = False) -> None:
        self._seed = seed
        self.size = max(16, min(BLOCK_DOCUMENTS, int(BLOCK_BYTES / workload.mean_document_bytes)))
        """Documents per block."""
        build = _Build(seed, f"workload {workload.name}: fields", limit, is_check)
        if workload.fields[0].present < 1:
            raise SpecError(f"{build.where}: the first field must be in every document. Move another one to the front.")
        self._columns = tuple(_build_columns(workload.fields, build, "", "{", "}"))

    def block(self, number: int) -> list[bytes]:
        """Generate `size` documents without line feeds, independent of other blocks."""
        random = np.random.default_rng([self._seed, number])
        picks: dict[str, Picks] = {}
        parts = []
        for position, (row, column) in enumerate(self._columns):
            key = row or str(position)
            if key not in picks:
                picks[key] = random.integers(0, 2**62, self.size)
            parts.append(column(number * self.size, picks[key]))
        return [b"".join(pieces) for pieces in zip(*parts, strict=True)]

    def blocks(self, worker: int = 0, workers: int = 1) -> Iterator[list[bytes]]:
        """Return the blocks of one of several workers forever: together they generate each document once."""
        return map(self.block, itertools.count(worker, workers))


def write_documents(workload: Workload, documents: int, path: Path, seed: int) -> int:
    """Write documents as NDJSON, compressed by the suffix (.gz .bz2 .zst), and return the size of the text.

    The file is complete or absent. A device or pipe such as `/dev/stdout` is written to directly.
    """
    total, part = 0, None
    try:
        target = path
        if not files.is_special(path):
            target = files.resolve_links(path)
            part = target.with_name(target.name + ".part")
        with lines.create(part or target, lines.compression_suffix(path.name)) as file:
            for block in lines.limit_documents(DocumentGenerator(workload, seed).blocks(), documents):
                text = b"\n".join((*block, b""))
                file.write(text)
                total += len(text)
        if part is not None:
            part.replace(target)
    except OSError as error:
        if part is not None:
            part.unlink(missing_ok=True)
        raise SpecError(f"{path}: cannot be written: {error.strerror}") from None
    return total


def check_workload(workload: Workload) -> None:
    """Check that documents can be generated; SpecError names the field and what is wrong with it.

    A field of numbers that others are added to may be a text in one row of many, so there is a row for every choice
    of a field. Takes some 0.01 s, or some 0.1 s for vocabularies of tens of thousands of words.
    """
    longest = max(_longest_list(spec.options) for spec in workload.fields)
    DocumentGenerator(workload, 1, limit=max(_CHECKED_ROWS, longest), is_check=True)


def _longest_list(value: Any) -> int:
    """Return the length of the longest list inside a value."""
    if not isinstance(value, (dict, list, tuple)):
        return 0
    inner = max(map(_longest_list, value.values() if isinstance(value, Mapping) else value), default=0)
    return inner if isinstance(value, Mapping) else max(len(value), inner)


def _build_columns(
    fields: tuple[DocumentField, ...], build: _Build, path: str, opening: str, closing: str
) -> Iterator[tuple[str, Column]]:
    names: set[str] = set()
    for number, spec in enumerate(fields):
        if spec.name in names:
            raise SpecError(f"{build.where}: {path}{spec.name}: two fields have this name. Rename one of them.")
        names.add(spec.name)
        prefix = (", " if number else opening) + f'"{spec.name}": '
        yield from _build_column(spec, build, f"{path}{spec.name}", prefix)
    yield "", _take_rows([closing], "")


def _build_column(spec: DocumentField, build: _Build, path: str, prefix: str) -> Iterator[tuple[str, Column]]:
    """Yield the columns of a field, each with the name of its row."""
    where = f"{build.where}: {path}"
    if spec.kind not in SPECIAL:
        rows = build.rows_of(spec, path)
        values = create_generator({"kind": spec.kind, **spec.options}, where)(rows)
        rows.fields[spec.name] = values
        absent = round(rows.size * (1 - spec.present))
        is_present = rows.random.permutation(rows.size) >= absent if absent else None
        yield spec.row, _take_rows(values.texts, prefix, is_present)
        return
    if spec.present < 1:
        raise SpecError(f'{where}: a field of kind "{spec.kind}" is in every document. Remove "present".')
    options = records.from_toml(SPECIAL[spec.kind], spec.options, where)
    if isinstance(options, Id):
        yield "", _take_numbers(prefix, options)
    elif isinstance(options, Text):
        yield "", _take_slices(prefix, options, build.seed)
    else:
        tables = catalog.group_field_options(list(options.fields), where)
        inner = tuple(records.from_toml(DocumentField, table, where) for table in tables)
        yield from _build_columns(inner, build, f"{path}.", prefix + "{", "}")
