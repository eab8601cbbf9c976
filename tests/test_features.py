from __future__ import annotations

import pytest

from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.network.act.sandbox import Namespace, sandbox
from ingest_bench.network.plan import features, link_plan
from ingest_bench.network.plan.features import FeatureState

ON, OFF = FeatureState(on=True, wanted=True, fixed=False), FeatureState(on=False, wanted=False, fixed=False)
FIXED_ON, FIXED_OFF = FeatureState(on=True, wanted=False, fixed=True), FeatureState(on=False, wanted=False, fixed=True)
# Another feature prevents it.
PREVENTED = FeatureState(on=False, wanted=True, fixed=False)
STATES = {
    "tx-checksum-ipv4": FIXED_OFF,
    "tx-checksum-ip-generic": ON,
    "tx-checksum-sctp": OFF,
    "rx-checksum": ON,
    "tx-scatter-gather": FIXED_ON,
    "tx-tcp-segmentation": PREVENTED,
    "tx-tcp6-segmentation": ON,
    "tx-tcp-mangleid-segmentation": OFF,
    "rx-gro": OFF,
    "rx-lro": FIXED_OFF,
}


@pytest.mark.parametrize(
    ("name", "members"),
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
def test_name_stands_for_the_same_features_as_in_ethtool(name: str, members: set[str]) -> None:
    assert set(features.find_members(name, STATES)) == members


@pytest.mark.parametrize(
    ("requested", "changes"),
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
def test_only_features_in_another_state_are_changed(requested: dict[str, bool], changes: dict[str, bool]) -> None:
    assert features.find_changes(requested, STATES) == changes


@pytest.mark.parametrize(
    ("requested", "reasons"),
    [
        ({"tx": True, "gro": False, "lro": False, "sg": True}, []),
        ({"lro": True}, ["lro cannot be on: the device's driver fixes it"]),
        ({"sg": False}, ["sg cannot be off: the device's driver fixes it"]),
        ({"tx-tcp-segmentation": True}, ["tx-tcp-segmentation cannot be on: the kernel did not accept it"]),
        ({"tso": True}, ["tso cannot be on: the kernel did not accept it"]),
        ({"tx": False}, ["tx cannot be off: the kernel did not accept it"]),
        ({"tx-checksum-ip-generic": False, "tx": True}, []),
    ],
)
def test_unmet_request_is_reported_with_its_cause(requested: dict[str, bool], reasons: list[str]) -> None:
    assert list(features.find_unmet(requested, STATES)) == reasons


def test_prevented_feature_is_predicted_to_turn_on() -> None:
    expected = features.predict_states(STATES, {"rx-gro": True})
    assert expected["tx-tcp-segmentation"].on
    assert expected["rx-gro"].on
    assert not expected["rx-lro"].on


def set_offloads(namespace: Namespace, device: str, requested: dict[str, bool]) -> dict[str, bool]:
    output = namespace.run(link_plan.offloads_argv(device, requested))
    return link_plan.parse_offload_changes(output, requested)


def read_states(namespace: Namespace, device: str) -> features.FeatureStates:
    return features.parse_reply(namespace.run(link_plan.offloads_argv(device, {}))).before


@pytest.mark.netns
def test_features_are_set_and_restored_to_their_requested_states() -> None:
    with sandbox() as opened:
        namespace = opened.add_namespace()
        namespace.run(("ip", "link", "add", "name", "d", "type", "veth", "peer", "name", "e"))
        before = read_states(namespace, "d")
        assert before["tx-tcp-segmentation"].on
        # Without checksums the kernel disables segmentation offload, though nothing requested that.
        old = set_offloads(namespace, "d", {"tx": False, "gro": True})
        now = read_states(namespace, "d")
        assert not now["tx-checksum-ip-generic"].on
        assert now["rx-gro"].on
        assert now["tx-tcp-segmentation"] == PREVENTED
        assert "tx-tcp-segmentation" not in old
        with pytest.raises(MissingCapability, match="on this link tso cannot be on: the kernel did not accept it"):
            set_offloads(namespace, "d", {"tso": True})
        set_offloads(namespace, "d", old)
        assert read_states(namespace, "d") == before


@pytest.mark.netns
def test_unknown_feature_or_device_is_an_error_and_changes_nothing() -> None:
    with sandbox() as opened:
        namespace = opened.add_namespace()
        with pytest.raises(SpecError, match='unknown feature "tsoo"; did you mean "tso"'):
            set_offloads(namespace, "lo", {"gro": False, "tsoo": False})
        assert read_states(namespace, "lo")["rx-gro"].on
        for device, message in (("nosuch", "No such device"), ("a-name-that-no-device-has", "cannot be read or set")):
            with pytest.raises(RunFailed, match=message):
                set_offloads(namespace, device, {"tso": False})
