from __future__ import annotations

import dataclasses
import ipaddress
import itertools
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ingest_bench import system
from ingest_bench.errors import SpecError
from ingest_bench.ledger.steps import Action, Step
from ingest_bench.ledger.watchdog import open_session
from ingest_bench.model.network import Impairment, PortRange, Profile, RealInterface
from ingest_bench.network.act.interface import (
    next_hop_options,
    parse_route_metrics,
    parse_ssh_connection,
)
from ingest_bench.network.plan import features
from ingest_bench.network.plan.features import FeatureState
from ingest_bench.network.plan.interface_plan import SESSION_NUMBERS, SessionIds, interface_steps
from ingest_bench.network.plan.interface_rules import (
    SIDES,
    Connection,
    Destination,
    Flow,
    InterfaceFacts,
    Qdisc,
    Route,
    UpperDevice,
    filter_matches,
    route_options,
)

GOLDEN = Path(__file__).parent / "golden"
IDS = SessionIds(0xABCDEF)
SLOW = Impairment(rate_bps=8 * 10**6, burst_bytes=10_000)
DISTANT = Impairment(delay_ns=25 * 10**6, loss_ppm=5000, rate_bps=10**8, burst_bytes=20_000)
FAIR = Impairment(rate_bps=10**7, queue="fq_codel")
PORT = (PortRange(9200, 9200),)
LINK = RealInterface(name="eth0", shared_settings=True)
WITH_MTU = dataclasses.replace(LINK, interface_mtu=True)


def make_flow(network: str, *ports: PortRange) -> Flow:
    return Flow(network=ipaddress.ip_network(network), remote_ports=ports or PORT)


def make_ssh(client: str, local: str = "10.0.0.5") -> Connection:
    connection = parse_ssh_connection(f"{client.replace(':', ' ')} {local} 22")
    assert connection is not None
    return connection


SSH = make_ssh("10.2.0.9:50022")
ANY_HOST_TO_22 = Flow(network=ipaddress.ip_network("0.0.0.0/0"), local_ports=(PortRange(20, 30),))
HOST = Destination(
    address=ipaddress.ip_address("10.1.2.3"),
    device="eth0",
    route=Route(next_hop=("via", "10.0.0.1"), source="10.0.0.5", metrics={"initcwnd": ("30",), "mtu": ("1450",)}),
)
HOST_IPV6 = Destination(address=ipaddress.ip_address("fd00::3"), device="eth0")
FACTS = InterfaceFacts(
    link=LINK,
    index=7,
    mtu_bytes=1500,
    sizes={"gso_max_segs": 65535, "gso_max_size": 65536, "gso_ipv4_max_size": 65536, "gro_max_size": 65536},
    qdiscs=(Qdisc(kind="mq", handle="0:"), Qdisc(kind="fq_codel", handle="0:")),
    features={
        "tx-tcp-segmentation": FeatureState(on=True, wanted=True, fixed=False),
        "tx-tcp-mangleid-segmentation": FeatureState(on=False, wanted=False, fixed=False),
        "rx-gro": FeatureState(on=True, wanted=True, fixed=False),
        "rx-lro": FeatureState(on=False, wanted=False, fixed=True),
    },
    flows=(make_flow("10.1.2.3"),),
    destinations=(HOST,),
    ipv6_mtu_bytes=1492,
    sysctls={"tcp_rmem": "4096 131072 6291456", "tcp_wmem": "4096 16384 4194304"},
)
UPPER_DEVICES = (
    UpperDevice(name="eth0.5", index=9, mtu_bytes=1500, ipv6_mtu_bytes=1480),
    UpperDevice(name="container", index=10, mtu_bytes=1450),
)
PROFILE = Profile(
    name="all",
    mtu_bytes=1400,
    gso_max_segs=1,
    gso_max_size_bytes=30_000,
    offloads={"tso": False, "gro": True},
    tcp_rmem_bytes=(4096, 65536, 65536),
    to_server=DISTANT,
    to_client=SLOW,
)


def format_action(action: Action) -> str:
    """Format an action without the paths of this Python and of the package."""
    return str(action).replace(shlex.join(system.build_program_argv(features.__file__)), "features.py")


