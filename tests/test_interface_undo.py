from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace

import pytest
from interface_lab import Lab, holder

pytestmark = pytest.mark.netns

# Swap two names, as udev and network managers do.
SWAP = "ip link set eth0 name lan0; ip link set eth1 name eth0; ip link set lan0 name eth1; ip link set eth1 up"
FOREIGN_FILTERS = (
    "tc qdisc add dev eth0 clsact; tc filter add dev eth0 egress protocol ip prio 9 u32 match u32 0 0 flowid 9:9"
)
AT_ADDING = "clsact: noted"


def mtu(machine: Lab, device: str) -> int:
    return int(json.loads(machine.run("ip", "-j", "link", "show", "dev", device))[0]["mtu"])


def assert_foreign_filters_remain(machine: Lab, before: str) -> None:
    """Assert that only `FOREIGN_FILTERS` remain."""
    machine.wait_until_free()
    assert "pref 9 " in machine.run("tc", "filter", "show", "dev", "eth0", "egress")
    machine.run("tc", "qdisc", "del", "dev", "eth0", "clsact")
    machine.assert_restored(before)


@pytest.mark.parametrize("variant", ["mtu", "route"])
def test_renamed_interface_is_restored_and_its_namesake_is_unchanged(machine: Lab, variant: str) -> None:
    # Before Linux 6.3 an interface must be down to be renamed, which removes its routes.
    machine.run("sh", "-ec", "ip link set eth1 down")
    before = machine.snapshot()
    with machine.shaped(variant):
        machine.run("sh", "-ec", SWAP)
        # The other interface has the same values that the session set on the first.
        machine.run("sh", "-ec", "ip link set eth0 mtu 1400; tc qdisc add dev eth0 clsact")
    assert machine.leftovers() == []
    assert mtu(machine, "eth0") == 1400
    assert "clsact" in machine.run("tc", "qdisc", "show", "dev", "eth0")
    machine.run("sh", "-ec", "tc qdisc del dev eth0 clsact; ip link set eth0 mtu 1500")
    machine.run("sh", "-ec", SWAP.replace("; ip link set eth1 up", ""))
    machine.run("ip", "link", "set", "eth1", "down")
    assert machine.snapshot() == before


@pytest.mark.parametrize("is_killed", [False, True])
def test_clsact_that_appears_just_before_ours_is_kept(machine: Lab, *, is_killed: bool) -> None:
    runs = f"{FOREIGN_FILTERS}; kill -9 $PPID" if is_killed else FOREIGN_FILTERS
    before = machine.snapshot()
    status, _, errors = machine.run_driver("tool", "-1", "-1", "mtu", DRIVER_AT=AT_ADDING, DRIVER_RUNS=runs)
    assert status == (-signal.SIGKILL if is_killed else 3), errors
    assert ("Exclusivity flag on" in errors) == (not is_killed)
    assert_foreign_filters_remain(machine, before)


def test_values_and_clsact_of_another_program_are_kept(machine: Lab) -> None:
    before = machine.snapshot()
    with machine.shaped("mtu"):
        machine.run("ip", "link", "set", "dev", "eth0", "mtu", "1450")
        machine.run("sh", "-ec", f"tc qdisc del dev eth0 clsact; {FOREIGN_FILTERS}")
    assert machine.leftovers() == []
    assert mtu(machine, "eth0") == 1450
    machine.run("ip", "link", "set", "dev", "eth0", "mtu", "1500")
    assert_foreign_filters_remain(machine, before)


def test_interface_moved_to_another_namespace_is_restored_there(machine: Lab) -> None:
    with holder((*machine.client, "unshare", "--net")) as pid:
        other = replace(machine, client=("nsenter", "--target", str(pid), "--net", "--"))
        before = sizes(machine, "eth0")
        with machine.shaped("mtu"):
            assert sizes(machine, "eth0") != before
            machine.run("sh", "-ec", f"ip link set eth0 down; ip link set eth0 netns {pid}")
            other.run("ip", "link", "set", "eth0", "name", "moved0")
            assert mtu(other, "moved0") == 1400
        assert machine.leftovers() == []
        assert sizes(other, "moved0") == before


def test_interface_that_several_namespaces_have_is_not_restored(machine: Lab) -> None:
    address = "02:aa:00:00:00:01"
    code = f"from ingest_bench.ledger import namespaces as n; print(n.find_moved_interface(4077, '{address}'))"
    with holder((*machine.client, "unshare", "--net")) as pid:
        other = replace(machine, client=("nsenter", "--target", str(pid), "--net", "--"))
        for namespace, output in ((machine, "'d0'"), (other, "have one with its index and address")):
            namespace.run("ip", "link", "add", "name", "d0", "index", "4077", "address", address, "type", "veth")
            assert output in machine.run("sh", "-c", '"$0" -c "$1" 2>&1 || true', sys.executable, code)


def sizes(machine: Lab, device: str) -> dict[str, int]:
    link = json.loads(machine.run("ip", "-j", "-d", "link", "show", "dev", device))[0]
    return {name: value for name, value in link.items() if name == "mtu" or name.startswith(("gso_", "gro_"))}


def test_renamed_ifb_devices_are_removed(machine: Lab) -> None:
    before = machine.snapshot()
    with machine.shaped("plain"):
        for number, device in enumerate(machine.ifbs()):
            machine.run("sh", "-ec", f"ip link set {device} down; ip link set {device} name strange{number}")
    machine.assert_restored(before)


def test_new_interface_with_a_removed_ones_index_is_unchanged(machine: Lab) -> None:
    index = machine.index("eth0")
    recreate = f"ip link add eth0 index {index} mtu 1300 type veth peer name eth9; tc qdisc add dev eth0 clsact"
    with machine.shaped("mtu"):
        machine.run("sh", "-ec", f"ip link del eth0; {recreate}")
    assert machine.leftovers() == []
    assert machine.index("eth0") == index
    assert mtu(machine, "eth0") == 1300
    assert "clsact" in machine.run("tc", "qdisc", "show", "dev", "eth0")
    assert machine.ifbs() == []


@pytest.mark.parametrize("qdisc", ["mq", "tbf rate 400mbit burst 200k latency 100ms"])
def test_queues_changed_by_another_program_are_reported_and_kept(machine: Lab, qdisc: str) -> None:
    add = f"tc qdisc add dev eth0 root handle 77: {qdisc}"
    machine.run("sh", "-ec", add)
    with_qdisc = machine.snapshot()
    machine.run("tc", "qdisc", "del", "dev", "eth0", "root")
    status, _, errors = machine.run_driver("tool", "-1", "-1", "plain", DRIVER_AT=AT_ADDING, DRIVER_RUNS=add)
    assert status == 3
    assert "eth0: another program changed its queues from [" in errors
    machine.assert_restored(with_qdisc)
    # Earlier changes are accepted.
    with machine.shaped("plain"):
        assert f"{qdisc.split(maxsplit=1)[0]} 77: root" in machine.run("tc", "qdisc", "show", "dev", "eth0")
    machine.assert_restored(with_qdisc)
