"""Generators of field values. A new kind is one function here and one line in `GENERATORS`.

The keyword arguments of a generator are its options in a workload's TOML. It returns a value for each row of a table.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_type_hints

import numpy as np
from numpy.typing import NDArray

from ingest_bench.documents import words
from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.inputs.names import check_name
from ingest_bench.model.load import FieldName
from ingest_bench.model.values import HOUR, Between, Json, JsonValue, Label, Length, Line, Pattern, S

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
_DATE_FORMAT = "%Y-%m-%d %H:%M:%S"
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
        check_name(name, self.fields, f'{self.where}: "{name}" is not a preceding field of the same row')
        return self.fields[name]

    def numbers_of(self, name: str) -> NDArray[np.float64]:
        """Return the values of such a field if all of them are numbers."""
        raw = self.values_of(name).raw
        with contextlib.suppress(TypeError, ValueError):
            numbers = raw.astype(float)
            if numbers.ndim == 1 and np.isfinite(numbers).all():
                return numbers
        raise SpecError(f'{self.where}: "{name}" is not a number or a date in every row. Name a field that is.')


Generate = Callable[..., Values]
"""A kind of field: returns a value for each row. Its keyword arguments are the options of the kind."""


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


def generate_constant(rows: Rows, *, value: JsonValue) -> Values:
    """Return the same value in every document."""
    return format_values([value] * rows.size)


def generate_choice(
    rows: Rows, *, choices: Annotated[tuple[JsonValue, ...], Length(1, 100_000)], weights: Weights = ()
) -> Values:
    """Draw one of the listed values. Each is exactly as frequent as its weight says, in random order."""
    return format_values([choices[index] for index in draw_choices(rows, len(choices), weights)])


def generate_integer(
    rows: Rows, *, minimum: Int64, maximum: Int64, scale: Literal["even", "log"] = "even", quoted: bool = False
) -> Values:
    """Draw an integer in a range. `log`: each power of ten is equally frequent, as for sizes of towns or payments."""
    if scale == "log":
        if minimum < 0:
            raise SpecError(
                f'{rows.where}: minimum {minimum} has no logarithm. Use scale = "even", or a minimum of at least 0.'
            )
        low, high = np.log(minimum + 1), np.log(maximum + 1)
        drawn = np.minimum(np.exp(rows.random.uniform(low, high, rows.size)) - 1, _LARGEST_FLOAT)
        # Rounding moves some just outside of the range.
        raw = np.clip(drawn.astype(np.int64), minimum, maximum)
    else:
        raw = rows.random.integers(minimum, maximum + 1, rows.size)
    quote = '"' if quoted else ""
    return Values([f"{quote}{value}{quote}" for value in raw.tolist()], raw)


def generate_decimal(
    rows: Rows,
    *,
    minimum: Real,
    maximum: Real,
    median: Positive | None = None,
    sigma: Sigma = 0.6,
    step: Positive = 0.01,
    places: Digits = 2,
) -> Values:
    """Draw a price or a distance: uniform in a range, or log-normal around a median and clipped to the range."""
    if median is None:
        drawn = rows.random.uniform(minimum, maximum, rows.size)
    else:
        drawn = rows.random.lognormal(np.log(median), sigma, rows.size)
    return format_decimals(np.round(np.clip(drawn, minimum, maximum) / step) * step, places)


def generate_sum(rows: Rows, *, of: Annotated[tuple[FieldName, ...], Length(1, 1000)], places: Digits = 2) -> Values:
    """Add other numbers of the row."""
    with np.errstate(over="ignore"):
        sums = format_decimals(sum(map(rows.numbers_of, of), np.zeros(rows.size)), places)
    if not np.isfinite(sums.raw).all():
        raise SpecError(f"{rows.where}: the sum of {', '.join(of)} is too large for a number")
    return sums


def generate_date(rows: Rows, *, start: Label, end: Label, format: DateFormat = _DATE_FORMAT) -> Values:  # noqa: A002 - the key
    """Draw a time between two ISO dates, in a strftime format."""
    first, last = (_parse_date_s(text, rows.where) for text in (start, end))
    if first >= last:
        raise SpecError(f"{rows.where}: start {start} is not before end {end}")
    return _format_dates(rows.random.integers(first, last, rows.size), format)


def generate_after(
    rows: Rows,
    *,
    of: FieldName,
    median_ns: Annotated[int, Between(S, 87_600 * HOUR, "seconds to ten years")],
    sigma: Sigma = 0.6,
    format: DateFormat = _DATE_FORMAT,  # noqa: A002 - the key
) -> Values:
    """Draw a time that follows another one of the row after a log-normal duration."""
    later_s = rows.random.lognormal(np.log(median_ns / 1e9), sigma, rows.size)
    return _format_dates(rows.numbers_of(of) + later_s.astype(np.int64), format)


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


def generate_point(
    rows: Rows,
    *,
    places: Annotated[tuple[Place, ...], Length(1, 10_000)],
    form: Literal["array", "object", "text"] = "array",
    digits: Digits = 7,
    single: bool = False,
) -> Values:
    """Draw a geo_point around one of the places. `single`: digits of a 32-bit float, as in data that once was one."""
    indices = draw_choices(rows, len(places), tuple(place.weight for place in places))
    centres = np.array([(place.longitude, place.latitude, place.spread) for place in places])[indices]
    raw = centres[:, :2] + rows.random.normal(size=(rows.size, 2)) * centres[:, 2:]
    raw = np.clip(raw, (-180, -90), (180, 90))
    raw = raw.astype(np.float32).astype(float) if single else np.round(raw, digits)
    forms = {"array": "[{}, {}]", "object": '{{"lon": {}, "lat": {}}}', "text": '"{1},{0}"'}
    return Values([forms[form].format(lon, lat) for lon, lat in raw.tolist()], raw)


def generate_code(
    rows: Rows,
    *,
    pattern: Label,
    variants: Annotated[int, Between(1, 1_000_000, "they are generated before the load starts")] = 1000,
) -> Values:
    """Draw a code by a pattern: `9` is a digit, `A` a capital letter; other characters stand for themselves."""
    alphabets = {"9": "0123456789", "A": "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
    parts = [alphabets.get(character, character) for character in pattern]
    numbers = rows.random.integers(0, 2**31, (variants, len(parts)))
    codes = ["".join(part[n % len(part)] for part, n in zip(parts, row, strict=True)) for row in numbers.tolist()]
    ranks = words.draw_ranks(rows.random, words.zipf_cdf(variants), rows.size)
    return format_values([codes[rank] for rank in ranks.tolist()])


def generate_phrase(
    rows: Rows,
    *,
    minimum: Count,
    maximum: Count,
    vocabulary: Vocabulary = 20000,
    style: words.Style = "papers",
    case: Literal["lower", "title"] = "lower",
    separator: Line = " ",
) -> Values:
    """Draw a few words of a vocabulary with Zipf's law. `title` capitalizes each, as in names."""
    texts = words.vocabulary(vocabulary, rows.seed, style)
    texts = tuple(map(str.capitalize, texts)) if case == "title" else texts
    counts = rows.random.integers(minimum, maximum + 1, rows.size)
    ranks = iter(words.draw_ranks(rows.random, words.zipf_cdf(len(texts)), int(counts.sum())).tolist())
    return format_values([separator.join(texts[next(ranks)] for _ in range(n)) for n in counts.tolist()])


