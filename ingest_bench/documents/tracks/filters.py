"""Jinja filters that Rally and OpenSearch Benchmark define for the templates of tracks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any


def days_ago(start_date: Any, end_date: Any, date_format: str = "%d-%m-%Y") -> int:
    """Return the whole days from one date to another, such as from "15-05-1998" to `now`."""
    return (_moment(end_date, date_format) - _moment(start_date, date_format)).days


def get_start_date(the_date: Any, date_format: str = "%Y-%m-%d") -> str:
    """Return a date as text."""
    return _moment(the_date, date_format).strftime(date_format)


def get_end_date(start_date: Any, duration_days: float = 1, date_format: str = "%Y-%m-%d") -> str:
    """Return the date that is *duration_days* after another one, as text."""
    return (_moment(start_date, date_format) + timedelta(days=duration_days)).strftime(date_format)


def version_between(version: str, lowest: str, highest: str) -> bool:
    """Return whether a version such as "2.11.0" is at least *lowest* and at most *highest*."""
    least, current, most = ([int(part) for part in text.split(".")] for text in (lowest, version, highest))
    return least <= current <= most


FILTERS: Mapping[str, Callable[..., Any]] = {
    "days_ago": days_ago,
    "get_start_date": get_start_date,
    "get_end_date": get_end_date,
    "version_between": version_between,
}


def _moment(value: Any, date_format: str) -> datetime:
    """Return a date as both tools take it: a datetime, seconds since 1970 such as `now`, or text in that format."""
    if isinstance(value, datetime):
        return value
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    moment = datetime.strptime(str(value), date_format)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
