from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from interface_lab import Lab, lab

pytestmark = pytest.mark.netns

RMEM = "/proc/sys/net/ipv4/tcp_rmem"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("state")) as made:
        made.run("ip", "addr", "add", "198.18.41.1/24", "dev", "eth1")
        yield made


@pytest.mark.nightly
def test_a_setting_that_two_interfaces_share_belongs_to_one_session_at_a_time(place: Lab, tmp_path: Path) -> None:
    before = place.snapshot()
    for other in (place, place.elsewhere(tmp_path / "other")):
        with place.shaped("buffers") as first:
            status, _, errors = other.driven("tool", "-1", "-1", "buffers", "eth1", "198.18.41.2")
            assert status == 3
            assert f"{RMEM}: in use by pid {first.pid}: buffers on eth0 to 198.18.40.2:9200" in errors
            # What it does not share it may shape.
            with other.shaped("plain", "eth1", "198.18.41.2"):
                pass
        place.is_put_back(before)
        assert other.leftovers() == []


def test_a_setting_that_a_killed_session_left_is_put_back_before_another_interface_changes_it(place: Lab) -> None:
    before = place.snapshot()
    place.killed_with_its_watchdog(0, "buffers")
    with place.shaped("buffers", "eth1", "198.18.41.2"):
        assert len(place.leftovers()) == 1
    assert place.driven("restore")[0] == 0
    assert place.snapshot() == before


def test_two_sessions_of_different_state_folders_on_one_interface_do_not_harm_each_other(
    place: Lab, tmp_path: Path
) -> None:
    other = place.elsewhere(tmp_path / "other")
    before = place.snapshot()
    with place.shaped("plain") as first:
        during = place.snapshot()
        status, _, errors = other.driven("tool", "-1", "-1", "plain")
        assert status == 3
        assert f"in use by pid {first.pid}: plain on eth0 to 198.18.40.2:9200" in errors
        assert place.snapshot() == during
    place.is_put_back(before)
    assert other.leftovers() == []
