"""What one end of a path can tell: kept, broken, or not measured, and never kept without a measurement."""

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
from ingest_bench.network.measure import one_end
from ingest_bench.network.measure.one_end import Handshakes, OneEnd, of_handshakes, rate
from ingest_bench.network.plan import netem

MS = 10**6
NEAR = Handshakes([MS] * 20, 1448, 1500)
FAR = Profile(name="far", to_server=Impairment(delay_ns=25 * MS), to_client=Impairment(delay_ns=25 * MS))
SMALL = Profile(name="small", mtu_bytes=1400)


def kept(profile: Profile, before: Handshakes, now: Handshakes) -> dict[str, bool | None]:
    return {promise.name: promise.kept for promise in of_handshakes(profile, before, now)}


@pytest.mark.parametrize(
    ("profile", "before", "now", "expected"),
    [
        (FAR, NEAR, Handshakes([51 * MS] * 20, 1448, 1500), {"rtt": True, "mtu": True, "mss": True}),
        (FAR, NEAR, Handshakes([51 * MS] * 20, 1460, 1500), {"rtt": True, "mtu": True, "mss": True}),
        # The path was not shaped at all, or twice.
        (FAR, NEAR, NEAR, {"rtt": False, "mtu": True, "mss": True}),
        (FAR, NEAR, Handshakes([101 * MS] * 20, 1448, 1500), {"rtt": False, "mtu": True, "mss": True}),
        # Nobody answered before, or nobody does now.
        (FAR, Handshakes([], 0, 0), Handshakes([51 * MS], 1448, 1500), {"rtt": None, "mtu": True, "mss": True}),
        (FAR, NEAR, Handshakes([], 0, 0), {"rtt": False, "mtu": False, "mss": False}),
        (FAR, Handshakes([], 0, 0), Handshakes([], 0, 0), {"rtt": None, "mtu": None, "mss": None}),
        # The path varies by more than could be told.
        (FAR, Handshakes([MS] * 10 + [90 * MS] * 10, 1448, 1500), NEAR, {"rtt": None, "mtu": True, "mss": True}),
        (SMALL, NEAR, Handshakes([MS] * 20, 1348, 1400), {"rtt": True, "mtu": True, "mss": True}),
        (SMALL, NEAR, NEAR, {"rtt": True, "mtu": False, "mss": False}),
        # A tunnel on the way: what is narrower than the profile says nothing of it.
        (SMALL, Handshakes([MS] * 20, 1228, 1280), Handshakes([MS] * 20, 1228, 1280),
         {"rtt": True, "mtu": None, "mss": None}),
    ],
)  # fmt: skip
def test_handshakes_keep_break_or_leave_open_a_promise(
    profile: Profile, before: Handshakes, now: Handshakes, expected: dict[str, bool | None]
) -> None:
    assert kept(profile, before, now) == expected


def test_a_name_of_ipv6_alone_is_asked_by_it_and_its_segments_are_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    known = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _host, port, **words: known("::1", port, **words))
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        found = one_end.handshakes(Endpoint("server.test", server.getsockname()[1]))
    assert len(found.rtts_ns) == 20
    assert found.is_ipv6
    six = Handshakes([MS] * 20, 1500 - 60 - 12, 1500, is_ipv6=True)
    assert kept(Profile(name="plain"), six, six)["mss"] is True
    assert kept(Profile(name="plain"), NEAR, dataclasses.replace(NEAR, is_ipv6=True))["mss"] is False


def test_who_refuses_is_not_flooded_and_another_address_of_the_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    known, tried = socket.getaddrinfo, []
    connect = socket.socket.connect

    def counted(self: socket.socket, address: Any) -> None:
        tried.append(address)
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", counted)
    monkeypatch.setattr(one_end, "_HANDSHAKES_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        both = known("::1", port, type=socket.SOCK_STREAM) + known("127.0.0.1", port, type=socket.SOCK_STREAM)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
        assert len(one_end.handshakes(Endpoint("server.test", port)).rtts_ns) == 20
        assert len(tried) == 21
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both[:1])
        assert one_end.handshakes(Endpoint("server.test", port)) == Handshakes([], 0, 0, is_ipv6=True)
    assert len(tried) <= 21 + 3


