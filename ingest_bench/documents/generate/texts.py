"""Generators of words, codes and fixed values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Literal

from ingest_bench.documents.generate import zipf_words
from ingest_bench.documents.generate.field_values import Count, Rows, Values, Vocabulary, Weights, plain, shares
from ingest_bench.model.values import Between, Label, Line, Several, Value
from ingest_bench.model.workload import FieldName


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """The same value in every document."""

    value: Value

    def __call__(self, rows: Rows) -> Values:
        """A value for each row."""
        return plain([self.value] * rows.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the listed values, by their weights. Exactly as often as the weights say, in random order."""

    choices: Annotated[tuple[Value, ...], Several(1, 100_000)]
    weights: Weights = ()

    def __call__(self, rows: Rows) -> Values:
        """A value for each row."""
        return plain([self.choices[index] for index in shares(rows, len(self.choices), self.weights)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A short code by a pattern: `9` is a digit, `A` a capital letter, the rest is itself."""

    pattern: Label
    variants: Annotated[int, Between(1, 1_000_000, "they are made before the load starts")] = 1000

    def __call__(self, rows: Rows) -> Values:
        """A value for each row."""
        sets = {"9": "0123456789", "A": "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
        parts = [sets.get(character, character) for character in self.pattern]
        numbers = rows.random.integers(0, 2**31, (self.variants, len(parts)))
        codes = ["".join(part[n % len(part)] for part, n in zip(parts, row, strict=True)) for row in numbers.tolist()]
        ranks = zipf_words.draw(rows.random, zipf_words.zipf(self.variants), rows.size)
        return plain([codes[rank] for rank in ranks.tolist()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """A few words of a vocabulary with Zipf's law. `title`: each with a capital letter, as names have."""

    minimum: Count
    maximum: Count
    vocabulary: Vocabulary = 20000
    style: zipf_words.Style = "papers"
    case: Literal["lower", "title"] = "lower"
    separator: Line = " "

    def __call__(self, rows: Rows) -> Values:
        """A value for each row."""
        known = zipf_words.vocabulary(self.vocabulary, rows.seed, self.style)
        known = tuple(word.capitalize() for word in known) if self.case == "title" else known
        counts = rows.random.integers(self.minimum, self.maximum + 1, rows.size)
        ranks = iter(zipf_words.draw(rows.random, zipf_words.zipf(len(known)), int(counts.sum())).tolist())
        return plain([self.separator.join(known[next(ranks)] for _ in range(n)) for n in counts.tolist()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Other fields of the row as one text, joined; spaces become the joint too."""

    of: Annotated[tuple[FieldName, ...], Several(1, 1000)]
    separator: Line = "_"

    def __call__(self, rows: Rows) -> Values:
        """A value for each row."""
        columns = [[str(json.loads(text)) for text in rows.of(name).texts] for name in self.of]
        joined = (self.separator.join(row) for row in zip(*columns, strict=True))
        return plain([text.replace(" ", self.separator) for text in joined])
