from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from interface_lab import NEEDS_IPV6, PORT, SERVER, Lab, lab
from readied import ready

pytestmark = pytest.mark.netns

ECHO = Path(__file__).with_name("flow_echo.py")
OTHER_PORT, THIRD_PORT = 9300, 9400
SIZE = 1_500_000
# The driver's profile: 8 Mbit/s each way.
SHAPED_S = SIZE * 8 / 8e6


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("state")) as made:
        yield made


@contextmanager
def echo(place: Lab, address: str) -> Iterator[None]:
    argv = (*place.server, sys.executable, str(ECHO), "serve", address, *map(str, (PORT, OTHER_PORT, THIRD_PORT)))
    with ready(argv):
        yield


def send(place: Lab, address: str, port: int) -> dict[str, Any]:
    return dict(json.loads(place.run(sys.executable, str(ECHO), "send", address, str(port), str(SIZE))))


def bytes_through(place: Lab, device: str) -> int:
    """Bytes that passed the token bucket on a device."""
    listed = json.loads(place.run("tc", "-s", "-j", "qdisc", "show", "dev", device))
    return sum(int(qdisc["bytes"]) for qdisc in listed if qdisc["kind"] == "tbf")


@pytest.mark.measures
@pytest.mark.parametrize(
    ("variant", "address"), [("plain", SERVER), pytest.param("ipv6", "fd00:40::2", marks=NEEDS_IPV6)]
)
def test_only_the_named_flow_is_shaped_in_both_directions(place: Lab, variant: str, address: str) -> None:
    with echo(place, address), place.shaped(variant):
        flow = send(place, address, PORT)
        to_client, to_server = place.ifbs()
        there, back = bytes_through(place, to_server), bytes_through(place, to_client)
        others = [send(place, address, OTHER_PORT) for _ in range(3)]
        there_more, back_more = bytes_through(place, to_server) - there, bytes_through(place, to_client) - back
    # The counters know exactly which packets were shaped; the clocks only confirm it.
    assert there > SIZE
    assert back > SIZE
    # The last acknowledgement of the named flow may be late.
    assert max(there_more, back_more) < 1000
    assert flow["there_s"] > 0.8 * SHAPED_S
    assert flow["back_s"] > 0.8 * SHAPED_S
    assert min(other["there_s"] for other in others) < 0.5 * SHAPED_S
    assert min(other["back_s"] for other in others) < 0.5 * SHAPED_S


@pytest.mark.measures
def test_everything_else_goes_through_the_queues_that_the_interface_has_also_beside_the_flow(place: Lab) -> None:
    # A queue that counts, and that nobody could put back as it was: its handle, its rate, what it holds.
    place.run("sh", "-c", "tc qdisc add dev eth0 root handle 77: tbf rate 400mbit burst 200k latency 100ms")
    try:
        before = place.snapshot()
        with echo(place, SERVER), place.shaped("plain"):
            to_client, to_server = place.ifbs()
            listed = json.loads(place.run("tc", "-j", "qdisc", "show", "dev", "eth0"))
            own_before = bytes_through(place, "eth0")
            argv = (*place.client, sys.executable, str(ECHO), "send", SERVER, str(PORT), str(SIZE))
            with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as flow:
                others = [send(place, SERVER, OTHER_PORT) for _ in range(3)]
                assert flow.poll() is None, "the flow was over too early to be beside the others"
                said, _ = flow.communicate(timeout=60)
            shaped, own = bytes_through(place, to_server), bytes_through(place, "eth0") - own_before
            back = bytes_through(place, to_client)
        assert [(qdisc["kind"], qdisc["handle"]) for qdisc in listed] == [("tbf", "77:"), ("clsact", "ffff:")]
        # Each byte of the flow passed its own queue once, and each byte of all of them the interface's.
        assert SIZE < shaped < 1.2 * SIZE
        assert SIZE < back < 1.2 * SIZE
        assert own > 4 * SIZE
        assert json.loads(said)["there_s"] > 0.8 * SHAPED_S
        assert min(other["there_s"] for other in others) < 0.2 * SHAPED_S
        assert min(other["back_s"] for other in others) < 0.2 * SHAPED_S
        place.wait_until_free()
        assert place.snapshot() == before
    finally:
        place.run("tc", "qdisc", "del", "dev", "eth0", "root")


