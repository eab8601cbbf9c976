from __future__ import annotations

import pytest

from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.network.act.sandbox import Namespace, sandbox
from ingest_bench.network.plan import commands, features
from ingest_bench.network.plan.features import State

ON, OFF = State(on=True, wanted=True, fixed=False), State(on=False, wanted=False, fixed=False)
FIXED_ON, FIXED_OFF = State(on=True, wanted=False, fixed=True), State(on=False, wanted=False, fixed=True)
# Another feature does not allow it.
HELD_OFF = State(on=False, wanted=True, fixed=False)
STATES = {
    "tx-checksum-ipv4": FIXED_OFF,
    "tx-checksum-ip-generic": ON,
    "tx-checksum-sctp": OFF,
    "rx-checksum": ON,
    "tx-scatter-gather": FIXED_ON,
    "tx-tcp-segmentation": HELD_OFF,
    "tx-tcp6-segmentation": ON,
    "tx-tcp-mangleid-segmentation": OFF,
    "rx-gro": OFF,
    "rx-lro": FIXED_OFF,
}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("tso", {"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-mangleid-segmentation"}),
        ("tcp-segmentation-offload", {"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-mangleid-segmentation"}),
        ("tx", {"tx-checksum-ipv4", "tx-checksum-ip-generic", "tx-checksum-sctp"}),
        ("tx-checksum", {"tx-checksum-ipv4", "tx-checksum-ip-generic", "tx-checksum-sctp"}),
        ("rx-checksum", {"rx-checksum"}),
        ("gro", {"rx-gro"}),
        ("tx-tcp6-segmentation", {"tx-tcp6-segmentation"}),
        ("gso", set()),
        ("tsoo", set()),
    ],
)
def test_a_name_stands_for_the_features_that_ethtool_means_by_it(name: str, found: set[str]) -> None:
    assert set(features.members(name, STATES)) == found


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        ({"tso": False}, {"tx-tcp-segmentation": False, "tx-tcp6-segmentation": False}),
        ({"tso": True}, {}),
        ({"tx-tcp-mangleid-segmentation": True}, {"tx-tcp-mangleid-segmentation": True}),
        ({"tx": False, "gro": True}, {"tx-checksum-ip-generic": False, "rx-gro": True}),
        ({"rx-gro": False}, {}),
        ({"lro": True, "sg": False}, {}),
        (
            {"tx-tcp6-segmentation": False, "tx-tcp-segmentation": False, "tso": True},
            {"tx-tcp-mangleid-segmentation": True},
        ),
        ({"gro": True, "generic-receive-offload": False}, {}),
    ],
)
def test_only_what_is_not_as_it_shall_be_is_changed(asked: dict[str, bool], made: dict[str, bool]) -> None:
    assert features.changes(asked, STATES) == made


@pytest.mark.parametrize(
    ("asked", "reasons"),
    [
        ({"tx": True, "gro": False, "lro": False, "sg": True}, []),
        ({"lro": True}, ["lro cannot be on: the device's driver fixes it"]),
        ({"sg": False}, ["sg cannot be off: the device's driver fixes it"]),
        ({"tx-tcp-segmentation": True}, ["tx-tcp-segmentation cannot be on: the kernel did not take it"]),
        ({"tso": True}, ["tso cannot be on: the kernel did not take it"]),
        ({"tx": False}, ["tx cannot be off: the kernel did not take it"]),
        ({"tx-checksum-ip-generic": False, "tx": True}, []),
    ],
)
def test_what_is_not_as_it_shall_be_is_told_with_its_cause(asked: dict[str, bool], reasons: list[str]) -> None:
    assert list(features.unmet(asked, STATES)) == reasons


def test_what_another_feature_held_off_is_expected_to_come_on() -> None:
    expected = features.changed(STATES, {"rx-gro": True})
    assert expected["tx-tcp-segmentation"].on
    assert expected["rx-gro"].on
    assert not expected["rx-lro"].on


def applied(place: Namespace, device: str, asked: dict[str, bool]) -> dict[str, bool]:
    return commands.changed(place.run(commands.offloads(device, asked)), asked)


@pytest.mark.netns
def test_features_are_set_and_read_back_and_put_back_by_what_was_asked_of_them_before() -> None:
    with sandbox() as opened:
        place = opened.add()
        place.run(("ip", "link", "add", "name", "d", "type", "veth", "peer", "name", "e"))
        before = features.answer(place.run(commands.offloads("d", {}))).before
        assert before["tx-tcp-segmentation"].on
        # Without checksums there is no segmentation offload, though nobody asked for that.
        old = applied(place, "d", {"tx": False, "gro": True})
        now = features.answer(place.run(commands.offloads("d", {}))).before
        assert not now["tx-checksum-ip-generic"].on
        assert now["rx-gro"].on
        assert now["tx-tcp-segmentation"] == HELD_OFF
        assert "tx-tcp-segmentation" not in old
        with pytest.raises(MissingCapability, match="on this link tso cannot be on: the kernel did not take it"):
            applied(place, "d", {"tso": True})
        applied(place, "d", old)
        assert features.answer(place.run(commands.offloads("d", {}))).before == before


@pytest.mark.netns
def test_a_name_that_means_nothing_changes_nothing() -> None:
    with sandbox() as opened:
        place = opened.add()
        with pytest.raises(SpecError, match='unknown feature "tsoo"; did you mean "tso"'):
            applied(place, "lo", {"gro": False, "tsoo": False})
        assert features.answer(place.run(commands.offloads("lo", {}))).before["rx-gro"].on


@pytest.mark.netns
@pytest.mark.parametrize(
    ("device", "said"), [("nosuch", "No such device"), ("a-name-that-no-device-has", "cannot be read or set")]
)
def test_a_device_that_is_not_there_is_an_error(device: str, said: str) -> None:
    with sandbox() as opened, pytest.raises(RunFailed, match=said):
        opened.add().run(commands.offloads(device, {"tso": False}))