def generate_join(
    rows: Rows, *, of: Annotated[tuple[FieldName, ...], Length(1, 1000)], separator: Line = "_"
) -> Values:
    """Join other fields of the row to one text with separators, which also replace spaces."""
    columns = [[str(json.loads(text)) for text in rows.values_of(name).texts] for name in of]
    joined = (separator.join(row) for row in zip(*columns, strict=True))
    return format_values([text.replace(" ", separator) for text in joined])


def generate_list(rows: Rows, *, items: Table, minimum: Count, maximum: Count, separator: Line | None = None) -> Values:
    """Return a list of values of another kind; with a separator, one text of them."""
    values = create_generator(items, rows.where)(rows)
    counts = rows.random.integers(minimum, maximum + 1, rows.size).tolist()
    picks = iter(rows.random.integers(0, rows.size, sum(counts)).tolist())
    if separator is not None:
        return format_values([separator.join(str(values.raw[next(picks)]) for _ in range(n)) for n in counts])
    texts = [", ".join(values.texts[next(picks)] for _ in range(n)) for n in counts]
    return Values([f"[{text}]" for text in texts], np.array(texts, dtype=object))


def generate_one_of(
    rows: Rows, *, kinds: Annotated[tuple[Table, ...], Length(1, 1000)], weights: Weights = ()
) -> Values:
    """Draw a value of one of several kinds, by their weights."""
    values = [create_generator(table, rows.where)(rows) for table in kinds]
    indices = draw_choices(rows, len(values), weights).tolist()
    raw = object_array([values[index].raw[row] for row, index in enumerate(indices)])
    return Values([values[index].texts[row] for row, index in enumerate(indices)], raw)


GENERATORS: Mapping[str, Generate] = {
    generate.__name__.removeprefix("generate_"): generate
    for generate in (
        *(generate_constant, generate_choice, generate_integer, generate_decimal, generate_sum, generate_date),
        *(generate_after, generate_point, generate_code, generate_phrase, generate_join, generate_list),
        generate_one_of,
    )
}


@functools.cache
def options_record(kind: str) -> Any:
    """Return the record of a kind's options: the keyword arguments of its generator."""
    hints = get_type_hints(GENERATORS[kind], include_extras=True)
    fields = [
        (item.name, hints[item.name], field() if item.default is item.empty else field(default=item.default))
        for item in inspect.signature(GENERATORS[kind]).parameters.values()
        if item.kind is item.KEYWORD_ONLY
    ]
    return dataclasses.make_dataclass(kind, fields, frozen=True, kw_only=True)


def create_generator(table: Mapping[str, Any], where: str) -> Generate:
    """Create a generator from a table with `kind` and options; SpecError names what is wrong in it."""
    kind = str(table.get("kind"))
    check_name(kind, GENERATORS, f'{where}: unknown kind "{kind}"')
    options = vars(records.from_toml(options_record(kind), {key: table[key] for key in table if key != "kind"}, where))
    minimum, maximum = (options.get(end, 0) for end in ("minimum", "maximum"))
    if minimum > maximum:
        raise SpecError(f"{where}: minimum {minimum} is greater than maximum {maximum}")
    return functools.partial(GENERATORS[kind], **options)
