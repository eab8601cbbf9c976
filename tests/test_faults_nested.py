"""Every pair of faults of a link or a process, nested and crossing: the state between and after.

`test_faults_pairs` has pairs of faults of different scopes.
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
from fault_lab import NodeProcess, make_fault, make_links_stage, make_stage, open_link_for, start_processes

from ingest_bench.experiment import catalog
from ingest_bench.faults import FAULTS, timeline
from ingest_bench.model.experiment import Fault
from ingest_bench.network.act.link import Link

SHOW = """
ip -j neigh show dev "$1"; printf '\\n--\\n'
tc filter show dev "$1" ingress; printf '\\n--\\n'
tc -j qdisc show dev "$1"
"""
State = dict[tuple[str, str], Any]


@pytest.fixture
def link_faults(tmp_path: Path) -> list[Fault]:
    """Each kind with a duration, and one in one direction only."""
    (tmp_path / "trace").write_text("0,20mbit\n")
    return [
        make_fault("partition"),
        make_fault("partition", direction="to-server"),
        make_fault("blackhole"),
        make_fault("mtu-blackhole", mtu_bytes=1400),
        make_fault("mtu-blackhole", mtu_bytes=1300, icmp="sent"),
        make_fault("profile", profile="ethernet-100m"),
        make_fault("throttle", rate_bps=50_000_000),
        make_fault("trace", trace=str(tmp_path / "trace")),
    ]


def read_state(link: Link) -> State:
    """Return what the kernel shows of a link: receivers of frames, filters, and queues."""
    state: State = {}
    for end in link.ends:
        neighbours, filters, qdiscs = end.namespace.run(("sh", "-c", SHOW, "sh", end.device)).split("\n--\n")
        for entry in json.loads(neighbours):
            if "PERMANENT" in entry["state"]:
                state[end.device, entry["dst"]] = entry["lladdr"]
        for line in filters.splitlines():
            if "pref" in line and "handle" in line:
                state[end.device, "pref " + line.partition(" pref ")[2].split()[0]] = re.sub(" id [0-9]+", "", line)
        state[end.device, "queues"] = [
            (qdisc["kind"], qdisc["options"])
            for qdisc in json.loads(qdiscs)
            if qdisc["kind"] not in ("clsact", "noqueue")
        ]
    return state


@pytest.mark.nightly
@pytest.mark.netns
def test_every_pair_of_link_faults_nests_and_crosses(link_faults: list[Fault]) -> None:
    assert {fault.kind for fault in link_faults} == {
        name for name, kind in FAULTS.items() if kind.scope == "link" and kind.has_duration
    }
    with open_link_for(catalog.load_profile("ethernet"), *link_faults) as link:
        stage, base = make_links_stage(link), read_state(link)
        alone = []
        for fault in link_faults:
            active = timeline.begin_fault(fault, stage)
            alone.append(read_state(link))
            active.end()
            assert alone[-1] != base, fault
            assert read_state(link) == base, fault
        for (outer, outer_state), (inner, inner_state) in itertools.product(
            zip(link_faults, alone, strict=True), repeat=2
        ):
            # The later fault determines what it changes, the earlier one the rest.
            changed = {key: value for key, value in inner_state.items() if base.get(key) != value}
            for earlier_ends_first in (False, True):
                both = [timeline.begin_fault(fault, stage) for fault in (outer, inner)]
                assert read_state(link) == outer_state | changed, (outer, inner)
                both.pop(0 if earlier_ends_first else 1).end()
                assert read_state(link) == (inner_state if earlier_ends_first else outer_state), (outer, inner)
                both.pop().end()
                assert read_state(link) == base, (outer, inner)


@pytest.fixture
def process() -> Iterator[NodeProcess]:
    with start_processes(1) as (started,):
        yield started


# State of a process under each fault: paused, few descriptors. A killed one has no state until it is restarted.
PROCESS_STATES = {"pause": (True, False), "file-descriptors": (False, True), "kill": None}


def test_every_pair_of_process_faults_nests_and_crosses(process: NodeProcess) -> None:
    stage = make_stage([process])

    def read_process_state() -> tuple[bool, bool] | None:
        assert stage.nodes[0].is_down == (process.popen.poll() is not None)
        if stage.nodes[0].is_down:
            return None
        return process.is_paused(), resource.prlimit(process.jvm_pid, resource.RLIMIT_NOFILE)[0] < 100

    assert read_process_state() == (False, False)
    for outer, inner, earlier_ends_first in itertools.product(PROCESS_STATES, PROCESS_STATES, (False, True)):
        active = [(kind, timeline.begin_fault(make_fault(kind), stage)) for kind in (outer, inner)]
        both = None if "kill" in (outer, inner) else ("pause" in (outer, inner), "file-descriptors" in (outer, inner))
        assert read_process_state() == both, (outer, inner)
        active.pop(0 if earlier_ends_first else 1)[1].end()
        assert read_process_state() == PROCESS_STATES[active[0][0]], (outer, inner)
        active.pop()[1].end()
        assert read_process_state() == (False, False), (outer, inner)
