"""Synthetic documents of a workload: seeded, as JSON text, hundreds of megabytes a second."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ingest_bench.documents.generate import GENERATORS, make, zipf_words
from ingest_bench.documents.generate.field_columns import Column, Numbered, Slices, table
from ingest_bench.documents.generate.field_values import Rows, Sigma, Vocabulary
from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog
from ingest_bench.inputs import records
from ingest_bench.model.values import MIB, Between, Form, Json, Line, Several
from ingest_bench.model.workload import DocumentField, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Documents are made in blocks, each from its own seed: any process can make any block alone. A block has this many
# documents, or fewer when they are large: a block of papers would be 165 MB.
BLOCK = 4096
BLOCK_BYTES = 4 * 1024**2
PROSE_BYTES = 4 * 1024**2
# A prime, so that the lengths do not fall in step with a bulk size. Every 997 documents have the exact mean.
LENGTHS = 997
MIN_TEXT_BYTES = 64
# What a check makes. Of two choices of which one leads to a wrong value, in 512 of them.
_CHECKED_ROWS = 1024
# Both stand between quotes in a document as they are.
_PLAIN = r'[^"\\\x00-\x1f\ud800-\udfff]'
IdFormat = Annotated[
    str,
    Form(
        rf"|(?:(?![{{}}]){_PLAIN}){{0,100}}\{{(:0?[0-9]{{0,2}}d)?\}}(?:(?![{{}}]){_PLAIN}){{0,100}}",
        'a format with one number in it: "PMC{:07d}"',
    ),
]
InJson = Annotated[
    str,
    Form(rf'(?:{_PLAIN}|\\["\\/bfnrt]|\\u[0-9a-fA-F]{{4}}){{0,10000}}', "a text as it stands in JSON, quotes escaped"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Id:
    """A number that no two documents share; with a Python format such as `PMC{:07d}` it is a text."""

    start: Annotated[int, Between(0, 10**18, "the last document's number has 64 bits too")] = 0
    format: IdFormat = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Prose with log-normal lengths around a mean. `lead` comes before it, escaped as JSON."""

    mean_bytes: Annotated[int, Between(MIN_TEXT_BYTES, MIB, "a part of the prose that it is cut from")]
    sigma: Sigma = 0.5
    vocabulary: Vocabulary = 40000
    lead: InJson = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    """An object of other fields."""

    fields: Annotated[tuple[Annotated[dict[Line, Any], Json()], ...], Several(1, 1000)]


# Kinds that are more than a value: they make columns of their own.
SPECIAL: Mapping[str, type[Id] | type[Text] | type[Nested]] = {"id": Id, "text": Text, "object": Nested}
KINDS = (*GENERATORS, *SPECIAL)


@dataclass(frozen=True, slots=True)
class _Build:
    """What all columns of one workload share while they are made."""

    seed: int
    where: str
    limit: int
    """Of the values of a field."""
    is_check: bool
    rows: dict[str, tuple[int, Rows]] = field(default_factory=dict)
    """By the name of a row how many values each of its fields shall have, and the row itself."""

    def rows_of(self, spec: DocumentField, path: str) -> Rows:
        random = np.random.default_rng([self.seed, *path.encode()])
        size = min(spec.distinct, self.limit)
        made = Rows(random, size, self.seed, f"{self.where}: {path}", is_check=self.is_check)
        if not spec.row:
            return made
        distinct, shared = self.rows.setdefault(spec.row, (spec.distinct, made))
        if distinct != spec.distinct:
            raise SpecError(
                f'{self.where}: {path}: distinct is {spec.distinct}, but row "{spec.row}" has {distinct}; '
                "give all fields of a row the same"
            )
        return replace(made, made=shared.made)


