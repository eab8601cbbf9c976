"""Generators of field values. A new kind is one record in this package and one line in `GENERATORS`.

A generator's fields are its options in a workload's TOML. Called with the rows of a table, it formats a value for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from ingest_bench.documents.generate.field_values import Count, Generator, Rows, Values, Weights, objects, plain, shares
from ingest_bench.documents.generate.numbers import After, Date, Decimal, Integer, Point, Sum
from ingest_bench.documents.generate.texts import Choice, Code, Constant, Join, Phrase
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.values import Json, Line, Several

Table = Annotated[dict[Line, Any], Json()]
"""A kind with its options, which are read by that kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A list of so many values of another kind; with a joint, one text of them."""

    items: Table
    minimum: Count
    maximum: Count
    joint: Line | None = None

    def __call__(self, rows: Rows) -> Values:
        """A value for each row."""
        drawn = make(self.items, rows.where)(rows)
        counts = rows.random.integers(self.minimum, self.maximum + 1, rows.size).tolist()
        picks = iter(rows.random.integers(0, rows.size, sum(counts)).tolist())
        if self.joint is not None:
            return plain([self.joint.join(str(drawn.raw[next(picks)]) for _ in range(n)) for n in counts])
        texts = [", ".join(drawn.texts[next(picks)] for _ in range(n)) for n in counts]
        return Values([f"[{text}]" for text in texts], np.array(texts, dtype=object))


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf:
    """A value of one of several kinds, by their weights."""

    kinds: Annotated[tuple[Table, ...], Several(1, 1000)]
    weights: Weights = ()

    def __call__(self, rows: Rows) -> Values:
        """A value for each row."""
        made = [make(table, rows.where)(rows) for table in self.kinds]
        which = shares(rows, len(made), self.weights).tolist()
        raw = objects([made[index].raw[row] for row, index in enumerate(which)])
        return Values([made[index].texts[row] for row, index in enumerate(which)], raw)


GENERATORS: Mapping[str, type[Generator]] = {
    "constant": Constant,
    "choice": Choice,
    "integer": Integer,
    "decimal": Decimal,
    "sum": Sum,
    "date": Date,
    "after": After,
    "point": Point,
    "code": Code,
    "phrase": Phrase,
    "join": Join,
    "list": Listed,
    "one_of": OneOf,
}


def make(table: Mapping[str, Any], where: str) -> Generator:
    """The generator of a table with `kind` and options; SpecError names what is wrong in it."""
    kind = str(table.get("kind"))
    if kind not in GENERATORS:
        raise SpecError(f'{where}: unknown kind "{kind}"; {records.nearest(kind, GENERATORS)}')
    made = records.from_toml(GENERATORS[kind], {key: table[key] for key in table if key != "kind"}, where)
    least, most = (getattr(made, end, 0) for end in ("minimum", "maximum"))
    if least > most:
        raise SpecError(f"{where}: minimum {least} is more than maximum {most}")
    return made
