from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from interface_lab import NEEDS_IPV6, SERVER, Lab

pytestmark = pytest.mark.netns

# Commands that add a route, and the host's address. No packet is sent: the kernel's choice is read.
ROUTES = {
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
CASES = [pytest.param(*case, marks=NEEDS_IPV6 if "IPv6" in name else (), id=name) for name, case in ROUTES.items()]


def get_route(machine: Lab, address: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the route that packets take, and its TCP options."""
    route = json.loads(machine.run("ip", "-j", "route", "get", address))[0]
    return route, {name: value for entry in route.pop("metrics", []) for name, value in entry.items()}


@pytest.mark.parametrize(("script", "address"), CASES)
def test_route_keeps_everything_that_the_profile_does_not_set(machine: Lab, script: str, address: str) -> None:
    machine.run("sh", "-ec", script)
    before, (route, options) = machine.snapshot(), get_route(machine, address)
    with machine.shaped("small", "eth0", address):
        route_during, options_during = get_route(machine, address)
        for key in ("gateway", "via", "dev", "prefsrc", "table"):
            assert route_during.get(key) == route.get(key)
        assert options_during == {**options, "mtu": 1400, "advmss": 1340 if ":" in address else 1360}
    machine.assert_restored(before)


@pytest.mark.parametrize(("script", "address"), CASES[4:])
@pytest.mark.parametrize("stage", ["route: noted", "route: done"])
def test_kill_around_the_route_step_restores_the_routes(machine: Lab, script: str, address: str, stage: str) -> None:
    machine.run("sh", "-ec", script)
    before = machine.snapshot()
    words = ("tool", "-1", "-1", "small", "eth0", address)
    status, _, errors = machine.run_driver(*words, DRIVER_AT=stage, DRIVER_RUNS="kill -9 $PPID")
    assert status == -signal.SIGKILL, errors
    machine.assert_restored(before)
