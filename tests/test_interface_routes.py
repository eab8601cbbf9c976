from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interface_lab import NEEDS_IPV6, SERVER, Lab, lab

pytestmark = pytest.mark.netns

# How a host may be reached: what is set up, and the host's address. No packet is sent: the kernel's choice is read.
WAYS = {
    "gateway of IPv6": ("ip route add 198.18.50.0/24 via inet6 fd00:40::2 dev eth0", "198.18.50.2"),
    "gateway on no known network": ("ip route add 198.18.51.0/24 via 192.0.2.9 dev eth0 onlink", "198.18.51.2"),
    "metrics": (
        f"ip route add 198.18.52.0/24 via {SERVER} initcwnd 30 rto_min 50ms congctl reno features ecn",
        "198.18.52.2",
    ),
    "another table": (
        f"ip route add 198.18.53.0/24 via {SERVER} table 52; ip rule add pref 5000 table 52",
        "198.18.53.2",
    ),
    "host route": (f"ip route add 198.18.54.2 via {SERVER} proto static", "198.18.54.2"),
    "host route of IPv6": (
        "ip route add 198.18.56.2 via inet6 fd00:40::2 dev eth0; ip route add 198.18.56.2 dev eth0 metric 9",
        "198.18.56.2",
    ),
    "host routes with metrics": (
        f"ip route add 198.18.55.2 via {SERVER} metric 50 mtu lock 1450; ip route add 198.18.55.2 dev eth0 metric 7",
        "198.18.55.2",
    ),
    "IPv6 host route": ("ip -6 route add fd00:54::2 via fd00:40::2 dev eth0", "fd00:54::2"),
    "IPv6 host route with a metric": ("ip -6 route add fd00:55::2 via fd00:40::2 dev eth0 metric 2", "fd00:55::2"),
}
CASES = [pytest.param(*way, marks=NEEDS_IPV6 if "IPv6" in name else (), id=name) for name, way in WAYS.items()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Lab]:
    with lab(tmp_path / "state") as made:
        yield made


def way_to(place: Lab, address: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The route that packets take, and what it says about TCP."""
    way = json.loads(place.run("ip", "-j", "route", "get", address))[0]
    return way, {name: value for entry in way.pop("metrics", []) for name, value in entry.items()}


@pytest.mark.parametrize(("script", "address"), CASES)
def test_the_way_to_the_host_stays_as_it_is_but_for_what_the_profile_names(
    place: Lab, script: str, address: str
) -> None:
    place.run("sh", "-ec", script)
    before, (way, said) = place.snapshot(), way_to(place, address)
    with place.shaped("small", "eth0", address):
        way_during, said_during = way_to(place, address)
        for key in ("gateway", "via", "dev", "prefsrc", "table"):
            assert way_during.get(key) == way.get(key)
        assert said_during == {**said, "mtu": 1400, "advmss": 1340 if ":" in address else 1360}
    place.wait_until_free()
    assert place.leftovers() == []
    assert place.snapshot() == before


@pytest.mark.parametrize(("script", "address"), CASES[4:])
@pytest.mark.parametrize("stage", ["route: noted", "route: done"])
def test_whoever_is_killed_around_the_route_leaves_the_routes_that_were_there(
    place: Lab, script: str, address: str, stage: str
) -> None:
    place.run("sh", "-ec", script)
    before = place.snapshot()
    words = ("tool", "-1", "-1", "small", "eth0", address)
    status, _, errors = place.driven(*words, DRIVER_AT=stage, DRIVER_RUNS="kill -9 $PPID")
    assert status == -signal.SIGKILL, errors
    place.wait_until_free()
    assert place.leftovers() == []
    assert place.snapshot() == before


@NEEDS_IPV6
def test_a_route_that_no_other_can_go_before_is_refused(place: Lab) -> None:
    place.run("sh", "-ec", "ip -6 route add fd00:56::2 via fd00:40::2 dev eth0 metric 1")
    before = place.snapshot()
    status, _, errors = place.driven("tool", "-1", "-1", "small", "eth0", "fd00:56::2")
    assert status == 2
    assert "a route to fd00:56::2 alone with metric 1" in errors
    assert place.snapshot() == before


def test_a_profile_that_names_no_congestion_control_leaves_the_hosts(place: Lab) -> None:
    before = place.snapshot()
    for variant, has_route in (("plain", False), ("small", True)):
        with place.shaped(variant):
            assert ("proto 198" in place.run("ip", "route", "show", SERVER)) == has_route
            assert "congestion" not in way_to(place, SERVER)[1]
    place.wait_until_free()
    assert place.snapshot() == before
