from __future__ import annotations

from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.plan import commands, features, places

ECN = Impairment(loss_ppm=10_000, ecn=True)


def test_a_device_gets_only_what_the_profile_says() -> None:
    assert commands.device("d", Profile(name="x")) == ("link set dev d mtu 1500",)
    full = Profile(name="x", mtu_bytes=9000, gso_max_segs=1, gso_max_size_bytes=19000, gro_max_size_bytes=32768)
    assert commands.device("d", full) == (
        "link set dev d mtu 9000 gso_max_segs 1 gso_max_size 19000 gro_max_size 32768",
    )


def test_the_route_carries_what_tcp_shall_do() -> None:
    profile = Profile(name="x", mss_bytes=536)
    assert commands.route("d", "198.18.1.1", "198.18.2.1", None, profile) == (
        "route replace 198.18.2.1/32 dev d src 198.18.1.1 advmss 536 congctl cubic",
    )
    for marks in (Profile(name="x", to_server=ECN), Profile(name="x", to_client=ECN)):
        (line,) = commands.route("d", "198.18.1.1", "198.18.2.1", None, marks)
        assert line.endswith(" congctl cubic features ecn")
    other = Profile(name="x", congestion_control="reno")
    assert commands.route("d", "198.18.1.1", "198.18.2.1", places.CLIENT_GATEWAY, other) == (
        "route replace 198.18.2.1/32 via 198.18.1.254 dev d onlink src 198.18.1.1 congctl reno",
    )


def test_socket_buffers_are_set_with_one_command() -> None:
    profile = Profile(name="x", tcp_rmem_bytes=(4096, 16384, 65536), tcp_wmem_bytes=(4096, 65536, 4194304))
    assert commands.sysctl(profile) == (
        "sysctl",
        "-q",
        "-e",
        "-w",
        "net.ipv4.tcp_no_metrics_save=1",
        "net.ipv6.conf.default.addr_gen_mode=1",
        "net.ipv4.tcp_rmem=4096 16384 65536",
        "net.ipv4.tcp_wmem=4096 65536 4194304",
    )


def test_offloads_are_set_with_one_command() -> None:
    *_, program, device, first, second = commands.offloads("d", {"tso": False, "tx-checksum": True})
    assert (program, device, first, second) == (features.__file__, "d", "tso=off", "tx-checksum=on")
