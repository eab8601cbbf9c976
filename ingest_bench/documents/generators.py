"""Generators of field values. A new kind is one record here and one line in `GENERATORS`.

The fields of a generator are its options in a workload's TOML. Called with the rows of a table, it returns a value for
each row.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import numpy as np

from ingest_bench.documents import words
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.inputs.names import suggest
from ingest_bench.model.load import FieldName
from ingest_bench.model.values import HOUR, Between, Json, JsonValue, Label, Length, Line, Pattern, S

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Of a log-normal distribution: at 3 the tenth of a percent at each end is a factor of 20,000 from the median.
Sigma = Annotated[float, Between(0, 3)]
Digits = Annotated[int, Between(0, 15, "the precision of a float")]
Count = Annotated[int, Between(0, 10_000, "one field of that size makes a large document")]
Vocabulary = Annotated[int, Between(1, 1_000_000, "more words than English has")]
Weight = Annotated[float, Between(0, 1e9)]
Weights = Annotated[tuple[Weight, ...], Length(0, 100_000)]
# numpy draws 64-bit integers from below an exclusive limit.
Int64 = Annotated[int, Between(-(2**63), 2**63 - 2, "a 64-bit integer")]
Real = Annotated[float, Between(-1e15, 1e15, "digits after the point are lost beyond it")]
Positive = Annotated[float, Between(1e-9, 1e15)]
Table = Annotated[dict[Line, Any], Json()]
"""A kind with its options, which that kind parses."""
# The largest float below 2**63.
_LARGEST_FLOAT = 2.0**63 - 1024
# The range of datetime: the years 1 to 9999.
_EARLIEST_S, _LATEST_S = -62_135_596_800, 253_402_300_799
# Excluded from strftime: control characters (%n, %t), the time zone (%s), and padding with zeros.
DateFormat = Annotated[
    str,
    Pattern(
        r'(?:[^%"\\\x00-\x1f\ud800-\udfff]|%-?[aAbBcCdDeFfgGhHIjklmMpPrRSTuUVwWxXyYzZ%]){1,100}',
        "a format of a date in one line without quotes, such as %Y-%m-%d",
    ),
]


@dataclass(frozen=True, slots=True)
class Values:
    """One value per row: as JSON, and raw for the fields that are derived from it."""

    texts: list[str]
    raw: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a table under construction: their random numbers and the fields they have so far."""

    random: np.random.Generator
    size: int
    seed: int
    where: str
    fields: dict[str, Values] = field(default_factory=dict)
    is_check: bool = False
    """True if only the options are checked: then all choices with a weight are equally frequent."""

    def values_of(self, name: str) -> Values:
        """Return the values of a field that precedes in the same row."""
        if name not in self.fields:
            raise SpecError(
                f'{self.where}: "{name}" is not a preceding field of the same row; {suggest(name, self.fields)}'
            )
        return self.fields[name]

    def numbers_of(self, name: str) -> NDArray[np.float64]:
        """Return the values of such a field if all of them are numbers."""
        raw = self.values_of(name).raw
        with contextlib.suppress(TypeError, ValueError):
            numbers = raw.astype(float)
            if numbers.ndim == 1 and np.isfinite(numbers).all():
                return numbers
        raise SpecError(f'{self.where}: "{name}" is not a number or a date in every row. Name a field that is.')


class Generator(Protocol):
    """A kind of field: returns a value for each row."""

    def __call__(self, rows: Rows) -> Values:
        """Return a value for each row."""


def format_values(values: list[Any]) -> Values:
    """Return values with their JSON texts."""
    return Values([json.dumps(value) for value in values], object_array(values))


def object_array(values: list[Any]) -> NDArray[np.object_]:
    """Return an array of any objects; np.array would make a matrix of values that are lists."""
    raw = np.empty(len(values), dtype=object)
    raw[:] = values
    return raw


def format_decimals(values: NDArray[np.float64], places: int) -> Values:
    """Return rounded numbers with as few digits as Python and most JSON writers print: 6.3, 5.0."""
    raw = np.round(values, places)
    return Values([repr(value) for value in raw.tolist()], raw)


