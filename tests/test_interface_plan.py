from __future__ import annotations

import dataclasses
import ipaddress
import itertools
import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ingest_bench import system
from ingest_bench.errors import SpecError
from ingest_bench.ledger.steps import Action, Step
from ingest_bench.model.network import Impairment, PortRange, Profile, RealLink
from ingest_bench.network.act.interface_facts import metrics, next_hop, qdiscs
from ingest_bench.network.act.ssh import parse
from ingest_bench.network.plan import features, spared
from ingest_bench.network.plan.features import State
from ingest_bench.network.plan.flows import SIDES, Connection, Flow, matches
from ingest_bench.network.plan.interface_plan import MARKS, Marks, plan
from ingest_bench.network.plan.interface_rules import Asked, Destination, Found, Qdisc, Upper, Way, tcp_words

GOLDEN = Path(__file__).parent / "golden"
OURS = Marks(0xABCDEF)
SLOW = Impairment(rate_bps=8 * 10**6, burst_bytes=10_000)
FAR = Impairment(delay_ns=25 * 10**6, loss_ppm=5000, rate_bps=10**8, burst_bytes=20_000)
PORT = (PortRange(9200, 9200),)


def flow(network: str, *ports: PortRange) -> Flow:
    return Flow(network=ipaddress.ip_network(network), far=ports or PORT)


def asking(profile: Profile, **more: Any) -> Asked:
    return Asked(link=RealLink(name="eth0", **more), profile=profile)


def ssh(client: str, own: str = "10.0.0.5") -> Connection:
    found = parse(f"{client.replace(':', ' ')} {own} 22")
    assert found is not None
    return found


SSH = ssh("10.2.0.9:50022")
ANYBODY_TO_22 = Flow(network=ipaddress.ip_network("0.0.0.0/0"), own=(PortRange(20, 30),))
THERE = Destination(
    address=ipaddress.ip_address("10.1.2.3"),
    device="eth0",
    way=Way(next_hop=("via", "10.0.0.1"), source="10.0.0.5", metrics={"initcwnd": ("30",), "mtu": ("1450",)}),
)
THERE_IPV6 = Destination(address=ipaddress.ip_address("fd00::3"), device="eth0")
FOUND = Found(
    interface="eth0",
    index=7,
    mtu_bytes=1500,
    sizes={"gso_max_segs": 65535, "gso_max_size": 65536, "gso_ipv4_max_size": 65536, "gro_max_size": 65536},
    qdiscs=(Qdisc(kind="mq", handle="0:"), Qdisc(kind="fq_codel", handle="0:")),
    features={
        "tx-tcp-segmentation": State(on=True, wanted=True, fixed=False),
        "tx-tcp-mangleid-segmentation": State(on=False, wanted=False, fixed=False),
        "rx-gro": State(on=True, wanted=True, fixed=False),
        "rx-lro": State(on=False, wanted=False, fixed=True),
    },
    flows=(flow("10.1.2.3"),),
    destinations=(THERE,),
    ipv6_mtu_bytes=1492,
    sysctls={"tcp_rmem": "4096 131072 6291456", "tcp_wmem": "4096 16384 4194304"},
)
UPPERS = (
    Upper(name="eth0.5", index=9, mtu_bytes=1500, ipv6_mtu_bytes=1480),
    Upper(name="container", index=10, mtu_bytes=1450),
)
FAIR = Impairment(rate_bps=10**7, queue="fq_codel")
PROFILE = Profile(
    name="all",
    mtu_bytes=1400,
    gso_max_segs=1,
    gso_max_size_bytes=30_000,
    offloads={"tso": False, "gro": True},
    tcp_rmem_bytes=(4096, 65536, 65536),
    to_server=FAR,
    to_client=SLOW,
)


def said(action: Action) -> str:
    """The action without where this Python and the package are."""
    return str(action).replace(shlex.join(system.program(features.__file__)), "features.py")


