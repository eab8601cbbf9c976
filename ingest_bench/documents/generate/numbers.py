"""Generators of numbers, moments and places."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from ingest_bench.documents.generate.field_values import Digits, Rows, Sigma, Values, Weight, decimals, shares
from ingest_bench.errors import SpecError
from ingest_bench.model.values import HOUR, Between, Form, Label, S, Several
from ingest_bench.model.workload import FieldName

if TYPE_CHECKING:
    from numpy.typing import NDArray

# numpy draws integers of 64 bits, and one more than the largest is asked for.
Whole = Annotated[int, Between(-(2**63), 2**63 - 2, "a whole number of 64 bits")]
Real = Annotated[float, Between(-1e15, 1e15, "digits after the point are lost beyond it")]
Positive = Annotated[float, Between(1e-9, 1e15)]
# The largest below 2**63.
_LARGEST_FLOAT = 2.0**63 - 1024
# As datetime has it: the years 1 to 9999.
_EARLIEST_S, _LATEST_S = -62_135_596_800, 253_402_300_799
# What is left out of strftime gives control characters (%n, %t), depends on the time zone (%s), or fills with zeros.
DateFormat = Annotated[
    str,
    Form(
        r'(?:[^%"\\\x00-\x1f\ud800-\udfff]|%-?[aAbBcCdDeFfgGhHIjklmMpPrRSTuUVwWxXyYzZ%]){1,100}',
        "a format of a date in one line without quotes, such as %Y-%m-%d",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Integer:
    """A whole number in a range. `log`: each factor of ten as often as the next, as sizes of places or payments are."""

    minimum: Whole
    maximum: Whole
    scale: Literal["even", "log"] = "even"
    quoted: bool = False

    def __call__(self, rows: Rows) -> Values:
        """A value for each row."""
        if self.scale == "log" and self.minimum < 0:
            raise SpecError(f"{rows.where}: minimum {self.minimum} has no logarithm; take scale = even, or 0 and more")
        if self.scale == "log":
            low, high = np.log(self.minimum + 1), np.log(self.maximum + 1)
            drawn = np.minimum(np.exp(rows.random.uniform(low, high, rows.size)) - 1, _LARGEST_FLOAT)
            # By rounding, some are just outside.
            raw = np.clip(drawn.astype(np.int64), self.minimum, self.maximum)
        else:
            raw = rows.random.integers(self.minimum, self.maximum + 1, rows.size)
        quote = '"' if self.quoted else ""
        return Values([f"{quote}{value}{quote}" for value in raw.tolist()], raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decimal:
    """A price or a distance: even in a range, or log-normal around a median and cut at the range."""

    minimum: Real
    maximum: Real
    median: Positive | None = None
    sigma: Sigma = 0.6
    step: Positive = 0.01
    places: Digits = 2

    def __call__(self, rows: Rows) -> Values:
        """A value for each row."""
        if self.median is None:
            drawn = rows.random.uniform(self.minimum, self.maximum, rows.size)
        else:
            drawn = rows.random.lognormal(np.log(self.median), self.sigma, rows.size)
        return decimals(np.round(np.clip(drawn, self.minimum, self.maximum) / self.step) * self.step, self.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """The sum of other numbers of the row."""

    of: Annotated[tuple[FieldName, ...], Several(1, 1000)]
    places: Digits = 2

    def __call__(self, rows: Rows) -> Values:
        """A value for each row."""
        with np.errstate(over="ignore"):
            found = decimals(sum(map(rows.numbers_of, self.of), np.zeros(rows.size)), self.places)
        if not np.isfinite(found.raw).all():
            raise SpecError(
                f"{rows.where}: the sum of {', '.join(self.of)} is too large for a number; make them smaller"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Date:
    """A moment between two ISO dates, in a strftime format."""

    start: Label
    end: Label
    format: DateFormat = "%Y-%m-%d %H:%M:%S"

    def __call__(self, rows: Rows) -> Values:
        """A value for each row."""
        first, last = (_seconds(text, rows.where) for text in (self.start, self.end))
        if first >= last:
            raise SpecError(f"{rows.where}: start {self.start} is not before end {self.end}")
        return _dates(rows.random.integers(first, last, rows.size), self.format)


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """A moment some log-normal time after another one of the row."""

    of: FieldName
    median_ns: Annotated[int, Between(S, 87_600 * HOUR, "seconds to ten years")]
    sigma: Sigma = 0.6
    format: DateFormat = "%Y-%m-%d %H:%M:%S"

    def __call__(self, rows: Rows) -> Values:
        """A value for each row."""
        later = rows.random.lognormal(np.log(self.median_ns / 1e9), self.sigma, rows.size)
        return _dates(rows.numbers_of(self.of) + later.astype(np.int64), self.format)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A centre that points gather around, in degrees; half of them lie within 1.2 spreads."""

    latitude: Annotated[float, Between(-90, 90)]
    longitude: Annotated[float, Between(-180, 180)]
    spread: Annotated[float, Between(0, 360)]
    weight: Weight = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A geo_point around one of the places. `single`: digits of a 32-bit float, as data that once was one has."""

    places: Annotated[tuple[Place, ...], Several(1, 10_000)]
    form: Literal["array", "object", "text"] = "array"
    digits: Digits = 7
    single: bool = False

    def __call__(self, rows: Rows) -> Values:
        """A value for each row."""
        which = shares(rows, len(self.places), tuple(place.weight for place in self.places))
        centres = np.array([(place.longitude, place.latitude, place.spread) for place in self.places])[which]
        raw = centres[:, :2] + rows.random.normal(size=(rows.size, 2)) * centres[:, 2:]
        raw = np.clip(raw, (-180, -90), (180, 90))
        raw = raw.astype(np.float32).astype(float) if self.single else np.round(raw, self.digits)
        forms = {"array": "[{}, {}]", "object": '{{"lon": {}, "lat": {}}}', "text": '"{1},{0}"'}
        return Values([forms[self.form].format(lon, lat) for lon, lat in raw.tolist()], raw)


def _seconds(text: str, where: str) -> int:
    wrong = SpecError(f'{where}: "{text}" is not a date; write it like 2015-01-31 or 2015-01-31T12:00:00')
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise wrong from None
    if moment.tzinfo is not None:
        raise wrong
    return int(moment.replace(tzinfo=UTC).timestamp())


def _dates(seconds: NDArray[Any], form: str) -> Values:
    seconds = np.clip(seconds, _EARLIEST_S, _LATEST_S)
    moments = seconds.astype("datetime64[s]").tolist()
    return Values([f'"{moment.strftime(form)}"' for moment in moments], seconds)
