from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from interface_lab import HAS_IPV6, NEEDS_IPV6, SERVER, Lab, lab

pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("state")) as made:
        # What must come back too: the MTU of what stands on the interface, and a route to the host alone.
        made.run("sh", "-c", "ip link add link eth0 name up0 mtu 1450 type macvlan")
        made.run("sh", "-c", f"ip route add {SERVER} dev eth0 metric 5 mtu 1490 initcwnd 20")
        if HAS_IPV6:
            made.run("sh", "-c", "ip -6 route add fd00:40::2 dev eth0 metric 5")
        yield made


def stages_of_the_tool(place: Lab, variant: str) -> list[str]:
    process = place.drive("tool", "-1", "-1", variant)
    out, errors = process.communicate("\n", timeout=120)
    assert process.returncode == 0, errors
    return out.splitlines()


@pytest.mark.parametrize("variant", ["route", "mtu", pytest.param("ipv6", marks=NEEDS_IPV6)])
def test_a_session_that_ends_by_itself_leaves_everything_as_it_was(place: Lab, variant: str) -> None:
    before = place.snapshot()
    process = place.running("-1", "-1", variant)
    during = place.snapshot()
    assert during != before
    out, errors = process.communicate("\n", timeout=120)
    assert process.returncode == 0, errors
    place.is_put_back(before, out)


@pytest.mark.nightly
@pytest.mark.parametrize("variant", ["route", "mtu"])
def test_a_kill_at_any_stage_of_applying_running_and_undoing_leaves_nothing(place: Lab, variant: str) -> None:
    stages = stages_of_the_tool(place, variant)
    assert len(stages) >= 12
    before = place.snapshot()
    for number, stage in enumerate(stages):
        status, out, errors = place.driven("tool", str(number), "-1", variant)
        assert (status, out.splitlines()[-1]) == (-signal.SIGKILL, stage), errors
        place.is_put_back(before, f"killed at: {stage}")


@pytest.mark.nightly
def test_a_watchdog_killed_at_any_stage_of_undoing_is_stood_in_for_by_the_tool(place: Lab) -> None:
    before = place.snapshot()
    undos = 2 + 2 * len([stage for stage in stages_of_the_tool(place, "route") if stage.endswith("noted")])
    for number in range(0, undos, 3):
        process = place.drive("tool", "-1", str(number), "route")
        _, errors = process.communicate("\n", timeout=120)
        assert process.returncode == 0, errors
        place.is_put_back(before, f"watchdog killed at stage {number}")


@pytest.mark.nightly
def test_when_tool_and_watchdog_are_both_killed_restore_puts_everything_back(place: Lab) -> None:
    before = place.snapshot()
    for number in (2, 7, 14):
        place.killed_with_its_watchdog(number, "route")
        assert place.snapshot() != before
        status, shown, _ = place.driven("show")
        assert "alive=False" in shown
        status, out, errors = place.driven("restore")
        assert status == 0, errors
        assert "ip link" in out or "tc qdisc del" in out
        place.is_put_back(before, f"watchdog killed at stage {number}, then restored")


def test_what_an_earlier_session_left_behind_is_put_back_before_the_next_one_begins(place: Lab) -> None:
    before = place.snapshot()
    place.killed_with_its_watchdog(0, "route")
    stages_of_the_tool(place, "plain")
    place.is_put_back(before, "after the second session")


def test_the_time_limit_puts_everything_back_while_the_tool_lives(place: Lab) -> None:
    before = place.snapshot()
    process = place.drive("tool", "-1", "-1", "plain-1.5")
    place_is_free_of_ledgers(place)
    assert place.snapshot() == before
    _, errors = process.communicate("\n", timeout=120)
    assert process.returncode == 3
    assert "time limit of 1.5 s was over" in errors
    place.is_put_back(before, "after the time limit")


def place_is_free_of_ledgers(place: Lab) -> None:
    limit = time.monotonic() + 90
    seen = False
    while not seen or place.leftovers():
        seen = seen or bool(place.leftovers())
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_second_user_of_the_same_interface_is_refused(place: Lab) -> None:
    before = place.snapshot()
    process = place.running("-1", "-1", "plain")
    status, _, errors = place.driven("tool", "-1", "-1", "plain")
    assert status == 3
    assert "in use by pid" in errors
    assert "plain on eth0 to 198.18.40.2:9200" in errors
    process.communicate("\n", timeout=120)
    place.is_put_back(before, "after both")


def test_an_interface_that_vanishes_meanwhile_is_nothing_to_undo(tmp_path: Path) -> None:
    with lab(tmp_path / "state") as own:
        process = own.running("-1", "-1", "route")
        own.run("ip", "link", "del", "eth0")
        _, errors = process.communicate("\n", timeout=120)
        assert process.returncode == 0, errors
        own.wait_until_free()
        assert own.leftovers() == []
        assert "ibench" not in own.run("ip", "link", "show")