def test_slots_and_a_jitter_that_no_delay_holds_promise_no_round_trip() -> None:
    wild = Profile(name="wild", to_server=Impairment(delay_ns=MS, jitter_ns=5 * MS))
    assert kept(wild, NEAR, NEAR)["rtt"] is None


@pytest.mark.parametrize(
    ("used_bps", "expected"), [(8_000_000, True), (7_600_000, True), (8_600_000, False), (4_000_000, None), (0, None)]
)
def test_a_rate_is_known_only_where_the_load_used_it_up(used_bps: int, expected: bool | None) -> None:
    points = [(at / 4, used_bps * at // 32) for at in range(20)]
    assert rate("rate", 8_000_000, 3028, points).kept is expected
    assert rate("rate", 8_000_000, 3028, []).kept is None


@pytest.mark.parametrize(
    ("rate_bps", "burst_bytes"), [(20_000, None), (100_000, None), (256_000, None), (8 * 10**6, 10**6)]
)
@pytest.mark.parametrize(("faster", "kept"), [(1, True), (1.6, False), (3, False)])
def test_what_a_bucket_lets_through_after_a_pause_breaks_no_rate(
    rate_bps: int, burst_bytes: int | None, faster: float, kept: bool
) -> None:
    asked = Impairment(rate_bps=rate_bps, burst_bytes=burst_bytes)
    saved_bytes = netem.burst_bytes(asked, 1500)
    # Full frames wait all the time, and leave as soon as the bucket has enough for one; looked at four times a second.
    tokens, passed, points = float(saved_bytes), 0, [(0.0, 0)]
    for at_ms in range(1, 40_001):
        tokens = min(saved_bytes, tokens + rate_bps * faster / 8000)
        frames = int(tokens // 1514)
        tokens, passed = tokens - frames * 1514, passed + frames * 1514
        if not at_ms % 250:
            points.append((at_ms / 1000, passed))
    found = OneEnd(
        shaped=cast("Any", SimpleNamespace(profile=Profile(name="x", to_server=asked), devices={"to-server": "x"})),
        promises=(),
        points={"to-server": points},
    )
    (promise,) = found.of_load()
    assert promise.kept is kept


def test_a_promise_that_was_not_measured_makes_no_run_invalid_and_a_broken_one_does() -> None:
    for used_bps, reasons in ((1_000_000, 0), (16_000_000, 1)):
        promise = rate("rate", 8_000_000, 3028, [(at / 4, used_bps * at // 32) for at in range(20)])
        record = RunRecord(run="r", replicate=1, cell="c", levels={}, state="measured", promises=(promise,))
        said = integrity.verdict(record, np.empty(0), None, {})
        assert sum(reason.kind == "promise" for reason in said) == reasons


URL = {"url": "http://192.0.2.7:9200"}


@pytest.mark.parametrize(
    ("running", "overrides", "reason"),
    [
        (URL | {"interface": {"name": "eth1"}}, (), "shaped how. Choose a profile"),
        (URL | {"interface": {"name": "eth 1"}}, ("network=ethernet",), "is not an interface's name"),
        (URL | {"interface": {"name": "eth1", "to": ["192.0.2.7"]}}, ("network=ethernet",), "which port of it"),
        (URL | {"interface": {"name": "eth1"}}, ("network=ethernet", "peers.mtu=1400"), "peers.mtu"),
        (URL, ("network=ethernet",), "the network to the server of target.url is as it is"),
    ],
)
def test_an_interface_needs_a_profile_and_a_network_needs_an_interface(
    running: dict[str, Any], overrides: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(SpecError, match=reason):
        spec.load("running", overrides, running=running)


def test_each_level_of_the_network_is_a_cell_of_its_own() -> None:
    found = spec.load("running", ("network=ethernet,wan-50ms",), running=URL | {"interface": {"name": "eth1"}})
    cells = spec.cells(found)
    assert [cell.network.name for cell in cells if cell.network] == ["ethernet", "wan-50ms"]
    assert {cell.target.interface.name for cell in cells if cell.target.interface} == {"eth1"}


def test_an_interface_without_a_server_that_runs_already_is_refused() -> None:
    with pytest.raises(SpecError, match=r"there is no target\.url"):
        spec.load("quickstart", fixed={"interface": {"name": "eth1"}})
