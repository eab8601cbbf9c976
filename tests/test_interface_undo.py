from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from interface_lab import Lab, holder, lab

pytestmark = pytest.mark.netns

# Two names change places, as udev and network managers do it.
SWAP = "ip link set eth0 name lan0; ip link set eth1 name eth0; ip link set lan0 name eth1; ip link set eth1 up"
OTHERS = "tc qdisc add dev eth0 clsact; tc filter add dev eth0 egress protocol ip prio 9 u32 match u32 0 0 flowid 9:9"
AT_ADDING = "clsact: noted"


def mtu(place: Lab, device: str) -> int:
    return int(json.loads(place.run("ip", "-j", "link", "show", "dev", device))[0]["mtu"])


def only_the_filters_of_others_stand(place: Lab, before: str) -> None:
    """`OTHERS` are there still; without them all is as it was."""
    place.wait_until_free()
    assert "pref 9 " in place.run("tc", "filter", "show", "dev", "eth0", "egress")
    place.run("tc", "qdisc", "del", "dev", "eth0", "clsact")
    place.is_put_back(before)


@pytest.mark.parametrize("variant", ["mtu", "route"])
def test_an_interface_that_was_renamed_is_put_back_and_the_one_with_its_old_name_is_left_alone(
    tmp_path: Path, variant: str
) -> None:
    with lab(tmp_path / "state") as place:
        # An interface must be down to be renamed where the kernel is older than 6.3; then its routes are gone.
        place.run("sh", "-ec", "ip link set eth1 down")
        before = place.snapshot()
        with place.shaped(variant):
            place.run("sh", "-ec", SWAP)
            # The other one has by chance what the session gave to the first.
            place.run("sh", "-ec", "ip link set eth0 mtu 1400; tc qdisc add dev eth0 clsact")
        place.wait_until_free()
        assert place.leftovers() == []
        assert mtu(place, "eth0") == 1400
        assert "clsact" in place.run("tc", "qdisc", "show", "dev", "eth0")
        place.run("sh", "-ec", "tc qdisc del dev eth0 clsact; ip link set eth0 mtu 1500")
        place.run("sh", "-ec", SWAP.replace("; ip link set eth1 up", ""))
        place.run("ip", "link", "set", "eth1", "down")
        assert place.snapshot() == before


def test_a_clsact_that_appears_just_before_ours_is_left_alone_and_so_is_what_it_filters(tmp_path: Path) -> None:
    with lab(tmp_path / "state") as place:
        before = place.snapshot()
        status, _, errors = place.driven("tool", "-1", "-1", "mtu", DRIVER_AT=AT_ADDING, DRIVER_RUNS=OTHERS)
        assert status == 3
        assert "Exclusivity flag on" in errors
        only_the_filters_of_others_stand(place, before)


def test_a_clsact_that_stands_in_the_place_of_ours_hinders_no_undo_and_is_left_alone(tmp_path: Path) -> None:
    with lab(tmp_path / "state") as place:
        before = place.snapshot()
        with place.shaped("mtu"):
            place.run("sh", "-ec", f"tc qdisc del dev eth0 clsact; {OTHERS}")
        only_the_filters_of_others_stand(place, before)


def test_whoever_is_killed_between_noting_and_adding_undoes_nothing_of_another_program(tmp_path: Path) -> None:
    with lab(tmp_path / "state") as place:
        before = place.snapshot()
        killing = f"{OTHERS}; kill -9 $PPID"
        status, _, errors = place.driven("tool", "-1", "-1", "plain", DRIVER_AT=AT_ADDING, DRIVER_RUNS=killing)
        assert status == -signal.SIGKILL, errors
        only_the_filters_of_others_stand(place, before)


