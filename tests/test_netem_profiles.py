"""Promised against measured: every shipped profile, through the User-Mode Linux box where it needs netem."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ingest_bench.experiment import catalog
from ingest_bench.inputs import data
from ingest_bench.network import check, link, readings
from ingest_bench.network.act import uml
from ingest_bench.network.act.link import Link

pytestmark = pytest.mark.netem

NAMES = sorted(data.files("netem"))
assert "wan-50ms" in NAMES, "an empty list would test nothing"


@pytest.fixture(params=NAMES)
def made(request: pytest.FixtureRequest) -> Iterator[Link]:
    if uml.complaint():
        pytest.skip(uml.complaint())
    with link(catalog.profile(request.param), netem="uml") as opened:
        yield opened


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
