from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from interface_lab import DRIVER, NEEDS_IPV6, PORT, SERVER, Lab, lab
from readied import ready

pytestmark = pytest.mark.netns

ECHO = Path(__file__).with_name("flow_echo.py")
OTHER_PORT, THIRD_PORT = 9300, 9400
SIZE = 1_500_000
# At the rate of the driver's profile: 8 Mbit/s in each direction.
SHAPED_S = SIZE * 8 / 8e6


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("state")) as opened:
        yield opened


@contextmanager
def echo(machine: Lab, address: str) -> Iterator[None]:
    argv = (*machine.server, sys.executable, str(ECHO), "serve", address, *map(str, (PORT, OTHER_PORT, THIRD_PORT)))
    with ready(argv):
        yield


def send(machine: Lab, address: str, port: int) -> dict[str, Any]:
    return dict(json.loads(machine.run(sys.executable, str(ECHO), "send", address, str(port), str(SIZE))))


def shaped_bytes(machine: Lab, device: str) -> int:
    """Return the bytes that passed the token bucket on a device."""
    listed = json.loads(machine.run("tc", "-s", "-j", "qdisc", "show", "dev", device))
    return sum(int(qdisc["bytes"]) for qdisc in listed if qdisc["kind"] == "tbf")


@pytest.mark.measures
@pytest.mark.parametrize(
    ("variant", "address"), [("plain", SERVER), pytest.param("ipv6", "fd00:40::2", marks=NEEDS_IPV6)]
)
def test_only_the_named_flows_are_shaped_together_in_both_directions(machine: Lab, variant: str, address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    link = {"name": "eth0", "to": [f"{host}:{PORT},9390-9410"], "shared_settings": True}
    # The interface's own queue could not be restored: its handle, its rate, its packets.
    machine.run("sh", "-c", "tc qdisc replace dev eth0 root handle 77: tbf rate 400mbit burst 200k latency 100ms")
    before = machine.snapshot()
    with echo(machine, address), machine.shaped(variant, DRIVER_LINK=json.dumps(link)):
        entries = json.loads(machine.run("tc", "-j", "qdisc", "show", "dev", "eth0"))
        flows = [send(machine, address, PORT), send(machine, address, THIRD_PORT)]
        to_client, to_server = machine.ifbs()
        sent, returned = shaped_bytes(machine, to_server), shaped_bytes(machine, to_client)
        others = [send(machine, address, OTHER_PORT) for _ in range(3)]
        sent_later = shaped_bytes(machine, to_server) - sent
        returned_later = shaped_bytes(machine, to_client) - returned
        own = shaped_bytes(machine, "eth0")
    machine.assert_restored(before)
    machine.run("tc", "qdisc", "del", "dev", "eth0", "root")
    assert [(qdisc["kind"], qdisc["handle"]) for qdisc in entries] == [("tbf", "77:"), ("clsact", "ffff:")]
    # Each byte of all transfers passed the interface's queue.
    assert own > 5 * SIZE
    # The counters tell exactly which packets were shaped; the times only confirm it.
    assert min(sent, returned) > 2 * SIZE
    # The last acknowledgement of the named flows may be late.
    assert max(sent_later, returned_later) < 1000
    for direction in ("there_s", "back_s"):
        assert min(flow[direction] for flow in flows) > 0.8 * SHAPED_S
        assert min(other[direction] for other in others) < 0.5 * SHAPED_S


@pytest.mark.measures
@pytest.mark.parametrize(
    ("to", "is_shaped"),
    [([], True), (["198.18.40.0/24"], True), (["198.18.40.1"], True), (["198.18.40.128/25"], False)],
)
def test_ingress_is_the_direction_to_the_server_on_its_machine(machine: Lab, to: list[str], is_shaped: bool) -> None:
    server = machine.swap_ends()
    before = server.snapshot()
    link = {"name": "eth0", "port": str(PORT), "to": to}
    with echo(machine, SERVER), server.shaped("uphill", DRIVER_LINK=json.dumps(link)):
        flow, other = send(machine, SERVER, PORT), send(machine, SERVER, OTHER_PORT)
        (ingress,) = server.ifbs()
        shaped = shaped_bytes(server, ingress)
    if is_shaped:
        assert SIZE < shaped < 1.2 * SIZE
        assert flow["there_s"] > 0.8 * SHAPED_S
    else:
        assert shaped == 0
        assert flow["there_s"] < 0.5 * SHAPED_S
    assert max(flow["back_s"], other["there_s"], other["back_s"]) < 0.5 * SHAPED_S
    server.assert_restored(before)


def test_route_sets_and_restores_mss_and_congestion_control(machine: Lab) -> None:
    with echo(machine, SERVER):
        before = send(machine, SERVER, OTHER_PORT)
        with machine.shaped("route"):
            during = send(machine, SERVER, OTHER_PORT)
        after = send(machine, SERVER, OTHER_PORT)
    # TCP_MAXSEG is the MSS, minus 12 bytes if timestamps are enabled.
    assert before["mss"] in (1460, 1448)
    assert during["mss"] in (1360, 1348)
    assert during["congestion"] == "reno"
    assert (after["mss"], after["congestion"]) == (before["mss"], before["congestion"])


@pytest.mark.parametrize(
    ("occupy", "release", "reason"),
    [
        ("tc qdisc add dev eth0 ingress", "tc qdisc del dev eth0 ingress", "another program's filters"),
        ("ip link add if{index} type ifb", "ip link del if{index}", "Rename that one first"),
        ("ip route add default via 198.18.40.2", "ip route del default", "--allow-default-route"),
    ],
)
def test_interface_in_other_use_is_refused_and_unchanged(machine: Lab, occupy: str, release: str, reason: str) -> None:
    index = machine.index("eth0")
    machine.run(*occupy.format(index=index).split())
    try:
        before = machine.snapshot()
        status, _, errors = machine.run_driver("tool", "-1", "-1", "route")
        assert status == 2
        assert reason in errors
        assert machine.snapshot() == before
        assert machine.leftovers() == []
    finally:
        machine.run(*release.format(index=index).split())


def test_ssh_connection_of_an_ancestor_is_protected(machine: Lab) -> None:
    # As with sudo: `sh` has the variable, and the tool has not.
    variable = f"SSH_CONNECTION={SERVER} {PORT} 198.18.40.1 22"
    script = ("env", variable, "sh", "-c", 'env -u SSH_CONNECTION "$@"; exit $?', "sh")
    argv = (*machine.client, *script, sys.executable, str(DRIVER), "tool", "-1", "-1", "plain")
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=machine.env, timeout=60, input="\n")
    assert done.returncode == 2, done
    assert "is among the connections to shape" in done.stderr