def test_interface_moved_to_another_namespace_is_put_back_there(tmp_path: Path) -> None:
    with lab(tmp_path / "state") as place, holder((*place.client, "unshare", "--net")) as pid:
        there = replace(place, client=("nsenter", "--target", str(pid), "--net", "--"))
        before = sizes(place, "eth0")
        with place.shaped("mtu"):
            assert sizes(place, "eth0") != before
            place.run("sh", "-ec", f"ip link set eth0 down; ip link set eth0 netns {pid}")
            there.run("ip", "link", "set", "eth0", "name", "moved0")
            assert mtu(there, "moved0") == 1400
        place.wait_until_free()
        assert place.leftovers() == []
        assert sizes(there, "moved0") == before


def test_interface_that_several_namespaces_seem_to_have_is_put_back_in_none(tmp_path: Path) -> None:
    address = "02:aa:00:00:00:01"
    asks = f"from ingest_bench.ledger import namespaces as n; print(n.interface_elsewhere(4077, '{address}'))"
    with lab(tmp_path / "state") as place, holder((*place.client, "unshare", "--net")) as pid:
        there = replace(place, client=("nsenter", "--target", str(pid), "--net", "--"))
        for one, answer in ((place, "'d0'"), (there, "one with its number and address")):
            one.run("ip", "link", "add", "name", "d0", "index", "4077", "address", address, "type", "veth")
            assert answer in place.run("sh", "-c", '"$0" -c "$1" 2>&1 || true', sys.executable, asks)


def sizes(place: Lab, device: str) -> dict[str, int]:
    link = json.loads(place.run("ip", "-j", "-d", "link", "show", "dev", device))[0]
    return {name: value for name, value in link.items() if name == "mtu" or name.startswith(("gso_", "gro_"))}


def test_our_own_devices_are_removed_under_any_name(tmp_path: Path) -> None:
    with lab(tmp_path / "state") as place:
        before = place.snapshot()
        with place.shaped("plain"):
            for number, device in enumerate(place.ifbs()):
                place.run("sh", "-ec", f"ip link set {device} down; ip link set {device} name strange{number}")
        place.wait_until_free()
        assert place.snapshot() == before


def test_a_new_interface_that_got_the_number_of_one_that_is_gone_keeps_what_it_has(tmp_path: Path) -> None:
    with lab(tmp_path / "state") as place:
        index = place.index("eth0")
        made = f"ip link add eth0 index {index} mtu 1300 type veth peer name eth9; tc qdisc add dev eth0 clsact"
        with place.shaped("mtu"):
            place.run("sh", "-ec", f"ip link del eth0; {made}")
        place.wait_until_free()
        assert place.leftovers() == []
        assert place.index("eth0") == index
        assert mtu(place, "eth0") == 1300
        assert "clsact" in place.run("tc", "qdisc", "show", "dev", "eth0")
        assert place.ifbs() == []


def test_what_somebody_else_changed_meanwhile_stays(tmp_path: Path) -> None:
    with lab(tmp_path / "state") as place:
        with place.shaped("mtu"):
            place.run("ip", "link", "set", "dev", "eth0", "mtu", "1450")
        place.wait_until_free()
        assert place.leftovers() == []
        assert mtu(place, "eth0") == 1450


@pytest.mark.parametrize("theirs", ["mq", "tbf rate 400mbit burst 200k latency 100ms"])
def test_queues_of_the_interface_that_somebody_changes_meanwhile_are_told_of_and_stay(
    tmp_path: Path, theirs: str
) -> None:
    with lab(tmp_path / "state") as place:
        put = f"tc qdisc add dev eth0 root handle 77: {theirs}"
        place.run("sh", "-ec", put)
        with_theirs = place.snapshot()
        place.run("tc", "qdisc", "del", "dev", "eth0", "root")
        status, _, errors = place.driven("tool", "-1", "-1", "plain", DRIVER_AT=AT_ADDING, DRIVER_RUNS=put)
        assert status == 3
        assert "eth0: it had the queues [" in errors
        assert "; somebody changed them" in errors
        place.is_put_back(with_theirs)
        # Those that were there before are no reason.
        with place.shaped("plain"):
            assert f"{theirs.split(maxsplit=1)[0]} 77: root" in place.run("tc", "qdisc", "show", "dev", "eth0")
        place.wait_until_free()
        place.is_put_back(with_theirs)
