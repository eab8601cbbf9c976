"""The JSON parser for text of a user: one meaning, or none."""

from __future__ import annotations

import time

import pytest

from ingest_bench.inputs.user_json import parse_json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "an object has two values for the key 'a'; remove one"),
        ('{"x": [{"y": {"a": 1, "\\u0061": "1"}}]}', "an object has two values for the key 'a'"),
        ('{"a": 1, "a": true}', "an object has two values for the key 'a'"),
        ('{"a": NaN}', "NaN is not a number in JSON"),
        ('{"a": ' + "1" * 5000 + "}", "a number of thousands of digits"),
        ('{"a": 1}{"a": 1}', "Extra data"),
    ],
)
def test_text_with_two_meanings_or_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_a_key_that_stands_twice_with_the_same_value_is_accepted() -> None:
    assert parse_json('{"a": {"n": 1}, "b": 2, "a": {"n": 1}}') == {"a": {"n": 1}, "b": 2}


def test_a_huge_object_with_a_key_twice_is_refused_in_linear_time() -> None:
    keys = ",".join(f'"{number}":0' for number in range(20_000))
    with pytest.raises(ValueError, match="an object has two values for the key '0'"):
        parse_json(f'{{{keys},"0":1}}')


def test_keys_that_stand_twice_at_every_level_are_read_in_linear_time() -> None:
    text = '{"x":0,"x":0,"a":' * 800 + f"[{'0,' * 50_000}0]" + "}" * 800
    start = time.process_time()
    assert parse_json(text)["x"] == 0
    assert time.process_time() - start < 2