@pytest.mark.nightly
@pytest.mark.measures
@pytest.mark.parametrize(
    "to",
    [
        [f"{SERVER}:{PORT}", f"{SERVER}:{THIRD_PORT}"],
        [f"198.18.40.0/24:{PORT},9390-9410"],
        ["0.0.0.0/0:9393-9500,9000-9250"],
    ],
)
def test_flows_that_are_given_together_share_one_queue_and_all_else_meets_none(place: Lab, to: list[str]) -> None:
    before = place.snapshot()
    with echo(place, SERVER), place.shaped("plain", DRIVER_LINK=json.dumps({"name": "eth0", "to": to})):
        to_client, to_server = place.ifbs()
        half = str(SIZE // 2)
        argv = (*place.client, sys.executable, str(ECHO), "send", SERVER)
        pipe = subprocess.PIPE
        with (
            subprocess.Popen((*argv, str(PORT), half), stdout=pipe, text=True) as first,
            subprocess.Popen((*argv, str(THIRD_PORT), half), stdout=pipe, text=True) as second,
        ):
            for process in (first, second):
                assert json.loads(process.communicate(timeout=60)[0])["back_s"]
        shaped = bytes_through(place, to_server), bytes_through(place, to_client)
        other = send(place, SERVER, OTHER_PORT)
        more = bytes_through(place, to_server) - shaped[0], bytes_through(place, to_client) - shaped[1]
    # Each direction's queue, which has one rate for all, had both flows whole, and of the other one nothing but late
    # acknowledgements.
    assert min(shaped) > SIZE
    assert max(more) < 1000
    assert other["there_s"] < 0.5 * SHAPED_S
    place.is_put_back(before)


@pytest.mark.measures
@pytest.mark.parametrize("to", [[], ["198.18.40.0/24"], ["198.18.40.1"]])
def test_at_the_servers_side_what_arrives_is_on_its_way_to_the_server(place: Lab, to: list[str]) -> None:
    here = place.from_the_server()
    before = here.snapshot()
    link = {"name": "eth0", "port": str(PORT), "to": to}
    with echo(place, SERVER), here.shaped("uphill", DRIVER_LINK=json.dumps(link)):
        flow, other = send(place, SERVER, PORT), send(place, SERVER, OTHER_PORT)
        (arriving,) = here.ifbs()
        shaped = bytes_through(here, arriving)
    assert SIZE < shaped < 1.2 * SIZE
    assert flow["there_s"] > 0.8 * SHAPED_S
    assert max(flow["back_s"], other["there_s"], other["back_s"]) < 0.5 * SHAPED_S
    here.is_put_back(before)


@pytest.mark.measures
def test_whose_connections_are_not_named_stay_as_they_are_at_the_servers_side(place: Lab) -> None:
    here = place.from_the_server()
    link = {"name": "eth0", "port": str(PORT), "to": ["198.18.40.128/25"]}
    with echo(place, SERVER), here.shaped("uphill", DRIVER_LINK=json.dumps(link)):
        assert send(place, SERVER, PORT)["there_s"] < 0.5 * SHAPED_S


def test_the_route_carries_mtu_mss_and_congestion_control_and_gives_them_back(place: Lab) -> None:
    with echo(place, SERVER):
        before = send(place, SERVER, OTHER_PORT)
        with place.shaped("route"):
            during = send(place, SERVER, OTHER_PORT)
        after = send(place, SERVER, OTHER_PORT)
    # TCP_MAXSEG is the MSS less the 12 bytes of timestamps, where they are on.
    assert before["mss"] in (1460, 1448)
    assert during["mss"] in (1360, 1348)
    assert during["congestion"] == "reno"
    assert (after["mss"], after["congestion"]) == (before["mss"], before["congestion"])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("spoil", "mend", "env", "reason"),
    [
        ("tc qdisc add dev eth0 ingress", "tc qdisc del dev eth0 ingress", {}, "SpecError.*filters of somebody else"),
        ("tc qdisc add dev eth0 clsact", "tc qdisc del dev eth0 clsact", {}, "SpecError.*filters of somebody else"),
        ("ip link add if{index} type ifb", "ip link del if{index}", {}, "SpecError.*rename that one first"),
        ("ip route add default via 198.18.40.2", "ip route del default", {}, "SpecError.*--allow-default-route"),
        ("true", "true", {"SSH_CONNECTION": "198.18.40.7 5022 198.18.40.1 22"}, "SpecError.*nobody can show"),
        ("true", "true", {"SSH_CONNECTION": "198.18.40.9 5022 192.0.2.1 22"}, "SpecError.*nobody can show"),
        ("true", "true", {"SSH_CONNECTION": "198.18.40.2 9200 198.18.40.1 22"}, "SpecError.*one of those that would"),
        ("true", "true", {"SSH_CONNECTION": "198.18.40.2 5022 198.18.40.1 22"}, "SpecError.*a route with it to"),
    ],
)
def test_an_interface_that_is_in_other_use_is_refused_and_not_touched(
    place: Lab, spoil: str, mend: str, env: dict[str, str], reason: str
) -> None:
    index = place.index("eth0")
    place.run(*spoil.format(index=index).split())
    try:
        before = place.snapshot()
        # As sudo does, the variable stays with an ancestor: `sh` has it, the tool does not.
        keep = ("env", *(f"{name}={value}" for name, value in env.items()), "sh", "-c")
        script = 'env -u SSH_CONNECTION "$@"; exit $?'
        argv = (*place.client, *keep, script, "sh", sys.executable, str(ECHO.with_name("interface_driver.py")))
        done = subprocess.run(
            (*argv, "tool", "-1", "-1", "route"),
            capture_output=True, text=True, timeout=60, check=False, env=place.env, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 2, done
        assert re.search(reason, done.stderr), done.stderr
        assert place.snapshot() == before
        assert place.leftovers() == []
    finally:
        place.run(*mend.format(index=index).split())


@pytest.mark.parametrize("limit", ["0", "inf", "nan"])
def test_a_session_without_a_time_limit_is_refused(place: Lab, limit: str) -> None:
    status, _, errors = place.driven("tool", "-1", "-1", f"plain-{limit}")
    assert status == 2
    assert "a time limit is needed" in errors
