"""Values of a profile reach ip, tc, sysctl and the offloads as numbers and known words, never as user text."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
import test_interface_plan
from generated import SPECIAL, TEXTS, VALUES, examples
from hypothesis import given
from hypothesis import strategies as st

from ingest_bench.errors import SpecError
from ingest_bench.experiment import catalog, spec
from ingest_bench.inputs import records
from ingest_bench.model.network import PortRange, Profile, RealInterface, RemoteAddress
from ingest_bench.network.plan import interface_plan, link_plan, netem
from ingest_bench.network.plan.link_plan import Layout

# A valid value for each key that reaches a command.
VALID = {
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
VALID_OF_A_DIRECTION = {
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
VALID |= {f"{end}.{key}": value for end in DIRECTIONS for key, value in VALID_OF_A_DIRECTION.items()}
OTHERS = {"loss": "1%", "loss_correlation": "25%", "loss_state": "1% 99% 1% 1% 1%", "queue": "fq_codel"}
# Keys that conflict with an AQM queue.
NOT_QUEUED = ("burst", "netem_rate", "packet_overhead", "cell", "cell_overhead")
KEYS = [
    *VALID,
    *("name", "description", "medium", "offloads", "to_server", "to_client"),
    *(f"{end}.{key}" for end in DIRECTIONS for key in OTHERS),
]
# A valid value with something inserted, a valid value, or any other text.
TEXTS_OF_A_KEY = st.one_of(
    TEXTS,
    st.builds(
        lambda value, position, first, second: (
            value[: position % (len(value) + 1)] + first + second + value[position % 7 :]
        ),
        st.sampled_from([*VALID.values(), *OTHERS.values(), "veth", "cubic"]),
        st.integers(0, 20),
        st.sampled_from(SPECIAL),
        st.sampled_from(["", "vrf exec default touch FILE", "1", "net.ipv4.ip_forward=1"]),
    ),
    st.sampled_from([*VALID.values(), *OTHERS.values()]),
)
FACTS = dataclasses.replace(test_interface_plan.FACTS, mtu_bytes=9000, features={})
NUMBER = r"[0-9]+(\.[0-9]+)?(us|%|bit|b)?"
BUFFERS = r"(net\.ipv4\.tcp_[rw]mem=)?[0-9]+ [0-9]+ [0-9]+"


def command_words(profile: Profile) -> Iterator[str]:
    """Yield each word of the commands, batches and settings of this profile, except its offloads."""
    profile = dataclasses.replace(profile, offloads={})
    defaults = link_plan.KernelDefaults(tcp_rmem_bytes=(1, 2, 3), tcp_wmem_bytes=(1, 2, 3))
    for backend in ("plain", "kernel"):
        layout = Layout(medium=profile.medium, backend=backend, max_mtu_bytes=profile.mtu_bytes, has_ipv6=True)
        undone = link_plan.change_steps(layout, profile, link_plan.INITIAL_PROFILE, defaults)
        yield from (word for step in (*link_plan.link_steps(profile, backend), *undone) for word in step.action.argv)
    has_aqm = any(map(netem.is_aqm, (profile.to_server, profile.to_client)))
    if profile.medium == "veth" and profile.mtu_bytes <= FACTS.mtu_bytes and not has_aqm:
        for step in interface_plan.interface_steps(FACTS, profile, interface_plan.SessionIds(7)):
            yield from (*step.action.argv, step.action.value)
            yield from (word for undo in step.undo for word in (*undo.action.argv, undo.action.value, *undo.check_argv))


def valid_table_without(key: str) -> dict[str, Any]:
    """Return a profile's table of all valid keys that do not conflict with that key."""
    end, _, last = key.partition(".")
    omitted = {key, f"{end}.loss_gemodel"} if last.startswith("loss") else {key}
    values = {name: value for name, value in VALID.items() if name not in omitted}
    if last == "queue":
        values = {name: value for name, value in values.items() if name.partition(".")[2] not in NOT_QUEUED}
    if last == "loss_correlation":
        values[f"{end}.loss"] = "1%"
    return spec.parse_profile_overrides([f"{name}={value}" for name, value in values.items()])


def table(key: str, value: Any) -> dict[str, Any]:
    """Return the same table with the key."""
    nested = value
    for step in reversed(key.split(".")):
        nested = {step: nested}
    return catalog.merge_tables(valid_table_without(key), nested)


