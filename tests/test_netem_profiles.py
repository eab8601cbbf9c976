"""Promised against measured: every shipped profile, through each box that this machine has where it needs netem."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from ingest_bench.experiment import catalog
from ingest_bench.inputs import data
from ingest_bench.network.act import uml
from ingest_bench.network.act.box import kernel_complaint
from ingest_bench.network.act.link import Link, link
from ingest_bench.network.measure.check import check
from ingest_bench.network.measure.readings import readings

pytestmark = pytest.mark.netem

NAMES = sorted(data.files("netem"))
assert "wan-50ms" in NAMES, "an empty list would test nothing"
BOXES: tuple[Literal["uml", "kernel"], ...] = ("uml",) if kernel_complaint() else ("uml", "kernel")
LINES = {"wan-50ms", "transatlantic", "lossy-wifi", "lte", "satellite", "bufferbloat", "fair-queue"}


@pytest.fixture(params=BOXES)
def box(request: pytest.FixtureRequest) -> str:
    if request.param == "uml" and uml.complaint():
        pytest.skip(uml.complaint())
    return str(request.param)


@pytest.fixture(params=NAMES)
def made(request: pytest.FixtureRequest, box: Any) -> Iterator[Link]:
    with link(catalog.profile(request.param), netem=box) as opened:
        yield opened


@pytest.mark.nightly
def test_a_shipped_profile_keeps_every_promise(made: Link, box: str) -> None:
    assert made.backend == (box if made.profile.needs_netem else "plain")
    assert made.profile.needs_netem == (made.profile.name in LINES)
    promises = check(made)
    assert [promise for promise in promises if not promise.kept] == []
    names = {promise.name for promise in promises}
    both = {f"{what} {way}" for what in ("mtu", "loss", "mss", "qdisc") for way in ("to-server", "to-client")}
    assert both | {"rtt"} <= names
    rates = {"to-server": made.profile.to_server.rate_bps, "to-client": made.profile.to_client.rate_bps}
    assert {f"rate {way}" for way, rate in rates.items() if rate} <= names
    if made.profile.needs_netem:
        assert {"rate to-server", "bulk to-server", "bulk to-client"} <= names
    assert readings(made)["retransmits"] == 0
