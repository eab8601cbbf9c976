from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from interface_lab import HAS_IPV6, NEEDS_IPV6, SERVER, Lab, lab

pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("state")) as opened:
        # To be restored too: the MTU of an upper device, and a route to the host alone.
        opened.run("sh", "-c", "ip link add link eth0 name up0 mtu 1450 type macvlan")
        opened.run("sh", "-c", f"ip route add {SERVER} dev eth0 metric 5 mtu 1490 initcwnd 20")
        if HAS_IPV6:
            opened.run("sh", "-c", "ip -6 route add fd00:40::2 dev eth0 metric 5")
        opened.run("ip", "addr", "add", "198.18.41.1/24", "dev", "eth1")
        yield opened


@pytest.mark.parametrize("variant", ["route", "mtu", pytest.param("ipv6", marks=NEEDS_IPV6)])
def test_session_restores_everything_at_its_end(machine: Lab, variant: str) -> None:
    before = machine.snapshot()
    with machine.shaped(variant):
        assert machine.snapshot() != before
    machine.assert_restored(before)


def test_removed_interface_needs_no_undo(tmp_path: Path) -> None:
    with lab(tmp_path / "state") as machine:
        with machine.shaped("route"):
            machine.run("ip", "link", "del", "eth0")
        assert machine.leftovers() == []
        assert "ibench" not in machine.run("ip", "link", "show")


def test_shared_setting_left_behind_is_restored_before_the_next_change(machine: Lab) -> None:
    before = machine.snapshot()
    machine.leave_behind(0, "buffers")
    with machine.shaped("buffers", "eth1", "198.18.41.2"):
        assert len(machine.leftovers()) == 1
    assert machine.run_driver("restore")[0] == 0
    assert machine.snapshot() == before


@pytest.mark.parametrize(("ends", "resource"), [((), ""), (("eth1", "198.18.41.2"), "/proc/sys/net/ipv4/tcp_rmem: ")])
def test_sessions_with_different_state_folders_exclude_each_other(
    machine: Lab, tmp_path: Path, ends: tuple[str, ...], resource: str
) -> None:
    other = machine.with_state_folder(tmp_path / "other")
    before = machine.snapshot()
    with machine.shaped("buffers") as first:
        during = machine.snapshot()
        status, _, errors = other.run_driver("tool", "-1", "-1", "buffers", *ends)
        assert status == 3
        assert f"{resource}in use by pid {first.pid}: buffers on eth0 to 198.18.40.2:9200" in errors
        assert machine.snapshot() == during
    machine.assert_restored(before)
    assert other.leftovers() == []
