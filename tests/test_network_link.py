"""Links in real namespaces."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from readied import ready

from ingest_bench.errors import MissingCapability, RunFailed, SpecError
from ingest_bench.experiment import catalog
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act.link import End, Link, open_link
from ingest_bench.network.act.sandbox import Namespace
from ingest_bench.network.plan import features, link_plan

pytestmark = pytest.mark.netns

RECEIVE_BUFFER = "import socket, sys; print(socket.create_server((sys.argv[1], 0)).getsockopt(1, 8))"
ECHO = str(Path(__file__).with_name("flow_echo.py"))


def show_device(namespace: Namespace, device: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(namespace.run(("ip", "-d", "-j", "link", "show", "dev", device)))[0]
    return shown


def read_features(end: End) -> features.FeatureStates:
    return features.parse_reply(end.namespace.run(link_plan.offloads_argv(end.device, {}))).after


def echo(link: Link, timeout_s: float = 20) -> tuple[int, str, str]:
    """Return MSS, congestion control and local address of a client whose bytes were echoed."""
    with ready(link.server.command((sys.executable, ECHO, "serve", link.server_address, "9"))):
        words = ("send", link.server_address, "9", "20000", str(timeout_s))
        sent = json.loads(link.client.run((sys.executable, ECHO, *words)))
    return sent["mss"], sent["congestion"], sent["local"]


def test_connections_have_the_tcp_settings_of_the_profile() -> None:
    profile = Profile(name="x", mss_bytes=536, congestion_control="reno", tcp_rmem_bytes=(4096, 16384, 65536))
    with open_link(profile) as link:
        # Each segment has 12 bytes of timestamps (RFC 7323).
        assert echo(link) == (524, "reno", link.client_address)
        assert int(link.server.run((sys.executable, "-c", RECEIVE_BUFFER, link.server_address))) <= 65536
    with open_link(Profile(name="x")) as link:
        assert link.server.run(("sysctl", "-n", "net.ipv4.tcp_rmem")) != "4096\t16384\t65536\n"


def test_loopback_ends_share_a_namespace_and_keep_their_addresses() -> None:
    with open_link(catalog.load_profile("loopback")) as link:
        assert link.client == link.server
        assert show_device(link.client, "lo")["mtu"] == 65536
        mss_bytes, *details = echo(link)
        # Half of the window limits the first segments (net/ipv4/tcp.h, tcp_bound_to_half_wnd).
        assert 16384 < mss_bytes <= 65483
        assert details == [catalog.load_profile("loopback").link_congestion_control, link.client_address]


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
        to_server=Impairment(rate_bps=10**8),
        to_client=Impairment(rate_bps=10**6),
    )
    values = {"mtu": 1000, "gso_max_segs": 1, "gso_max_size": 20_000, "gro_max_size": 20_000}
    with open_link(Profile(name="plain")) as link:
        assert link.backend == "plain"
        before = read_everything(link)
        link.set_profile(between)
        for end, rate_bps in zip(link.ends, (10**8, 10**6), strict=True):
            assert values.items() <= show_device(end.namespace, end.device).items()
            qdiscs = json.loads(end.namespace.run(("tc", "-j", "qdisc", "show", "dev", end.device)))
            assert [(qdisc["kind"], qdisc["options"]["rate"] * 8) for qdisc in qdiscs] == [("tbf", rate_bps)]
            states = read_features(end)
            offloads = ("tx-tcp-segmentation", "tx-tcp6-segmentation", "rx-gro")
            assert [states[name].on for name in offloads] == [False, False, True]
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
        with pytest.raises(RunFailed, match="timed out"):
            echo(link, timeout_s=0.3)
        link.set_cut(direction, is_cut=False)
        assert echo(link)[0] == 1448
