"""Links in real namespaces; the last test repeats this file as an ordinary user."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import ordinary_user
import psutil
import pytest
from processes import is_alive, wait_until_gone
from readied import ready

from ingest_bench.errors import MissingCapability, SpecError
from ingest_bench.experiment import catalog
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act.link import End, Link, open_link
from ingest_bench.network.act.sandbox import Namespace
from ingest_bench.network.plan import features, link_plan

pytestmark = pytest.mark.netns

RECEIVE_BUFFER = "import socket, sys; print(socket.create_server((sys.argv[1], 0)).getsockopt(1, 8))"
SERVER = """
import socket, sys
listener = socket.create_server((sys.argv[1], 9))
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    while block := connection.recv(65536):
        connection.sendall(block)
    connection.close()
"""
CLIENT = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 9), timeout=float(sys.argv[2]))
connection.sendall(b"x" * 20000)
received = 0
while received < 20000:
    received += len(connection.recv(65536))
congestion_control = connection.getsockopt(6, 13, 16).rstrip(b"\\0").decode()
print(connection.getsockopt(6, 2), congestion_control, connection.getsockname()[0])
"""


def show_device(namespace: Namespace, device: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(namespace.run(("ip", "-d", "-j", "link", "show", "dev", device)))[0]
    return shown


def read_features(end: End) -> features.FeatureStates:
    return features.parse_reply(end.namespace.run(link_plan.offloads_argv(end.device, {}))).after


def echo(link: Link, timeout_s: float = 20) -> list[str]:
    """Return MSS, congestion control and local address of a client whose bytes were echoed."""
    argv = link.server.command((sys.executable, "-c", SERVER, link.server_address))
    with ready(argv):
        argv = link.client.command((sys.executable, "-c", CLIENT, link.server_address, str(timeout_s)))
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split()


def test_devices_have_the_values_of_the_profile() -> None:
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
    with open_link(profile) as link:
        assert link.backend == "plain"
        for end, rate_bps in zip(link.ends, (10**8, 10**7), strict=True):
            shown = show_device(end.namespace, end.device)
            assert {key: shown[key] for key in ("mtu", "gso_max_segs", "gso_max_size", "gro_max_size")} == {
                "mtu": 1400,
                "gso_max_segs": 1,
                "gso_max_size": 19000,
                "gro_max_size": 32768,
            }
            qdiscs = json.loads(end.namespace.run(("tc", "-j", "qdisc", "show", "dev", end.device)))
            assert [(qdisc["kind"], qdisc["options"]["rate"] * 8) for qdisc in qdiscs] == [("tbf", rate_bps)]
            states = read_features(end)
            assert not states["tx-tcp-segmentation"].on
            assert not states["tx-tcp6-segmentation"].on
            assert states["rx-gro"].on


def test_connections_have_the_mss_and_congestion_control_of_the_profile() -> None:
    # Each segment has 12 bytes of timestamps (RFC 7323).
    with open_link(Profile(name="x", mss_bytes=536, congestion_control="reno")) as link:
        assert echo(link) == ["524", "reno", link.client_address]


def test_loopback_ends_share_a_namespace_and_keep_their_addresses() -> None:
    with open_link(catalog.load_profile("loopback")) as link:
        assert link.client == link.server
        assert show_device(link.client, "lo")["mtu"] == 65536
        mss_bytes, *details = echo(link)
        # Half of the window limits the first segments (net/ipv4/tcp.h, tcp_bound_to_half_wnd).
        assert 16384 < int(mss_bytes) <= 65483
        assert details == [catalog.load_profile("loopback").link_congestion_control, link.client_address]


def test_socket_buffer_sizes_apply_to_the_namespace_only() -> None:
    with open_link(Profile(name="x", tcp_rmem_bytes=(4096, 16384, 65536))) as link:
        assert int(link.server.run((sys.executable, "-c", RECEIVE_BUFFER, link.server_address))) <= 65536
    with open_link(Profile(name="x")) as link:
        assert link.server.run(("sysctl", "-n", "net.ipv4.tcp_rmem")) != "4096\t16384\t65536\n"


def test_link_is_changed_and_changed_back_completely() -> None:
    def read_everything(link: Link) -> list[str]:
        sysctls = ("sysctl", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem")
        shown = [("ip", "-d", "link"), ("ip", "route"), ("tc", "qdisc"), sysctls, ("ip", "neigh")]
        return [
            *(end.namespace.run(argv) for end in link.ends for argv in shown),
            *(str(read_features(end)) for end in link.ends),
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
    with open_link(Profile(name="plain")) as link:
        before = read_everything(link)
        link.set_profile(between)
        assert show_device(link.server, link.ends[1].device)["mtu"] == 1000
        assert json.loads(link.server.run(("tc", "-j", "qdisc")))[-1]["options"]["rate"] * 8 == 10**6
        link.set_profile(replace(between, offloads={"tso": True, "gso": False}))
        link.set_profile(Profile(name="plain"))
        assert read_everything(link) == before
        with pytest.raises(SpecError, match="an existing link cannot become loopback"):
            link.set_profile(catalog.load_profile("loopback"))
        with pytest.raises(SpecError, match="requires netem"):
            link.set_profile(Profile(name="far", to_server=Impairment(delay_ns=10**6)))


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"tcp_rmem_bytes": (0, 0, 0)}, MissingCapability, "this machine did not accept"),
        ({"offloads": {"lro": True}}, MissingCapability, "lro cannot be on"),
        ({"offloads": {"tsoo": True}}, SpecError, 'did you mean "tso"'),
        ({"congestion_control": "no"}, MissingCapability, "congestion_control"),
    ],
)
def test_values_that_the_machine_rejects_are_reported(
    values: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message), open_link(Profile(name="x", **values)):
        pass


@pytest.mark.parametrize("direction", ["to-server", "to-client"])
def test_cut_direction_is_silent_until_it_is_restored(direction: Any) -> None:
    with open_link(catalog.load_profile("ethernet")) as link:
        link.set_cut(direction, is_cut=True)
        with pytest.raises(subprocess.CalledProcessError) as failed:
            echo(link, timeout_s=0.3)
        assert "timed out" in failed.value.stderr
        link.set_cut(direction, is_cut=False)
        assert echo(link)[0] == "1448"


def test_namespaces_die_with_a_killed_program() -> None:
    program = """
import time
from ingest_bench.experiment import catalog
from ingest_bench.network.act.link import open_link
with open_link(catalog.load_profile("ethernet")) as link:
    print(link.client.pid, link.server.pid, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen((sys.executable, "-c", program), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        family = [psutil.Process(int(word)) for word in process.stdout.readline().split()]
        assert [is_alive(holder) for holder in family] == [True, True]
        process.kill()
    wait_until_gone(family, seconds=20)


@pytest.mark.nightly
def test_ordinary_user_gets_the_same_links() -> None:
    ordinary_user.repeat(__file__, promised="netns", limit_s=300)
