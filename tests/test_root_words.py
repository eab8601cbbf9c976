"""What a profile says reaches ip, tc, sysctl and the offloads as numbers and known words, never as text."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from generated import SPECIAL, TEXTS, VALUES, examples
from hypothesis import given
from hypothesis import strategies as st

from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog, spec
from ingest_bench.inputs import records
from ingest_bench.model.network import FarEnd, Impairment, PortRange, Profile, RealLink
from ingest_bench.network.plan import commands, interface_plan, link_plan, netem, queues
from ingest_bench.network.plan.flows import Flow
from ingest_bench.network.plan.interface_rules import Asked, Destination, Found, Way

# A value that is right, for each key that reaches a command.
RIGHT = {
    "mtu": "1400",
    "gso_max_segs": "1",
    "gso_max_size": "20000",
    "gro_max_size": "20000",
    "congestion_control": "reno",
    "tcp_rmem": "4096 131072 6291456",
    "tcp_wmem": "4096 16384 4194304",
    "mss": "1000",
    "offloads.tso": "off",
    "offloads.tx-checksum-ip-generic": "on",
}
RIGHT_OF_A_DIRECTION = {
    "rate": "10mbit",
    "burst": "20000",
    "delay": "5ms",
    "jitter": "1ms",
    "delay_correlation": "25%",
    "distribution": "paretonormal",
    "loss_gemodel": "0.5% 50% 99% 0.1%",
    "duplicate": "1%",
    "duplicate_correlation": "5%",
    "corrupt": "0.1%",
    "corrupt_correlation": "5%",
    "reorder": "25%",
    "reorder_correlation": "50%",
    "reorder_gap": "5",
    "netem_rate": "9mbit",
    "packet_overhead": "10",
    "cell": "48",
    "cell_overhead": "5",
    "slot_min": "1ms",
    "slot_max": "2ms",
    "slot_packets": "30",
    "slot": "3000",
    "ecn": "on",
    "limit_packets": "500",
}
DIRECTIONS = ("to_server", "to_client")
RIGHT |= {f"{end}.{key}": value for end in DIRECTIONS for key, value in RIGHT_OF_A_DIRECTION.items()}
OTHERS = {"loss": "1%", "loss_correlation": "25%", "loss_state": "1% 99% 1% 1% 1%", "queue": "fq_codel"}
# What a queue that manages itself cannot have.
NOT_QUEUED = ("burst", "netem_rate", "packet_overhead", "cell", "cell_overhead")
KEYS = [
    *RIGHT,
    *("name", "description", "medium", "offloads", "to_server", "to_client"),
    *(f"{end}.{key}" for end in DIRECTIONS for key in OTHERS),
]
# A value that is right but for something in it; a right one; any other.
TEXTS_OF_A_KEY = st.one_of(
    TEXTS,
    st.builds(
        lambda value, place, more, rest: value[: place % (len(value) + 1)] + more + rest + value[place % 7 :],
        st.sampled_from([*RIGHT.values(), *OTHERS.values(), "veth", "cubic"]),
        st.integers(0, 20),
        st.sampled_from(SPECIAL),
        st.sampled_from(["", "vrf exec default touch FILE", "1", "net.ipv4.ip_forward=1"]),
    ),
    st.sampled_from([*RIGHT.values(), *OTHERS.values()]),
)
FOUND = Found(
    interface="eth0",
    index=7,
    mtu_bytes=9000,
    sizes={"gso_max_segs": 65535, "gso_max_size": 65536, "gro_max_size": 65536},
    qdiscs=(),
    features={},
    flows=(Flow(network=ipaddress.ip_network("10.1.2.3")),),
    destinations=(
        Destination(address=ipaddress.ip_address("10.1.2.3"), device="eth0", way=Way(next_hop=("via", "10.0.0.1"))),
    ),
    sysctls={"tcp_rmem": "1 2 3", "tcp_wmem": "1 2 3"},
)
NUMBER = r"[0-9]+(\.[0-9]+)?(us|%|bit|b)?"
BUFFERS = r"(net\.ipv4\.tcp_[rw]mem=)?[0-9]+ [0-9]+ [0-9]+"


def words(profile: Profile) -> Iterator[str]:
    """Each word of a command, a batch or a written setting that this profile leads to, but for its offloads."""
    profile = dataclasses.replace(profile, offloads={})
    left_open = dataclasses.replace(profile, tcp_rmem_bytes=None, tcp_wmem_bytes=None, gso_max_segs=None)
    restored = commands.restored(left_open, profile, tcp_rmem_bytes=(1, 2, 3), tcp_wmem_bytes=(1, 2, 3))
    for state in (profile, restored):
        yield from commands.sysctl(state)
        batches = [commands.device("client0", state), commands.loopback(state)]
        for direction in (state.to_server, state.to_client):
            batches.append(netem.lines("client0", direction, state.mtu_bytes))
            batches.append(netem.change("client0", direction, Impairment(), state.mtu_bytes))
        yield from (word for batch in batches for line in batch for word in line.split(" "))
    for backend in ("plain", "kernel"):
        yield from (word for step in link_plan.steps(profile, backend) for word in step.do.argv)
    queued = any(map(queues.is_managed, (profile.to_server, profile.to_client)))
    if profile.medium == "veth" and profile.mtu_bytes <= FOUND.mtu_bytes and not queued:
        asked = Asked(link=RealLink(name="eth0", shared_settings=True), profile=profile)
        for step in interface_plan.plan(FOUND, asked, interface_plan.Marks(7)):
            yield from (*step.do.argv, step.do.value)
            yield from (word for undo in step.undo for word in (*undo.action.argv, undo.action.value, *undo.look))


def around(key: str) -> dict[str, Any]:
    """All that is right and can stand beside that key, as a profile's table."""
    end, _, last = key.partition(".")
    left_out = {key, f"{end}.loss_gemodel"} if last.startswith("loss") else {key}
    made = {one: value for one, value in RIGHT.items() if one not in left_out}
    if last == "queue":
        made = {one: value for one, value in made.items() if one.partition(".")[2] not in NOT_QUEUED}
    if last == "loss_correlation":
        made[f"{end}.loss"] = "1%"
    return spec.profile_overrides([f"{one}={value}" for one, value in made.items()])


