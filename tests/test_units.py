"""Units: text to integers and back."""

from __future__ import annotations

import pytest

from ingest_bench import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [("64KiB", 65536), ("64k", 65536), ("1g", 1 << 30), ("512kb", 524288), ("4.5MB", 4_500_000), ("1460", 1460)],
)
def test_sizes_have_units_of_the_jvm_and_of_si(text: str, expected: int) -> None:
    assert units.parse_bytes(text) == expected


def test_times_rates_and_fractions_become_integers() -> None:
    assert units.parse_time_ns("1.5ms") == 1_500_000
    assert units.parse_bps("1gbit") == 10**9
    assert units.parse_ppm("0.5%") == 5000


@pytest.mark.parametrize("text", ["50", "ms", "5 minutes", "-1s", "0.1ns", "", "1_s", "1__0s", "_1s", "٣s"])
def test_time_without_a_unit_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"50ms|negative|finer"):
        units.parse_time_ns(text)


def test_formatted_text_is_parsed_to_the_same_value() -> None:
    assert units.parse_bytes(units.format_bytes(65536)) == 65536
    assert units.parse_time_ns(units.format_time(50_000_000)) == 50_000_000
    assert units.parse_bps(units.format_bps(100_000_000)) == 100_000_000
    assert units.parse_ppm(units.format_ppm(5000)) == 5000
