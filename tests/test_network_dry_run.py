from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

import pytest

from ingest_bench import catalog, data, network, system
from ingest_bench.errors import MissingCapability
from ingest_bench.model.network import Impairment, Profile
from ingest_bench.network.act import uml
from ingest_bench.network.act.box import choose
from ingest_bench.network.plan import link_plan

SLOW = Impairment(rate_bps=10**7)
MADE_UP = Profile(
    name="made-up",
    mtu_bytes=1400,
    mss_bytes=1000,
    gso_max_segs=1,
    gso_max_size_bytes=20_000,
    offloads={"tso": False, "gso": False},
    tcp_rmem_bytes=(4096, 65536, 262144),
    to_server=SLOW,
)
PROFILES = [MADE_UP, *map(catalog.profile, data.files("netem"))]


FAR = Profile(name="far", to_server=Impairment(delay_ns=10**7), to_client=Impairment(delay_ns=10**7, rate_bps=10**7))


def commands_of_making(profile: Profile, backend: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that a link is really made with, in the words of the dry run."""
    ran: list[tuple[str, tuple[str, ...], str]] = []
    run, run_in_guest = system.run, uml.Guest.run

    def spy(argv: Sequence[str], **options: Any) -> str:
        if "--target" in argv:
            place = argv[list(argv).index("--target") + 1]
            ran.append((place, tuple(argv[list(argv).index("--") + 1 :]), options.get("stdin") or ""))
        return run(argv, **options)

    def spy_in_guest(guest: uml.Guest, argv: Sequence[str], **options: Any) -> str:
        ran.append(("box", tuple(argv), options.get("stdin") or ""))
        return run_in_guest(guest, argv, **options)

    if backend != "plain":
        choose(backend, (profile,))  # What it tries in order to choose is no part of the making.
    monkeypatch.setattr(system, "run", spy)
    monkeypatch.setattr(uml.Guest, "run", spy_in_guest)
    with network.link(profile, netem="auto" if backend == "plain" else backend) as link:
        names = {str(link.server.pid): "server", str(link.client.pid): "client", "box": "box"}
    lines = []
    for place, argv, stdin in ran:
        batch = argv[1:] == ("-batch", "-")
        said = [f"{argv[0]} {line}" for line in stdin.splitlines()] if batch else [shlex.join(argv)]
        if argv[0] == "sh":
            said = [argv[-1]]
        lines += [f"{names.get(place, 'around the box')}: {line}" for line in said]
    return [re.sub(r" netns (\d+)", lambda match: f" netns {names[match[1]]}", line) for line in lines]


@pytest.mark.netns
@pytest.mark.parametrize("profile", [p for p in PROFILES if not p.needs_netem], ids=lambda profile: profile.name)
def test_a_link_is_made_with_exactly_the_commands_of_its_dry_run(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commands_of_making(profile, "plain", monkeypatch) == list(link_plan.lines(profile, "plain"))


@pytest.mark.netem
def test_a_box_is_made_with_exactly_the_commands_of_its_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        backend = choose("auto", (FAR,))
    except MissingCapability as error:
        pytest.skip(str(error))
    made = commands_of_making(FAR, backend, monkeypatch)
    assert made == [line for line in link_plan.lines(FAR, backend) if "linux.uml" not in line]


@pytest.mark.parametrize("backend", ["kernel", "uml"])
def test_with_netem_the_queues_are_in_the_box(backend: str) -> None:
    lines = link_plan.lines(FAR, backend)
    assert [line.split(" handle ")[0] for line in lines if " netem " in line] == [
        "box: tc qdisc replace dev to-server root",
        "box: tc qdisc replace dev to-client root",
        "box: tc qdisc replace dev to-client parent 1:1",
    ]
    assert any(line.startswith("box: linux.uml ") for line in lines) == (backend == "uml")
