"""Links of our own, in real namespaces; the last test repeats this file as an ordinary user."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import ordinary_user
import pytest
from readied import ready

from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.experiment import catalog
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act.link import End, Link, link
from ingest_bench.network.act.sandbox import Namespace, sandbox
from ingest_bench.network.plan import commands, features

pytestmark = pytest.mark.netns

ASK = """
import json, socket, sys
listener = socket.create_server((sys.argv[1], 0))
client = socket.create_connection(listener.getsockname())
server, peer = listener.accept()
print(json.dumps({"mss": client.getsockopt(6, 2), "congestion": client.getsockopt(6, 13, 16).rstrip(b"\\0").decode(),
                  "server_mss": server.getsockopt(6, 2), "receive_buffer": server.getsockopt(1, 8), "peer": peer[0]}))
"""
ANSWER = """
import socket, sys
listener = socket.create_server((sys.argv[1], 9))
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    while block := connection.recv(65536):
        connection.sendall(block)
    connection.close()
"""
CALL = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 9), timeout=float(sys.argv[2]))
connection.sendall(b"x" * 20000)
got = 0
while got < 20000:
    got += len(connection.recv(65536))
congestion_control = connection.getsockopt(6, 13, 16).rstrip(b"\\0").decode()
print(connection.getsockopt(6, 2), congestion_control, connection.getsockname()[0])
"""


def details(place: Namespace, device: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.run(("ip", "-d", "-j", "link", "show", "dev", device)))[0]
    return found


def features_of(end: End) -> features.States:
    return features.answer(end.namespace.run(commands.offloads(end.device, {}))).after


def call(made: Link, timeout_s: float = 20) -> list[str]:
    """MSS, congestion control and own address of a client that got its bytes back."""
    argv = made.server.command((sys.executable, "-c", ANSWER, made.server_address))
    with ready(argv):
        argv = made.client.command((sys.executable, "-c", CALL, made.server_address, str(timeout_s)))
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_the_profile_is_what_the_devices_say() -> None:
    profile = Profile(
        name="x",
        mtu_bytes=1400,
        gso_max_segs=1,
        gso_max_size_bytes=19000,
        gro_max_size_bytes=32768,
        offloads={"tso": False, "gro": True, "tx-checksum": True},
        to_server=Impairment(rate_bps=10**8),
        to_client=Impairment(rate_bps=10**7),
    )
    with link(profile) as made:
        assert made.backend == "plain"
        for end, rate_bps in zip(made.ends, (10**8, 10**7), strict=True):
            found = details(end.namespace, end.device)
            assert {key: found[key] for key in ("mtu", "gso_max_segs", "gso_max_size", "gro_max_size")} == {
                "mtu": 1400,
                "gso_max_segs": 1,
                "gso_max_size": 19000,
                "gro_max_size": 32768,
            }
            qdiscs = json.loads(end.namespace.run(("tc", "-j", "qdisc", "show", "dev", end.device)))
            assert [(qdisc["kind"], qdisc["options"]["rate"] * 8) for qdisc in qdiscs] == [("tbf", rate_bps)]
            states = features_of(end)
            assert not states["tx-tcp-segmentation"].on
            assert not states["tx-tcp6-segmentation"].on
            assert states["rx-gro"].on


@pytest.mark.parametrize(
    ("mtu_bytes", "mss_bytes", "expected"), [(1500, None, 1448), (9000, None, 8948), (1500, 536, 524)]
)
def test_bytes_cross_the_link_with_the_mss_and_the_congestion_control_of_the_profile(
    mtu_bytes: int, mss_bytes: int | None, expected: int
) -> None:
    # 12 bytes of each segment are the timestamps option (RFC 7323).
    with link(Profile(name="x", mtu_bytes=mtu_bytes, mss_bytes=mss_bytes, congestion_control="reno")) as made:
        assert call(made) == [str(expected), "reno", made.client_address]


def test_both_ends_of_loopback_share_one_namespace_and_keep_their_addresses() -> None:
    with link(catalog.profile("loopback")) as made:
        assert made.client == made.server
        assert details(made.client, "lo")["mtu"] == 65536
        mss_bytes, *rest = call(made)
        # At first a segment is bounded by half of the window (net/ipv4/tcp.h, tcp_bound_to_half_wnd).
        assert 16384 < int(mss_bytes) <= 65483
        assert rest == [catalog.profile("loopback").link_congestion_control, made.client_address]


def test_the_sizes_of_socket_buffers_are_the_namespaces_own() -> None:
    with link(Profile(name="x", tcp_rmem_bytes=(4096, 16384, 65536))) as made:
        said = json.loads(made.server.run((sys.executable, "-c", ASK, made.server_address)))
        assert said["receive_buffer"] <= 65536
    with link(Profile(name="x")) as made:
        assert made.server.run(("sysctl", "-n", "net.ipv4.tcp_rmem")) != "4096\t16384\t65536\n"


