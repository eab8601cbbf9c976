from __future__ import annotations

import json
import subprocess
from pathlib import Path

import inside_uml
import pytest
from interface_lab import HAS_IPV6, Lab, lab

pytestmark = pytest.mark.netns

# Upper devices. A kernel may lack some kinds: User-Mode Linux tests those.
KINDS = {
    "vlan": "ip link add link eth0 name up0 mtu 1480 type vlan id 5",
    "macvlan": "ip link add link eth0 name up0 mtu 1450 type macvlan",
    "ipvlan": "ip link add link eth0 name up0 type ipvlan; ip link set up0 mtu 1350",
    "bridge": "ip link add name up0 type bridge; ip link set eth0 master up0",
    "vlan-on-macvlan": "ip link add link eth0 name up0 type macvlan; ip link add link up0 name up1 type vlan id 6",
}


def create_upper_device(machine: Lab, kind: str) -> bool:
    """Create the device with its own IPv6 MTU; return False if this kernel lacks the kind."""
    try:
        machine.run("sh", "-ec", KINDS[kind])
    except subprocess.CalledProcessError as error:
        if "Unknown device type" not in error.stderr:
            raise
        return False
    machine.run("ip", "link", "set", "up0", "up")
    if HAS_IPV6:
        ipv6 = "ip addr add fd00:50::1/64 dev up0 nodad; echo 1300 > /proc/sys/net/ipv6/conf/up0/mtu"
        machine.run("sh", "-ec", ipv6)
    return True


def mtus(machine: Lab) -> dict[str, int]:
    return {str(link["ifname"]): int(link["mtu"]) for link in json.loads(machine.run("ip", "-j", "link", "show"))}


def test_mtu_of_upper_devices_is_restored(tmp_path: Path) -> None:
    tested = []
    for kind in ("vlan-on-macvlan",) if inside_uml.INSIDE else KINDS:
        with lab(tmp_path / kind) as machine:
            if create_upper_device(machine, kind):
                tested.append(kind)
                check_restored(machine)
    if not tested:
        pytest.skip(f"this kernel has none of {', '.join(KINDS)}")


def check_restored(machine: Lab) -> None:
    before = mtus(machine)
    ipv6 = "cat /proc/sys/net/ipv6/conf/up0/mtu" if HAS_IPV6 else "true"
    ipv6_before = machine.run("sh", "-c", ipv6)
    with machine.shaped("mtu"):
        assert mtus(machine)["eth0"] == 1400
        assert max(mtu for name, mtu in mtus(machine).items() if name.startswith("up")) == 1400
        assert before["up0"] != 1400
    assert machine.leftovers() == []
    assert mtus(machine) == before
    assert machine.run("sh", "-c", ipv6) == ipv6_before


def test_upper_device_in_another_namespace_is_refused(
    machine: Lab,
) -> None:
    if not create_upper_device(machine, "macvlan"):
        pytest.skip("this kernel has no macvlan")
    server_pid = machine.server[2]
    machine.run("ip", "link", "set", "up0", "netns", server_pid)
    status, _, errors = machine.run_driver("tool", "-1", "-1", "mtu")
    assert status == 2
    assert "up0 in another network namespace is above it" in errors
    assert mtus(machine)["eth0"] == 1500
    with machine.shaped("route"):
        pass