def known_words() -> set[str]:
    """Return the words of the commands of all valid keys."""
    # A bucket without a burst has a peak.
    tables = [
        valid_table_without(""),
        {"to_server": {"rate": "10mbit"}},
        *(table(f"{end}.{key}", value) for end in DIRECTIONS for key, value in OTHERS.items()),
        *({"gso_max_segs": "1", "to_server": {"rate": "10mbit", "queue": queue}} for queue in netem.AQM_QUEUES),
        {"gso_max_segs": "1", "to_server": {"rate": "10mbit", "queue": "fq_codel", "ecn": "on"}},
    ]
    profiles = [Profile(name="x", medium="loopback", mtu_bytes=65536), *map(load, tables)]
    return {word for profile in profiles for word in command_words(profile)}


def load(changes: dict[str, Any]) -> Profile:
    return catalog.load_profile("ethernet", changes)


KNOWN_WORDS = known_words() | {"uniform", "normal", "pareto"}


def check(profile: Profile) -> None:
    """Assert that no word contains user text, except two kinds of names."""
    for name in profile.offloads:
        assert re.fullmatch("[a-z0-9][a-z0-9_-]{0,30}", name)
    control = profile.congestion_control or "cubic"
    assert re.fullmatch("[a-z0-9][a-z0-9_-]{0,14}", control)
    for word in command_words(profile):
        assert word in KNOWN_WORDS or word == control or re.fullmatch(f"{NUMBER}|{BUFFERS}", word), repr(word)


@examples(200)
@given(key=st.sampled_from(KEYS), value=st.one_of(TEXTS_OF_A_KEY, VALUES))
def test_user_values_never_are_words_of_a_command(key: str, value: Any) -> None:
    with contextlib.suppress(SpecError):
        check(load(table(key, value)))


@pytest.mark.parametrize("key", [key for key in KEYS if key in VALID or "loss" in key or "queue" in key])
def test_valid_values_are_accepted(key: str) -> None:
    check(load(table(key, VALID.get(key) or OTHERS[key.partition(".")[2]])))


@examples(60)
@given(name=TEXTS)
def test_offload_names_are_restricted(name: str) -> None:
    try:
        check(load({"offloads": {name: True}}))
    except SpecError:
        assert not re.fullmatch("[a-z0-9][a-z0-9_-]{0,30}", name)


@examples(60)
@given(text=TEXTS_OF_A_KEY)
def test_interface_and_host_names_are_restricted(text: str) -> None:
    host = r"\[?[A-Za-z0-9_.:%-]+(/[0-9]{1,3})?\]?(:[0-9,-]+)?"
    with contextlib.suppress(SpecError):
        assert re.fullmatch(
            "[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}", records.read_key(RealInterface, ("name",), text, "--interface")
        )
    with contextlib.suppress(SpecError):
        (end,) = records.read_key(RealInterface, ("to",), [text], "--to")
        assert re.fullmatch(host, str(end))
        assert records.read_key(RealInterface, ("to",), [str(end)], "--to") == (end,)


def test_forms_of_a_host() -> None:
    for text, end in (
        ("192.0.2.7:9200", RemoteAddress("192.0.2.7", None, (PortRange(9200, 9200),))),
        ("server.example:1,5-7", RemoteAddress("server.example", None, (PortRange(1, 1), PortRange(5, 7)))),
        ("192.0.2.0/24:9", RemoteAddress("192.0.2.0", 24, (PortRange(9, 9),))),
        ("[2001:db8::7]:65535", RemoteAddress("2001:db8::7", None, (PortRange(65535, 65535),))),
        ("[2001:db8::/64]:9", RemoteAddress("2001:db8::", 64, (PortRange(9, 9),))),
        ("2001:db8::/64", RemoteAddress("2001:db8::", 64)),
        ("client.example", RemoteAddress("client.example")),
    ):
        assert records.read_key(RealInterface, ("to",), [text], "--to") == (end,)
        assert str(end) == text


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"to": ["192.0.2.1/24:9200"]}, "192.0.2.1/24 is not a network .*has host bits set"),
        ({"to": ["server.example/24:9200"]}, "is not a network"),
        ({"to": ["192.0.2.0/33:9200"]}, "is not a network"),
        ({"to": ["192.0.2.7:9210-9200"]}, "the last port is before the first one"),
        ({"to": ["192.0.2.7:0"]}, "not between 1 and 65,535"),
        ({"to": ["192.0.2.7:9200,"]}, "write it like 192.0.2.7:9200"),
        ({"to": ["[2001:db8::7:9200"]}, "write it like 192.0.2.7:9200"),
        ({"to": ["192.0.2.7"]}, "the port is missing"),
        ({"to": ["192.0.2.7:9200"], "port": "9200"}, "the server is here, and clients have any port"),
        ({"port": "9200 9300"}, "write it like 9200 or 9200-9210"),
        ({"port": "70000"}, "not between 1 and 65,535"),
    ],
)
def test_invalid_hosts_and_ports_are_refused(table: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        records.from_toml(RealInterface, {"name": "eth0", **table}, "x")