class Documents:
    """The documents of a workload, in blocks. The same seed gives the same documents."""

    def __init__(self, workload: Workload, seed: int, *, limit: int = sys.maxsize, is_check: bool = False) -> None:
        self._seed = seed
        self.size = max(16, min(BLOCK, int(BLOCK_BYTES / workload.mean_document_bytes)))
        """How many documents a block has."""
        build = _Build(seed, f"workload {workload.name}: fields", limit, is_check)
        if workload.fields[0].present < 1:
            raise SpecError(f"{build.where}: the first field must be in every document; move another one to the front")
        self._columns = tuple(_columns(workload.fields, build, "", "{", "}"))

    def block(self, number: int) -> list[bytes]:
        """`size` documents, without line feeds. Block 7 is the same whether or not the others were made."""
        random = np.random.default_rng([self._seed, number])
        picks: dict[str, NDArray[np.int64]] = {}
        parts = []
        for place, (row, column) in enumerate(self._columns):
            key = row or str(place)
            if key not in picks:
                picks[key] = random.integers(0, 2**62, self.size)
            parts.append(column.take(number * self.size, picks[key]))
        return [b"".join(pieces) for pieces in zip(*parts, strict=True)]

    def blocks(self, part: int = 0, parts: int = 1) -> Iterator[list[bytes]]:
        """The blocks of one of several processes, without end: together they make each document once."""
        number = part
        while True:
            yield self.block(number)
            number += parts


def check(workload: Workload) -> None:
    """Nothing when documents can be made; SpecError names the field and what is wrong with it.

    A field of numbers that others are added to may be a text in one row of many: there are rows for all choices that a
    field has. Takes some hundredths of a second, and some tenths where tens of thousands of words are to be made.
    """
    longest = max(_longest_list(one.options) for one in workload.fields)
    Documents(workload, 1, limit=max(_CHECKED_ROWS, longest), is_check=True)


def example(workload: Workload) -> bytes:
    """One document, made from small tables: quickly, and not one that a run sends."""
    return Documents(workload, 1, limit=64).block(0)[0]


def _longest_list(value: Any) -> int:
    """How long the longest list in it is."""
    if not isinstance(value, (dict, list, tuple)):
        return 0
    inner = max(map(_longest_list, value.values() if isinstance(value, Mapping) else value), default=0)
    return inner if isinstance(value, Mapping) else max(len(value), inner)


def _columns(
    fields: tuple[DocumentField, ...], build: _Build, path: str, opening: str, closing: str
) -> Iterator[tuple[str, Column]]:
    names: set[str] = set()
    for place, spec in enumerate(fields):
        if spec.name in names:
            raise SpecError(f"{build.where}: {path}{spec.name}: two fields have this name; give one of them another")
        names.add(spec.name)
        prefix = (", " if place else opening) + f'"{spec.name}": '
        yield from _column(spec, build, f"{path}{spec.name}", prefix)
    yield "", table([closing], "", "")


def _column(spec: DocumentField, build: _Build, path: str, prefix: str) -> Iterator[tuple[str, Column]]:
    where = f"{build.where}: {path}"
    if spec.kind not in SPECIAL:
        rows = build.rows_of(spec, path)
        values = make({"kind": spec.kind, **spec.options}, where)(rows)
        rows.made[spec.name] = values
        absent = round(rows.size * (1 - spec.present))
        present = rows.random.permutation(rows.size) >= absent if absent else None
        yield spec.row, table(values.texts, prefix, "", present)
        return
    if spec.present < 1:
        raise SpecError(f'{where}: a field of kind "{spec.kind}" is in every document; take out "present"')
    options = records.from_toml(SPECIAL[spec.kind], spec.options, where)
    if isinstance(options, Id):
        quote = '"' if options.format else ""
        yield "", Numbered(f"{prefix}{quote}".encode(), options.format or "{}", quote.encode(), options.start)
    elif isinstance(options, Text):
        yield "", _slices(options, build.seed, prefix)
    else:
        tables = catalog.document_fields(list(options.fields), where)
        inner = tuple(records.from_toml(DocumentField, one, where) for one in tables)
        yield from _columns(inner, build, f"{path}.", prefix + "{", "}")


def _slices(text: Text, seed: int, prefix: str) -> Slices:
    random = np.random.default_rng([seed, 3])
    # Even steps through the distribution instead of random draws, then scaled: the mean is exact.
    spread = np.exp(text.sigma * np.sort(random.normal(size=LENGTHS)))
    lengths = np.maximum(MIN_TEXT_BYTES, spread / spread.mean() * text.mean_bytes).astype(int)
    order: list[int] = random.permutation(lengths).tolist()
    prose = functools.partial(zipf_words.prose, seed, PROSE_BYTES, text.vocabulary)
    made = Slices(prose, order, f'{prefix}"{text.lead}'.encode(), b'"')
    if max(order) > PROSE_BYTES // 4:
        # It may be too long: a prose of short words is a third of that.
        _ = made.prose
    return made
