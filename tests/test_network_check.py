"""Promises on real links, kept and broken; and what is told of the load's time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ordinary_user
import pytest
from readied import ready

from ingest_bench.experiment import catalog
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act import box
from ingest_bench.network.act.link import Link, link
from ingest_bench.network.link_capabilities import capabilities
from ingest_bench.network.measure.check import check
from ingest_bench.network.measure.readings import readings
from ingest_bench.network.measure.wire import watch_wire

pytestmark = pytest.mark.netns

POUR = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 9), timeout=60)
connection.sendall(bytes(int(sys.argv[2])))
connection.shutdown(1)
connection.recv(1)
"""
DRAIN = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 9))
print("ready", flush=True)
connection, _ = listener.accept()
time.sleep(float(sys.argv[2]))
while connection.recv(1 << 20):
    pass
"""


def send(made: Link, count_bytes: int, wait_s: float = 0) -> None:
    """That many bytes from the client to a server that first waits."""
    argv = made.server.command((sys.executable, "-c", DRAIN, made.server_address, str(wait_s)))
    with ready(argv):
        argv = made.client.command((sys.executable, "-c", POUR, made.server_address, str(count_bytes)))
        subprocess.run(argv, check=True, timeout=60)


def kept(made: Link) -> dict[str, bool | None]:
    return {promise.name: promise.kept for promise in check(made)}


@pytest.mark.measures
@pytest.mark.parametrize(
    "name", ["loopback", "ethernet", "ethernet-100m", "jumbo", "tiny-segments", "unshaped", "datacenter-25g-like"]
)
def test_a_link_keeps_every_promise_of_its_profile(name: str) -> None:
    with link(catalog.profile(name)) as made:
        promises = check(made)
    assert [promise for promise in promises if not promise.kept] == []
    names = {promise.name for promise in promises}
    assert {"rtt", "mtu to-server", "mtu to-client", "mss to-server", "loss to-client", "qdisc to-server"} <= names
    assert (
        ("rate to-server" in names)
        == ("bulk to-client" in names)
        == (catalog.profile(name).to_client.rate_bps is not None)
    )


BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("mtu to-server", {"mtu_bytes": 1400}),
    ("mss to-client", {"mss_bytes": 1000}),
    ("congestion control to-server", {"congestion_control": "reno"}),
    ("rate to-server", {"to_server": Impairment(rate_bps=60 * 10**6)}),
    ("qdisc to-client", {"to_client": Impairment(rate_bps=10**8, delay_ns=10**6)}),
    ("rtt", {"to_client": Impairment(rate_bps=10**8, delay_ns=20 * 10**6)}),
    ("loss to-server", {"to_server": Impairment(rate_bps=10**8, loss_ppm=50_000)}),
    ("jitter to-server", {"to_server": Impairment(rate_bps=10**8, delay_ns=10**7, jitter_ns=4 * 10**6)}),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "other"), BROKEN)
def test_a_link_in_another_state_than_its_profile_breaks_the_promise(name: str, other: dict[str, Any]) -> None:
    with link(catalog.profile("ethernet-100m")) as made:
        made.profile = replace(made.profile, **other)
        found = kept(made)
    assert found[name] is False
    assert found["loss to-client"] is True


@pytest.mark.nightly
@pytest.mark.measures
@pytest.mark.parametrize("name", ["ethernet", "ethernet-100m"])
def test_a_bucket_that_lets_a_bulk_pass_at_once_is_found_out_though_it_keeps_the_rate(name: str) -> None:
    profile = catalog.profile(name)
    rate_bps = profile.to_server.rate_bps
    assert rate_bps is not None
    # 2 ms of the rate.
    bucket = replace(profile.to_server, burst_bytes=rate_bps // 8 // 500)
    with link(replace(profile, to_server=bucket)) as made:
        asked = {promise.name for promise in check(made)}
        made.profile = profile
        found = kept(made)
    assert "bulk to-server" not in asked
    assert (found["bulk to-server"], found["rate to-server"], found["bulk to-client"]) == (False, True, True)


@pytest.mark.measures
def test_beside_a_device_whose_name_is_no_text_a_rate_is_measured() -> None:
    with link(catalog.profile("ethernet-100m")) as made:
        made.server.run(("ip", "link", "add", os.fsdecode(b"b\xfcro"), "type", "veth", "peer", "name", "far"))
        assert kept(made)["rate to-server"] is True


def test_segments_that_are_larger_than_promised_are_seen_on_the_wire() -> None:
    with link(Profile(name="x")) as made:
        made.profile = replace(made.profile, gso_max_segs=1)
        assert kept(made)["frames to-server"] is False


@pytest.fixture
def _box_without_netem(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue with a limit of its own asks for a box; a token bucket in it needs no netem of this kernel."""
    monkeypatch.setattr(box, "BOXES", {"kernel": lambda: ""})


