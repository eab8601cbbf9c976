from __future__ import annotations

import time
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
        yield opened


@pytest.mark.parametrize("variant", ["route", "mtu", pytest.param("ipv6", marks=NEEDS_IPV6)])
def test_session_restores_everything_at_its_end(machine: Lab, variant: str) -> None:
    before = machine.snapshot()
    process = machine.running("-1", "-1", variant)
    during = machine.snapshot()
    assert during != before
    output, errors = process.communicate("\n", timeout=120)
    assert process.returncode == 0, errors
    machine.assert_restored(before, output)


def test_leftovers_are_undone_before_the_next_session(machine: Lab) -> None:
    before = machine.snapshot()
    machine.leave_behind(0, "route")
    with machine.shaped("plain"):
        pass
    machine.assert_restored(before, "after the second session")


def test_time_limit_undoes_while_the_tool_is_running(machine: Lab) -> None:
    before = machine.snapshot()
    process = machine.drive("tool", "-1", "-1", "plain-5")
    wait_until_undone(machine)
    assert machine.snapshot() == before
    _, errors = process.communicate("\n", timeout=120)
    assert process.returncode == 3
    assert "time limit of 5 s expired" in errors
    machine.assert_restored(before, "after the time limit")


def wait_until_undone(machine: Lab) -> None:
    limit = time.monotonic() + 90
    has_begun = False
    while not has_begun or machine.leftovers():
        has_begun = has_begun or bool(machine.leftovers())
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_removed_interface_needs_no_undo(tmp_path: Path) -> None:
    with lab(tmp_path / "state") as machine:
        process = machine.running("-1", "-1", "route")
        machine.run("ip", "link", "del", "eth0")
        _, errors = process.communicate("\n", timeout=120)
        assert process.returncode == 0, errors
        machine.wait_until_free()
        assert machine.leftovers() == []
        assert "ibench" not in machine.run("ip", "link", "show")
