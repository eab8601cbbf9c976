"""Checks of a path at one end: passed, failed or not measured, and never passed without a measurement."""

from __future__ import annotations

import dataclasses
import socket
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ingest_bench.analysis.run import integrity
from ingest_bench.errors import SpecError
from ingest_bench.experiment import spec
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.model.results import RunRecord
from ingest_bench.model.target import Endpoint
from ingest_bench.network.measure import shaped_path
from ingest_bench.network.measure.shaped_path import Handshakes, ShapedPath, check_handshakes, check_rate
from ingest_bench.network.plan import netem

MS = 10**6
UNSHAPED = Handshakes([MS] * 20, 1448, 1500)
DELAYED = Profile(name="delayed", to_server=Impairment(delay_ns=25 * MS), to_client=Impairment(delay_ns=25 * MS))
SMALL = Profile(name="small", mtu_bytes=1400)


def check(profile: Profile, before: Handshakes, now: Handshakes) -> dict[str, bool | None]:
    return {result.name: result.passed for result in check_handshakes(profile, before, now)}


@pytest.mark.parametrize(
    ("profile", "before", "now", "expected"),
    [
        (DELAYED, UNSHAPED, Handshakes([51 * MS] * 20, 1448, 1500), {"rtt": True, "mtu": True, "mss": True}),
        (DELAYED, UNSHAPED, Handshakes([51 * MS] * 20, 1460, 1500), {"rtt": True, "mtu": True, "mss": True}),
        # The path was not shaped at all, or twice.
        (DELAYED, UNSHAPED, UNSHAPED, {"rtt": False, "mtu": True, "mss": True}),
        (DELAYED, UNSHAPED, Handshakes([101 * MS] * 20, 1448, 1500), {"rtt": False, "mtu": True, "mss": True}),
        # No replies before, or after shaping.
        (DELAYED, Handshakes([], 0, 0), Handshakes([51 * MS], 1448, 1500), {"rtt": None, "mtu": True, "mss": True}),
        (DELAYED, UNSHAPED, Handshakes([], 0, 0), {"rtt": False, "mtu": False, "mss": False}),
        (DELAYED, Handshakes([], 0, 0), Handshakes([], 0, 0), {"rtt": None, "mtu": None, "mss": None}),
        # The unshaped path varies too much.
        (DELAYED, Handshakes([MS] * 10 + [9 * MS] * 10, 1448, 1500), UNSHAPED, {"rtt": None, "mtu": True, "mss": True}),
        (SMALL, UNSHAPED, Handshakes([MS] * 20, 1348, 1400), {"rtt": True, "mtu": True, "mss": True}),
        (SMALL, UNSHAPED, UNSHAPED, {"rtt": True, "mtu": False, "mss": False}),
        # A tunnel on the path is narrower than the profile.
        (SMALL, Handshakes([MS] * 20, 1228, 1280), Handshakes([MS] * 20, 1228, 1280),
         {"rtt": True, "mtu": None, "mss": None}),
    ],
)  # fmt: skip
def test_handshakes_pass_fail_or_do_not_measure_a_check(
    profile: Profile, before: Handshakes, now: Handshakes, expected: dict[str, bool | None]
) -> None:
    assert check(profile, before, now) == expected


def test_ipv6_handshakes_expect_shorter_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _host, port, **options: resolve("::1", port, **options))
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        handshakes = shaped_path.measure_handshakes(Endpoint("server.test", server.getsockname()[1]))
    assert len(handshakes.rtts_ns) == 20
    assert handshakes.is_ipv6
    ipv6 = Handshakes([MS] * 20, 1500 - 60 - 12, 1500, is_ipv6=True)
    assert check(Profile(name="plain"), ipv6, ipv6)["mss"] is True
    assert check(Profile(name="plain"), UNSHAPED, dataclasses.replace(UNSHAPED, is_ipv6=True))["mss"] is False


def test_refusing_address_is_not_flooded_and_the_next_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve, tried = socket.getaddrinfo, []
    connect = socket.socket.connect

    def count(self: socket.socket, address: Any) -> None:
        tried.append(address)
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", count)
    monkeypatch.setattr(shaped_path, "_REFUSED_PAUSE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        both = resolve("::1", port, type=socket.SOCK_STREAM) + resolve("127.0.0.1", port, type=socket.SOCK_STREAM)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
        assert len(shaped_path.measure_handshakes(Endpoint("server.test", port)).rtts_ns) == 20
        assert len(tried) == 21
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both[:1])
        monkeypatch.setattr(shaped_path, "_HANDSHAKES_S", 0.4)
        assert shaped_path.measure_handshakes(Endpoint("server.test", port)) == Handshakes([], 0, 0, is_ipv6=True)
    assert len(tried) <= 21 + 3