def text_of(steps: tuple[Step, ...]) -> str:
    lines = []
    for step in steps:
        # The words of netem and tbf are test_network_netem's.
        lines += [f"# {step.name}", re.sub(r"( netem| tbf) .*", r"\1 …", said(step.do))]
        for undo in step.undo:
            lines.append(f"    undo: {said(undo.action)}")
            if undo.look:
                lines.append(f"    when: {' '.join(undo.look)} shows {undo.shows}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("name", "found", "asked"),
    [
        ("interface-route", FOUND, asking(PROFILE, shared_settings=True)),
        (
            "interface-mtu",
            dataclasses.replace(FOUND, uppers=UPPERS),
            asking(PROFILE, shared_settings=True, interface_mtu=True),
        ),
        (
            "interface-ipv6",
            dataclasses.replace(
                FOUND,
                flows=(flow("fd00::3", PortRange(9300, 9300)),),
                destinations=(dataclasses.replace(THERE_IPV6, way=Way(host_priority=1024)),),
            ),
            asking(Profile(name="small", mtu_bytes=1300, to_server=SLOW)),
        ),
        (
            "interface-flows",
            dataclasses.replace(
                FOUND,
                flows=(
                    flow("10.1.2.3", PortRange(9200, 9200), PortRange(9300, 9305)),
                    flow("10.2.0.0/16"),
                    flow("fd00::/64", PortRange(8, 15)),
                ),
                destinations=(THERE, dataclasses.replace(THERE_IPV6, way=Way())),
            ),
            asking(Profile(name="slow", to_server=SLOW, to_client=FAR)),
        ),
        (
            "interface-server",
            dataclasses.replace(
                FOUND,
                flows=tuple(Flow(network=ipaddress.ip_network(anybody), own=PORT) for anybody in ("0.0.0.0/0", "::/0")),
                destinations=(),
            ),
            asking(Profile(name="slow", to_server=SLOW, to_client=FAR), port=PORT),
        ),
    ],
)
def test_the_commands_and_their_undo_are_those_of_the_golden_file(name: str, found: Found, asked: Asked) -> None:
    assert text_of(plan(found, asked, OURS)) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_a_profile_that_does_nothing_changes_nothing() -> None:
    assert plan(FOUND, asking(Profile(name="nothing")), OURS) == ()


@pytest.mark.parametrize(
    "ranges", [[(1, 65535)], [(9200, 9200)], [(9300, 9310), (1, 3)], [(1024, 65534)], [(32767, 32768)]]
)
def test_the_filters_of_ports_match_these_ports_and_no_other_and_each_once(ranges: list[tuple[int, int]]) -> None:
    wanted = [port for first, last in ranges for port in range(first, last + 1)]
    for own in (False, True):
        ports = tuple(itertools.starmap(PortRange, ranges))
        network = ipaddress.ip_network("10.0.0.0/8")
        found = Flow(network=network, own=ports) if own else Flow(network=network, far=ports)
        for side in SIDES:
            seen: Counter[int] = Counter()
            for words in matches(found, side):
                *_, end, value, mask = words
                assert end == ("sport" if own == (side == "egress") else "dport")
                assert words[:4] == ("match", "ip", "dst" if side == "egress" else "src", "10.0.0.0/8")
                seen.update(port for port in range(65536) if port & int(mask, 16) == int(value))
            assert seen == Counter(wanted)
            assert sum(1 for _ in matches(found, side)) <= 30 * len(ranges)


