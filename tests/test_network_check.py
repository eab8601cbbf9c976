"""Checks of real links that pass and fail, and columns of a load."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from standing_link import send

from ingest_bench.experiment import catalog
from ingest_bench.inputs import files
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act import link as link_module
from ingest_bench.network.act import uml
from ingest_bench.network.act.link import Link, open_link
from ingest_bench.network.measure.check import check_link
from ingest_bench.network.measure.readings import link_columns
from ingest_bench.network.measure.wire import watch_wire

pytestmark = pytest.mark.netns


def check_passed(link: Link) -> dict[str, bool | None]:
    return {check.name: check.passed for check in check_link(link)}


BACKENDS = ("uml",) if link_module.find_kernel_netem_problem() else ("uml", "kernel")
WITHOUT_NETEM = (
    *("loopback", "ethernet", "ethernet-100m", "jumbo", "tiny-segments", "unshaped", "datacenter-25g-like"),
    *("aws-9001", "gcp-1460", "gcp-8896", "overlay-1450"),
)
WITH_NETEM = sorted({*files.data_files("netem")} - {*WITHOUT_NETEM})
assert "wan-50ms" in WITH_NETEM, "an empty list would test nothing"
SHIPPED = [
    *(pytest.param(name, "plain", marks=pytest.mark.measures) for name in WITHOUT_NETEM),
    *(
        pytest.param(name, backend, marks=[pytest.mark.netem, pytest.mark.nightly])
        for name in WITH_NETEM
        for backend in BACKENDS
    ),
]


@pytest.mark.parametrize(("name", "backend"), SHIPPED)
def test_shipped_profile_passes_every_check(name: str, backend: str) -> None:
    profile = catalog.load_profile(name)
    if backend == "uml" and uml.find_uml_problem():
        pytest.skip(uml.find_uml_problem())
    with open_link(profile, netem="auto" if backend == "plain" else backend) as link:
        assert link.backend == backend
        checks = check_link(link)
        columns = link_columns(link)
    assert [check for check in checks if not check.passed] == []
    directions = {"to-server": profile.to_server, "to-client": profile.to_client}
    expected = {f"{kind} {direction}" for kind in ("mtu", "loss", "mss", "qdisc") for direction in directions}
    for direction, impairment in directions.items():
        if impairment.rate_bps is not None:
            expected |= {f"rate {direction}", f"burst {direction}"}
    assert expected | {"rtt"} <= {check.name for check in checks}
    assert columns["retransmits"] == 0


def test_every_property_in_another_state_fails_its_check() -> None:
    to_server = Impairment(rate_bps=60 * 10**6, loss_ppm=50_000, delay_ns=10**7, jitter_ns=4 * 10**6)
    with open_link(replace(catalog.load_profile("ethernet-100m"), gso_max_segs=None)) as link:
        link.profile = replace(
            link.profile,
            mtu_bytes=1400,
            mss_bytes=1000,
            gso_max_segs=1,
            congestion_control="reno",
            to_server=to_server,
        )
        passed = check_passed(link)
    names = ("mtu", "mss", "frames", "congestion control", "rate", "loss", "jitter", "qdisc")
    assert {passed[f"{name} to-server"] for name in names} == {passed["rtt"]} == {False}
    assert passed["loss to-client"] is True


@pytest.mark.nightly
@pytest.mark.measures
@pytest.mark.parametrize("name", ["ethernet", "ethernet-100m"])
def test_bucket_that_passes_a_burst_fails_though_it_keeps_the_rate(name: str) -> None:
    profile = catalog.load_profile(name)
    rate_bps = profile.to_server.rate_bps
    assert rate_bps is not None
    # 2 ms of the rate.
    bucket = replace(profile.to_server, burst_bytes=rate_bps // 8 // 500)
    with open_link(replace(profile, to_server=bucket)) as link:
        names = {check.name for check in check_link(link)}
        link.profile = profile
        passed = check_passed(link)
    assert "burst to-server" not in names
    assert (passed["burst to-server"], passed["rate to-server"], passed["burst to-client"]) == (False, True, True)


@pytest.fixture
def _router_without_netem(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue limit requires a router; a token bucket in it does not need netem in this kernel."""
    monkeypatch.setattr(link_module, "NETEM_CHECKS", {"kernel": lambda: ""})