def table(key: str, value: Any) -> dict[str, Any]:
    """The same with the key in it."""
    nested = value
    for step in reversed(key.split(".")):
        nested = {step: nested}
    return catalog.merged(around(key), nested)


def ours() -> set[str]:
    """The words of commands themselves: what all that is right leads to, whatever it is worth."""
    # Without a burst of its own a bucket has a peak.
    tables = [
        around(""),
        {"to_server": {"rate": "10mbit"}},
        *(table(f"{end}.{key}", value) for end in DIRECTIONS for key, value in OTHERS.items()),
        *({"gso_max_segs": "1", "to_server": {"rate": "10mbit", "queue": queue}} for queue in queues.MANAGED),
        {"gso_max_segs": "1", "to_server": {"rate": "10mbit", "queue": "fq_codel", "ecn": "on"}},
    ]
    made = [Profile(name="x", medium="loopback", mtu_bytes=65536), *map(chosen, tables)]
    return {word for profile in made for word in words(profile)}


def chosen(changes: dict[str, Any]) -> Profile:
    return catalog.profile("ethernet", changes)


OURS = ours() | {"uniform", "normal", "pareto"}


def check(profile: Profile) -> None:
    """Nothing of a user's text is in any word, but for two kinds of names."""
    for name in profile.offloads:
        assert re.fullmatch("[a-z0-9][a-z0-9_-]{0,30}", name)
    control = profile.congestion_control or "cubic"
    assert re.fullmatch("[a-z0-9][a-z0-9_-]{0,14}", control)
    for word in words(profile):
        assert word in OURS or word == control or re.fullmatch(f"{NUMBER}|{BUFFERS}", word), repr(word)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def write(path: Path, tables: dict[str, Any]) -> str:
    path.write_text("".join(f"{key} = {toml(value)}\n" for key, value in tables.items()), encoding="utf-8")
    return str(path)


def of_experiment(path: Path, network: dict[str, Any], *settings: str) -> Iterator[Profile]:
    file = write(path, {"network": {"profile": "ethernet", **network}, "target": {"name": "sink"}})
    for cell in spec.cells(spec.load(file, settings)):
        assert cell.network is not None
        yield cell.network


