from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from interface_lab import Lab, lab

pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("state")) as opened:
        opened.run("ip", "addr", "add", "198.18.41.1/24", "dev", "eth1")
        yield opened


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