@pytest.mark.parametrize(
    ("found", "asked", "reason"),
    [
        ({"ssh": (SSH, ssh("10.1.2.3:9200"))}, {}, "SSH connection 10.1.2.3:9200 to 10.0.0.5:22 is one of those"),
        ({"ssh": (ssh("10.2.9.9:50022"),), "flows": (ANYBODY_TO_22,), "destinations": ()}, {}, "is one of those that"),
        ({"ssh": (ssh("10.1.2.3:50022"),)}, {}, "a route with it to 10.1.2.3 would hold for your SSH connection"),
        (
            {"ssh": (SSH,), "qdiscs": (Qdisc(kind="clsact", handle="ffff:"),)},
            {"profile": Profile(name="small", mtu_bytes=1400)},
            "tc qdisc del dev eth0 clsact",
        ),
        ({"carries_default_route": True}, {}, "carries the default route; add --allow-default-route"),
        ({"destinations": (dataclasses.replace(THERE, device="eth1"),)}, {}, "leave by eth1; use --interface eth1"),
        ({"destinations": (THERE, dataclasses.replace(THERE, is_own_address=True))}, {}, "is this machine itself"),
        ({"qdiscs": (Qdisc(kind="ingress", handle="ffff:"),)}, {}, "tc qdisc del dev eth0 ingress"),
        ({"qdiscs": (Qdisc(kind="clsact", handle="ffff:"),)}, {}, "tc qdisc del dev eth0 clsact"),
        ({"taken_name": True}, {}, "number 7, and another interface the name if7"),
        (
            {"destinations": (THERE, dataclasses.replace(THERE_IPV6, way=Way(host_priority=1)))},
            {},
            "a route to fd00::3 alone with metric 1, that no other one can go before",
        ),
        ({"mtu_bytes": 1300}, {}, "wants an MTU of 1400, the interface has 1300; add --interface-mtu"),
        ({}, {"shared_settings": False}, "sets tso=off, gso_max_segs, gso_max_size, tcp_rmem, which other"),
        ({"features": {}}, {}, 'unknown feature "tso"; did you mean "tso"'),
        ({}, {"profile": Profile(name="lro", offloads={"lro": True})}, "lro cannot be on: the device's driver fixes"),
        ({"flows": (flow("10.1.2.3"), flow("10.2.0.0/16"))}, {}, "has an MTU, .* and 10.2.0.0/16 is not one host"),
        ({"flows": (flow("10.1.2.3", *(PortRange(1, 65534),) * 7),)}, {}, "takes 210 filters, and at most 200 are set"),
        ({}, {"profile": Profile(name="x", to_server=FAIR)}, 'queue = "fq_codel", which only a link of ours can have'),
        ({}, {"profile": Profile(name="loopback", medium="loopback")}, "choose one of a real link"),
        ({}, {"profile": Profile(name="tiny", mtu_bytes=1000), "interface_mtu": True}, "lose its IPv6 addresses"),
        ({"uppers_elsewhere": ("up0",)}, {"interface_mtu": True}, "up0 in another network namespace stands on it"),
    ],
)
def test_an_interface_that_must_not_be_touched_is_refused(
    found: dict[str, Any], asked: dict[str, Any], reason: str
) -> None:
    whole = asking(**{"profile": PROFILE, "shared_settings": True, **asked})
    with pytest.raises(SpecError, match=reason):
        plan(dataclasses.replace(FOUND, **found), whole, OURS)


def test_the_route_asks_for_ecn_where_packets_may_be_marked_and_only_there() -> None:
    marking = Impairment(loss_ppm=10_000, ecn=True)
    for profile in (Profile(name="x", to_server=marking), Profile(name="x", to_client=marking)):
        assert tcp_words(FOUND, asking(profile), THERE)[-2:] == ("features", "ecn")
    plain = Profile(name="x", to_server=Impairment(loss_ppm=10_000))
    assert tcp_words(FOUND, asking(plain), THERE) == ()
    has = dataclasses.replace(THERE, way=Way(metrics={"features": ("tcp_usec_ts",)}))
    words = tcp_words(FOUND, asking(Profile(name="x", to_server=marking)), has)
    assert words == ("features", "tcp_usec_ts", "ecn")


@pytest.mark.parametrize("has", [("lock", "1300"), ("1300",)])
def test_a_route_that_is_narrower_than_the_profile_stays_so(has: tuple[str, ...]) -> None:
    narrow = dataclasses.replace(THERE, way=Way(metrics={"mtu": has, "advmss": ("1260",)}))
    assert tcp_words(FOUND, asking(Profile(name="x", mtu_bytes=1400)), narrow) == ()
    words = tcp_words(FOUND, asking(Profile(name="x", mtu_bytes=1400, congestion_control="reno")), narrow)
    assert words == ("mtu", *has, "advmss", "1260", "congctl", "reno")
    assert tcp_words(FOUND, asking(Profile(name="x", mtu_bytes=1200)), narrow) == (
        *("mtu", "lock", "1200", "advmss", "1160"),
    )


