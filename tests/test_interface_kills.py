from __future__ import annotations

import signal
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


def list_stages(machine: Lab, variant: str) -> list[str]:
    process = machine.drive("tool", "-1", "-1", variant)
    output, errors = process.communicate("\n", timeout=120)
    assert process.returncode == 0, errors
    return output.splitlines()


@pytest.mark.parametrize("variant", ["route", "mtu", pytest.param("ipv6", marks=NEEDS_IPV6)])
def test_session_restores_everything_at_its_end(machine: Lab, variant: str) -> None:
    before = machine.snapshot()
    process = machine.running("-1", "-1", variant)
    during = machine.snapshot()
    assert during != before
    output, errors = process.communicate("\n", timeout=120)
    assert process.returncode == 0, errors
    machine.assert_restored(before, output)


@pytest.mark.nightly
@pytest.mark.parametrize("variant", ["route", "mtu"])
def test_kill_at_any_stage_is_undone(machine: Lab, variant: str) -> None:
    stages = list_stages(machine, variant)
    assert len(stages) >= 12
    before = machine.snapshot()
    for number, stage in enumerate(stages):
        status, output, errors = machine.run_driver("tool", str(number), "-1", variant)
        assert (status, output.splitlines()[-1]) == (-signal.SIGKILL, stage), errors
        machine.assert_restored(before, f"killed at: {stage}")


@pytest.mark.nightly
def test_tool_undoes_if_its_watchdog_is_killed(machine: Lab) -> None:
    before = machine.snapshot()
    undos = 2 + 2 * len([stage for stage in list_stages(machine, "route") if stage.endswith("noted")])
    for number in range(0, undos, 3):
        process = machine.drive("tool", "-1", str(number), "route")
        _, errors = process.communicate("\n", timeout=120)
        assert process.returncode == 0, errors
        machine.assert_restored(before, f"watchdog killed at stage {number}")


@pytest.mark.nightly
def test_restore_undoes_after_tool_and_watchdog_were_killed(machine: Lab) -> None:
    before = machine.snapshot()
    for number in (2, 7, 14):
        machine.leave_behind(number, "route")
        assert machine.snapshot() != before
        status, output, _ = machine.run_driver("show")
        assert "is_watched=False" in output
        status, output, errors = machine.run_driver("restore")
        assert status == 0, errors
        assert "ip link" in output or "tc qdisc del" in output
        machine.assert_restored(before, f"watchdog killed at stage {number}, then restored")


def test_leftovers_are_undone_before_the_next_session(machine: Lab) -> None:
    before = machine.snapshot()
    machine.leave_behind(0, "route")
    list_stages(machine, "plain")
    machine.assert_restored(before, "after the second session")


def test_time_limit_undoes_while_the_tool_is_running(machine: Lab) -> None:
    before = machine.snapshot()
    process = machine.drive("tool", "-1", "-1", "plain-1.5")
    wait_until_undone(machine)
    assert machine.snapshot() == before
    _, errors = process.communicate("\n", timeout=120)
    assert process.returncode == 3
    assert "time limit of 1.5 s expired" in errors
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