@pytest.mark.measures
@pytest.mark.usefixtures("_router_without_netem")
def test_kernel_router_passes_all_checks() -> None:
    state = Profile(name="x", gso_max_segs=1, to_server=Impairment(rate_bps=50 * 10**6, limit_packets=100))
    with open_link(state) as link:
        assert link.backend == "kernel"
        # The rate is measured despite a device name that is not text.
        link.server.run(("ip", "link", "add", os.fsdecode(b"b\xfcro"), "type", "veth", "peer", "name", "far"))
        assert [check for check in check_link(link) if not check.passed] == []
        send(link, 1_000_000)
        assert isinstance(link_columns(link)["wire_packets"], int)


@pytest.mark.usefixtures("_router_without_netem")
def test_dropped_packets_fail_the_loss_check() -> None:
    narrow = Profile(name="x", gso_max_segs=1, to_server=Impairment(rate_bps=10**6, limit_packets=5))
    with open_link(narrow) as link:
        link.profile = replace(narrow, to_server=Impairment())
        passed = check_passed(link)
        assert passed["loss to-server"] is False
        assert passed["loss to-client"] is True


@pytest.mark.measures
def test_watched_wire_has_frame_sizes_and_tcp_values(tmp_path: Path) -> None:
    with open_link(catalog.load_profile("ethernet")) as link:
        checks = check_link(link)
        with watch_wire(link, tmp_path / "wire.json"):
            send(link, 100_000_000)
        columns: dict[str, Any] = dict(link_columns(link, wires=(tmp_path / "wire.json",)))
    record = json.loads((tmp_path / "wire.json").read_text())
    assert columns["wire_bytes_p50"] == 1514
    assert columns["mss"] == 1448
    assert columns["rtt_ms"] > 0
    (rtt,) = (check for check in checks if check.name == "rtt")
    assert columns["rtt_samples"] > 0
    assert columns["idle_rtt_samples"] > 9
    assert f", {columns['idle_rtt_ms']:.2f} ms, " in rtt.measured
    assert columns["loss_ppm"] == 0
    # 100 MB are 69061 full segments; at most one acknowledgement each.
    assert 69061 <= columns["wire_packets"] < 69061 * 2.5
    assert 0.7 < sum(record["to-server"]["frames"].values()) / 69061 < 1.3
    assert record["to-server"]["sampled_frames"] > 300
    assert max(map(int, record["to-client"]["frames"]), default=0) < 100


@pytest.mark.measures
def test_wire_of_a_loopback_is_watched_by_direction(tmp_path: Path) -> None:
    with open_link(catalog.load_profile("loopback")) as link:
        with watch_wire(link, tmp_path / "wire.json"):
            send(link, 200_000_000)
        columns: dict[str, Any] = dict(link_columns(link, wires=(tmp_path / "wire.json",)))
    record = json.loads((tmp_path / "wire.json").read_text())
    assert columns["wire_bytes_p50"] > 30_000
    # 200 MB are some 3,000 frames of 64 KiB.
    assert record["to-server"]["sampled_frames"] > 100
    assert columns["wire_packets"] is None
    assert max(map(int, record["to-client"]["frames"]), default=0) < 100


def test_server_that_does_not_read_sends_zero_windows() -> None:
    with open_link(catalog.load_profile("ethernet", {"tcp_rmem": "4096 16384 65536"})) as link:
        send(link, 1_000_000, wait_s=0.5)
        columns: dict[str, Any] = dict(link_columns(link))
    assert columns["zero_windows"] > 0