def by_every_way(folder: Path, key: str, value: str) -> Iterator[Profile]:
    """The profiles that one text makes of a key, from a file, from [network] and by --set; nothing where refused."""
    file, experiment = folder / "profile.toml", folder / "experiment.toml"
    ways: list[Callable[[], Iterable[Profile]]] = [
        lambda: [catalog.profile(write(file, table(key, value)))],
        lambda: of_experiment(experiment, table(key, value)),
        lambda: of_experiment(experiment, around(key), f"network.{key}={value}"),
        lambda: [chosen(catalog.merged(around(key), spec.profile_overrides([f"{key}={value}"])))],
    ]
    for way in ways:
        try:
            yield from way()
        except SpecError:
            continue


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("words")


@pytest.mark.parametrize("key", [key for key in KEYS if key in RIGHT or "loss" in key or "queue" in key])
def test_what_is_right_is_taken_by_every_way(folder: Path, key: str) -> None:
    value = RIGHT.get(key) or OTHERS[key.partition(".")[2]]
    made = [*by_every_way(folder, key, value)]
    assert len(made) == 4
    for profile in made:
        check(profile)


@examples(150)
@given(key=st.sampled_from(KEYS), value=TEXTS_OF_A_KEY)
def test_no_text_of_a_profile_is_a_word_of_a_command(folder: Path, key: str, value: str) -> None:
    for profile in by_every_way(folder, key, value):
        check(profile)


@examples(250)
@given(key=st.sampled_from(KEYS), value=VALUES)
def test_no_other_value_of_a_profile_is_one_either(key: str, value: Any) -> None:
    with contextlib.suppress(SpecError):
        check(chosen(table(key, value)))


@examples(150)
@given(name=TEXTS)
def test_no_text_is_the_name_of_an_offload(name: str) -> None:
    try:
        check(chosen({"offloads": {name: True}}))
    except SpecError:
        assert not re.fullmatch("[a-z0-9][a-z0-9_-]{0,30}", name)


@examples(150)
@given(text=TEXTS_OF_A_KEY)
def test_an_interface_and_a_host_are_names_of_letters_and_digits(text: str) -> None:
    host = r"\[?[A-Za-z0-9_.:%-]+(/[0-9]{1,3})?\]?(:[0-9,-]+)?"
    with contextlib.suppress(SpecError):
        assert re.fullmatch("[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}", records.at(RealLink, ("name",), text, "--interface"))
    with contextlib.suppress(SpecError):
        (end,) = records.at(RealLink, ("to",), [text], "--to")
        assert re.fullmatch(host, str(end))
        assert records.at(RealLink, ("to",), [str(end)], "--to") == (end,)


def test_the_forms_of_a_host_are_those_of_the_manual() -> None:
    for text, end in (
        ("192.0.2.7:9200", FarEnd("192.0.2.7", None, (PortRange(9200, 9200),))),
        ("server.example:1,5-7", FarEnd("server.example", None, (PortRange(1, 1), PortRange(5, 7)))),
        ("192.0.2.0/24:9", FarEnd("192.0.2.0", 24, (PortRange(9, 9),))),
        ("[2001:db8::7]:65535", FarEnd("2001:db8::7", None, (PortRange(65535, 65535),))),
        ("[2001:db8::/64]:9", FarEnd("2001:db8::", 64, (PortRange(9, 9),))),
        ("2001:db8::/64", FarEnd("2001:db8::", 64)),
        ("client.example", FarEnd("client.example")),
    ):
        assert records.at(RealLink, ("to",), [text], "--to") == (end,)
        assert str(end) == text


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"to": ["192.0.2.1/24:9200"]}, "192.0.2.1/24 is no network .*has host bits set"),
        ({"to": ["server.example/24:9200"]}, "is no network"),
        ({"to": ["192.0.2.0/33:9200"]}, "is no network"),
        ({"to": ["192.0.2.7:9210-9200"]}, "its last port is before its first one"),
        ({"to": ["192.0.2.7:0"]}, "not between 1 and 65,535"),
        ({"to": ["192.0.2.7:9200,"]}, "write it like 192.0.2.7:9200"),
        ({"to": ["[2001:db8::7:9200"]}, "write it like 192.0.2.7:9200"),
        ({"to": ["192.0.2.7"]}, "which port of it"),
        ({"to": ["192.0.2.7:9200"], "port": "9200"}, "the server is here, and clients have any port"),
        ({"port": "9200 9300"}, "write it like 9200 or 9200-9210"),
        ({"port": "70000"}, "not between 1 and 65,535"),
    ],
)
def test_ends_and_ports_that_mean_nothing_are_refused(table: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        records.from_toml(RealLink, {"name": "eth0", **table}, "x")
