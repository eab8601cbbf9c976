from __future__ import annotations

from collections.abc import Sequence

import pytest

from ingest_bench import system
from ingest_bench.errors import RunFailed
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act import interface
from ingest_bench.network.plan import link_plan
from ingest_bench.network.plan.interface_rules import Qdisc

ECN = Impairment(loss_ppm=10_000, ecn=True)


def test_device_gets_only_what_the_profile_sets() -> None:
    assert link_plan.set_device("d", Profile(name="x")) == ("link set dev d mtu 1500",)
    full = Profile(name="x", mtu_bytes=9000, gso_max_segs=1, gso_max_size_bytes=19000, gro_max_size_bytes=32768)
    assert link_plan.set_device("d", full) == (
        "link set dev d mtu 9000 gso_max_segs 1 gso_max_size 19000 gro_max_size 32768",
    )


def test_route_has_the_profiles_tcp_options() -> None:
    ends = ("d", "198.18.1.1", "198.18.2.1")
    assert link_plan.set_route(*ends, None, Profile(name="x", mss_bytes=536)) == (
        "route replace 198.18.2.1/32 dev d src 198.18.1.1 advmss 536 congctl cubic",
    )
    for profile in (Profile(name="x", to_server=ECN), Profile(name="x", to_client=ECN)):
        (line,) = link_plan.set_route(*ends, None, profile)
        assert line.endswith(" congctl cubic features ecn")
    reno = Profile(name="x", congestion_control="reno")
    assert link_plan.set_route(*ends, link_plan.CLIENT_GATEWAY, reno) == (
        "route replace 198.18.2.1/32 via 198.18.1.254 dev d onlink src 198.18.1.1 congctl reno",
    )


def test_socket_buffers_are_set_with_one_command() -> None:
    profile = Profile(name="x", tcp_rmem_bytes=(4096, 16384, 65536), tcp_wmem_bytes=(4096, 65536, 4194304))
    assert link_plan.sysctl_argv(profile) == (
        *("sysctl", "-q", "-e", "-w"),
        "net.ipv4.tcp_no_metrics_save=1",
        "net.ipv6.conf.default.addr_gen_mode=1",
        "net.ipv4.tcp_rmem=4096 16384 65536",
        "net.ipv4.tcp_wmem=4096 65536 4194304",
    )


# As iproute2 6.1 prints them: these options by fprintf, inside JSON.
@pytest.mark.parametrize(
    ("kind", "options"),
    [("hfsc", "default 1 "), ("hfsc", ""), ("multiq", "bands 4/4 "), ("choke", "limit 1000p min 83p max 250p ")],
)
def test_qdiscs_with_plain_text_options_are_parsed(monkeypatch: pytest.MonkeyPatch, kind: str, options: str) -> None:
    output = (
        f'[{{"kind":"{kind}","handle":"2:","root":true,"refcnt":2,"options":{{{options}}}}},'
        '{"kind":"fq_codel","handle":"3:","parent":"2:1","options":{"limit":10240,"ecn":true}}]'
    )

    def run(argv: Sequence[str]) -> str:
        assert argv[:4] == ("tc", "-j", "qdisc", "show")
        return output

    monkeypatch.setattr(system, "run", run)
    assert interface.read_qdiscs("eth0") == (
        Qdisc(kind=kind, handle="2:", parent=""),
        Qdisc(kind="fq_codel", handle="3:", parent="2:1"),
    )
    assert link_plan.parse_json("tc", output)[1]["options"] == {"limit": 10240, "ecn": True}


def test_empty_output_is_an_empty_list() -> None:
    assert link_plan.parse_json("ip", " \n") == []


@pytest.mark.parametrize("output", ['[{"kind":"new" bands 4}]', "qdisc noqueue 0: root", "[" * 100_000])
def test_output_that_is_not_json_is_reported(output: str) -> None:
    message = r"^tc -j qdisc show: its output is not JSON \(.*\)\. Install a newer iproute2\.$"
    with pytest.raises(RunFailed, match=message):
        link_plan.parse_json("tc -j qdisc show", output)