def draw_choices(rows: Rows, choices: int, weights: tuple[float, ...]) -> NDArray[np.int64]:
    """Return the index of a choice for each row: each exactly as often as its weight says, in random order."""
    if weights and len(weights) != choices:
        raise SpecError(f"{rows.where}: {len(weights)} weights for {choices} choices. Give one for each.")
    if weights and not any(weights):
        raise SpecError(f"{rows.where}: all weights are 0. Make one of them larger.")
    if rows.is_check:
        weights = tuple(float(weight > 0) for weight in weights)
    total = np.cumsum(weights or [1.0] * choices)
    edges = (np.arange(rows.size) + 0.5) / rows.size * total[-1]
    return rows.random.permutation(np.searchsorted(total, edges)).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """The same value in every document."""

    value: JsonValue

    def __call__(self, rows: Rows) -> Values:
        """Return a value for each row."""
        return format_values([self.value] * rows.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the listed values. Each is exactly as frequent as its weight says, in random order."""

    choices: Annotated[tuple[JsonValue, ...], Length(1, 100_000)]
    weights: Weights = ()

    def __call__(self, rows: Rows) -> Values:
        """Return a value for each row."""
        return format_values([self.choices[index] for index in draw_choices(rows, len(self.choices), self.weights)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Integer:
    """An integer in a range. `log`: each power of ten is equally frequent, as for sizes of towns or payments."""

    minimum: Int64
    maximum: Int64
    scale: Literal["even", "log"] = "even"
    quoted: bool = False

    def __call__(self, rows: Rows) -> Values:
        """Return a value for each row."""
        if self.scale == "log":
            if self.minimum < 0:
                raise SpecError(
                    f'{rows.where}: minimum {self.minimum} has no logarithm. Use scale = "even", or a minimum of at '
                    "least 0."
                )
            low, high = np.log(self.minimum + 1), np.log(self.maximum + 1)
            drawn = np.minimum(np.exp(rows.random.uniform(low, high, rows.size)) - 1, _LARGEST_FLOAT)
            # Rounding moves some just outside of the range.
            raw = np.clip(drawn.astype(np.int64), self.minimum, self.maximum)
        else:
            raw = rows.random.integers(self.minimum, self.maximum + 1, rows.size)
        quote = '"' if self.quoted else ""
        return Values([f"{quote}{value}{quote}" for value in raw.tolist()], raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decimal:
    """A price or a distance: uniform in a range, or log-normal around a median and clipped to the range."""

    minimum: Real
    maximum: Real
    median: Positive | None = None
    sigma: Sigma = 0.6
    step: Positive = 0.01
    places: Digits = 2

    def __call__(self, rows: Rows) -> Values:
        """Return a value for each row."""
        if self.median is None:
            drawn = rows.random.uniform(self.minimum, self.maximum, rows.size)
        else:
            drawn = rows.random.lognormal(np.log(self.median), self.sigma, rows.size)
        clipped = np.clip(drawn, self.minimum, self.maximum)
        return format_decimals(np.round(clipped / self.step) * self.step, self.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """The sum of other numbers of the row."""

    of: Annotated[tuple[FieldName, ...], Length(1, 1000)]
    places: Digits = 2

    def __call__(self, rows: Rows) -> Values:
        """Return a value for each row."""
        with np.errstate(over="ignore"):
            sums = format_decimals(sum(map(rows.numbers_of, self.of), np.zeros(rows.size)), self.places)
        if not np.isfinite(sums.raw).all():
            raise SpecError(f"{rows.where}: the sum of {', '.join(self.of)} is too large for a number")
        return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Date:
    """A time between two ISO dates, in a strftime format."""

    start: Label
    end: Label
    format: DateFormat = "%Y-%m-%d %H:%M:%S"

    def __call__(self, rows: Rows) -> Values:
        """Return a value for each row."""
        first, last = (_parse_date_s(text, rows.where) for text in (self.start, self.end))
        if first >= last:
            raise SpecError(f"{rows.where}: start {self.start} is not before end {self.end}")
        return _format_dates(rows.random.integers(first, last, rows.size), self.format)


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """A time that follows another one of the row after a log-normal duration."""

    of: FieldName
    median_ns: Annotated[int, Between(S, 87_600 * HOUR, "seconds to ten years")]
    sigma: Sigma = 0.6
    format: DateFormat = "%Y-%m-%d %H:%M:%S"

    def __call__(self, rows: Rows) -> Values:
        """Return a value for each row."""
        later_s = rows.random.lognormal(np.log(self.median_ns / 1e9), self.sigma, rows.size)
        return _format_dates(rows.numbers_of(self.of) + later_s.astype(np.int64), self.format)


def _parse_date_s(text: str, where: str) -> int:
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        date = None
    if date is None or date.tzinfo is not None:
        raise SpecError(f'{where}: "{text}" is not a date. Write it like 2015-01-31 or 2015-01-31T12:00:00.')
    return int(date.replace(tzinfo=UTC).timestamp())


def _format_dates(seconds: NDArray[Any], date_format: str) -> Values:
    seconds = np.clip(seconds, _EARLIEST_S, _LATEST_S)
    dates = seconds.astype("datetime64[s]").tolist()
    return Values([f'"{date.strftime(date_format)}"' for date in dates], seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Centre of a cluster of points, in degrees; half of the points lie within 1.2 spreads."""

    latitude: Annotated[float, Between(-90, 90)]
    longitude: Annotated[float, Between(-180, 180)]
    spread: Annotated[float, Between(0, 360)]
    weight: Weight = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A geo_point around one of the places. `single`: digits of a 32-bit float, as in data that once was one."""

    places: Annotated[tuple[Place, ...], Length(1, 10_000)]
    form: Literal["array", "object", "text"] = "array"
    digits: Digits = 7
    single: bool = False

    def __call__(self, rows: Rows) -> Values:
        """Return a value for each row."""
        indices = draw_choices(rows, len(self.places), tuple(place.weight for place in self.places))
        centres = np.array([(place.longitude, place.latitude, place.spread) for place in self.places])[indices]
        raw = centres[:, :2] + rows.random.normal(size=(rows.size, 2)) * centres[:, 2:]
        raw = np.clip(raw, (-180, -90), (180, 90))
        raw = raw.astype(np.float32).astype(float) if self.single else np.round(raw, self.digits)
        forms = {"array": "[{}, {}]", "object": '{{"lon": {}, "lat": {}}}', "text": '"{1},{0}"'}
        return Values([forms[self.form].format(lon, lat) for lon, lat in raw.tolist()], raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A short code by a pattern: `9` is a digit, `A` a capital letter; other characters stand for themselves."""

    pattern: Label
    variants: Annotated[int, Between(1, 1_000_000, "they are generated before the load starts")] = 1000

    def __call__(self, rows: Rows) -> Values:
        """Return a value for each row."""
        alphabets = {"9": "0123456789", "A": "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
        parts = [alphabets.get(character, character) for character in self.pattern]
        numbers = rows.random.integers(0, 2**31, (self.variants, len(parts)))
        codes = ["".join(part[n % len(part)] for part, n in zip(parts, row, strict=True)) for row in numbers.tolist()]
        ranks = words.draw_ranks(rows.random, words.zipf_cdf(self.variants), rows.size)
        return format_values([codes[rank] for rank in ranks.tolist()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """A few words of a vocabulary with Zipf's law. `title` capitalizes each, as in names."""

    minimum: Count
    maximum: Count
    vocabulary: Vocabulary = 20000
    style: words.Style = "papers"
    case: Literal["lower", "title"] = "lower"
    separator: Line = " "

    def __call__(self, rows: Rows) -> Values:
        """Return a value for each row."""
        vocabulary = words.vocabulary(self.vocabulary, rows.seed, self.style)
        vocabulary = tuple(map(str.capitalize, vocabulary)) if self.case == "title" else vocabulary
        counts = rows.random.integers(self.minimum, self.maximum + 1, rows.size)
        cdf = words.zipf_cdf(len(vocabulary))
        ranks = iter(words.draw_ranks(rows.random, cdf, int(counts.sum())).tolist())
        return format_values([self.separator.join(vocabulary[next(ranks)] for _ in range(n)) for n in counts.tolist()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Other fields of the row as one text with separators, which also replace spaces."""

    of: Annotated[tuple[FieldName, ...], Length(1, 1000)]
    separator: Line = "_"

    def __call__(self, rows: Rows) -> Values:
        """Return a value for each row."""
        columns = [[str(json.loads(text)) for text in rows.values_of(name).texts] for name in self.of]
        joined = (self.separator.join(row) for row in zip(*columns, strict=True))
        return format_values([text.replace(" ", self.separator) for text in joined])


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueList:
    """A list of values of another kind; with a separator, one text of them."""

    items: Table
    minimum: Count
    maximum: Count
    separator: Line | None = None

    def __call__(self, rows: Rows) -> Values:
        """Return a value for each row."""
        items = create_generator(self.items, rows.where)(rows)
        counts = rows.random.integers(self.minimum, self.maximum + 1, rows.size).tolist()
        picks = iter(rows.random.integers(0, rows.size, sum(counts)).tolist())
        if self.separator is not None:
            return format_values([self.separator.join(str(items.raw[next(picks)]) for _ in range(n)) for n in counts])
        texts = [", ".join(items.texts[next(picks)] for _ in range(n)) for n in counts]
        return Values([f"[{text}]" for text in texts], np.array(texts, dtype=object))


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf:
    """A value of one of several kinds, by their weights."""

    kinds: Annotated[tuple[Table, ...], Length(1, 1000)]
    weights: Weights = ()

    def __call__(self, rows: Rows) -> Values:
        """Return a value for each row."""
        values = [create_generator(table, rows.where)(rows) for table in self.kinds]
        indices = draw_choices(rows, len(values), self.weights).tolist()
        raw = object_array([values[index].raw[row] for row, index in enumerate(indices)])
        return Values([values[index].texts[row] for row, index in enumerate(indices)], raw)


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
    "list": ValueList,
    "one_of": OneOf,
}


def create_generator(table: Mapping[str, Any], where: str) -> Generator:
    """Create a generator from a table with `kind` and options; SpecError names what is wrong in it."""
    kind = str(table.get("kind"))
    if kind not in GENERATORS:
        raise SpecError(f'{where}: unknown kind "{kind}"; {suggest(kind, GENERATORS)}')
    generator = records.from_toml(GENERATORS[kind], {key: table[key] for key in table if key != "kind"}, where)
    minimum, maximum = (getattr(generator, end, 0) for end in ("minimum", "maximum"))
    if minimum > maximum:
        raise SpecError(f"{where}: minimum {minimum} is greater than maximum {maximum}")
    return generator
