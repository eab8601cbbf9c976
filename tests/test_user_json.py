"""JSON of a user has one meaning, or none. Parameters of a track are read as Rally reads them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.inputs import user_json
from ingest_bench.inputs.user_json import parse_json

VALUES = [
    ("False", False),
    ("TRUE", True),
    ("true", True),
    ("None", None),
    ("2000", 2000),
    ("-1", -1),
    ("8.10", 8.1),
    ("1e3", 1000.0),
    ("'span'", "span"),
    ('"5"', "5"),
    ("'False'", "False"),
    ("''", ""),
    ("", ""),
    ("best_compression", "best_compression"),
    ("it's", "it's"),
    ("'", "'"),
    ("nan", "nan"),
    ("-Infinity", "-Infinity"),
    ("9" * 5000, "9" * 5000),
    ("9" * 400, 10**400 - 1),
    ("http://example.org:9200/x", "http://example.org:9200/x"),
]


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_a_parameter_is_typed_as_in_rally_wherever_it_is_given(text: str, value: Any) -> None:
    parsed = user_json.parse_track_parameters(f"bulk_size:5, x : {text}")["x"]
    assert (parsed, type(parsed)) == (value, type(value))


def parameters(tmp_path: Path, line: str, *sets: str) -> list[dict[str, Any]]:
    (tmp_path / "e.toml").write_text(f"""
[load.track]
path = "/t"
[load.track.parameters]
{line}
""")
    experiment = spec.load_experiment(str(tmp_path / "e.toml"), sets)
    return [dict(cell.load.track.parameters) for cell in spec.build_cells(experiment) if cell.load.track]


@pytest.mark.parametrize(("text", "value"), [pair for pair in VALUES if pair[0] and len(pair[0]) < 100])
def test_text_of_a_toml_file_and_of_set_is_typed_the_same(tmp_path: Path, text: str, value: Any) -> None:
    assert parameters(tmp_path, f"x = {json.dumps(text)}", f"track.parameters.y={text}") == [{"x": value, "y": value}]


def test_a_parameter_as_a_factor_has_typed_levels(tmp_path: Path) -> None:
    both = parameters(tmp_path, "x = [1, 'a']", "track.parameters.merge=true,False")
    assert both == [{"x": [1, "a"], "merge": True}, {"x": [1, "a"], "merge": False}]


def test_track_params_may_be_a_json_object_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ' {"bulk_size": 2000, "version": "8.10", "merge": false, "list": [1, "x"], "file": "a.json"} '
    assert user_json.parse_track_parameters(text) == json.loads(text)
    (tmp_path / "p.json").write_text('{"bulk_size": "5"}')
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    for path in (str(tmp_path / "p.json"), "~/p.json"):
        assert user_json.parse_track_parameters(path) == {"bulk_size": "5"}
    assert user_json.parse_track_parameters("mapping:small.json") == {"mapping": "small.json"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bulk_size", "'bulk_size' is not NAME:VALUE"),
        (":5", "':5' is not NAME:VALUE"),
        ('{"bulk_size": 2000', "--track-params: cannot be read as JSON: Expecting"),
        ("/nowhere/p.json", "--track-params /nowhere/p.json: cannot be read: .*No such file"),
        ("~unknown-user/p.json", "cannot be read: "),
        ("a:1,\x1b[2J", "NAME:VALUE"),
    ],
)
def test_track_params_that_cannot_be_read_are_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as error:
        user_json.parse_track_parameters(text)
    assert str(error.value).isprintable()


def test_a_json_file_with_another_thing_in_it_is_refused(tmp_path: Path) -> None:
    for text, message in (
        ("[1]", "is not a JSON object"),
        ("{", "as JSON"),
        ("[" * 10**5, "as JSON"),
        ("\xff", "UTF-8|utf-8"),
    ):
        (tmp_path / "p.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(SpecError, match=message):
            user_json.parse_track_parameters(str(tmp_path / "p.json"))


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


def test_key_that_stands_twice_is_read_in_linear_time() -> None:
    assert parse_json('{"a": {"n": 1}, "b": 2, "a": {"n": 1}}') == {"a": {"n": 1}, "b": 2}
    keys = ",".join(f'"{number}":0' for number in range(20_000))
    with pytest.raises(ValueError, match="an object has two values for the key '0'"):
        parse_json(f'{{{keys},"0":1}}')


def test_keys_that_stand_twice_at_every_level_are_read_in_linear_time() -> None:
    text = '{"x":0,"x":0,"a":' * 800 + f"[{'0,' * 50_000}0]" + "}" * 800
    start = time.process_time()
    assert parse_json(text)["x"] == 0
    assert time.process_time() - start < 2