def test_the_default_route_may_be_allowed() -> None:
    found = dataclasses.replace(FOUND, carries_default_route=True)
    assert plan(found, asking(PROFILE, shared_settings=True, allow_default_route=True), OURS)


def test_the_words_of_tc_and_ssh_are_read() -> None:
    assert qdiscs([{"kind": "noqueue", "handle": "0:", "root": True}]) == (Qdisc(kind="noqueue", handle="0:"),)
    assert qdiscs([{"kind": "fq", "handle": "0:", "parent": ":1"}]) == (Qdisc(kind="fq", handle="0:", parent=":1"),)
    assert next_hop({"via": {"family": "inet6", "host": "fe80::1"}, "dev": "eth0"}) == ("via", "inet6", "fe80::1")
    assert next_hop({"gateway": "10.0.0.1", "dev": "eth0"}) == ("via", "10.0.0.1")
    assert next_hop({"dev": "eth0"}) == ()
    text = "proto dhcp src 10.0.0.5 metric 100 mtu lock 1400 features ecn rto_min lock 50ms congctl bbr pref medium"
    assert metrics(text) == {
        "mtu": ("lock", "1400"),
        "features": ("ecn",),
        "rto_min": ("50ms",),
        "congctl": ("bbr",),
    }
    assert str(parse("192.0.2.1 50022 192.0.2.2 22")) == "192.0.2.1:50022 to 192.0.2.2:22"
    assert str(parse("fe80::1%eth0 50022 fe80::2%eth0 22")) == "[fe80::1]:50022 to [fe80::2]:22"
    assert str(parse("::ffff:192.0.2.1 5 ::ffff:192.0.2.2 22")) == "192.0.2.1:5 to 192.0.2.2:22"
    assert [parse(text) for text in ("", "a b c d", "192.0.2.1 x 192.0.2.2 22", "192.0.2.1 1 192.0.2.2")] == [None] * 4


def test_a_connection_is_of_a_flow_where_the_filters_of_the_flow_match_its_packets() -> None:
    ends = {"here": SSH, "other host": ssh("10.3.0.9:50022"), "other port": ssh("10.2.0.9:50021")}
    flows = (flow("10.2.0.0/16", PortRange(50022, 50030)), Flow(network=SSH.flow.network), ANYBODY_TO_22)
    assert [[name for name, end in ends.items() if end.is_of(one)] for one in flows] == [
        ["here"],
        ["here", "other port"],
        list(ends),
    ]
    assert not SSH.is_of(Flow(network=SSH.flow.network, own=(PortRange(23, 65535),)))
    assert not SSH.is_of(Flow(network=ipaddress.ip_network("::/0")))


def test_ssh_is_led_past_before_any_other_filter_stands_and_each_connection_has_its_own_count() -> None:
    found = dataclasses.replace(FOUND, ssh=(SSH, dataclasses.replace(SSH, far=ipaddress.ip_address("fd00::9"))))
    sparing = spared.steps(found, OURS)
    text = text_of((*sparing, *plan(found, asking(Profile(name="slow", to_server=SLOW)), OURS)))
    assert text == (GOLDEN / "interface-ssh.txt").read_text(encoding="utf-8")
    assert spared.steps(FOUND, OURS) == ()
    listed = [
        {"pref": pref, "options": {"actions": [{"stats": {"packets": packets}}]}}
        for pref, packets in ((1, 12), (2, 34), (3, 56))
    ]
    assert spared.packets(found, json.dumps([{"pref": 1}, *listed])) == (12, 34)


def test_no_two_marks_have_a_number_or_a_name_in_common() -> None:
    ends = [(Marks(number), side) for number in (0, 1, MARKS - 1) for side in SIDES]
    assert len({marks.block(side) for marks, side in ends}) == len(ends)
    devices = [marks.ifb(side) for marks, side in ends] + [marks.counted for marks, side in ends if side == "egress"]
    for names in ({d.index for d in devices}, {d.name for d in devices}, {d.mac for d in devices}):
        assert len(names) == len(devices)
    # What the kernel takes: IFNAMSIZ less its end, and an int.
    assert max(len(device.name) for device in devices) <= 15
    assert max(device.index for device in devices) < 1 << 31
