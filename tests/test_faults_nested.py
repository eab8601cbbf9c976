"""Each two faults that last, one within the other and one across the other's end: the state between, and after.

Those of a link have all their pairs here, and those of a process; `test_faults_pairs` has the pairs of all families.
"""

from __future__ import annotations

import itertools
import json
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_faults import Sleeper, lasting, with_nodes

from ingest_bench.experiment import catalog
from ingest_bench.faults import FAULTS, checks, timeline
from ingest_bench.faults.stage import Stage
from ingest_bench.model.experiment import Cell, Fault
from ingest_bench.model.load import LoadOptions
from ingest_bench.model.network import LinkName
from ingest_bench.model.target import TargetOptions
from ingest_bench.network.act.link import Link, link
from ingest_bench.network.act.links import Links

SHOW = """
ip -j neigh show dev "$1"; printf '\\n--\\n'
tc filter show dev "$1" ingress; printf '\\n--\\n'
tc -j qdisc show dev "$1"
"""
State = dict[tuple[str, str], Any]


@pytest.fixture
def of_links(tmp_path: Path) -> list[Fault]:
    """Each kind that lasts on a link, and one of them in one direction only."""
    (tmp_path / "trace").write_text("0,20mbit\n")
    return [
        lasting("partition"),
        lasting("partition", direction="to-server"),
        lasting("blackhole"),
        lasting("mtu-blackhole", mtu_bytes=1400),
        lasting("mtu-blackhole", mtu_bytes=1300, icmp="sent"),
        lasting("profile", profile="ethernet-100m"),
        lasting("throttle", rate_bps=50_000_000),
        lasting("trace", trace=str(tmp_path / "trace")),
    ]


def state(made: Link) -> State:
    """What the kernel has of a link: whom frames go to, what swallows them, and how quick it is."""
    found: State = {}
    for end in made.ends:
        neighbours, filters, shown = end.namespace.run(("sh", "-c", SHOW, "sh", end.device)).split("\n--\n")
        found |= {
            (end.device, each["dst"]): each["lladdr"] for each in json.loads(neighbours) if "PERMANENT" in each["state"]
        }
        for line in filters.splitlines():
            if "pref" in line and "handle" in line:
                found[end.device, "pref " + line.partition(" pref ")[2].split()[0]] = re.sub(" id [0-9]+", "", line)
        found[end.device, "queues"] = [
            (each["kind"], each["options"]) for each in json.loads(shown) if each["kind"] not in ("clsact", "noqueue")
        ]
    return found


@pytest.mark.nightly
@pytest.mark.netns
def test_each_two_faults_of_a_link_nest_and_cross(of_links: list[Fault]) -> None:
    assert {fault.kind for fault in of_links} == {
        name for name, kind in FAULTS.items() if kind.hits == "link" and kind.lasts
    }
    ethernet = catalog.profile("ethernet")
    cell = Cell(
        name="c", levels={}, network=ethernet, target=TargetOptions(), load=LoadOptions(), faults=tuple(of_links)
    )
    with link(ethernet, later=tuple(checks.states(cell)[LinkName((1,))])) as made:
        stage, base = Stage(links=Links(by_name={LinkName((1,)): made})), state(made)
        alone = []
        for fault in of_links:
            begun = timeline.begin(fault, stage)
            alone.append(state(made))
            begun.end()
            assert alone[-1] != base, fault
            assert state(made) == base, fault
        for (outer, outers), (inner, inners) in itertools.product(zip(of_links, alone, strict=True), repeat=2):
            # What the later one changes is as it says; all else is as the earlier one says.
            between = {**outers, **{what: value for what, value in inners.items() if base.get(what) != value}}
            for earlier_ends_first in (False, True):
                both = [timeline.begin(fault, stage) for fault in (outer, inner)]
                assert state(made) == between, (outer, inner)
                both.pop(0 if earlier_ends_first else 1).end()
                assert state(made) == (inners if earlier_ends_first else outers), (outer, inner)
                both.pop().end()
                assert state(made) == base, (outer, inner)


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    one = Sleeper()
    yield one
    one.kill()


def state_of(one: Sleeper) -> tuple[bool, bool]:
    """Whether it stands still, and whether it can open hardly any file."""
    most = resource.prlimit(one.jvm_pid, resource.RLIMIT_NOFILE)[0]
    return one.stands_still(), most < 100


# What each that lasts does to a node; a node that is killed has no state until it is back.
OF_NODES = {"pause": (True, False), "file-descriptors": (False, True), "kill": None}


def test_each_two_faults_of_a_node_nest_and_cross(sleeper: Sleeper) -> None:
    stage = with_nodes([sleeper])
    assert state_of(sleeper) == (False, False)
    for outer, inner, earlier_ends_first in itertools.product(OF_NODES, OF_NODES, (False, True)):
        begun = [(kind, timeline.begin(lasting(kind), stage)) for kind in (outer, inner)]
        assert now(sleeper, stage) == together(outer, inner), (outer, inner)
        begun.pop(0 if earlier_ends_first else 1)[1].end()
        assert now(sleeper, stage) == OF_NODES[begun[0][0]], (outer, inner)
        begun.pop()[1].end()
        assert now(sleeper, stage) == (False, False), (outer, inner)


def now(one: Sleeper, stage: Stage) -> tuple[bool, bool] | None:
    assert stage.nodes[0].is_down == (one.popen.poll() is not None)
    return None if stage.nodes[0].is_down else state_of(one)


def together(*kinds: str) -> tuple[bool, bool] | None:
    return None if "kill" in kinds else ("pause" in kinds, "file-descriptors" in kinds)