@pytest.mark.measures
@pytest.mark.usefixtures("_box_without_netem")
def test_a_box_in_the_middle_is_part_of_the_path_and_keeps_its_promises() -> None:
    state = Profile(name="x", gso_max_segs=1, to_server=Impairment(rate_bps=50 * 10**6, limit_packets=100))
    with link(state) as made:
        assert made.backend == "kernel"
        assert [promise for promise in check(made) if not promise.kept] == []
        send(made, 1_000_000)
        assert isinstance(readings(made)["wire_packets"], int)


@pytest.mark.usefixtures("_box_without_netem")
def test_packets_that_the_link_drops_are_a_loss() -> None:
    narrow = Profile(name="x", gso_max_segs=1, to_server=Impairment(rate_bps=10**6, limit_packets=5))
    with link(narrow) as made:
        made.profile = replace(narrow, to_server=Impairment())
        found = kept(made)
        assert found["loss to-server"] is False
        assert found["loss to-client"] is True


@pytest.mark.measures
def test_a_watched_wire_shows_the_frames_and_what_tcp_knows(tmp_path: Path) -> None:
    with link(catalog.profile("ethernet")) as made:
        promises = check(made)
        with watch_wire(made, tmp_path / "wire.json"):
            send(made, 100_000_000)
        told = readings(made, wires=(tmp_path / "wire.json",))
    seen = json.loads((tmp_path / "wire.json").read_text())
    assert told["wire_bytes_p50"] == 1514
    assert told["mss"] == 1448
    assert isinstance(told["rtt_ms"], float)
    (rtt,) = (promise for promise in promises if promise.name == "rtt")
    assert isinstance(told["rtts"], int)
    assert told["rtts"] > 0
    assert isinstance(told["idle_rtt_ms"], float)
    assert isinstance(told["idle_rtts"], int)
    assert told["idle_rtts"] > 9
    assert f", {told['idle_rtt_ms']:.2f} ms, " in rtt.measured
    assert told["loss_ppm"] == 0
    # 100 MB are 69061 full segments; at most each is acknowledged by a packet of its own.
    assert isinstance(told["wire_packets"], int)
    assert 69061 <= told["wire_packets"] < 69061 * 2.5
    assert 0.7 < sum(seen["to-server"]["frames"].values()) / 69061 < 1.3
    assert seen["to-server"]["looked_at"] > 300
    assert max(map(int, seen["to-client"]["frames"]), default=0) < 100


@pytest.mark.measures
def test_a_loopbacks_wire_is_watched_by_direction(tmp_path: Path) -> None:
    with link(catalog.profile("loopback")) as made:
        with watch_wire(made, tmp_path / "wire.json"):
            send(made, 200_000_000)
        told = readings(made, wires=(tmp_path / "wire.json",))
    seen = json.loads((tmp_path / "wire.json").read_text())
    assert isinstance(told["wire_bytes_p50"], int)
    assert told["wire_bytes_p50"] > 30_000
    # 200 MB are some 3,000 frames of 64 KiB.
    assert seen["to-server"]["looked_at"] > 100
    assert told["wire_packets"] is None
    assert max(map(int, seen["to-client"]["frames"]), default=0) < 100


def test_a_server_that_does_not_read_shows_as_zero_windows() -> None:
    with link(catalog.profile("ethernet", {"tcp_rmem": "4096 16384 65536"})) as made:
        send(made, 1_000_000)
        quick = readings(made)["zero_windows"]
        send(made, 1_000_000, wait_s=0.5)
        slow = readings(made)["zero_windows"]
    assert isinstance(quick, int)
    assert isinstance(slow, int)
    assert slow > 0
    assert slow >= quick


def test_a_wire_that_nobody_watched_is_unavailable_and_not_zero(tmp_path: Path) -> None:
    with link(catalog.profile("ethernet")) as made:
        told = readings(made, wires=(tmp_path / "wire.json",))
    assert told["wire_bytes_p50"] is None
    assert told["mss"] is None
    assert told["loss_ppm"] is None


@pytest.mark.nightly
@pytest.mark.measures
def test_an_ordinary_user_proves_the_same_links() -> None:
    names = "keeps_every_promise and (loopback or ethernet) or watched_wire"
    ordinary_user.repeat(__file__, promised="netns", limit_s=300, names=names)


def test_what_this_machine_can_do_is_found_by_trying() -> None:
    found = {capability.name: capability for capability in capabilities()}
    assert {"programs", "namespaces", "veth pairs", "token bucket", "netem by kernel", "netem by uml"} <= set(found)
    assert found["namespaces"].present
    assert found["veth pairs"].present
    for capability in found.values():
        assert capability.detail
        assert capability.present or capability.remedy or "Install" in capability.detail
