"""Records from TOML and JSON: values that are read, and messages for those that are refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from ingest_bench.errors import SpecError
from ingest_bench.inputs import records
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.model.target import TargetOptions


def test_profile_with_units_survives_json() -> None:
    table = {
        "name": "x",
        "mtu": 1400,
        "to_server": {"delay": "50ms", "rate": "1gbit", "burst": "256KiB"},
        "offloads": {"tso": False},
    }
    profile = records.from_toml(Profile, table, "netem/x.toml")
    assert profile.to_server == Impairment(delay_ns=50_000_000, rate_bps=10**9, burst_bytes=262144)
    assert records.from_json(Profile, records.to_json(profile)) == profile


@pytest.mark.parametrize(
    ("record", "table", "message"),
    [
        (Profile, {"name": "x", "to_server": {"dealy": "1ms"}}, 'to_server: unknown key "dealy"; did you mean "delay"'),
        (Profile, {"name": "x", "to_server": {"rate": 1000}}, "to_server: rate: '1000' is not a rate"),
        (Profile, {}, 'the key "name" is missing'),
        (LoadOptions, {"measure": "auto"}, "measure: 'auto' is not a time"),
        (LoadOptions, {"warm_up": "atuo"}, "warm_up: 'atuo' is unknown; did you mean \"auto\"?"),
    ],
)
def test_invalid_table_is_refused_with_the_key(record: type, table: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"^x.toml: {re.escape(message)}"):
        records.from_toml(record, table, "x.toml")


def test_text_is_read_as_numbers_with_units_or_as_a_word() -> None:
    target = records.from_toml(TargetOptions, {"receive_predictor": "64KiB..512KiB", "heap": "2g"}, "x.toml")
    assert (target.receive_predictor_bytes, target.heap_bytes) == ((65536, 524288), 2 << 30)
    options = records.from_toml(LoadOptions, {"users": "8", "warm_up": "auto", "measure": "20s"}, "--set")
    assert (options.users, options.warm_up_ns, options.measure_ns) == (8, "auto", 20 * 10**9)
    assert options.max_warm_up_ns == 20 * 10**9
    assert records.from_json(LoadOptions, records.to_json(options)) == options


@dataclass(frozen=True)
class Inner:
    word: Literal["on", "off"] = "on"


@dataclass(frozen=True)
class Outer:
    number: int
    share: float = 0.5
    inners: tuple[Inner, ...] = ()
    counts: dict[int, int] = field(default_factory=dict)
    size: int | Literal["auto"] | None = None
    path: Path = Path()
    anything: Any = None


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        (Outer, {"number": 1}, Outer(1)),
        (
            Outer,
            {"number": -(2**63), "share": 1, "inners": [{}, {"word": "off"}], "counts": {"-3": 4}, "path": "/x"},
            Outer(-(2**63), 1, (Inner(), Inner("off")), {-3: 4}, path=Path("/x")),
        ),
        (Outer, {"number": 2**63 - 1, "size": "auto", "anything": [1]}, Outer(2**63 - 1, size="auto", anything=[1])),
        (Outer, {"number": 0, "size": 7}, Outer(0, size=7)),
        (Outer, {"number": 0, "size": None}, Outer(0)),
        (bool, True, True),
        (str, "", ""),
        (dict[int, int], {"9" * 18: 1}, {10**18 - 1: 1}),
    ],
)
def test_a_value_of_a_type_is_decoded(kind: Any, value: Any, result: Any) -> None:
    assert records.decode(kind, value) == result


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Outer, {}, 'the key "number" is missing'),
        (Outer, [], "a list is not an object"),
        (Outer, {"number": 0, "other": 0}, 'unknown key "other"'),
        (Outer, {"number": True}, "number: true is not a whole number"),
        (Outer, {"number": 1.0}, "number: 1.0 is not a whole number"),
        (Outer, {"number": 2**63}, "number: a number of more than 64 bits"),
        (Outer, {"number": -(2**63) - 1}, "number: a number of more than 64 bits"),
        (Outer, {"number": None}, "number: null is not a whole number"),
        (Outer, {"number": 0, "share": "x"}, 'share: "x" is not a number'),
        (Outer, {"number": 0, "inners": {}}, "inners: an object is not a list"),
        (Outer, {"number": 0, "inners": [{}, {"word": "up"}]}, "inners[1].word: \"up\" is not one of 'on', 'off'"),
        (Outer, {"number": 0, "inners": [{"word": ["on"]}]}, "inners[0].word: a list is not one of 'on', 'off'"),
        (Outer, {"number": 0, "size": "big"}, "size: \"big\" is not one of 'auto'"),
        (Outer, {"number": 0, "counts": {"1.5": 0}}, 'counts: the key "1.5" is not a whole number'),
        (Outer, {"number": 0, "counts": {"9" * 21: 0}}, "is not a whole number"),
        (Outer, {"number": 0, "counts": {"1": "x"}}, 'counts["1"]: "x" is not a whole number'),
        (Outer, {"number": 0, "path": 1}, "path: 1 is not a path"),
        (bool, 1, "1 is not true or false"),
        (str, 7, "7 is not a text"),
        (int, "x" * 99, f'"{"x" * 59}… is not a whole number'),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_place(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        records.decode(kind, value)