def format_steps(steps: tuple[Step, ...]) -> str:
    lines = []
    for step in steps:
        # test_network_netem checks the options of netem and tbf.
        lines += [f"# {step.name}", re.sub(r"( netem| tbf) .*", r"\1 …", format_action(step.action))]
        for undo in step.undo:
            lines.append(f"    undo: {format_action(undo.action)}")
            if undo.check_argv:
                lines.append(f"    when: {' '.join(undo.check_argv)} shows {undo.check_output}")
    return "\n".join(lines) + "\n"


def replace(**values: Any) -> InterfaceFacts:
    return dataclasses.replace(FACTS, **values)


@pytest.mark.parametrize(
    ("name", "facts", "profile"),
    [
        ("interface-route", FACTS, PROFILE),
        ("interface-mtu", replace(upper_devices=UPPER_DEVICES, link=WITH_MTU), PROFILE),
        (
            "interface-ipv6",
            replace(
                flows=(make_flow("fd00::3", PortRange(9300, 9300)),),
                destinations=(dataclasses.replace(HOST_IPV6, route=Route(host_priority=1024)),),
            ),
            Profile(name="small", mtu_bytes=1300, to_server=SLOW),
        ),
        (
            "interface-flows",
            replace(
                flows=(
                    make_flow("10.1.2.3", PortRange(9200, 9200), PortRange(9300, 9305)),
                    make_flow("10.2.0.0/16"),
                    make_flow("fd00::/64", PortRange(8, 15)),
                ),
                destinations=(HOST, dataclasses.replace(HOST_IPV6, route=Route())),
            ),
            Profile(name="slow", to_server=SLOW, to_client=DISTANT),
        ),
        (
            "interface-server",
            replace(
                flows=tuple(
                    Flow(network=ipaddress.ip_network(network), local_ports=PORT) for network in ("0.0.0.0/0", "::/0")
                ),
                destinations=(),
                link=dataclasses.replace(LINK, port=PORT),
            ),
            Profile(name="slow", to_server=SLOW, to_client=DISTANT),
        ),
        (
            "interface-ssh",
            replace(ssh_connections=(SSH, dataclasses.replace(SSH, remote=ipaddress.ip_address("fd00::9")))),
            Profile(name="slow", to_server=SLOW),
        ),
    ],
)
def test_commands_and_undo_match_the_golden_file(name: str, facts: InterfaceFacts, profile: Profile) -> None:
    assert format_steps(interface_steps(facts, profile, IDS)) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_profile_without_effect_needs_no_step_even_with_ssh() -> None:
    assert interface_steps(FACTS, Profile(name="nothing"), IDS) == ()
    assert interface_steps(replace(ssh_connections=(SSH,)), Profile(name="nothing"), IDS) == ()


@pytest.mark.parametrize(
    "ranges", [[(1, 65535)], [(9200, 9200)], [(9300, 9310), (1, 3)], [(1024, 65534)], [(32767, 32768)]]
)
def test_port_filters_match_each_port_exactly_once(ranges: list[tuple[int, int]]) -> None:
    expected = Counter(port for first, last in ranges for port in range(first, last + 1))
    ports = tuple(itertools.starmap(PortRange, ranges))
    network = ipaddress.ip_network("10.0.0.0/8")
    for is_local in (False, True):
        flow = Flow(network=network, local_ports=ports) if is_local else Flow(network=network, remote_ports=ports)
        for side in SIDES:
            matched: Counter[int] = Counter()
            for words in filter_matches(flow, side):
                *_, end, first, mask = words
                others = 0xFFFF ^ int(mask, 16)
                # The mask keeps the upper bits, and the first port has none of the others.
                assert others & (others + 1) == int(first) & others == 0
                assert end == ("sport" if is_local == (side == "egress") else "dport")
                assert words[:4] == ("match", "ip", "dst" if side == "egress" else "src", "10.0.0.0/8")
                matched.update(range(int(first), int(first) + others + 1))
            assert matched == expected
            assert sum(1 for _ in filter_matches(flow, side)) <= 30 * len(ranges)


