"""What generators share: the rows of a table in the making, and the values that come out."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import numpy as np

from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.values import Between, Several

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Of a logarithm: the tenth of a percent at each end is a factor of 20,000 from the median.
Sigma = Annotated[float, Between(0, 3)]
Digits = Annotated[int, Between(0, 15, "what a float keeps")]
Count = Annotated[int, Between(0, 10_000, "a document of one field is large enough then")]
Vocabulary = Annotated[int, Between(1, 1_000_000, "more words than English has")]
Weight = Annotated[float, Between(0, 1e9)]
Weights = Annotated[tuple[Weight, ...], Several(0, 100_000)]


@dataclass(frozen=True, slots=True)
class Values:
    """One value a row: as JSON, and plain for the fields that are derived from it."""

    texts: list[str]
    raw: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a table that is being made: their random numbers, and what other fields put into them."""

    random: np.random.Generator
    size: int
    seed: int
    where: str
    made: dict[str, Values] = field(default_factory=dict)
    is_check: bool = False
    """Whether the fields alone are checked: each choice that can be taken is as frequent as another."""

    def of(self, name: str) -> Values:
        """The values of a field that stands before in the same row."""
        if name not in self.made:
            raise SpecError(
                f'{self.where}: "{name}" is not a field before it in the same row; {records.nearest(name, self.made)}'
            )
        return self.made[name]

    def numbers_of(self, name: str) -> NDArray[np.float64]:
        """The values of such a field, where all of them are numbers."""
        raw = self.of(name).raw
        with contextlib.suppress(TypeError, ValueError):
            found = raw.astype(float)
            if found.ndim == 1 and np.isfinite(found).all():
                return found
        raise SpecError(f'{self.where}: "{name}" is not a number or a date in every row; name a field that is')


class Generator(Protocol):
    """A kind of field."""

    def __call__(self, rows: Rows) -> Values:
        """A value for each row."""
        ...


def plain(values: list[Any]) -> Values:
    """Values as JSON says them."""
    return Values([json.dumps(value) for value in values], objects(values))


def objects(values: list[Any]) -> NDArray[np.object_]:
    """An array of anything; np.array would make a matrix of values that are lists."""
    raw = np.empty(len(values), dtype=object)
    raw[:] = values
    return raw


def decimals(values: NDArray[np.float64], places: int) -> Values:
    """Rounded numbers, in as few digits as Python and most JSON writers give: 6.3, 5.0."""
    raw = np.round(values, places)
    return Values([repr(value) for value in raw.tolist()], raw)


def shares(rows: Rows, kinds: int, weights: tuple[float, ...]) -> NDArray[np.int64]:
    """An index a row: each as often as its weight says, to the row, in random order."""
    if weights and len(weights) != kinds:
        raise SpecError(f"{rows.where}: {len(weights)} weights for {kinds} choices; give one for each")
    if weights and not any(weights):
        raise SpecError(f"{rows.where}: all weights are 0; one of them must be more")
    if rows.is_check:
        weights = tuple(float(weight > 0) for weight in weights)
    total = np.cumsum(weights or [1.0] * kinds)
    edges = (np.arange(rows.size) + 0.5) / rows.size * total[-1]
    return rows.random.permutation(np.searchsorted(total, edges)).astype(np.int64)
