"""Every key of every table has a rule, which all ways of input apply with one clear message."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from generated import TEXTS, VALUES, examples
from hypothesis import given
from hypothesis import strategies as st

from ingest_bench import units
from ingest_bench.cli.app import run
from ingest_bench.documents.generators import GENERATORS, Place, options_record
from ingest_bench.documents.synthetic import SPECIAL
from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.inputs import records
from ingest_bench.model.experiment import Experiment, Fault, HostSettings
from ingest_bench.model.load import (
    Arrivals,
    BulkAction,
    DocumentField,
    LoadOptions,
    Query,
    Rate,
    TrackOptions,
    Workload,
)
from ingest_bench.model.network import Impairment, PortRange, Profile, RealInterface, RemoteAddress, TimeLimit
from ingest_bench.model.target import (
    CustomTarget,
    DocumentCount,
    Endpoint,
    ReadyCheck,
    StartOptions,
    TargetOptions,
    Url,
)
from ingest_bench.model.values import CONTROL, Between
from ingest_bench.protocols.bulk import BulkKeys
from ingest_bench.protocols.frames import FramesKeys
from ingest_bench.protocols.json_array import JsonArrayKeys
from ingest_bench.report import gate
from ingest_bench.results import layout

FIELD = {"name": "n", "kind": "id", "options": {}}
# Each record that is read from user input, with a valid table.
TABLES: dict[type, dict[str, Any]] = {
    Profile: {"name": "x"},
    Impairment: {},
    RealInterface: {"name": "eth0", "to": ["10.0.0.1:9200"]},
    RemoteAddress: {"host": "::"},
    PortRange: {"first": 1, "last": 2},
    TimeLimit: {"for": "5s"},
    Endpoint: {"host": "x", "port": 1},
    TargetOptions: {},
    Url: {"scheme": "http", "host": "x", "port": 1},
    LoadOptions: {},
    HostSettings: {},
    Arrivals: {},
    Rate: {"per_s": 1.0},
    TrackOptions: {"path": "x"},
    BulkAction: {},
    Fault: {"kind": "pause", "at": "1s"},
    Workload: {
        **dict.fromkeys(("name", "description", "source", "index"), "x"),
        **dict.fromkeys(("published_documents", "published", "bulk_documents", "users"), 1),
        "mapping": {},
        "fields": [FIELD],
    },
    DocumentField: FIELD,
    Query: {"name": "x", "body": {}},
    Place: {"latitude": 0, "longitude": 0, "spread": 1},
    gate.Threshold: {"column": "x"},
    CustomTarget: {"protocol": {"name": "bulk"}},
    StartOptions: {},
    ReadyCheck: {},
    DocumentCount: {"path": "/"},
    BulkKeys: {"path": "/"},
    JsonArrayKeys: {"path": "/"},
    FramesKeys: {},
}
KINDS: dict[str, dict[str, Any]] = {
    "constant": {"value": 1},
    "choice": {"choices": [1]},
    "integer": {"minimum": 0, "maximum": 1},
    "decimal": {"minimum": 0, "maximum": 1},
    "sum": {"of": ["x"]},
    "date": {"start": "2015-01-01", "end": "2016-01-01"},
    "after": {"of": "x", "median": "1min"},
    "point": {"places": [{"latitude": 0, "longitude": 0, "spread": 1}]},
    "code": {"pattern": "A9"},
    "phrase": {"minimum": 0, "maximum": 1},
    "join": {"of": ["x"]},
    "list": {"items": {}, "minimum": 0, "maximum": 1},
    "one_of": {"kinds": [{}]},
    "id": {},
    "text": {"mean": 100},
    "object": {"fields": [{}]},
}
KIND_RECORDS = {**{kind: options_record(kind) for kind in GENERATORS}, **SPECIAL}
TABLES |= {KIND_RECORDS[kind]: table for kind, table in KINDS.items()}
KEYS = [(record, key) for record in TABLES for key in records.fields_by_key(record)]
HEAD = ("description", "replicates", "seed", "probes", "costly_probes")
EXPERIMENT = '[target]\nname = "sink"\n[load]\nbulk_documents = 100\n[factors]\nnetwork = ["ethernet", "jumbo"]\n'


def check_message(message: str, name: str) -> None:
    assert name in message
    assert re.search(f"[{CONTROL}]", message) is None, repr(message)
    assert len(message) < 1500, message


def unrestricted_types(hint: Any) -> Iterator[str]:
    """Yield the parts of a type without a rule, which would accept any number or text."""
    kind, ruled = (hint.__origin__, hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())
    if kind in (int, float, str, Any) and not ruled:
        yield str(kind)
    if get_origin(kind) in (typing.Union, types.UnionType, tuple, dict):
        # Any in a table with a rule is restricted by that rule.
        inner = [
            inner_hint
            for inner_hint in get_args(kind)
            if inner_hint is not Ellipsis and not (inner_hint is Any and ruled)
        ]
        for inner_hint in inner:
            yield from unrestricted_types(inner_hint)


def test_every_kind_of_field_has_a_table_here() -> None:
    assert set(KIND_RECORDS.values()) <= set(TABLES)


@pytest.mark.parametrize(("record", "key"), [*KEYS, *((Experiment, key) for key in HEAD)])
def test_every_key_has_a_rule(record: type, key: str) -> None:
    hint = get_type_hints(record, include_extras=True)[records.fields_by_key(record)[key]]
    assert list(unrestricted_types(hint)) == []


@pytest.mark.parametrize("record", TABLES, ids=lambda record: record.__name__)
def test_bounds_of_a_range_are_printed_exactly(record: type) -> None:
    hints = get_type_hints(record, include_extras=True)
    for field in dataclasses.fields(record):
        suffix = next((suffix for suffix in units.PARSERS if field.name.endswith(suffix)), "")
        for rule in ranges(hints[field.name]):
            bounds = re.fullmatch(r"between (\S+) and (\S+)( \(.*\))?", records.describe_rule(rule, suffix))
            assert bounds is not None
            if suffix:
                assert [units.PARSERS[suffix](bounds[end]) for end in (1, 2)] == [rule.minimum, rule.maximum]


def ranges(hint: Any) -> Iterator[Between]:
    for rule in getattr(hint, "__metadata__", ()):
        if isinstance(rule, Between):
            yield rule
    for inner in get_args(hint):
        if get_origin(inner) is not Literal:
            yield from ranges(inner)


@examples(400)
@given(field=st.sampled_from(KEYS), value=VALUES)
def test_any_value_is_accepted_unchanged_or_refused(field: tuple[Any, str], value: Any) -> None:
    record, key = field
    try:
        parsed = records.from_toml(record, {**TABLES[record], key: value}, "x.toml")
    except SpecError as error:
        # The message about a rate names its unit instead of the key.
        check_message(str(error), "a second" if "a second" in str(error) else key)
        return
    records.check(parsed, "plan.json")
    stored = json.loads(json.dumps(records.to_json(parsed)).encode("utf-8"))
    assert records.from_json(record, stored) == parsed


@examples(60)
@given(key=TEXTS, value=VALUES)
def test_any_unknown_key_is_refused(key: str, value: Any) -> None:
    with pytest.raises(SpecError) as caught:
        records.from_toml(Profile, {"name": "x", f"{key}x": value}, "x.toml")
    check_message(str(caught.value), "unknown key")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("values") / "x.toml"
    path.write_text(EXPERIMENT)
    return str(path)


SET = [
    *("network", "target", "workload", "network.profile", "network.name", "setting.a.b", "offloads.tso", "load.users"),
    *("track.path", "track.parameters.a", "arrivals.rate", "url.host", "action.indices", "to_server", "jvm.x", "", "."),
    *(
        key
        for record in (Profile, TargetOptions, LoadOptions)
        for key in records.fields_by_key(record)
        if key != "name"
    ),
    *(f"network.{end}.{key}" for end in ("to_server", "to_client") for key in records.fields_by_key(Impairment)),
]


@examples(150)
@given(key=st.sampled_from(SET), value=TEXTS)
def test_any_level_is_accepted_or_refused(experiment: str, key: str, value: str) -> None:
    try:
        loaded = spec.load_experiment(experiment, [f"{key}={value}"])
    except SpecError as error:
        check_message(str(error), "")
        return
    for cell in spec.build_cells(loaded):
        records.check(cell, "plan.json")
        json.dumps(records.to_json(cell)).encode("utf-8")


@examples(50)
@given(key=TEXTS, value=VALUES)
def test_any_top_level_value_is_accepted_or_refused(experiment: str, key: str, value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in (*spec.TOP, key):
            patch.setattr("ingest_bench.experiment.catalog.read_table", lambda _, name=name: {name: value})
            try:
                spec.load_experiment(experiment)
            except SpecError as error:
                check_message(str(error), "")


# An override, and a part of its message.
REFUSED = {
    "users=-4": "'-4' is not between 1 and 28,232",
    "users=0": "'0' is not between 1 and 28,232",
    "bulk=100g": "not between 1B and 1GiB",
    "timeout=0s": "not between 1ms and 24h",
    "warm_up=-5s": "'-5s' is negative",
    "heap=0g": "not between 16MiB and 16384GiB",
    "receive_predictor=64KiB..32KiB": "is not in rising order",
    "receive_predictor=1KiB..2KiB..3KiB": "has 3 values, not 0 to 2",
    "arrivals=100000000/s": "100,000,000 requests a second are more than one machine can send",
    "arrivals=poisson 0/s": "the rate is 0",
    "arrivals=0.000001/s": "less than one a day",
    f"arrivals={'9' * 400}/s": "not between 0 and",
    "seed=-1": "not between 0 and",
    "network.mtu=0": "not between 576B and 64KiB",
    "network.tcp_rmem=a lot": "'a' is not a size",
    "network.tcp_rmem=4096 131072": "has 2 values, not 3",
    "network.tcp_wmem=6291456 131072 4096": "not in rising order",
    "network.to_server.rate=900gbit": "not between 10kbit and 100gbit",
    "network.to_server.delay=5000s": "not between 0ns and 1min",
    "network.to_server.loss=100%": 'not between 0% and 99% (a link without any packet is a fault: kind = "partition")',
    "network.to_server.loss_state=1% 1% 1% 1% 1% 1%": "has 6 values, not 0 to 5",
    "network.congestion_control=cubic\nvrf exec default touch FILE": "is not a congestion control's name",
    "network.offloads.-K=on": "is not an offload's name",
    "jvm=Evil": "is not an option of the JVM",
    # It would consume the option of the recording as its value, and nothing would be recorded.
    "jvm=-cp": "is not an option of the JVM: one line that begins with -, its value behind = or :",
    "setting.a b=1": "is not a setting's name",
    f"jvm=-X{'x' * 600},-Xint": "characters; at most 200 are allowed. Write constant values",
    f"workload={'x' * 600}.toml": "is not a file's path",
    f"workload={'é' * 200}.toml": "file not found",
    f"network={'é' * 200}.toml": "file not found",
}


@pytest.mark.parametrize(("command", "level"), [("run", "users=0"), *(("plan", level) for level in REFUSED)])
def test_refused_level_is_reported_with_key_and_limits(
    experiment: str, level: str, command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = run([command, experiment, "--set", level, *(["--out", str(tmp_path / "out")] if command == "run" else [])])
    message = capsys.readouterr().err.rstrip("\n")
    assert code == 2, message
    assert message.startswith("error: ")
    check_message(message, REFUSED[level])
    assert not (tmp_path / "out").exists()
    if "characters; at" not in REFUSED[level] and "file not found" not in REFUSED[level]:
        assert f"--set {level.partition('=')[0]}" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--set heep=1g", 'unknown key "heep"; did you mean "heap"'),
        ("--set network.mtuu=1", 'did you mean "mtu"'),
        ("--set heap=1g,1g", "the level '1g' is given twice"),
        ("--set heap=1g,1024m", "+heap=1024m are the same. Remove one level."),
        ("--set heap", "write it like"),
        ("--set network.to_server.rate=100", "'100' is not a rate"),
        ("--set heap=1g --set heap=2g", "--set heap: set already by --set heap"),
        ("--set heap=1g --set target.heap=2g", "--set target.heap: set already by --set heap"),
        ("--measure 5s --set measure=3s", "--set measure: set already by --measure"),
        ("--measure 0s", "--measure: '0s' is not between 100ms and 24h"),
        ("--warm-up 99h", "--warm-up: '99h' is not between 0ns and 24h"),
        (f"--replicates {'9' * 23}", f"--replicates: {'9' * 23} is not between 1 and 10,000"),
        ("--replicates 5000 --set heap=1g,2g", "the plan has 20,000 runs; at most 10,000 are allowed"),
        (f"--set users={','.join(map(str, range(1, 1002)))}", "1,001 levels; at most 1,000 are allowed"),
        ("--set bulk=1MiB --set bulk_documents=5", "bulk conflicts with bulk_documents"),
        ("--set jvm=-Xa:b,-Xa_b", "would both have the folder"),
        ("--set network.to_server.burst=1000", "burst: 1000 bytes never let a frame of 1514 pass"),
        ("--set network.to_server.limit_packets=10000000", "are more than 4 GiB of queue"),
        ("--attach 0", "--attach: 0 is not between 1 and 4,194,304"),
    ],
)
def test_options_are_refused_like_levels(
    experiment: str, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", experiment, *words.split()]) == 2
    check_message(capsys.readouterr().err.rstrip("\n"), message)


@pytest.mark.parametrize(
    "words", ["plan {0}.toml", "plan --track {0}", "run --resume {0}", "plan quickstart --documents {0}"]
)
def test_too_long_file_name_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words.format("é" * 200).split()) == 2
    check_message(capsys.readouterr().err.rstrip("\n"), "éé")


def test_bulk_size_of_an_option_overrides_that_of_the_file(experiment: str) -> None:
    (load,) = {
        cell.load
        for cell in spec.build_cells(spec.load_experiment(experiment, ["bulk=1MiB"]))
        if not cell.load.action.pipeline
    }
    assert (load.bulk_bytes, load.bulk_documents) == (1 << 20, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[fault]]\nkind = "pause"\nat = "-1s"', "fault: at: '-1s' is negative"),
        ('[[fault]]\nkind = "pause"\nat = "0s"\nfor = "25h"', "fault: for: '25h' is not between 0ns and 24h"),
        ('seed = "x"', "seed: 'x' is not a whole number"),
        ("target = 5", "target: 5 is not a table"),
        ("factors = []", "factors: [] is not a table"),
        ("probes = 1", "probes: 1 is not a list"),
        ("fault = 1", "fault: 1 is not written as"),
        ("fault = [1]", "fault: 1 is not a table"),
        ("replicates = 0", "replicates: 0 is not between 1 and 10,000"),
        ("tagret = 1", 'unknown key "tagret"; did you mean "target"'),
        ('[factors]\nheap = "1g"', "heap: a factor requires a list of levels"),
        ("[load]\nusers = true", "users: True is not a whole number"),
        ("seed = -1", "seed: -1 is not between 0 and"),
        ("replicates = 1_000_000", "replicates: 1000000 is not between 1 and 10,000"),
        ('description = "a\\nb"', "description: 'a\\nb' is not one line"),
        ("[load]\nusers = nan", "load.users: nan is not a whole number"),
        ("[load]\ntrack = { path = 'x', parameters = { when = 2015-01-01 } }", "is not JSON: JSON has no date"),
        ("[factors]\njvm = [['-Xa', '-Xb']]", "factors: jvm: ['-Xa', '-Xb'] is not a level"),
        ("[target]\nheap.b = 1", "target.heap.b: there is nothing below it"),
        (f"a = {'[' * 10_000}{']' * 10_000}", "nested too deeply"),
        (f"seed = {'9' * 5000}", "this is not TOML"),
        (f"seed = 0x{'f' * 5000}", "seed: numbers of more than thirty digits are not supported"),
    ],
)
def test_invalid_file_is_refused_with_name_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        spec.load_experiment(str(path))
    check_message(str(caught.value), message)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("limit", ["at_least = nan", "at_most = inf", "at_most = 1e300", 'may_rise = "-1%"'])
def test_threshold_must_be_a_reachable_number(limit: str) -> None:
    key = limit.partition(" = ")[0]
    with pytest.raises(SpecError, match=f"gate.toml: threshold: {key}: "):
        gate.parse_thresholds({"threshold": [{"column": "requests", **tomllib.loads(limit)}]}, "gate.toml")


@pytest.mark.parametrize("value", ["5", "true", f"0x{'f' * 5000}", '"a"', "{ column = 'requests' }"])
def test_thresholds_must_be_a_list(value: str) -> None:
    with pytest.raises(SpecError) as caught:
        gate.parse_thresholds(tomllib.loads(f"threshold = {value}"), "gate.toml")
    check_message(str(caught.value), "is not written as [[threshold]]")


def test_resumed_plan_is_checked_like_a_file(experiment: str, tmp_path: Path) -> None:
    results = layout.create_results(tmp_path, spec.build_plan(spec.load_experiment(experiment)), {})
    stored = (results.path / "plan.json").read_text()
    assert results.plan.runs
    for before, after, message in (
        ('"congestion_control": null', '"congestion_control": "cubic\\nvrf exec"', "congestion_control: 'cubic"),
        ('"mtu_bytes": 1500', '"mtu_bytes": "1500 x"', '"1500 x" is not a whole number'),
        ('"seed"', '"sead"', 'unknown key "sead"'),
    ):
        assert before in stored
        (results.path / "plan.json").write_text(stored.replace(before, after))
        with pytest.raises(SpecError) as caught:
            _ = results.plan
        check_message(str(caught.value), message)
