from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from interface_lab import Lab, lab

pytestmark = pytest.mark.netns

RMEM = "/proc/sys/net/ipv4/tcp_rmem"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("state")) as opened:
        opened.run("ip", "addr", "add", "198.18.41.1/24", "dev", "eth1")
        yield opened


@pytest.mark.nightly
def test_shared_setting_belongs_to_one_session_at_a_time(machine: Lab, tmp_path: Path) -> None:
    before = machine.snapshot()
    for other in (machine, machine.with_state_folder(tmp_path / "other")):
        with machine.shaped("buffers") as first:
            status, _, errors = other.run_driver("tool", "-1", "-1", "buffers", "eth1", "198.18.41.2")
            assert status == 3
            assert f"{RMEM}: in use by pid {first.pid}: buffers on eth0 to 198.18.40.2:9200" in errors
            # Other values may be changed.
            with other.shaped("plain", "eth1", "198.18.41.2"):
                pass
        machine.assert_restored(before)
        assert other.leftovers() == []


def test_shared_setting_left_behind_is_restored_before_the_next_change(machine: Lab) -> None:
    before = machine.snapshot()
    machine.leave_behind(0, "buffers")
    with machine.shaped("buffers", "eth1", "198.18.41.2"):
        assert len(machine.leftovers()) == 1
    assert machine.run_driver("restore")[0] == 0
    assert machine.snapshot() == before


def test_sessions_with_different_state_folders_exclude_each_other(machine: Lab, tmp_path: Path) -> None:
    other = machine.with_state_folder(tmp_path / "other")
    before = machine.snapshot()
    with machine.shaped("plain") as first:
        during = machine.snapshot()
        status, _, errors = other.run_driver("tool", "-1", "-1", "plain")
        assert status == 3
        assert f"in use by pid {first.pid}: plain on eth0 to 198.18.40.2:9200" in errors
        assert machine.snapshot() == during
    machine.assert_restored(before)
    assert other.leftovers() == []