def test_a_standing_link_can_be_changed() -> None:
    slow = Profile(name="slow", mtu_bytes=1200, gso_max_segs=1, to_server=Impairment(rate_bps=10**6))
    with link(catalog.profile("ethernet")) as made:
        made.change(slow)
        device = made.ends[0].device
        assert details(made.client, device)["mtu"] == 1200
        assert json.loads(made.client.run(("tc", "-j", "qdisc")))[-1]["options"]["rate"] * 8 == 10**6
        assert [qdisc["kind"] for qdisc in json.loads(made.server.run(("tc", "-j", "qdisc")))] == ["noqueue", "noqueue"]
        with pytest.raises(SpecError, match="cannot turn into loopback"):
            made.change(catalog.profile("loopback"))
        with pytest.raises(SpecError, match="needs netem"):
            made.change(Profile(name="far", to_server=Impairment(delay_ns=10**6)))


def test_a_link_that_is_changed_back_has_nothing_left_of_the_state_between() -> None:
    def everything(made: Link) -> list[str]:
        sysctls = ("sysctl", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem")
        shown = [("ip", "-d", "link"), ("ip", "route"), ("tc", "qdisc"), sysctls, ("ip", "neigh")]
        return [
            *(end.namespace.run(argv) for end in made.ends for argv in shown),
            *(str(features_of(end)) for end in made.ends),
        ]

    between = Profile(
        name="between",
        mtu_bytes=1000,
        gso_max_segs=1,
        gso_max_size_bytes=20_000,
        gro_max_size_bytes=20_000,
        offloads={"tso": False, "gro": True, "gso": True},
        congestion_control="reno",
        tcp_rmem_bytes=(4096, 16384, 65536),
        tcp_wmem_bytes=(4096, 16384, 65536),
        mss_bytes=600,
        to_client=Impairment(rate_bps=10**6),
    )
    with link(Profile(name="plain")) as made:
        before = everything(made)
        made.change(between)
        assert everything(made) != before
        made.change(replace(between, offloads={"tso": True, "gso": False}))
        made.change(Profile(name="plain"))
        assert everything(made) == before


def test_what_this_machine_does_not_take_is_a_missing_capability() -> None:
    with pytest.raises(MissingCapability, match="did not take"), link(Profile(name="x", tcp_rmem_bytes=(0, 0, 0))):
        pass


@pytest.mark.parametrize("direction", ["to-server", "to-client"])
def test_a_cut_direction_is_silent_and_a_mended_one_speaks(direction: Any) -> None:
    with link(catalog.profile("ethernet")) as made:
        made.cut(direction)
        with pytest.raises(subprocess.CalledProcessError) as failed:
            call(made, timeout_s=0.3)
        assert "timed out" in failed.value.stderr
        made.mend(direction)
        assert call(made)[0] == "1448"


def test_what_the_driver_fixes_is_a_missing_capability() -> None:
    with pytest.raises(MissingCapability, match="lro cannot be on"), link(Profile(name="x", offloads={"lro": True})):
        pass


def test_an_unknown_offload_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(SpecError, match='did you mean "tso"'), link(Profile(name="x", offloads={"tsoo": True})):
        pass


def test_an_unknown_congestion_control_is_a_missing_capability() -> None:
    with pytest.raises(MissingCapability, match="congestion_control"), link(Profile(name="x", congestion_control="no")):
        pass


def test_nothing_is_left_of_a_link_even_when_its_block_fails() -> None:
    pids: list[int] = []

    def failing_block() -> None:
        with link(catalog.profile("ethernet")) as made:
            pids.extend((made.client.pid, made.server.pid))
            assert all(alive(pid) for pid in pids)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_block()
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def test_the_namespaces_die_with_a_killed_program() -> None:
    program = """
import time
from ingest_bench.experiment import catalog
from ingest_bench.network import link
with link(catalog.profile("ethernet")) as made:
    print(made.client.pid, made.server.pid, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen((sys.executable, "-c", program), stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        pids = [int(word) for word in killed.stdout.readline().split()]
        assert len(pids) == 2
        assert all(alive(pid) for pid in pids)
        killed.kill()
    until = time.monotonic() + 20
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(alive(pid) for pid in pids)


def test_namespaces_do_not_see_each_other() -> None:
    with sandbox() as opened:
        first, second = opened.add(), opened.add()
        first.run(("ip", "link", "add", "here0", "type", "veth", "peer", "name", "there0"))
        assert "here0" in first.run(("ip", "link"))
        assert "here0" not in second.run(("ip", "link"))


@pytest.mark.nightly
def test_an_ordinary_user_gets_the_same_links() -> None:
    ordinary_user.repeat(__file__, promised="netns", limit_s=300)