def test_jitter_above_the_delay_has_no_expected_rtt() -> None:
    wild = Profile(name="wild", to_server=Impairment(delay_ns=MS, jitter_ns=5 * MS))
    assert check(wild, UNSHAPED, UNSHAPED)["rtt"] is None


@pytest.mark.parametrize(
    ("used_bps", "expected"), [(8_000_000, True), (7_600_000, True), (8_600_000, False), (4_000_000, None), (0, None)]
)
def test_rate_is_measured_only_if_the_load_used_it_up(used_bps: int, expected: bool | None) -> None:
    points = [(at / 4, used_bps * at // 32) for at in range(20)]
    assert check_rate("rate", 8_000_000, 3028, points).passed is expected
    assert check_rate("rate", 8_000_000, 3028, []).passed is None


@pytest.mark.parametrize(
    ("rate_bps", "burst_bytes"), [(20_000, None), (100_000, None), (256_000, None), (8 * 10**6, 10**6)]
)
@pytest.mark.parametrize(("speedup", "passed"), [(1, True), (1.6, False), (3, False)])
def test_saved_tokens_of_a_bucket_do_not_exceed_the_rate(
    rate_bps: int, burst_bytes: int | None, speedup: float, passed: bool
) -> None:
    impairment = Impairment(rate_bps=rate_bps, burst_bytes=burst_bytes)
    saved_bytes = netem.bucket_bytes(impairment, 1500)
    # Full frames always wait, and leave as soon as the bucket has enough tokens. Sampled four times a second.
    tokens, sent, points = float(saved_bytes), 0, [(0.0, 0)]
    for at_ms in range(1, 40_001):
        tokens = min(saved_bytes, tokens + rate_bps * speedup / 8000)
        frames = int(tokens // 1514)
        tokens, sent = tokens - frames * 1514, sent + frames * 1514
        if not at_ms % 250:
            points.append((at_ms / 1000, sent))
    path = ShapedPath(
        interface=cast(
            "Any", SimpleNamespace(profile=Profile(name="x", to_server=impairment), devices={"to-server": "x"})
        ),
        checks=(),
        points={"to-server": points},
    )
    (result,) = path.check_load()
    assert result.passed is passed


def test_failed_check_makes_a_run_invalid_and_unmeasured_one_does_not() -> None:
    for used_bps, reasons in ((1_000_000, 0), (16_000_000, 1)):
        result = check_rate("rate", 8_000_000, 3028, [(at / 4, used_bps * at // 32) for at in range(20)])
        record = RunRecord(run="r", replicate=1, cell="c", levels={}, state="measured", link_checks=(result,))
        found_reasons = integrity.find_invalid_reasons(record, np.empty(0), None, {})
        assert sum(reason.kind == "link check" for reason in found_reasons) == reasons


URL = {"url": "http://192.0.2.7:9200"}


@pytest.mark.parametrize(
    ("running", "overrides", "reason"),
    [
        (URL | {"interface": {"name": "eth1"}}, (), "target.interface requires a profile"),
        (URL | {"interface": {"name": "eth 1"}}, ("network=ethernet",), "is not an interface's name"),
        (URL | {"interface": {"name": "eth1", "to": ["192.0.2.7"]}}, ("network=ethernet",), "the port is missing"),
        (URL | {"interface": {"name": "eth1"}}, ("network=ethernet", "peers.mtu=1400"), "peers.mtu"),
        (URL, ("network=ethernet",), "the network to the server of target.url is not shaped"),
    ],
)
def test_interface_requires_a_profile_and_a_network_an_interface(
    running: dict[str, Any], overrides: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(SpecError, match=reason):
        spec.load_experiment("running", overrides, running=running)


def test_each_network_level_is_a_cell() -> None:
    experiment = spec.load_experiment(
        "running", ("network=ethernet,wan-50ms",), running=URL | {"interface": {"name": "eth1"}}
    )
    cells = spec.build_cells(experiment)
    assert [cell.network.name for cell in cells if cell.network] == ["ethernet", "wan-50ms"]
    assert {cell.target.interface.name for cell in cells if cell.target.interface} == {"eth1"}


def test_interface_without_a_running_server_is_refused() -> None:
    with pytest.raises(SpecError, match=r"target\.interface requires target\.url"):
        spec.load_experiment("quickstart", fixed={"interface": {"name": "eth1"}})