@pytest.mark.parametrize(
    ("facts", "options", "reason"),
    [
        ({"ssh_connections": (SSH, make_ssh("10.1.2.3:9200"))}, {}, "10.1.2.3:9200 to 10.0.0.5:22 is among the"),
        (
            {"ssh_connections": (make_ssh("10.2.9.9:50022"),), "flows": (ANY_HOST_TO_22,), "destinations": ()},
            {},
            "is among the connections to shape",
        ),
        ({"ssh_connections": (make_ssh("10.1.2.3:50022"),)}, {}, "a route with it to 10.1.2.3 would also apply"),
        ({"has_default_route": True}, {}, "has the default route. Add --allow-default-route"),
        ({"destinations": (dataclasses.replace(HOST, device="eth1"),)}, {}, "leave by eth1. Use --interface eth1"),
        ({"destinations": (HOST, dataclasses.replace(HOST, is_own_address=True))}, {}, "is this machine: its"),
        ({"qdiscs": (Qdisc(kind="ingress", handle="ffff:"),)}, {}, "tc qdisc del dev eth0 ingress"),
        ({"qdiscs": (Qdisc(kind="clsact", handle="ffff:"),)}, {}, "tc qdisc del dev eth0 clsact"),
        ({"is_name_taken": True}, {}, "index is 7, and another interface is named if7"),
        (
            {"destinations": (HOST, dataclasses.replace(HOST_IPV6, route=Route(host_priority=1)))},
            {},
            "a route to fd00::3 alone has metric 1",
        ),
        ({"mtu_bytes": 1300}, {}, "requires an MTU of 1400, the interface has 1300. Add --interface-mtu"),
        ({}, {"shared_settings": False}, "sets tso=off, gso_max_segs, gso_max_size, tcp_rmem, which affects other"),
        ({"features": {}}, {}, 'unknown feature "tso"; did you mean "tso"'),
        ({}, {"profile": Profile(name="lro", offloads={"lro": True})}, "lro cannot be on: the device's driver fixes"),
        (
            {"flows": (make_flow("10.1.2.3"), make_flow("10.2.0.0/16"))},
            {},
            "an MTU, .* and 10.2.0.0/16 is not one host",
        ),
        ({"flows": (make_flow("10.1.2.3", *(PortRange(1, 65534),) * 7),)}, {}, "requires 210 filters, and at most 200"),
        ({}, {"profile": Profile(name="x", to_server=FAIR)}, 'queue = "fq_codel", which requires a virtual link'),
        ({}, {"profile": Profile(name="loopback", medium="loopback")}, "Choose a profile of a real link"),
        ({}, {"profile": Profile(name="tiny", mtu_bytes=1000), "interface_mtu": True}, "lose its IPv6 addresses"),
        ({"foreign_upper_devices": ("up0",)}, {"interface_mtu": True}, "up0 in another network namespace is above it"),
    ],
)
def test_forbidden_changes_are_refused_with_the_reason(
    facts: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    profile = options.pop("profile", PROFILE)
    with pytest.raises(SpecError, match=reason):
        interface_steps(replace(link=dataclasses.replace(LINK, **options), **facts), profile, IDS)


def test_interface_with_default_route_can_be_allowed() -> None:
    allowed = dataclasses.replace(LINK, allow_default_route=True)
    assert interface_steps(replace(has_default_route=True, link=allowed), PROFILE, IDS)


def test_route_enables_ecn_only_if_packets_may_be_marked() -> None:
    marking = Impairment(loss_ppm=10_000, ecn=True)
    for profile in (Profile(name="x", to_server=marking), Profile(name="x", to_client=marking)):
        assert route_options(FACTS, profile, HOST)[-2:] == ("features", "ecn")
    plain = Profile(name="x", to_server=Impairment(loss_ppm=10_000))
    assert route_options(FACTS, plain, HOST) == ()
    with_features = dataclasses.replace(HOST, route=Route(metrics={"features": ("tcp_usec_ts",)}))
    options = route_options(FACTS, Profile(name="x", to_server=marking), with_features)
    assert options == ("features", "tcp_usec_ts", "ecn")


@pytest.mark.parametrize("mtu", [("lock", "1300"), ("1300",)])
def test_route_narrower_than_the_profile_keeps_its_mtu(mtu: tuple[str, ...]) -> None:
    narrow = dataclasses.replace(HOST, route=Route(metrics={"mtu": mtu, "advmss": ("1260",)}))
    assert route_options(FACTS, Profile(name="x", mtu_bytes=1400), narrow) == ()
    options = route_options(FACTS, Profile(name="x", mtu_bytes=1400, congestion_control="reno"), narrow)
    assert options == ("mtu", *mtu, "advmss", "1260", "congctl", "reno")
    smaller = route_options(FACTS, Profile(name="x", mtu_bytes=1200), narrow)
    assert smaller == ("mtu", "lock", "1200", "advmss", "1160")


def test_routes_of_ip_are_parsed() -> None:
    ipv6_gateway = {"via": {"family": "inet6", "host": "fe80::1"}, "dev": "eth0"}
    assert next_hop_options(ipv6_gateway) == ("via", "inet6", "fe80::1")
    assert next_hop_options({"gateway": "10.0.0.1", "dev": "eth0"}) == ("via", "10.0.0.1")
    assert next_hop_options({"dev": "eth0"}) == ()
    text = "proto dhcp src 10.0.0.5 metric 100 mtu lock 1400 features ecn rto_min lock 50ms congctl bbr pref medium"
    assert parse_route_metrics(text) == {
        "mtu": ("lock", "1400"),
        "features": ("ecn",),
        "rto_min": ("50ms",),
        "congctl": ("bbr",),
    }


@pytest.mark.parametrize(
    ("variable", "connection"),
    [
        ("192.0.2.1 50022 192.0.2.2 22", "192.0.2.1:50022 to 192.0.2.2:22"),
        ("fe80::1%eth0 50022 fe80::2%eth0 22", "[fe80::1]:50022 to [fe80::2]:22"),
        ("::ffff:192.0.2.1 5 ::ffff:192.0.2.2 22", "192.0.2.1:5 to 192.0.2.2:22"),
        *((malformed, "None") for malformed in ("", "a b c d", "192.0.2.1 x 192.0.2.2 22", "192.0.2.1 1 192.0.2.2")),
    ],
)
def test_ssh_connection_variable_is_parsed(variable: str, connection: str) -> None:
    assert str(parse_ssh_connection(variable)) == connection


def test_connection_is_in_the_flows_whose_filters_match_it() -> None:
    ends = {"itself": SSH, "other host": make_ssh("10.3.0.9:50022"), "other port": make_ssh("10.2.0.9:50021")}
    flows = (make_flow("10.2.0.0/16", PortRange(50022, 50030)), Flow(network=SSH.flow.network), ANY_HOST_TO_22)
    members = [[name for name, connection in ends.items() if connection.is_in(flow)] for flow in flows]
    assert members == [["itself"], ["itself", "other port"], list(ends)]
    assert not SSH.is_in(Flow(network=SSH.flow.network, local_ports=(PortRange(23, 65535),)))
    assert not SSH.is_in(Flow(network=ipaddress.ip_network("::/0")))


def test_sessions_share_no_number_and_no_device_name() -> None:
    ends = [(SessionIds(number), side) for number in (0, 1, SESSION_NUMBERS - 1) for side in SIDES]
    assert len({ids.block(side) for ids, side in ends}) == len(ends)
    devices = [ids.ifb(side) for ids, side in ends]
    for values in ({d.index for d in devices}, {d.name for d in devices}, {d.mac for d in devices}):
        assert len(values) == len(devices)
    # Limits of the kernel: IFNAMSIZ without its end, and an int.
    assert max(len(device.name) for device in devices) <= 15
    assert max(device.index for device in devices) < 2**31


@pytest.mark.parametrize("limit_s", [0, float("inf"), float("nan")])
def test_session_without_a_time_limit_is_refused(limit_s: float) -> None:
    with pytest.raises(SpecError, match="a time limit is required"), open_session("net-7", "x", time_limit_s=limit_s):
        pass
