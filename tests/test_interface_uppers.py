from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import inside_uml
import pytest
from interface_lab import HAS_IPV6, Lab, lab

pytestmark = pytest.mark.netns

# What stands on the interface. A kernel may not have each kind: User-Mode Linux tries the ones that this one may lack.
KINDS = {
    "vlan": "ip link add link eth0 name up0 mtu 1480 type vlan id 5",
    "macvlan": "ip link add link eth0 name up0 mtu 1450 type macvlan",
    "ipvlan": "ip link add link eth0 name up0 type ipvlan; ip link set up0 mtu 1350",
    "bridge": "ip link add name up0 type bridge; ip link set eth0 master up0",
    "vlan-on-macvlan": "ip link add link eth0 name up0 type macvlan; ip link add link up0 name up1 type vlan id 6",
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Lab]:
    with lab(tmp_path / "state") as made:
        yield made


def is_made(place: Lab, kind: str) -> bool:
    """Whether this kernel makes such a device; then it is there, and has an IPv6 MTU of its own."""
    try:
        place.run("sh", "-ec", KINDS[kind])
    except subprocess.CalledProcessError as error:
        if "Unknown device type" not in error.stderr:
            raise
        return False
    place.run("ip", "link", "set", "up0", "up")
    if HAS_IPV6:
        ipv6 = "ip addr add fd00:50::1/64 dev up0 nodad; echo 1300 > /proc/sys/net/ipv6/conf/up0/mtu"
        place.run("sh", "-ec", ipv6)
    return True


def mtus(place: Lab) -> dict[str, int]:
    return {str(link["ifname"]): int(link["mtu"]) for link in json.loads(place.run("ip", "-j", "link", "show"))}


def test_what_stands_on_the_interface_gets_its_own_mtu_back(tmp_path: Path) -> None:
    tried = []
    for kind in ("vlan-on-macvlan",) if inside_uml.INSIDE else KINDS:
        with lab(tmp_path / kind) as place:
            if is_made(place, kind):
                tried.append(kind)
                comes_back(place)
    if not tried:
        pytest.skip(f"this kernel makes none of {', '.join(KINDS)}")


def comes_back(place: Lab) -> None:
    before = mtus(place)
    ipv6 = "cat /proc/sys/net/ipv6/conf/up0/mtu" if HAS_IPV6 else "true"
    ipv6_before = place.run("sh", "-c", ipv6)
    with place.shaped("mtu"):
        assert mtus(place)["eth0"] == 1400
        assert max(mtu for name, mtu in mtus(place).items() if name.startswith("up")) == 1400
        assert before["up0"] != 1400
    place.wait_until_free()
    assert place.leftovers() == []
    assert mtus(place) == before
    assert place.run("sh", "-c", ipv6) == ipv6_before


@pytest.mark.nightly
def test_what_stands_on_the_interface_gets_its_mtu_back_when_tool_and_watchdog_were_killed(place: Lab) -> None:
    if not is_made(place, "macvlan"):
        pytest.skip("this kernel makes no macvlan")
    for stage in (2, 4, 16, 18, 20):
        place.killed_with_its_watchdog(stage, "mtu")
        place.run("sh", "-ec", "ip link set up0 down; ip link set up0 name new0; ip link set new0 up")
        status, _, errors = place.driven("restore")
        assert status == 0, errors
        place.run("sh", "-ec", "ip link set new0 down; ip link set new0 name up0; ip link set up0 up")
        assert place.leftovers() == []
        assert mtus(place)["up0"] == 1450
        assert mtus(place)["eth0"] == 1500


def test_a_device_on_the_interface_that_lies_in_another_namespace_is_told_before_anything_is_changed(
    place: Lab,
) -> None:
    if not is_made(place, "macvlan"):
        pytest.skip("this kernel makes no macvlan")
    server_pid = place.server[2]
    place.run("ip", "link", "set", "up0", "netns", server_pid)
    status, _, errors = place.driven("tool", "-1", "-1", "mtu")
    assert status == 2
    assert "up0 in another network namespace stands on it" in errors
    assert mtus(place)["eth0"] == 1500
    with place.shaped("route"):
        pass
