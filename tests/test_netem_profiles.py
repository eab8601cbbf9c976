"""Promised against measured: every shipped profile, through the User-Mode Linux box where it needs netem."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ingest_bench import data
from ingest_bench.network import check, link, load_profile, readings, uml
from ingest_bench.network.link import Link

pytestmark = pytest.mark.netem

NAMES = sorted(data.files("netem"))
assert "wan-50ms" in NAMES, "an empty list would test nothing"

ECHO = """
import socket, sys
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind((sys.argv[1], 9))
print("ready", flush=True)
while True:
    data, peer = taken.recvfrom(2048)
    taken.sendto(data, peer)
"""
# One datagram after the other; the nanoseconds of those that came back.
ASK = """
import json, socket, sys, time
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked.connect((sys.argv[1], 9))
asked.settimeout(3)
took = []
for number in range(int(sys.argv[2])):
    began = time.perf_counter_ns()
    asked.send(number.to_bytes(4, "big"))
    try:
        while int.from_bytes(asked.recv(2048), "big") != number:
            pass
    except TimeoutError:
        continue
    took.append(time.perf_counter_ns() - began)
    time.sleep(0.005)
print(json.dumps(took))
"""


@pytest.fixture(params=NAMES)
def made(request: pytest.FixtureRequest) -> Iterator[Link]:
    if uml.complaint():
        pytest.skip(uml.complaint())
    with link(load_profile(request.param), netem="uml") as opened:
        yield opened


def median_rtt_ns(made: Link, count: int) -> float:
    argv = made.server.command((sys.executable, "-c", ECHO, made.server_address))
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as echo:
        assert echo.stdout is not None
        try:
            assert echo.stdout.readline() == b"ready\n"
            argv = made.client.command((sys.executable, "-c", ASK, made.server_address, str(count)))
            said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=200).stdout
        finally:
            echo.kill()
    return statistics.median(json.loads(said))


def test_a_shipped_profile_keeps_every_promise(made: Link) -> None:
    assert made.backend == ("uml" if made.profile.needs_netem else "plain")
    promises = check(made)
    assert [promise for promise in promises if not promise.kept] == []
    names = {promise.name for promise in promises}
    both = {f"{what} {way}" for what in ("mtu", "loss", "mss", "qdisc") for way in ("to-server", "to-client")}
    assert both | {"rtt"} <= names
    rates = {"to-server": made.profile.to_server.rate_bps, "to-client": made.profile.to_client.rate_bps}
    assert {f"rate {way}" for way, rate in rates.items() if rate} <= names
    assert readings(made)["retransmits"] == 0


def test_the_median_round_trip_of_a_shipped_profile_is_the_promised_one(made: Link) -> None:
    """Stricter than `check`, which takes a low quantile so that a busy machine's pauses do not break a promise."""
    promised_ns = made.profile.to_server.delay_ns + made.profile.to_client.delay_ns
    allowed_ns = max(0.05 * promised_ns, 10**6)
    seen = []
    for _ in range(4):
        seen.append(median_rtt_ns(made, 20 if promised_ns > 10**8 else 60))
        if abs(seen[-1] - promised_ns) <= allowed_ns:
            return
    pytest.fail(f"promised {promised_ns / 1e6} ms, medians {[found / 1e6 for found in seen]} ms")
